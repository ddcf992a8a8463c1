//! Cost of rounding in a run that trains rounded projections (`precision.qat`), in bits per byte on the same held-out
//! text: at the start, after rounding the weights without training, and after the last step.

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

/// Maximum context, in tokens.
const CONTEXT: usize = 2048;

/// Measures the cost of rounding.
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
    /// Prepares the measurement for a run on one rank with evaluation and without a time limit, which has not started
    /// or has measured the cost at its start; `None` for other runs.
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
        // A resumed run reads the figures measured before its first step.
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

    /// Measures the model as loaded, unless that is known.
    pub fn begins(&mut self, trainer: &Trainer, metrics: &mut MetricsWriter) -> Result<()> {
        if self.plain.is_some() {
            return Ok(());
        }
        self.plain = self.measure(trainer.view(), ("before rounding", 0), metrics)?;
        Ok(())
    }

    /// Measures the model with rounded weights before the first step, and reports the cost of plain rounding.
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

    /// Measures the trained model, and reports the remaining cost.
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

    /// Measures the bits per byte of a model; `None` without text or memory, or if the measurement was given up.
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

/// Returns the bits per byte that a run's log has for a moment before its first step.
fn logged(job: &Job, when: &str) -> Option<f64> {
    let name = format!("held-out, {when}");
    read_events(job.log()).ok()?.iter().find_map(|event| match Event::from_value(event)? {
        Event::EvalBits(bits) if bits.name == name => Some(bits.bits_per_byte),
        _ => None,
    })
}
