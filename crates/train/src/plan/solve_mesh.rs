//! The choice of a mesh, pipeline and places for a given number of ranks: `fathom plan --solve mesh`.
//!
//! Every mesh that divides the model and the step is tried with presets of places, ordered by computing cost, and gets
//! the cheapest preset that fits. Candidates are evaluated by the plan itself ([`super::needs`]): one rank of each kind
//! of stage, and only for meshes that may be among the best ([`super::mesh_open`]). For the best of those that cannot
//! keep everything, the memory solver then looks for better places. The best of all are planned with every kind of
//! rank, through the recipe that they are recommended as, and those figures are shown; a candidate that does not fit
//! after all is replaced by one that needs less.
//!
//! If nothing fits, the search is repeated with more and more of weights and optimizer state offloaded, and at the end
//! with that state in fewer bytes ([`super::mesh_states`]). If that fails too, [`super::mesh_none`] reports what would
//! fit.
//!
//! Rules: tensor parallel ranks stay within a node and number at most hidden / 2048 (narrower products are slower than
//! the plan knows, and their communication is not hidden). Meshes with data parallelism are kept if any of them fits.
//! Among candidates within [`ALIKE`] of the fastest, the one that shards the model least is taken.

use std::sync::{Arc, Mutex};

use fathom_grad::Places;
use rayon::prelude::*;

use super::candidate::{ALIKE, Candidate, Origin, fastest, plain};
use super::mesh_grids::meshes;
use super::mesh_open::Open;
use super::mesh_settings::settings;
use super::mesh_states::{MeshState, states};
use super::needs::Needs;
use super::solve::FiguresByTable;
use super::{Budgets, Draft, Workload, mesh_places};
use crate::error::{Error, Result};
use crate::parallel::Ranks;

/// Number of candidates that are planned in full.
const FINALISTS: usize = 6;
/// Number of candidates for which the memory solver runs.
const SOLVED: usize = 4;
/// Maximum number of times that it is rerun with less memory because its result does not fit in the full plan.
const ASKED: usize = 3;

/// Result of the search.
#[derive(Clone, Debug)]
pub struct MeshSolution {
    /// The best candidates, the recommended one first.
    pub best: Vec<Candidate>,
    /// Number of meshes that divide everything.
    pub meshes: usize,
    /// Number of these that fit with no places of activations.
    pub too_large: usize,
    /// Number of variants that were planned, without those of the memory solver.
    pub planned: usize,
    /// The reason for the first candidate.
    pub rule: String,
}

/// Receives progress messages of a search.
pub type Say<'a> = &'a (dyn Fn(&str) + Sync);

/// Result for one state of weights and optimizer.
pub(super) struct MeshCandidates {
    /// Candidates that were planned in full and fit, fastest first.
    pub best: Vec<Candidate>,
    /// Number of meshes that do not fit at all.
    pub too_large: usize,
    /// Number of variants that were planned, with one rank of each kind of stage.
    pub planned: usize,
    /// The candidate with the smallest excess.
    pub nearest: Option<Candidate>,
}

impl<'a> Draft<'a> {
    /// The best meshes of `gpus` ranks for the stage.
    ///
    /// # Errors
    /// A stage that cannot be planned, or that fits on no such mesh.
    pub fn solve_mesh(&self, gpus: usize, say: Say<'_>) -> Result<MeshSolution> {
        if self.profile.rates.is_none() {
            let message = format!("{} has no rates to tell meshes apart by", self.profile.name);
            return Err(Error::Recipe { key: "machine.profile".into(), message });
        }
        let work = self.alone()?;
        let meshes = meshes(&work, gpus);
        let (mut nearest, mut all): (Option<Candidate>, usize) = (None, 0);
        for state in states(&self.recipe, &work, &self.budgets) {
            if !state.name.is_empty() {
                say(&format!("no mesh fits so far; now with {}", state.name));
            }
            let tried = self.try_state(&meshes, &state, FINALISTS);
            let MeshCandidates { mut best, too_large, planned, nearest: near } = tried;
            all += planned;
            if let Some(rule) = decide(&mut best) {
                return Ok(MeshSolution { best, meshes: meshes.len(), too_large, planned: all, rule });
            }
            keep_nearest(&mut nearest, near);
        }
        Err(self.none_fits(gpus, meshes.len(), nearest, say))
    }

    /// The stage on one rank.
    pub(super) fn alone(&self) -> Result<Workload<'a>> {
        let mut own = self.clone();
        own.recipe.mesh = plain(&self.recipe.mesh);
        own.workload()
    }

    /// Up to `most` meshes that fit with this state of weights and optimizer.
    pub(super) fn try_state(&self, meshes: &[Ranks], state: &MeshState, most: usize) -> MeshCandidates {
        let meshes = meshes.par_iter().enumerate();
        self.try_open(meshes.map(|(at, ranks)| self.open(at, *ranks, state)).collect(), most)
    }

    /// [`Draft::try_state`] for opened meshes.
    pub(super) fn try_open(&self, open: Vec<Open>, most: usize) -> MeshCandidates {
        let (mut gone, open): (Vec<_>, Vec<_>) = open.into_iter().partition(Open::is_exhausted);
        let (data, alone): (Vec<_>, Vec<_>) = open.into_iter().partition(|open| open.grid.dp > 1);
        let (mut best, mut failed) = (Vec::new(), Vec::new());
        for mut open in [data, alone] {
            if best.is_empty() {
                best = self.finalists(&mut open, most, &mut gone, &mut failed);
            }
            gone.append(&mut open);
        }
        best.sort_by(fastest);
        let nearest = if best.is_empty() {
            gone.sort_by_key(|open| open.number);
            let near = gone.iter_mut().filter(|open| open.is_too_large());
            let near = near.flat_map(|open| std::mem::take(&mut open.near));
            self.nearest(near.chain(failed).collect())
        } else {
            None
        };
        let too_large =
            gone.par_iter_mut().filter_map(|open| (!self.fits_at_all(open)).then_some(())).count();
        MeshCandidates { best, too_large, planned: gone.iter().map(|open| open.planned).sum(), nearest }
    }

    /// The first candidates that fit when planned in full, one per mesh; those that do not fit are added to `failed`.
    fn finalists(
        &self,
        open: &mut Vec<Open>,
        most: usize,
        gone: &mut Vec<Open>,
        failed: &mut Vec<Candidate>,
    ) -> Vec<Candidate> {
        // If any fit will do, one is enough.
        let solved = if most > 1 { SOLVED } else { 0 };
        self.look_at_fastest(open, solved, gone);
        open.par_iter_mut().take(solved).for_each(|open| {
            let memory = self.budgets.memory;
            if let Some(solved) = self.with_memory_solved(&open.options[0], (memory, 1, Arc::default())) {
                open.options.insert(0, solved);
            }
        });
        let (mut best, mut done): (Vec<Candidate>, Vec<Open>) = Default::default();
        while best.len() < most && !open.is_empty() {
            let wanted = most - best.len();
            self.look_at_fastest(open, wanted, gone);
            let first = wanted.min(open.len());
            let tried: Vec<(Open, Option<Candidate>)> = open
                .drain(..first)
                .collect::<Vec<_>>()
                .into_par_iter()
                .map(|mut open| {
                    let planned = self.first_in_full(&mut open);
                    (open, planned)
                })
                .collect();
            for (tried, planned) in tried {
                match planned {
                    Some(planned) if planned.excess == 0 => {
                        best.push(planned);
                        done.push(tried);
                    }
                    planned => {
                        failed.extend(planned);
                        open.push(tried);
                    }
                }
            }
            done.extend(open.extract_if(.., |open| open.is_exhausted()));
        }
        open.append(&mut done);
        best
    }

    /// Plans the first option in full; `None` if a run would refuse its recipe. If it does not fit, its replacement is
    /// added to the options.
    fn first_in_full(&self, open: &mut Open) -> Option<Candidate> {
        let planned = self.in_full(open.options.remove(0));
        let over = planned.as_ref().filter(|planned| planned.excess > 0);
        let instead = over.and_then(|over| match &over.origin {
            Origin::Preset(at) => self.like(over).cheapest(over, at + 1),
            Origin::Solver(asked, memory, known) if *asked < ASKED => {
                let memory = memory.saturating_sub(over.excess);
                self.with_memory_solved(over, (memory, asked + 1, known.clone()))
            }
            Origin::Solver(..) => None,
        });
        open.options.extend(instead);
        (open.is_left, open.is_settled) = (true, false);
        planned
    }

    /// A candidate that does not keep everything, with faster places that the memory solver finds for its mesh within
    /// `memory`.
    fn with_memory_solved(
        &self,
        candidate: &Candidate,
        (memory, asked, known): (u64, usize, Arc<Mutex<FiguresByTable>>),
    ) -> Option<Candidate> {
        if candidate.places.keeps_all() {
            return None;
        }
        let draft = self.like(candidate);
        let work = draft.workload().ok()?;
        let needs = |places: &Places| work.with_places(places).needs_of_first().ok().flatten();
        let budgets = Budgets { memory, ..self.budgets };
        let places = mesh_places::solve(&work, &budgets, &needs, &known)?;
        let solved = Candidate { places, origin: Origin::Solver(asked, memory, known), ..candidate.clone() };
        let Needs { step_s, peak_bytes, .. } = self.like(&solved).workload().ok()?.needs(None).ok()??;
        let faster = step_s < candidate.step_s || asked > 1;
        faster.then_some(Candidate { step_s, peak_bytes, excess: 0, ..solved })
    }

    /// Plans a candidate in full, through its recipe; `None` if a run would refuse it.
    pub(super) fn in_full(&self, candidate: Candidate) -> Option<Candidate> {
        let recipe = candidate.recipe(&self.recipe, self.index);
        let settings = settings(&self.recipe, &recipe);
        let plan = Draft { recipe, ..self.clone() }.mesh().ok()?;
        let peak_bytes = plan.most()?.plan.usage.peak_reserved;
        let step_s = plan.step_s().unwrap_or(candidate.step_s);
        let excess = plan.kinds.iter().map(|kind| self.budgets.excess(&kind.plan)).max().unwrap_or(0);
        Some(Candidate { peak_bytes, step_s, excess, settings, plan: Some(plan), ..candidate })
    }
}

/// Keeps the candidate with the smaller excess.
fn keep_nearest(nearest: &mut Option<Candidate>, other: Option<Candidate>) {
    let Some(other) = other else { return };
    if nearest.as_ref().is_none_or(|nearest| other.excess < nearest.excess) {
        *nearest = Some(other);
    }
}

/// Moves the recommended candidate to the front and returns the reason; `None` without candidates.
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
