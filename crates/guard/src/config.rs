//! `guard.toml`: settings, rails and tools, typed. Loading checks everything: errors name the file, the line and the
//! nearest name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::rail::{Action, Horizon, Manifest, Rail};
use crate::verdict::Direction;

/// Name of the file in the folder of a configuration.
pub const FILE: &str = "guard.toml";

/// Treatment of an answer's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reasoning {
    /// Judged like the answer.
    #[default]
    Judge,
    /// Removed from the answer.
    Drop,
}

/// Consequence of a failed rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The text is blocked.
    #[default]
    Block,
    /// The text passes; the guard reports that it is degraded.
    Allow,
}

/// Text of a stream that is held for a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Only as much as the rail's horizon requires.
    Window,
    /// All of it until the answer has ended.
    All,
}

/// Settings of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSettings {
    /// Folder of the log, relative to the configuration.
    pub folder: PathBuf,
    /// Records the judged texts themselves.
    pub text: bool,
    /// Size at which a file is closed and the next one begins, in MiB.
    pub rotate_mib: u64,
    /// File with the secret of texts' hashes; a random one is created if it does not exist.
    pub secret: PathBuf,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        AuditSettings { folder: "audit".into(), text: false, rotate_mib: 64, secret: "audit.secret".into() }
    }
}

/// The table `[guard]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardSettings {
    /// Treatment of an answer's reasoning.
    pub reasoning: Reasoning,
    /// Tokens of an answer between two judgements on a stream.
    pub window: usize,
    /// Bytes of an answer that are held at most; beyond, the answer is blocked.
    pub max_held: usize,
    /// Sends text before it is judged, and only stops the rest.
    pub stream_first: bool,
    /// Starts the answer while rails still judge the prompt, if none of them rewrites it.
    pub speculative: bool,
    /// Time limit of a rail that asks a model, in milliseconds.
    pub timeout_ms: u64,
    /// Time limit of other rails, in milliseconds.
    pub text_timeout_ms: u64,
    /// Answer in place of a refused one.
    pub refusal: String,
    /// Lets requests of a model leave rails out (`guardrails.options.rails`); `/v1/checks` always does.
    pub selectable: bool,
    /// Judges texts of embeddings, classification and log-probabilities as input.
    pub evaluate: bool,
    /// Audit log; none without this table.
    pub audit: Option<AuditSettings>,
}

impl Default for GuardSettings {
    fn default() -> GuardSettings {
        GuardSettings {
            reasoning: Reasoning::Judge,
            window: 32,
            max_held: 64 << 10,
            stream_first: false,
            speculative: false,
            timeout_ms: 10_000,
            text_timeout_ms: 1_000,
            refusal: "I cannot help with that.".into(),
            selectable: false,
            evaluate: true,
            audit: None,
        }
    }
}

/// A rule of a tool: the table `[tools.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRule {
    /// Allows calls of the tool.
    pub allow: bool,
    /// Expression over `args`, `tool` and `result` that denies a call when true (a subset of CEL).
    #[serde(default)]
    pub deny_when: Option<String>,
    /// Calls of the tool in one thread at most.
    #[serde(default)]
    pub max_calls: Option<u64>,
    /// Bytes of the tool's results in one thread at most.
    #[serde(default)]
    pub max_result_bytes: Option<u64>,
    /// Argument whose numbers are summed over a thread.
    #[serde(default)]
    pub spend: Option<String>,
    /// Maximum of that sum.
    #[serde(default)]
    pub max_spend: Option<f64>,
    /// Keys that may call the tool; all if empty.
    #[serde(default)]
    #[serde(deserialize_with = "crate::registry::list")]
    pub keys: Vec<String>,
}

/// Settings that every rail has, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Name in verdicts, unique in the configuration; by default that of its kind.
    pub name: String,
    /// Directions that it judges.
    pub on: Vec<Direction>,
    /// Treatment of a text in which it finds something.
    pub action: Action,
    /// Consequence of its failure.
    pub on_failure: OnFailure,
    /// Time limit in milliseconds.
    pub timeout_ms: u64,
    /// Tokens between two judgements on a stream.
    pub window: usize,
    /// Text held on a stream; by its horizon if not given.
    pub hold: Option<Hold>,
    /// Answer in place of a refused one.
    pub message: Option<String>,
    /// Tools to which it is restricted; all if empty.
    pub tools: Vec<String>,
    /// Rules of tools of the configuration.
    pub rules: Arc<BTreeMap<String, ToolRule>>,
}

/// A rail of a configuration.
#[derive(Clone)]
pub struct ConfiguredRail {
    /// Its settings.
    pub setting: Setting,
    /// Static facts of its kind.
    pub manifest: &'static Manifest,
    /// The rail.
    pub rail: Arc<dyn Rail>,
}

impl ConfiguredRail {
    /// Returns whether it changes texts.
    pub fn rewrites(&self) -> bool {
        self.setting.action.rewrites()
    }

    /// Returns whether a stream is held to its end for this rail.
    pub fn holds_all(&self) -> bool {
        match self.setting.hold {
            Some(hold) => hold == Hold::All,
            None => self.rail.horizon() == Horizon::Whole,
        }
    }
}

/// A loaded configuration; never changed, replaced as a whole.
#[derive(Clone)]
pub struct Config {
    /// Name: that of its folder.
    pub id: String,
    /// The table `[guard]`.
    pub settings: GuardSettings,
    /// Rails in the order of the file.
    pub rails: Vec<ConfiguredRail>,
    /// Rules of tools.
    pub tools: Arc<BTreeMap<String, ToolRule>>,
    /// Hash of the file's text.
    pub hash: String,
    /// Things that the file allows and that are not recommended; for the log.
    pub warnings: Vec<String>,
    /// Folder of the file.
    pub folder: PathBuf,
}

/// A wrong part of a file.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {message}", file.display())]
pub struct FileError {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Problem and remedy.
    pub message: String,
}

/// Error of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] fathom_base::Error),
    /// A part of the file is wrong.
    #[error(transparent)]
    Wrong(#[from] FileError),
}

impl Config {
    /// The rails of a direction, in the order of the file.
    pub fn on(&self, direction: Direction) -> impl Iterator<Item = &ConfiguredRail> {
        self.rails.iter().filter(move |rail| rail.setting.on.contains(&direction))
    }

    /// Returns whether a rail rewrites texts of a direction.
    pub fn rewrites(&self, direction: Direction) -> bool {
        self.on(direction).any(ConfiguredRail::rewrites)
    }
}
