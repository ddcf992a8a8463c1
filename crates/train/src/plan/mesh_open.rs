//! Meshes of a search, of each of which no more is asked than says whether it is among the best.
//!
//! With everything kept and one stage on each rank a step of a mesh says what any other step of it takes at least: more stages on a rank
//! shorten the bubble alone, and what is computed again, offloaded or cut takes longer. So those that may be the fastest are looked at
//! first, and the others when it is their turn: mostly never. What is found is what looking at everything would find.

use fathom_tensor::mesh::Grid;
use rayon::prelude::*;

use super::Draft;
use super::mesh_grids::{stages, state_bytes};
use super::mesh_places::{MeshPlaces, presets};
use super::mesh_states::MeshState;
use super::needs::Needs;
use super::solve_mesh::{ALIKE, Candidate, Origin, fastest};
use crate::parallel::Ranks;

/// How far steps of ranks with more stages may be below what one stage promises: messages hide behind other work at the seams.
const SEAMS: f64 = 0.01;

/// A mesh, as far as it is known.
#[derive(Default)]
pub(super) struct Open {
    pub grid: Grid,
    /// Its number among the meshes.
    pub number: usize,
    /// What it may be and fits, the one to take first.
    pub options: Vec<Candidate>,
    /// Numbers of stages on each rank that were not looked at to the end.
    pending: Vec<Pending>,
    /// What does not fit.
    pub near: Vec<Candidate>,
    /// Places of it that were planned.
    pub planned: usize,
    /// The first option was taken before, and did not fit in full.
    pub is_left: bool,
    /// The first option is the one to take first.
    pub is_settled: bool,
}

/// A number of stages on each rank.
struct Pending {
    candidate: Candidate,
    /// A step takes as long at least.
    floor_s: f64,
    /// With everything kept it is known, and does not fit.
    is_asked: bool,
}

impl Open {
    /// Seconds that a step takes at least.
    pub fn at_least_s(&self) -> f64 {
        let known = self.options.first().map_or(f64::INFINITY, |option| option.step_s);
        if self.is_settled {
            return known;
        }
        let fastest_s = self.options.iter().map(|option| option.step_s).fold(known, f64::min);
        self.pending.iter().map(|pending| pending.floor_s).fold(fastest_s, f64::min)
    }

    /// Nothing of it fits.
    pub fn is_too_large(&self) -> bool {
        self.is_exhausted() && !self.is_left
    }

    /// Nothing of it is left.
    pub fn is_exhausted(&self) -> bool {
        self.options.is_empty() && self.pending.is_empty()
    }

    /// Leaves nothing for later.
    #[cfg(test)]
    fn ask_everything(&mut self) {
        self.pending.iter_mut().for_each(|pending| pending.floor_s = 0.0);
        self.is_settled = false;
    }

    /// The next number of stages to look at, before the first option is known.
    fn next(&mut self) -> Option<Pending> {
        let fastest_s = self.options.iter().map(|option| option.step_s).fold(f64::INFINITY, f64::min);
        let limit_s = if self.is_left { fastest_s } else { fastest_s * (1.0 + ALIKE) };
        let next = (0..self.pending.len())
            .filter(|at| self.pending[*at].floor_s <= limit_s)
            .min_by(|left, right| self.pending[*left].floor_s.total_cmp(&self.pending[*right].floor_s));
        next.map(|at| self.pending.remove(at))
    }
}

impl Draft<'_> {
    /// A mesh with everything kept and one stage on each rank; nothing of it if a run would refuse it.
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
            let pending = Pending { candidate, floor_s, is_asked: false };
            if virtual_stages > 1 {
                open.pending.push(pending);
            } else if let Some(kept) = draft.kept(pending, &presets, &mut open) {
                floor_s = kept * (1.0 - SEAMS);
            }
        }
        open
    }

    /// The recipe of a candidate's mesh.
    pub(super) fn like(&self, candidate: &Candidate) -> Self {
        let recipe = candidate.recipe(&self.recipe, self.index);
        Draft { recipe, ..self.clone() }
    }

    /// A number of stages with everything kept: an option if that fits, else it stays open. What no other number gets below.
    fn kept(&self, pending: Pending, presets: &[MeshPlaces], open: &mut Open) -> Option<f64> {
        open.planned += 1;
        let kept = self.asked(&pending.candidate, 0, presets.first()?, false)?;
        let floor_s = kept.floor_s;
        if kept.excess == 0 {
            open.options.push(kept);
        } else {
            open.pending.push(Pending { floor_s: kept.step_s, candidate: kept, is_asked: true });
        }
        Some(floor_s)
    }

    /// Looks at a mesh until it is known what of it is to be taken first: of the numbers of stages on a rank that are as fast as the
    /// fastest the smallest, each with the cheapest preset that fits.
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
            // What needs least says whether there is any use in asking further.
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

    /// Looks at the meshes until the first `most` are the fastest of all; those of which nothing is left are `gone`.
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

    /// Whether anything of a mesh fits.
    pub(super) fn fits_at_all(&self, open: &mut Open) -> bool {
        let Open { options, pending, planned, is_left, .. } = open;
        let mut has_room = |pending: &Pending| {
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

    /// The first preset from `from` on with which a candidate's mesh and state fit.
    pub(super) fn cheapest(&self, candidate: &Candidate, from: usize) -> Option<Candidate> {
        let presets = presets(&self.workload().ok()?, &self.budgets);
        let fits = |(at, preset)| self.asked(candidate, at, preset, true).filter(|found| found.excess == 0);
        presets.iter().enumerate().skip(from).find_map(fits)
    }

    /// A candidate with a preset, if it `hurries` only as far as shows that it does not fit; `None` if a run would refuse it, or micro
    /// batches do not go through it.
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

    /// Of what does not fit the one that lacks least.
    pub(super) fn nearest(&self, mut near: Vec<Candidate>) -> Option<Candidate> {
        loop {
            let at = (0..near.len()).min_by_key(|at| near[*at].excess)?;
            if !near[at].is_partial {
                return Some(near.swap_remove(at));
            }
            // It lacks as much at least.
            let Origin::Preset(preset) = near[at].origin else { return None };
            let places = near[at].places.clone();
            match self.like(&near[at]).asked(&near[at], preset, &places, false) {
                Some(whole) => near[at] = whole,
                None => drop(near.remove(at)),
            }
        }
    }
}

/// Brings the one with the fewest stages on each rank of those that are as fast as the fastest to the front.
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
