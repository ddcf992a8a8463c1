//! The solver behind `activations.memory = "auto"`: which activations to keep, recompute and offload, and the height of
//! tiles, such that a step fits and is predicted to be fastest.
//!
//! The solver runs the plan itself and has no model of its own. Starting from several tables of choices for all layers, it
//! applies the best single change repeatedly, then pairs of changes; finally the layers are divided between the best
//! table and faster ones that do not fit for all layers.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fathom_grad::{Place, Places};
use rayon::prelude::*;

use super::figures::Plan;
use super::table::{Choices, Table, UNITS};
use super::{Budgets, Workload};
use crate::error::{Error, Result};

/// The solver's choice, and the costs of its alternatives.
#[derive(Clone, Debug)]
pub struct Solution {
    /// Places, tiles and groups of heads.
    pub places: Places,
    /// Plan of a step with them.
    pub plan: Plan,
    /// One row per unit of activations.
    pub rows: Vec<Row>,
    /// Number of layers that follow the rows; the others follow `rest`.
    pub layers: usize,
    /// By unit, the places of the other layers, if layers are divided.
    pub rest: Option<Vec<Place>>,
    /// Number of planned steps.
    pub planned: usize,
}

/// One unit of activations.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub unit: &'static str,
    /// Its place.
    pub place: Place,
    /// Its alternatives, with everything else unchanged.
    pub instead: Vec<Instead>,
}

/// Another place for a unit.
#[derive(Clone, Copy, Debug)]
pub struct Instead {
    /// The place.
    pub place: Place,
    /// Added seconds per step (FLOPs, if the profile has no rates).
    pub more_s: f64,
    /// Bytes over the budget; 0 if it would fit.
    pub excess: u64,
}

/// Resources and cost of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub memory: f64,
    pub host: f64,
    pub disk: f64,
    /// Seconds, or FLOPs without rates.
    pub cost: f64,
}

/// Figures of known tables.
pub(super) type FiguresByTable = BTreeMap<Table, Figures>;

/// Number of faster tables to divide the layers with.
const DIVISIONS: usize = 6;

#[cfg(test)]
mod tests;

pub(super) struct Search<'a> {
    work: &'a Workload<'a>,
    /// Returns the figures of a whole mesh's step; `None` for a single rank.
    mesh: Option<&'a (dyn Fn(&Places) -> Figures + Sync)>,
    budgets: Budgets,
    choices: Choices,
    known: RefCell<FiguresByTable>,
    planned: RefCell<usize>,
    /// The first error of a plan.
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

    /// The tables that need least memory, for planning the longest length.
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

    /// The choice that is predicted to be fastest within the budgets; `None` if nothing fits.
    ///
    /// # Errors
    /// Those of [`Workload::run`].
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

    /// The best choice according to sketches.
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
    /// A search for a mesh; `mesh` returns the figures of its step, and `known` holds earlier ones.
    pub(super) fn over(
        work: &'a Workload<'a>,
        budgets: Budgets,
        choices: Choices,
        mesh: &'a (dyn Fn(&Places) -> Figures + Sync),
        known: FiguresByTable,
    ) -> Search<'a> {
        let (known, planned, failed) = (RefCell::new(known), RefCell::default(), RefCell::default());
        Search { work, mesh: Some(mesh), budgets, choices, known, planned, failed }
    }

    pub(super) fn into_known(self) -> FiguresByTable {
        self.known.into_inner()
    }

    /// Evaluates many tables of a mesh at once.
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

    /// The best result of single changes, starting with attention outputs kept and with them offloaded; `None` if it
    /// does not fit.
    pub(super) fn quick(&self) -> Option<Table> {
        let starts = self.starts().into_iter().skip(1);
        let best = self.lowest(starts.map(|start| self.descend(start)).collect())?;
        (self.excess(&self.ask(&best)) == 0.0).then_some(best)
    }

    fn plan(&self, places: &Places) -> Result<Plan> {
        *self.planned.borrow_mut() += 1;
        self.work.with_places(places).sketch()
    }

    /// Lower is better; any table that fits is better than one that does not.
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

    /// Applies the best single change until none helps.
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
        // Negligible gains do not justify a change.
        let [left, right] = [left, right].map(|table| self.score(&self.ask(table)));
        left.0 < right.0 || (left.0 == right.0 && left.1 < right.1 * (1.0 - 1e-6))
    }

    /// Initial tables: everything kept, and the linear parts recomputed with the rest in each of the places.
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
            // If another table is ever faster than keeping everything, it is by noise.
            return plain;
        }
        let best = self.lowest(self.starts().into_iter().map(|start| self.descend(start)).collect());
        let mut best = best.unwrap_or_else(|| self.choices.plain());
        // Pairs of changes, one of which makes room for the other.
        loop {
            let first = self.choices.neighbours(&best);
            let pairs = first.iter().flat_map(|table| self.choices.neighbours(table)).collect();
            match self.lowest(pairs).filter(|other| self.is_better(other, &best)) {
                Some(better) => best = self.descend(better),
                None => return best,
            }
        }
    }

    /// Divides the layers if that helps, and computes the cost of alternatives.
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
            // The minimum number of layers that must follow the thrifty table.
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
