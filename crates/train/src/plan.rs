//! The plan: the very training step, on the machine without data.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use fathom_grad::StateDisk;
use fathom_model::Spec;
use fathom_tensor::{DType, Device, Meta, Profile, Usage};

use crate::state::planned_trainer;
use crate::step::{InStep, MicroBatch};
use fathom_tensor::spill::Stats;

/// What a step will need.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Peaks of the pool, to the byte.
    pub usage: Usage,
    /// FLOPs of one step, attention counted once under its mask.
    pub model_flops: u64,
    /// FLOPs that run, replays included.
    pub hardware_flops: u64,
    /// Operations run again in the backward pass.
    pub replayed: u64,
    /// Most bytes on disk at once: the sizes of the files behind activations, and behind weights and optimizer state.
    pub disk_peak_bytes: u64,
    /// The part of it behind activations.
    pub spill_peak_bytes: u64,
    /// Bytes written to disk and read from it, in one step.
    pub disk_bytes: u64,
    /// Most bytes with the host at once.
    pub host_peak_bytes: u64,
    /// Bytes moved to the host and back, in one step.
    pub host_bytes: u64,
}

/// Runs two steps of `micro_batches` documents of `tokens` tokens on `meta`: the second is what every later one looks
/// like. Micro batches beyond the second repeat it, so they are counted and not run.
pub fn plan(
    profile: &Profile,
    spec: &Spec,
    dtype: DType,
    how: &InStep,
    micro_batches: usize,
    tokens: usize,
) -> Plan {
    let device = Device::new(Arc::new(Meta::new(profile.clone())), u64::MAX);
    let mut trainer = planned_trainer(&device, spec, dtype, how);
    let state = trainer.params.disk().cloned();
    let run = micro_batches.clamp(1, 2);
    let blank: Vec<MicroBatch> = (0..run).map(|_| MicroBatch::blank(tokens)).collect();
    let _ = trainer.step(&blank, how);
    trainer.counters.reset(false);
    let (before, gradients) = (moved(&state), Cell::new(0));
    let _ = trainer.step_with(&blank, how, || gradients.set(moved(&state)));
    let per_micro_batch = (gradients.get() - before) / run as u64;
    let per_update = moved(&state) - gradients.get();
    let state_bytes = state.as_ref().map_or(0, |disk| disk.stats().peak_reserved_bytes);
    let offload = trainer.offload.clone().unwrap_or_default();
    let [disk, host] =
        [offload.disk, offload.host].map(|spill| spill.map(|spill| spill.stats()).unwrap_or_default());
    // Both steps moved the same; of each, the micro batches that ran.
    let away = |stats: Stats| (stats.written_bytes + stats.read_bytes) / 2 / run as u64;
    let micro_batches = micro_batches.max(1) as u64;
    let counted = trainer.counters.get();
    let usage = device.pool.usage();
    Plan {
        usage,
        model_flops: counted.model_flops,
        hardware_flops: counted.hardware_flops,
        replayed: counted.replayed,
        disk_peak_bytes: disk.peak_reserved_bytes + state_bytes,
        spill_peak_bytes: disk.peak_reserved_bytes,
        disk_bytes: (away(disk) + per_micro_batch) * micro_batches + per_update,
        host_peak_bytes: host.peak_reserved_bytes,
        host_bytes: away(host) * micro_batches,
    }
}

/// Bytes of weights and optimizer state that went to disk or came from it so far.
fn moved(state: &Option<Rc<StateDisk>>) -> u64 {
    state.as_ref().map(|disk| disk.stats()).map_or(0, |stats| stats.written_bytes + stats.read_bytes)
}
