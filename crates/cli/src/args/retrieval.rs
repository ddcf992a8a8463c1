//! Flags of `fathom index` and `fathom search`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args as Group, ValueEnum};
use fathom_retrieval::{Mode, StoreAddress};

use super::{On, threads};

/// How passages are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum RankBy {
    /// BM25 and vectors fused, if there are vectors; otherwise BM25.
    Auto,
    /// BM25 alone.
    Bm25,
    /// Vectors alone.
    Dense,
}

impl RankBy {
    /// The library's name for it.
    pub fn mode(self) -> Mode {
        match self {
            RankBy::Auto => Mode::Auto,
            RankBy::Bm25 => Mode::Sparse,
            RankBy::Dense => Mode::Dense,
        }
    }
}

/// Flags of a ranking.
#[derive(Group)]
pub struct Ranking {
    /// How passages are ranked.
    #[arg(long, value_enum, default_value = "auto")]
    pub mode: RankBy,
    /// The folder of a reranker, which reads the query with each of the first passages.
    #[arg(long, value_name = "DIR")]
    pub rerank: Option<PathBuf>,
}

/// The machine of an index's encoder.
#[derive(Group)]
pub struct EncoderMachine {
    /// The machine that computes vectors.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// Threads of the encoder; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
}

/// `fathom index`.
#[derive(Group)]
pub struct Index {
    /// Files and folders, then the folder of the index.
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "OUT"])]
    pub paths: Vec<PathBuf>,
    /// The folder of an encoder (a Hugging Face folder), which adds a vector for each passage.
    #[arg(long, value_name = "DIR")]
    pub encoder: Option<PathBuf>,
    /// A store for the vectors, which searches ask: qdrant://HOST:PORT/COLLECTION, qdrants://.. over TLS, or
    /// postgres://USER@HOST:PORT/DATABASE?table=NAME with pgvector. Keys come from QDRANT_API_KEY and PGPASSWORD. An index
    /// stays with its store.
    #[arg(long, value_name = "ADDRESS", requires = "encoder")]
    pub store: Option<StoreAddress>,
    /// Bytes of a passage, at most.
    #[arg(long, default_value_t = 1200, value_parser = RangedU64ValueParser::<usize>::new().range(64..=1 << 20))]
    pub chunk_bytes: usize,
    /// Replaces personal data by marks such as <EMAIL_ADDRESS>.
    #[arg(long)]
    pub no_personal_data: bool,
    /// Where vectors are computed.
    #[command(flatten)]
    pub encoder_on: EncoderMachine,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `fathom search`.
#[derive(Group)]
pub struct Search {
    /// The folder of an index.
    pub index: PathBuf,
    /// The query.
    pub query: String,
    /// Passages, at most.
    #[arg(short, long = "top-k", default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub k: usize,
    /// A condition on documents: KEY=VALUE, or with one of != < <= > >=. Keys are path, kind, id, title and fields of rows; `*` is any
    /// text. May be repeated.
    #[arg(long = "where", value_name = "KEY=VALUE")]
    pub conditions: Vec<String>,
    /// The folder of the index's encoder, if it is not where it was.
    #[arg(long, value_name = "DIR")]
    pub encoder: Option<PathBuf>,
    /// How to rank.
    #[command(flatten)]
    pub ranking: Ranking,
    /// Compares the query with every vector, even if there is a faster way that may miss some.
    #[arg(long)]
    pub exact: bool,
    /// Where vectors are computed.
    #[command(flatten)]
    pub encoder_on: EncoderMachine,
    /// Prints one JSON object per passage.
    #[arg(long)]
    pub json: bool,
}
