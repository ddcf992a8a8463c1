//! Limits of a measurement: a number of documents and a deadline.

use fathom_base::clock::Deadline;

use crate::error::Result;

/// Limits of a measurement. At least one piece is always measured.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of documents.
    pub documents: usize,
    /// No further piece is started if, judging by the previous ones, it would end after the deadline. With `None` there
    /// is no time limit and two runs give exactly the same result.
    pub deadline: Option<Deadline>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { documents: usize::MAX, deadline: None }
    }
}

/// Estimates from the pieces processed so far whether another one would end in time.
pub(crate) struct Pace<'a> {
    deadline: Option<&'a Deadline>,
    /// (tokens, seconds per token) of the last piece and of the last piece of a different length.
    known: Vec<(f64, f64)>,
}

impl<'a> Pace<'a> {
    pub fn new(deadline: Option<&'a Deadline>) -> Pace<'a> {
        Pace { deadline, known: Vec::new() }
    }

    /// Expected seconds for a piece of `tokens` tokens. The time per token grows linearly with the length, because of
    /// attention.
    fn expected_s(&self, tokens: usize) -> Option<f64> {
        let tokens = tokens as f64;
        let (last, rate) = self.known.first().copied()?;
        let slope = self.known.get(1).map_or(0.0, |(other, of_other)| (rate - of_other) / (last - other));
        let slope = slope.clamp(0.0, rate / last);
        Some(tokens * (rate + slope * (tokens - last)).max(0.0))
    }

    /// Seconds until the deadline; `None` without one.
    fn left_s(&self) -> Option<f64> {
        self.deadline.map(Deadline::left_s)
    }

    /// True if pieces, given as (number, tokens of each), would end within `share` of the remaining time. Pieces whose
    /// cost cannot be estimated yet are always allowed.
    pub fn allows(&self, pieces: &[(usize, usize)], share: f64) -> bool {
        let Some(left_s) = self.left_s() else { return true };
        let cost =
            |(number, tokens): &(usize, usize)| *number as f64 * self.expected_s(*tokens).unwrap_or(0.0);
        left_s > 0.0 && pieces.iter().map(cost).sum::<f64>() <= left_s * share
    }

    /// Runs `work` on a piece of `tokens` tokens and records the time it took.
    pub fn time<T>(&mut self, tokens: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(clock) = self.deadline.map(Deadline::clock) else { return work() };
        let began = clock.now_s();
        let done = work()?;
        let tokens = tokens.max(1) as f64;
        let rate = (clock.now_s() - began).max(0.0) / tokens;
        self.known.retain(|(other, _)| *other != tokens);
        self.known.insert(0, (tokens, rate));
        self.known.truncate(2);
        Ok(done)
    }

    /// True if there is a deadline.
    pub fn is_timed(&self) -> bool {
        self.deadline.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use fathom_base::clock::Clock;

    use super::*;

    #[test]
    fn the_cost_of_a_longer_piece_follows_from_two_shorter_ones() {
        let ms = Arc::new(AtomicU64::new(0));
        let shown = ms.clone();
        let clock = Clock::of(move || shown.load(Ordering::Relaxed) as f64 / 1e3);
        let deadline = clock.within(10.0);
        let mut pace = Pace::new(Some(&deadline));
        assert!(pace.allows(&[(1, 1 << 30)], 1.0));
        // A token takes 1 ms, plus 1 ms per thousand tokens before it.
        for tokens in [500, 1000] {
            pace.time(tokens, || {
                Ok(ms.fetch_add(tokens as u64 + (tokens * tokens / 1000) as u64, Ordering::Relaxed))
            })
            .unwrap();
        }
        assert!((pace.expected_s(2000).unwrap() - 6.0).abs() < 1e-9, "{:?}", pace.expected_s(2000));
        // 2.75 of ten seconds have passed.
        assert!(pace.allows(&[(1, 2000)], 1.0) && !pace.allows(&[(1, 2000), (1, 1000)], 1.0));
        assert!(!pace.allows(&[(1, 2000)], 0.8));
        ms.store(10_000, Ordering::Relaxed);
        assert!(!pace.allows(&[(0, 1)], 1.0));
    }
}
