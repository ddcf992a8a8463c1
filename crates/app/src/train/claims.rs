//! Context length that a trained model declares (`max_position_embeddings`, GGUF's `context_length`): that of the model
//! it started from, unless a stage asks for more or the training data has a longer document.

use fathom_base::human;
use fathom_train::Stores;
use fathom_train::recipe::{RopeType, Stage};

use crate::error::Result;
use crate::events::Events;
use crate::job::Job;

/// Reports before the first step which context the trained model will declare, if the length of its samples suggests
/// another.
///
/// # Errors
/// A store that cannot be read.
pub fn say(job: &Job, stores: &Stores, events: &dyn Events) -> Result<()> {
    let (recipe, first) = (job.recipe(), &job.stages[0].spec);
    let asked = recipe.stage.iter().map(|stage| stage.seq_tokens).max().unwrap_or(0);
    let stretches = |stage: &Stage| stage.rope_type != RopeType::Keep || stage.rope_theta.is_some();
    let positions = !first.ropes.is_empty() || first.learned_positions.is_some();
    if !positions && recipe.stage.iter().any(stretches) {
        events.line("no layer of the model has positions, so rope_type and rope_theta stretch nothing; it claims the longer context");
    }
    let (given, mut after) = (first.max_positions, job.trained.clone());
    let unasked = after.max_positions == given;
    stores.claim(recipe, &mut after)?;
    let claimed = human::grouped(after.max_positions as u64);
    if unasked && after.max_positions > given {
        events.warn(&format!(
            "the model claims a context of {} tokens and the longest document has {claimed}: the trained model will claim {claimed}, with \
             the rotary settings that it has (stage.*.rope_type extends them)",
            human::grouped(given as u64),
        ));
    } else if recipe.model.from.is_some() && asked > after.max_positions {
        events.line(&format!(
            "samples have {} tokens and no document is longer than the {claimed} that the model claims, which it still will",
            human::grouped(asked as u64),
        ));
    }
    Ok(())
}
