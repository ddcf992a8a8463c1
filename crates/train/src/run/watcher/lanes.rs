//! The passes of each rank in the recorded step of a stage: timed on every rank, and collected on the first. Ranks
//! begin a step together, so each counts from its own start.

use fathom_base::metrics::{Event, events};
use fathom_tensor::mesh::{Axis, Grid};
use fathom_tensor::{Category, DType};

use super::{CompletedStep, Look, Watcher};
use crate::error::Result;
use crate::parallel::Ranks;
use crate::parallel::pipeline::Lap;
use crate::parallel::stages::Act;
use crate::plan::{Bar, SHOWN, renumbered, shown};

/// Maximum number of ranks that are shown individually; beyond it, only the first of each pipeline stage.
const MOST_LANES: usize = 32;
/// Numbers before a rank's passes: start of the first, end of the last, total seconds, end of the step, and seconds of
/// the update spent waiting for messages.
const HEAD: usize = 5;
/// Numbers per pass: start, end, waited.
const EACH: usize = 3;

impl Watcher<'_> {
    /// Writes the passes of all ranks in a step into the first rank's log. All ranks call this together.
    pub(super) fn collect_passes(&mut self, look: &Look, seen: CompletedStep<'_>, step: u64) -> Result<()> {
        let Some(started) = look.since() else { return Ok(()) };
        let CompletedStep { trainer, stage, how } = seen;
        let device = &trainer.device;
        let waited_s = device.mesh.traffic().wait_s;
        let own = numbers(&trainer.laps.borrow(), started.elapsed().as_secs_f64(), waited_s);
        device.pool.enter("passes", -1);
        let (grid, len) = (*device.mesh.grid(), own.len());
        let mine = device.from_f32(1, len, &own, Category::Comm);
        let room = device.empty(grid.ranks(), len, DType::F32, Category::Comm);
        let parts: Vec<_> = (0..grid.ranks()).map(|rank| room.view_rows(rank..rank + 1)).collect();
        device.mesh.everybody().all_gather(device, &mine, &parts).wait();
        // After a failure nothing arrived; the end of the step reports it.
        if device.mesh.rank() > 0 || device.mesh.check().is_err() {
            return Ok(());
        }
        let all = device.to_f32(&room);
        let ranks: Vec<&[f32]> = all.chunks_exact(len).collect();
        let table = &self.recipe.stage[stage];
        let sum = |at: usize| ranks.iter().map(|rank| f64::from(rank[at])).sum::<f64>();
        let most = |at: usize| ranks.iter().map(|rank| f64::from(rank[at])).fold(0.0, f64::max);
        let first = ranks.iter().map(|rank| f64::from(rank[0])).fold(f64::INFINITY, f64::min);
        let window = (most(1) - first) * grid.ranks() as f64;
        let lanes = ranks.iter().enumerate().filter(|(rank, _)| is_shown(&grid, *rank));
        let micro_batches = table.micro_batches.max(1) / grid.dp;
        let lanes = lanes.map(|(rank, numbers)| events::PipelineLane {
            name: place(&grid, rank),
            passes: passes(&acts(&how.ranks, micro_batches, &grid, rank), numbers),
        });
        let event = events::Pipeline {
            stage: table.name.clone(),
            mesh: grid.to_string(),
            step: Some(step),
            step_s: most(3),
            bubble_share: if window > 0.0 { (1.0 - sum(2) / window).max(0.0) } else { 0.0 },
            lanes: lanes.collect(),
        };
        Ok(self.metrics.write(&Event::Pipeline(event))?)
    }
}

/// A rank's passes in a step of `micro_batches` micro-batches, in order.
fn acts(ranks: &Ranks, micro_batches: usize, grid: &Grid, rank: usize) -> Vec<Act> {
    let of = |micro| ranks.order.acts(grid.index(rank, Axis::Pp), grid.pp, ranks.virtual_stages, micro);
    match grid.pp {
        // One micro-batch after the other, each like a pipeline of one stage.
        1 => {
            let one = of(1).unwrap_or_default();
            (0..micro_batches).flat_map(|micro| one.iter().map(move |act| renumbered(*act, micro))).collect()
        }
        _ => of(micro_batches).unwrap_or_default(),
    }
}

/// A rank's passes as numbers, equally many on every rank.
fn numbers(laps: &[Lap], end_s: f64, waited_s: f64) -> Vec<f32> {
    let (first, last) = (laps.first(), laps.last());
    let busy: f64 = laps.iter().map(|lap| lap.end_s - lap.start_s).sum();
    let update_wait_s = waited_s - last.map_or(waited_s, |lap| lap.waited_s);
    let [first_s, last_s] =
        [first.map(|lap| lap.start_s), last.map(|lap| lap.end_s)].map(|at| at.unwrap_or(end_s));
    let head = [first_s, last_s, busy, end_s, update_wait_s];
    let passes = laps.iter().take(SHOWN).flat_map(|lap| [lap.start_s, lap.end_s, lap.wait_s]);
    head.into_iter().chain(passes).map(|number| number as f32).collect()
}

/// The passes of a rank that runs `acts`.
fn passes(acts: &[Act], numbers: &[f32]) -> Vec<events::PipelinePass> {
    let (head, rest) = numbers.split_at(HEAD);
    let times = rest.chunks_exact(EACH).map(|times| [times[0], times[1], times[2]].map(f64::from));
    let timed =
        |(act, [start_s, end_s, wait_s]): (&Act, [f64; EACH])| Bar { act: *act, start_s, end_s, wait_s };
    let bars: Vec<Bar> = acts.iter().zip(times).map(timed).collect();
    let [start_s, end_s, wait_s] = [head[1], head[3], head[4]].map(f64::from);
    let update = events::PipelinePass { start_s, end_s, wait_s, ..events::PipelinePass::default() };
    // With more passes than numbers, the end of the step is not shown.
    if bars.len() < acts.len() { shown(&bars, None) } else { shown(&bars, Some(update)) }
}

fn is_shown(grid: &Grid, rank: usize) -> bool {
    let first = [Axis::Dp, Axis::Cp, Axis::Tp].into_iter().all(|axis| grid.index(rank, axis) == 0);
    grid.ranks() <= MOST_LANES || first
}

/// Indices of a rank along the axes of size > 1.
fn place(grid: &Grid, rank: usize) -> String {
    let axes = [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Tp].into_iter().filter(|axis| grid.size(*axis) > 1);
    axes.map(|axis| format!("{} {}", axis.name(), grid.index(rank, axis))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::stages::Order;

    #[test]
    fn passes_come_back_from_numbers() {
        let acts = Order::OneByOne.acts(0, 2, 1, 3).unwrap();
        let lap = |(index, act): (usize, &Act)| {
            let start_s = 2.0 * index as f64;
            Lap { act: *act, start_s, end_s: start_s + 1.0, wait_s: 0.25, waited_s: 0.5 * (index + 1) as f64 }
        };
        let laps: Vec<Lap> = acts.iter().enumerate().map(lap).collect();
        let numbers = numbers(&laps, 12.5, 3.75);
        assert_eq!(numbers[..HEAD], [0.0, 11.0, 6.0, 12.5, 0.75]);
        let passes = passes(&acts, &numbers);
        assert_eq!(passes.len(), 7);
        let update = &passes[6];
        assert_eq!(
            (update.kind.as_str(), update.start_s, update.end_s, update.wait_s),
            ("update", 11.0, 12.5, 0.75)
        );
        let third = &passes[2];
        assert_eq!(
            (third.kind.as_str(), third.micro, third.start_s, third.wait_s),
            ("backward", 0, 4.0, 0.25)
        );
        let grid = Grid { pp: 2, dp: 2, ..Grid::default() };
        assert_eq!([0, 1, 2].map(|rank| place(&grid, rank)), ["pp 0 dp 0", "pp 0 dp 1", "pp 1 dp 0"]);
    }
}
