//! The plan of a whole mesh: one rank of each kind, run as that rank would run, and all stages of the pipeline
//! together.

use fathom_base::metrics::events;
use fathom_model::Spec;
use fathom_tensor::Profile;
use fathom_tensor::mesh::{Axis, Grid};
use rayon::prelude::*;

use super::Draft;
use super::figures::Plan;
use super::fullest::fullest;
use super::gantt::{Gantt, simulate};
use super::lane::Lane;
use crate::error::Result;
use crate::parallel::Ranks;

/// The plan of one rank.
#[derive(Clone, Debug)]
pub struct OfRank {
    /// The rank.
    pub rank: usize,
    /// Number of ranks that it represents, including itself.
    pub stands_for: usize,
    /// Its plan.
    pub plan: Plan,
}

/// The plan of all ranks.
#[derive(Clone, Debug)]
pub struct MeshPlan {
    /// The mesh.
    pub ranks: Ranks,
    /// One rank of each kind, ascending.
    pub kinds: Vec<OfRank>,
    /// FLOPs of one step over all ranks, attention counted once under its mask.
    pub model_flops: u128,
    /// Tokens of a step.
    pub tokens: u64,
    /// Simulated schedule; `None` if the profile has no rates.
    pub gantt: Option<Gantt>,
    /// True if the profile describes the links between ranks, so that messages take time.
    pub has_fabric: bool,
}

impl MeshPlan {
    /// The plan of the rank that needs most memory.
    pub fn most(&self) -> Option<&OfRank> {
        self.kinds.iter().max_by_key(|kind| kind.plan.usage.peak_reserved)
    }

    /// The step of all ranks for the log, if there are several and the profile has rates.
    pub fn event(&self, stage: &str) -> Option<events::Pipeline> {
        self.gantt.as_ref()?.event(stage, &self.ranks.grid)
    }

    /// Predicted seconds of a step.
    pub fn step_s(&self) -> Option<f64> {
        self.gantt.as_ref().map(|gantt| gantt.step_s)
    }

    /// Predicted tokens per second over all ranks.
    pub fn tokens_per_s(&self) -> Option<f64> {
        Some(self.tokens as f64 / self.step_s()?)
    }

    /// Predicted FLOP/s of the model per rank.
    pub fn flops_per_s(&self) -> Option<f64> {
        Some(self.model_flops as f64 / self.step_s()? / self.ranks.grid.ranks() as f64)
    }
}

/// One rank of each kind, with the number of ranks of that kind: one for each pipeline stage and, among tensor parallel
/// ranks, each size of the vocabulary's share. Data and context parallel ranks have the same layers and shapes; of
/// these it is the first that keeps most of the optimizer's state. Their attention pairs differ by less than 1 %.
pub fn distinct(ranks: &Ranks, spec: &Spec) -> Vec<(usize, usize)> {
    let Grid { tp, cp, dp, pp, .. } = ranks.grid;
    let block = tp * cp * dp;
    let vocab = |index: usize| spec.vocab * (index + 1) / tp - spec.vocab * index / tp;
    let mut kinds = Vec::new();
    for stage in 0..pp {
        let mut seen: Vec<usize> = Vec::new();
        for index in 0..tp {
            if seen.contains(&vocab(index)) {
                continue;
            }
            seen.push(vocab(index));
            let alike = (0..tp).filter(|other| vocab(*other) == vocab(index)).count() * cp * dp;
            let rank = stage * block + index;
            kinds.push((rank + tp * fullest(ranks, spec, rank), alike));
        }
    }
    kinds
}

impl Draft<'_> {
    /// Plans every kind of rank, and the step that they make together.
    ///
    /// # Errors
    /// Those of [`Draft::workload`].
    pub fn mesh(&self) -> Result<MeshPlan> {
        let work = self.workload()?;
        let plan = |(rank, stands_for): (usize, usize)| -> Result<OfRank> {
            Ok(OfRank { rank, stands_for, plan: Draft { rank, ..self.clone() }.plan()? })
        };
        let kinds = distinct(&work.how.ranks, &work.spec);
        let kinds: Vec<OfRank> = kinds.into_par_iter().map(plan).collect::<Result<_>>()?;
        Ok(self.together(work.how.ranks, kinds, &work))
    }

    /// The step of all ranks, from plans of one rank of each kind.
    pub(super) fn together(&self, ranks: Ranks, kinds: Vec<OfRank>, work: &super::Workload<'_>) -> MeshPlan {
        let grid = ranks.grid;
        let handover_s = handovers(self.profile, &ranks, work);
        // The slowest rank of a stage sets its pace: its ranks communicate in every block.
        let slowest = |stage: usize| {
            let of = kinds.iter().filter(|kind| grid.index(kind.rank, Axis::Pp) == stage);
            let lanes = of.filter_map(|kind| kind.plan.lane.as_deref());
            lanes.max_by(|a, b| a.busy_s().total_cmp(&b.busy_s()))
        };
        let lanes: Option<Vec<&Lane>> = (0..grid.pp).map(slowest).collect();
        let gantt = lanes.map(|lanes| simulate(&lanes, ranks.virtual_stages, &handover_s));
        let model_flops = kinds.iter().map(|kind| kind.plan.model_flops * kind.stands_for as u128).sum();
        let tokens = kinds.first().map_or(0, |kind| kind.plan.tokens);
        let has_fabric = self.profile.fabric.is_some();
        MeshPlan { ranks, kinds, model_flops, tokens, gantt, has_fabric }
    }
}

/// Bytes that a rank sends to another stage per micro-batch: its rows between blocks.
fn handed(ranks: &Ranks, work: &super::Workload<'_>) -> u64 {
    let Grid { tp, cp, sequence_parallel, .. } = ranks.grid;
    let share = if sequence_parallel { tp } else { 1 };
    (work.tokens / cp / share * work.spec.hidden * work.dtype.bytes()) as u64
}

/// Seconds of a transfer between each rank of the pipeline and the next, in either direction: its rows between blocks.
pub(super) fn handovers(profile: &Profile, ranks: &Ranks, work: &super::Workload<'_>) -> Vec<f64> {
    let Grid { tp, cp, dp, pp, .. } = ranks.grid;
    let bytes = handed(ranks, work);
    let block = tp * cp * dp;
    let seconds = |stage: usize| {
        let fabric = profile.fabric.filter(|_| pp > 1)?;
        let ride = fabric.message(stage * block, (stage + 1) % pp * block, bytes);
        Some(ride.busy_s + ride.latency_s)
    };
    (0..pp).map(|stage| seconds(stage).unwrap_or(0.0)).collect()
}
