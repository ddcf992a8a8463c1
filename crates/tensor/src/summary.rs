//! Effects of a part of a program on a machine without data, as a list: bytes charged and released, seconds spent,
//! messages sent and waited for. A part that would do the same again need not run again: its summary is repeated, and
//! the figures equal those of a full run.
//!
//! A part that leaves something behind, a tensor that stays or a message that is waited for later, has no summary and
//! runs every time.

use crate::Device;
use crate::mesh::Wire;
use crate::moves::Moves;
use crate::tick::Tick;

/// Effects of a part of a program.
#[derive(Clone, Debug)]
pub struct Summary {
    moves: Moves,
    ticks: Vec<Tick>,
    /// By the number of the group's collective.
    wires: Vec<(usize, Wire)>,
}

impl Device {
    /// Runs a part of a program at a layer and returns its effects; `None` if they cannot be repeated.
    pub fn summarise(&self, layer: i32, work: impl FnOnce()) -> Option<Summary> {
        let (before, _) = self.mesh.counted();
        self.pool.begin_moves();
        let clock = self.machine.clock();
        clock.iter().for_each(|clock| clock.lines.begin());
        work();
        let log = clock.map(|clock| clock.lines.end()).unwrap_or_default();
        let moves = self.pool.end_moves(layer)?;
        let (after, _) = self.mesh.counted();
        let sent = |(key, now): (usize, &Wire)| {
            let old = before.get(key).copied().unwrap_or_default();
            let Wire { calls, bytes } = now;
            (calls > &old.calls).then_some((key, Wire { calls: calls - old.calls, bytes: bytes - old.bytes }))
        };
        let wires = after.iter().enumerate().filter_map(sent).collect();
        log.is_whole().then_some(Summary { moves, ticks: log.ticks, wires })
    }

    /// Repeats the effects of a summary at another layer.
    ///
    /// # Panics
    /// Like [`Pool::alloc`](crate::Pool::alloc).
    pub fn repeat(&self, summary: &Summary, layer: i32) {
        let Summary { moves, ticks, wires } = summary;
        self.pool.repeat_moves(moves, layer);
        wires.iter().for_each(|(key, wire)| self.mesh.count(*key, *wire));
        if let Some(clock) = self.machine.clock() {
            clock.repeat(ticks, &self.mesh);
        }
    }

    /// Runs a part of a program and counts its effects another `times` times.
    pub fn count_again(&self, times: usize, work: impl FnOnce()) {
        let clock = self.machine.clock();
        let (wires, waits) = self.mesh.counted();
        let passed = clock.map(|clock| {
            clock.lines.log(|| Tick::Mark);
            clock.times()
        });
        work();
        self.mesh.repeat_wires(&wires, times as u64);
        self.mesh.repeat_waits(&waits, times as u64);
        if let (Some(clock), Some(passed)) = (clock, passed) {
            clock.add_times(&(clock.times() - passed), times);
            clock.lines.log(|| Tick::Repeat(times));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mesh::{Axis, CountingLink, Grid, Mesh};
    use crate::{Category, DType, Fabric, Line, Meta, Profile, Rates};

    fn device() -> Device {
        let rates = Rates { memory_bytes_per_s: 1e6, elementwise_bytes_per_s: 1e6, ..Rates::default() };
        let line = Line { bytes_per_s: 3e5, latency_s: 1e-4 };
        let fabric = Fabric { node_ranks: 2, node: line, network: line, copied: false };
        let profile = Profile { rates: Some(rates), fabric: Some(fabric), ..Profile::portable(1) };
        let grid = Grid { tp: 4, ..Grid::default() };
        let mesh = Mesh::new(grid, Box::new(CountingLink::new(1, 4)));
        Device::on_mesh(Arc::new(Meta::new(profile)), u64::MAX, mesh)
    }

    /// Tiles that charge, compute and communicate; the last is lower.
    fn work(device: &Device, layer: i32) {
        for rows in [64, 64, 64, 16] {
            device.pool.enter("product", layer);
            let a = device.empty(rows, 96, DType::F32, Category::Activations);
            device.pool.label("sum", true);
            let b = device.empty(rows, 64, DType::F32, Category::Comm);
            device.machine.add(&a, &a, &a);
            drop(a);
            device.pool.enter("share", -1);
            device.mesh.group(&[Axis::Tp]).all_reduce(device, &b);
        }
        device.count_again(3, || {
            device.mesh.everybody().all_reduce(device, &device.empty(1, 4096, DType::F32, Category::Data))
        });
    }

    #[test]
    fn a_summary_repeats_what_running_again_does() {
        let (runs, repeats) = (device(), device());
        let kept = |device: &Device| device.empty(1, 5000, DType::F32, Category::Params);
        let mut all = [Vec::new(), Vec::new()];
        let mut known = None;
        for layer in 0..5 {
            all[0].push(kept(&runs));
            work(&runs, layer);
            all[1].push(kept(&repeats));
            match &known {
                None => known = repeats.summarise(layer, || work(&repeats, layer)),
                Some(known) => repeats.repeat(known, layer),
            }
            assert!(known.is_some());
            assert_eq!(runs.pool.usage(), repeats.pool.usage(), "layer {layer}");
            assert_eq!(runs.pool.at(), repeats.pool.at());
            let [one, other] = [&runs, &repeats].map(|device| device.machine.clock().unwrap().times());
            assert_eq!(one, other, "layer {layer}");
            let [one, other] = [&runs, &repeats].map(|device| device.mesh.ledger());
            assert_eq!((one.wires, one.waits), (other.wires, other.waits), "layer {layer}");
        }
        let [one, other] = all.map(|all| all.iter().map(crate::Tensor::address).collect::<Vec<_>>());
        assert_eq!(one, other);
    }

    #[test]
    fn what_leaves_something_behind_has_no_summary() {
        let device = device();
        let mut kept = None;
        let stays = device.summarise(0, || kept = Some(device.empty(1, 1, DType::F32, Category::Data)));
        assert!(stays.is_none());
        assert!(device.summarise(0, || drop(kept.take())).is_none());
        let group = device.mesh.group(&[Axis::Tp]);
        let x = device.empty(1, 256, DType::F32, Category::Data);
        let mut flying = None;
        assert!(
            device.summarise(0, || flying = Some(group.exchange(&device, "ring", &[(0, &x)], &[]))).is_none()
        );
        assert!(device.summarise(0, || flying.take().unwrap().wait()).is_none());
        assert!(device.summarise(0, || group.all_reduce(&device, &x)).is_some());
    }
}
