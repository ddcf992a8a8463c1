//! The flags of `fathom curate train-quality`.

use std::path::PathBuf;

use clap::Args as Group;

/// `fathom curate train-quality`.
#[derive(Group)]
pub struct TrainQuality {
    /// Files or folders of good text (.jsonl .parquet .txt .md .html, compressed too).
    #[arg(long, num_args = 1.., required = true, value_name = "PATH")]
    pub good: Vec<PathBuf>,
    /// Files or folders of unfiltered text, of the kind that the model will judge.
    #[arg(long, num_args = 1.., required = true, value_name = "PATH")]
    pub other: Vec<PathBuf>,
    /// File for the model, in fastText's format.
    #[arg(long, value_name = "FILE", default_value = "out/quality.bin")]
    pub out: PathBuf,
    /// The field (JSON) or column (Parquet) that holds the text.
    #[arg(long, default_value = "text")]
    pub field: String,
    /// Reads at most this many documents of each kind; default: all.
    #[arg(long, value_name = "DOCUMENTS")]
    pub most: Option<u64>,
    /// Label of good text.
    #[arg(long, default_value = "__label__hq")]
    pub label: String,
    /// Label of other text.
    #[arg(long, default_value = "__label__cc")]
    pub other_label: String,
    /// Dimension of the word vectors.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub dim: u32,
    /// Passes over the examples.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub epochs: u32,
    /// Learning rate.
    #[arg(long, default_value_t = 0.1)]
    pub learning_rate: f64,
    /// Longest n-gram of words.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub word_ngrams: u32,
    /// Rows of the hash table of n-grams; a row takes 4 bytes per dimension.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub buckets: u32,
    /// Ignores words that occur less often.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub min_count: u32,
    /// Holds out one of this many examples to measure the model; 0 for none.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1_000_000_000))]
    pub hold_out: u32,
    /// Seed of the training.
    #[arg(long, default_value_t = 42)]
    pub seed: u32,
    /// Prints the result as a JSON object.
    #[arg(long)]
    pub json: bool,
}
