//! A simulation of all stages of a pipeline: when each runs which pass, and how long it waits.
//!
//! An event simulation over the order in which ranks run ([`crate::parallel::stages::Order::acts`]), with the
//! times of each pass from each rank's plan. A pass begins when the rank has finished the previous one and its inputs
//! have arrived; its output arrives after the time of the transfer, which blocks nothing else.

use fathom_base::metrics::events;
use fathom_tensor::mesh::Grid;

use super::lane::Lane;
use crate::parallel::stages::Act;

/// A pass of one stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// The pass.
    pub act: Act,
    /// Start in seconds.
    pub start_s: f64,
    /// End in seconds.
    pub end_s: f64,
    /// Seconds of it spent waiting for messages from ranks of its own stage.
    pub wait_s: f64,
}

/// A step of all ranks of a pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gantt {
    /// By rank along the axis, in time order.
    pub bars: Vec<Vec<Bar>>,
    /// End of the last pass of all ranks.
    pub passes_s: f64,
    /// End of the step.
    pub step_s: f64,
    /// By rank: seconds from its last pass to the end of the step, in which gradients are completed and weights updated
    /// and distributed.
    pub after_s: Vec<f64>,
    /// By rank: idle seconds while passes run anywhere, which are the bubble.
    pub idle_s: Vec<f64>,
}

impl Gantt {
    /// Idle seconds of all ranks as a share of the time of all passes.
    pub fn bubble(&self) -> f64 {
        let all = self.passes_s * self.bars.len() as f64;
        if all > 0.0 { self.idle_s.iter().sum::<f64>() / all } else { 0.0 }
    }
}

impl Gantt {
    /// The step as an event of a stage; `None` for a single rank.
    pub(super) fn event(&self, stage: &str, grid: &Grid) -> Option<events::Pipeline> {
        let update = |rank: usize| {
            let start_s = self.passes_s;
            events::PipelinePass {
                start_s,
                end_s: start_s + self.after_s[rank],
                ..events::PipelinePass::default()
            }
        };
        let lanes = self.bars.iter().enumerate().map(|(rank, bars)| events::PipelineLane {
            name: if self.bars.len() > 1 { format!("pp {rank}") } else { "every rank".into() },
            passes: shown(bars, Some(update(rank))),
        });
        (grid.ranks() > 1).then(|| events::Pipeline {
            stage: stage.to_string(),
            mesh: grid.to_string(),
            step_s: self.step_s,
            bubble_share: self.bubble(),
            lanes: lanes.collect(),
            ..events::Pipeline::default()
        })
    }
}

/// Name of the time after the passes in logs.
const UPDATE: &str = "update";
/// Number of passes per rank in a log: later ones look the same.
pub(crate) const SHOWN: usize = 160;

/// The passes of a rank for a log, followed by the update unless passes were cut off.
pub(crate) fn shown(bars: &[Bar], update: Option<events::PipelinePass>) -> Vec<events::PipelinePass> {
    let pass = |bar: &Bar| {
        let (micro, chunk, _) = place(bar.act);
        events::PipelinePass {
            kind: name(bar.act).to_string(),
            micro: micro as u64,
            chunk: chunk as u64,
            start_s: bar.start_s,
            end_s: bar.end_s,
            wait_s: bar.wait_s,
        }
    };
    let mut passes: Vec<events::PipelinePass> = bars.iter().take(SHOWN).map(pass).collect();
    let update = update.filter(|_| bars.len() <= SHOWN);
    passes.extend(update.map(|update| events::PipelinePass { kind: UPDATE.to_string(), ..update }));
    passes
}

/// End times of passes by stage, micro-batch and direction; NaN if not done.
struct EndTimes {
    stages: usize,
    times: Vec<[f64; 2]>,
}

impl EndTimes {
    fn at(&self, stage: usize, micro: usize, back: bool) -> Option<f64> {
        Some(self.times[micro * self.stages + stage][usize::from(back)]).filter(|time| !time.is_nan())
    }

    fn set(&mut self, stage: usize, micro: usize, back: bool, time: f64) {
        self.times[micro * self.stages + stage][usize::from(back)] = time;
    }
}

/// Simulates the lanes of a pipeline's ranks, each with `chunks` stages. A transfer between a rank and the next, in
/// either direction, takes `handover_s[rank]`. Without lanes, or if passes wait for each other in a cycle, nothing has
/// a time.
pub fn simulate(lanes: &[&Lane], chunks: usize, handover_s: &[f64]) -> Gantt {
    let ranks = lanes.len();
    let micro_batches = lanes.iter().flat_map(|lane| &lane.acts).map(|(act, _)| place(*act).0 + 1).max();
    let stages = ranks * chunks;
    let mut done = EndTimes { stages, times: vec![[f64::NAN; 2]; stages * micro_batches.unwrap_or(0)] };
    let mut gantt = Gantt { bars: vec![Vec::new(); ranks], ..Gantt::default() };
    loop {
        let mut moved = false;
        for (rank, lane) in lanes.iter().enumerate() {
            while let Some((act, seconds)) = lane.acts.get(gantt.bars[rank].len()) {
                let (micro, chunk, back) = place(*act);
                let weights = matches!(act, Act::Weights { .. });
                let stage = chunk * ranks + rank;
                let came = match (back, stage) {
                    // The rank's own backward pass precedes it.
                    _ if weights => Some(0.0),
                    (false, 0) => Some(0.0),
                    (false, _) => done
                        .at(stage - 1, micro, false)
                        .map(|time| time + handover_s[(rank + ranks - 1) % ranks]),
                    (true, stage) if stage + 1 == stages => done.at(stage, micro, false),
                    (true, _) => done.at(stage + 1, micro, true).map(|time| time + handover_s[rank]),
                };
                let Some(came) = came else { break };
                let free = gantt.bars[rank].last().map_or(lane.before_s, |bar| bar.end_s);
                let start_s = free.max(came);
                let end_s = start_s + seconds;
                if !weights {
                    done.set(stage, micro, back, end_s);
                }
                let wait_s = lane.waits_s.get(gantt.bars[rank].len()).copied().unwrap_or_default();
                gantt.bars[rank].push(Bar { act: *act, start_s, end_s, wait_s });
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let ends = |bars: &Vec<Bar>| bars.last().map_or(0.0, |bar| bar.end_s);
    gantt.passes_s = gantt.bars.iter().map(ends).fold(0.0, f64::max);
    // Stages synchronise when the loss and the norm are summed, before the update.
    gantt.step_s = gantt.passes_s + lanes.iter().map(|lane| lane.after_s).fold(0.0, f64::max);
    gantt.after_s = lanes.iter().map(|lane| lane.after_s).collect();
    gantt.idle_s =
        lanes.iter().map(|lane| (gantt.passes_s - lane.before_s - lane.busy_s()).max(0.0)).collect();
    gantt
}

/// Name of a pass in logs.
fn name(act: Act) -> &'static str {
    match act {
        Act::Forward { .. } => "forward",
        Act::Backward { .. } => "backward",
        Act::Weights { .. } => "weights",
    }
}

/// Micro-batch, stage on its rank, and whether it is a backward pass.
fn place(act: Act) -> (usize, usize, bool) {
    match act {
        Act::Forward { micro, chunk } => (micro, chunk, false),
        Act::Backward { micro, chunk } | Act::Weights { micro, chunk } => (micro, chunk, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::stages::Order;

    fn lanes(ranks: usize, chunks: usize, micro_batches: usize) -> Vec<Lane> {
        let seconds = |act: &Act| if place(*act).2 { 2.0 } else { 1.0 } / chunks as f64;
        let lane = |rank| {
            let acts = Order::OneByOne.acts(rank, ranks, chunks, micro_batches).unwrap();
            let acts = acts.iter().map(|act| (*act, seconds(act))).collect();
            Lane { acts, after_s: 0.5, ..Lane::default() }
        };
        (0..ranks).map(lane).collect()
    }

    /// The bubble is (p - 1) / (v m) of the work (Narayanan et al., 2021, section 2.2).
    #[test]
    fn the_bubble_is_the_published_one() {
        for (ranks, chunks, micro_batches) in
            [(1, 1, 3), (2, 1, 4), (4, 1, 8), (8, 1, 8), (4, 2, 8), (4, 5, 16), (8, 2, 8)]
        {
            let lanes = lanes(ranks, chunks, micro_batches);
            let all: Vec<&Lane> = lanes.iter().collect();
            let gantt = simulate(&all, chunks, &vec![0.0; ranks]);
            let work = 3.0 * micro_batches as f64;
            let expected = work * (ranks - 1) as f64 / (chunks * micro_batches) as f64;
            for idle in &gantt.idle_s {
                assert!(
                    (idle - expected).abs() < 1e-9,
                    "{ranks} x {chunks}, {micro_batches}: {idle} {expected}"
                );
            }
            assert!((gantt.step_s - work - expected - 0.5).abs() < 1e-9);
            assert!((gantt.bubble() - expected / (work + expected)).abs() < 1e-9);
        }
    }

    #[test]
    fn transfers_and_uneven_stages_lengthen_the_step() {
        let lanes = lanes(4, 1, 8);
        let all: Vec<&Lane> = lanes.iter().collect();
        let even = simulate(&all, 1, &[0.0; 4]);
        // Each way has 3 transfers, and ranks also wait for the gradient of their last output.
        let slow = simulate(&all, 1, &[0.25; 4]);
        assert!(slow.step_s >= even.step_s + 6.0 * 0.25, "{} {}", slow.step_s, even.step_s);
        let mut uneven = lanes.clone();
        uneven[3].acts.iter_mut().for_each(|(_, seconds)| *seconds *= 1.5);
        let all: Vec<&Lane> = uneven.iter().collect();
        let late = simulate(&all, 1, &[0.0; 4]);
        // The slowest rank determines the steady state.
        assert!(late.passes_s >= 8.0 * 4.5 && late.idle_s[3] < late.idle_s[0]);
        assert_eq!(simulate(&[], 1, &[]), Gantt::default());
    }
}
