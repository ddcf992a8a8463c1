//! Lazy search over meshes: each is examined only as far as needed to tell whether it is among the best.
//!
//! With everything kept and one stage on each rank, a mesh's step gives a lower bound for all of its other variants:
//! more stages on a rank only shorten the bubble, and recompute, offload and tiles take longer. So the meshes that may
//! be the fastest are examined first, and the others when they are due, mostly never. The result equals that of an
//! exhaustive search.

use fathom_tensor::mesh::Grid;
use rayon::prelude::*;

use super::Draft;
use super::candidate::{ALIKE, Candidate, Origin, fastest};
use super::mesh_grids::{stages, state_bytes};
use super::mesh_places::{MeshPlaces, presets};
use super::mesh_states::MeshState;
use super::needs::Needs;
use crate::parallel::Ranks;

/// Relative amount by which steps with more stages per rank may beat the bound from one stage: messages overlap with
/// other work at the seams.
const SEAMS: f64 = 0.01;

/// A mesh, as far as it was examined.
#[derive(Default)]
pub(super) struct Open {
    pub grid: Grid,
    /// Its index among the meshes.
    pub number: usize,
    /// Variants that fit; the preferred one is first.
    pub options: Vec<Candidate>,
    /// Numbers of stages on each rank that were not fully examined.
    pending: Vec<PendingVariant>,
    /// Variants that do not fit.
    pub near: Vec<Candidate>,
    /// Number of variants that were planned.
    pub planned: usize,
    /// A first option was taken already, and did not fit in the full plan.
    pub is_left: bool,
    /// The first option is known to be the preferred one.
    pub is_settled: bool,
}

/// A variant with a given number of stages on each rank.
struct PendingVariant {
    candidate: Candidate,
    /// Lower bound for the seconds of a step.
    floor_s: f64,
    /// The plan with everything kept is known, and does not fit.
    is_asked: bool,
}

impl Open {
    /// Lower bound for the seconds of a step.
    pub fn at_least_s(&self) -> f64 {
        let known = self.options.first().map_or(f64::INFINITY, |option| option.step_s);
        if self.is_settled {
            return known;
        }
        let fastest_s = self.options.iter().map(|option| option.step_s).fold(known, f64::min);
        self.pending.iter().map(|pending| pending.floor_s).fold(fastest_s, f64::min)
    }

    /// No variant fits.
    pub fn is_too_large(&self) -> bool {
        self.is_exhausted() && !self.is_left
    }

    /// No variant is left.
    pub fn is_exhausted(&self) -> bool {
        self.options.is_empty() && self.pending.is_empty()
    }

    /// Makes the search exhaustive.
    #[cfg(test)]
    fn ask_everything(&mut self) {
        self.pending.iter_mut().for_each(|pending| pending.floor_s = 0.0);
        self.is_settled = false;
    }

    /// The next number of stages to examine until the first option is settled.
    fn next(&mut self) -> Option<PendingVariant> {
        let fastest_s = self.options.iter().map(|option| option.step_s).fold(f64::INFINITY, f64::min);
        let limit_s = if self.is_left { fastest_s } else { fastest_s * (1.0 + ALIKE) };
        let next = (0..self.pending.len())
            .filter(|at| self.pending[*at].floor_s <= limit_s)
            .min_by(|left, right| self.pending[*left].floor_s.total_cmp(&self.pending[*right].floor_s));
        next.map(|at| self.pending.remove(at))
    }
}

impl Draft<'_> {
    /// A mesh with everything kept and one stage on each rank; without variants if a run would refuse it.
    pub(super) fn open(&self, number: usize, ranks: Ranks, state: &MeshState) -> Open {
        let (places, origin, settings) = (MeshPlaces::default(), Origin::Preset(0), Vec::new());
        let (step_s, floor_s, peak_bytes, excess) = (f64::INFINITY, 0.0, 0, u64::MAX);
        let (state, plan, is_partial) = (state.clone(), None, false);
        let first = Candidate {
            ranks,
            places,
            state,
            step_s,
            floor_s,
            peak_bytes,
            excess,
            is_partial,
            settings,
            plan,
            origin,
        };
        let mut open = Open { grid: ranks.grid, number, ..Open::default() };
        let draft = self.like(&first);
        let Ok(work) = draft.workload() else { return open };
        let presets = presets(&work, &self.budgets);
        let Some(thrifty) = presets.last() else { return open };
        let least = state_bytes(&work, &ranks.grid);
        if least > self.budgets.memory {
            let (excess, origin) = (least - self.budgets.memory, Origin::Preset(presets.len() - 1));
            let places = thrifty.clone();
            open.near.push(Candidate { places, peak_bytes: least, excess, origin, ..first });
            return open;
        }
        let mut floor_s = 0.0;
        for virtual_stages in stages(&work, &ranks.grid) {
            let candidate = Candidate { ranks: Ranks { virtual_stages, ..ranks }, ..first.clone() };
            let pending = PendingVariant { candidate, floor_s, is_asked: false };
            if virtual_stages > 1 {
                open.pending.push(pending);
            } else if let Some(kept) = draft.kept(pending, &presets, &mut open) {
                floor_s = kept * (1.0 - SEAMS);
            }
        }
        open
    }

    /// A draft with the candidate's mesh.
    pub(super) fn like(&self, candidate: &Candidate) -> Self {
        let recipe = candidate.recipe(&self.recipe, self.index);
        Draft { recipe, ..self.clone() }
    }

    /// Plans a number of stages with everything kept: it becomes an option if it fits, else stays pending. Returns the
    /// lower bound for all numbers of stages.
    fn kept(&self, pending: PendingVariant, presets: &[MeshPlaces], open: &mut Open) -> Option<f64> {
        open.planned += 1;
        let kept = self.asked(&pending.candidate, 0, presets.first()?, false)?;
        let floor_s = kept.floor_s;
        if kept.excess == 0 {
            open.options.push(kept);
        } else {
            open.pending.push(PendingVariant { floor_s: kept.step_s, candidate: kept, is_asked: true });
        }
        Some(floor_s)
    }

    /// Examines a mesh until its preferred option is known: the fewest stages on a rank among those as fast as the
    /// fastest, each with the cheapest preset that fits.
    pub(super) fn look_at(&self, open: &mut Open) {
        if open.is_settled {
            return;
        }
        while let Some(pending) = open.next() {
            let draft = self.like(&pending.candidate);
            let Ok(work) = draft.workload() else { continue };
            let presets = presets(&work, &self.budgets);
            if !pending.is_asked {
                draft.kept(pending, &presets, open);
                continue;
            }
            let thrifty = presets.len() - 1;
            let candidate = pending.candidate;
            // If the preset that needs least does not fit, no other will.
            open.planned += 1;
            let Some(bottom) = draft.asked(&candidate, thrifty, &presets[thrifty], true) else { continue };
            if bottom.excess > 0 {
                open.near.push(bottom);
                continue;
            }
            let mut ask = |at: usize| {
                open.planned += 1;
                draft.asked(&candidate, at, &presets[at], true).filter(|found| found.excess == 0)
            };
            let found = (1..thrifty).find_map(&mut ask).unwrap_or(bottom);
            open.options.push(found);
        }
        open.options.sort_by(fastest);
        if !open.is_left {
            prefer_few_stages(&mut open.options);
        }
        open.is_settled = true;
    }

    /// Examines meshes until the first `most` are the fastest of all; those without remaining variants are moved to
    /// `gone`.
    pub(super) fn look_at_fastest(&self, all: &mut Vec<Open>, most: usize, gone: &mut Vec<Open>) {
        loop {
            all.sort_by(|left, right| {
                let by_s = left.at_least_s().total_cmp(&right.at_least_s());
                by_s.then(left.is_settled.cmp(&right.is_settled)).then_with(|| {
                    let [one, other] =
                        [left, right].map(|open| open.options.first().filter(|_| open.is_settled));
                    one.zip(other).map_or(left.number.cmp(&right.number), |(one, other)| fastest(one, other))
                })
            });
            let first = all.len().min(most);
            if all[..first].iter().all(|open| open.is_settled) {
                return;
            }
            all[..first].par_iter_mut().for_each(|open| self.look_at(open));
            gone.extend(all.extract_if(.., |open| open.is_exhausted()));
        }
    }

    /// True if any variant of a mesh fits.
    pub(super) fn fits_at_all(&self, open: &mut Open) -> bool {
        let Open { options, pending, planned, is_left, .. } = open;
        let mut has_room = |pending: &PendingVariant| {
            let draft = self.like(&pending.candidate);
            let Ok(work) = draft.workload() else { return false };
            let presets = presets(&work, &self.budgets);
            let mut fits = |at: usize| {
                *planned += 1;
                draft.asked(&pending.candidate, at, &presets[at], true).is_some_and(|found| found.excess == 0)
            };
            fits(presets.len() - 1) || (!pending.is_asked && fits(0))
        };
        *is_left || !options.is_empty() || pending.iter().any(&mut has_room)
    }

    /// The first preset, starting with number `from`, with which a candidate's mesh and state fit.
    pub(super) fn cheapest(&self, candidate: &Candidate, from: usize) -> Option<Candidate> {
        let presets = presets(&self.workload().ok()?, &self.budgets);
        let fits = |(at, preset)| self.asked(candidate, at, preset, true).filter(|found| found.excess == 0);
        presets.iter().enumerate().skip(from).find_map(fits)
    }

    /// Plans a candidate with a preset. If it `hurries`, planning ends as soon as the candidate is known not to fit.
    /// `None` if a run would refuse it, or if the micro-batches cannot pass through it.
    fn asked(
        &self,
        candidate: &Candidate,
        at: usize,
        preset: &MeshPlaces,
        hurries: bool,
    ) -> Option<Candidate> {
        let mut draft = self.clone();
        preset.apply(&mut draft.recipe, self.index);
        let mut work = draft.workload().ok()?;
        work.how.ranks.virtual_stages = candidate.ranks.virtual_stages;
        let needs = work.needs(Some(&self.budgets).filter(|_| hurries)).ok()??;
        let Needs { step_s, floor_s, peak_bytes, .. } = needs;
        let (places, origin, is_partial) = (preset.clone(), Origin::Preset(at), step_s.is_infinite());
        let excess = needs.excess(&self.budgets);
        Some(Candidate {
            places,
            step_s,
            floor_s,
            peak_bytes,
            excess,
            is_partial,
            origin,
            ..candidate.clone()
        })
    }

    /// The candidate that exceeds its budget least.
    pub(super) fn nearest(&self, mut near: Vec<Candidate>) -> Option<Candidate> {
        loop {
            let at = (0..near.len()).min_by_key(|at| near[*at].excess)?;
            if !near[at].is_partial {
                return Some(near.swap_remove(at));
            }
            // A partial plan gives only a lower bound for the excess.
            let Origin::Preset(preset) = near[at].origin else { return None };
            let places = near[at].places.clone();
            match self.like(&near[at]).asked(&near[at], preset, &places, false) {
                Some(whole) => near[at] = whole,
                None => drop(near.remove(at)),
            }
        }
    }
}

/// Moves to the front the candidate with the fewest stages on each rank among those as fast as the fastest.
fn prefer_few_stages(found: &mut [Candidate]) {
    let fastest_s = found.first().map_or(0.0, |first| first.step_s);
    let alike = found.iter().take_while(|other| other.step_s <= fastest_s * (1.0 + ALIKE)).count();
    let fewest = (0..alike).min_by_key(|at| found[*at].ranks.virtual_stages);
    if let Some(fewest) = fewest {
        found[..=fewest].rotate_right(1);
    }
}

#[cfg(test)]
mod tests;
