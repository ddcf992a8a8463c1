//! The plan: the very training step, on the machine without data.

use std::sync::Arc;

use fathom_grad::Offload;
use fathom_model::{Model, Spec};
use fathom_tensor::spill::{self, Spill};
use fathom_tensor::{DType, Device, Meta, Profile, Usage};

use crate::step::{InStep, MicroBatch, Trainer};

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
    /// Most bytes on disk at once: the size of the spill file.
    pub disk_peak_bytes: u64,
    /// Bytes written to disk and read from it, in one step.
    pub disk_bytes: u64,
}

/// A plan's disk is as large as it has to be.
pub(crate) const MOST_DISK_BYTES: u64 = 1 << 60;

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
    let (model, params) = Model::declare(&device, spec, dtype);
    let mut trainer = Trainer::new(&device, model, params);
    if how.places.uses_disk() {
        let options = spill::Options::new("", MOST_DISK_BYTES);
        trainer.offload = Spill::open(&device, &options).ok().map(Offload::plain);
    }
    let run = micro_batches.clamp(1, 2);
    let blank: Vec<MicroBatch> = (0..run).map(|_| MicroBatch::blank(tokens)).collect();
    let _ = trainer.step(&blank, how);
    trainer.counters.reset(false);
    let _ = trainer.step(&blank, how);
    let disk = trainer.offload.as_ref().map(|offload| offload.spill.stats()).unwrap_or_default();
    let counted = trainer.counters.get();
    let usage = device.pool.usage();
    Plan {
        usage,
        model_flops: counted.model_flops,
        hardware_flops: counted.hardware_flops,
        replayed: counted.replayed,
        disk_peak_bytes: disk.peak_reserved_bytes,
        // Both steps moved the same; of each, the micro batches that ran.
        disk_bytes: (disk.written_bytes + disk.read_bytes) / 2 / run as u64 * micro_batches.max(1) as u64,
    }
}
