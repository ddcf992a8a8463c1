//! A training step over several ranks of this machine, each a thread with its share of the cores.

use anyhow::{Context, Result, bail};
use fathom_base::recipe::{Layers, Recipe as Loaded};
use fathom_grad::Place;
use fathom_model::{Init, Model, Spec, initialise};
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, Device};
use fathom_train::parallel::Ranks;
use fathom_train::recipe::{Recipe, Stage};
use fathom_train::{InStep, MicroBatch, Trainer, stage};

use super::row::Row;
use super::step::{once, random_batch};
use super::watch::{Timed, measure, measure_once};
use crate::args::Bench;
use crate::crew::Crew;
use crate::{device, ranks};

/// The mesh of the flags, as a recipe that has no other key; micro batches enough for every rank.
pub(super) fn recipe(args: &Bench, tokens: usize) -> Result<Recipe> {
    let sets: Vec<String> = args.mesh.iter().map(|set| format!("mesh.{set}")).collect();
    let loaded: Loaded<Recipe> = Loaded::load(Layers::new().sets(&sets)).context("--mesh")?;
    let mut recipe = loaded.value;
    recipe.machine.threads = args.threads;
    let (dp, pp) = (recipe.mesh.dp.max(1), recipe.mesh.pp.max(1));
    let micro_batches = dp * if pp > 1 { 2 * pp } else { 1 };
    recipe.stage = vec![Stage { seq_tokens: tokens, micro_batches, ..Stage::default() }];
    Ok(recipe)
}

/// What the first rank measured.
struct Measured {
    timed: Timed,
    loss: f64,
    flops: f64,
    wait_s: f64,
    peak_live: u64,
    threads: usize,
}

/// Runs the benchmark.
pub(super) fn run(args: &Bench, spec: &Spec, how: &InStep, tokens: usize, row: Row) -> Result<()> {
    if how.places.uses(Place::Disk) || how.on_disk.any() {
        bail!("--mesh: with --spill, --offload-weights or --offload-optimizer use `fathom train`");
    }
    let recipe = recipe(args, tokens)?;
    let micro_batches = recipe.stage[0].micro_batches;
    how.ranks.check(spec).context("--mesh")?;
    let dtype = device::dtype(&args.dtype)?;
    let rank = |device: &Device| {
        let portion = device::portion(device, spec, &how.ranks)?;
        let (model, mut params) = Model::declare_part(device, spec, dtype, None, portion);
        initialise(device, &model, &mut params, Init::new(1));
        let trainer = Trainer::sharded(device, model, params, how.ranks.sharding, how.adamw.moments);
        let own = micro_batches / device.mesh.size(Axis::Dp);
        let batch = random_batch(tokens, how.caps.seq_tokens, spec.vocab);
        anyhow::Ok((trainer, vec![batch; own]))
    };
    let first = |device: Device| {
        let (mut trainer, batch) = rank(&device)?;
        lead(args, &mut trainer, &batch, how)
    };
    let other = |device: Device| {
        let (mut trainer, batch) = rank(&device)?;
        while another(&device, true) {
            trainer.counters.reset(false);
            step(&mut trainer, &batch, how)?;
        }
        Ok(())
    };
    let Measured { timed, loss, flops, wait_s, peak_live, threads } =
        ranks::run(&recipe, &how.ranks, &Crew::Threads, first, &other)?;
    let Ranks { grid, .. } = how.ranks;
    let all = (tokens * micro_batches) as f64;
    row.with("mesh", grid.to_string())
        .figure("tokens_per_s", all / timed.median_s)
        .figure("model_tflops", flops / timed.median_s * 1e-12)
        .with("peak_pool_bytes", peak_live)
        .figure("loss", loss / (micro_batches * (tokens - 1)) as f64)
        .figure("wait_s", wait_s)
        .figure("step_s", timed.median_s)
        .figure("tokens_per_s_best", all / timed.best_s)
        .with("ranks", grid.ranks())
        .with("threads", threads)
        .print(timed.loaded);
    Ok(())
}

/// The first rank: measures, and tells the others when there is another step.
fn lead(args: &Bench, trainer: &mut Trainer, batch: &[MicroBatch], how: &InStep) -> Result<Measured> {
    let device = trainer.device.clone();
    let (mut failed, mut steps, mut flops) = (None, 0, 0.0);
    let mut work = || {
        another(&device, true);
        trainer.counters.reset(false);
        match trainer.step(batch, how) {
            Ok(result) => flops = f64::from(result.model_flops.wait_f32()),
            Err(error) => failed = Some(error),
        }
        steps += 1;
    };
    // The first step touches its memory for the first time, as without a mesh.
    if !args.once {
        work();
    }
    let timed = if args.once { measure_once(&mut work) } else { measure(args.repeat, &mut work) };
    another(&device, false);
    if let Some(error) = failed {
        bail!(error);
    }
    Ok(Measured {
        timed,
        loss: f64::from(trainer.loss_sum()),
        flops,
        wait_s: device.mesh.traffic().wait_s / f64::from(steps),
        peak_live: device.pool.usage().peak_live,
        threads: device.machine.profile().threads,
    })
}

/// Whether there is another step: what the first rank says.
fn another(device: &Device, more: bool) -> bool {
    let said = device.from_i32(&[i32::from(more)], Category::Data);
    device.mesh.everybody().broadcast(device, 0, &said);
    device.machine.read(&said).wait().first().is_some_and(|byte| *byte != 0)
}

fn step(trainer: &mut Trainer, batch: &[MicroBatch], how: &InStep) -> Result<()> {
    let mut failed = None;
    once(trainer, batch, how, &mut failed);
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The mesh of the flags.
pub(super) fn mesh(args: &Bench, tokens: usize) -> Result<Ranks> {
    match args.mesh.is_empty() {
        true => Ok(Ranks::default()),
        false => Ok(stage::ranks(&recipe(args, tokens)?, 0)?),
    }
}
