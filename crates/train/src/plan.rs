//! The plan: the very training step, on the machine without data.

use std::sync::Arc;

use fathom_model::{Model, Spec};
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
    let (model, params) = Model::declare(&device, spec, dtype);
    let mut trainer = Trainer::new(&device, model, params);
    let run = micro_batches.clamp(1, 2);
    let blank: Vec<MicroBatch> = (0..run).map(|_| MicroBatch::blank(tokens)).collect();
    drop(trainer.step(&blank, how));
    trainer.counters.reset(false);
    drop(trainer.step(&blank, how));
    let counted = trainer.counters.get();
    let usage = device.pool.usage();
    Plan {
        usage,
        model_flops: counted.model_flops,
        hardware_flops: counted.hardware_flops,
        replayed: counted.replayed,
    }
}
