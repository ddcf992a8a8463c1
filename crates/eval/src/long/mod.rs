//! Sets for long contexts that are made of local files by the rules of NoLiMa (Adobe, 2025) and HELMET (Princeton, 2024).

mod examples;
mod files;
mod helmet;
mod labels;
mod nolima;

use std::path::Path;

use fathom_text::Tokenizer;
use serde_json::{Map, Value};

use crate::error::Result;
use files::{Files, Row};

pub use helmet::{DATASET as HELMET, task_files as helmet_files};
pub use nolima::{DATASET as NOLIMA, task_files as nolima_files};

/// A set to make.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// Name of the task.
    pub task: &'r str,
    /// Data path of the set.
    pub path: &'r str,
    /// `dataset_kwargs` of the task.
    pub kwargs: &'r Map<String, Value>,
    /// Folder of the user's files.
    pub folder: Option<&'r Path>,
    /// The model's tokenizer, by which NoLiMa's books are cut.
    pub tokenizer: Option<&'r Tokenizer>,
}

/// The rows of a set, `most` of them at most; `None` if it is neither of both.
///
/// # Errors
/// Missing files, with where people get them; files that cannot be used.
pub fn rows(request: &Request<'_>, most: &dyn Fn(usize) -> usize) -> Result<Option<Vec<Row>>> {
    let files = Files { task: request.task, folder: request.folder };
    let mut rows = match request.path {
        NOLIMA => {
            let tokenizer = request.tokenizer;
            let tokenizer =
                tokenizer.ok_or_else(|| files.wrong("is made by a tokenizer, and there is none"))?;
            nolima::rows(&files, request.kwargs, tokenizer, most)?
        }
        HELMET => helmet::rows(&files, request.kwargs)?,
        _ => return Ok(None),
    };
    if rows.is_empty() {
        return Err(files.wrong("has no rows"));
    }
    rows.truncate(most(rows.len()).max(1));
    Ok(Some(rows))
}
