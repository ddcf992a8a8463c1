//! Which mesh, pipeline and places for so many ranks: `fathom plan --solve mesh`.
//!
//! Every mesh that divides the model and the step is tried with presets of places, in the order of what they cost to compute, and
//! the cheapest preset that fits is taken. A candidate is asked of the plan itself ([`super::needs`]): one rank of each kind of
//! stage. For the best of those that cannot keep everything the memory solver then looks for better places. The best of
//! all are planned with every kind of rank, through the recipe that they are recommended as, and those figures are the ones that
//! are shown; what does not fit after all gives way to what needs less.
//!
//! Where nothing fits, all is tried again with more and more of weights and optimizer state offloaded, and last with that state in
//! fewer bytes ([`super::mesh_states`]). Where that is of no use either, [`super::mesh_none`] says what would be.
//!
//! Rules: tensor parallel ranks stay within a node, and are no more than hidden / 2048 (narrower products are slower than the plan
//! knows, and their communication is not hidden); data parallel is kept alive where meshes fit that do so; of
//! candidates that are as fast as the fastest, within [`ALIKE`], the one that parts the model least is taken.

use std::cmp::Ordering;

use fathom_grad::Places;
use fathom_tensor::mesh::Grid;
use rayon::prelude::*;

use super::mesh::MeshPlan;
use super::mesh_grids::{meshes, stages, state_bytes};
use super::mesh_places::{self, MeshPlaces, presets};
use super::mesh_settings::settings;
use super::mesh_states::{MeshState, states};
use super::needs::Needs;
use super::{Budgets, Draft, Workload};
use crate::error::{Error, Result};
use crate::parallel::Ranks;
use crate::recipe::{MeshTable, Recipe};

/// Steps that differ by less are as fast: predictions are not better.
const ALIKE: f64 = 0.02;
/// Candidates that are planned in full.
const FINALISTS: usize = 6;
/// Candidates for which the memory solver is asked.
const SOLVED: usize = 4;
/// How often it is asked for less, where what it found does not fit in full.
const ASKED: usize = 3;

/// A mesh with the places of everything, and what it would take.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh and the stages on each rank.
    pub ranks: Ranks,
    /// Where activations are.
    pub places: MeshPlaces,
    /// Where weights and optimizer state are.
    pub state: MeshState,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Most bytes of any rank, reserved.
    pub peak_bytes: u64,
    /// Bytes over the budget of what it takes most too much of.
    pub excess: u64,
    /// The settings that make it, over the recipe.
    pub settings: Vec<String>,
    /// In full, for those that are shown.
    pub plan: Option<MeshPlan>,
    origin: Origin,
}

/// Which search found a candidate.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// A preset of [`presets`], by number.
    Preset(usize),
    /// The memory solver, asked this often and for this much memory.
    Solver(usize, u64),
}

/// What was found.
#[derive(Clone, Debug)]
pub struct MeshSolution {
    /// The best, the one that is taken first.
    pub best: Vec<Candidate>,
    /// Meshes that divide everything.
    pub meshes: usize,
    /// Of these, those of which no places of activations fit.
    pub too_large: usize,
    /// Why the first is the first.
    pub rule: String,
}

/// What a search says while it goes on.
pub type Say<'a> = &'a (dyn Fn(&str) + Sync);

impl Candidate {
    /// The recipe of which this is the plan.
    fn recipe(&self, of: &Recipe, index: usize) -> Recipe {
        let Grid { tp, cp, dp, pp, ep, .. } = self.ranks.grid;
        let virtual_stages = self.ranks.virtual_stages;
        let mesh = MeshTable { tp, cp, dp, pp, ep, virtual_stages, ..plain(&of.mesh) };
        let mut recipe = Recipe { mesh, ..of.clone() };
        self.state.apply(&mut recipe);
        self.places.apply(&mut recipe, index);
        recipe
    }

    /// Places of activations and of the rest, in words.
    pub fn words(&self) -> String {
        let both = [&self.places.name, &self.state.name];
        both.into_iter().filter(|words| !words.is_empty()).cloned().collect::<Vec<_>>().join("; ")
    }

    /// Ranks that have parts of one replica of the model.
    fn parts(&self) -> usize {
        let Grid { tp, cp, pp, .. } = self.ranks.grid;
        tp * cp * pp
    }
}

/// One rank, and of the recipe what says nothing of how ranks are placed.
fn plain(table: &MeshTable) -> MeshTable {
    let MeshTable { timeout_s, step_timeout_s, restarts, check_every_steps, .. } = *table;
    MeshTable { timeout_s, step_timeout_s, restarts, check_every_steps, ..MeshTable::default() }
}

/// What came of one state of weights and optimizer.
pub(super) struct Tried {
    /// Planned in full and fitting, the fastest first.
    pub best: Vec<Candidate>,
    /// Meshes of which nothing fits.
    too_large: usize,
    /// What lacks least.
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
        let mut nearest: Option<Candidate> = None;
        for state in states(&self.recipe, &work, &self.budgets) {
            if !state.name.is_empty() {
                say(&format!("no mesh fits so far; now with {}", state.name));
            }
            let Tried { mut best, too_large, nearest: near } = self.try_state(&meshes, &state, FINALISTS);
            if let Some(rule) = decide(&mut best) {
                return Ok(MeshSolution { best, meshes: meshes.len(), too_large, rule });
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

    /// Meshes with weights and optimizer state like this: at most `most` that fit.
    pub(super) fn try_state(&self, meshes: &[Ranks], state: &MeshState, most: usize) -> Tried {
        let plain: Vec<Vec<Candidate>> =
            meshes.par_iter().map(|ranks| self.with_all_kept(*ranks, state)).collect();
        // Everything else takes longer: where enough meshes keep everything, others need be no faster than the slowest of those.
        let mut whole: Vec<f64> = Vec::new();
        for fits in plain.iter().filter(|all| all.iter().any(|one| one.excess == 0 && one.ranks.grid.dp > 1))
        {
            whole.push(
                fits.iter().filter(|one| one.excess == 0).map(|one| one.step_s).fold(f64::MAX, f64::min),
            );
        }
        whole.sort_by(f64::total_cmp);
        let bar = whole.get(FINALISTS + SOLVED - 1).copied().unwrap_or(f64::INFINITY);
        let all: Vec<Vec<Candidate>> = plain.into_par_iter().map(|plain| self.options(plain, bar)).collect();
        let (mut open, near): (Vec<_>, Vec<_>) = all
            .into_iter()
            .filter(|options| !options.is_empty())
            .partition(|options: &Vec<Candidate>| options[0].excess == 0);
        let too_large = meshes.len() - open.len();
        open.sort_by(|left, right| fastest(&left[0], &right[0]));
        // One that fits is enough where any will do.
        let solved = if most > 1 { SOLVED } else { 0 };
        open.par_iter_mut().take(solved).for_each(|options| {
            if let Some(solved) = self.with_memory_solved(&options[0], self.budgets.memory, 1) {
                options.insert(0, solved);
            }
        });
        let (data, alone): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|options| options[0].ranks.grid.dp > 1);
        let mut nearest = None;
        for options in &near {
            keep_nearest(&mut nearest, options.first().cloned());
        }
        let mut best = Vec::new();
        for open in [data, alone] {
            best = self.finalists(open, most, &mut nearest);
            if !best.is_empty() {
                break;
            }
        }
        best.sort_by(fastest);
        Tried { best, too_large, nearest }
    }

    /// The first that fit when they are planned in full, one of each mesh.
    fn finalists(
        &self,
        mut open: Vec<Vec<Candidate>>,
        most: usize,
        nearest: &mut Option<Candidate>,
    ) -> Vec<Candidate> {
        let mut best: Vec<Candidate> = Vec::new();
        while best.len() < most && !open.is_empty() {
            open.sort_by(|left, right| fastest(&left[0], &right[0]));
            let later = open.split_off(open.len().min(most - best.len()));
            let tried: Vec<(Option<Candidate>, Vec<Candidate>)> =
                open.into_par_iter().map(|options| self.first_in_full(options)).collect();
            open = later;
            for (planned, rest) in tried {
                match planned {
                    Some(planned) if planned.excess == 0 => best.push(planned),
                    planned => {
                        keep_nearest(nearest, planned);
                        open.extend(Some(rest).filter(|rest| !rest.is_empty()));
                    }
                }
            }
        }
        best
    }

    /// The first option in full (`None` if a run would refuse its recipe), and those that are left: if it does not fit, what takes
    /// its place is among them.
    fn first_in_full(&self, mut options: Vec<Candidate>) -> (Option<Candidate>, Vec<Candidate>) {
        let planned = self.in_full(options.remove(0));
        let over = planned.as_ref().filter(|planned| planned.excess > 0);
        let instead = over.and_then(|over| match over.origin {
            Origin::Preset(at) => {
                let Draft { profile, spec, index, .. } = *self;
                let recipe = over.recipe(&self.recipe, index);
                Draft { profile, spec, recipe, index, ..self.clone() }.cheapest(over, at + 1)
            }
            Origin::Solver(asked, memory) if asked < ASKED => {
                self.with_memory_solved(over, memory.saturating_sub(over.excess), asked + 1)
            }
            Origin::Solver(..) => None,
        });
        options.extend(instead);
        options.sort_by(fastest);
        (planned, options)
    }

    /// A candidate that does not keep everything, with faster places that the memory solver finds for its mesh within `memory`.
    fn with_memory_solved(&self, candidate: &Candidate, memory: u64, asked: usize) -> Option<Candidate> {
        if candidate.places.keeps_all() {
            return None;
        }
        let of = |candidate: &Candidate| {
            let recipe = candidate.recipe(&self.recipe, self.index);
            Draft { recipe, ..self.clone() }
        };
        let draft = of(candidate);
        let work = draft.workload().ok()?;
        let needs = |places: &Places| work.with_places(places).needs_of_first().ok().flatten();
        let budgets = Budgets { memory, ..self.budgets };
        let places = mesh_places::solve(&work, &budgets, &needs)?;
        let solved = Candidate { places, origin: Origin::Solver(asked, memory), ..candidate.clone() };
        let solved_draft = of(&solved);
        let work = solved_draft.workload().ok()?;
        let Needs { step_s, peak_bytes, .. } = work.needs().ok()??;
        let faster = step_s < candidate.step_s || asked > 1;
        faster.then_some(Candidate { step_s, peak_bytes, excess: 0, ..solved })
    }

    /// A mesh with everything kept, for each number of stages on a rank; nothing if a run would refuse it.
    fn with_all_kept(&self, ranks: Ranks, state: &MeshState) -> Vec<Candidate> {
        let (places, origin, settings) = (MeshPlaces::default(), Origin::Preset(0), Vec::new());
        let (step_s, peak_bytes, excess, state) = (f64::INFINITY, 0, u64::MAX, state.clone());
        let first =
            Candidate { ranks, places, state, step_s, peak_bytes, excess, settings, plan: None, origin };
        let draft = Draft { recipe: first.recipe(&self.recipe, self.index), ..self.clone() };
        let Ok(work) = draft.workload() else { return Vec::new() };
        let presets = presets(&work, &self.budgets);
        let (Some(plain), Some(thrifty)) = (presets.first(), presets.last()) else { return Vec::new() };
        let least = state_bytes(&work, &ranks.grid);
        if least > self.budgets.memory {
            let (excess, origin) = (least - self.budgets.memory, Origin::Preset(presets.len() - 1));
            return vec![Candidate { places: thrifty.clone(), peak_bytes: least, excess, origin, ..first }];
        }
        let with = |virtual_stages| Candidate { ranks: Ranks { virtual_stages, ..ranks }, ..first.clone() };
        let open: Vec<Candidate> = stages(&work, &ranks.grid).into_iter().map(with).collect();
        draft.asked(&open, 0, plain)
    }

    /// What a mesh may be, the one to take first: for each number of stages on a rank the cheapest preset that fits, if none does,
    /// what lacks least. One that takes longer than `bar` with everything kept is only asked whether anything fits.
    fn options(&self, plain: Vec<Candidate>, bar: f64) -> Vec<Candidate> {
        let Some(first) = plain.first().cloned() else { return plain };
        let draft = Draft { recipe: first.recipe(&self.recipe, self.index), ..self.clone() };
        let Ok(work) = draft.workload() else { return Vec::new() };
        if first.step_s.is_infinite() {
            // Weights and their state alone do not fit.
            return plain;
        }
        let presets = presets(&work, &self.budgets);
        let (mut found, open): (Vec<_>, Vec<_>) = plain.into_iter().partition(|one| one.excess == 0);
        let (mut open, slow): (Vec<_>, Vec<_>) = open.into_iter().partition(|one| one.step_s <= bar);
        let mut near: Option<Candidate> = None;
        if let (Some(thrifty), true) = (presets.last(), found.is_empty() || !open.is_empty()) {
            // What needs least says whether there is any use in asking further.
            let last = presets.len() - 1;
            if open.is_empty() {
                open = slow.into_iter().take(1).collect();
            }
            let bottom = draft.asked(&open, last, thrifty);
            if open.iter().all(|one| one.step_s > bar) {
                return bottom;
            }
            open.retain(|candidate| {
                let bottom = bottom.iter().find(|bottom| bottom.ranks == candidate.ranks);
                keep_nearest(&mut near, bottom.cloned());
                bottom.is_some_and(|bottom| bottom.excess == 0)
            });
        }
        for (at, preset) in presets.iter().enumerate().skip(1) {
            if open.is_empty() {
                break;
            }
            for candidate in draft.asked(&open, at, preset) {
                if candidate.excess == 0 {
                    open.retain(|other| other.ranks != candidate.ranks);
                    found.push(candidate);
                } else {
                    keep_nearest(&mut near, Some(candidate));
                }
            }
        }
        if found.is_empty() {
            return near.into_iter().collect();
        }
        prefer_few_stages(&mut found);
        found
    }

    /// The first preset from `from` on with which a candidate's mesh and state fit.
    fn cheapest(&self, candidate: &Candidate, from: usize) -> Option<Candidate> {
        let presets = presets(&self.workload().ok()?, &self.budgets);
        let open = [candidate.clone()];
        let fits = |(at, preset)| self.asked(&open, at, preset).pop().filter(|found| found.excess == 0);
        presets.iter().enumerate().skip(from).find_map(fits)
    }

    /// Candidates that differ in the stages on each rank, with a preset. Those that a run would refuse are left out, and those
    /// that micro batches do not go through.
    fn asked(&self, open: &[Candidate], at: usize, preset: &MeshPlaces) -> Vec<Candidate> {
        let mut draft = self.clone();
        preset.apply(&mut draft.recipe, self.index);
        let of = |candidate: &Candidate| {
            let mut work = draft.workload().ok()?;
            work.how.ranks.virtual_stages = candidate.ranks.virtual_stages;
            let needs = work.needs().ok()??;
            let Needs { step_s, peak_bytes, .. } = needs;
            let (places, origin) = (preset.clone(), Origin::Preset(at));
            let excess = needs.excess(&self.budgets);
            Some(Candidate { places, step_s, peak_bytes, excess, origin, ..candidate.clone() })
        };
        open.iter().filter_map(of).collect()
    }

    /// A candidate planned in full, as the recipe that makes it; `None` if a run would refuse that.
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

/// Keeps the one that lacks less.
fn keep_nearest(nearest: &mut Option<Candidate>, other: Option<Candidate>) {
    let Some(other) = other else { return };
    if nearest.as_ref().is_none_or(|nearest| other.excess < nearest.excess) {
        *nearest = Some(other);
    }
}

/// Brings the one with the fewest stages on each rank of those that are as fast as the fastest to the front.
fn prefer_few_stages(found: &mut [Candidate]) {
    found.sort_by(fastest);
    let fastest_s = found.first().map_or(0.0, |first| first.step_s);
    let alike = found.iter().take_while(|other| other.step_s <= fastest_s * (1.0 + ALIKE)).count();
    let fewest = (0..alike).min_by_key(|at| found[*at].ranks.virtual_stages);
    if let Some(fewest) = fewest {
        found[..=fewest].rotate_right(1);
    }
}

fn fastest(left: &Candidate, right: &Candidate) -> Ordering {
    let key = |candidate: &Candidate| (candidate.parts(), candidate.ranks.virtual_stages);
    left.step_s.total_cmp(&right.step_s).then_with(|| key(left).cmp(&key(right)))
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
