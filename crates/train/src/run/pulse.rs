//! The small message that every rank sends to all others after each step.

use fathom_tensor::Device;

use crate::agree::gather;
use crate::error::Result;

/// One rank's message: it was asked to stop; it wants a checkpoint; it has written its part of one; its busy seconds in
/// the last step, without waits for others, as bits of an f32; the tokens of that step's stream, as bits of a u32.
type Beat = [i32; 5];

fn beat([stop, due, written]: [bool; 3], busy_s: f64, tokens: u64) -> Beat {
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    [i32::from(stop), i32::from(due), i32::from(written), (busy_s as f32).to_bits() as i32, tokens as i32]
}

/// All ranks' messages, by rank.
pub(super) struct Pulse(Vec<Beat>);

impl Pulse {
    /// Exchanges messages. `reported` tells whether this rank was asked to stop, wants a checkpoint, and has written
    /// its part of one; `busy_s` and `tokens` are of its last step. All ranks call this together.
    pub fn gather(device: &Device, reported: [bool; 3], busy_s: f64, tokens: u64) -> Result<Pulse> {
        Ok(Pulse(gather(device, beat(reported, busy_s, tokens))?))
    }

    /// True if some rank was asked to stop.
    pub fn stop(&self) -> bool {
        self.0.iter().any(|[stop, ..]| *stop != 0)
    }

    /// True if the first rank, whose clock counts, wants a checkpoint.
    pub fn save_is_due(&self) -> bool {
        self.0.first().is_some_and(|[_, due, ..]| *due != 0)
    }

    /// True if every rank has written its part of the current checkpoint, or failed to.
    pub fn written(&self) -> bool {
        self.0.iter().all(|[_, _, written, ..]| *written != 0)
    }

    /// Each rank's seconds of the last step without waits for others.
    pub fn busy_s(&self) -> Vec<f64> {
        self.0.iter().map(|[.., busy_s, _]| f64::from(f32::from_bits(*busy_s as u32))).collect()
    }

    /// Total tokens of the last step, given the number of replicas. The ranks of a replica report the same stream.
    pub fn tokens(&self, replicas: usize) -> u64 {
        let of_all: u64 = self.0.iter().map(|[.., tokens]| u64::from(*tokens as u32)).sum();
        of_all * replicas as u64 / self.0.len().max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_may_take_a_day() {
        for busy_s in [0.0, 0.05, 86_400.5] {
            let reported = Pulse(vec![beat([false, true, false], busy_s, 1)]);
            assert!((reported.busy_s()[0] - busy_s).abs() <= 1e-7 * busy_s);
            assert!(reported.save_is_due() && !reported.stop() && !reported.written());
        }
    }

    #[test]
    fn replicas_have_streams_of_different_lengths() {
        // Two replicas of two ranks each; one stream is too long for an i32.
        let of = |tokens| beat([false; 3], 0.0, tokens);
        let long = (1 << 31) + 7;
        let pulse = Pulse(vec![of(339), of(339), of(long), of(long)]);
        assert_eq!(pulse.tokens(2), 339 + long);
    }
}
