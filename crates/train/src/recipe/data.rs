//! The training data of a run.

use std::path::PathBuf;

use fathom_base::{choice, recipe};
use fathom_text::lessons::{self, is_lesson_file};

use super::limits::{Above0, Any, BYTES, Below1, MANY, MOST_DRAWS, NO_END, Real, Whole};
use super::{Recipe, Stage};

choice! {
    /// Kind of the rows in data files.
    pub enum FormatName {
        /// `lessons` if `paths` is one file with rows of prompts and completions, or of tokens, and without `text_field`; else `text`.
        Auto = "auto",
        /// Texts that are learned as a whole.
        Text = "text",
        /// Rows of which some tokens are learned and the others are context: strings `prompt` and `completion` (or `input` and
        /// `output`), conversations (`messages`, `conversations`, `instruction` and `output`), or `input_ids` with `labels`, `completion_mask`, `assistant_masks` or `weights`. JSON lines or JSON arrays.
        Lessons = "lessons",
    }
}

choice! {
    /// Tokens of a lesson to learn.
    pub enum SuperviseName {
        /// The completion; in conversations the assistant's turns, and in rows of tokens those that their masks select.
        Completion = "completion",
        /// In conversations the assistant's last turn.
        LastTurn = "last_turn",
        /// All.
        All = "all",
    }
}

choice! {
    /// Treatment of lessons longer than a stage's samples.
    pub enum TruncationName {
        /// The end is cut off.
        KeepStart = "keep_start",
        /// The beginning is cut off.
        KeepEnd = "keep_end",
        /// They are refused.
        Error = "error",
    }
}

choice! {
    /// Packing of documents into samples.
    pub enum Packing {
        /// End to end, cut at the sample's length.
        Cut = "cut",
        /// Best fit; a document that fits into a sample is never cut.
        BestFit = "best_fit",
        /// One document a sample.
        Single = "single",
    }
}

recipe! {
    /// The training data.
    pub struct Data {
        /// Files and folders; of lessons and curations also addresses, `s3://` and `https://`, with `AWS_ACCESS_KEY_ID` and the like from the
        /// environment. `cargo:` alone stands for the sources and docs of the crates in cargo's folder on this machine.
        pub paths: Vec<PathBuf>,
        /// Curation of the text: a recipe of `fathom curate` by name or file, or `none`. Its final stages that order, split, write
        /// and tokenise are skipped, since the run does this itself. `auto`: `code` for `cargo:`, none for other paths. If `paths` is
        /// empty, a recipe that names its own input reads that.
        pub curate: String = "auto".into(),
        /// Field that holds the text in JSON lines and Parquet.
        pub text_field: String = "text".into(),
        /// Kind of the rows in `paths`.
        pub format: FormatName = FormatName::Auto,
        /// For lessons: the keys of a row.
        pub columns: ColumnsTable,
        /// For conversations: a file with the chat template, or `steerlm` for the one inside the binary (turns marked as NeMo's,
        /// with the labels of SteerLM); none for the model's own.
        pub chat_template: Option<PathBuf>,
        /// For lessons: the tokens to learn.
        pub supervise: SuperviseName = SuperviseName::Completion,
        /// For lessons: treatment of those that are too long.
        pub truncation: TruncationName = TruncationName::KeepStart,
        /// For lessons: maximum number of unusable rows to skip.
        pub max_rows_dropped: u64 [Any] = 0,
        /// For `embed`, `rerank` and `classify`: most tokens of a text or pair, of which the rest is cut off.
        pub max_text_tokens: usize [Whole(2, u64::MAX)] = 256,
        /// For `retro`: prefix of a token store, made with the same tokenizer, whose chunks are the neighbours; none for the documents
        /// that the run trains on. A document never has neighbours from itself or from a copy of it.
        pub neighbours: Option<PathBuf>,
        /// For `retro`: folder of an encoder whose vectors find neighbours; none for BM25.
        pub neighbour_encoder: Option<PathBuf>,
        /// Maximum bytes of text to read; unset for all of it. Unread text is reported.
        pub max_bytes: Option<u64> [Whole(1, BYTES)],
        /// Fraction of the bytes that is synthetic key-value recall, added to the text; 0 for none.
        pub recall_share: f64 [Below1] = 0.0,
        /// Fraction of the documents held out from training.
        pub held_out_share: f64 [Below1] = 0.02,
        /// For lessons: files and folders with held-out rows; all rows of `paths` are then trained on, whatever the share.
        pub held_out_paths: Vec<PathBuf>,
        /// Maximum bytes of one document; files of one folder (of one crate) are joined up to this size.
        pub document_bytes: u64 [Whole(1024, BYTES)] = 128 << 10,
        /// The tokenizer.json to use; none for the model's, or else a newly trained one.
        pub tokenizer: Option<PathBuf>,
        /// Bytes of text that the tokenizer is trained on.
        pub tokenizer_bytes: u64 [Whole(1, BYTES)] = 8 << 20,
        /// The sources of samples and their weights; empty for the gathered text and synthetic documents in their natural
        /// proportions.
        pub blend: Vec<Blend>,
        /// Draws documents and samples in a new random order in each pass; if false, in the order of the files.
        pub shuffle: bool = true,
        /// Number of samples that the loader prefetches.
        pub ahead: usize [Whole(0, MANY)] = 4,
    }

    /// Keys of a row that differ from the usual ones.
    pub struct ColumnsTable {
        /// Prompt before the answer.
        pub prompt: Option<String>,
        /// The answer.
        pub completion: Option<String>,
        /// The list of messages.
        pub messages: Option<String>,
        /// Role of a message.
        pub role: Option<String>,
        /// Content of a message.
        pub content: Option<String>,
        /// System message.
        pub system: Option<String>,
        /// The tools: a list of schemas, or JSON text of one.
        pub tools: Option<String>,
        /// The better of two answers.
        pub chosen: Option<String>,
        /// The worse of two answers.
        pub rejected: Option<String>,
        /// Label of an answer: whether it is desirable, or its ratings.
        pub label: Option<String>,
    }

    /// A part of a blend.
    pub struct Blend {
        /// `text` (the gathered text), `drill` or `recall` (synthetic documents: short and dense, or long with distant facts),
        /// or the prefix of a token store (`PREFIX.bin`, `PREFIX.idx`) made with the same tokenizer.
        pub source: String = "text".into(),
        /// Its relative weight; weights need not add up to 1.
        pub weight: f64 [Above0(NO_END)] = 1.0,
    }

    /// Draws of documents by their length.
    pub struct LengthWeight {
        /// Applies to documents of at least this many tokens; of several entries, the largest that a document reaches.
        pub min_tokens: usize [Any] = 0,
        /// Times per epoch; 2.5 means twice, and a third time in half of the cases.
        pub weight: f64 [Real(0.0, MOST_DRAWS)] = 1.0,
    }
}

/// The path that stands for the sources of the crates in cargo's folder.
const CARGO: &str = "cargo:";

impl Data {
    /// True if the rows of `paths` are lessons.
    pub fn is_lessons(&self) -> bool {
        let named = self.columns != ColumnsTable::default();
        match (self.format, &self.paths[..]) {
            (FormatName::Lessons, _) => true,
            (FormatName::Auto, [path]) => named || is_lesson_file(path, &self.text_field),
            _ => false,
        }
    }

    /// Settings for turning rows into lessons, without a limit on their length.
    pub(super) fn teaching(&self) -> lessons::LessonConversion {
        let supervise = match self.supervise {
            SuperviseName::Completion => lessons::Supervise::Completion,
            SuperviseName::LastTurn => lessons::Supervise::LastTurn,
            SuperviseName::All => lessons::Supervise::All,
        };
        let truncation = match self.truncation {
            TruncationName::KeepStart => lessons::Truncation::KeepStart,
            TruncationName::KeepEnd => lessons::Truncation::KeepEnd,
            TruncationName::Error => lessons::Truncation::Error,
        };
        let of = self.columns.clone();
        let columns = lessons::Columns {
            prompt: of.prompt,
            completion: of.completion,
            messages: of.messages,
            role: of.role,
            content: of.content,
            system: of.system,
            tools: of.tools,
            chosen: of.chosen,
            rejected: of.rejected,
            label: of.label,
        };
        lessons::LessonConversion { supervise, truncation, columns, ..lessons::LessonConversion::default() }
    }

    /// True if the text is that of the crates in cargo's folder.
    pub fn is_gathered(&self) -> bool {
        self.paths.iter().any(|path| path.as_os_str() == CARGO)
    }

    /// The reason why there is no text, if so: `paths` is empty and `curate` names no recipe, which could have an input
    /// of its own, or the path of gathered text is one of several.
    pub(crate) fn without_text(&self) -> Option<&'static str> {
        if self.paths.is_empty() && matches!(self.curate.as_str(), "auto" | "none") {
            return Some(
                "is empty: nothing says what is trained on; give files or folders (data.paths=PATH,...), or \"cargo:\" for the \
                 sources of the crates in cargo's folder",
            );
        }
        (self.is_gathered() && self.paths.len() > 1)
            .then_some("holds \"cargo:\", which stands alone; leave it or the others out")
    }
}

impl Stage {
    /// Its blend, or else the run's.
    pub fn blend<'a>(&'a self, recipe: &'a Recipe) -> &'a [Blend] {
        if self.blend.is_empty() { &recipe.data.blend } else { &self.blend }
    }
}
