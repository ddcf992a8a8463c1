//! Options of scoring, and its output file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use fathom_train::recipe::Precision;
use serde_json::{Map, Value};

use super::responses::Likelihood;
use crate::error::{Context, Result};

/// Options of scoring.
pub struct Request {
    /// Folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Adapter over it with a head of scores: a run's folder, or one in PEFT's layout.
    pub adapter: Option<PathBuf>,
    /// JSON lines with two answers each, or, with `best`, of training rows.
    pub data: PathBuf,
    /// Output file: the same rows with the model's scores added.
    pub out: PathBuf,
    /// Type of the weights.
    pub precision: Precision,
    /// Number of top tokens at each position and their temperature, written instead of log-probabilities.
    pub best: Option<(usize, f64)>,
    /// Names of a reward model's scores: rows are conversations, and the scores of each last answer become its `label`.
    pub labels: Vec<String>,
    /// For rows with several answers to a prompt, the likelihood to write for each, and the standard deviation of a
    /// label's ratings around the scores.
    pub responses: Option<(Likelihood, f64)>,
}

/// Creates the output file.
///
/// # Errors
/// A file that cannot be created.
pub(super) fn created(request: &Request) -> Result<BufWriter<File>> {
    let file =
        File::create(&request.out).with_context(|| format!("cannot create {}", request.out.display()))?;
    Ok(BufWriter::new(file))
}

/// Writes a row as a line of JSON.
///
/// # Errors
/// A full disk.
pub(super) fn write(out: &mut dyn Write, row: &Map<String, Value>) -> std::io::Result<()> {
    writeln!(out, "{}", serde_json::to_string(row)?)
}
