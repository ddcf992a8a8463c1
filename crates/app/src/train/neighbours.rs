//! Measurement of a model that reads neighbours of its text, at the end of a run: held-out text with them and without.

use std::f64::consts::LN_2;

use fathom_base::human;
use fathom_base::metrics::{Event, MetricsWriter, events};
use fathom_train::Trainer;
use fathom_train::recipe::MethodName;
use fathom_train::retrieval::held_out_losses;

use super::first::First;
use crate::error::Result;

impl First<'_> {
    /// Reports the perplexity of held-out text with neighbours and without, of a run on one rank.
    pub(super) fn with_and_without_neighbours(
        &self,
        trainer: &Trainer,
        alone: bool,
        step: u64,
        metrics: &mut MetricsWriter,
    ) -> Result<()> {
        let (job, stores) = (self.shared.job, self.shared.stores);
        let (recipe, last) = (job.recipe(), job.stages.len() - 1);
        if recipe.objective.method != MethodName::Retro {
            return Ok(());
        }
        if !alone {
            self.events.line("perplexity with and without neighbours is measured by runs on one rank");
            return Ok(());
        }
        self.events.doing("measuring held-out text with and without neighbours");
        let stage = (last, &job.stages[last].how);
        let measure = || Ok(held_out_losses(trainer.view(), stores, recipe, stage)?);
        let Some(losses) = self.aside().attempt(&trainer.device, measure)?.flatten() else { return Ok(()) };
        let [with, without] = losses.perplexities();
        let tokens = human::counted(losses.tokens, "held-out token");
        self.events.line(&format!("perplexity of {tokens}: {with:.4} with neighbours, {without:.4} without"));
        let [_, _, bytes, _] = stores.held_out_text()?;
        let names = ["held-out, with neighbours", "held-out, without neighbours"];
        // The last is the one that a summary has.
        for (name, sum) in names.into_iter().zip(losses.sums).rev() {
            let event = events::EvalBits {
                name: name.into(),
                step,
                bits_per_byte: sum / LN_2 / bytes.max(1) as f64,
                gzip_bits_per_byte: f64::NAN,
                bytes,
                context_tokens: recipe.stage[last].seq_tokens as u64,
            };
            metrics.write(&Event::EvalBits(event))?;
        }
        Ok(())
    }
}
