//! Progress of a running job, and measurements between its stages and at its end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fathom_base::Flow;
use fathom_base::clock::Clock;
use fathom_base::metrics::{MetricsWriter, events};
use fathom_engine::Error as Engine;
use fathom_eval::Moment;
use fathom_eval::lengths::Ruler;
use fathom_model::ModelView;
use fathom_report::sinks::Sinks;
use fathom_tensor::{Device, GivenUp, OutOfMemory};
use fathom_text::Tokenizer;
use fathom_train::recipe::Recipe;
use fathom_train::{Hooks, StageSettings, Stores, Trainer};

use super::time::{Ahead, Timetable, Turns, When};
use crate::error::{Error, Result};
use crate::events::{Event, Events};
use crate::measure::{Extent, Parts, Subject, measure};
use crate::report::unix_s;

/// Optional work of a run, which the run can continue without.
#[derive(Clone, Copy)]
pub(super) struct Aside<'a> {
    /// Receives warnings about skipped work.
    pub events: &'a dyn Events,
    /// Set to give up the work.
    pub stop: &'a Arc<AtomicBool>,
}

impl Aside<'_> {
    /// Attempts optional work; `None` if it was skipped. It may need more memory than training did, such as a model of
    /// many ranks on one of them, or keys and values of the longest prompt. It is also skipped if the model computes
    /// NaN or infinity, which its losses show, and if the run is to save and stop, which does not wait.
    pub fn attempt<T>(&self, device: &Device, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _revocable = device.pool.revocable(self.stop);
        // The weights are only read, and unwinding releases what the work took.
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

/// Returns whether a model failed because it computes NaN or infinity.
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

/// Reports steps and measures after stages.
pub(super) struct Watch<'a> {
    pub recipe: &'a Recipe,
    pub tokenizer: &'a Tokenizer,
    pub stores: &'a Stores,
    /// Set if a whole model is available and is to be measured.
    pub measures: bool,
    /// RULER's tasks.
    pub ruler: Option<Ruler>,
    /// Timetable of a timed run.
    pub time: Option<&'a Timetable>,
    /// Clock of the run.
    pub clock: &'a Clock,
    /// Length of the longest sequence that was trained on, in tokens.
    pub trained_tokens: usize,
    /// Remaining work of an untimed run.
    pub ahead: Ahead,
    /// Index of this model among those that take turns, and their remaining time.
    pub turns: (usize, &'a Turns),
    /// Listener, and the handler of optional work.
    pub aside: Aside<'a>,
    /// Formats of other tools.
    pub sinks: &'a mut Sinks,
}

impl Watch<'_> {
    /// Measures up to the run's longest sequence; returns [`Flow::Stop`] if the measurement was given up to stop the
    /// run.
    pub fn measure(
        &mut self,
        of: ModelView<'_>,
        when: When,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> fathom_train::Result<Flow> {
        if !self.measures {
            return Ok(Flow::Continue);
        }
        let stages = &self.recipe.stage;
        let tokens = stages.iter().map(|stage| stage.seq_tokens).max().unwrap_or(2048);
        let context = stages[stages.len().saturating_sub(2)].seq_tokens.min(tokens);
        let (parts, name) =
            (if when == When::First { Parts::Needles } else { Parts::All }, when.name(self.recipe));
        // A loaded model was trained up to the length that it declares.
        let read = self.recipe.model.from.is_some();
        let done = when.done(self.recipe).unwrap_or(stages.len());
        let longest = stages[..done].iter().map(|stage| stage.seq_tokens).max().unwrap_or(0);
        // On several ranks, models of earlier moments are measured once all stages are done.
        let trained_tokens =
            if read { of.model.spec.max_positions } else { longest.min(self.trained_tokens) };
        let moment = Moment { when: name.into(), step, trained_tokens: trained_tokens as u64 };
        let deadline = self.time.map(|time| time.measure_until(when));
        let extent = Extent { moment, tokens, context, deadline, parts };
        let subject = Subject { of, tokenizer: self.tokenizer, stores: self.stores };
        self.aside.events.doing(&format!("measuring {}", name.replace('_', " ")));
        let began_s = self.clock.now_s();
        let doing = |task: &str| self.aside.events.doing(&format!("measuring {task}"));
        let ruler = self.ruler.as_ref().map(|ruler| (ruler, &doing as &dyn Fn(&str)));
        let measured = self
            .aside
            .attempt(of.device, || measure(&subject, self.recipe, &extent, ruler, metrics))
            .map_err(|error| fathom_train::Error::Hook(error.into()))?;
        self.ahead.measure_s = self.clock.now_s() - began_s;
        let stopped = self.aside.stop.load(Ordering::Relaxed);
        let Some(figures) = measured else {
            return Ok(if stopped { Flow::Stop } else { Flow::Continue });
        };
        if let Some(bits) = &figures.bits {
            self.sinks.bits(unix_s(), &bits.to_event(&format!("held-out, {name}"), &extent.moment))?;
        }
        self.aside.events.on(Event::Measured {
            when: name.to_string(),
            figures: Box::new(figures),
            context_tokens: context,
        });
        Ok(Flow::Continue)
    }
}

impl Hooks for Watch<'_> {
    fn warn(&mut self, text: &str) {
        self.aside.events.warn(text);
    }

    fn stage(&mut self, stage: &events::Stage, settled: &StageSettings) {
        self.aside
            .events
            .on(Event::Stage { stage: Box::new(stage.clone()), settings: Arc::new(settled.clone()) });
    }

    fn step(
        &mut self,
        step: &events::Step,
        stage_step: u64,
        stage_steps: Option<u64>,
    ) -> fathom_train::Result<()> {
        let (stage, step_s) = (step.stage as usize, step.step_s);
        let seq_tokens = self.recipe.stage.get(stage).map_or(0, |stage| stage.seq_tokens);
        self.trained_tokens = self.trained_tokens.max(seq_tokens);
        let left_s = stage_steps.map_or(0, |steps| steps.saturating_sub(stage_step)) as f64 * step_s;
        let later_s = match self.time {
            Some(time) => {
                time.made(stage, step_s);
                (time.end().left_s() - left_s).max(0.0)
            }
            None => {
                let (own_s, (index, turns)) = (self.ahead.after(stage, step_s), self.turns);
                own_s + turns.of_others(index, own_s + left_s)
            }
        };
        self.aside.events.on(Event::Step {
            step: Box::new(step.clone()),
            of_stage: stage_step,
            stage_steps,
            later_s,
        });
        Ok(self.sinks.step(unix_s(), step)?)
    }

    fn stage_done(
        &mut self,
        trainer: &Trainer,
        index: usize,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> fathom_train::Result<Flow> {
        let is_now = |when: &When| when.done(self.recipe) == Some(index + 1);
        let Some(when) = [When::Before, When::After].into_iter().find(is_now) else {
            return Ok(Flow::Continue);
        };
        self.measure(trainer.view(), when, step, metrics)
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
