//! Lessons, and how rows become lessons.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A row as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lesson {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Weight of each token as a target; 0 for context. The first token is never a target, whatever its weight.
    pub weights: Vec<f32>,
    /// Number of tokens removed by truncation.
    pub cut: usize,
    /// Values of a judged row ([`Judge`]): index at which the answer begins, and the row's other values.
    pub values: Vec<f32>,
    /// Reference model given in the row: its name, and its log-probability of each token.
    pub reference: Option<(String, Vec<f32>)>,
    /// Teacher given in the row: its name, and its best tokens at each position as alternating ids and
    /// log-probabilities.
    pub best: Option<(String, Vec<f32>)>,
}

impl Lesson {
    /// Number of target tokens, that is, those with a weight above 0.
    pub fn supervised(&self) -> usize {
        self.weights.iter().skip(1).filter(|weight| **weight > 0.0).count()
    }
}

/// Selection of target tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Supervise {
    /// The completion and its end-of-text token; in a conversation the assistant's turns.
    #[default]
    Completion,
    /// In a conversation the assistant's last turn.
    LastTurn,
    /// Every token, even in rows that come with a mask.
    All,
}

/// Treatment of rows that are too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// Cuts off the end.
    #[default]
    KeepStart,
    /// Cuts off the beginning.
    KeepEnd,
    /// Rejects the row.
    Error,
}

impl Truncation {
    /// Range of tokens kept of a row of `tokens` tokens if `room` fit.
    pub fn kept(self, tokens: usize, room: usize) -> Range<usize> {
        match self {
            Truncation::KeepEnd => tokens.saturating_sub(room)..tokens,
            Truncation::KeepStart | Truncation::Error => 0..tokens.min(room),
        }
    }
}

/// Kind of rows, and the documents that each yields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// Lessons: one document, without values.
    #[default]
    #[serde(rename = "nobody")]
    None,
    /// Two answers: first the better, then the worse one. Values: start of the answer, its reward, the margin.
    Pairs,
    /// A desirable or undesirable answer, followed by its prompt with another row's answer. Values: start of the
    /// answer, and 1 if it is desirable.
    Labels,
    /// Several answers to one prompt, one document each. Values: start of the answer, and the row's log-likelihoods:
    /// the target, up to a constant, and that of the model that wrote the answer.
    Responses,
    /// A text with ratings: one document. Values: start of the answer, and the ratings.
    Ratings,
    /// Texts that belong together: a document each of the anchor, its positive and the negatives. Value: the number of
    /// tokens.
    Related,
    /// A query with texts: a document for each, of both. Values: where the text begins, and its label.
    Ranked,
    /// A text or a pair with labels: one document. Values: where the second text begins, and the label's number, or for
    /// each label 1 if it is true.
    Classes {
        /// Whether labels are true or not each by itself.
        several: bool,
    },
    /// A text or a pair with numbers: one document. Values: where the second text begins, and the numbers.
    Numbers,
    /// Words with a label each: one document. The first token of each word has the label's number plus one as its weight.
    /// Value: the number of tokens.
    Words,
    /// Steps that are right or wrong: one document. The last token of each step has weight 1 (wrong) or 2 (right),
    /// all others 0. Value: start of the answer.
    Steps,
}

/// Conversion of judged rows to documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// Kind of rows.
    pub judge: Judge,
    /// Trains on prompts too (ORPO).
    pub prompts: bool,
    /// Tokenizes like TRL's ORPO and CPO: without the tokenizer's template, with the tokens for the beginning and end
    /// of a text.
    pub bare: bool,
    /// Rejects rows that are too long, whatever the truncation.
    pub whole: bool,
    /// Rejects pairs without rewards.
    pub rewards: bool,
    /// For labels: number of rows among which answers are exchanged.
    pub block: usize,
    /// For responses: number of answers per row.
    #[serde(default)]
    pub responses: usize,
    /// Names of the ratings, or of numbers.
    pub ratings: Vec<String>,
    /// For related and ranked texts: negatives per row.
    #[serde(default)]
    pub negatives: usize,
    /// For ranked texts: each is judged by itself, and rows may have any number.
    #[serde(default)]
    pub alone: bool,
    /// Names of labels, in order.
    #[serde(default)]
    pub labels: Vec<String>,
    /// For related texts: text before anchors, and before the others.
    #[serde(default)]
    pub prefixes: [String; 2],
}

impl Answers {
    /// Number of documents per row.
    pub fn group(&self) -> usize {
        match self.judge {
            Judge::Pairs | Judge::Labels => 2,
            Judge::Responses => self.responses.max(1),
            Judge::Related => 2 + self.negatives,
            Judge::Ranked if !self.alone => 1 + self.negatives,
            _ => 1,
        }
    }

    /// Number of values per document.
    pub fn values(&self) -> usize {
        match self.judge {
            Judge::None => 0,
            Judge::Pairs | Judge::Responses => 3,
            Judge::Labels => 2,
            Judge::Ratings | Judge::Numbers => 1 + self.ratings.len(),
            Judge::Steps | Judge::Related | Judge::Words => 1,
            Judge::Ranked | Judge::Classes { several: false } => 2,
            Judge::Classes { several: true } => 1 + self.labels.len(),
        }
    }
}

/// Overrides of the usual key names of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// Prompt before the answer.
    pub prompt: Option<String>,
    /// Answer.
    pub completion: Option<String>,
    /// List of messages.
    pub messages: Option<String>,
    /// Role of a message.
    pub role: Option<String>,
    /// Content of a message.
    pub content: Option<String>,
    /// System message.
    pub system: Option<String>,
    /// Tool schemas.
    pub tools: Option<String>,
    /// Better of two answers.
    #[serde(default)]
    pub chosen: Option<String>,
    /// Worse of two answers.
    #[serde(default)]
    pub rejected: Option<String>,
    /// Label of an answer.
    #[serde(default)]
    pub label: Option<String>,
}

/// Conversion of rows to lessons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LessonConversion {
    /// Selection of target tokens.
    pub supervise: Supervise,
    /// Treatment of rows that are too long.
    pub truncation: Truncation,
    /// Maximum tokens of a document.
    pub max_tokens: usize,
    /// Key names of a row.
    pub columns: Columns,
    /// Treatment of judged rows.
    #[serde(default)]
    pub answers: Answers,
}
