//! Log of a run, sorted by kind of event.

use std::path::Path;

use fathom_base::metrics::{Event, events as ev, read_events};
use serde_json::Value;

use crate::error::Result;

/// All events of a log, sorted by kind. If something is reported twice (an evaluation repeated after a resume, a step
/// repeated after a kill), the later report is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunLog {
    /// Start of the run.
    pub run: Option<ev::Run>,
    /// Training data.
    pub data: Option<ev::Data>,
    /// Model.
    pub model: Option<ev::Model>,
    /// Plans, one per stage.
    pub plans: Vec<ev::Plan>,
    /// Stages in order.
    pub stages: Vec<ev::Stage>,
    /// Steps in ascending order.
    pub steps: Vec<ev::Step>,
    /// Measured memory timelines, one per stage.
    pub timelines: Vec<ev::MemoryTimeline>,
    /// Planned memory timelines, one per stage.
    pub planned: Vec<ev::MemoryTimeline>,
    /// Placements of activations, one per stage.
    pub placements: Vec<ev::Placement>,
    /// Memory and time by sequence length, for stages that have it.
    pub lengths: Vec<ev::Lengths>,
    /// Pipeline timelines: one planned and one measured per stage.
    pub pipelines: Vec<ev::Pipeline>,
    /// Loss by position, one per evaluation.
    pub positions: Vec<ev::EvalPosition>,
    /// Benefit of a long context, one per evaluation.
    pub contexts: Vec<ev::EvalContext>,
    /// Bits per byte, one per text.
    pub bits: Vec<ev::EvalBits>,
    /// Needle grids, one per evaluation and task.
    pub needles: Vec<ev::Needle>,
    /// RULER's tasks, one table per evaluation.
    pub rulers: Vec<ev::EvalRuler>,
    /// Samples, one per step and prompt.
    pub samples: Vec<ev::Sample>,
    /// Answers of a policy, one list per rollout.
    pub rollouts: Vec<ev::Rollout>,
    /// Example lesson.
    pub lesson: Option<ev::Lesson>,
    /// Results on held-out lessons.
    pub answers: Vec<ev::EvalAnswers>,
    /// Checkpoints.
    pub checkpoints: Vec<ev::Checkpoint>,
    /// Resumes.
    pub resumes: Vec<ev::Resume>,
    /// Speed of ranks.
    pub ranks: Vec<ev::Ranks>,
    /// Failures of ranks from which the run recovered.
    pub recoveries: Vec<ev::Recovery>,
    /// End of the run, if it has ended.
    pub done: Option<ev::RunEnd>,
}

impl RunLog {
    /// Reads `metrics.jsonl`, or the file of that name in a run's folder.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if a line before the last is not a JSON object.
    pub fn read(path: impl AsRef<Path>) -> Result<RunLog> {
        let path = path.as_ref();
        let file = if path.is_dir() { path.join("metrics.jsonl") } else { path.to_path_buf() };
        Ok(RunLog::from_events(&read_events(file)?))
    }

    /// Sorts events; unknown kinds are ignored.
    pub fn from_events(events: &[Value]) -> RunLog {
        let mut log = RunLog::default();
        for event in events.iter().filter_map(Event::from_value) {
            log.add(event);
        }
        log.stages.sort_by_key(|stage| stage.index);
        log.steps.sort_by_key(|step| step.step);
        log
    }

    /// Adds one event, replacing an earlier report of the same thing.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Run(run) => self.run = Some(run),
            Event::Data(data) => self.data = Some(data),
            Event::Model(model) => self.model = Some(model),
            Event::Done(done) => self.done = Some(done),
            Event::Resume(resume) => self.resumes.push(resume),
            Event::Ranks(ranks) => {
                // The same rule as for steps below.
                while self.ranks.last().is_some_and(|last| last.step >= ranks.step) {
                    self.ranks.pop();
                }
                self.ranks.push(ranks);
            }
            Event::Recovery(recovery) => self.recoveries.push(recovery),
            Event::Checkpoint(checkpoint) => self.checkpoints.push(checkpoint),
            Event::Step(step) => {
                // Only the end of the list can repeat, so long logs take linear time.
                while self.steps.last().is_some_and(|last| last.step >= step.step) {
                    self.steps.pop();
                }
                self.steps.push(step);
            }
            Event::Plan(plan) => put(&mut self.plans, plan, |a, b| a.stage == b.stage),
            Event::Stage(stage) => put(&mut self.stages, stage, |a, b| a.index == b.index),
            Event::MemoryTimeline(line) => put(&mut self.timelines, line, |a, b| a.stage == b.stage),
            Event::PlanTimeline(line) => put(&mut self.planned, line, |a, b| a.stage == b.stage),
            Event::Placement(map) => put(&mut self.placements, map, |a, b| a.stage == b.stage),
            Event::Lengths(lengths) => put(&mut self.lengths, lengths, |a, b| a.stage == b.stage),
            Event::Pipeline(pipeline) => {
                put(&mut self.pipelines, pipeline, |a, b| {
                    a.stage == b.stage && a.step.is_some() == b.step.is_some()
                });
            }
            Event::EvalPosition(eval) => put(&mut self.positions, eval, |a, b| a.when == b.when),
            Event::EvalContext(eval) => put(&mut self.contexts, eval, |a, b| a.when == b.when),
            Event::EvalBits(bits) => put(&mut self.bits, bits, |a, b| a.name == b.name),
            Event::Needle(needle) => {
                put(&mut self.needles, needle, |a, b| a.when == b.when && a.task == b.task)
            }
            Event::EvalRuler(eval) => put(&mut self.rulers, eval, |a, b| a.when == b.when),
            Event::Rollout(rollout) => put(&mut self.rollouts, rollout, |a, b| a.step == b.step),
            Event::Lesson(lesson) => self.lesson = Some(lesson),
            Event::EvalAnswers(eval) => put(&mut self.answers, eval, |a, b| a.when == b.when),
            Event::Sample(sample) => {
                put(&mut self.samples, sample, |a, b| a.step == b.step && a.prompt == b.prompt)
            }
        }
    }

    /// Returns the run's name, or `run` if it has none.
    pub fn name(&self) -> &str {
        self.run.as_ref().map(|run| run.name.as_str()).filter(|name| !name.is_empty()).unwrap_or("run")
    }

    /// Returns whether the log is that of a plan, without any step.
    pub fn is_plan(&self) -> bool {
        self.steps.is_empty() && self.done.is_none() && self.data.is_none() && !self.plans.is_empty()
    }

    /// Returns the number of ranks in the recipe.
    pub fn num_ranks(&self) -> u64 {
        let rows = self.run.iter().flat_map(|run| &run.recipe);
        let axes =
            rows.filter(|row| ["mesh.tp", "mesh.cp", "mesh.dp", "mesh.pp"].contains(&row.path.as_str()));
        axes.filter_map(|row| row.value.parse::<u64>().ok()).fold(1, u64::saturating_mul)
    }

    /// Returns the time spent training so far, in seconds.
    pub fn train_time_s(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.time_s)
    }

    /// Tokens that the run has trained on and those that its figures need, where it has fewer.
    pub fn too_few_tokens(&self) -> Option<[u64; 2]> {
        let least = self.run.as_ref()?.least_tokens;
        let trained = self.steps.last().map_or(0, |step| step.tokens_total);
        (trained < least).then_some([trained, least])
    }

    /// Returns the longest sequence length of any stage that was trained or, for a plan, planned, in tokens.
    pub fn longest_tokens(&self) -> Option<u64> {
        let made = |stage: &&ev::Stage| self.steps.iter().any(|step| step.stage == stage.index);
        self.stages
            .iter()
            .filter(|stage| self.is_plan() || made(stage))
            .map(|stage| stage.seq_len_tokens)
            .max()
    }

    /// Returns the share of the tokens so far that come from synthetic look-up drills.
    pub fn drill_share(&self) -> f64 {
        let (mut drilled, mut before) = (0.0, 0);
        for step in &self.steps {
            let share = self.stages.iter().find(|stage| stage.index == step.stage);
            let tokens = step.tokens_total.saturating_sub(before) as f64;
            drilled += tokens * share.map_or(0.0, |stage| stage.drill_share);
            before = step.tokens_total;
        }
        drilled / before.max(1) as f64
    }

    /// Returns the needle grid before the first step, and the last grid after it.
    pub fn needle_before_and_after(&self) -> [Option<&ev::Needle>; 2] {
        let is_first = |needle: &&ev::Needle| needle.when == "first_weights";
        [self.needles.iter().find(is_first), self.needles.iter().rev().find(|needle| !is_first(needle))]
    }

    /// Returns the length before the extension, in tokens: that of the model as it was measured then, or of the stage before the
    /// last; that of the only stage if there is just one.
    pub fn short_tokens(&self) -> Option<u64> {
        let extended = self.positions.first().filter(|eval| eval.when == "before_extension");
        if let Some(eval) = extended.filter(|eval| eval.trained_tokens > 0) {
            return Some(eval.trained_tokens);
        }
        self.stages
            .iter()
            .rev()
            .nth(1)
            .or(self.stages.first())
            .map(|stage| stage.seq_len_tokens)
            .filter(|tokens| *tokens > 0)
    }
}

fn put<T>(list: &mut Vec<T>, item: T, same: impl Fn(&T, &T) -> bool) {
    match list.iter_mut().find(|old| same(old, &item)) {
        Some(old) => *old = item,
        None => list.push(item),
    }
}
