//! A training step of every stage of a recipe: forward, backward and update, with random weights and tokens. Ranks
//! are threads that share the cores, or the devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use fathom_app::crew::{self, Crew};
use fathom_app::machine::RankGpu;
use fathom_app::plan::flops;
use fathom_app::{Job, RankPlace, resources};
use fathom_base::rss::PeakAnonymous;
use fathom_cpu::CountingAllocator;
use fathom_cuda::{Cuda, Graphs};
use fathom_tensor::Device;
use fathom_train::Workload;
use fathom_train::recipe::{MachineKind, Memory, Recipe};
use serde_json::{Value, json};

use super::ops;
use super::row::Row;
use super::subject::{self, Subject};
use super::watch::{measure, measure_once};
use crate::args::bench::{Scores, Step};

/// Recipe tables that affect a step.
pub const TABLES: [&str; 10] = [
    "machine",
    "mesh",
    "model",
    "adapter",
    "moe",
    "precision",
    "optimizer",
    "activations",
    "stage",
    "stages",
];

/// Runs the benchmark.
pub fn run(args: &Step) -> Result<()> {
    let job = subject::job(&args.trained.recipe, &TABLES)?;
    (0..job.stages.len())
        .try_for_each(|index| stage_rows(args, &job, index).map_err(|error| placed(&job, error)))
}

/// Adds the place in the recipe to an error about one of its values.
fn placed(job: &Job, error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<fathom_train::Error>() {
        Ok(error) => job.placed(error.into()).into(),
        Err(error) => match error.downcast::<fathom_app::Error>() {
            Ok(error) => job.placed(error).into(),
            Err(error) => error,
        },
    }
}

/// The rows of a stage. A plan does not depend on scores.
fn stage_rows(args: &Step, job: &Job, index: usize) -> Result<()> {
    if job.machine.asked.kind == MachineKind::Meta {
        return on_meta(args, job, index);
    }
    args.peaks.each().into_iter().try_for_each(|scores| measured(args, job, (index, scores)))
}

/// Measures a stage with such scores, and with `--ops` its operations.
fn measured(args: &Step, job: &Job, what: (usize, Scores)) -> Result<()> {
    if job.world() > 1 {
        let outside = |error: anyhow::Error| fathom_app::Error::Outside(error.into());
        let first = |device: Device| lead(args, job, what, (&device, None)).map_err(outside);
        let follow = |device: &Device| Subject::warmed(device, job, what, |_| Ok(()))?.follow();
        let other = |device: Device| follow(&device).map_err(outside);
        return Ok(crew::run(job, &Crew::Threads, first, &other)?);
    }
    let gpu = Gpu::open(job)?;
    let device = match &gpu {
        Some(gpu) => Device::new(gpu.cuda.clone(), gpu.budget),
        None => job.machine.cpu()?,
    };
    lead(args, job, what, (&device, gpu.as_ref()))
}

/// A GPU, and its free memory at the start.
struct Gpu {
    cuda: Arc<Cuda>,
    budget: u64,
    free: u64,
}

impl Gpu {
    fn open(job: &Job) -> Result<Option<Gpu>> {
        let Some(RankGpu { machine: cuda, budget }) = job.machine.gpu(RankPlace::ALONE)? else {
            return Ok(None);
        };
        let free = cuda.driver().memory()?.0;
        Ok(Some(Gpu { cuda, budget, free }))
    }

    /// Adds the device's own figures: memory taken since the start, bytes behind the pool, and what became of blocks
    /// as graphs.
    fn own_words(&self, row: Row) -> Result<Row> {
        let Graphs { single, captured, replayed, refused, cuts } = self.cuda.graphs();
        let why = refused.1;
        let graphs = json!({ "single": single, "captured": captured, "replayed": replayed[0], "operations": replayed[1],
            "refused": refused.0, "why": why, "cuts": cuts });
        Ok(row
            .with("device_used_bytes", self.free.saturating_sub(self.cuda.driver().memory()?.0))
            .with("arena_bytes", self.cuda.backed_bytes())
            .with("graphs", graphs))
    }

    /// Runs a step with as many tokens but one block, in separate memory that is returned: compiles kernels and lets
    /// libraries plan before a step that is timed only once.
    fn warm_up(&self, recipe: &Recipe, work: &Workload<'_>) -> Result<()> {
        let device = Device::new(self.cuda.clone(), self.budget);
        let mut work = work.clone();
        work.spec.to_mut().layers.truncate(1);
        let plan = work.plan()?;
        let mut subject = Subject::of(&device, recipe, &work, plan)?;
        subject.step();
        subject.end()
    }
}

fn row(args: &Step, recipe: &Recipe, index: usize) -> Row {
    let table = &recipe.stage[index];
    let granularity = table.recompute_granularity.unwrap_or(recipe.activations.recompute_granularity);
    let places = match recipe.activations.memory {
        Memory::Auto => Memory::Auto.name(),
        Memory::Manual => granularity.name(),
    };
    Row::new("step")
        .with("dtype", recipe.model.precision.name())
        .with("tokens", table.seq_tokens * table.samples_per_micro_batch)
        .with("docs", table.samples_per_micro_batch)
        .with("micro_batches", table.micro_batches)
        .with("places", places)
        .with("gemm", recipe.precision.gemm.name())
        .with("machine", recipe.machine.kind.name())
        .with("recipe", args.trained.recipe.join(" "))
}

/// Prints the plan's figures without running anything.
fn on_meta(args: &Step, job: &Job, index: usize) -> Result<()> {
    let (recipe, profile) = (job.recipe(), job.machine.profile_of_rank(job.world())?);
    let draft =
        subject::draft((&profile, resources::default_budget()), &job.stages[index].spec, job, index, 0);
    let settled = match recipe.activations.memory {
        Memory::Auto => draft.check()?,
        Memory::Manual => draft.settle()?,
    };
    let plan = settled.plan;
    row(args, recipe, index)
        .with("tokens_per_s", plan.tokens_per_s())
        .with("model_tflops", plan.step_s().map(|step_s| plan.model_flops as f64 / step_s * 1e-12))
        .with("peak_pool_bytes", plan.usage.peak_live)
        .with("peak_rss_bytes", Value::Null)
        .with("untracked_peak_bytes", Value::Null)
        .with("peak_reserved_bytes", plan.usage.peak_reserved)
        .with("model_flops", flops(plan.model_flops))
        .with("spill_bytes", plan.disk_bytes)
        .with("stall_s", plan.times.map(|times| times.stall_s))
        .with("step_s", plan.step_s())
        .with("times", serde_json::to_value(plan.times)?)
        .with("threads", profile.threads)
        .print(false);
    Ok(())
}

/// Body of rank 0: measures, and announces each step to the others.
fn lead(
    args: &Step,
    job: &Job,
    (index, scores): (usize, Scores),
    (device, gpu): (&Device, Option<&Gpu>),
) -> Result<()> {
    let recipe = job.recipe();
    let mut subject =
        Subject::warmed(device, job, (index, scores), |work| match gpu.filter(|_| args.once) {
            Some(gpu) => gpu.warm_up(recipe, work),
            None => Ok(()),
        })?;
    // First touch of memory.
    if !args.once {
        subject.step();
    }
    let (before, waited_s) = (subject.trainer.disk_traffic(), device.mesh.traffic().wait_s);
    let sampler = Sampler::start();
    CountingAllocator::reset_peak();
    let mut steps = 0;
    let mut work = || {
        subject.trainer.counters.reset(false);
        subject.step();
        steps += 1;
    };
    let repeat = args.trained.repeat;
    let timed = if args.once { measure_once(&mut work) } else { measure(repeat, &mut work) };
    subject.check()?;
    let after = subject.trainer.disk_traffic();
    let untracked = CountingAllocator::peak_since_reset();
    let peak_rss = sampler.stop();
    let (usage, planned) = (device.pool.usage(), &subject.plan.usage);
    let (table, profile) = (&recipe.stage[index], device.machine.profile());
    let samples = table.samples_per_micro_batch * table.micro_batches;
    let tokens = (table.seq_tokens * samples) as f64;
    let labels = tokens * subject.labelled();
    let row = row(args, recipe, index)
        .with("scores", scores.name())
        .figure("tokens_per_s", tokens / timed.median_s)
        .figure("model_tflops", subject.model_flops / timed.median_s * 1e-12)
        .with("peak_pool_bytes", usage.peak_live)
        .with("planned_peak_bytes", planned.peak_live)
        .with("peak_rss_bytes", peak_rss)
        .with("untracked_peak_bytes", untracked)
        .with("spill_bytes", (after.0 - before.0) / steps)
        .figure("loss", f64::from(subject.trainer.loss_sum()) / labels)
        .figure("stall_s", (after.1 - before.1) / steps as f64)
        .with("peak_reserved_bytes", usage.peak_reserved)
        .figure("step_s", timed.median_s)
        .figure("tokens_per_s_best", tokens / timed.best_s)
        .with("threads", profile.threads)
        .with("isa", profile.isa.as_str())
        .with("planned_reserved_bytes", planned.peak_reserved);
    let grid = device.mesh.grid();
    let row = match grid.ranks() {
        1 => row,
        ranks => row
            .with("mesh", grid.to_string())
            .with("ranks", ranks)
            .figure("wait_s", (device.mesh.traffic().wait_s - waited_s) / steps as f64),
    };
    let row = match gpu {
        Some(gpu) => gpu.own_words(row)?,
        None => row,
    };
    row.print(timed.loaded);
    if args.ops {
        ops::print(&mut subject, repeat)?;
    }
    subject.end()
}

/// Samples the anonymous resident size every few milliseconds, as the kernel does not record its peak.
struct Sampler {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<PeakAnonymous>,
}

impl Sampler {
    fn start() -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut peak = PeakAnonymous::default();
            while !seen.load(Ordering::Relaxed) {
                peak.observe();
                std::thread::sleep(Duration::from_millis(5));
            }
            peak
        });
        Sampler { stop, thread }
    }

    fn stop(self) -> Option<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().map(|peak| peak.peak_bytes())
    }
}
