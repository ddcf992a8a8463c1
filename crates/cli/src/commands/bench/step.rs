//! A training step: forward, backward, AdamW, on a Llama with random weights and random tokens.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fathom_base::human;
use fathom_base::recipe::{Layers, Recipe as Loaded};
use fathom_base::rss::PeakAnonymous;
use fathom_cpu::Counting;
use fathom_cuda::{Cuda, Graphs};
use fathom_grad::{OnDisk, Place, Places};
use fathom_model::{Caps, Init, Model, NarrowLayers, Spec, initialise};
use fathom_tensor::spill::{Codec, free_bytes};
use fathom_tensor::{DType, Device, Profile};
use fathom_train::offload::{self, Room};
use fathom_train::recipe::{Machine, MachineKind, Recipe, Stage};
use fathom_train::{Budgets, InStep, MicroBatch, Plan, Trainer, Workload, open_state_disk, plan, stage};
use serde_json::{Value, json};

use super::mesh;
use super::ops;
use super::random::Random;
use super::row::Row;
use super::watch::{measure, measure_once};
use super::{Bed, isa, llama, tokens};
use crate::args::Bench;
use crate::commands::plan::flops;
use crate::{choices, device, gpu, profiles};

/// Runs the benchmark.
pub fn run(args: &Bench) -> Result<()> {
    let (places, optimizer) = (places(args)?, optimizer(args)?);
    for tokens in tokens(args)? {
        let spec = llama(args, tokens)?;
        if args.docs == 0 || args.docs > tokens {
            bail!("--docs {}: {tokens} tokens hold 1 to {tokens} documents", args.docs);
        }
        let caps = Caps { docs: args.docs, seq_tokens: tokens.div_ceil(args.docs) };
        let mut how = InStep {
            places: places.clone(),
            on_disk: OnDisk {
                weights: args.offload_weights,
                optimizer: args.offload_optimizer,
                in_host: args.machine == "cuda",
                ..OnDisk::default()
            },
            caps,
            ranks: mesh::mesh(args, tokens)?,
            narrow: narrow(args, tokens)?,
            z_loss: optimizer.optimizer.z_loss as f32,
            adamw: stage::adamw(&optimizer),
        };
        if args.places == "auto" {
            how.places = solved(args, &spec, &how, tokens)?;
        }
        match args.machine.as_str() {
            "cpu" if !args.mesh.is_empty() && how.narrow.is_some() => {
                bail!("--gemm {}: with --mesh use `fathom train`", args.gemm)
            }
            "cpu" if !args.mesh.is_empty() => mesh::run(args, &spec, &how, tokens, row(args, tokens))?,
            "cpu" | "cuda" => on_machine(args, &spec, &how, tokens)?,
            "meta" => on_meta(args, &spec, &how, tokens)?,
            other => bail!("--machine {other}: not one of cpu, cuda, meta"),
        }
    }
    Ok(())
}

fn places(args: &Bench) -> Result<Places> {
    let places = match args.places.as_str() {
        "none" => Places::none(),
        // The solver replaces it.
        "auto" => return Ok(Places::none()),
        "selective" => Places::selective(&["core_attn".to_string()]).map_err(anyhow::Error::msg)?,
        "linear" => Places::linear(),
        "full" => Places::full(),
        other => bail!("--places {other}: not one of none, selective, linear, full, auto"),
    };
    if args.tile_rows.is_some_and(|rows| rows == 0 || rows % 128 != 0) {
        bail!("--tile-rows {:?}: must be a multiple of 128", args.tile_rows);
    }
    let all: &[String] = if args.spill.is_some() { &["all".to_string()] } else { &[] };
    let places = places.offload(all, Place::Disk).map_err(anyhow::Error::msg)?;
    let codec = match args.codec.as_str() {
        "as_is" => Codec::AsIs,
        "fp8" => Codec::Fp8Block,
        other => bail!("--codec {other}: not one of as_is, fp8"),
    };
    let places = places.with_codec(codec).with_fraction(args.fraction);
    Ok(places.with_tiles(args.tile_rows).with_head_groups(args.head_groups))
}

/// A recipe that has the keys of `--optimizer` and no other.
fn optimizer(args: &Bench) -> Result<Recipe> {
    let sets: Vec<String> = args.optimizer.iter().map(|set| format!("optimizer.{set}")).collect();
    let loaded: Loaded<Recipe> = Loaded::load(Layers::new().sets(&sets)).context("--optimizer")?;
    Ok(loaded.value)
}

/// The number formats of products.
fn narrow(args: &Bench, tokens: usize) -> Result<Option<NarrowLayers>> {
    let set = format!("precision.gemm={}", args.gemm);
    let loaded: Loaded<Recipe> = Loaded::load(Layers::new().sets(&[set])).context("--gemm")?;
    let mut recipe = loaded.value;
    recipe.stage = vec![Stage { seq_tokens: tokens, tile_rows: args.tile_rows, ..Stage::default() }];
    Ok(stage::narrow(&recipe, 0)?)
}

fn machine_profile(args: &Bench) -> Result<Profile> {
    let isa = fathom_cpu::isa::Isa::select(isa(args)?);
    profiles::named(&args.machine_profile, device::threads(args.threads), isa)
}

/// What a step runs on.
struct Stand {
    device: Device,
    dtype: DType,
    /// Of the processor.
    isa: Option<String>,
    /// A GPU, and what of its memory was free before any of this.
    cuda: Option<(Arc<Cuda>, u64)>,
}

impl Stand {
    fn new(args: &Bench) -> Result<Stand> {
        let dtype = device::dtype(&args.dtype)?;
        if args.machine == "cpu" {
            let bed = Bed::new(args)?;
            let isa = Some(bed.cpu.isa().name().to_string());
            return Ok(Stand { device: bed.device, dtype, isa, cuda: None });
        }
        let machine = Machine { kind: MachineKind::Cuda, graphs: args.graphs, ..Machine::default() };
        let opened = gpu::open(&machine, device::Place::ALONE)?.context("no GPU")?;
        let cuda = Some((opened.machine.clone(), opened.machine.driver().memory()?.0));
        Ok(Stand { device: Device::new(opened.machine, opened.budget), dtype, isa: None, cuda })
    }

    /// What a device says itself: its bytes that are taken beyond those before the first tensor, the bytes behind the pool, and
    /// what became of blocks.
    fn own_words(&self, row: Row) -> Result<Row> {
        let Some((cuda, free)) = &self.cuda else { return Ok(row) };
        let row = row
            .with("device_used_bytes", free.saturating_sub(cuda.driver().memory()?.0))
            .with("arena_bytes", cuda.backed_bytes());
        let Graphs { single, captured, replayed, refused, cuts } = cuda.graphs();
        let why = refused.1;
        let graphs = json!({ "single": single, "captured": captured, "replayed": replayed[0], "operations": replayed[1],
            "refused": refused.0, "why": why, "cuts": cuts });
        Ok(row.with("graphs", graphs))
    }
}

/// The solver's places, within `--memory` and, with `--spill`, that folder's disk.
fn solved(args: &Bench, spec: &Spec, how: &InStep, tokens: usize) -> Result<Places> {
    let stand = if args.machine == "cuda" { Some(Stand::new(args)?.device) } else { None };
    let profile = match &stand {
        // What leaves a GPU goes to the host.
        Some(device) => {
            let host = args.host_memory.as_deref().map(human::parse_bytes).transpose();
            let host = host.map_err(anyhow::Error::msg).context("--host-memory")?;
            let profile = device.machine.profile().clone();
            Profile { host_bytes: host.or(profile.host_bytes), ..profile }
        }
        None => machine_profile(args)?,
    };
    let memory = match (&args.memory, &stand) {
        (Some(text), _) => human::parse_bytes(text).map_err(anyhow::Error::msg).context("--memory")?,
        (None, Some(device)) => device.pool.budget(),
        (None, None) => device::default_budget(),
    };
    let disk = args.spill.as_deref().and_then(free_bytes).unwrap_or(0);
    let (dtype, spec, how) = (device::dtype(&args.dtype)?, Cow::Borrowed(spec), how.clone());
    let work = Workload { profile: &profile, spec, dtype, how, micro_batches: 1, tokens };
    let solution = work.solve(&Budgets { memory, host: profile.host_bytes.unwrap_or(0), disk });
    let solution = solution
        .with_context(|| format!("no places make {tokens} tokens fit into {}", human::bytes(memory)))?;
    eprintln!("{}", choices::table(&solution));
    Ok(solution.places)
}

fn row(args: &Bench, tokens: usize) -> Row {
    Row::new("step")
        .with("dtype", args.dtype.as_str())
        .with("tokens", tokens)
        .with("docs", args.docs)
        .with("places", args.places.as_str())
        .with("optimizer", args.optimizer.join(","))
        .with("gemm", args.gemm.as_str())
        .with("machine", args.machine.as_str())
}

/// The plan's figures; nothing ran.
fn on_meta(args: &Bench, spec: &Spec, how: &InStep, tokens: usize) -> Result<()> {
    let profile = machine_profile(args)?;
    let plan = plan(&profile, spec, device::dtype(&args.dtype)?, how, 1, tokens);
    row(args, tokens)
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

/// A model with random weights and what its step needs, all of it there before the step.
fn trainer(
    args: &Bench,
    bed: &Stand,
    device: &Device,
    spec: &Spec,
    how: &InStep,
    planned: &Plan,
) -> Result<Trainer> {
    let folder = args.spill.as_deref().unwrap_or(Path::new("."));
    device.pool.prepare(planned.usage.peak_reserved);
    let state =
        open_state_disk(device, spec, bed.dtype, how.on_disk, (&how.ranks, how.adamw.moments), folder)?;
    let (model, mut params) = Model::declare_on(device, spec, bed.dtype, state);
    initialise(device, &model, &mut params, Init::new(1));
    let mut trainer = Trainer::sharded(device, model, params, how.ranks.sharding, how.adamw.moments);
    trainer.narrow(how.narrow.as_ref())?;
    if how.places.uses(Place::Disk) || how.places.uses(Place::Host) {
        trainer.offload = offload::open(device, &how.places, Room::of(planned, folder, None))?;
    }
    Ok(trainer)
}

/// A step of as many tokens and one block, in memory of its own that is given back: kernels are compiled and libraries make
/// their plans before a step is timed that comes only once.
fn warm_up(args: &Bench, bed: &Stand, spec: &Spec, how: &InStep, batch: &[MicroBatch]) -> Result<()> {
    let mut spec = spec.clone();
    spec.layers.truncate(1);
    let device = Device::new(bed.device.machine.clone(), bed.device.pool.budget());
    let tokens = batch.iter().map(|micro| micro.ids.len()).sum();
    let planned = plan(device.machine.profile(), &spec, bed.dtype, how, 1, tokens);
    let mut failed = None;
    once(&mut trainer(args, bed, &device, &spec, how, &planned)?, batch, how, &mut failed);
    failed.map_or(Ok(()), |error| Err(error.into()))
}

fn on_machine(args: &Bench, spec: &Spec, how: &InStep, tokens: usize) -> Result<()> {
    let bed = Stand::new(args)?;
    let batch = [random_batch(tokens, how.caps.seq_tokens, spec.vocab)];
    let mut failed = None;
    if args.once && args.machine == "cuda" {
        warm_up(args, &bed, spec, how, &batch)?;
    }
    let planned = plan(bed.device.machine.profile(), spec, bed.dtype, how, 1, tokens);
    let mut trainer = trainer(args, &bed, &bed.device, spec, how, &planned)?;
    if !args.once {
        once(&mut trainer, &batch, how, &mut failed);
    }
    let before = trainer.disk_traffic();
    let sampler = Sampler::start();
    Counting::reset_peak();
    let mut steps = 0;
    let mut step = || {
        trainer.counters.reset(false);
        once(&mut trainer, &batch, how, &mut failed);
        steps += 1;
    };
    let timed = if args.once { measure_once(&mut step) } else { measure(args.repeat, &mut step) };
    let flops = trainer.counters.get().model_flops as f64;
    if let Some(error) = failed {
        bail!(error);
    }
    let after = trainer.disk_traffic();
    let untracked = Counting::peak_since_reset();
    let peak_rss = sampler.stop();
    let usage = bed.device.pool.usage();
    let row = row(args, tokens)
        .figure("tokens_per_s", tokens as f64 / timed.median_s)
        .figure("model_tflops", flops / timed.median_s * 1e-12)
        .with("peak_pool_bytes", usage.peak_live)
        .with("planned_peak_bytes", planned.usage.peak_live)
        .with("peak_rss_bytes", peak_rss)
        .with("untracked_peak_bytes", untracked)
        .with("spill_bytes", (after.0 - before.0) / steps)
        .figure("loss", f64::from(trainer.loss_sum()) / (tokens - 1) as f64)
        .figure("stall_s", (after.1 - before.1) / steps as f64)
        .with("peak_reserved_bytes", usage.peak_reserved)
        .figure("step_s", timed.median_s)
        .figure("tokens_per_s_best", tokens as f64 / timed.best_s)
        .with("threads", bed.device.machine.profile().threads)
        .with("isa", bed.isa.as_deref())
        .with("planned_reserved_bytes", planned.usage.peak_reserved);
    bed.own_words(row)?.print(timed.loaded);
    if args.ops {
        ops::print(&mut trainer, &batch, how, args.repeat)?;
    }
    Ok(())
}

/// One step, waited for.
pub(super) fn once(
    trainer: &mut Trainer,
    batch: &[MicroBatch],
    how: &InStep,
    failed: &mut Option<fathom_train::Error>,
) {
    match trainer.step(batch, how) {
        Ok(result) => {
            result.loss.wait_f32();
        }
        Err(error) => *failed = Some(error),
    }
}

pub(super) fn random_batch(tokens: usize, document: usize, vocab: usize) -> MicroBatch {
    let mut random = Random::new(tokens as u64);
    let ids: Vec<i32> = (0..tokens).map(|_| random.below(vocab) as i32).collect();
    let labels = ids[1..].iter().copied().chain([-100]).collect();
    let positions = (0..tokens).map(|at| (at % document) as i32).collect();
    MicroBatch { ids, labels, positions, ..MicroBatch::shape(tokens, document) }
}

/// Looks at the anonymous resident size every few milliseconds: the kernel keeps no peak of it.
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
