//! Cost of a checkpoint for a run: ten steps with a save in progress against ten without, alternating.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use fathom_base::human;
use fathom_train::{Checkpoints, Progress, SaveStats};

use super::row::Row;
use super::step::TABLES;
use super::subject::{self, Subject};
use crate::args::bench::Save;
use crate::console;

/// Steps over which a save is spread.
const STEPS: usize = 10;

/// Runs the benchmark.
pub fn run(args: &Save) -> Result<()> {
    let job = subject::job(&args.trained.recipe, &TABLES)?;
    let (recipe, device) = (job.recipe(), subject::open(&job)?);
    let mut subject = Subject::new(&device, &job, 0)?;
    let folder = recipe.machine.spill.as_deref().unwrap_or(Path::new(".")).join("bench-save");
    if folder.exists() {
        bail!("{} exists; it is removed at the end, so move it, or set machine.spill", folder.display());
    }
    let checkpoints = Checkpoints::new(&folder, 1);
    steps(&mut subject, None)?;
    let (mut plain, mut saving, mut stalls, mut saves) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0;
    for turn in 0..args.trained.repeat.max(1) {
        plain.push(steps(&mut subject, None)?.0);
        let progress = Progress { step: turn as u64, ..Progress::default() };
        let (seconds, saved) = steps(&mut subject, Some((&checkpoints, &progress)))?;
        saving.push(seconds);
        if let Some((saved, stall_s)) = saved {
            bytes = saved.bytes;
            stalls.push(stall_s);
            saves.push(saved.seconds);
        }
        console::line(&format!(
            "{} in {:.2} s, ten steps {:.2} s, without {:.2} s",
            human::bytes(bytes),
            saves[turn],
            seconds,
            plain[turn]
        ));
    }
    std::fs::remove_dir_all(&folder)?;
    let [plain_s, saving_s, stall_s, save_s] = [plain, saving, stalls, saves].map(median);
    Row::new("save")
        .with("dtype", recipe.model.precision.name())
        .with("tokens", recipe.stage[0].seq_tokens)
        .with("bytes", bytes)
        .figure("steps_s", plain_s)
        .figure("steps_with_save_s", saving_s)
        .figure("extra_s", saving_s - plain_s)
        .figure("stall_s", stall_s)
        .figure("save_s", save_s)
        .with("threads", device.machine.profile().threads)
        .print(false);
    Ok(())
}

/// Seconds of [`STEPS`] steps, and the save started before the first; its remaining time after the last step is not
/// counted.
fn steps(
    subject: &mut Subject,
    save: Option<(&Checkpoints, &Progress)>,
) -> Result<(f64, Option<(SaveStats, f64)>)> {
    let (trainer, batch, how) = subject.parts();
    let device = trainer.device.clone();
    let started = Instant::now();
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
    let seconds = started.elapsed().as_secs_f64();
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
