//! Flags of `fathom serve`, and the mesh flags that `fathom generate` shares. Everything else is set by `serve.*`
//! keys.

use std::path::PathBuf;

use clap::{Args as Group, ValueEnum};
use fathom_app::spread::AskedMesh;
use fathom_tensor::PageFormat;
use fathom_train::recipe::Precision;

use super::{On, ranks, threads};

/// How keys and values are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kv {
    /// As the model computes them.
    Plain,
    /// 8-bit floats.
    Fp8,
    /// 8-bit whole numbers.
    Int8,
    /// 4-bit whole numbers.
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

/// The ranks of a model that is asked.
#[derive(Group)]
pub struct Mesh {
    /// Tensor parallel ranks of a model: threads, each with some heads and columns of it, and some of its experts.
    #[arg(long, default_value_t = 1, value_parser = ranks())]
    pub tp: usize,
    /// Stages of a model's pipeline: threads, each with some of its layers.
    #[arg(long, default_value_t = 1, value_parser = ranks())]
    pub pp: usize,
    /// Into how many parts the --tp ranks deal a layer's experts; 1 for all experts on each rank. Default: with --etp, what takes the
    /// least memory, which is as many as there are ranks where the number of experts divides; 1 if --etp is given.
    #[arg(long, requires = "tp", value_parser = ranks())]
    pub ep: Option<usize>,
    /// How many of the --tp ranks share the columns of each expert; --ep times --etp divides --tp. Default: as --ep says.
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
    /// Folders of runs, or Hugging Face folders; also keys of the server, as `serve.KEY=VALUE`.
    #[arg(required = true, value_name = "MODEL|serve.KEY=VALUE")]
    pub models: Vec<String>,
    /// The name of a model, in their order; default: its folder's. May be repeated.
    #[arg(long)]
    pub name: Vec<String>,
    /// The address to listen at; the default is reached from this machine alone.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// The port; 0 for any free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// The port of the admin listener, which is reached from this machine alone and needs a key.
    #[arg(long, value_name = "N")]
    pub admin_port: Option<u16>,
    /// A file of keys, one a line; whoever asks has to have one.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Type of the weights; default: as they are stored.
    #[arg(long)]
    pub precision: Option<Precision>,
    /// An adapter of the first model, by a name of its own; may be repeated.
    #[arg(long, value_name = "NAME=DIR")]
    pub adapter: Vec<String>,
    /// A small model with the vocabulary of the first model, which guesses what follows; answers are the same, and come faster where its
    /// guesses are right. As `serve.draft`.
    #[arg(long, value_name = "DIR")]
    pub draft: Option<PathBuf>,
    /// The folder of an index (`fathom index`): chats are answered from its documents, with citations. As `serve.knowledge`.
    #[arg(long, value_name = "INDEX")]
    pub knowledge: Option<PathBuf>,
    /// What each model may use, with its weights, e.g. 8GiB; default: half of what its weights leave of this machine's memory.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// How keys and values are held.
    #[arg(long, value_enum, default_value_t = Kv::Plain)]
    pub kv: Kv,
    /// A folder where beginnings of prompts are kept, so that a conversation goes on where it was when the server starts again; its
    /// limit is `serve.prefix_bytes`. By `serve.page_file_bytes` sequences that are longer than memory have pages there, too.
    #[arg(long, value_name = "DIR")]
    pub prefix_store: Option<PathBuf>,
    /// A file with the chat template; default: the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// A certificate (PEM), to be asked over TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A file with keys of the server.
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Serves nothing: prints what each model would need.
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
    /// The folder.
    pub folder: PathBuf,
    /// Erases them.
    #[arg(long)]
    pub erase: bool,
    /// Of this model alone, as the list names it.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}
