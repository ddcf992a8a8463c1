//! Facts of a run, from its log line by line.

use std::collections::BTreeMap;

use fathom_base::metrics::{Event, events as ev};
use fathom_base::recipe::Row;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::series::{Series, StepFacts};

/// Samples of a run that are kept, the newest.
const SAMPLES: usize = 6;
/// Letters of a sample that are kept.
const SAMPLE_LETTERS: usize = 2000;
/// Kinds of events that are read; others are skipped without being parsed.
const READ: [&str; 15] = [
    "run",
    "data",
    "model",
    "plan",
    "stage",
    "eval_position",
    "eval_bits",
    "eval_answers",
    "sample",
    "checkpoint",
    "resume",
    "memory_timeline",
    "ranks",
    "recovery",
    "done",
];

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its log has grown lately.
    Running,
    /// Finished.
    Finished,
    /// Unfinished, and its log does not grow.
    Stopped,
}

/// Facts of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Name in the log.
    pub name: String,
    /// Version of Fathom.
    pub version: String,
    /// Command.
    pub command: String,
    /// Start, in seconds since 1970.
    pub start_unix_s: u64,
    /// The recipe.
    pub recipe: Vec<Row>,
    /// Processor.
    pub cpu: String,
    /// Family of the model.
    pub family: String,
    /// Parameters.
    pub params: u64,
    /// Tokens of the text.
    pub text_tokens: u64,
    /// Steps of all stages so far, where they are fixed.
    pub planned_steps: u64,
    /// Peak bytes of the largest planned stage.
    pub planned_peak_bytes: u64,
    /// The last step.
    pub last: Option<StepFacts>,
    /// Peak bytes of any step.
    pub peak_bytes: u64,
    /// Held-out figures by name: the last of each.
    pub figures: BTreeMap<String, f64>,
    /// Generated texts: completed updates, prompt, text.
    pub samples: Vec<(u64, String, String)>,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Resumes.
    pub resumes: u64,
    /// Whether it has come to its end.
    pub finished: bool,
    /// Memory along a step of the latest stage that was measured.
    pub timeline: Option<ev::MemoryTimeline>,
    /// Latest speeds of the ranks.
    pub ranks: Option<ev::Ranks>,
    /// Failures of ranks that the run has survived.
    pub recoveries: u64,
    /// Stages so far, by index.
    pub stages: BTreeMap<u64, ev::Stage>,
}

/// Kind of an event, from the beginning of its line.
fn kind(line: &[u8]) -> Option<&str> {
    let rest = line.strip_prefix(b"{\"event\":\"")?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}

impl Facts {
    /// Reads a line; steps also go into a series. Unreadable lines are skipped.
    pub fn read(&mut self, line: &[u8], series: &mut Series) {
        match kind(line) {
            Some("step") => {
                if let Ok(step) = serde_json::from_slice::<StepFacts>(line) {
                    series.push(&step);
                    self.peak_bytes = self.peak_bytes.max(step.pool_peak_bytes);
                    self.last = Some(step);
                }
            }
            Some(kind) if READ.contains(&kind) => {
                let event = serde_json::from_slice::<Value>(line).ok();
                if let Some(event) = event.as_ref().and_then(Event::from_value) {
                    self.add(event);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::Run(run) => {
                (self.name, self.version, self.command) = (run.name, run.version, run.command);
                (self.start_unix_s, self.recipe, self.cpu) = (run.start_unix_s, run.recipe, run.machine.cpu);
            }
            Event::Data(data) => self.text_tokens = data.tokens,
            Event::Model(model) => (self.family, self.params) = (model.family, model.params),
            Event::Plan(plan) => self.planned_peak_bytes = self.planned_peak_bytes.max(plan.peak_live_bytes),
            Event::Stage(stage) => {
                self.stages.insert(stage.index, stage);
                self.planned_steps =
                    self.stages.values().fold(0, |sum, stage| sum.saturating_add(stage.steps));
            }
            Event::EvalPosition(eval) => self.position(&eval),
            Event::EvalBits(bits) => self.figure("bits per byte", bits.bits_per_byte),
            Event::EvalAnswers(eval) => {
                self.figure("held-out loss", eval.loss);
                self.figure("token accuracy", eval.token_accuracy);
            }
            Event::Sample(sample) => self.sample(sample),
            Event::Checkpoint(_) => self.checkpoints += 1,
            Event::Resume(_) => self.resumes += 1,
            Event::MemoryTimeline(timeline) => self.timeline = Some(timeline),
            Event::Ranks(ranks) => self.ranks = Some(ranks),
            Event::Recovery(_) => self.recoveries += 1,
            Event::Done(_) => self.finished = true,
            _ => {}
        }
    }

    fn position(&mut self, eval: &ev::EvalPosition) {
        let buckets = eval.buckets.iter().filter(|bucket| bucket.loss.is_finite());
        let (sum, tokens) = buckets.fold((0.0, 0.0), |(sum, tokens), bucket| {
            (sum + bucket.loss * bucket.tokens as f64, tokens + bucket.tokens as f64)
        });
        self.figure("held-out loss", sum / tokens);
    }

    fn figure(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.figures.insert(name.into(), value);
        }
    }

    fn sample(&mut self, sample: ev::Sample) {
        let short = |text: String| text.chars().take(SAMPLE_LETTERS).collect::<String>();
        self.samples.retain(|(step, prompt, _)| (*step, prompt) != (sample.step, &sample.prompt));
        self.samples.push((sample.step, short(sample.prompt), short(sample.text)));
        if self.samples.len() > SAMPLES {
            self.samples.remove(0);
        }
    }

    /// Value of a recipe key.
    pub fn recipe_value(&self, key: &str) -> Option<&str> {
        self.recipe.iter().find(|row| row.path == key).map(|row| row.value.as_str())
    }
}
