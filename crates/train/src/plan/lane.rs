//! Times of the parts of a rank's step, the input of the simulated Gantt chart.

use crate::parallel::pipeline::Lap;
use crate::parallel::stages::Act;

/// One rank's step by its own clock, without waits for other stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// Seconds from the start of the step to the first pass.
    pub before_s: f64,
    /// Forward and backward passes of all micro-batches in order, with their seconds.
    pub acts: Vec<(Act, f64)>,
    /// For each pass, the seconds spent waiting for messages from ranks of its own stage.
    pub waits_s: Vec<f64>,
    /// Seconds from the last pass to the end of the step, in which gradients are completed and weights updated and
    /// distributed.
    pub after_s: f64,
}

/// Number of micro-batches that ran, number in the step, and number per period.
pub(super) struct MicroBatchCounts {
    pub micro_batches: usize,
    pub all: usize,
    pub period: usize,
}

impl Lane {
    /// Extends the laps of a step from `begin` to `end` that ran fewer micro-batches than there are: whole periods are
    /// inserted.
    pub(super) fn of(laps: &[Lap], [begin, end]: [f64; 2], rehearsed: &MicroBatchCounts) -> Lane {
        let (Some(first), Some(last)) = (laps.first(), laps.last()) else {
            return Lane { before_s: end - begin, ..Lane::default() };
        };
        // A micro-batch's tables may be loaded between two passes.
        let starts = laps.iter().skip(1).map(|lap| lap.start_s).chain([last.end_s]);
        let run: Vec<(Act, f64, f64)> =
            laps.iter().zip(starts).map(|(lap, next)| (lap.act, next - lap.start_s, lap.wait_s)).collect();
        let MicroBatchCounts { micro_batches, all, period } = *rehearsed;
        let each = laps.len() / micro_batches.max(1);
        // Without a pipeline, micro-batches run one by one without numbers.
        let alone = micro_batches > 1 && laps.iter().all(|lap| micro(lap.act) == 0);
        // The second to last period of the steady part is repeated for the missing ones: the last one is affected by
        // the last micro-batches.
        let (missing, step) = ((all - micro_batches) * each, (period * each).max(1));
        let again = |index: usize| {
            let (now, next) = (run[index].0, run[index + step].0);
            renumbered(now, if alone { 0 } else { micro(now) + period }) == next
        };
        let periodic = |cut: &usize| (cut - step..*cut).all(again);
        let cut = (step..=laps.len().saturating_sub(step)).rev().find(periodic).unwrap_or(laps.len());
        let acts = (0..all * each).map(|index| {
            let here = match index {
                _ if index < cut || missing == 0 => index,
                _ if index >= cut + missing => index - missing,
                _ => cut - step + (index - cut) % step,
            };
            let (act, seconds, wait_s) = run[here];
            let number = if alone { index / each } else { micro(act) + (index - here) / each };
            ((renumbered(act, number), seconds), wait_s)
        });
        let (acts, waits_s) = acts.unzip();
        Lane { before_s: first.start_s - begin, acts, waits_s, after_s: end - last.end_s }
    }

    /// Seconds of forward and backward passes.
    pub fn busy_s(&self) -> f64 {
        self.acts.iter().map(|(_, seconds)| seconds).sum()
    }
}

fn micro(act: Act) -> usize {
    match act {
        Act::Forward { micro, .. } | Act::Backward { micro, .. } | Act::Weights { micro, .. } => micro,
    }
}

/// The same pass for another micro-batch.
pub(crate) fn renumbered(act: Act, micro: usize) -> Act {
    match act {
        Act::Forward { chunk, .. } => Act::Forward { micro, chunk },
        Act::Backward { chunk, .. } => Act::Backward { micro, chunk },
        Act::Weights { chunk, .. } => Act::Weights { micro, chunk },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::stages::Order;

    /// Laps of a rank with a different duration for each kind of pass.
    fn laps(acts: &[Act]) -> Vec<Lap> {
        let mut now = 10.0;
        let lap = |act: &Act| {
            let start_s = now;
            now += seconds(*act);
            Lap { act: *act, start_s, end_s: now, wait_s: 0.5, waited_s: 0.0 }
        };
        acts.iter().map(lap).collect()
    }

    fn seconds(act: Act) -> f64 {
        match act {
            Act::Forward { chunk, .. } => 1.0 + chunk as f64,
            Act::Backward { chunk, .. } => 20.0 + chunk as f64,
            Act::Weights { .. } => 300.0,
        }
    }

    #[test]
    fn what_did_not_run_is_filled_in() {
        let plain = [(2, 1), (4, 1), (2, 2), (4, 2), (4, 3), (8, 5)].map(|sizes| (sizes, Order::OneByOne));
        let split = [(2, 1), (4, 1), (8, 1)].map(|sizes| (sizes, Order::ZeroBubble));
        for ((pp, chunks), order) in plain.into_iter().chain(split) {
            let (period, run) = if chunks == 1 { (1, pp + 2) } else { (pp, 4 * pp) };
            for all in [run, run + period, run + 7 * period] {
                for rank in 0..pp {
                    let of = |micro| order.acts(rank, pp, chunks, micro).unwrap();
                    let laps = laps(&of(run));
                    let ends = [7.0, laps[laps.len() - 1].end_s + 5.0];
                    let lane = Lane::of(&laps, ends, &MicroBatchCounts { micro_batches: run, all, period });
                    let expected: Vec<(Act, f64)> =
                        of(all).into_iter().map(|act| (act, seconds(act))).collect();
                    assert_eq!(lane.acts, expected, "rank {rank} of {pp} x {chunks}, {all} micro batches");
                    assert_eq!((lane.before_s, lane.after_s), (3.0, 5.0));
                    assert_eq!(lane.waits_s, vec![0.5; expected.len()]);
                }
            }
        }
        // A single rank runs one micro-batch after the other.
        let acts = |micro| Order::OneByOne.acts(0, 1, 1, micro).unwrap();
        let one = acts(1);
        let laps = laps(&[one.clone(), one].concat());
        let lane = Lane::of(&laps, [10.0, 100.0], &MicroBatchCounts { micro_batches: 2, all: 5, period: 1 });
        let expected: Vec<(Act, f64)> = acts(5).into_iter().map(|act| (act, seconds(act))).collect();
        assert_eq!(lane.acts, expected);
    }
}
