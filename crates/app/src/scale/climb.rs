//! Climbing a ladder: measures the speed of every size, shares the budget out once, and trains rung after rung.

use std::fs;
use std::path::Path;
use std::time::Instant;

use fathom_base::human;
use fathom_report::RunLog;
use fathom_train::Outcome;

use super::fits::{self, Prediction, RungResult};
use super::ladder::{self, Size, folder, job};
use super::outcome::{LadderOutcome, LadderResult, Request};
use super::rungs::{Ladder, Rung, share_out};
use super::{gpus, page, record};
use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::train::{Order, spent_s, train};

/// Steps of a speed measurement, of which the first are not counted.
const PROBE_STEPS: u64 = 6;
const PROBE_SKIPPED: usize = 2;
/// Share by which rungs may overrun the budget before the next one is refused.
const SLACK: f64 = 1.05;
/// Name of the results.
const RESULTS: &str = "scale.json";

/// Trains a ladder, or goes on with it.
///
/// # Errors
/// Those of training; a budget that the rungs to come would overrun.
pub(super) fn climb(request: &Request, order: &Order, events: &dyn Events) -> Result<LadderOutcome> {
    let (loaded, out) = (&request.loaded, &request.loaded.value.run.out);
    let ladder = match record::open(out, loaded)? {
        Some(ladder) => ladder,
        None => {
            let Some((sizes, spent)) = measured(request, order, events)? else {
                return Ok(LadderOutcome::Interrupted);
            };
            let ladder = Ladder { measured: true, ..share_out(&sizes, loaded, request.budget_s, spent)? };
            record::keep_ladder(out, &ladder)?;
            ladder
        }
    };
    let climber = Climber { request, order, events, ladder: &ladder };
    let (held_out, fitted) = ladder.rungs.split_last().context("the ladder has no rung")?;
    let mut trained = Vec::new();
    for rung in fitted {
        match climber.rung(rung)? {
            Some(result) => trained.push(result),
            None => return Ok(LadderOutcome::Interrupted),
        }
    }
    let table = &loaded.value.scale;
    let fits = fits::fit(&trained, &ladder, table.resamples, loaded.value.run.seed);
    let expected = fits::expect(&fits, held_out, ladder.size(held_out));
    let expected: Option<Prediction> =
        expected.map(|expected| record::keep_expected(out, expected)).transpose()?;
    if let Some(expected) = &expected {
        events.line(&expected.words(held_out));
    }
    let Some(result) = climber.rung(held_out)? else { return Ok(LadderOutcome::Interrupted) };
    if let Some(expected) = &expected {
        events.line(&expected.judged(result.loss));
    }
    trained.push(result);
    let gpus = gpus::table(loaded, &fits, &ladder, events)?;
    let scaled = LadderResult { ladder, trained, fits, expected, gpus, page: out.join("scale.html") };
    record::keep(&out.join(RESULTS), &scaled)?;
    page::write(&scaled, loaded)?;
    Ok(LadderOutcome::Finished(Box::new(scaled)))
}

/// A ladder being climbed.
struct Climber<'a> {
    request: &'a Request,
    order: &'a Order,
    events: &'a dyn Events,
    ladder: &'a Ladder,
}

impl Climber<'_> {
    fn out(&self) -> &Path {
        &self.request.loaded.value.run.out
    }

    fn text(&self) -> &str {
        self.request.loaded.text()
    }

    /// Trains a rung unless it is trained; `None` if it was asked to stop.
    fn rung(&self, rung: &Rung) -> Result<Option<RungResult>> {
        let run = folder(self.out(), &rung.name);
        let settings = [
            format!("stage.0.steps={}", rung.steps),
            format!("run.out={:?}", run.display().to_string()),
            format!("run.name={:?}", rung.name),
        ];
        let size = self.ladder.size(rung);
        if let Some(result) = self.finished(rung)? {
            return Ok(Some(result));
        }
        self.refuse_late(rung)?;
        let job = job(self.text(), size, &settings, self.events)?;
        share_text(&probe(self.out(), &self.ladder.sizes[0]), &run)?;
        self.events.line(&format!(
            "rung {}: {} parameters, {} tokens, about {}",
            rung.name,
            human::count(size.params),
            human::count(rung.tokens),
            human::seconds(rung.seconds)
        ));
        if train(&job, self.order, self.events)?.outcome == Outcome::Interrupted {
            return Ok(None);
        }
        let trained = self.finished(rung)?;
        trained.map(Some).with_context(|| format!("{}: the run has no held-out loss", run.display()))
    }

    /// Reads the result of a rung that is trained.
    fn finished(&self, rung: &Rung) -> Result<Option<RungResult>> {
        let run = folder(self.out(), &rung.name);
        if !run.join("metrics.jsonl").is_file() {
            return Ok(None);
        }
        Ok(fits::read(&RunLog::read(&run)?, rung, self.ladder.size(rung)))
    }

    /// Seconds that a rung's run has taken so far.
    fn spent_s(&self, rung: &Rung) -> f64 {
        spent_s(&folder(self.out(), &rung.name).join("metrics.jsonl"))
    }

    /// Refuses a rung that would not finish within the budget, at the speed of those before it.
    fn refuse_late(&self, next: &Rung) -> Result<()> {
        let (mut expected_s, mut took_s, mut spent) = (0.0, 0.0, self.ladder.prepared_s);
        for rung in &self.ladder.rungs {
            let so_far = self.spent_s(rung);
            spent += so_far;
            if rung.name != next.name && so_far > 0.0 {
                (expected_s, took_s) = (expected_s + rung.seconds, took_s + so_far);
            }
        }
        let pace = if expected_s > 0.0 { took_s / expected_s } else { 1.0 };
        let needed = (next.seconds * pace - self.spent_s(next)).max(0.0);
        let budget = self.request.budget_s;
        if spent + needed > budget * SLACK {
            let later: f64 = self.ladder.rungs.iter().map(|rung| rung.seconds * pace).sum();
            refuse!(
                "rung {} needs about {} more, and {} of the budget of {} are left: run the same command with --budget {} to go on; finished \
                 rungs stay",
                next.name,
                human::seconds(needed),
                human::seconds((budget - spent).max(0.0)),
                human::seconds(budget),
                minutes(self.ladder.prepared_s + later)
            );
        }
        Ok(())
    }
}

/// Writes a time as `--budget` reads it, rounded up to minutes.
fn minutes(seconds: f64) -> String {
    format!("{}m", (seconds / 60.0).ceil().max(1.0))
}

/// Folder of a size's speed measurement; that of the smallest size holds the text of all rungs.
fn probe(out: &Path, size: &Size) -> std::path::PathBuf {
    out.join("speed").join(format!("w{}", size.hidden))
}

/// Measures a step of every size by training it for a moment, with the seconds that this took; `None` if it was asked
/// to stop.
fn measured(request: &Request, order: &Order, events: &dyn Events) -> Result<Option<(Vec<Size>, f64)>> {
    let (loaded, began) = (&request.loaded, Instant::now());
    let out = &loaded.value.run.out;
    let planned = ladder::sizes(loaded, None, events)?;
    // A budget that is too short by far is refused before any text is read; plans may be off by some factor.
    let fastest = |size: &Size| Size { step_s: size.step_s / 10.0, ..size.clone() };
    share_out(&planned.iter().map(fastest).collect::<Vec<_>>(), loaded, request.budget_s, 0.0)?;
    let mut sizes = Vec::new();
    for size in planned {
        let run = probe(out, &size);
        if let Some(first) = sizes.first() {
            share_text(&probe(out, first), &run)?;
        }
        let settings = [
            format!("stage.0.steps={PROBE_STEPS}"),
            format!("run.out={:?}", run.display().to_string()),
            format!("run.name=\"speed at width {}\"", size.hidden),
            "eval.enabled=false".to_string(),
        ];
        let job = job(loaded.text(), &size, &settings, events)?;
        if train(&job, order, events)?.outcome == Outcome::Interrupted {
            return Ok(None);
        }
        let log = RunLog::read(&run)?;
        let mut times: Vec<f64> = log.steps.iter().skip(PROBE_SKIPPED).map(|step| step.step_s).collect();
        times.retain(|seconds| seconds.is_finite() && *seconds > 0.0);
        times.sort_by(f64::total_cmp);
        let step_s = times.get(times.len() / 2).copied().unwrap_or(size.step_s);
        sizes.push(Size { step_s, ..size });
    }
    Ok(Some((sizes, began.elapsed().as_secs_f64())))
}

/// Gives a run the text that another has read and tokenized: hard links, or copies on another file system.
fn share_text(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (from.join("data"), to.join("data"));
    if to.exists() || !from.exists() {
        return Ok(());
    }
    let part = to.with_extension("part");
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| format!("cannot clear {}", part.display()))?;
    }
    link(&from, &part)
        .and_then(|()| fs::rename(&part, &to))
        .with_context(|| format!("cannot write {}", to.display()))
}

fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link(&path, &target)?;
        } else if fs::hard_link(&path, &target).is_err() {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}
