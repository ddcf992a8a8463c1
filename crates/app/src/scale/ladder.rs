//! Sizes of a ladder: their shapes, and the plan of a step of each.

use std::path::Path;
use std::sync::Arc;

use fathom_base::human;
use fathom_base::recipe::Loaded;
use fathom_model::Model;
use fathom_tensor::{Device, Meta, Profile};
use fathom_train::recipe::{ModelTable, Recipe};
use serde::{Deserialize, Serialize};

use crate::error::{Result, refuse};
use crate::events::Events;
use crate::job::Job;
use crate::library::load;
use crate::plan::plan;

/// MLP columns are multiples of this.
const FFN_STEP: usize = 16;
/// Seconds of a step without a prediction of the machine, only to plan with.
const UNKNOWN_STEP_S: f64 = 1.0;

/// A size of the ladder, and what a step of it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns inside the MLP.
    pub ffn: usize,
    /// Parameters; tied ones count once.
    pub params: u64,
    /// Parameters without those of the embedding and the head.
    pub block_params: u64,
    /// Tokens of a step.
    pub step_tokens: u64,
    /// FLOPs of a step, without recompute.
    pub step_flops: f64,
    /// Peak bytes of a step.
    pub peak_bytes: u64,
    /// Seconds of a step: planned, or measured where the ladder has run.
    pub step_s: f64,
    /// Peak learning rate.
    pub lr: f64,
}

impl Size {
    /// FLOPs of a token.
    pub fn token_flops(&self) -> f64 {
        self.step_flops / self.step_tokens as f64
    }

    /// Settings that make a recipe this size.
    pub fn settings(&self) -> Vec<String> {
        vec![
            format!("model.hidden={}", self.hidden),
            format!("model.layers={}", self.layers),
            format!("model.heads={}", self.heads),
            format!("model.kv_heads={}", self.kv_heads),
            format!("model.ffn={}", self.ffn),
            format!("optimizer.lr={:e}", self.lr),
            "run.minutes=none".into(),
        ]
    }
}

/// Returns the shape of a width in the proportions of the recipe's model; figures of a step are still zero.
pub(super) fn shape(recipe: &Recipe, hidden: usize) -> Result<Size> {
    let ModelTable { head_dim, heads, kv_heads, layers, ffn, hidden: base, .. } = recipe.model;
    let own = (heads * hidden).checked_rem(base).filter(|rest| *rest == 0).map(|_| heads * hidden / base);
    let Some(own_heads) = own.filter(|heads| *heads > 0) else {
        refuse!(
            "scale.widths: a width of {hidden} has no whole number of heads in the proportions of model.heads = {heads} at \
             model.hidden = {base}; take multiples of {}",
            base / heads.max(1)
        );
    };
    let wanted = (own_heads * kv_heads / heads.max(1)).max(1);
    let own_kv = (1..=wanted).rev().find(|kv| own_heads % kv == 0).unwrap_or(1);
    let ratio = hidden as f64 / base as f64;
    let columns = ((ffn as f64 * ratio / FFN_STEP as f64).round() as usize).max(1) * FFN_STEP;
    let blocks = if recipe.scale.depth { ((layers as f64 * ratio).round() as usize).max(1) } else { layers };
    debug_assert!(head_dim > 0);
    Ok(Size {
        hidden,
        layers: blocks,
        heads: own_heads,
        kv_heads: own_kv,
        ffn: columns,
        params: 0,
        block_params: 0,
        step_tokens: 0,
        step_flops: 0.0,
        peak_bytes: 0,
        step_s: 0.0,
        lr: match recipe.model.mup_width {
            Some(_) => recipe.optimizer.lr,
            None => recipe.optimizer.lr * ratio.powf(-recipe.scale.lr_power),
        },
    })
}

/// Returns the sizes of a recipe's ladder, each planned on the recipe's machine, or on that of `profile`.
///
/// # Errors
/// A width without whole heads; a size that does not fit into memory.
pub(super) fn sizes(
    loaded: &Loaded<Recipe>,
    profile: Option<&str>,
    events: &dyn Events,
) -> Result<Vec<Size>> {
    let recipe = &loaded.value;
    let hidden = recipe.scale.widths.iter();
    hidden.map(|hidden| planned(loaded, shape(recipe, *hidden)?, profile, events)).collect()
}

/// Returns a job of a size: the recipe with its settings and those given.
///
/// # Errors
/// Those of recipes and of [`Job::new`].
pub(super) fn job(text: &str, size: &Size, settings: &[String], events: &dyn Events) -> Result<Job> {
    let all: Vec<String> = size.settings().into_iter().chain(settings.iter().cloned()).collect();
    Job::new(load(layers_of(text, &all))?, events)
}

fn layers_of(text: &str, settings: &[String]) -> fathom_base::recipe::Layers<'static> {
    // A resolved recipe: all of its keys are set.
    fathom_base::recipe::Layers::with_library(crate::library::LIBRARY)
        .text("the ladder's recipe", text)
        .sets(settings)
}

/// Plans a step of a size.
///
/// # Errors
/// A size that does not fit into memory.
pub(super) fn planned(
    loaded: &Loaded<Recipe>,
    size: Size,
    profile: Option<&str>,
    events: &dyn Events,
) -> Result<Size> {
    let mut settings = vec!["stage.0.steps=1".to_string()];
    settings.extend(profile.map(|name| format!("machine.profile={name}")));
    settings.extend(profile.map(|_| "machine.memory_bytes=none".to_string()));
    let job = job(loaded.text(), &size, &settings, events)?;
    events.doing(&format!("planning a step at width {}", size.hidden));
    let plans = plan(&job, None)?;
    let draft = plans.draft(0);
    let settled = crate::error::caught(|| Ok(draft.settle()?)).map_err(|error| job.placed(error))?;
    if let Some((resource, used, budget)) = draft.budgets.lack(&settled.plan) {
        refuse!(
            "width {}: a step needs {} of {resource} and {} are there; leave the width out of scale.widths, or lower \
             stage.0.samples_per_micro_batch",
            size.hidden,
            human::bytes(used),
            human::bytes(budget)
        );
    }
    let (params, block_params) = count(&job);
    let plan = settled.plan;
    Ok(Size {
        params,
        block_params,
        step_tokens: plan.tokens,
        step_flops: plan.model_flops as f64 * job.world() as f64,
        peak_bytes: plan.usage.peak_reserved,
        step_s: plan.step_s().unwrap_or(UNKNOWN_STEP_S),
        ..size
    })
}

/// Returns the parameters of a job's model, and those of its blocks.
fn count(job: &Job) -> (u64, u64) {
    let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
    let (_, params) = Model::declare(&nowhere, &job.trained, job.recipe().model.precision.dtype());
    let all = params.num_elements();
    let tables = if job.trained.tied { 1 } else { 2 };
    let outside = tables * (job.trained.vocab * job.trained.hidden) as u64;
    (all, all.saturating_sub(outside))
}

/// Folder of a rung's run.
pub(super) fn folder(ladder: &Path, name: &str) -> std::path::PathBuf {
    ladder.join("rungs").join(name)
}
