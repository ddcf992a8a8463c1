//! Other tools' formats: the scalars of a run, written while it goes on.
//!
//! | sink | files | key |
//! |---|---|---|
//! | [`EventFile`] | `tensorboard/events.out.tfevents.*` | `run.tensorboard` |
//! | [`wandb::OfflineRun`] | `wandb/offline-run-*/run-*.wandb` | `run.wandb` |
//! | [`Lines`] | `trackio.jsonl` | `run.trackio` |
//!
//! Sinks of servers are made by who has a client; a [`Sink`] is all they need.

mod lines;
pub mod wandb;

use fathom_base::metrics::events::{EvalBits, Step};

pub use lines::Lines;

use crate::error::Result;
use crate::tensorboard::EventFile;

/// Receives scalars.
pub trait Sink: Send {
    /// Takes scalars of one step. `wall_s` is in seconds since 1970.
    ///
    /// # Errors
    /// A file that cannot be written.
    fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> Result<()>;

    /// Ends a run that has come to its end.
    ///
    /// # Errors
    /// A file that cannot be written.
    fn end(&mut self) -> Result<()>;
}

impl Sink for EventFile {
    fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> Result<()> {
        EventFile::scalars(self, step, wall_s, scalars)
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// All sinks of a run.
#[derive(Default)]
pub struct Sinks(Vec<Box<dyn Sink>>);

impl Sinks {
    /// Adds a sink.
    pub fn add(&mut self, sink: impl Sink + 'static) {
        self.0.push(Box::new(sink));
    }

    /// Writes a training step under fixed names.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn step(&mut self, wall_s: f64, step: &Step) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut scalars = vec![
            ("train/loss", step.loss),
            ("train/lr", step.lr),
            ("train/grad_norm", step.grad_norm),
            ("train/tokens_total", step.tokens_total as f64),
            ("perf/tokens_per_s", step.tokens_per_s),
            ("perf/model_tflops", step.model_tflops),
            ("perf/step_s", step.step_s),
            ("perf/data_wait_s", step.data_wait_s),
            ("mem/pool_peak_bytes", step.pool_peak_bytes as f64),
            ("mem/rss_bytes", step.rss_bytes as f64),
        ];
        if step.expert_load > 0.0 {
            scalars.push(("train/expert_load", step.expert_load));
        }
        let named: Vec<(String, f64)> =
            step.metrics.iter().map(|(name, value)| (format!("objective/{name}"), *value)).collect();
        scalars.extend(named.iter().map(|(name, value)| (name.as_str(), *value)));
        self.scalars(step.step, wall_s, &scalars)
    }

    /// Writes bits per byte of a text under a name with that of the text.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn bits(&mut self, wall_s: f64, bits: &EvalBits) -> Result<()> {
        let name = format!("val/bits_per_byte/{}", bits.name);
        self.scalars(bits.step, wall_s, &[(&name, bits.bits_per_byte)])
    }

    /// Ends a run that has come to its end.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn end(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(|sink| sink.end())
    }

    fn scalars(&mut self, step: u64, wall_s: f64, scalars: &[(&str, f64)]) -> Result<()> {
        self.0.iter_mut().try_for_each(|sink| sink.scalars(step, wall_s, scalars))
    }
}

#[cfg(test)]
mod tests;
