//! Arguments of `fathom inspect`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand};
use fathom_train::recipe::Precision;

use super::On;

/// `fathom inspect`.
#[derive(Subcommand)]
pub enum Inspect {
    /// The logits of given ids: a table, or with --out all of them, `logits` [tokens, vocab] f32.
    Logits(InspectModel),
    /// The gradient of every parameter, under its Hugging Face name.
    Gradients(InspectModel),
    /// Every activation's name, shape, bytes and place.
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

/// What to run a model on.
#[derive(Group)]
pub struct InspectModel {
    /// The folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// An adapter on the model: the folder of one, or of the run that trained it.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Token ids, separated by commas.
    #[arg(long, value_delimiter = ',', required = true)]
    pub ids: Vec<u32>,
    /// The safetensors file to write.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Type of the weights.
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}
