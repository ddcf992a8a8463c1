//! Faults that happen before a step, when its micro-batches are requested; those within the step are prepared here.

use std::sync::Arc;

use fathom_text::loader::Cursor;

use super::injector::Injector;
use crate::error::Result;
use crate::micro_batch::MicroBatch;
use crate::recipe::Recipe;
use crate::source::{OpenedSource, Source, SourceReport, Sources, StepShare};
use crate::step::Trainer;

/// Wraps the sources of a run.
pub(super) fn around<'a>(inner: Box<dyn Sources + 'a>, injector: &Arc<Injector>) -> Box<dyn Sources + 'a> {
    Box::new(FaultySources { inner, injector: injector.clone() })
}

struct FaultySources<'a> {
    inner: Box<dyn Sources + 'a>,
    injector: Arc<Injector>,
}

impl Sources for FaultySources<'_> {
    fn open(&self, recipe: &Recipe, index: usize, share: StepShare, cursor: Option<&Cursor>) -> OpenedSource {
        let inner = self.inner.open(recipe, index, share, cursor)?;
        Ok(Box::new(FaultySource { inner, injector: self.injector.clone() }))
    }

    fn steps(&self, recipe: &Recipe, index: usize) -> Result<Option<u64>> {
        self.inner.steps(recipe, index)
    }

    fn round(&self, recipe: &Recipe) -> u64 {
        self.inner.round(recipe)
    }

    fn drill_share(&self, recipe: &Recipe, index: usize) -> Result<f64> {
        self.inner.drill_share(recipe, index)
    }
}

struct FaultySource {
    inner: Box<dyn Source>,
    injector: Arc<Injector>,
}

impl Source for FaultySource {
    fn step(&mut self, policy: &Trainer) -> Result<Vec<MicroBatch>> {
        let micro_batches = self.inner.step(policy)?;
        self.injector.before_step(policy);
        Ok(micro_batches)
    }

    fn cursor(&self) -> &Cursor {
        self.inner.cursor()
    }

    fn wait_s(&self) -> f64 {
        self.inner.wait_s()
    }

    fn reported(&mut self) -> SourceReport {
        self.inner.reported()
    }
}
