//! The plan: the training step itself on the machine without data, and searches that run it repeatedly.
//!
//! [`plan`] runs one step. [`Draft`] is a stage of a recipe that can be planned, changed and planned again: for the
//! longest sequence that fits, for the change that lowers the peak most, and for the fastest table of places.

mod budgets;
mod candidate;
mod draft;
mod drift;
mod edit;
mod figures;
mod fullest;
mod fuzz;
mod gantt;
mod growth;
mod lane;
mod longest;
mod mesh;
mod mesh_grids;
mod mesh_none;
mod mesh_open;
mod mesh_places;
mod mesh_settings;
mod mesh_states;
mod needs;
mod resource;
mod solve;
mod solve_mesh;
mod table;

use std::borrow::Cow;
use std::sync::Arc;

use fathom_grad::Places;
use fathom_model::Spec;
use fathom_tensor::mesh::{Ledger, Waits, Wires};
use fathom_tensor::spill::Spill;
use fathom_tensor::{Clock, DType, Device, Machine, Mark, Meta, PoolUsage, Profile, Times};

pub use budgets::Budgets;
pub use candidate::Candidate;
pub use draft::{Draft, StageSettings};
pub(crate) use drift::drift;
pub use edit::{Change, Edit, Why};
pub use fuzz::fuzz_config;
pub use gantt::{Bar, Gantt};
pub(crate) use gantt::{SHOWN, shown};
pub use growth::Growth;
pub use lane::Lane;
use lane::MicroBatchCounts;
pub(crate) use lane::renumbered;
pub use longest::Longest;
pub use mesh::{MeshPlan, OfRank, distinct};
pub use mesh_places::MeshPlaces;
pub use mesh_states::MeshState;
pub use resource::Resource;
pub use solve::{Instead, Row, Solution};
pub use solve_mesh::{MeshSolution, Say};

use crate::error::Result;
use crate::in_step::InStep;
use crate::micro_batch::MicroBatch;
use crate::policy;
use crate::state::planned_trainers;
use crate::step::Trainer;
pub use figures::{Plan, Record};

/// How a plan is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Identical segments run once.
    Plan,
    /// Like `Plan`; in a pipeline, micro-batches that repeat others are omitted even for reserved bytes, which may be
    /// some thousandths lower.
    Sketch,
    /// Every segment runs.
    Whole,
    /// A single step.
    Glance,
}

/// All inputs of a plan.
#[derive(Clone)]
pub struct Workload<'a> {
    /// The machine.
    pub profile: &'a Profile,
    /// The architecture.
    pub spec: Cow<'a, Spec>,
    /// Type of weights and activations.
    pub dtype: DType,
    /// Settings of the step.
    pub how: InStep,
    /// Micro batches of a step.
    pub micro_batches: usize,
    /// Tokens of a micro-batch.
    pub tokens: usize,
}

/// [`Workload::run`] of `micro_batches` micro-batches of `tokens` tokens.
///
/// # Errors
/// Those of [`Workload::run`].
pub fn plan(
    profile: &Profile,
    spec: &Spec,
    dtype: DType,
    how: &InStep,
    micro_batches: usize,
    tokens: usize,
) -> Result<Plan> {
    let (spec, how) = (Cow::Borrowed(spec), how.clone());
    Workload { profile, spec, dtype, how, micro_batches, tokens }.plan()
}

impl Workload<'_> {
    /// The plan of a step.
    ///
    /// # Errors
    /// Those of [`Workload::run`].
    pub fn plan(&self) -> Result<Plan> {
        Ok(self.run(Record::Nothing)?.0)
    }

    /// A faster plan for searches, which plan their results again: in a pipeline its reserved bytes may be some
    /// thousandths lower.
    fn sketch(&self) -> Result<Plan> {
        Ok(self.run_with(Record::Nothing, Way::Sketch)?.0)
    }

    /// The same work with other places of activations.
    fn with_places(&self, places: &Places) -> Self {
        let mut work = self.clone();
        work.how.places = places.clone();
        work
    }

    /// Runs steps on `meta`, in documents of the stage's length; the last step looks like every later one.
    /// Micro-batches that repeat others are counted without being run. Also returns the recorded memory events of the
    /// last step.
    ///
    /// # Errors
    /// Low-precision products that the model or the mesh does not support, and errors of a step on the machine.
    pub fn run(&self, record: Record) -> Result<(Plan, Vec<Mark>)> {
        self.run_with(record, Way::Plan)
    }

    /// The plan of a step whose segments are all recorded and run. It is equal to [`Workload::plan`]; for tests.
    ///
    /// # Errors
    /// Those of [`Workload::run`].
    pub fn plan_whole(&self) -> Result<Plan> {
        Ok(self.run_with(Record::Nothing, Way::Whole)?.0)
    }

    /// The first step of a trainer, with as many micro-batches as differ, for searches. Peaks are those of a plan
    /// except for buffers left by an earlier step, passes take the same time, and repeated micro-batches are not
    /// counted.
    fn glance(&self) -> Result<Plan> {
        Ok(self.run_with(Record::Nothing, Way::Glance)?.0)
    }

    fn run_with(&self, record: Record, way: Way) -> Result<(Plan, Vec<Mark>)> {
        let machine = Arc::new(Meta::new(self.profile.clone()));
        let ranks = &self.how.ranks;
        let device = Device::on_mesh(machine.clone(), u64::MAX, ranks.imagined());
        let (mut trainer, _others) = planned_trainers(&device, &self.spec, self.dtype, &self.how)?;
        let _judges = policy::declared(&device, &self.how.goal.judges, self.dtype);
        if way == Way::Whole {
            trainer.params.remember_nothing();
        }
        let mut micro_batches = (self.micro_batches / ranks.grid.dp).max(1);
        let Rehearsal { first: one, second: run, period, mut repeats } = self.rehearsal(micro_batches);
        if way == Way::Glance {
            (micro_batches, repeats) = (run, 0);
        }
        let blank = self.how.shape(self.tokens);
        // Micro-batches of a pipeline are in memory together, and their addresses keep changing when nothing else does.
        let reserves = ranks.grid.pp > 1 && repeats > 0 && matches!(way, Way::Plan | Way::Whole);
        let blank = vec![&blank; if reserves { micro_batches } else { run }];
        // The first step allocates memory that later ones reuse. If a period is measured as the difference between two
        // steps, the first of them must find updated weights in flight too.
        if repeats > 0 {
            watch(&mut trainer, &*machine, if reserves { &blank } else { &blank[..period] }, &self.how)?;
        }
        let look = |trainer: &mut Trainer, micro_batches: usize| {
            watch(trainer, &*machine, &blank[..micro_batches], &self.how)
        };
        let first = (way != Way::Glance).then(|| look(&mut trainer, one)).transpose()?;
        match record {
            Record::Nothing => {}
            Record::Peak => device.pool.record_peak(),
            Record::Timeline => device.pool.record(),
        }
        let started = machine.clock().map(Clock::now);
        let second = look(&mut trainer, run)?;
        let rehearsed = MicroBatchCounts { micro_batches: run, all: micro_batches, period };
        let lane = started.zip(machine.clock()).map(|(started, clock)| {
            Arc::new(Lane::of(&trainer.laps.borrow(), [started, clock.now()], &rehearsed))
        });
        let marks = device.pool.recorded();
        let mut usage = device.pool.usage();
        if reserves {
            watch(&mut trainer, &*machine, &blank, &self.how)?;
            usage.peak_reserved = device.pool.usage().peak_reserved;
        }
        let held = OffloadPeaks::of(&trainer, &self.how);
        let tokens = (micro_batches * ranks.grid.dp * self.tokens) as u64;
        Ok((
            second.plan(first.as_ref().unwrap_or(&second), repeats, Rest { usage, held, tokens, lane }),
            marks,
        ))
    }
}

/// Numbers of micro-batches that are run for a plan of more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rehearsal {
    /// Micro-batches of the first step.
    first: usize,
    /// Micro-batches of the second step: a period more.
    second: usize,
    /// Micro-batches in a period.
    period: usize,
    /// Number of periods that are counted without being run.
    repeats: usize,
}

impl Workload<'_> {
    /// All micro-batches have the same shape, so a rank's work becomes periodic. Without a pipeline the period is one
    /// micro-batch, except the first, whose products write gradients, and the last, whose gradients are summed over
    /// ranks. In a pipeline it is one micro-batch once all stages are busy, and in an interleaved one a group of `pp`.
    fn rehearsal(&self, micro_batches: usize) -> Rehearsal {
        let (pp, chunks) = (self.how.ranks.grid.pp, self.how.ranks.virtual_stages);
        let (period, second) = match (pp, chunks) {
            (1, _) => (1, 3),
            // pp - 1 micro-batches precede the first backward pass, and as many follow the last forward pass; ...
            (_, 1) => (1, pp + 2),
            // ... 2 (pp - 1) + (chunks - 1) pp passes of single stages, which is less than 1.5 pp micro-batches.
            _ => (pp, 4 * pp),
        };
        if micro_batches > second {
            Rehearsal { first: second - period, second, period, repeats: (micro_batches - second) / period }
        } else {
            Rehearsal { first: micro_batches, second: micro_batches, period, repeats: 0 }
        }
    }
}

/// Waits of a step: those of the second step plus, for each period that was not run, the increase over the first.
fn waited(first: &Waits, second: &Waits, repeats: f64) -> Waits {
    let mut waits = second.clone();
    for (key, seconds) in &mut waits {
        // One-time waits may differ a little from step to step.
        let more = *seconds - first.get(key).copied().unwrap_or_default();
        *seconds += repeats * more.max(0.0);
    }
    waits
}

/// Messages of a step: those of the second step plus, for each period that was not run, the increase over the first.
fn sent(first: &Wires, second: &Wires, repeats: u64) -> Wires {
    let mut wires = second.clone();
    for (key, wire) in &mut wires {
        let first = first.get(key).copied().unwrap_or_default();
        wire.calls += repeats * wire.calls.saturating_sub(first.calls);
        wire.bytes += repeats * wire.bytes.saturating_sub(first.bytes);
    }
    wires
}

/// Parts of a plan other than the counts of its steps.
struct Rest {
    usage: PoolUsage,
    held: OffloadPeaks,
    tokens: u64,
    lane: Option<Arc<Lane>>,
}

/// Peak bytes outside the machine's memory: activations on disk and on the host, and weights and optimizer state there.
struct OffloadPeaks {
    spill: u64,
    host: u64,
    state_on_disk: u64,
    state_in_host: u64,
}

impl OffloadPeaks {
    fn of(trainer: &Trainer, how: &InStep) -> OffloadPeaks {
        let offload = trainer.offload.clone().unwrap_or_default();
        let [spill, host] = [offload.disk, offload.host]
            .map(|spill| spill.map_or(0, |spill| spill.stats().peak_reserved_bytes));
        let state = trainer.params.disk().map_or(0, |disk| disk.stats().peak_reserved_bytes);
        let (state_on_disk, state_in_host) = if how.on_disk.in_host { (0, state) } else { (state, 0) };
        OffloadPeaks { spill, host, state_on_disk, state_in_host }
    }
}

impl StepCounts {
    /// The plan of a step like this one with `repeats` more periods, each of which is the difference from `less`.
    fn plan(&self, less: &StepCounts, repeats: usize, rest: Rest) -> Plan {
        let more = |less: u128, this: u128| this + repeats as u128 * (this - less);
        let waits = waited(&less.waits, &self.waits, repeats as f64);
        let exposed_s = waits.values().sum();
        let times = less.times.zip(self.times).map(|(less, this)| this + (this - less) * repeats as f64);
        let Rest { usage, held, tokens, lane } = rest;
        Plan {
            usage,
            model_flops: more(less.model_flops, self.model_flops),
            hardware_flops: more(less.hardware_flops, self.hardware_flops),
            replayed: more(less.replayed, self.replayed),
            disk_peak_bytes: held.spill + held.state_on_disk,
            spill_peak_bytes: held.spill,
            disk_bytes: more(less.disk_bytes, self.disk_bytes) as u64,
            host_peak_bytes: held.host + held.state_in_host,
            host_state_bytes: held.state_in_host,
            host_bytes: more(less.host_bytes, self.host_bytes) as u64,
            wires: sent(&less.wires, &self.wires, repeats as u64),
            waits,
            tokens,
            times: times.map(|times| Times { exposed_s, ..times }),
            lane,
        }
    }
}

struct StepCounts {
    model_flops: u128,
    hardware_flops: u128,
    replayed: u128,
    disk_bytes: u128,
    host_bytes: u128,
    wires: Wires,
    waits: Waits,
    times: Option<Times>,
}

fn watch(
    trainer: &mut Trainer,
    machine: &dyn Machine,
    batch: &[&MicroBatch],
    how: &InStep,
) -> Result<StepCounts> {
    // Bytes moved to disk and back, and to the host and back.
    let moved = |trainer: &Trainer| -> [u128; 2] {
        let host = trainer.offload.as_ref().and_then(|offload| offload.host.as_ref()).map(Spill::stats);
        let state = trainer.params.disk().filter(|_| how.on_disk.in_host).map(|disk| disk.stats());
        let stats = [host, state].into_iter().flatten();
        let host: u64 = stats.map(|stats| stats.written_bytes + stats.read_bytes).sum();
        [trainer.disk_traffic().0 - host, host].map(u128::from)
    };
    let times = || machine.clock().map(|clock| clock.times());
    let mesh = trainer.device.mesh.clone();
    trainer.counters.reset(false);
    let ([disk, host], before, ledger) = (moved(trainer), times(), mesh.ledger());
    trainer.step(batch, how)?;
    if how.goal.takes_turns() {
        trainer.params.settle(&trainer.device);
    }
    let counted = trainer.counters.get();
    let [disk_after, host_after] = moved(trainer);
    let Ledger { mut wires, mut waits } = mesh.ledger();
    for (key, old) in &ledger.wires {
        wires.entry(key.clone()).and_modify(|wire| {
            wire.calls -= old.calls;
            wire.bytes -= old.bytes;
        });
    }
    for (key, old) in &ledger.waits {
        waits.entry(key.clone()).and_modify(|seconds| *seconds -= old);
    }
    Ok(StepCounts {
        model_flops: counted.model_flops,
        hardware_flops: counted.hardware_flops,
        replayed: counted.replayed,
        disk_bytes: disk_after - disk,
        host_bytes: host_after - host,
        wires,
        waits,
        times: times().zip(before).map(|(after, before)| after - before),
    })
}
