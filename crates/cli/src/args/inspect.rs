//! Arguments of `fathom inspect`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand};
use fathom_train::recipe::Precision;

use super::On;

/// `fathom inspect`.
#[derive(Subcommand)]
pub enum Inspect {
    /// Prints the logits of given ids as a table, or writes all of them with --out: `logits` [tokens, vocab] f32.
    Logits(InspectModel),
    /// Prints the norm of every gradient, under its Hugging Face name, or writes all gradients with --out.
    Gradients(InspectModel),
    /// Lists every activation's name, shape, bytes and place.
    Activations(InspectRecipe),
}

/// `fathom inspect activations`.
#[derive(Group)]
pub struct InspectRecipe {
    /// A shipped recipe's name, or a file.
    pub recipe: String,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE")]
    pub settings: Vec<String>,
    /// Prints one JSON object per activation.
    #[arg(long)]
    pub json: bool,
}

/// Model and token ids to inspect.
#[derive(Group)]
pub struct InspectModel {
    /// The folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Folder of an adapter for the model, or of the run that trained it.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Token ids, separated by commas.
    #[arg(long, value_delimiter = ',', required = true)]
    pub ids: Vec<u32>,
    /// Token ids that the decoder of an encoder-decoder reads.
    #[arg(long, value_delimiter = ',')]
    pub decoder_ids: Vec<u32>,
    /// Neighbours that a decoder such as RETRO reads, as JSON: for each chunk of the ids a list of neighbours, each a list
    /// of ids.
    #[arg(long, value_name = "JSON", value_parser = neighbours, default_value = "[]", hide_default_value = true)]
    pub neighbours: std::sync::Arc<Neighbours>,
    /// File to write (safetensors).
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Type of the weights.
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}

/// Ids of the neighbours of each chunk.
pub type Neighbours = Vec<Vec<Vec<u32>>>;

/// Parses neighbours.
fn neighbours(json: &str) -> Result<std::sync::Arc<Neighbours>, String> {
    let given = serde_json::from_str(json);
    given.map(std::sync::Arc::new).map_err(|error| format!("{error}; such as [[[5, 6], [7]], []]"))
}
