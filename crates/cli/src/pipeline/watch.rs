//! What is shown of a run while it goes on, and what is measured between its stages and at its end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use anyhow::Result;
use fathom_base::human;
use fathom_base::metrics::{MetricsWriter, events};
use fathom_eval::Moment;
use fathom_report::tensorboard::EventFile;
use fathom_tensor::OutOfMemory;
use fathom_text::Tokenizer;
use fathom_train::recipe::Recipe;
use fathom_train::{Hooks, Settled, Stores, Trainer};

use super::unix_s;
use crate::live::Live;
use crate::measure::{Extent, OnDevice, Subject, measure};
use crate::{choices, describe};

/// When the first measurement is.
pub(super) const BEFORE: &str = "before_extension";

/// What is measured may need more memory than training did: a model of many ranks on one of them, keys and values of the longest
/// prompt. Then it is left out, and the run goes on.
pub(super) fn if_there_is_room<T>(live: &Live, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    // Weights are only looked at, and what work took is given back when it unwinds.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map(Some),
        Err(panic) if panic.is::<OutOfMemory>() => {
            live.say("warning: not measured: there is no room for it beside what is in memory; `fathom eval` can do it later");
            Ok(None)
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Shows steps and measures after stages.
pub(super) struct Watch<'a> {
    pub recipe: &'a Recipe,
    pub live: &'a mut Live,
    pub tokenizer: &'a Tokenizer,
    pub stores: &'a Stores,
    /// A whole model is at hand, and to be measured.
    pub measures: bool,
    pub measure_s: Option<f64>,
    /// Shows the run while it goes on.
    pub tensorboard: &'a mut Option<EventFile>,
}

impl Watch<'_> {
    /// Measures up to the run's longest sequence.
    pub fn measure(
        &mut self,
        of: OnDevice<'_>,
        when: &str,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> fathom_train::Result<()> {
        if !self.measures {
            return Ok(());
        }
        let stages = &self.recipe.stage;
        let tokens = stages.iter().map(|stage| stage.seq_tokens).max().unwrap_or(2048);
        let context = stages[stages.len().saturating_sub(2)].seq_tokens.min(tokens);
        let moment = Moment { when: when.into(), step, trained_tokens: of.model.spec.max_positions as u64 };
        let extent = Extent { moment, tokens, context, seconds: self.measure_s };
        let subject = Subject { of, tokenizer: self.tokenizer, stores: self.stores };
        self.live.note(&format!("measuring {}", when.replace('_', " ")));
        let measured = if_there_is_room(self.live, || measure(&subject, self.recipe, &extent, metrics))
            .map_err(|error| fathom_train::Error::Hook(error.into()))?;
        let Some(figures) = measured else { return Ok(()) };
        if let (Some(file), Some(bits)) = (self.tensorboard.as_mut(), &figures.bits) {
            file.bits(unix_s(), &bits.to_event(&format!("held-out, {when}"), &extent.moment))?;
        }
        self.live.say(&format!("{}: {}", when.replace('_', " "), describe::figures(&figures, context)));
        Ok(())
    }
}

impl Hooks for Watch<'_> {
    fn warn(&mut self, text: &str) {
        self.live.say(&format!("warning: {text}"));
    }

    fn stage(&mut self, stage: &events::Stage, settled: &Settled) {
        self.live.later_s = self.measure_s.unwrap_or(0.0);
        self.live.say(&format!(
            "stage {}: {} tokens, {}; planned peak {}",
            stage.name,
            human::grouped(stage.seq_len_tokens),
            stage.rope,
            human::bytes(settled.plan.usage.peak_live)
        ));
        if let Some(solution) = &settled.solution {
            self.live.say(&format!("places of activations by the plan:\n{}", choices::table(solution)));
        }
        self.live.stage(stage);
    }

    fn step(
        &mut self,
        step: &events::Step,
        stage_step: u64,
        stage_steps: Option<u64>,
    ) -> fathom_train::Result<()> {
        self.live.step(step, stage_step, stage_steps);
        match self.tensorboard.as_mut() {
            Some(file) => Ok(file.step(unix_s(), step)?),
            None => Ok(()),
        }
    }

    fn stage_done(
        &mut self,
        trainer: &Trainer,
        index: usize,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> fathom_train::Result<()> {
        let when = match index + 1 {
            done if describe::before(self.recipe) == Some(done) => BEFORE,
            done if self.recipe.stage.len() == done => describe::after(self.recipe),
            _ => return Ok(()),
        };
        self.measure(trainer.into(), when, step, metrics)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_tensor::{Category, DType, Device, Meta, Profile};

    use super::*;

    #[test]
    fn what_finds_no_room_is_left_out() {
        let device = Device::new(Arc::new(Meta::new(Profile::portable(1))), 1 << 20);
        let live = Live::new();
        let ask = |bytes: usize| {
            let work = || Ok(device.empty(1, bytes, DType::U8, Category::Data).cols());
            if_there_is_room(&live, work).unwrap()
        };
        assert_eq!([ask(1 << 10), ask(2 << 20), ask(1 << 20)], [Some(1 << 10), None, Some(1 << 20)]);
        let other = || if_there_is_room(&live, || -> Result<()> { panic!("out of memory: in a text alone") });
        assert!(catch_unwind(AssertUnwindSafe(other)).is_err());
    }
}
