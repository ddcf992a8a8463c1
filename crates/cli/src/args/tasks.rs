//! Flags of `fathom eval --tasks`.

use std::path::PathBuf;

use clap::Args as Group;
use fathom_train::recipe::Precision;

/// Tasks in the format of lm-evaluation-harness.
#[derive(Group)]
#[command(next_help_heading = "Tasks")]
pub struct Tasks {
    /// Tasks, groups or tags by name, patterns with `*`, or task files, with commas between them: `nemo-reasoning`,
    /// `arc_easy,mmlu_stem`. Their sets are local; nothing is downloaded.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    #[arg(conflicts_with_all = ["data", "seconds", "needle_trials", "reward_bench", "retrieval"])]
    pub tasks: Vec<String>,
    /// Folder of further task files (YAML).
    #[arg(long, requires = "tasks", value_name = "DIR")]
    pub tasks_dir: Option<PathBuf>,
    /// Folder of sets: `OWNER__SET/NAME/SPLIT.jsonl` (or .csv, .parquet), or copies of their repositories.
    #[arg(long, requires = "tasks", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Runs generated programs of tasks (`humaneval`, `mbpp`, metric `pass_at_k`), each in a jail without a network.
    #[arg(long, requires = "tasks")]
    pub run_programs: bool,
    /// Lengths of RULER's tasks in tokens, prompt and answer together, for `--tasks ruler` and `ruler_offline`; default:
    /// 4096.
    #[arg(long, requires = "tasks", value_delimiter = ',', value_name = "TOKENS")]
    pub lengths: Vec<usize>,
    /// Type of the weights; default: as stored.
    #[arg(long, requires = "tasks")]
    pub precision: Option<Precision>,
    /// Items per task, at most; below 1 a share of them. Only for trying things out.
    #[arg(long, requires = "tasks", value_name = "N")]
    pub limit: Option<f64>,
    /// Number of examples before each item, for tasks whose file does not say 0.
    #[arg(long, requires = "tasks", value_name = "K")]
    pub num_fewshot: Option<usize>,
    /// Resamples for standard errors of figures that are no means; 0 for no standard errors.
    #[arg(long, requires = "tasks", default_value_t = fathom_app::tasks::RESAMPLES, value_name = "N")]
    pub bootstrap_iters: usize,
    /// Puts contexts through the model's chat template.
    #[arg(long, requires = "tasks")]
    pub apply_chat_template: bool,
    /// With a chat template: makes each example a turn of the conversation.
    #[arg(long, requires = "apply_chat_template")]
    pub fewshot_as_multiturn: bool,
    /// Text before the descriptions of tasks.
    #[arg(long, requires = "tasks", value_name = "TEXT")]
    pub system_instruction: Option<String>,
    /// File of the results, as lm-evaluation-harness writes them. A run that was killed goes on with it. Of a comparison,
    /// its page.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Writes each item with its answers next to the results.
    #[arg(long, requires = "out")]
    pub log_samples: bool,
    /// Compares files of results with the first of them.
    #[arg(long, value_delimiter = ',', value_name = "FILES", conflicts_with_all = ["tasks", "model"])]
    pub compare: Vec<PathBuf>,
}
