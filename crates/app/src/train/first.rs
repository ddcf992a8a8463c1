//! Work of a run's first rank, which reports, exports and measures.

use std::path::PathBuf;

use fathom_base::clock::Clock;
use fathom_base::metrics::{Event, MetricsWriter, events, read_events};
use fathom_base::{human, rss};
use fathom_report::RunLog;
use fathom_report::sinks::Sinks;
use fathom_tensor::Device;
use fathom_text::Tokenizer;
use fathom_train::{Checkpoints, Hooks, Outcome, Progress, Run, Trainer, together};

use super::gap::Gap;
use super::rank::{RankInputs, open_runs, rebuilds};
use super::time::{Ahead, Timetable, Turns, When};
use super::watch::{Aside, Watch};
use super::{export, moments, sinks};
use crate::adapters::FOLDER;
use crate::error::Result;
use crate::events::{self as heard, Events};
use crate::export::load_checkpoint;
use crate::job::Job;
use crate::measure::{Subject, ruler};
use crate::opening::sample;
use crate::{models, report};
use fathom_model::LoadedModel;

/// Outcome of a run.
pub struct RunOutcome {
    /// Finished or interrupted.
    pub outcome: Outcome,
    /// Report of the run, if this process is the first and has finished it.
    pub report: Option<Report>,
    /// Reason why no checkpoint could be saved, though the model was exported.
    pub unsaved: Option<String>,
}

impl RunOutcome {
    pub(crate) fn without_report(outcome: Outcome) -> RunOutcome {
        RunOutcome { outcome, report: None, unsaved: None }
    }
}

/// Log and report of a finished run.
pub struct Report {
    /// Log of the run.
    pub log: RunLog,
    /// Path of the report.
    pub page: PathBuf,
    /// Seconds that this call took.
    pub seconds: f64,
}

/// Work of the first rank on one part of a run: a model or an adapter.
pub(super) struct First<'a> {
    pub shared: &'a RankInputs<'a>,
    pub tokenizer: &'a Tokenizer,
    /// Planned FLOPs of a step, by stage.
    pub flops: &'a [f64],
    /// Clock, and its time when the run began.
    pub clock: (&'a Clock, f64),
    pub events: &'a dyn Events,
    /// Index of this part of the run, and the remaining time of all parts.
    pub turns: (usize, &'a Turns),
}

/// Trains all parts of a run, exports, measures and reports.
///
/// # Errors
/// The error that ended the run.
pub(super) fn first(
    firsts: &[First<'_>],
    device: Device,
    logs: Vec<MetricsWriter>,
    events: &dyn Events,
) -> Result<RunOutcome> {
    let alone = device.mesh.grid().ranks() == 1;
    let parts: Vec<&RankInputs<'_>> = firsts.iter().map(|one| one.shared).collect();
    let (rebuilds, mut gaps, mut all_sinks) = (rebuilds(&parts), Vec::new(), Vec::new());
    let mut runs = open_runs(&parts, &rebuilds, (&device, logs), events, &mut |index, trainer, log| {
        firsts[index].say_model(trainer, log)?;
        gaps.push(firsts[index].gap(trainer, alone, log)?);
        Ok(())
    })?;
    for (one, run) in firsts.iter().zip(&runs) {
        all_sinks.push(sinks::open(one.shared.job, one.say_resumed(run))?);
    }
    let mut watches: Vec<Watch<'_>> = firsts
        .iter()
        .zip(&mut all_sinks)
        .map(|(one, sinks)| one.watch(alone, sinks))
        .collect::<Result<_>>()?;
    for ((run, watch), gap) in runs.iter_mut().zip(&mut watches).zip(&mut gaps) {
        measure_before(run, watch, gap.as_mut())?;
    }
    let mut hooks: Vec<&mut dyn Hooks> = watches.iter_mut().map(|watch| watch as &mut dyn Hooks).collect();
    let outcome = together(&mut runs, &mut hooks)?;
    drop(watches);
    events.on(heard::Event::Trained);
    let mut trained = RunOutcome::without_report(outcome);
    let ended = firsts.iter().zip(runs).zip(&mut all_sinks).zip(&gaps);
    for (((one, run), sinks), gap) in ended {
        let progress = run.progress().clone();
        if outcome == Outcome::Interrupted {
            let step = progress.step;
            one.events.line(&format!("saved at step {step}; run the same command again to go on"));
            continue;
        }
        let unsaved = run.nothing_saved().map(str::to_owned);
        let (trainer, mut metrics) = run.finish();
        if let Some(gap) = gap {
            gap.ends(&trainer, progress.step, &mut metrics)?;
        }
        one.with_and_without_neighbours(&trainer, alone, progress.step, &mut metrics)?;
        let report = one.finish(trainer, metrics, sinks, &progress)?;
        sinks.end()?;
        if one.shared.job.is_one_of_several() {
            let (adapter, page) = (one.shared.job.adapter(), report.page.display());
            let what = format!(
                "{}; the adapter is {}, its report {page}",
                human::counted(progress.step, "step"),
                adapter.display()
            );
            one.events.line(&what);
        } else {
            trained.report = Some(report);
        }
        trained.unsaved = trained.unsaved.or(unsaved);
    }
    Ok(trained)
}

/// Makes the measurements before the first step of a run on one rank.
fn measure_before(run: &mut Run<'_>, watch: &mut Watch<'_>, gap: Option<&mut Gap<'_>>) -> Result<()> {
    for when in [When::First, When::Before] {
        if run.progress().step == 0 && watch.measures && when.done(watch.recipe) == Some(0) {
            run.before(&mut |trainer, metrics| watch.measure(trainer.view(), when, 0, metrics).map(drop))?;
        }
    }
    if let Some(gap) = gap {
        run.before(&mut |trainer, metrics| {
            gap.rounds(trainer, metrics).map_err(|error| fathom_train::Error::Hook(error.into()))
        })?;
    }
    Ok(())
}

impl<'a> First<'a> {
    /// Logs the model, if the log does not have it yet.
    fn say_model(&self, trainer: &Trainer, metrics: &mut MetricsWriter) -> Result<()> {
        let all = trainer.model.weights.iter().map(|weight| (weight.shape[0] * weight.shape[1]) as u64);
        let init = moments::first_weights(self.shared.job.recipe());
        metrics.write_once(&Event::Model(report::model_event(&trainer.model.spec, all.sum(), init)))?;
        Ok(())
    }

    /// Prepares the measurement of what rounding costs.
    fn gap(&self, trainer: &Trainer, alone: bool, metrics: &mut MetricsWriter) -> Result<Option<Gap<'a>>> {
        let RankInputs { job, stores, .. } = *self.shared;
        let mut gap = Gap::of(job, (self.tokenizer, stores), self.aside(), alone);
        if let Some(gap) = &mut gap {
            gap.begins(trainer, metrics)?;
        }
        Ok(gap)
    }

    /// Returns the handler of optional work.
    pub(super) fn aside(&self) -> Aside<'a> {
        Aside { events: self.events, stop: self.shared.stop }
    }

    /// Reports the step after which the run resumes, if any, and returns it.
    fn say_resumed(&self, run: &Run<'_>) -> u64 {
        let steps_done = run.progress().step;
        if steps_done > 0 {
            self.events.line(&format!("resumed after step {steps_done}"));
            self.warn_of_lost_steps(steps_done);
        }
        steps_done
    }

    /// Warns if the log ends before the step after which the run resumes, because it was emptied or truncated.
    fn warn_of_lost_steps(&self, steps_done: u64) {
        let log = self.shared.job.log();
        let step = |event| match Event::from_value(event) {
            Some(Event::Step(step)) => Some(step.step),
            _ => None,
        };
        let last = read_events(&log).unwrap_or_default().iter().filter_map(step).max().unwrap_or(0);
        if last < steps_done {
            self.events.warn(&format!(
                "{}: has no line of the steps {} to {steps_done}, which the checkpoint has; the model is whole, and the report lacks them",
                log.display(),
                last + 1
            ));
        }
    }

    /// Exports the model and writes the report of a run whose stages are done.
    fn finish(
        &self,
        trainer: Trainer,
        mut metrics: MetricsWriter,
        sinks: &mut Sinks,
        progress: &Progress,
    ) -> Result<Report> {
        let job = self.shared.job;
        let alone = trainer.device.mesh.grid().ranks() == 1;
        // Frees the optimizer state first: a single rank may lack the memory for that of all ranks.
        let mut trained = trainer.into_model();
        if job.recipe().rl.has_values() {
            // Only training uses the value head; its weight is the last.
            trained.model.spec.scores = 0;
        }
        // The same holds for projections of hidden states.
        trained.model.spec.projections = None;
        self.shared.stores.claim(job.recipe(), &mut trained.model.spec)?;
        if alone {
            export::whole(job, trained.view())?;
        } else {
            drop(trained);
            export::of_ranks(job, progress.step, self.events)?;
            let Some(whole) = self.measure_saved(&job.machine.open()?, progress.step, sinks, &mut metrics)?
            else {
                return self.end(metrics, progress);
            };
            trained = whole;
        }
        let subject = Subject { of: trained.view(), tokenizer: self.tokenizer, stores: self.shared.stores };
        // A model with a head of scores generates no text, nor does one that reads neighbours.
        let spec = &subject.of.model.spec;
        let writes = spec.scores == 0 && spec.retrieval.is_none();
        let sample = if writes {
            let by = self.shared.time.map(Timetable::end);
            self.aside().attempt(&trained.device, || sample(&subject, progress.step, by.as_ref()))?.flatten()
        } else {
            None
        };
        if let Some(sample) = sample {
            metrics.write(&Event::Sample(sample))?;
        }
        self.end(metrics, progress)
    }

    /// Measures a run on several ranks, none of which has room for a whole model during training: the checkpoint before
    /// the extension, and the exported model, which is returned; `None` if there is no room for it.
    fn measure_saved(
        &self,
        device: &Device,
        step: u64,
        sinks: &mut Sinks,
        metrics: &mut MetricsWriter,
    ) -> Result<Option<LoadedModel>> {
        let (job, events) = (self.shared.job, self.events);
        let mut watch = self.watch(true, sinks)?;
        if job.recipe().eval.enabled {
            let before = self.aside().attempt(device, || self.saved_before(device))?;
            if let Some((step, whole)) = before.flatten() {
                watch.measure(whole.view(), When::Before, step, metrics)?;
            }
        }
        let whole = self.aside().attempt(device, || match (&job.trained.adapter, job.start()?) {
            (Some(_), Some(base)) => {
                let dtype = job.recipe().model.precision.dtype();
                models::load_with(device, &base, Some(&job.adapter()), Some(dtype), events)
            }
            _ => models::load(device, &job.model(), None, events),
        })?;
        if let Some(whole) = &whole {
            watch.measure(whole.view(), When::After, step, metrics)?;
        }
        Ok(whole)
    }

    /// Loads the model before its extension, with its step: the one that the run started from, or the checkpoint after
    /// the second last stage.
    fn saved_before(&self, device: &Device) -> Result<Option<(u64, LoadedModel)>> {
        let (job, recipe) = (self.shared.job, self.shared.job.recipe());
        let stages = When::Before.done(recipe);
        if let (Some(0), Some(from)) = (stages, job.start()?) {
            let dtype = recipe.model.precision.dtype();
            return Ok(Some((0, models::load(device, &from, Some(dtype), self.events)?)));
        }
        let saved = stages.and_then(|stages| Checkpoints::new(&job.checkpoints(), 1).after(stages));
        saved.map(|(step, folder)| Ok((step, load_checkpoint(device, &folder, self.events)?))).transpose()
    }

    /// Returns the observer of a run; it measures if a whole model is available.
    ///
    /// # Errors
    /// Those of [`ruler`].
    fn watch<'b>(&'b self, whole: bool, sinks: &'b mut Sinks) -> Result<Watch<'b>> {
        let RankInputs { job, stores, time, .. } = *self.shared;
        let recipe = job.recipe();
        let measures = whole && recipe.eval.enabled;
        Ok(Watch {
            recipe,
            tokenizer: self.tokenizer,
            stores,
            measures,
            ruler: ruler(recipe, self.tokenizer)?,
            time,
            clock: self.clock.0,
            trained_tokens: trained_tokens(job),
            ahead: Ahead::new(recipe, self.flops, measures),
            turns: self.turns,
            aside: self.aside(),
            sinks,
        })
    }

    /// Writes the last event and the report.
    fn end(&self, mut metrics: MetricsWriter, progress: &Progress) -> Result<Report> {
        let job = self.shared.job;
        metrics.write(&Event::Done(events::RunEnd {
            step: progress.step,
            time_s: self.seconds(),
            tokens_total: progress.tokens,
            peak_rss_bytes: rss::peak_bytes().unwrap_or(0),
            model_path: if job.trained.adapter.is_some() { FOLDER } else { "model" }.into(),
            given_s: job.recipe().run.minutes.unwrap_or(0.0) * 60.0,
        }))?;
        metrics.sync()?;
        let page = job.page();
        let log = report::write(&job.folder, &page)?;
        Ok(Report { log, page, seconds: self.seconds() })
    }

    /// Returns the seconds since the run began.
    fn seconds(&self) -> f64 {
        let (clock, began_s) = self.clock;
        clock.now_s() - began_s
    }
}

/// Returns the length of the longest sequence that the run has trained on so far, in tokens.
fn trained_tokens(job: &Job) -> usize {
    let events = read_events(job.log()).unwrap_or_default();
    let lengths = events.iter().filter_map(|event| match Event::from_value(event)? {
        Event::Step(step) => Some(job.recipe().stage.get(step.stage as usize)?.seq_tokens),
        _ => None,
    });
    lengths.max().unwrap_or(0)
}
