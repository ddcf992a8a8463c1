//! Needs of a mesh's step, for the search for a mesh: of each kind of stage, the rank that keeps most of the
//! optimizer's state runs one step, and the passes of all stages are simulated together. The search plans its results
//! in full.
//!
//! Stages are of one kind if they have the same layers in the same chunks and are at the same ends of the pipeline. A
//! stage that was not planned takes the times of its kind, in its own order.

use std::collections::BTreeMap;
use std::ops::Range;

use fathom_model::Spec;

use super::figures::Plan;
use super::fullest::fullest;
use super::gantt::simulate;
use super::lane::Lane;
use super::mesh::handovers;
use super::{Budgets, Workload};
use crate::error::Result;
use crate::parallel::Ranks;
use crate::parallel::stages::Act;

/// Needs of a step, for the rank that needs most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Needs {
    /// Seconds of a step.
    pub step_s: f64,
    /// Lower bound of the seconds for any number of stages on each rank: mean time of a rank's passes, without waits
    /// for others.
    pub floor_s: f64,
    /// Maximum reserved bytes of a rank.
    pub peak_bytes: u64,
    /// Maximum bytes on its host.
    pub host_bytes: u64,
    /// Maximum bytes on its disk.
    pub disk_bytes: u64,
}

impl Needs {
    /// Bytes over budget, for the resource with the largest excess.
    pub fn excess(&self, budgets: &Budgets) -> u64 {
        let uses = [
            (self.peak_bytes, budgets.memory),
            (self.host_bytes, budgets.host),
            (self.disk_bytes, budgets.disk),
        ];
        uses.map(|(used, budget)| used.saturating_sub(budget)).into_iter().max().unwrap_or(0)
    }
}

/// Properties that stages of one kind share: being the first or the last, and the first like layer of each of their
/// layers.
type Kind = (bool, bool, Vec<Vec<usize>>);

/// The kind of each pipeline stage.
fn kinds(ranks: &Ranks, spec: &Spec) -> Vec<Kind> {
    let (pp, chunks) = (ranks.grid.pp, ranks.virtual_stages);
    let cut = ranks.layout.cut(spec, pp * chunks);
    let layers = |range: &Range<usize>| range.clone().map(|layer| spec.first_like(layer)).collect();
    let of = |stage: usize| {
        let own = cut.iter().skip(stage).step_by(pp).map(layers).collect();
        (stage == 0, stage + 1 == pp, own)
    };
    (0..pp).map(of).collect()
}

impl Workload<'_> {
    /// Needs of a step; `None` without rates, or if the micro-batches cannot pass through the stages. With `within`,
    /// planning ends at the first stage that exceeds those budgets.
    pub(super) fn needs(&self, within: Option<&Budgets>) -> Result<Option<Needs>> {
        let ranks = &self.how.ranks;
        let (pp, chunks) = (ranks.grid.pp, ranks.virtual_stages);
        let micro_batches = (self.micro_batches / ranks.grid.dp).max(1);
        let orders: std::result::Result<Vec<Vec<Act>>, String> =
            (0..pp).map(|stage| ranks.order.acts(stage, pp, chunks, micro_batches)).collect();
        let (Ok(orders), true) = (orders, self.profile.rates.is_some()) else { return Ok(None) };
        let kinds = kinds(ranks, &self.spec);
        let mut plans: BTreeMap<&Kind, Plan> = BTreeMap::new();
        for (stage, kind) in kinds.iter().enumerate() {
            if plans.contains_key(kind) {
                continue;
            }
            let plan = self.of_stage(stage)?;
            let is_too_much = within.is_some_and(|budgets| budgets.excess(&plan) > 0);
            plans.insert(kind, plan);
            if is_too_much {
                return Ok(Some(most(f64::INFINITY, f64::INFINITY, plans.values())));
            }
        }
        let lanes: Option<Vec<Lane>> = kinds
            .iter()
            .zip(orders)
            .map(|(kind, acts)| Some(reordered(plans[kind].lane.as_deref()?, acts, micro_batches)))
            .collect();
        let Some(lanes) = lanes else { return Ok(None) };
        let lanes: Vec<&Lane> = lanes.iter().collect();
        let step_s = simulate(&lanes, chunks, &handovers(self.profile, ranks, self)).step_s;
        // However layers are distributed, some rank has at least the mean.
        let floor_s = lanes.iter().map(|lane| lane.busy_s()).sum::<f64>() / lanes.len().max(1) as f64;
        Ok(Some(most(step_s, floor_s, plans.values())))
    }

    /// Needs of the first stage alone, which holds most micro-batches: to compare places of activations, which all
    /// stages have.
    pub(super) fn needs_of_first(&self) -> Result<Option<Needs>> {
        let plan = self.of_stage(0)?;
        let of = |lane: &Lane| Needs {
            step_s: lane.busy_s(),
            floor_s: lane.busy_s(),
            peak_bytes: plan.usage.peak_reserved,
            host_bytes: plan.host_peak_bytes,
            disk_bytes: plan.disk_peak_bytes,
        };
        Ok(plan.lane.as_deref().map(of))
    }

    /// The step of a stage's rank that keeps most of the optimizer's state.
    fn of_stage(&self, stage: usize) -> Result<Plan> {
        let mut work = self.clone();
        let grid = work.how.ranks.grid;
        let first = stage * grid.tp * grid.cp * grid.dp;
        work.how.ranks.rank = first + grid.tp * fullest(&work.how.ranks, &work.spec, first);
        work.glance()
    }
}

/// Needs of the ranks with these plans.
fn most<'a>(step_s: f64, floor_s: f64, plans: impl Iterator<Item = &'a Plan> + Clone) -> Needs {
    let most = |bytes: fn(&Plan) -> u64| plans.clone().map(bytes).max().unwrap_or(0);
    Needs {
        step_s,
        floor_s,
        peak_bytes: most(|plan| plan.usage.peak_reserved),
        host_bytes: most(|plan| plan.host_peak_bytes),
        disk_bytes: most(|plan| plan.disk_peak_bytes),
    }
}

/// A lane's passes in the order of another stage of its kind: the first and the last micro-batch keep their times, and
/// all others take those of the second.
fn reordered(lane: &Lane, acts: Vec<Act>, micro_batches: usize) -> Lane {
    let key = |act: Act| match act {
        Act::Forward { micro, chunk } => (0, chunk, micro),
        Act::Backward { micro, chunk } => (1, chunk, micro),
        Act::Weights { micro, chunk } => (2, chunk, micro),
    };
    let times: BTreeMap<(usize, usize, usize), f64> =
        lane.acts.iter().map(|(act, seconds)| (key(*act), *seconds)).collect();
    let last = times.keys().map(|(_, _, micro)| *micro).max().unwrap_or_default();
    let seconds = |act: &Act| {
        let (kind, chunk, micro) = key(*act);
        let like = match micro {
            0 => 0,
            _ if micro + 1 == micro_batches => last,
            _ => 1.min(last),
        };
        (*act, times.get(&(kind, chunk, like)).copied().unwrap_or_default())
    };
    let acts = acts.iter().map(seconds).collect();
    Lane { before_s: lane.before_s, acts, after_s: lane.after_s, ..Lane::default() }
}
