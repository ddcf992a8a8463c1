//! Flags of `fathom guard`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand};

use super::On;

/// `fathom guard`.
#[derive(Subcommand)]
pub enum Guard {
    /// Judges an interaction set: block and false refusal rates with their intervals, confusion by rail, latency.
    Eval(GuardEval),
    /// Chooses the threshold of a rail by labelled texts.
    Calibrate(GuardCalibrate),
    /// Sends probes to a model or a guard: attacks that succeed, and harmless messages that are refused.
    Audit(GuardAudit),
    /// Translates a folder of NeMo Guardrails to a guard.toml, and lists what it does not say.
    From {
        /// The folder with config.yml.
        folder: PathBuf,
        /// The file to write; default: it is printed.
        out: Option<PathBuf>,
    },
}

/// `fathom guard eval`.
#[derive(Group)]
pub struct GuardEval {
    /// The folder with guard.toml.
    pub config: PathBuf,
    /// The interaction set: lines such as {"text": "..", "expected": "block", "direction": "input", "kind": ".."}.
    pub set: PathBuf,
    /// A page with the rates.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}

/// `fathom guard calibrate`.
#[derive(Group)]
pub struct GuardCalibrate {
    /// The folder with guard.toml.
    pub config: PathBuf,
    /// The rail's name.
    pub rail: String,
    /// The interaction set; texts with "expected": "allow" are to pass, the others to be condemned.
    pub set: PathBuf,
    /// Most texts to pass that may be condemned, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub false_positives: f64,
    /// A page with the curve.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}

/// `fathom guard audit`.
#[derive(Group)]
pub struct GuardAudit {
    /// A model, or a folder with guard.toml.
    pub target: PathBuf,
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
    /// A page with the rates.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
}
