//! Evaluation events: losses, answers, planted facts, tasks by length.

use serde::{Deserialize, Serialize};

use super::nullable;

events! {
    /// Evaluation on held-out lessons.
    struct EvalAnswers {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Completed updates.
        step: u64,
        /// Mean loss of the target tokens, in nats.
        #[serde(with = "nullable")]
        loss: f64,
        /// Fraction of the target tokens that the model ranks first.
        #[serde(with = "nullable")]
        token_accuracy: f64,
        /// Bits per byte of the target text.
        #[serde(with = "nullable")]
        bits_per_byte: f64,
        /// Bits per byte of held-out ordinary text, showing the cost of training on lessons; 0 if not measured.
        #[serde(skip_serializing_if = "super::is_nothing")]
        text_bits_per_byte: f64,
        /// Number of leading tokens scored per text.
        #[serde(skip_serializing_if = "super::is_zero")]
        text_context_tokens: u64,
        /// Number of target tokens scored.
        tokens: u64,
        /// Number of lessons scored.
        lessons: u64,
    }

    /// Mean loss by position within a document.
    struct EvalPosition {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Completed updates.
        step: u64,
        /// Longest sequence trained on so far.
        trained_tokens: u64,
        /// Ascending, non-overlapping buckets.
        buckets: Vec<PositionBucket>,
    }

    /// A bucket of positions `from..to`, excluding `to`.
    struct PositionBucket {
        /// First position.
        from: u64,
        /// Position after the last.
        to: u64,
        /// Mean loss in nats.
        #[serde(with = "nullable")]
        loss: f64,
        /// Number of tokens scored.
        tokens: u64,
    }

    /// Loss of the same tokens with full and truncated context.
    struct EvalContext {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Completed updates.
        step: u64,
        /// Length of the full context in tokens.
        full_tokens: u64,
        /// Maximum length of the truncated context; at least half of it is used.
        cut_tokens: u64,
        /// Mean loss with the full context, in nats.
        #[serde(with = "nullable")]
        full_loss: f64,
        /// Mean loss of the same tokens with truncated context.
        #[serde(with = "nullable")]
        cut_loss: f64,
        /// Standard error of their difference.
        #[serde(with = "nullable")]
        standard_error: f64,
        /// Number of tokens scored.
        tokens: u64,
        /// Number of token blocks over which differences were computed.
        blocks: u64,
    }

    /// Compression of an unseen text by the model.
    struct EvalBits {
        /// Name of the text.
        name: String,
        /// Completed updates.
        step: u64,
        /// The model's bits per byte of text.
        #[serde(with = "nullable")]
        bits_per_byte: f64,
        /// Bits per byte of `gzip -9` on the same text.
        #[serde(with = "nullable")]
        gzip_bits_per_byte: f64,
        /// Bytes of text scored.
        bytes: u64,
        /// Maximum number of context tokens.
        context_tokens: u64,
    }

    /// Retrieval of a planted fact. `accuracy[d][l]` belongs to `depths[d]` and `lengths_tokens[l]`.
    struct Needle {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Completed updates.
        step: u64,
        /// Kind of task, e.g. `passkey`.
        task: String,
        /// Lengths of the whole prompt, ascending.
        lengths_tokens: Vec<u64>,
        /// Depth of the fact: 0 is the beginning, 1 the end.
        depths: Vec<f64>,
        /// Fraction of correct answers, 0 to 1.
        accuracy: Vec<Vec<f64>>,
        /// Trials per cell.
        trials: u64,
        /// Longest sequence trained on so far.
        trained_tokens: u64,
    }

    /// RULER's tasks by length.
    struct EvalRuler {
        /// `before_extension`, `after_extension`, or another moment.
        when: String,
        /// Completed updates.
        step: u64,
        /// Longest sequence trained on so far.
        trained_tokens: u64,
        /// Mean that an effective length has to reach, in percent.
        threshold: f64,
        /// Longest length whose mean reaches the threshold; 0 if none does.
        effective_tokens: u64,
        /// True if every length has all thirteen tasks.
        all_tasks: bool,
        /// Rows of a task at a length.
        rows: u64,
        /// Ascending lengths.
        lengths: Vec<RulerLength>,
    }

    /// Scores of RULER's tasks at a length, in percent.
    struct RulerLength {
        /// Tokens of prompt and answer together.
        tokens: u64,
        /// Mean over the tasks.
        mean: f64,
        /// Scores by task, in RULER's order.
        tasks: Vec<(String, f64)>,
    }
}
