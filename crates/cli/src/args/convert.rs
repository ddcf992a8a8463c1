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
    /// Folder of a run, a checkpoint or a Hugging Face model, or a .gguf file.
    pub model: PathBuf,
    /// File to write (.gguf), or Hugging Face folder for the other formats.
    pub out: PathBuf,
    /// Format of the weights.
    #[arg(long, value_name = "FORMAT")]
    pub to: Target,
    /// Text to calibrate gptq and awq with (required), and to measure the loss of these, int4, mxfp4, nvfp4 and fp8 on:
    /// plain text, or JSON lines of lessons.
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Maximum number of samples of --data; a quarter of them measures the loss.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = counted())]
    pub samples: usize,
    /// Maximum number of tokens of a sample.
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
    /// Rows: JSON lines with two answers each; with --top-k, lessons.
    pub data: PathBuf,
    /// Adapter that makes it a reward model: folder of a run, or PEFT's.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// File to write: the rows with `reference` (log-probabilities), `teacher` (best tokens) or `rewards`.
    #[arg(long)]
    pub out: PathBuf,
    /// Writes the model's N best tokens at each position, for distillation (objective.top_k).
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Names of a reward model's scores, in order; conversations get them as the `label` of their last answer
    /// (SteerLM).
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with = "top_k")]
    pub labels: Vec<String>,
    /// For rows with `responses` (SteerLM 2): writes a log-probability of each: `attributes` (of a reward model, with
    /// --labels), `answer` or `labelled`.
    #[arg(long, value_name = "WHICH", conflicts_with = "top_k")]
    pub responses: Option<Likelihood>,
    /// Standard deviation of ratings from the reward model's scores, for --responses attributes.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, requires = "responses")]
    pub deviation: f64,
    /// Divides the logits, like objective.temperature; for --top-k.
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
    /// Hugging Face folder to write.
    pub to: PathBuf,
    /// Text to rank the parts by: plain text, or JSON lines of lessons.
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// Number of layers to keep; default: all.
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Number of columns of the residual stream to keep; default: all.
    #[arg(long, value_name = "N")]
    pub hidden: Option<usize>,
    /// Number of columns inside each MLP to keep; default: all.
    #[arg(long, value_name = "N")]
    pub ffn: Option<usize>,
    /// Number of query heads of each layer to keep; default: all.
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Maximum number of samples.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = counted())]
    pub samples: usize,
    /// Maximum number of tokens of a sample.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = counted())]
    pub sample_tokens: usize,
    /// Type of the weights.
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// Prints one JSON object, with the importance of each part.
    #[arg(long)]
    pub json: bool,
}

/// `fathom export` and `fathom import`.
#[derive(Group)]
pub struct Convert {
    /// Folder of a run, a checkpoint or a Hugging Face model, or a .gguf file.
    pub from: PathBuf,
    /// Hugging Face folder or .gguf file to write.
    pub to: PathBuf,
    /// Writes only the run's adapter, in PEFT's format, instead of the merged model.
    #[arg(long)]
    pub adapter: bool,
    /// Merges an adapter into the model; may be repeated. Low-rank adapters may have a weight: -1 removes a merged one.
    #[arg(long = "with", value_name = "DIR[=WEIGHT]")]
    pub adapters: Vec<String>,
    /// Format to write; default: gguf if the name ends in .gguf, else huggingface.
    #[arg(long)]
    pub format: Option<Format>,
    /// Type of the matrices in a .gguf file; default: bf16, or that of --precision.
    #[arg(long = "type", value_name = "TYPE")]
    pub gguf_type: Option<GgufName>,
    /// Type of the weights; default: as stored (from a .gguf file: bf16).
    #[arg(long)]
    pub precision: Option<Precision>,
    /// Stores projections like bitsandbytes (nf4, int8), for Transformers and for `model.quantization`.
    #[arg(long, default_value = "none")]
    pub quantization: QuantizationName,
    /// Keeps the scales of nf4 in 32 bits.
    #[arg(long)]
    pub single_quant: bool,
    /// Maximum size of one file, in bytes.
    #[arg(long, default_value_t = 5_000_000_000)]
    pub max_shard_bytes: u64,
}
