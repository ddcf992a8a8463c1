//! `fathom bench`: its measurements, and the flags of each. Recipe keys set what is trained, as everywhere.

use std::path::PathBuf;

#[cfg(feature = "curate")]
use clap::builder::PossibleValuesParser;
use clap::{Args as Group, Subcommand, ValueEnum};
#[cfg(feature = "curate")]
use fathom_curate::bench::STAGES;
use fathom_train::recipe::Precision;

use super::threads;

/// Benchmarks of `fathom bench`.
#[derive(Subcommand)]
pub enum Bench {
    /// Matrix products `x W^T`, weights as given and kept packed.
    Gemm(Gemm),
    /// Softmax attention, forward, and forward with backward.
    Attention(Attention),
    /// A training step of every stage of a recipe, with random weights and random tokens.
    Step(Step),
    /// Generation of one sequence.
    Decode(Decode),
    /// Reading of one prompt, to the first token.
    Prefill(Decode),
    /// Requests to a server, this or another: time to the first token and between tokens, what was refused. Without an address: the
    /// cost of the server itself, over a model that is pretended.
    Serve(Offer),
    /// From cold files to the first token, compared with reading the files.
    Load(Load),
    /// This machine's rates, as a plan wants them.
    Profile(Profile),
    /// The pieces of a curation, on one thread.
    #[cfg(feature = "curate")]
    Curate(Curate),
    /// Ten training steps with a checkpoint on its way, and without.
    Save(Save),
    /// The loss of a small model for each number format of products.
    Formats(Formats),
}

/// Repetitions and threads of a benchmark. `FATHOM_ISA` masks instruction sets.
#[derive(Group)]
pub struct Timing {
    /// Threads; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
    /// Repeats; the median counts.
    #[arg(long, default_value_t = 5)]
    pub repeat: usize,
}

/// `fathom bench serve`.
#[derive(Group)]
pub struct Offer {
    /// The server, e.g. http://127.0.0.1:8000; any that has OpenAI's completions.
    pub url: Option<String>,
    /// The model's name, where there are several.
    #[arg(long)]
    pub model: Option<String>,
    /// Requests a second, at random times; default: a closed loop of clients.
    #[arg(long, value_name = "R", conflicts_with = "clients")]
    pub rate: Option<f64>,
    /// Clients, each of which asks again when it has its answer.
    #[arg(long, default_value_t = 1)]
    pub clients: usize,
    /// Requests in all.
    #[arg(long, default_value_t = 200)]
    pub requests: usize,
    /// Words of a prompt, on average.
    #[arg(long, default_value_t = 128)]
    pub prompt: usize,
    /// Tokens of an answer, on average.
    #[arg(long, default_value_t = 64)]
    pub answer: usize,
    /// Share of a prompt that all prompts begin with.
    #[arg(long, default_value_t = 0.0)]
    pub shared: f64,
    /// Milliseconds to the first token, and on average between tokens, up to which a request counts as good.
    #[arg(long, value_name = "FIRST,BETWEEN", value_delimiter = ',', default_values_t = [1000.0, 100.0])]
    pub good: Vec<f64>,
    /// A file whose first line is the server's key.
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
    /// f32 or bf16.
    #[arg(long, default_value = "bf16")]
    pub dtype: Precision,
    /// Rows and columns of C, and the summed size; all shapes of the table if not given.
    #[arg(long, value_name = "M,N,K", value_delimiter = ',')]
    pub shape: Vec<usize>,
    /// Only with weights kept packed; both if not given.
    #[arg(long)]
    pub packed: bool,
}

/// Distribution of attention's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Scores {
    /// Those of random operands: a row's scores lie within a few units, and no probability is small.
    Flat,
    /// A row's scores span 200, as a trained model's do: most probabilities are zeros.
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

/// Distributions of scores to measure.
#[derive(Group)]
pub struct Peaks {
    /// Distribution of attention's scores; default: both.
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
    /// f32 or bf16.
    #[arg(long, default_value = "bf16")]
    pub dtype: Precision,
    /// Tokens of the stream.
    #[arg(long, value_delimiter = ',', default_values_t = [2048, 8192, 16384])]
    pub tokens: Vec<usize>,
    /// Documents of equal length in the stream, each on its own.
    #[arg(long, default_value_t = 1)]
    pub docs: usize,
    /// One pass; both if not given.
    #[arg(long, value_enum)]
    pub pass: Option<Pass>,
    #[command(flatten)]
    pub peaks: Peaks,
    /// Query heads.
    #[arg(long, default_value_t = 8)]
    pub heads: usize,
    /// Key and value heads; as many if not given.
    #[arg(long)]
    pub kv_heads: Option<usize>,
    /// Columns of one head.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 128])]
    pub head_dim: Vec<usize>,
}

/// Parts of attention to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Pass {
    /// Forward alone.
    Forward,
    /// Forward, then backward.
    ForwardBackward,
}

/// The trained weights.
#[derive(Group)]
pub struct BenchTraining {
    /// A shipped recipe's name or a file, then recipe keys; without a recipe, keys of a Llama of 56 million weights that is trained
    /// with one stream a step (`stages=2048,8192,16384`).
    #[arg(value_name = "RECIPE|PATH=VALUE")]
    pub recipe: Vec<String>,
    /// Repeats; the median counts.
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
    /// A single step, not repeated, and on cuda warmed up by one of a single block: for those that take an hour.
    #[arg(long)]
    pub once: bool,
    /// Also where the time goes, a row for each kind of operation.
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
    /// New tokens; `prefill` makes one.
    #[arg(long, default_value_t = 64)]
    pub new: usize,
}

/// `fathom bench load`.
#[derive(Group)]
pub struct Load {
    #[command(flatten)]
    pub timing: Timing,
    /// f32 or bf16.
    #[arg(long, default_value = "bf16")]
    pub dtype: Precision,
    /// A model's folder; one of 2.2 GB with random weights is written if not given.
    #[arg(long)]
    pub model: Option<PathBuf>,
}

/// `fathom bench profile`.
#[derive(Group)]
pub struct Profile {
    #[command(flatten)]
    pub timing: Timing,
    /// Measures this folder's disk too.
    #[arg(long)]
    pub spill: Option<PathBuf>,
    /// A file for the rates.
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// `fathom bench curate`.
#[cfg(feature = "curate")]
#[derive(Group)]
pub struct Curate {
    /// Only this piece.
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
    /// Steps of each.
    #[arg(long, default_value_t = 300)]
    pub steps: usize,
}
