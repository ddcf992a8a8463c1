//! Scaling laws of a recipe (`fathom scale`): a ladder of sizes and compute budgets within one time budget, fits of the
//! loss, a prediction for a held-out larger rung, and the miss once that rung is trained.
//!
//! `ladder` makes sizes and their plans from the recipe, `rungs` shares the budget out, `record` keeps the ladder in its
//! folder, `climb` measures speeds and trains, `fits` fits the laws, `gpus` prices budgets of a GPU, `page` draws it all.
//! Every rung is an ordinary run in a folder of its own, so that a ladder that was killed goes on where it was.

mod climb;
mod fits;
mod gpus;
mod ladder;
mod outcome;
mod page;
mod record;
mod rungs;

pub use fits::{Fits, LawFit, OfLaw, Prediction, RungResult};
pub use gpus::OnGpu;
pub use ladder::Size;
pub use outcome::{LadderOutcome, LadderResult, Request};
pub use rungs::{Ladder, Rung};

use crate::error::{Result, refuse};
use crate::events::Events;
use crate::train::Order;

/// Plans a ladder without training: sizes by the plan of their steps, tokens by predicted step times.
///
/// # Errors
/// A recipe without a ladder; a rung that does not fit into memory; a budget too short for the ladder.
pub fn dry_run(request: &Request, events: &dyn Events) -> Result<Ladder> {
    check(request)?;
    let sizes = ladder::sizes(&request.loaded, None, events)?;
    rungs::share_out(&sizes, &request.loaded, request.budget_s, 0.0)
}

/// Trains a ladder, or goes on with it, and returns its laws.
///
/// # Errors
/// Those of [`dry_run`] and of training; a budget that the rungs to come would overrun.
pub fn climb(request: &Request, order: &Order, events: &dyn Events) -> Result<LadderOutcome> {
    check(request)?;
    climb::climb(request, order, events)
}

fn check(request: &Request) -> Result<()> {
    let recipe = &request.loaded.value;
    let table = &recipe.scale;
    let refused = |key: &str, message: &str| Err(request.loaded.refuse(key, message).into());
    if table.widths.len() < 3 || table.widths.windows(2).any(|pair| pair[1] <= pair[0]) {
        return refused(
            "scale.widths",
            "a ladder needs at least three ascending widths, the last for the held-out rung; `fathom recipes show ladder` has one",
        );
    }
    if recipe.stage.len() != 1 {
        return refused("stage", "a ladder trains one stage; leave out the others");
    }
    if recipe.model.from.is_some() {
        return refused("model.from", "the models of a ladder are trained from random weights");
    }
    if !recipe.adapters.is_empty() || recipe.rl.is_on() || recipe.data.is_lessons() {
        refuse!("a ladder trains on plain text: leave out adapters, rewards and lessons");
    }
    if !recipe.eval.enabled {
        return refused("eval.enabled", "the laws are fitted to held-out losses, which need it");
    }
    Ok(())
}
