//! Flags of `fathom serve`, and the mesh flags that `fathom generate` shares. Everything else is set by `serve.*`
//! keys.

use std::path::PathBuf;

use clap::{Args as Group, ValueEnum};
use fathom_app::spread::AskedMesh;
use fathom_tensor::PageFormat;
use fathom_train::recipe::Precision;

use super::{On, ranks, threads};

/// Storage format of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kv {
    /// The type in which the model computes.
    Plain,
    /// 8-bit floats.
    Fp8,
    /// 8-bit integers.
    Int8,
    /// 4-bit integers.
    Int4,
}

impl Kv {
    /// The page format.
    pub fn format(self) -> PageFormat {
        match self {
            Kv::Plain => PageFormat::Plain,
            Kv::Fp8 => PageFormat::Fp8,
            Kv::Int8 => PageFormat::Int8,
            Kv::Int4 => PageFormat::Int4,
        }
    }
}

/// Ranks of a model that generates.
#[derive(Group)]
pub struct Mesh {
    /// Number of tensor parallel ranks: threads, each with some of the model's heads, columns and experts.
    #[arg(long, default_value_t = 1, value_parser = ranks())]
    pub tp: usize,
    /// Number of pipeline stages: threads, each with some of the model's layers.
    #[arg(long, default_value_t = 1, value_parser = ranks())]
    pub pp: usize,
    /// Number of parts into which the --tp ranks divide a layer's experts; 1 for all experts on each rank. Default:
    /// whatever takes the least memory; with --etp, 1.
    #[arg(long, requires = "tp", value_parser = ranks())]
    pub ep: Option<usize>,
    /// Number of --tp ranks that share the columns of each expert; --ep times --etp must divide --tp. Default: whatever
    /// takes the least memory; with --ep, 1.
    #[arg(long, requires = "tp", value_parser = ranks())]
    pub etp: Option<usize>,
}

impl Mesh {
    /// The requested mesh.
    pub fn asked(&self) -> AskedMesh {
        let experts = self.ep.or(self.etp).map(|_| [self.ep.unwrap_or(1), self.etp.unwrap_or(1)]);
        AskedMesh { tp: self.tp, pp: self.pp, experts }
    }
}

/// `fathom serve`.
#[derive(Group)]
pub struct Serve {
    /// Folders of runs or of Hugging Face models, and keys of the server.
    #[arg(required = true, value_name = "MODEL|serve.KEY=VALUE")]
    pub models: Vec<String>,
    /// Name of a model, in the order of the models; may be repeated. Default: its folder's name.
    #[arg(long)]
    pub name: Vec<String>,
    /// Address to listen at; the default can be reached only from this machine.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen at; 0 for any free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Port of the admin listener, which can be reached only from this machine and requires a key.
    #[arg(long, value_name = "N")]
    pub admin_port: Option<u16>,
    /// File of API keys, one per line; requests must have one.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Type of the weights; default: as stored.
    #[arg(long)]
    pub precision: Option<Precision>,
    /// Adapter of the first model, served under its own name; may be repeated.
    #[arg(long, value_name = "NAME=DIR")]
    pub adapter: Vec<String>,
    /// Small model with the vocabulary of the first model, for speculative decoding: answers do not change, but come
    /// faster if its proposals are right (`serve.draft`).
    #[arg(long, value_name = "DIR")]
    pub draft: Option<PathBuf>,
    /// Folder of an index (`fathom index`), from whose documents chats are answered with citations (`serve.knowledge`).
    #[arg(long, value_name = "INDEX")]
    pub knowledge: Option<PathBuf>,
    /// Memory limit of each model with its weights, such as 8GiB. Default: its weights, and half of the memory that
    /// they leave.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Storage format of keys and values.
    #[arg(long, value_enum, default_value_t = Kv::Plain)]
    pub kv: Kv,
    /// Folder for prompt prefixes, which a restarted server reuses (`serve.prefix_bytes`), and for pages of sequences
    /// longer than memory (`serve.page_file_bytes`).
    #[arg(long, value_name = "DIR")]
    pub prefix_store: Option<PathBuf>,
    /// Folder of guardrails (`guard.toml`) around every model.
    #[arg(long, value_name = "DIR")]
    pub guard: Option<PathBuf>,
    /// File with a chat template; default: the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Certificate (PEM) for TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// File with keys of the server (`serve.KEY`).
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Only prints what each model would need.
    #[arg(long)]
    pub dry_run: bool,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// The ranks of each model.
    #[command(flatten)]
    pub mesh: Mesh,
    /// Threads of each model; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
}

/// `fathom prefixes`.
#[derive(Group)]
pub struct Prefixes {
    /// Folder of the prefix store.
    pub folder: PathBuf,
    /// Erases the prefixes.
    #[arg(long)]
    pub erase: bool,
    /// Only this model, as named in the list.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}
