//! The solver behind `activations.memory = "auto"`: which activations to keep, to recompute and to offload, and how
//! high tiles are, so that a step fits and is predicted to be fastest.
//!
//! It asks the plan itself and has no model of its own. A table of choices for all layers is improved by the best
//! single change from several beginnings, then by pairs of changes; at last the layers are divided between the best
//! table and faster ones that would not fit for all.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fathom_grad::{Place, Places};
use rayon::prelude::*;

use super::table::{Choices, Table, UNITS};
use super::{Budgets, Plan, Workload};
use crate::error::{Error, Result};

/// The choice, and what every other one would have cost.
#[derive(Clone, Debug)]
pub struct Solution {
    /// Places, tiles and groups of heads.
    pub places: Places,
    /// The plan of a step with them.
    pub plan: Plan,
    /// By unit of activations.
    pub rows: Vec<Row>,
    /// Layers that follow the rows; the rest follow `rest`.
    pub layers: usize,
    /// By unit, the places of the other layers, where layers are divided.
    pub rest: Option<Vec<Place>>,
    /// Steps that were planned.
    pub planned: usize,
}

/// One unit of activations.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub unit: &'static str,
    /// Where it is.
    pub place: Place,
    /// Elsewhere, with everything else as it is.
    pub instead: Vec<Instead>,
}

/// Another place for a unit.
#[derive(Clone, Copy, Debug)]
pub struct Instead {
    /// Which.
    pub place: Place,
    /// Seconds more a step (FLOPs, if the profile has no rates).
    pub more_s: f64,
    /// Bytes over the budget; 0 if it would fit.
    pub excess: u64,
}

/// A step in three numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub memory: f64,
    pub host: f64,
    pub disk: f64,
    /// Seconds, or FLOPs without rates.
    pub cost: f64,
}

/// What tables take.
pub(super) type Known = BTreeMap<Table, Figures>;

/// Faster tables that layers are divided with.
const DIVISIONS: usize = 6;

#[cfg(test)]
mod tests;

pub(super) struct Search<'a> {
    work: &'a Workload<'a>,
    /// What a step of a whole mesh takes; none for one rank.
    mesh: Option<&'a (dyn Fn(&Places) -> Figures + Sync)>,
    budgets: Budgets,
    choices: Choices,
    known: RefCell<Known>,
    planned: RefCell<usize>,
    /// The first plan that could not be made.
    failed: RefCell<Option<Error>>,
}

impl Workload<'_> {
    fn choices(&self, budgets: &Budgets) -> Choices {
        let mut places = vec![Place::Keep, Place::Recompute];
        if budgets.host > 0 && self.profile.host_bytes.is_some() {
            places.push(Place::Host);
        }
        if budgets.disk > 0 {
            places.push(Place::Disk);
        }
        Choices::new(places, self.tokens, self.spec.kv_heads)
    }

    /// The tables that need least memory, for lengths at the limit.
    pub(super) fn thrifty(&self, budgets: &Budgets) -> Vec<Places> {
        let choices = self.choices(budgets);
        let offloaded = match (budgets.disk, self.profile.host_bytes) {
            (1.., _) => Place::Disk,
            (0, Some(_)) if budgets.host > 0 => Place::Host,
            _ => Place::Keep,
        };
        [offloaded, Place::Recompute]
            .map(|attention| {
                let but = [("block.in", offloaded), ("attn.out", attention)];
                let table = choices.lowest(choices.with(Place::Recompute, &but, true));
                choices.places(&table, 0..usize::MAX, &table)
            })
            .to_vec()
    }

    /// The fastest choice that stays within the budgets, by prediction; `None` if nothing does.
    ///
    /// # Errors
    /// As [`Workload::run`].
    pub fn solve(&self, budgets: &Budgets) -> Result<Option<Solution>> {
        let mut within = *budgets;
        loop {
            let Some(solution) = self.search(&within)? else { return Ok(None) };
            let plan = self.with_places(&solution.places).plan()?;
            if budgets.hold(&plan) {
                return Ok(Some(Solution { plan, ..solution }));
            }
            // Sketches of pipelines reserve a little less than plans.
            within = within.without_excess(&plan);
        }
    }

    /// The same of sketches.
    fn search(&self, budgets: &Budgets) -> Result<Option<Solution>> {
        let search = Search {
            work: self,
            mesh: None,
            budgets: *budgets,
            choices: self.choices(budgets),
            known: RefCell::default(),
            planned: RefCell::default(),
            failed: RefCell::default(),
        };
        let best = search.best();
        search.failed.take().map_or(Ok(()), Err)?;
        let plan = search.plan(&search.choices.places(&best, 0..usize::MAX, &best))?;
        budgets.hold(&plan).then(|| search.finish(best, plan, budgets)).transpose()
    }
}

impl<'a> Search<'a> {
    /// A search for a mesh, of which `mesh` says what its step takes, and `known` what it said before.
    pub(super) fn over(
        work: &'a Workload<'a>,
        budgets: Budgets,
        choices: Choices,
        mesh: &'a (dyn Fn(&Places) -> Figures + Sync),
        known: Known,
    ) -> Search<'a> {
        let (known, planned, failed) = (RefCell::new(known), RefCell::default(), RefCell::default());
        Search { work, mesh: Some(mesh), budgets, choices, known, planned, failed }
    }

    /// What it knows in the end.
    pub(super) fn into_known(self) -> Known {
        self.known.into_inner()
    }

    /// Asks about many tables of a mesh at once.
    fn ask_all(&self, tables: &[Table]) {
        let Some(mesh) = self.mesh else { return };
        let known = self.known.borrow();
        let unknown: Vec<&Table> = tables.iter().filter(|table| !known.contains_key(*table)).collect();
        drop(known);
        let choices = &self.choices;
        let figures: Vec<Figures> =
            unknown.par_iter().map(|table| mesh(&choices.places(table, 0..usize::MAX, table))).collect();
        self.known.borrow_mut().extend(unknown.into_iter().cloned().zip(figures));
    }

    /// The best that single changes lead to, from attention's results kept and from them with the host; `None` if it does not fit.
    pub(super) fn quick(&self) -> Option<Table> {
        let starts = self.starts().into_iter().skip(1);
        let best = self.lowest(starts.map(|start| self.descend(start)).collect())?;
        (self.excess(&self.ask(&best)) == 0.0).then_some(best)
    }

    fn plan(&self, places: &Places) -> Result<Plan> {
        *self.planned.borrow_mut() += 1;
        self.work.with_places(places).sketch()
    }

    /// Lower is better; whatever fits is better than what does not.
    fn score(&self, figures: &Figures) -> (f64, f64) {
        let excess = self.excess(figures);
        if excess > 0.0 { (excess, 0.0) } else { (0.0, figures.cost) }
    }

    fn excess(&self, figures: &Figures) -> f64 {
        let Budgets { memory, host, disk } = self.budgets;
        let over = |used: f64, budget: u64| (used - budget as f64).max(0.0);
        over(figures.memory, memory).max(over(figures.host, host)).max(over(figures.disk, disk))
    }

    fn ask(&self, table: &Table) -> Figures {
        if let Some(known) = self.known.borrow().get(table) {
            return *known;
        }
        let places = self.choices.places(table, 0..usize::MAX, table);
        let figures = match self.mesh {
            Some(mesh) => mesh(&places),
            None => self.plan(&places).map_or_else(
                |error| {
                    self.failed.borrow_mut().get_or_insert(error);
                    Figures { memory: f64::INFINITY, host: 0.0, disk: 0.0, cost: f64::INFINITY }
                },
                |plan| figures(&plan),
            ),
        };
        self.known.borrow_mut().insert(table.clone(), figures);
        figures
    }

    /// The best of all single changes, again and again.
    fn descend(&self, mut table: Table) -> Table {
        loop {
            let others = self.choices.neighbours(&table);
            match self.lowest(others).filter(|other| self.is_better(other, &table)) {
                Some(better) => table = better,
                None => return table,
            }
        }
    }

    fn lowest(&self, tables: Vec<Table>) -> Option<Table> {
        self.ask_all(&tables);
        tables.into_iter().min_by(|left, right| {
            let [left, right] = [left, right].map(|table| self.score(&self.ask(table)));
            left.partial_cmp(&right).unwrap_or(std::cmp::Ordering::Equal)
        })
    }

    fn is_better(&self, left: &Table, right: &Table) -> bool {
        // A hair's breadth is no reason to move something.
        let [left, right] = [left, right].map(|table| self.score(&self.ask(table)));
        left.0 < right.0 || (left.0 == right.0 && left.1 < right.1 * (1.0 - 1e-6))
    }

    /// Everything kept, and the linear parts computed again with what is left in each of the places.
    fn starts(&self) -> Vec<Table> {
        let kept = [("block.in", Place::Keep), ("attn.out", Place::Keep)];
        let mut starts = vec![self.choices.plain(), self.choices.with(Place::Recompute, &kept, true)];
        for offloaded in self.choices.places.iter().filter(|place| place.is_offloaded()) {
            starts.push(self.choices.with(Place::Recompute, &kept.map(|(name, _)| (name, *offloaded)), true));
        }
        starts
    }

    fn best(&self) -> Table {
        let plain = self.choices.plain();
        if self.excess(&self.ask(&plain)) == 0.0 {
            // Keeping everything whole is not always fastest by the clock, but only by noise.
            return plain;
        }
        let best = self.lowest(self.starts().into_iter().map(|start| self.descend(start)).collect());
        let mut best = best.unwrap_or_else(|| self.choices.plain());
        // Two changes at once: one that makes room for another.
        loop {
            let first = self.choices.neighbours(&best);
            let pairs = first.iter().flat_map(|table| self.choices.neighbours(table)).collect();
            match self.lowest(pairs).filter(|other| self.is_better(other, &best)) {
                Some(better) => best = self.descend(better),
                None => return best,
            }
        }
    }

    /// Divides the layers where that helps, and says what the alternatives cost.
    fn finish(&self, best: Table, plan: Plan, budgets: &Budgets) -> Result<Solution> {
        let layers = self.work.spec.layers.len();
        let mut solution = Solution {
            places: self.choices.places(&best, 0..usize::MAX, &best),
            rows: self.rows(&best),
            plan,
            layers,
            rest: None,
            planned: 0,
        };
        let cost = self.ask(&best).cost;
        let mut faster: Vec<Table> = self.choices.neighbours(&best);
        faster.retain(|table| {
            table.tile == best.tile && table.groups == best.groups && self.ask(table).cost < cost
        });
        faster.sort_by(|left, right| self.ask(left).cost.total_cmp(&self.ask(right).cost));
        for rest in faster.iter().take(if layers > 1 { DIVISIONS } else { 0 }) {
            // The fewest layers that have to follow the thrifty table.
            let (mut low, mut high) = (0, layers);
            let mut found = None;
            while low < high {
                let middle = (low + high) / 2;
                let places = self.choices.places(&best, 0..middle, rest);
                let plan = self.plan(&places)?;
                if budgets.hold(&plan) {
                    high = middle;
                    found = Some((places, plan, middle));
                } else {
                    low = middle + 1;
                }
            }
            let Some((places, plan, middle)) = found else { continue };
            if figures(&plan).cost < figures(&solution.plan).cost {
                let rest = (0..UNITS.len()).map(|unit| self.choices.place(rest, unit)).collect();
                solution = Solution { places, plan, layers: middle, rest: Some(rest), ..solution };
            }
        }
        Ok(Solution { planned: *self.planned.borrow(), ..solution })
    }

    fn rows(&self, best: &Table) -> Vec<Row> {
        let here = self.ask(best);
        let instead = |unit: usize, place: u8| {
            let mut other = best.clone();
            other.places[unit] = place;
            let there = self.ask(&other);
            let place = self.choices.places[usize::from(place)];
            Instead { place, more_s: there.cost - here.cost, excess: self.excess(&there) as u64 }
        };
        (0..UNITS.len())
            .map(|unit| Row {
                unit: UNITS[unit].name,
                place: self.choices.place(best, unit),
                instead: self
                    .choices
                    .places_of(unit)
                    .filter(|place| *place != best.places[unit])
                    .map(|place| instead(unit, place))
                    .collect(),
            })
            .collect()
    }
}

fn figures(plan: &Plan) -> Figures {
    Figures {
        memory: plan.usage.peak_reserved as f64,
        host: plan.host_peak_bytes as f64,
        disk: plan.disk_peak_bytes as f64,
        cost: plan.step_s().unwrap_or(plan.hardware_flops as f64),
    }
}
