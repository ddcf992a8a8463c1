//! The plan: the very training step, on the machine without data, and what follows from asking it again.
//!
//! [`plan`] runs one step. [`Draft`] is a stage of a recipe that can be planned, changed and planned again: for the
//! longest sequence that fits, for the change that lowers the peak most, and for the fastest table of places.

mod draft;
mod drift;
mod edit;
mod growth;
mod longest;
mod solve;
mod table;

use std::borrow::Cow;
use std::sync::Arc;

use fathom_grad::Places;
use fathom_model::Spec;
use fathom_tensor::mesh::Wires;
use fathom_tensor::spill::Spill;
use fathom_tensor::{DType, Device, Machine, Mark, Meta, Profile, Times, Usage};

pub use draft::{Budgets, Draft, Settled};
pub(crate) use drift::drift;
pub use edit::{Change, Edit, Why};
pub use growth::Growth;
pub use longest::Longest;
pub use solve::{Instead, Row, Solution};

use crate::state::planned_trainer;
use crate::step::{InStep, MicroBatch, Trainer};

/// What a step will need.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Peaks of the pool, to the byte.
    pub usage: Usage,
    /// FLOPs of one step, attention counted once under its mask.
    pub model_flops: u128,
    /// FLOPs that run, replays included.
    pub hardware_flops: u128,
    /// Operations run again in the backward pass.
    pub replayed: u128,
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
    /// What the rank sends in one step, by axis and collective.
    pub wires: Wires,
    /// Tokens of a step, of all ranks.
    pub tokens: u64,
    /// Predicted seconds of a step; `None` if the profile has no rates.
    pub times: Option<Times>,
}

impl Plan {
    /// Predicted seconds of a step.
    pub fn step_s(&self) -> Option<f64> {
        self.times.map(|times| times.elapsed_s())
    }

    /// Predicted tokens per second.
    pub fn tokens_per_s(&self) -> Option<f64> {
        Some(self.tokens as f64 / self.step_s()?)
    }
}

/// Everything that a step's needs depend on.
#[derive(Clone)]
pub struct Workload<'a> {
    /// The machine.
    pub profile: &'a Profile,
    /// The architecture.
    pub spec: Cow<'a, Spec>,
    /// Type of weights and activations.
    pub dtype: DType,
    /// How the step is run.
    pub how: InStep,
    /// Micro batches of a step.
    pub micro_batches: usize,
    /// Tokens of a micro batch.
    pub tokens: usize,
}

/// [`Workload::run`] of `micro_batches` micro batches of `tokens` tokens.
pub fn plan(
    profile: &Profile,
    spec: &Spec,
    dtype: DType,
    how: &InStep,
    micro_batches: usize,
    tokens: usize,
) -> Plan {
    let (spec, how) = (Cow::Borrowed(spec), how.clone());
    Workload { profile, spec, dtype, how, micro_batches, tokens }.run(false).0
}

impl Workload<'_> {
    /// The same work with activations elsewhere.
    fn plan(&self, places: &Places) -> Plan {
        let mut work = self.clone();
        work.how.places = places.clone();
        work.run(false).0
    }

    /// The same work with the first layers only.
    fn with_layers(&self, layers: usize) -> Self {
        let mut work = self.clone();
        work.spec.to_mut().layers.truncate(layers);
        work
    }

    /// Runs two steps on `meta`, in documents of the stage's length: the second is what every later one looks like. Micro
    /// batches beyond the second repeat it, so they are counted and not run. `record` also returns the second step's
    /// memory, point by point.
    pub fn run(&self, record: bool) -> (Plan, Vec<Mark>) {
        let machine = Arc::new(Meta::new(self.profile.clone()));
        let ranks = &self.how.ranks;
        let device = Device::on_mesh(machine.clone(), u64::MAX, ranks.imagined());
        let mut trainer = planned_trainer(&device, &self.spec, self.dtype, &self.how);
        let micro_batches = (self.micro_batches / ranks.grid.dp).max(1);
        // A pipeline holds several at once, and every stage other ones.
        let run = if ranks.grid.pp == 1 { micro_batches.min(2) } else { micro_batches };
        let blank: Vec<MicroBatch> =
            (0..run).map(|_| MicroBatch::shape(self.tokens, self.how.caps.seq_tokens)).collect();
        // The first step makes the memory that later ones find, and tells one micro batch's time from two's.
        let one = if run == micro_batches { run } else { 1 };
        let first = watch(&mut trainer, &*machine, &blank[..one], &self.how);
        let before = device.mesh.wires();
        if record {
            device.pool.record();
        }
        let second = watch(&mut trainer, &*machine, &blank, &self.how);
        let repeats = micro_batches - run;
        let more = |first: u128, second: u128| second + repeats as u128 * (second - first);
        let offload = trainer.offload.clone().unwrap_or_default();
        let [spill, host] = [offload.disk, offload.host]
            .map(|spill| spill.map_or(0, |spill| spill.stats().peak_reserved_bytes));
        let state = trainer.params.disk().map_or(0, |disk| disk.stats().peak_reserved_bytes);
        let plan = Plan {
            usage: device.pool.usage(),
            model_flops: more(first.model_flops, second.model_flops),
            hardware_flops: more(first.hardware_flops, second.hardware_flops),
            replayed: more(first.replayed, second.replayed),
            disk_peak_bytes: spill + state,
            spill_peak_bytes: spill,
            disk_bytes: more(first.disk_bytes, second.disk_bytes) as u64,
            host_peak_bytes: host,
            host_bytes: more(first.host_bytes, second.host_bytes) as u64,
            wires: sent(&before, &device.mesh.wires(), repeats as u64),
            tokens: (micro_batches * ranks.grid.dp * self.tokens) as u64,
            times: first.times.zip(second.times).map(|(one, two)| two + (two - one) * repeats as f64),
        };
        (plan, device.pool.recorded())
    }
}

/// What a step sends: as much as the second step, and for each micro batch that was not run what the second step's second one
/// sent.
fn sent(first: &Wires, both: &Wires, repeats: u64) -> Wires {
    let mut wires = both.clone();
    for (key, wire) in &mut wires {
        let first = first.get(key).copied().unwrap_or_default();
        let more = |first: u64, both: u64| {
            let second = both - first;
            second + repeats * second.saturating_sub(first)
        };
        (wire.calls, wire.bytes) = (more(first.calls, wire.calls), more(first.bytes, wire.bytes));
    }
    wires
}

/// What one step added to all counts.
struct Watched {
    model_flops: u128,
    hardware_flops: u128,
    replayed: u128,
    disk_bytes: u128,
    host_bytes: u128,
    times: Option<Times>,
}

fn watch(trainer: &mut Trainer, machine: &dyn Machine, batch: &[MicroBatch], how: &InStep) -> Watched {
    // To disk and back, and to the host and back.
    let moved = |trainer: &Trainer| -> [u128; 2] {
        let host = trainer.offload.as_ref().and_then(|offload| offload.host.as_ref()).map(Spill::stats);
        let host = host.map_or(0, |stats| stats.written_bytes + stats.read_bytes);
        [trainer.disk_traffic().0 - host, host].map(u128::from)
    };
    let times = || machine.clock().map(|clock| clock.times());
    trainer.counters.reset(false);
    let ([disk, host], before) = (moved(trainer), times());
    let _ = trainer.step(batch, how);
    let counted = trainer.counters.get();
    let [disk_after, host_after] = moved(trainer);
    Watched {
        model_flops: counted.model_flops,
        hardware_flops: counted.hardware_flops,
        replayed: counted.replayed,
        disk_bytes: disk_after - disk,
        host_bytes: host_after - host,
        times: times().zip(before).map(|(after, before)| after - before),
    }
}
