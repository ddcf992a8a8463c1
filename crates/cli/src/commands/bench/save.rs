//! What a checkpoint costs a run: ten steps with a save on its way against ten without, in turns.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use fathom_base::human;
use fathom_grad::{AdamWSettings, OnDisk, Places};
use fathom_model::{Caps, Init, Model, initialise};
use fathom_train::{Checkpoints, InStep, MicroBatch, Progress, Saved, Trainer};

use super::row::Row;
use super::step::random_batch;
use super::{Bed, llama};
use crate::args::Bench;

/// Steps that a save is spread over.
const STEPS: usize = 10;

/// Runs the benchmark.
pub fn run(args: &Bench) -> Result<()> {
    let tokens = args.tokens.first().copied().unwrap_or(2048);
    if tokens == 0 {
        bail!("--tokens 0: a sequence needs at least one token");
    }
    let (spec, bed) = (llama(args, tokens)?, Bed::new(args)?);
    let (model, mut params) = Model::declare(&bed.device, &spec, bed.dtype);
    initialise(&bed.device, &model, &mut params, Init::new(1));
    let mut trainer = Trainer::new(&bed.device, model, params);
    let how = InStep {
        places: Places::none(),
        on_disk: OnDisk::default(),
        caps: Caps { docs: 1, seq_tokens: tokens },
        ranks: Default::default(),
        narrow: None,
        z_loss: 0.0,
        adamw: AdamWSettings::default(),
    };
    let batch = [random_batch(tokens, tokens, spec.vocab)];
    let folder = args.spill.as_deref().unwrap_or(Path::new(".")).join("bench-save");
    let checkpoints = Checkpoints::new(&folder, 1);
    steps(&mut trainer, &batch, &how, None)?;
    let (mut plain, mut saving, mut stalls, mut saves) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0;
    for turn in 0..args.repeat.max(1) {
        plain.push(steps(&mut trainer, &batch, &how, None)?.0);
        let progress = Progress { step: turn as u64, ..Progress::default() };
        let (seconds, saved) = steps(&mut trainer, &batch, &how, Some((&checkpoints, &progress)))?;
        saving.push(seconds);
        if let Some((saved, stall_s)) = saved {
            bytes = saved.bytes;
            stalls.push(stall_s);
            saves.push(saved.seconds);
        }
        eprintln!(
            "{} in {:.2} s, ten steps {:.2} s, without {:.2} s",
            human::bytes(bytes),
            saves[turn],
            seconds,
            plain[turn]
        );
    }
    std::fs::remove_dir_all(&folder)?;
    let [plain_s, saving_s, stall_s, save_s] = [plain, saving, stalls, saves].map(median);
    Row::new("save")
        .with("dtype", args.dtype.as_str())
        .with("tokens", tokens)
        .with("bytes", bytes)
        .figure("steps_s", plain_s)
        .figure("steps_with_save_s", saving_s)
        .figure("extra_s", saving_s - plain_s)
        .figure("stall_s", stall_s)
        .figure("save_s", save_s)
        .with("threads", bed.threads())
        .print(false);
    Ok(())
}

/// Seconds of [`STEPS`] steps, and what a save that began before the first was; what is left of it after the last is not
/// counted as time of the steps.
fn steps(
    trainer: &mut Trainer,
    batch: &[MicroBatch],
    how: &InStep,
    save: Option<(&Checkpoints, &Progress)>,
) -> Result<(f64, Option<(Saved, f64)>)> {
    let device = trainer.device.clone();
    let begun = Instant::now();
    let mut saving = match save {
        None => None,
        Some((checkpoints, progress)) => Some(checkpoints.begin(trainer, progress)?),
    };
    for _ in 0..STEPS {
        let result = trainer.step_with(batch, how, |_, _| {
            saving.iter_mut().for_each(|saving| saving.release());
            Ok(())
        })?;
        result.loss.wait_f32();
        if let Some(saving) = saving.as_mut().filter(|saving| saving.is_written()) {
            saving.settle(&device)?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let saved = match saving {
        None => None,
        Some(mut saving) => Some((saving.finish(&device)?, saving.stall_s())),
    };
    Ok((seconds, saved))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
