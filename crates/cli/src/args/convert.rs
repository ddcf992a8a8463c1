//! Flags of verbs that read a model and write files.

use std::path::PathBuf;

use clap::Args as Group;
use fathom_app::export::{Format, GgufName, Target};
use fathom_app::score::Likelihood;
use fathom_train::recipe::{Precision, QuantizationName};

use super::{On, counted};

/// `fathom quantize`.
#[derive(Group)]
pub struct Quantize {
    /// The folder of a run, a checkpoint or a Hugging Face model, or a .gguf file.
    pub model: PathBuf,
    /// The .gguf file to write; of the other formats the Hugging Face folder.
    pub out: PathBuf,
    /// The format.
    #[arg(long, value_name = "FORMAT")]
    pub to: Target,
    /// Text to judge by (gptq and awq need it) and to measure the loss with (also of int4, mxfp4, nvfp4 and fp8): plain text, or JSON lines of lessons.
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Samples of it, at most; a quarter of them measures.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = counted())]
    pub samples: usize,
    /// Tokens of a sample, at most.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = counted())]
    pub sample_tokens: usize,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `fathom score`.
#[derive(Group)]
pub struct Score {
    /// The folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// The rows: JSON lines with two answers each; with --top-k lessons.
    pub data: PathBuf,
    /// An adapter that makes it a reward model: the folder of a run, or PEFT's.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// The file to write: the same rows, with `reference` (log-probabilities), `teacher` (best tokens) or `rewards`.
    #[arg(long)]
    pub out: PathBuf,
    /// Write the best tokens that the model has in place of each, this many, for distillation (objective.top_k).
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// For a reward model: names of its scores, in order; conversations get them as the `label` of their last answer (SteerLM).
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with = "top_k")]
    pub labels: Vec<String>,
    /// For rows with `responses` (SteerLM 2): logarithm to write for each: `attributes` (by a reward model, with --labels),
    /// `answer` or `labelled`.
    #[arg(long, value_name = "WHICH", conflicts_with = "top_k")]
    pub responses: Option<Likelihood>,
    /// With --responses attributes: the standard deviation of ratings from the reward model's scores.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, requires = "responses")]
    pub deviation: f64,
    /// With --top-k: divides the logits, as objective.temperature does.
    #[arg(long, default_value_t = 1.0, requires = "top_k")]
    pub temperature: f64,
    /// Type of the weights.
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}

/// `fathom prune`.
#[derive(Group)]
pub struct Prune {
    /// The folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// The Hugging Face folder to write.
    pub to: PathBuf,
    /// The text to judge by: plain text, or JSON lines of lessons.
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// Layers that stay; default: all.
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Columns of the residual stream that stay; default: all.
    #[arg(long, value_name = "N")]
    pub hidden: Option<usize>,
    /// Columns inside each MLP that stay; default: all.
    #[arg(long, value_name = "N")]
    pub ffn: Option<usize>,
    /// Query heads of each layer that stay; default: all.
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Samples to judge by, at most.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = counted())]
    pub samples: usize,
    /// Tokens of a sample, at most.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = counted())]
    pub sample_tokens: usize,
    /// Type of the weights.
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// Prints one JSON object, with what each part is worth.
    #[arg(long)]
    pub json: bool,
}

/// `fathom export` and `fathom import`.
#[derive(Group)]
pub struct Convert {
    /// The folder of a run, a checkpoint or a Hugging Face model, or a .gguf file.
    pub from: PathBuf,
    /// The Hugging Face folder to write, or the .gguf file.
    pub to: PathBuf,
    /// Write the run's adapter alone, as PEFT does, in place of a model that it is merged into.
    #[arg(long)]
    pub adapter: bool,
    /// Merge an adapter into the model, with a weight if it has low-rank terms alone: DIR, or DIR=WEIGHT. May be repeated; a weight of
    /// -1 takes out what was merged.
    #[arg(long = "with", value_name = "DIR[=WEIGHT]")]
    pub adapters: Vec<String>,
    /// What is written; default: gguf if the name ends so, else huggingface.
    #[arg(long)]
    pub format: Option<Format>,
    /// Format of the matrices of a .gguf file; default: bf16, or the type of --precision.
    #[arg(long = "type", value_name = "TYPE")]
    pub gguf_type: Option<GgufName>,
    /// Type of the weights; default: as they are stored (of a .gguf file bf16).
    #[arg(long)]
    pub precision: Option<Precision>,
    /// Write projections as bitsandbytes stores them (nf4, int8), for Transformers and for `model.quantization`.
    #[arg(long, default_value = "none")]
    pub quantization: QuantizationName,
    /// Leave the scales of nf4 in 32 bits.
    #[arg(long)]
    pub single_quant: bool,
    /// Maximum size of one file, in bytes.
    #[arg(long, default_value_t = 5_000_000_000)]
    pub max_shard_bytes: u64,
}
