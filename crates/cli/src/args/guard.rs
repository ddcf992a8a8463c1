//! Flags of `fathom guard`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand, ValueEnum};

use super::On;

/// `fathom guard`.
#[derive(Subcommand)]
pub enum Guard {
    /// Judges a text, or the messages of a conversation; ends with 1 if they are blocked.
    Check(GuardCheck),
    /// Serves the guardrails alone: /v1/checks judges messages, without a model.
    Serve(GuardServe),
    /// Judges an interaction set: block and false refusal rates with their intervals, confusion by rail, latency.
    Eval(GuardEval),
    /// Chooses the threshold of a rail by labelled texts.
    Calibrate(GuardCalibrate),
    /// Sends probes to a model or a guard: attacks that succeed, and harmless messages that are refused.
    Audit(GuardAudit),
    /// Summarises an audit log, after its chain has been verified: rates by rail, day and key, reasons, slow and failed rails.
    Report {
        /// The folder with guard.toml.
        #[arg(long, value_name = "DIR")]
        config: PathBuf,
        /// Prints one JSON object.
        #[arg(long)]
        json: bool,
        /// Writes a page.
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// Translates a folder of NeMo Guardrails to a guard.toml, and lists what it does not say.
    From {
        /// The folder with config.yml.
        folder: PathBuf,
        /// The file to write; default: it is printed.
        out: Option<PathBuf>,
    },
}

/// `fathom guard check`.
#[derive(Group)]
pub struct GuardCheck {
    /// File with a text, or with JSON that has `messages`; - for standard input.
    pub file: PathBuf,
    /// Folder with guard.toml.
    #[arg(long, value_name = "DIR")]
    pub config: PathBuf,
    /// Role in which a text is judged.
    #[arg(long, value_enum, default_value_t = Role::User)]
    pub role: Role,
    /// Prints the answer of /v1/checks.
    #[arg(long)]
    pub json: bool,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}

/// Role of a judged text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Role {
    /// A message of a user: input rails.
    User,
    /// An answer of a model: output rails.
    Assistant,
    /// A tool's result.
    Tool,
    /// A retrieved passage.
    Context,
}

impl Role {
    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Context => "context",
        }
    }
}

/// `fathom guard serve`.
#[derive(Group)]
pub struct GuardServe {
    /// Folder with guard.toml, or with subfolders that have one each.
    #[arg(long, value_name = "DIR")]
    pub config: PathBuf,
    /// Address to listen at; the default can be reached only from this machine.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen at; 0 for any free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// File of API keys, one per line; requests must have one.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Certificate (PEM) for TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}

/// Flags of a measurement: where its figures go, and the machine that computes.
#[derive(Group)]
pub struct FigureFlags {
    /// A page with the figures.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}

/// `fathom guard eval`.
#[derive(Group)]
pub struct GuardEval {
    /// Folder with guard.toml.
    #[arg(long, value_name = "DIR")]
    pub config: PathBuf,
    /// The interaction set: lines such as {"text": "..", "expected": "block", "direction": "input", "kind": ".."}.
    pub set: PathBuf,
    /// Where the figures go.
    #[command(flatten)]
    pub figures: FigureFlags,
}

/// `fathom guard calibrate`.
#[derive(Group)]
pub struct GuardCalibrate {
    /// Folder with guard.toml.
    #[arg(long, value_name = "DIR")]
    pub config: PathBuf,
    /// Name of the rail.
    #[arg(long)]
    pub rail: String,
    /// The interaction set; texts with "expected": "allow" are to pass, the others to be condemned.
    pub set: PathBuf,
    /// Most texts to pass that may be condemned, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub false_positives: f64,
    /// Where the figures go.
    #[command(flatten)]
    pub figures: FigureFlags,
}

/// `fathom guard audit`.
#[derive(Group)]
pub struct GuardAudit {
    /// A model, a folder with guard.toml, or the address of a server with OpenAI's chat completions (http://host:port or https://host).
    pub target: PathBuf,
    /// Name of the server's model.
    #[arg(long)]
    pub model: Option<String>,
    /// A file whose first line is the server's key.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Probes: JSON lines of this verb's own form, or a file of CyberSecEval; default: the corpus that comes with Fathom.
    #[arg(long, value_name = "FILE")]
    pub probes: Option<PathBuf>,
    /// Seed of the corpus, which chooses its canaries.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Most tokens of an answer.
    #[arg(long, default_value_t = 128)]
    pub max_tokens: usize,
    /// JSON lines with the outcome of every probe.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Where the figures go.
    #[command(flatten)]
    pub figures: FigureFlags,
}
