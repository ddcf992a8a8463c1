//! The kinds of events in `metrics.jsonl`. Whoever writes or reads the log uses these types.
//!
//! A reader takes missing fields as their defaults and ignores unknown fields and events, so that old logs and
//! new readers get on. Real numbers that are not finite are written `null` and read as NaN. Where the same
//! thing is reported twice (an evaluation repeated after a resume), the later event counts.
//!
//! `step` is the number of finished updates: the first step of a run is step 1. `time_s` is time spent training
//! since the run began, pauses between a kill and its resume not included.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine_facts::MachineFacts;
use crate::recipe::Row;

/// One line of the log: `{"event":"step",...}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A run began.
    Run(Run),
    /// What text it trains on.
    Data(Data),
    /// A lesson that it learns from.
    Lesson(Lesson),
    /// What model it trains.
    Model(Model),
    /// What the plan says it needs.
    Plan(Plan),
    /// A stage began.
    Stage(Stage),
    /// A step ended.
    Step(Step),
    /// Memory along one step.
    MemoryTimeline(MemoryTimeline),
    /// Memory along one step, as planned.
    PlanTimeline(MemoryTimeline),
    /// Where a stage's activations live between forward and backward.
    Placement(Placement),
    /// Sequence length against memory and time.
    Lengths(Lengths),
    /// A step of all stages of a pipeline.
    Pipeline(Pipeline),
    /// Loss by position.
    EvalPosition(EvalPosition),
    /// The loss of the same tokens with a long context and with a short one.
    EvalContext(EvalContext),
    /// Bits per byte of a text.
    EvalBits(EvalBits),
    /// How the model answers held-out lessons.
    EvalAnswers(EvalAnswers),
    /// Finding a planted fact by length and depth.
    Needle(Needle),
    /// Text the model wrote.
    Sample(Sample),
    /// Answers of a policy and what they are worth.
    Rollout(Rollout),
    /// A checkpoint was published.
    Checkpoint(Checkpoint),
    /// The run went on from a checkpoint.
    Resume(Resume),
    /// How fast each rank is.
    Ranks(Ranks),
    /// A rank failed, and the run went back to a step that all ranks had.
    Recovery(Recovery),
    /// The run ended as it should.
    Done(Done),
}

impl Event {
    /// Reads an event of the log; `None` for a kind this version does not know.
    pub fn from_value(value: &Value) -> Option<Event> {
        Event::deserialize(value).ok()
    }
}

/// Whether a field says nothing.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

macro_rules! events {
    ($( $(#[doc = $about:literal])* struct $name:ident {
        $( $(#[doc = $doc:literal])* $(#[serde($($attr:tt)*)])? $field:ident : $type:ty ),* $(,)?
    } )*) => { $(
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $( $(#[doc = $doc])* $(#[serde($($attr)*)])? pub $field: $type, )*
        }
    )* };
}

mod memory;

pub use memory::*;

events! {
    /// A run began. Written once, also when the run is later resumed.
    struct Run {
        /// A short name, usually the recipe's.
        name: String,
        /// Version of Fathom.
        version: String,
        /// When it began, seconds since 1970 in UTC.
        start_unix_s: u64,
        /// The command as typed, without the folder of the executable.
        command: String,
        /// The resolved recipe.
        recipe: Vec<Row>,
        /// The machine.
        machine: MachineFacts,
        /// A figure that misses its bar is not judged before a run has trained on as many tokens; 0 where every figure is.
        least_tokens: u64,
    }

    /// What text a run trains on.
    struct Data {
        /// Documents kept for training.
        documents: u64,
        /// Their tokens.
        tokens: u64,
        /// Their bytes of text.
        bytes: u64,
        /// Documents dropped as exact copies of others.
        duplicate_documents: u64,
        /// Documents of the tokens above that were made by a program, as a share of tokens (0 to 1).
        #[serde(with = "nullable")]
        synthetic_share: f64,
        /// Documents kept out of training for evaluation.
        held_out_documents: u64,
        /// Where the text came from.
        sources: Vec<DataSource>,
        /// Size of the tokenizer's vocabulary.
        vocabulary: u64,
        /// Time to read, tokenise and store everything.
        #[serde(with = "nullable")]
        seconds: f64,
        /// What was not read or not kept, exact copies apart.
        dropped: Vec<DroppedText>,
        /// Of lessons: the tokens that are learned.
        #[serde(skip_serializing_if = "is_zero")]
        supervised_tokens: u64,
        /// The first damaged records: where they are and what is wrong with them.
        damage: Vec<String>,
    }

    /// A lesson that a run learns from, for people.
    struct Lesson {
        /// Its text in order, as far as it is shown.
        pieces: Vec<Piece>,
        /// Its tokens.
        tokens: u64,
        /// Those that are learned.
        supervised: u64,
        /// Tokens that were cut off.
        cut: u64,
    }

    /// A part of a lesson.
    struct Piece {
        /// It is learned; else it is context.
        learned: bool,
        /// Its text.
        text: String,
    }

    /// How a model answers held-out lessons.
    struct EvalAnswers {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Finished updates.
        step: u64,
        /// Mean loss of the learned tokens, in nats.
        #[serde(with = "nullable")]
        loss: f64,
        /// Share of the learned tokens that the model finds most likely.
        #[serde(with = "nullable")]
        token_accuracy: f64,
        /// Bits per byte of the learned text.
        #[serde(with = "nullable")]
        bits_per_byte: f64,
        /// Bits per byte of held-out text that is no lesson: what the lessons cost; 0 where it was not measured.
        #[serde(skip_serializing_if = "is_nothing")]
        text_bits_per_byte: f64,
        /// Tokens at the beginning of each of those texts that were scored.
        #[serde(skip_serializing_if = "is_zero")]
        text_context_tokens: u64,
        /// Learned tokens that were scored.
        tokens: u64,
        /// Lessons that were scored.
        lessons: u64,
    }

    /// Text that a run does not train on, for one reason.
    struct DroppedText {
        /// Why, in words.
        reason: String,
        /// Files or records, as far as they were counted.
        documents: u64,
        /// Their bytes as far as they are known: of files on disk, of records their text.
        bytes: u64,
    }

    /// One source of text.
    struct DataSource {
        /// Its name for people.
        name: String,
        /// Documents from it.
        documents: u64,
        /// Bytes of text from it.
        bytes: u64,
    }

    /// What model a run trains.
    struct Model {
        /// Family, e.g. `llama`.
        family: String,
        /// Parameters, tied ones once.
        params: u64,
        /// What its first weights are made of besides chance: `induction`, a circuit that copies.
        #[serde(skip_serializing_if = "String::is_empty")]
        init: String,
        /// Shapes and settings worth reading, in the order to show them: `layers`, `hidden`, ...
        config: Vec<NameValue>,
    }

    /// A named value for a table.
    struct NameValue {
        /// The name.
        name: String,
        /// The value as text.
        value: String,
    }

    /// A stage began. Written when its first step begins, not again when resumed inside it.
    struct Stage {
        /// Its name.
        name: String,
        /// Its place in the order, from 0.
        index: u64,
        /// Sequence length in tokens.
        seq_len_tokens: u64,
        /// Finished updates when it began.
        start_step: u64,
        /// Updates it will make.
        steps: u64,
        /// Position scaling in words, e.g. `yarn x16, base 500000`.
        rope: String,
        /// Share of its tokens that are made up to train looking up.
        #[serde(skip_serializing_if = "is_nothing")]
        drill_share: f64,
    }

    /// A step ended.
    struct Step {
        /// Finished updates.
        step: u64,
        /// Index of the stage.
        stage: u64,
        /// Tokens trained on so far.
        tokens_total: u64,
        /// Mean loss of the step's valid tokens, in nats.
        #[serde(with = "nullable")]
        loss: f64,
        /// The loss as `f32` bits, for exact comparison.
        loss_bits: u32,
        /// Learning rate of the update.
        #[serde(with = "nullable")]
        lr: f64,
        /// The same by TRL's name.
        #[serde(with = "nullable")]
        learning_rate: f64,
        /// `tokens_total` by TRL's name.
        num_tokens: u64,
        /// Global gradient norm before clipping.
        #[serde(with = "nullable")]
        grad_norm: f64,
        /// Tokens per second of this step.
        #[serde(with = "nullable")]
        tokens_per_s: f64,
        /// Causal-model TFLOP/s of this step: attention counted once under the causal mask, no recompute.
        #[serde(with = "nullable")]
        model_tflops: f64,
        /// Wall time of the step.
        #[serde(with = "nullable")]
        step_s: f64,
        /// Part of it spent waiting for data.
        #[serde(with = "nullable")]
        data_wait_s: f64,
        /// Part of it spent waiting for the disk behind memory.
        #[serde(with = "nullable")]
        stall_s: f64,
        /// Slots of the busiest expert over those of its layer's mean, of the layer where that is worst; 0 without experts.
        #[serde(with = "nullable")]
        expert_load: f64,
        /// What the objective measured, by name: means over the step.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        metrics: BTreeMap<String, f64>,
        /// The same next to the other keys, where scripts look for TRL's names; not read back.
        #[serde(flatten, skip_deserializing)]
        named: BTreeMap<String, f64>,
        /// Bytes written to that disk and read from it.
        spill_bytes: u64,
        /// The pool's highest live bytes in the step.
        pool_peak_bytes: u64,
        /// Anonymous resident bytes after the step.
        rss_bytes: u64,
        /// Time spent training since the run began.
        #[serde(with = "nullable")]
        time_s: f64,
    }

    /// Mean loss by position within a document.
    struct EvalPosition {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Finished updates.
        step: u64,
        /// Longest sequence the model was trained on by then.
        trained_tokens: u64,
        /// Ascending, not overlapping.
        buckets: Vec<PositionBucket>,
    }

    /// One bucket of positions: `from..to`, the end not included.
    struct PositionBucket {
        /// First position.
        from: u64,
        /// Position after the last.
        to: u64,
        /// Mean loss in nats.
        #[serde(with = "nullable")]
        loss: f64,
        /// Tokens that were scored.
        tokens: u64,
    }

    /// The loss of the same tokens with all of their context and with a part of it.
    struct EvalContext {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Finished updates.
        step: u64,
        /// Tokens of the longest context.
        full_tokens: u64,
        /// Tokens that the context was cut to, at most; half as many at least.
        cut_tokens: u64,
        /// Mean loss with the full context, in nats.
        #[serde(with = "nullable")]
        full_loss: f64,
        /// Mean loss of the same tokens with the cut one.
        #[serde(with = "nullable")]
        cut_loss: f64,
        /// Standard error of their difference.
        #[serde(with = "nullable")]
        standard_error: f64,
        /// Tokens that were scored.
        tokens: u64,
        /// Blocks of tokens by which differences were taken.
        blocks: u64,
    }

    /// How well the model compresses a text it has not seen.
    struct EvalBits {
        /// Which text.
        name: String,
        /// Finished updates.
        step: u64,
        /// The model's bits per byte of text.
        #[serde(with = "nullable")]
        bits_per_byte: f64,
        /// Those of `gzip -9` over the same bytes.
        #[serde(with = "nullable")]
        gzip_bits_per_byte: f64,
        /// Bytes of text scored.
        bytes: u64,
        /// The most tokens before a predicted one.
        context_tokens: u64,
    }

    /// Finding a planted fact. `accuracy[d][l]` belongs to `depths[d]` and `lengths_tokens[l]`.
    struct Needle {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Finished updates.
        step: u64,
        /// Kind of task, e.g. `passkey`.
        task: String,
        /// Lengths of the whole prompt, ascending.
        lengths_tokens: Vec<u64>,
        /// Depth of the fact: 0 is the beginning, 1 the end.
        depths: Vec<f64>,
        /// Share of trials answered right, 0 to 1.
        accuracy: Vec<Vec<f64>>,
        /// Trials per cell.
        trials: u64,
        /// Longest sequence the model was trained on by then.
        trained_tokens: u64,
    }

    /// Text the model wrote.
    struct Sample {
        /// Finished updates.
        step: u64,
        /// What it was given.
        prompt: String,
        /// What it wrote.
        text: String,
    }

    /// Answers that a policy wrote before a step, some of them.
    struct Rollout {
        /// The first update that they are learned in.
        step: u64,
        /// One of each group first.
        answers: Vec<RolledAnswer>,
    }

    /// An answer of a policy.
    struct RolledAnswer {
        /// What was asked.
        prompt: String,
        /// What it wrote, without what ends it.
        text: String,
        /// The weighted sum of its rewards.
        #[serde(with = "nullable")]
        reward: f64,
        /// Each of them by name.
        rewards: BTreeMap<String, f64>,
        /// Its tokens.
        tokens: u64,
        /// It ended by itself.
        ended: bool,
    }

    /// A checkpoint was published.
    struct Checkpoint {
        /// Finished updates in it.
        step: u64,
        /// Time from the request to the publication.
        #[serde(with = "nullable")]
        seconds: f64,
        /// Time the training thread stood still for it.
        #[serde(with = "nullable")]
        stall_s: f64,
        /// Bytes written.
        bytes: u64,
    }

    /// How fast each rank is, by the mean of its last steps without the time that it waited for others. Scores are 1 for the
    /// fastest, 0.5 for half its speed.
    struct Ranks {
        /// Finished updates.
        step: u64,
        /// Own seconds of a step.
        busy_s: Vec<f64>,
        /// Against the fastest rank of the same stage of the pipeline.
        relative: Vec<f64>,
        /// Against the rank's own best.
        individual: Vec<f64>,
    }

    /// A rank failed, and the run went back to a step that all ranks had.
    struct Recovery {
        /// Finished updates that it went back to.
        step: u64,
        /// From the moment when this rank noticed to the next step's beginning.
        #[serde(with = "nullable")]
        seconds: f64,
        /// Ranks that were restarted.
        lost: Vec<u64>,
        /// What failed.
        why: String,
    }

    /// The run went on from a checkpoint.
    struct Resume {
        /// Finished updates in the checkpoint.
        step: u64,
        /// When, seconds since 1970 in UTC.
        unix_s: u64,
    }

    /// The run ended as it should.
    struct Done {
        /// Finished updates.
        step: u64,
        /// Time of the whole run, evaluations included.
        #[serde(with = "nullable")]
        time_s: f64,
        /// Tokens trained on.
        tokens_total: u64,
        /// Highest resident bytes of the process.
        peak_rss_bytes: u64,
        /// Folder of the exported model, relative to the run.
        model_path: String,
        /// The time that the run was given; 0 where it was given none.
        #[serde(skip_serializing_if = "is_nothing")]
        given_s: f64,
    }
}

/// Real numbers that may be NaN or infinite: JSON has neither, so they are written `null`.
fn is_nothing(x: &f64) -> bool {
    *x == 0.0
}

mod nullable {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
        if x.is_finite() { to.serialize_f64(*x) } else { to.serialize_none() }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_flat_objects_with_their_kind() {
        let step = Step { step: 3, loss: f64::NAN, loss_bits: 7, ..Step::default() };
        let text = serde_json::to_string(&Event::Step(step)).unwrap();
        assert!(text.starts_with(r#"{"event":"step","step":3,"#), "{text}");
        assert!(text.contains(r#""loss":null"#), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        let Some(Event::Step(read)) = Event::from_value(&value) else { panic!("{text}") };
        assert!(read.loss.is_nan() && read.loss_bits == 7);
    }

    #[test]
    fn old_and_unknown_events_are_tolerated() {
        let read = |text: &str| Event::from_value(&serde_json::from_str(text).unwrap());
        assert_eq!(read(r#"{"event":"resume"}"#), Some(Event::Resume(Resume::default())));
        assert!(read(r#"{"event":"resume","step":4,"new_field":1}"#).is_some());
        assert_eq!(read(r#"{"event":"from_the_future"}"#), None);
    }
}
