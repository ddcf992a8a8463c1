//! Scores of ranks by the duration of their steps without waits for others: relative to the fastest rank of the same
//! pipeline stage, and to their own past. 1 is the best score.

use std::collections::VecDeque;

use fathom_base::metrics::events;
use fathom_tensor::mesh::{Axis, Grid};

/// Number of steps in a score.
const WINDOW: usize = 8;
/// A rank below this score is reported, once until it is above it again.
const SLOW: f64 = 0.5;
/// Shorter steps are not scored: their durations are the system's, not the rank's.
const LEAST_S: f64 = 0.05;

/// Durations of the last steps, by rank.
pub(super) struct Stragglers {
    grid: Grid,
    times: Vec<VecDeque<f64>>,
    /// The lowest window mean so far.
    best: Vec<f64>,
    reported: Vec<bool>,
    steps: usize,
}

impl Stragglers {
    pub fn new(grid: Grid) -> Stragglers {
        let ranks = grid.ranks();
        let (times, best) = (vec![VecDeque::new(); ranks], vec![f64::INFINITY; ranks]);
        Stragglers { grid, times, best, reported: vec![false; ranks], steps: 0 }
    }

    /// Adds a step with each rank's own seconds; every [`WINDOW`] steps, returns the scores and warnings.
    pub fn add(&mut self, step: u64, busy_s: &[f64]) -> Option<(events::Ranks, Vec<String>)> {
        for (times, busy_s) in self.times.iter_mut().zip(busy_s) {
            times.push_back(*busy_s);
            if times.len() > WINDOW {
                times.pop_front();
            }
        }
        self.steps += 1;
        if !self.steps.is_multiple_of(WINDOW) {
            return None;
        }
        let means: Vec<f64> =
            self.times.iter().map(|times| times.iter().sum::<f64>() / times.len() as f64).collect();
        for (best, mean) in self.best.iter_mut().zip(&means) {
            *best = best.min(*mean);
        }
        let stage = |rank: usize| self.grid.index(rank, Axis::Pp);
        let fastest = |rank: usize| {
            let same = (0..means.len()).filter(|other| stage(*other) == stage(rank));
            same.map(|other| means[other]).fold(f64::INFINITY, f64::min)
        };
        let score = |least: f64, mean: f64| if mean > 0.0 { least / mean } else { 1.0 };
        let relative: Vec<f64> = (0..means.len()).map(|rank| score(fastest(rank), means[rank])).collect();
        let individual: Vec<f64> =
            self.best.iter().zip(&means).map(|(best, mean)| score(*best, *mean)).collect();
        let mut warnings = Vec::new();
        for rank in 0..means.len() {
            let least = relative[rank].min(individual[rank]);
            let slow = least < SLOW && means[rank] >= LEAST_S;
            if slow && !self.reported[rank] {
                warnings.push(format!(
                    "rank {rank} is slow: {:.0} ms of its own a step, {:.2} of the fastest rank's speed and {:.2} of its own best",
                    means[rank] * 1e3,
                    relative[rank],
                    individual[rank]
                ));
            }
            self.reported[rank] = slow;
        }
        Some((events::Ranks { step, busy_s: means, relative, individual }, warnings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_rank_is_reported_once() {
        let grid = Grid { dp: 2, pp: 2, ..Grid::default() };
        let mut ranks = Stragglers::new(grid);
        let mut seen = Vec::new();
        for step in 0..40u64 {
            // The second stage is slower on all ranks; from step 16 to 32 rank 1 is slower than rank 0.
            let slow = if (16..32).contains(&step) { 0.4 } else { 0.1 };
            seen.extend(ranks.add(step, &[0.1, slow, 0.3, 0.3]));
        }
        assert_eq!(seen.len(), 5);
        let close = |x: f64, y: f64| (x - y).abs() < 1e-9;
        let (calm, warned) = &seen[1];
        assert!(
            warned.is_empty() && calm.relative.iter().chain(&calm.individual).all(|score| close(*score, 1.0))
        );
        let (slow, warned) = &seen[2];
        assert!(
            close(slow.relative[1], 0.25) && close(slow.individual[1], 0.25) && close(slow.relative[3], 1.0)
        );
        assert!(warned.len() == 1 && warned[0].starts_with("rank 1 is slow: 400 ms"), "{warned:?}");
        assert!(seen[3].1.is_empty() && seen[4].1.is_empty(), "once");
        // All ranks slow down, each relative to its own past.
        let mut ranks = Stragglers::new(Grid { dp: 2, ..Grid::default() });
        let warned =
            (0..16).filter_map(|step| ranks.add(step, &[if step < 8 { 0.1 } else { 0.5 }; 2])).last();
        assert_eq!(warned.map(|(_, warned)| warned.len()), Some(2));
        let mut short = Stragglers::new(grid);
        let reported = (0..8).filter_map(|step| short.add(step, &[0.001, 0.01, 0.01, 0.01])).last();
        assert!(reported.is_some_and(|(_, warned)| warned.is_empty()), "steps too short to judge");
    }
}
