//! The longest sequence that fits.

use fathom_tensor::SUM_CHUNK;

use super::figures::Plan;
use super::{Budgets, Draft, Edit, StageSettings};
use crate::error::{Error, Result};
use crate::recipe::Memory;

/// No answer is longer: FLOPs of one operation are counted in 64 bits.
const MOST: usize = 1 << 24;
/// The answer is exact to this share of itself.
const EXACT: usize = 128;

impl Draft<'_> {
    /// The longest sequence of the stage within its budgets, a multiple of 128 tokens, exact to a hundredth; `None` if
    /// not even 128 tokens fit. Lengths that the model cannot be extended to count as too long.
    ///
    /// # Errors
    /// A stage that cannot be planned at its own length.
    pub fn longest(&self) -> Result<Option<usize>> {
        if self.recipe.activations.memory == Memory::Auto {
            return self.longest_thrifty().map(|found| found.map(|(tokens, _)| tokens));
        }
        let own = self.recipe.stage[self.index].seq_tokens;
        self.plan()?;
        // The excess over the budget; what grows with tokens does so in a line with steps.
        let excess = |tokens: usize| {
            let plan = self.with_tokens(tokens).plan();
            plan.map_or(f64::INFINITY, |plan| self.excess(&plan))
        };
        Ok(search(own, &excess))
    }
}

/// A length, and how a stage of it runs.
pub type Longest = (usize, StageSettings);

impl Draft<'_> {
    /// The longest sequence of the stage within its budgets whatever the places: first with the tables that need
    /// least, then the solver's choice at that length.
    ///
    /// # Errors
    /// Those of [`Draft::longest`].
    pub fn longest_of_all(&self) -> Result<Option<Longest>> {
        let Some((tokens, settled)) = self.longest_thrifty()? else { return Ok(None) };
        let mut own = self.with_tokens(tokens);
        own.recipe.activations.memory = Memory::Auto;
        let solved = own.settle()?;
        Ok(Some((tokens, if self.budgets.hold(&solved.plan) { solved } else { settled })))
    }

    /// Gains from places beyond those of activations: settings, each with those before it, and the longest sequence with them under the
    /// best table of places. The solver is not asked: it chooses the places of a length, never the length.
    ///
    /// # Errors
    /// Those of [`Draft::longest`].
    pub fn longest_with_state_offloaded(&self) -> Result<Vec<(String, usize)>> {
        let (mut draft, mut found) = (self.clone(), Vec::new());
        let levers = [
            (Edit::OffloadOptimizer, "machine.offload_optimizer=true"),
            (Edit::OffloadWeights, "machine.offload_weights=true"),
        ];
        let mut settings = Vec::new();
        for (edit, setting) in levers {
            let before = draft.recipe.clone();
            edit.apply(&mut draft.recipe, self.index);
            if draft.recipe == before {
                continue;
            }
            settings.push(setting);
            match draft.longest_thrifty() {
                // Tensors that ranks share are not offloaded.
                Err(Error::Recipe { .. }) => break,
                longest => found.extend(longest?.map(|(tokens, _)| (settings.join(" "), tokens))),
            }
        }
        Ok(found)
    }

    /// Buffers of offloaded values are what a tiny budget has no room for: where nothing fits with them, nothing is offloaded.
    fn longest_thrifty(&self) -> Result<Option<Longest>> {
        let found = self.longest_with(&self.budgets)?;
        if found.is_some() {
            return Ok(found);
        }
        self.longest_with(&Budgets { host: 0, disk: 0, ..self.budgets })
    }

    /// Under the tables that need least memory where values may be offloaded to what `places` has.
    fn longest_with(&self, places: &Budgets) -> Result<Option<Longest>> {
        let mut best: Option<Longest> = None;
        let mut own = self.clone();
        own.recipe.activations.memory = Memory::Manual;
        for places in self.workload()?.thrifty(places) {
            let with = |tokens: usize| -> Result<StageSettings> {
                let draft = own.with_tokens(tokens);
                let mut work = draft.workload()?;
                work.how.places = places.clone();
                let plan = work.plan()?;
                Ok(StageSettings { how: work.how, plan, solution: None })
            };
            let excess =
                |tokens: usize| with(tokens).map_or(f64::INFINITY, |settled| self.excess(&settled.plan));
            let found = search(self.recipe.stage[self.index].seq_tokens, &excess);
            if let Some(tokens) = found.filter(|found| best.as_ref().is_none_or(|(tokens, _)| tokens < found))
            {
                best = Some((tokens, with(tokens)?));
            }
        }
        Ok(best)
    }

    /// Bytes over the budgets.
    fn excess(&self, plan: &Plan) -> f64 {
        let over = |used: u64, budget: u64| used as f64 - budget as f64;
        let Budgets { memory, host, disk } = self.budgets;
        over(plan.usage.peak_reserved, memory)
            .max(over(plan.host_peak_bytes, host))
            .max(over(plan.disk_peak_bytes, disk))
    }
}

fn chunks(tokens: f64) -> usize {
    (tokens / SUM_CHUNK as f64) as usize * SUM_CHUNK
}

/// The largest multiple of [`SUM_CHUNK`] whose excess is not positive, between a length that fits and one that does not.
fn search(start: usize, excess: &dyn Fn(usize) -> f64) -> Option<usize> {
    let start = chunks(start as f64).clamp(SUM_CHUNK, MOST);
    let (mut low, mut high) = ((start, excess(start)), (start, f64::INFINITY));
    if low.1 > 0.0 {
        high = low;
        low = (SUM_CHUNK, excess(SUM_CHUNK));
        if low.1 > 0.0 || start == SUM_CHUNK {
            return None;
        }
    } else {
        while high.1.is_infinite() {
            // Lengths that have no plan end the doubling as well.
            let tokens = (2 * low.0).min(MOST);
            let at = excess(tokens);
            if at > 0.0 {
                high = (tokens, at);
                break;
            }
            if tokens == MOST {
                return Some(MOST);
            }
            low = (tokens, at);
        }
    }
    while high.0 - low.0 > SUM_CHUNK.max(low.0 / EXACT) {
        // Where the line between both crosses zero, moved a little so that both ends come closer.
        let middle = (low.0 + high.0) as f64 / 2.0;
        let share = -low.1 / (high.1 - low.1);
        let crossing = low.0 as f64 + share * (high.0 - low.0) as f64;
        let span = (high.0 - low.0) as f64;
        let aim = if crossing.is_finite() {
            crossing.clamp(low.0 as f64 + 0.02 * span, high.0 as f64 - 0.02 * span)
        } else {
            middle
        };
        let tokens = chunks(aim).clamp(low.0 + SUM_CHUNK, high.0 - SUM_CHUNK);
        let at = excess(tokens);
        if at > 0.0 { high = (tokens, at) } else { low = (tokens, at) }
    }
    Some(low.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn finds_the_crossing_in_few_plans() {
        let calls = Cell::new(0);
        let line = |base: f64, slope: f64, budget: f64| {
            let calls = &calls;
            move |tokens: usize| {
                calls.set(calls.get() + 1);
                base + slope * (tokens / 4096 * 4096) as f64 - budget
            }
        };
        for (start, budget) in [(2048, 1e9), (1 << 20, 1e9), (2048, 3e7), (8192, 1.2e7)] {
            calls.set(0);
            let excess = line(1e7, 700.0, budget);
            let found = search(start, &excess).unwrap();
            let best = (((budget - 1e7) / 700.0) as usize / 4096 + 1) * 4096 - SUM_CHUNK;
            assert!(
                found <= best && best - found <= SUM_CHUNK.max(found / EXACT),
                "{start} {budget}: {found} {best}"
            );
            assert!(calls.get() < 30, "{}", calls.get());
        }
        assert_eq!(search(2048, &line(2e7, 1.0, 1e7)), None);
        assert_eq!(search(2048, &line(0.0, 0.0, 1e7)), Some(MOST));
        let edge = |tokens: usize| if tokens > 5000 { f64::INFINITY } else { -1.0 };
        assert_eq!(search(2048, &edge), Some(4992));
    }
}
