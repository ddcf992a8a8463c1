//! Training in rounds, each over pairs written by the previous round's model.

use std::path::PathBuf;

use super::limits::{MANY, MOST_TOKENS, NO_END, Real, Whole};
use fathom_base::{choice, recipe};

choice! {
    /// Text that the model writes before a round.
    pub enum WriteName {
        /// Nothing: one run over the rows as they are.
        None = "none",
        /// An answer to each row, the worse one of a pair with the row's own (SPIN; Chen and others, 2024).
        Own = "own",
        /// An answer, a critique of it by a principle, and a revision, which is the better one (Bai and others, 2022).
        Revised = "revised",
    }
}

recipe! {
    /// Training in rounds.
    pub struct RoundsTable {
        /// Text that the model writes before each round.
        pub write: WriteName = WriteName::None,
        /// Number of rounds.
        pub count: u64 [Whole(1, MANY)] = 3,
        /// Rounds before each whose pairs it learns from as well (SPIN's paper has 1).
        pub earlier: u64 [Whole(0, MANY)] = 0,
        /// For `revised`: rows (JSON lines) with `critique` and `revision`, what is asked of the model; taken in turns.
        pub principles: Option<PathBuf>,
        /// Maximum number of tokens of an answer.
        pub max_answer_tokens: usize [Whole(1, MOST_TOKENS)] = 256,
        /// Divides the logits that answers are sampled from; 0 for the most likely tokens.
        pub temperature: f64 [Real(0.0, NO_END)] = 1.0,
    }
}
