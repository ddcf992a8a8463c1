//! Events that show a plan in the report: memory along the step, places of the activations, and the needs at other
//! lengths and with other places. Every figure is planned; nothing is estimated.

use fathom_base::metrics::{Event, events};
use fathom_grad::{Place, Places};
use fathom_model::Caps;

use crate::activations::placement_event;
use crate::error::Result;
use crate::in_step::InStep;
use crate::plan::Workload;
use crate::plan::{Plan, Record};
use crate::recipe::Recipe;
use crate::timeline;

/// The step of a stage.
#[derive(Clone)]
pub struct Subject<'a> {
    /// Name of the stage.
    pub stage: &'a str,
    /// The stage's step.
    pub work: Workload<'a>,
}

/// Exponents of the powers of two by which the planned lengths differ from the stage's.
const AROUND: std::ops::RangeInclusive<i32> = -3..=3;
/// Limits of the planned lengths.
const WITHIN: std::ops::RangeInclusive<usize> = 128..=4 << 20;

impl Subject<'_> {
    /// The plan, the memory along a step, and the places, for the log; also the number of points that a recording of a
    /// whole step would have. `step` is the number of updates done before.
    ///
    /// # Errors
    /// Those of [`Workload::run`].
    pub fn events(&self, plan: &Plan, step: u64) -> Result<(Vec<Event>, usize)> {
        let Workload { profile, how, micro_batches, tokens, .. } = &self.work;
        let marks = self.work.run(Record::Timeline)?.1;
        let points = marks.len() * micro_batches.div_ceil(timeline::SHOWN);
        let timeline = events::MemoryTimeline {
            stage: self.stage.to_string(),
            step,
            micro_batches: *micro_batches as u64,
            planned_peak_bytes: plan.usage.peak_live,
            ..timeline::of(marks)
        };
        let segments = self.work.activations();
        let events = vec![
            Event::Plan(plan_event(self.stage, &profile.name, plan)),
            Event::PlanTimeline(timeline),
            Event::Placement(placement_event(self.stage, &how.places, tokens / how.ranks.grid.cp, &segments)),
        ];
        Ok((events, points))
    }

    /// Needs of this stage's step at other lengths, with its own places and with alternatives.
    ///
    /// # Errors
    /// Those of [`Workload::run`].
    pub fn lengths(&self, budget_bytes: u64) -> Result<events::Lengths> {
        let how = &self.work.how;
        let seq_tokens = how.caps.seq_tokens;
        let samples = self.work.tokens / seq_tokens.max(1);
        let lengths: Vec<usize> = AROUND
            .map(|power| (seq_tokens as f64 * 2f64.powi(power)) as usize)
            .filter(|tokens| *tokens == seq_tokens || WITHIN.contains(tokens))
            .collect();
        let line = |(name, places): (String, Places)| -> Result<events::LengthLine> {
            let points = lengths.iter().map(|seq_tokens| {
                let caps = Caps { seq_tokens: *seq_tokens, ..how.caps };
                let mut work = self.work.clone();
                work.how = InStep { places: places.clone(), caps, ..how.clone() };
                work.tokens = seq_tokens * samples.max(1);
                let plan = work.plan()?;
                Ok(events::LengthPoint {
                    tokens: *seq_tokens as u64,
                    step_tokens: plan.tokens,
                    peak_bytes: plan.usage.peak_reserved,
                    disk_bytes: plan.disk_peak_bytes,
                    step_s: plan.step_s(),
                })
            });
            Ok(events::LengthLine { name, points: points.collect::<Result<_>>()? })
        };
        let lines = self.alternatives().into_iter().map(line).collect::<Result<_>>()?;
        Ok(events::Lengths { stage: self.stage.to_string(), tokens: seq_tokens as u64, budget_bytes, lines })
    }

    /// Tables of places to compare, by name; this stage's own is the first.
    fn alternatives(&self) -> Vec<(String, Places)> {
        let own = &self.work.how.places;
        let mut tables =
            vec![("none", Places::none()), ("linear", Places::linear()), ("full", Places::full())];
        tables.push(("none, all on disk", Places::none().offload_all(Place::Disk)));
        tables.push(("full, inputs on disk", Places::full().offload_all(Place::Disk)));
        let mut tables: Vec<(String, Places)> = tables
            .into_iter()
            .map(|(name, places)| {
                (name.to_string(), places.with_tiles(own.tile_rows).with_head_groups(own.head_groups))
            })
            .collect();
        match tables.iter().position(|(_, places)| places == own) {
            Some(at) => {
                let (name, places) = tables.remove(at);
                tables.insert(0, (format!("{name} (this stage)"), places));
            }
            None => tables.insert(0, ("this stage".to_string(), own.clone())),
        }
        tables
    }
}

/// The stage with the longest sequences; the last of several.
pub fn longest_stage(recipe: &Recipe) -> Option<usize> {
    (0..recipe.stage.len()).max_by_key(|index| recipe.stage[*index].seq_tokens)
}

fn plan_event(stage: &str, profile: &str, plan: &Plan) -> events::Plan {
    let by_category =
        plan.usage.peak_by_category.iter().map(|(category, bytes)| (category.name().to_string(), bytes));
    events::Plan {
        stage: stage.to_string(),
        profile: profile.to_string(),
        peak_live_bytes: plan.usage.peak_live,
        peak_reserved_bytes: plan.usage.peak_reserved,
        by_category: by_category.collect(),
        peak_op: plan.usage.peak_op.clone(),
        step_flops: plan.model_flops as f64,
        hardware_flops: plan.hardware_flops as f64,
        disk_peak_bytes: plan.disk_peak_bytes,
        disk_bytes: plan.disk_bytes,
        step_s: plan.step_s(),
    }
}
