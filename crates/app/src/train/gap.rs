//! What rounding costs a run that trains rounded projections (`precision.qat`): bits per byte of the same held-out text as the run began,
//! once its weights were rounded and nothing was trained, and after the last step.

use fathom_base::metrics::{Event, MetricsWriter, read_events};
use fathom_eval::Moment;
use fathom_model::ModelView;
use fathom_tensor::DType;
use fathom_text::Tokenizer;
use fathom_train::recipe::{QatName, Recipe};
use fathom_train::{Checkpoints, Stores, Trainer};

use super::watch::Aside;
use crate::error::Result;
use crate::job::Job;
use crate::measure::{Subject, some_bits};

/// Longest context.
const CONTEXT: usize = 2048;

/// What measures it.
pub(super) struct Gap<'a> {
    recipe: &'a Recipe,
    tokenizer: &'a Tokenizer,
    stores: &'a Stores,
    aside: Aside<'a>,
    /// Bits per byte before rounding, and with weights that were rounded and not trained.
    plain: Option<f64>,
    rounded: Option<f64>,
}

impl<'a> Gap<'a> {
    /// Of a run on one rank that has not started, or measured what rounding costs when it did, has no limit of time and measures; `None` of others.
    pub fn of(
        job: &'a Job,
        (tokenizer, stores): (&'a Tokenizer, &'a Stores),
        aside: Aside<'a>,
        alone: bool,
    ) -> Option<Gap<'a>> {
        let recipe = job.recipe();
        let rounds = recipe.precision.qat != QatName::None;
        let measures = alone && recipe.eval.enabled && recipe.run.minutes.is_none();
        let begins = || Checkpoints::new(&job.checkpoints(), 1).latest().is_none();
        if !(rounds && measures) {
            return None;
        }
        // One that goes on has what it measured before its first step.
        let [plain, rounded] =
            if begins() { [None; 2] } else { ["before rounding", "rounded"].map(|when| logged(job, when)) };
        (plain.is_some() && rounded.is_some() || begins()).then_some(Gap {
            recipe,
            tokenizer,
            stores,
            aside,
            plain,
            rounded,
        })
    }

    /// Measures a model as it was read, if that is not known.
    pub fn begins(&mut self, trainer: &Trainer, metrics: &mut MetricsWriter) -> Result<()> {
        if self.plain.is_some() {
            return Ok(());
        }
        self.plain = self.measure(trainer.view(), ("before rounding", 0), metrics)?;
        Ok(())
    }

    /// Measures it with its weights rounded, before the first step, and says what plain rounding costs.
    pub fn rounds(&mut self, trainer: &Trainer, metrics: &mut MetricsWriter) -> Result<()> {
        let (Some(plain), None) = (self.plain, self.rounded) else { return Ok(()) };
        self.rounded = self.measure(trainer.view(), ("rounded", 0), metrics)?;
        let Some(rounded) = self.rounded else { return Ok(()) };
        let (qat, cost) = (self.recipe.precision.qat, rounded - plain);
        self.aside.events.line(&format!(
            "{qat}: held-out text takes {plain:.4} bits a byte, and {rounded:.4} with the weights rounded ({cost:+.4})"
        ));
        Ok(())
    }

    /// Measures it as it was trained, and says what is left of the cost.
    pub fn ends(&self, trainer: &Trainer, step: u64, metrics: &mut MetricsWriter) -> Result<()> {
        let (Some(plain), Some(rounded)) = (self.plain, self.rounded) else { return Ok(()) };
        let when = ("rounded and trained", step);
        let Some(trained) = self.measure(trainer.view(), when, metrics)? else { return Ok(()) };
        let (qat, cost) = (self.recipe.precision.qat, trained - rounded);
        self.aside.events.line(&format!(
            "{qat}: held-out text takes {trained:.4} bits a byte with the rounded weights as they were trained ({cost:+.4} since they \
             were rounded, {:+.4} since before)",
            trained - plain
        ));
        Ok(())
    }

    /// Bits per byte of a model; `None` where there is no text or no room, or it was given up.
    fn measure(
        &self,
        of: ModelView<'_>,
        (when, step): (&str, u64),
        metrics: &mut MetricsWriter,
    ) -> Result<Option<f64>> {
        let writes = of.model.spec.scores == 0 && of.model.dtype(of.params) == DType::Bf16;
        if !writes {
            return Ok(None);
        }
        let longest = self.recipe.stage.iter().map(|stage| stage.seq_tokens).max().unwrap_or(CONTEXT);
        let subject = Subject { of, tokenizer: self.tokenizer, stores: self.stores };
        self.aside.events.doing("measuring what rounding costs");
        let extent = [self.recipe.eval.tokens, longest.clamp(2, CONTEXT)];
        let bits = self.aside.attempt(of.device, || some_bits(&subject, extent))?;
        let Some(bits) = bits.flatten() else { return Ok(None) };
        let moment = Moment { when: when.into(), step, trained_tokens: 0 };
        metrics.write(&Event::EvalBits(bits.to_event(&format!("held-out, {when}"), &moment)))?;
        Ok(Some(bits.bits_per_byte))
    }
}

/// Bits per byte that a run's log has of a moment before its first step.
fn logged(job: &Job, when: &str) -> Option<f64> {
    let name = format!("held-out, {when}");
    read_events(job.log()).ok()?.iter().find_map(|event| match Event::from_value(event)? {
        Event::EvalBits(bits) if bits.name == name => Some(bits.bits_per_byte),
        _ => None,
    })
}
