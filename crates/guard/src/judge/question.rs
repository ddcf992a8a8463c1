//! A question to a judge, and the reasons for which there is no verdict.

use std::time::SystemTime;

use fathom_base::{Error, Usage};

/// Reason why a judge gave no verdict.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The text needs more windows than are allowed.
    #[error("the text has {tokens} tokens; this rail reads at most {most}")]
    TooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Most tokens that are read.
        most: usize,
    },
    /// The time limit passed.
    #[error("the judge did not answer within the time limit")]
    Late,
    /// The model failed, or refused the request.
    #[error(transparent)]
    Model(#[from] Error),
    /// The model cannot serve this rail.
    #[error("{0}")]
    Unfit(String),
}

/// Shorthand for results of judges.
pub(crate) type JudgeResult<T> = Result<T, JudgeError>;

/// Notes a call of a model: its name, its start, and its tokens.
pub(crate) type NoteCall<'a> = dyn Fn(&str, SystemTime, Usage) + 'a;

/// One question to a judge: its scope in the prefix cache, and how long the answer is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    /// Scope of the prefix cache.
    pub scope: &'a str,
    /// Returns false once the time limit has passed.
    pub wanted: &'a dyn Fn() -> bool,
    /// Notes a call of a model.
    pub called: &'a NoteCall<'a>,
}
