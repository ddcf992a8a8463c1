//! What is shown of a run while it goes on, and what is measured between its stages and at its end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fathom_base::Flow;
use fathom_base::metrics::{MetricsWriter, events};
use fathom_engine::Error as Engine;
use fathom_eval::Moment;
use fathom_report::tensorboard::EventFile;
use fathom_tensor::{Device, GivenUp, OutOfMemory};
use fathom_text::Tokenizer;
use fathom_train::recipe::Recipe;
use fathom_train::{Hooks, Settled, Stores, Trainer};

use super::moments;
use super::time::{Ahead, Turns};
use crate::error::{Error, Result};
use crate::events::{Event, Events};
use crate::measure::{Extent, OnDevice, Subject, measure};
use crate::report::unix_s;

/// What a run does besides its steps, and goes on without.
#[derive(Clone, Copy)]
pub(super) struct Aside<'a> {
    /// Hear what is left out.
    pub events: &'a dyn Events,
    /// Set to give it up.
    pub stop: &'a Arc<AtomicBool>,
}

impl Aside<'_> {
    /// What is measured may need more memory than training did: a model of many ranks on one of them, keys and values of the longest
    /// prompt. Then it is left out, and the run goes on; as where the model gives no numbers any more, which its losses tell, and where
    /// the run is to save and stop, which does not wait.
    pub fn attempt<T>(&self, device: &Device, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _revocable = device.pool.revocable(self.stop);
        // Weights are only looked at, and what work took is given back when it unwinds.
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Err(error)) if gives_no_numbers(&error) => self.leave_out(&error.to_string()),
            Ok(done) => done.map(Some),
            Err(panic) if panic.is::<OutOfMemory>() => self.leave_out(
                "there is no room for it next to what is in memory; `fathom eval` can do it later",
            ),
            Err(panic) if panic.is::<GivenUp>() => self.leave_out("the run was asked to stop"),
            Err(panic) => resume_unwind(panic),
        }
    }

    fn leave_out<T>(&self, why: &str) -> Result<Option<T>> {
        self.events.warn(&format!("not measured: {why}"));
        Ok(None)
    }
}

/// Whether a model failed because it computes NaN or infinity.
fn gives_no_numbers(error: &Error) -> bool {
    let own = |error: &Engine| matches!(error, Engine::NotFinite { .. });
    let base = |error: &fathom_base::Error| match error {
        fathom_base::Error::Product(product) => product.downcast_ref().is_some_and(own),
        _ => false,
    };
    match error {
        Error::Eval(fathom_eval::Error::Model(error)) | Error::Base(error) => base(error),
        Error::Engine(error) => own(error),
        _ => false,
    }
}

/// Shows steps and measures after stages.
pub(super) struct Watch<'a> {
    pub recipe: &'a Recipe,
    pub tokenizer: &'a Tokenizer,
    pub stores: &'a Stores,
    /// A whole model is at hand, and to be measured.
    pub measures: bool,
    /// Seconds of a timed run for a measurement.
    pub measure_s: Option<f64>,
    /// When the last measurement of one has to be over.
    pub measured_by: Option<Instant>,
    /// Seconds that the last measurement took.
    pub took_s: Option<f64>,
    /// What is still to come.
    pub ahead: Ahead,
    /// Who it is of those that take turns, and what these have before them.
    pub turns: (usize, &'a Turns),
    /// Hears of the run while it goes on, and gives up what it does besides.
    pub aside: Aside<'a>,
    /// Shows it in TensorBoard.
    pub board: &'a mut Option<EventFile>,
}

impl Watch<'_> {
    /// Measures up to the run's longest sequence; stops where that was given up.
    pub fn measure(
        &mut self,
        of: OnDevice<'_>,
        when: &str,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> fathom_train::Result<Flow> {
        if !self.measures {
            return Ok(Flow::Continue);
        }
        let stages = &self.recipe.stage;
        let tokens = stages.iter().map(|stage| stage.seq_tokens).max().unwrap_or(2048);
        let context = stages[stages.len().saturating_sub(2)].seq_tokens.min(tokens);
        let moment = Moment { when: when.into(), step, trained_tokens: of.model.spec.max_positions as u64 };
        let extent = Extent { moment, tokens, context, seconds: self.seconds(when) };
        let subject = Subject { of, tokenizer: self.tokenizer, stores: self.stores };
        self.aside.events.doing(&format!("measuring {}", when.replace('_', " ")));
        let started = Instant::now();
        let measured = self
            .aside
            .attempt(of.device, || measure(&subject, self.recipe, &extent, metrics))
            .map_err(|error| fathom_train::Error::Hook(error.into()))?;
        let took_s = started.elapsed().as_secs_f64();
        self.took_s = Some(took_s);
        self.ahead.measure_s = took_s;
        let stopped = self.aside.stop.load(Ordering::Relaxed);
        let Some(figures) = measured else {
            return Ok(if stopped { Flow::Stop } else { Flow::Continue });
        };
        if let (Some(file), Some(bits)) = (self.board.as_mut(), &figures.bits) {
            file.bits(unix_s(), &bits.to_event(&format!("held-out, {when}"), &extent.moment))?;
        }
        self.aside.events.on(Event::Measured { when, figures: &figures, context_tokens: context });
        Ok(Flow::Continue)
    }

    /// Seconds of a timed run for a measurement: the last one has what is left, where that is less than it was given.
    fn seconds(&self, when: &str) -> Option<f64> {
        let given_s = self.measure_s?;
        let by = self.measured_by.filter(|_| when != moments::names(self.recipe)[0]);
        let left_s = by.map_or(given_s, |by| by.saturating_duration_since(Instant::now()).as_secs_f64());
        Some(left_s.clamp(given_s / 4.0, given_s))
    }
}

impl Hooks for Watch<'_> {
    fn warn(&mut self, text: &str) {
        self.aside.events.warn(text);
    }

    fn stage(&mut self, stage: &events::Stage, settled: &Settled) {
        self.aside.events.on(Event::Stage { stage, settled });
    }

    fn step(
        &mut self,
        step: &events::Step,
        stage_step: u64,
        stage_steps: Option<u64>,
    ) -> fathom_train::Result<()> {
        let own_s = self.ahead.after(step.stage as usize, step.step_s);
        let left = stage_steps.map_or(0, |steps| steps.saturating_sub(stage_step));
        let (index, turns) = self.turns;
        let later_s = own_s + turns.of_others(index, own_s + left as f64 * step.step_s);
        self.aside.events.on(Event::Step { step, of_stage: stage_step, stage_steps, later_s });
        match self.board.as_mut() {
            Some(file) => Ok(file.step(unix_s(), step)?),
            None => Ok(()),
        }
    }

    /// The measurement before the extension shows how long the one after it will take: what is more than was given is taken from the
    /// steps between them.
    fn aside_s(&self, index: usize) -> f64 {
        let (Some(given_s), Some(before)) = (self.measure_s, moments::before(self.recipe)) else {
            return 0.0;
        };
        let more_s = (self.took_s.unwrap_or(0.0) - given_s).max(0.0);
        match before {
            done if done == index + 1 => given_s - more_s,
            // It was measured before there was any step.
            0 if index == 0 => -2.0 * more_s,
            _ => 0.0,
        }
    }

    fn stage_done(
        &mut self,
        trainer: &Trainer,
        index: usize,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> fathom_train::Result<Flow> {
        let [before, after] = moments::names(self.recipe);
        let when = match index + 1 {
            done if moments::before(self.recipe) == Some(done) => before,
            done if self.recipe.stage.len() == done => after,
            _ => return Ok(Flow::Continue),
        };
        self.measure(trainer.into(), when, step, metrics)
    }
}

#[cfg(test)]
mod tests {
    use fathom_tensor::{Category, DType, Meta, Profile};

    use super::*;
    use crate::events::Silent;

    #[test]
    fn what_finds_no_room_or_is_given_up_is_left_out() {
        let device = Device::new(Arc::new(Meta::new(Profile::portable(1))), 1 << 20);
        let (events, stop) = (Silent, Arc::new(AtomicBool::new(false)));
        let aside = Aside { events: &events, stop: &stop };
        let ask = |bytes: usize| {
            let work = || Ok(device.empty(1, bytes, DType::U8, Category::Data).cols());
            aside.attempt(&device, work).unwrap()
        };
        assert_eq!([ask(1 << 10), ask(2 << 20), ask(1 << 20)], [Some(1 << 10), None, Some(1 << 20)]);
        let no_numbers = || Engine::NotFinite { what: "a loss" };
        let wrapped = || fathom_eval::Error::Model(fathom_base::Error::product(no_numbers()));
        let fail = |error: Error| aside.attempt(&device, || -> Result<()> { Err(error) });
        for error in [no_numbers().into(), fathom_base::Error::product(no_numbers()).into(), wrapped().into()]
        {
            assert!(fail(error).unwrap().is_none());
        }
        assert!(fail(Engine::Empty.into()).is_err());
        let other = || aside.attempt(&device, || -> Result<()> { panic!("out of memory: in a text alone") });
        assert!(catch_unwind(AssertUnwindSafe(other)).is_err());
        stop.store(true, Ordering::Relaxed);
        assert_eq!(ask(1 << 10), None);
    }
}
