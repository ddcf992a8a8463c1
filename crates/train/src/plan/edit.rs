//! Changes of a recipe that save memory, each planned: the one that lowers the peak most, and those that make a step
//! fit.

use std::fmt;

use fathom_base::human;
use fathom_tensor::Label;

use super::figures::Plan;
use super::resource::Resource;
use super::{Draft, StageSettings};
use crate::error::{Error, Result};
use crate::recipe::{Granularity, Memory, Precision, Recipe};

/// One change, in the recipe's own keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// The solver chooses places and tiles.
    Auto,
    /// Granularity of recompute.
    Granularity(Granularity),
    /// Rows of a tile, in tokens.
    TileRows(usize),
    /// Number of groups of heads that attention processes one after the other.
    HeadGroups(usize),
    /// Activations to offload to disk.
    Offload(&'static str),
    /// The optimizer's state on disk.
    OffloadOptimizer,
    /// Weights on disk.
    OffloadWeights,
    /// Half as many samples in twice as many micro-batches.
    Halve,
    /// Type of weights and activations.
    Precision(Precision),
    /// Another sequence length.
    SeqTokens(usize),
}

/// A change of a stage and its plan.
#[derive(Clone, Debug)]
pub struct Change {
    /// Edits made together.
    pub edits: Vec<Edit>,
    /// The settings to give, e.g. `stage.0.tile_rows=1024`.
    pub settings: Vec<String>,
    /// Plan with the edits.
    pub plan: Plan,
}

/// An explanation of the peak.
#[derive(Clone, Debug)]
pub struct Why {
    /// Plan without changes.
    pub plan: Plan,
    /// The largest buffers at the peak.
    pub largest: Vec<(Label, u64)>,
    /// The single change that lowers the peak most.
    pub best: Option<Change>,
    /// The fastest single change with which a stage that does not fit would.
    pub fastest: Option<Change>,
}

impl Edit {
    /// Applies the edit to the recipe.
    pub fn apply(&self, recipe: &mut Recipe, index: usize) {
        let stage = &mut recipe.stage[index];
        match *self {
            Edit::Auto => recipe.activations.memory = Memory::Auto,
            Edit::Granularity(granularity) => stage.recompute_granularity = Some(granularity),
            Edit::TileRows(rows) => stage.tile_rows = Some(rows),
            Edit::HeadGroups(groups) => recipe.activations.head_groups = groups,
            Edit::Offload(module) => recipe.activations.offload_modules = vec![module.to_string()],
            Edit::OffloadOptimizer => recipe.machine.offload_optimizer = true,
            Edit::OffloadWeights => recipe.machine.offload_weights = true,
            Edit::Halve => {
                stage.samples_per_micro_batch = (stage.samples_per_micro_batch / 2).max(1);
                stage.micro_batches *= 2;
            }
            Edit::Precision(precision) => recipe.model.precision = precision,
            Edit::SeqTokens(tokens) => stage.seq_tokens = tokens,
        }
    }

    /// The edit as settings over `recipe`.
    fn settings(&self, recipe: &Recipe, index: usize) -> Vec<String> {
        let stage = |key: &str, value: &dyn fmt::Display| format!("stage.{index}.{key}={value}");
        match self {
            Edit::Auto => vec!["activations.memory=auto".into()],
            Edit::Granularity(granularity) => vec![stage("recompute_granularity", granularity)],
            Edit::TileRows(rows) => vec![stage("tile_rows", rows)],
            Edit::HeadGroups(groups) => vec![format!("activations.head_groups={groups}")],
            Edit::Offload(module) => vec![format!("activations.offload_modules=[{module:?}]")],
            Edit::OffloadOptimizer => vec!["machine.offload_optimizer=true".into()],
            Edit::OffloadWeights => vec!["machine.offload_weights=true".into()],
            Edit::Halve => {
                let table = &recipe.stage[index];
                let samples = (table.samples_per_micro_batch / 2).max(1);
                vec![
                    stage("samples_per_micro_batch", &samples),
                    stage("micro_batches", &(table.micro_batches * 2)),
                ]
            }
            Edit::Precision(precision) => vec![format!("model.precision={precision}")],
            Edit::SeqTokens(tokens) => vec![stage("seq_tokens", tokens)],
        }
    }
}

/// Groups of mutually exclusive edits, for `kv_heads` heads of keys and values.
fn groups(recipe: &Recipe, index: usize, kv_heads: usize) -> Vec<Vec<Edit>> {
    let table = &recipe.stage[index];
    // The heads must divide evenly into groups.
    let heads = [8, 4, 2].into_iter().find(|groups| kv_heads.is_multiple_of(*groups));
    let tokens = table.seq_tokens * table.samples_per_micro_batch.max(1);
    let tiles = [8192, 4096, 2048, 1024, 512].into_iter().filter(|rows| *rows < tokens);
    let narrow = recipe.model.precision == Precision::F32;
    vec![
        vec![Edit::Granularity(Granularity::Linear), Edit::Granularity(Granularity::Full)],
        tiles.map(Edit::TileRows).collect(),
        ["core_attn", "block", "all"].map(Edit::Offload).to_vec(),
        heads.into_iter().map(Edit::HeadGroups).collect(),
        vec![Edit::OffloadOptimizer],
        vec![Edit::OffloadWeights],
        if table.samples_per_micro_batch > 1 { vec![Edit::Halve] } else { Vec::new() },
        if narrow { vec![Edit::Precision(Precision::Bf16)] } else { Vec::new() },
    ]
}

/// Predicted seconds of a step, or its FLOPs if the profile has no rates.
fn cost(change: &Change) -> f64 {
    change.plan.step_s().unwrap_or(change.plan.hardware_flops as f64)
}

impl Draft<'_> {
    /// The stage with some edits; `None` if it has them already, or cannot have them, such as offloaded weights that
    /// ranks share.
    ///
    /// # Errors
    /// A model that cannot be planned.
    pub fn change(&self, edits: &[Edit]) -> Result<Option<Change>> {
        let mut draft = self.clone();
        let mut settings = Vec::new();
        for edit in edits {
            let before = draft.recipe.clone();
            settings.extend(edit.settings(&before, self.index));
            edit.apply(&mut draft.recipe, self.index);
            if draft.recipe == before {
                return Ok(None);
            }
        }
        match draft.plan() {
            Err(Error::Recipe { .. }) => Ok(None),
            plan => Ok(Some(Change { edits: edits.to_vec(), settings, plan: plan? })),
        }
    }

    /// The largest buffers at the peak, the single edit that lowers it most and, if the stage does not fit, the fastest
    /// single edit with which it does. Each is planned.
    ///
    /// # Errors
    /// A stage that cannot be planned.
    pub fn why(&self) -> Result<Why> {
        let StageSettings { how, plan, .. } = self.settle()?;
        let largest = self.at_peak(&how)?;
        let (mut best, mut fastest): (Option<Change>, Option<Change>) = (None, None);
        let fits = self.budgets.hold(&plan);
        let auto = (!fits).then_some(Edit::Auto);
        for edit in groups(&self.recipe, self.index, self.spec.kv_heads).into_iter().flatten().chain(auto) {
            let lowest = best.as_ref().map_or(plan.usage.peak_live, |change| change.plan.usage.peak_live);
            let Some(change) = self.change(&[edit])? else { continue };
            let faster = fastest.as_ref().is_none_or(|fastest| cost(&change) < cost(fastest));
            if !fits && faster && self.budgets.hold(&change.plan) {
                fastest = Some(change.clone());
            }
            if change.plan.usage.peak_live < lowest {
                best = Some(change);
            }
        }
        Ok(Why { plan, largest, best, fastest })
    }

    /// The `most` cheapest changes, by predicted step time, with which the stage stays within its budgets. No change
    /// has a superfluous edit. A shorter sequence is the last resort.
    ///
    /// # Errors
    /// A stage that cannot be planned.
    pub fn rescues(&self, most: usize) -> Result<Vec<Change>> {
        let mut fitting: Vec<Change> = Vec::new();
        let mut sets: Vec<Vec<Edit>> = vec![Vec::new()];
        for group in groups(&self.recipe, self.index, self.spec.kv_heads) {
            // One middle and the smallest size of tiles, and only the largest offload: those between differ little.
            let group: Vec<Edit> = match group.len() {
                0..=2 => group,
                3 => vec![group[2].clone()],
                more => vec![group[more / 2].clone(), group[more - 1].clone()],
            };
            let longer = sets.iter().flat_map(|set| {
                group.iter().map(|edit| [set.as_slice(), std::slice::from_ref(edit)].concat())
            });
            let longer: Vec<Vec<Edit>> = longer.collect();
            sets.extend(longer);
        }
        sets.sort_by_key(Vec::len);
        for set in sets.iter().filter(|set| !set.is_empty()) {
            // At most one edit more than the fewest that fit: longer lists are hard to read.
            if fitting.first().is_some_and(|change| set.len() > change.edits.len() + 1) {
                break;
            }
            let needless = |change: &Change| change.edits.iter().all(|edit| set.contains(edit));
            if fitting.iter().any(needless) {
                continue;
            }
            fitting.extend(self.change(set)?.filter(|change| self.budgets.hold(&change.plan)));
        }
        fitting.sort_by(|left, right| cost(left).total_cmp(&cost(right)));
        fitting.truncate(most);
        if fitting.len() < most
            && let Some(tokens) = self.longest()?
        {
            fitting.extend(self.change(&[Edit::SeqTokens(tokens)])?);
        }
        Ok(fitting)
    }
}

/// Number of changes that a refusal names.
const RESCUES: usize = 3;

pub(super) fn remedy(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "No change of places, tiles, precision or length makes it fit; raise machine.memory_bytes (of disk, \
                machine.disk_bytes) or take a smaller model"
            .into();
    }
    let line = |change: &Change| {
        let bytes = human::bytes(change.plan.usage.peak_reserved);
        let time = change.plan.step_s().map_or(String::new(), |s| format!(", {} a step", human::seconds(s)));
        format!("\n  {}  ({bytes}{time})", change.settings.join(" "))
    };
    let lines: String = changes.iter().map(line).collect();
    format!("It would fit with any of these, the fastest first:{lines}")
}

impl Draft<'_> {
    /// [`Draft::settle`] for a stage that must stay within its budgets.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] with the cheapest changes that would make it fit, and those of [`Draft::workload`].
    pub fn check(&self) -> Result<StageSettings> {
        let settled = self.settle()?;
        let Some((of, needed_bytes, budget_bytes)) = self.budgets.lack(&settled.plan) else {
            return Ok(settled);
        };
        Err(Error::DoesNotFit {
            stage: self.recipe.stage[self.index].name.clone(),
            of,
            needed_bytes,
            budget_bytes,
            peak_op: (of == Resource::Memory).then_some(settled.plan.usage.peak_op),
            remedy: remedy(&self.rescues(RESCUES)?),
        })
    }
}
