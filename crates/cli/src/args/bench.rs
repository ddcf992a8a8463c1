//! `fathom bench`: its measurements, and the flags of each. Recipe keys set what is trained, as everywhere.

use std::path::PathBuf;

#[cfg(feature = "curate")]
use clap::builder::PossibleValuesParser;
use clap::{Args as Group, Subcommand, ValueEnum};
#[cfg(feature = "curate")]
use fathom_curate::bench::STAGES;
use fathom_train::recipe::Precision;

use super::threads;

/// Measurements of `fathom bench`.
#[derive(Subcommand)]
pub enum Bench {
    /// Measures matrix products `x W^T`, with plain and with packed weights.
    Gemm(Gemm),
    /// Measures softmax attention, forward, and forward with backward.
    Attention(Attention),
    /// Measures a training step of every stage of a recipe, with random weights and tokens.
    Step(Step),
    /// Measures generation of one sequence.
    Decode(Decode),
    /// Measures the time from a prompt to the first token.
    Prefill(Decode),
    /// Sends requests to a server and measures latencies and refusals; without a URL, the cost of Fathom's server
    /// itself over a simulated model.
    Serve(Offer),
    /// Measures the time from cold files to the first token, compared with reading the files.
    Load(Load),
    /// Measures this machine's rates, for plans.
    Profile(Profile),
    /// Measures the stages of a curation, on one thread.
    #[cfg(feature = "curate")]
    Curate(Curate),
    /// Measures ten training steps with a checkpoint being written, and without.
    Save(Save),
    /// Measures the loss of a small model for each number format of matrix products.
    Formats(Formats),
}

/// Repeats and threads. `FATHOM_ISA` masks instruction sets.
#[derive(Group)]
pub struct Timing {
    /// Threads; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
    /// Number of repeats; the median is reported.
    #[arg(long, default_value_t = 5)]
    pub repeat: usize,
}

/// `fathom bench serve`.
#[derive(Group)]
pub struct Offer {
    /// URL of a server with OpenAI's completions, such as http://127.0.0.1:8000.
    pub url: Option<String>,
    /// Model name, if the server has several.
    #[arg(long)]
    pub model: Option<String>,
    /// Requests a second, at random times; default: a closed loop of clients.
    #[arg(long, value_name = "R", conflicts_with = "clients")]
    pub rate: Option<f64>,
    /// Number of clients, each of which sends its next request after an answer.
    #[arg(long, default_value_t = 1)]
    pub clients: usize,
    /// Number of requests.
    #[arg(long, default_value_t = 200)]
    pub requests: usize,
    /// Mean length of a prompt, in words.
    #[arg(long, default_value_t = 128)]
    pub prompt: usize,
    /// Mean length of an answer, in tokens.
    #[arg(long, default_value_t = 64)]
    pub answer: usize,
    /// Fraction of a prompt that all prompts share as their beginning.
    #[arg(long, default_value_t = 0.0)]
    pub shared: f64,
    /// Largest milliseconds to the first token, and mean between tokens, for which a request counts as good.
    #[arg(long, value_name = "FIRST,BETWEEN", value_delimiter = ',', default_values_t = [1000.0, 100.0])]
    pub good: Vec<f64>,
    /// File whose first line is the server's API key.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Seed of prompts and times.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// `fathom bench gemm`.
#[derive(Group)]
pub struct Gemm {
    #[command(flatten)]
    pub timing: Timing,
    /// Data type: f32 or bf16.
    #[arg(long, default_value = "bf16")]
    pub dtype: Precision,
    /// Rows and columns of the result, and the size of the sum; default: a table of shapes.
    #[arg(long, value_name = "M,N,K", value_delimiter = ',')]
    pub shape: Vec<usize>,
    /// Only packed weights; default: both.
    #[arg(long)]
    pub packed: bool,
}

/// Distribution of attention scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Scores {
    /// Random operands: a row's scores lie within a few units, and no probability is small.
    Flat,
    /// Scores like a trained model's: a row's span 200, and most probabilities are zero.
    Peaked,
}

impl Scores {
    /// Name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Scores::Flat => "flat",
            Scores::Peaked => "peaked",
        }
    }
}

/// Attention scores of a benchmark.
#[derive(Group)]
pub struct Peaks {
    /// Distribution of attention scores; default: both.
    #[arg(long, value_enum)]
    pub scores: Option<Scores>,
}

impl Peaks {
    /// The requested scores.
    pub fn each(&self) -> Vec<Scores> {
        self.scores.map_or(vec![Scores::Flat, Scores::Peaked], |scores| vec![scores])
    }
}

/// `fathom bench attention`.
#[derive(Group)]
pub struct Attention {
    #[command(flatten)]
    pub timing: Timing,
    /// Data type: f32 or bf16.
    #[arg(long, default_value = "bf16")]
    pub dtype: Precision,
    /// Number of tokens.
    #[arg(long, value_delimiter = ',', default_values_t = [2048, 8192, 16384])]
    pub tokens: Vec<usize>,
    /// Number of documents of equal length, each with its own attention.
    #[arg(long, default_value_t = 1)]
    pub docs: usize,
    /// Passes to measure; default: both.
    #[arg(long, value_enum)]
    pub pass: Option<Pass>,
    #[command(flatten)]
    pub peaks: Peaks,
    /// Query heads.
    #[arg(long, default_value_t = 8)]
    pub heads: usize,
    /// Key and value heads; default: as many as query heads.
    #[arg(long)]
    pub kv_heads: Option<usize>,
    /// Columns of a head.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 128])]
    pub head_dim: Vec<usize>,
}

/// Passes of attention to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Pass {
    /// Forward only.
    Forward,
    /// Forward, then backward.
    ForwardBackward,
}

/// Recipe and repeats of a training benchmark.
#[derive(Group)]
pub struct BenchTraining {
    /// A recipe (name or file), then recipe keys. Default: a Llama of 56 million weights with one sequence a step
    /// (`stages=2048,8192,16384`).
    #[arg(value_name = "RECIPE|PATH=VALUE")]
    pub recipe: Vec<String>,
    /// Number of repeats; the median is reported.
    #[arg(long, default_value_t = 5)]
    pub repeat: usize,
}

/// `fathom bench step`.
#[derive(Group)]
pub struct Step {
    #[command(flatten)]
    pub trained: BenchTraining,
    #[command(flatten)]
    pub peaks: Peaks,
    /// Measures a single step, for steps that take an hour; on CUDA a step of one block warms up.
    #[arg(long)]
    pub once: bool,
    /// Also prints the time of each kind of operation.
    #[arg(long)]
    pub ops: bool,
}

/// `fathom bench decode` and `fathom bench prefill`.
#[derive(Group)]
pub struct Decode {
    #[command(flatten)]
    pub trained: BenchTraining,
    #[command(flatten)]
    pub peaks: Peaks,
    /// Tokens of the prompt.
    #[arg(long, default_value_t = 128)]
    pub prompt: usize,
    /// Number of new tokens; `prefill` generates one.
    #[arg(long, default_value_t = 64)]
    pub new: usize,
}

/// `fathom bench load`.
#[derive(Group)]
pub struct Load {
    #[command(flatten)]
    pub timing: Timing,
    /// Data type: f32 or bf16.
    #[arg(long, default_value = "bf16")]
    pub dtype: Precision,
    /// Folder of a model; default: one of 2.2 GB with random weights, which is written first.
    #[arg(long)]
    pub model: Option<PathBuf>,
}

/// `fathom bench profile`.
#[derive(Group)]
pub struct Profile {
    #[command(flatten)]
    pub timing: Timing,
    /// Also measures the disk of this folder.
    #[arg(long)]
    pub spill: Option<PathBuf>,
    /// File to write the rates to.
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// `fathom bench curate`.
#[cfg(feature = "curate")]
#[derive(Group)]
pub struct Curate {
    /// Only this stage.
    #[arg(long, value_parser = PossibleValuesParser::new(STAGES))]
    pub stage: Option<String>,
}

/// `fathom bench save`.
#[derive(Group)]
pub struct Save {
    #[command(flatten)]
    pub trained: BenchTraining,
}

/// `fathom bench formats`.
#[derive(Group)]
pub struct Formats {
    /// Threads; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
    /// Number of steps for each format.
    #[arg(long, default_value_t = 300)]
    pub steps: usize,
}
