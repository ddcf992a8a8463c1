//! Which mesh, pipeline and places of activations for so many ranks: `fathom plan --solve mesh`.
//!
//! Every mesh that divides the model and the step is tried with every preset of places, in the order of what it costs to compute,
//! and the cheapest preset that fits is taken. A candidate is asked of the plan itself ([`super::stagewise`]): its first and its
//! last stage, with one and with two layers in each, which says what any number of layers and of stages on a rank
//! need and take. For the best of those that cannot keep everything the memory solver then looks for better places. The best of
//! all are planned in full, and those figures are the ones that are shown.
//!
//! Rules: tensor parallel ranks stay within a node, and are no more than hidden / 2048 (narrower products are slower than the plan
//! knows, and their communication is not hidden); data parallel is kept alive where there are candidates that do so; of
//! candidates that are as fast as the fastest, within [`ALIKE`], the one that parts the model least is taken.

use std::cmp::Ordering;

use fathom_grad::Places;
use fathom_tensor::mesh::Grid;
use rayon::prelude::*;

use super::mesh::{MeshPlan, OfRank, distinct};
use super::mesh_places::{self, MeshPlaces, presets};
use super::stagewise::Estimate;
use super::{Draft, Workload};
use crate::error::{Error, Result};
use crate::parallel::Ranks;

/// Steps that differ by less are as fast: predictions are not better.
const ALIKE: f64 = 0.02;
/// Candidates that are planned in full.
const FINALISTS: usize = 6;
/// Candidates for which the memory solver is asked.
const SOLVED: usize = 4;
/// Most stages of the pipeline on one rank.
const MOST_STAGES: usize = 8;
/// Columns of the residual stream for each tensor parallel rank, at least.
const COLUMNS: usize = 2048;

/// A mesh with the places of its activations, and what it would take.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh and the stages on each rank.
    pub ranks: Ranks,
    /// Where activations are.
    pub places: MeshPlaces,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Most bytes of any rank, reserved.
    pub peak_bytes: u64,
    /// In full, for those that are shown.
    pub plan: Option<MeshPlan>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct MeshSolution {
    /// The best, the one that is taken first.
    pub best: Vec<Candidate>,
    /// Meshes that divide everything.
    pub meshes: usize,
    /// Of these, those of which no places fit.
    pub too_large: usize,
    /// Why the first is the first.
    pub rule: String,
}

impl Candidate {
    /// The settings that make it, over any recipe.
    pub fn settings(&self) -> Vec<String> {
        let Grid { tp, cp, dp, pp, ep, .. } = self.ranks.grid;
        let axes = [("tp", tp), ("cp", cp), ("dp", dp), ("pp", pp), ("ep", ep)];
        let mut all: Vec<String> = axes
            .iter()
            .filter(|(_, size)| *size > 1)
            .map(|(axis, size)| format!("mesh.{axis}={size}"))
            .collect();
        if self.ranks.virtual_stages > 1 {
            all.push(format!("mesh.virtual_stages={}", self.ranks.virtual_stages));
        }
        all.extend(self.places.settings.iter().cloned());
        all
    }

    /// Ranks that have parts of one replica of the model.
    fn parts(&self) -> usize {
        let Grid { tp, cp, pp, .. } = self.ranks.grid;
        tp * cp * pp
    }
}

/// What divides `whole`.
fn sizes(whole: usize) -> impl Iterator<Item = usize> {
    (1..=whole).filter(move |size| whole.is_multiple_of(*size))
}

impl Draft<'_> {
    /// The best meshes of `gpus` ranks for the stage.
    ///
    /// # Errors
    /// A stage that cannot be planned, or that fits on no such mesh.
    pub fn solve_mesh(&self, gpus: usize) -> Result<MeshSolution> {
        let refuse = |message: String| Error::Recipe { key: "mesh".into(), message };
        if self.profile.rates.is_none() {
            let message = format!("{} has no rates to tell meshes apart by", self.profile.name);
            return Err(Error::Recipe { key: "machine.profile".into(), message });
        }
        let mut own = self.clone();
        own.recipe.mesh = Default::default();
        let work = own.workload()?;
        let meshes = self.meshes(&work, gpus);
        let mut found: Vec<Candidate> =
            meshes.par_iter().filter_map(|ranks| self.candidate(&work, *ranks)).collect();
        let too_large = meshes.len() - found.len();
        if found.iter().any(|candidate| candidate.ranks.grid.dp > 1) {
            found.retain(|candidate| candidate.ranks.grid.dp > 1);
        }
        found.sort_by(fastest);
        let solved: Vec<Option<Candidate>> = found
            .par_iter()
            .take(SOLVED)
            .map(|candidate| self.with_memory_solved(&work, candidate))
            .collect();
        found.extend(solved.into_iter().flatten());
        found.sort_by(fastest);
        let mut best = self.finalists(&work, found);
        best.sort_by(fastest);
        let rule = decide(&mut best).ok_or_else(|| {
            refuse(format!(
                "of {} meshes of {gpus} ranks that divide the model and the step none fits into {} a rank; take more ranks, or \
                 shorter sequences",
                meshes.len(),
                fathom_base::human::bytes(self.budgets.memory)
            ))
        })?;
        Ok(MeshSolution { best, meshes: meshes.len(), too_large, rule })
    }

    /// The first that fit when they are planned in full, one of each mesh.
    fn finalists(&self, work: &Workload<'_>, mut found: Vec<Candidate>) -> Vec<Candidate> {
        let mut best: Vec<Candidate> = Vec::new();
        while best.len() < FINALISTS && !found.is_empty() {
            let (mut next, mut later): (Vec<Candidate>, Vec<Candidate>) = Default::default();
            for candidate in found {
                let same = |other: &Candidate| other.ranks.grid == candidate.ranks.grid;
                if best.iter().any(same) {
                    continue;
                }
                if best.len() + next.len() < FINALISTS && !next.iter().any(same) {
                    next.push(candidate)
                } else {
                    later.push(candidate)
                }
            }
            let planned: Vec<Option<Candidate>> =
                next.into_par_iter().map(|candidate| self.in_full(work, candidate)).collect();
            best.extend(planned.into_iter().flatten());
            found = later;
        }
        best
    }

    /// A candidate that does not keep everything, with the places that the memory solver finds for its mesh.
    fn with_memory_solved(&self, work: &Workload<'_>, candidate: &Candidate) -> Option<Candidate> {
        let ranks = candidate.ranks;
        if candidate.places.places == Places::none() {
            return None;
        }
        let own = Workload { how: crate::InStep { ranks, ..work.how.clone() }, ..work.clone() };
        let of = |places: &Places| {
            let mut with = own.clone();
            with.how.places = places.clone();
            with.stagewise()?.estimate(&with, &ranks)
        };
        let (places, Estimate { step_s, peak_bytes, .. }) = mesh_places::solve(&own, &self.budgets, &of)?;
        let faster = step_s < candidate.step_s;
        faster.then_some(Candidate { ranks, places, step_s, peak_bytes, plan: None })
    }

    /// All meshes that divide the model and the step, with one stage on each rank.
    fn meshes(&self, work: &Workload<'_>, gpus: usize) -> Vec<Ranks> {
        let node = self.profile.fabric.map_or(gpus, |fabric| fabric.node_ranks);
        let most_tp = (work.spec.hidden / COLUMNS).clamp(1, node);
        let layers = work.spec.layers.len();
        let mut all = Vec::new();
        for tp in sizes(gpus).filter(|tp| *tp <= most_tp) {
            for cp in sizes(gpus / tp) {
                for pp in sizes(gpus / tp / cp).filter(|pp| *pp <= layers) {
                    let dp = gpus / tp / cp / pp;
                    let grid = Grid { tp, cp, dp, pp, sequence_parallel: true, ..Grid::default() };
                    for ep in experts(work, tp * cp * dp) {
                        let ranks = Ranks { grid: Grid { ep, ..grid }, virtual_stages: 1, ..work.how.ranks };
                        if self.divides(work, &ranks) {
                            all.push(ranks);
                        }
                    }
                }
            }
        }
        all
    }

    fn divides(&self, work: &Workload<'_>, ranks: &Ranks) -> bool {
        let Grid { tp, cp, dp, pp, .. } = ranks.grid;
        let micro_batches = work.micro_batches;
        let whole = micro_batches.is_multiple_of(dp) && work.tokens.is_multiple_of(cp * tp);
        // A rank with less than a chunk of addition would wait more than compute.
        let enough = work.tokens / cp / tp >= 128;
        // A pipeline with fewer micro batches than stages stands still more than half of the time.
        let filled = pp == 1 || micro_batches / dp >= pp;
        whole && enough && filled && ranks.grid.check().is_ok() && ranks.check(&work.spec).is_ok()
    }

    /// The cheapest preset with which a mesh fits, and with it the fastest number of stages on each rank; by few layers.
    fn candidate(&self, work: &Workload<'_>, ranks: Ranks) -> Option<Candidate> {
        if state_bytes(work, &ranks) > self.budgets.memory {
            return None;
        }
        let Grid { pp, dp, .. } = ranks.grid;
        let mut open = stages(work.spec.layers.len(), pp);
        if !(work.micro_batches / dp).is_multiple_of(pp) {
            open.truncate(1);
        }
        let mut found: Vec<Candidate> = Vec::new();
        // Whatever comes later in the list computes more: each number of stages takes the first that fits.
        let has_host = self.budgets.host > 0 && self.profile.host_bytes.is_some();
        let presets = presets(work.tokens / ranks.grid.cp, has_host);
        let with = |places: &Places| {
            let places = places.clone();
            Workload { how: crate::InStep { places, ranks, ..work.how.clone() }, ..work.clone() }
        };
        // What needs least says whether there is any use in asking further.
        let least = with(&presets.last()?.places);
        let few = least.stagewise()?;
        open.retain(|virtual_stages| {
            let ranks = Ranks { virtual_stages: *virtual_stages, ..ranks };
            few.estimate(&least, &ranks).is_some_and(|estimate| self.fits(&estimate))
        });
        for preset in presets {
            if open.is_empty() {
                break;
            }
            let with = with(&preset.places);
            let few = with.stagewise()?;
            open.retain(|virtual_stages| {
                let ranks = Ranks { virtual_stages: *virtual_stages, ..ranks };
                let estimate = few.estimate(&with, &ranks);
                let fits = estimate.filter(|estimate| self.fits(estimate));
                found.extend(fits.map(|Estimate { step_s, peak_bytes, .. }| Candidate {
                    ranks,
                    places: preset.clone(),
                    step_s,
                    peak_bytes,
                    plan: None,
                }));
                // What micro batches do not go through will not be asked again.
                estimate.is_some() && fits.is_none()
            });
        }
        let fastest_s = found.iter().map(|candidate| candidate.step_s).fold(f64::INFINITY, f64::min);
        found.retain(|candidate| candidate.step_s <= fastest_s * (1.0 + ALIKE));
        found.into_iter().min_by_key(|candidate| candidate.ranks.virtual_stages)
    }

    fn fits(&self, estimate: &Estimate) -> bool {
        estimate.peak_bytes <= self.budgets.memory && estimate.host_bytes <= self.budgets.host
    }

    /// A candidate planned in full; `None` if it does not fit after all.
    fn in_full(&self, work: &Workload<'_>, candidate: Candidate) -> Option<Candidate> {
        let places = candidate.places.places.clone();
        let how = crate::InStep { places, ranks: candidate.ranks, ..work.how.clone() };
        let kinds: Vec<OfRank> = distinct(&candidate.ranks, &work.spec)
            .into_par_iter()
            .map(|(rank, stands_for)| {
                let mut with = Workload { how: how.clone(), ..work.clone() };
                with.how.ranks.rank = rank;
                OfRank { rank, stands_for, plan: with.run(false).0 }
            })
            .collect();
        let plan = self.together(candidate.ranks, kinds, &Workload { how, ..work.clone() });
        let peak_bytes = plan.most()?.plan.usage.peak_reserved;
        let step_s = plan.step_s().unwrap_or(candidate.step_s);
        let fits = plan.kinds.iter().all(|kind| self.budgets.hold(&kind.plan));
        fits.then_some(Candidate { peak_bytes, step_s, plan: Some(plan), ..candidate })
    }
}

fn fastest(left: &Candidate, right: &Candidate) -> Ordering {
    let key = |candidate: &Candidate| (candidate.parts(), candidate.ranks.virtual_stages);
    left.step_s.total_cmp(&right.step_s).then_with(|| key(left).cmp(&key(right)))
}

/// Sizes of expert parallel groups among so many ranks of a stage.
fn experts(work: &Workload<'_>, ranks: usize) -> Vec<usize> {
    match &work.spec.moe {
        None => vec![1],
        Some(moe) => sizes(ranks).filter(|ep| moe.experts.is_multiple_of(*ep)).collect(),
    }
}

/// Stages on each rank that divide the layers evenly; one where nothing does.
fn stages(layers: usize, pp: usize) -> Vec<usize> {
    let even = |stages: &usize| layers.is_multiple_of(pp * stages);
    let mut all = vec![1];
    all.extend((2..=MOST_STAGES).filter(|_| pp > 1).filter(even));
    all
}

/// Bytes of weights and gradients that a rank has at least: 6 for each parameter, and 12 of the optimizer's among those with the
/// same weights.
fn state_bytes(work: &Workload<'_>, ranks: &Ranks) -> u64 {
    let Grid { tp, cp, dp, pp, ep, .. } = ranks.grid;
    let spec = &work.spec;
    let gate = if spec.mlp.gated { 3 } else { 2 };
    let attention = 2 * spec.hidden * (spec.q_cols() + spec.kv_cols()) / tp;
    let mlp = match &spec.moe {
        None => gate * spec.hidden * spec.ffn / tp,
        Some(moe) => gate * spec.hidden * moe.ffn * moe.experts / ep,
    };
    let params = (spec.layers.len() / pp * (attention + mlp)) as u64;
    6 * params + 12 * params / (cp * dp) as u64
}

/// Moves the one that is taken to the front and says why; `None` without candidates.
fn decide(best: &mut [Candidate]) -> Option<String> {
    let fastest_s = best.first()?.step_s;
    let alike = best.iter().take_while(|candidate| candidate.step_s <= fastest_s * (1.0 + ALIKE)).count();
    let taken =
        (0..alike).min_by_key(|index| (best[*index].parts(), best[*index].ranks.virtual_stages, *index))?;
    best[..=taken].rotate_right(1);
    let gap = |other: &Candidate| (other.step_s / best[0].step_s - 1.0) * 100.0;
    Some(match (taken, best.get(1)) {
        (0, None) => "nothing else fits".into(),
        (0, Some(next)) if alike == 1 => format!("fastest of what fits, by {:.0} %", gap(next)),
        (0, Some(_)) => {
            "fastest of what fits, and of those as fast the one that parts the model least".into()
        }
        (_, _) => format!(
            "as fast as the fastest within {:.0} %, and parts the model among {} ranks, not {}",
            ALIKE * 100.0,
            best[0].parts(),
            best[1].parts()
        ),
    })
}
