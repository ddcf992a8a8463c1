//! The step of each stage that is looked at closely: memory along it, and a trace where one is wanted; and the plan
//! as an event.

use std::time::Instant;

use fathom_base::metrics::{Event, events};
use fathom_report::trace::{self, TraceWriter};
use fathom_tensor::{Category, Mark};

use super::{Run, Running};
use crate::error::Result;
use crate::plan::Plan;

/// Points of a memory timeline.
const TIMELINE_POINTS: usize = 600;

impl Run<'_> {
    pub(super) fn timeline(&mut self, running: &Running) -> Result<()> {
        let marks = thin(self.trainer.device.pool.recorded(), TIMELINE_POINTS);
        let label = |mark: &Mark| match mark.layer {
            -1 => mark.op.to_string(),
            layer => format!("layer {layer} {}", mark.op),
        };
        let event = events::MemoryTimeline {
            step: self.progress.step + 1,
            stage: self.recipe.stage[running.index].name.clone(),
            categories: Category::ALL.iter().map(|category| category.name().to_string()).collect(),
            labels: marks.iter().map(label).collect(),
            live_bytes: (0..10)
                .map(|category| marks.iter().map(|mark| mark.by_category[category]).collect())
                .collect(),
            planned_peak_bytes: running.planned_peak,
        };
        Ok(self.metrics.write(&Event::MemoryTimeline(event))?)
    }

    pub(super) fn trace(&self, index: usize, begun: Instant, spans: &[fathom_grad::Span]) -> Result<()> {
        let path = self.folder.join(format!("trace-{}.json", self.recipe.stage[index].name));
        let mut trace = TraceWriter::create(&path)?;
        for span in spans {
            let start_us = span.start.saturating_duration_since(begun).as_secs_f64() * 1e6;
            let (name, duration_us) = (span.name.clone(), span.seconds * 1e6);
            let args = vec![("layer".to_string(), span.layer.into())];
            trace.span(&trace::Span { name, start_us, duration_us, args, ..trace::Span::default() })?;
        }
        trace.finish()?;
        Ok(())
    }
}

/// At most about `points` marks: of each run of neighbours the one with the most live bytes, so that peaks survive.
fn thin(marks: Vec<Mark>, points: usize) -> Vec<Mark> {
    let width = marks.len().div_ceil(points).max(1);
    let live = |mark: &&Mark| mark.by_category.iter().sum::<u64>();
    marks.chunks(width).filter_map(|chunk| chunk.iter().max_by_key(live).cloned()).collect()
}

pub(super) fn plan_event(stage: &str, plan: &Plan) -> events::Plan {
    let by_category =
        Category::ALL.iter().zip(plan.usage.peak_by_category).map(|(c, bytes)| (c.name().to_string(), bytes));
    events::Plan {
        stage: stage.to_string(),
        peak_live_bytes: plan.usage.peak_live,
        peak_reserved_bytes: plan.usage.peak_reserved,
        by_category: by_category.collect(),
        step_flops: plan.model_flops as f64,
    }
}
