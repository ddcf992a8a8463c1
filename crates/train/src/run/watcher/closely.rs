//! Memory in the log: the plan at the beginning of a stage, and the actual use of the stage's second step. Also a trace
//! of that step, if wanted.

use std::time::Instant;

use fathom_base::metrics::{Event, events};
use fathom_report::trace::{self, Lanes, TraceWriter};
use fathom_tensor::spill;

use super::Watcher;
use crate::error::Result;
use crate::picture::{Subject, longest_stage};
use crate::plan::Plan;
use crate::step::Trainer;
use crate::timeline;

/// Maximum points of a recording, which is stored outside the pool.
const MOST_POINTS: usize = 200_000;

/// Stream of operations in a trace.
const COMPUTE: u64 = 0;
/// Stream of waits.
const WAITS: u64 = 1;
/// Stream of operations by the device's own clock.
const DEVICE: u64 = 2;
/// First stream of writes to disk; overlapping transfers have one each.
const SPILL: u64 = 100;
/// First stream of reads from disk.
const PREFETCH: u64 = 200;

impl Watcher<'_> {
    /// Logs the planned needs of a stage, on a device with a budget in bytes.
    pub fn foretell(
        &mut self,
        index: usize,
        subject: &Subject<'_>,
        plan: &Plan,
        step: u64,
        budget: u64,
    ) -> Result<()> {
        let (mut events, points) = subject.events(plan, step)?;
        if longest_stage(self.recipe) == Some(index) {
            events.push(Event::Lengths(subject.lengths(budget)?));
        }
        self.recordable = points <= MOST_POINTS;
        Ok(events.iter().try_for_each(|event| self.metrics.write(event))?)
    }

    /// Starts to record a step.
    pub(super) fn record(&self, trainer: &Trainer) {
        if self.recordable {
            trainer.device.pool.record();
        }
        if self.recipe.run.profile {
            trainer.spills().for_each(|spill| spill.record());
        }
    }

    /// Logs the memory of the recorded step.
    pub(super) fn timeline(&mut self, trainer: &Trainer, index: usize, step: u64) -> Result<()> {
        if !self.recordable {
            return Ok(());
        }
        let table = &self.recipe.stage[index];
        let event = events::MemoryTimeline {
            step,
            stage: table.name.clone(),
            micro_batches: table.micro_batches.max(1) as u64,
            planned_peak_bytes: self.planned.peak_live,
            ..timeline::of(trainer.device.pool.recorded())
        };
        Ok(self.metrics.write(&Event::MemoryTimeline(event))?)
    }

    /// Writes `trace-STAGE.json`: computations, disk transfers, and waits for them.
    pub(super) fn trace(
        &self,
        trainer: &Trainer,
        index: usize,
        started: Instant,
        spans: &[fathom_grad::Span],
    ) -> Result<()> {
        let name = self.recipe.stage[index].name.replace('/', "-");
        let mut trace = TraceWriter::create(self.folder.join(format!("trace-{name}.json")))?;
        trace.name_stream(0, COMPUTE, "compute")?;
        let micros = |at: Instant| at.saturating_duration_since(started).as_secs_f64() * 1e6;
        for span in spans {
            let (name, start_us, duration_us) = (span.name.clone(), micros(span.start), span.seconds * 1e6);
            let args = vec![("layer".to_string(), span.layer.into())];
            trace.span(&trace::Span { name, start_us, duration_us, args, ..trace::Span::default() })?;
        }
        // If operations are only issued by the host, the device's stamps tell when they ran.
        let moments = trainer.device.machine.stamps();
        let moment = |number: u64| moments.get(usize::try_from(number).ok()?).copied();
        let ran = spans.iter().filter_map(|span| {
            let [from, to] = span.stamps?;
            Some((span, moment(from)?, moment(to)?))
        });
        for (index, (span, from, to)) in ran.enumerate() {
            if index == 0 {
                trace.name_stream(0, DEVICE, "device")?;
            }
            let (name, stream, category) = (span.name.clone(), DEVICE, "device".to_string());
            let (start_us, duration_us) = (from * 1e6, (to - from) * 1e6);
            let args = vec![("layer".to_string(), span.layer.into())];
            trace.span(&trace::Span { name, category, stream, start_us, duration_us, args, rank: 0 })?;
        }
        let mut transfers: Vec<spill::Span> = trainer.spills().flat_map(|spill| spill.recorded()).collect();
        transfers.sort_by_key(|span| (span.began, span.ended));
        let mut lanes = [
            Lanes::new(0, WAITS, "waits for disk"),
            Lanes::new(0, SPILL, "spill"),
            Lanes::new(0, PREFETCH, "prefetch"),
        ];
        for span in transfers {
            let (lane, category) = match span.kind {
                spill::Kind::Stall => (0, "wait"),
                spill::Kind::Write => (1, "write"),
                spill::Kind::Read => (2, "read"),
            };
            let (start_us, end_us) = (micros(span.began), micros(span.ended));
            let mut args = vec![("layer".to_string(), span.tag.layer.into())];
            if span.bytes > 0 {
                args.push(("bytes".into(), span.bytes.into()));
                args.push(("queued_us".into(), (start_us - micros(span.issued)).into()));
            }
            let span = trace::Span {
                name: span.tag.name.to_string(),
                category: category.to_string(),
                start_us,
                duration_us: end_us - start_us,
                args,
                ..trace::Span::default()
            };
            lanes[lane].span(&mut trace, span)?;
        }
        trace.finish()?;
        Ok(())
    }
}
