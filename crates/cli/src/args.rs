//! The verbs and their flags. Settings of a run are recipe keys, given as `path=value`, not flags.

pub mod bench;
mod cluster;
mod convert;
mod curate;
mod dist;
mod guard;
mod inspect;
mod judged;
mod quality;
mod retrieval;
mod serve;
mod tasks;
mod track;
mod train;

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fathom_app::foreign::METHODS;

use fathom_train::recipe::Precision;

pub use bench::Bench;
#[cfg(feature = "ballista")]
pub use cluster::Listen;
#[cfg(feature = "curate")]
pub use cluster::{Executor, Scheduler};
pub use convert::{Convert, Prune, Quantize, Score};
pub use dist::{Doctor, Job, Kubernetes, Launch, Local, Machines, Manifest, Slurm, Supervise};
pub use guard::{Guard, GuardAudit, GuardCalibrate, GuardCheck, GuardEval, GuardServe};
pub use judged::Judge;
#[cfg(feature = "curate")]
pub use quality::TrainQuality;
pub use retrieval::{Index, Ranking, Search};
pub use serve::{Mesh, Prefixes, Serve};
pub use tasks::Tasks;
pub use track::{Board, RunOrder, Runs, Scale, Watch};
pub use train::{On, Rank, Train};

use crate::{console, version};
pub use curate::Curate;
#[cfg(feature = "curate")]
pub use curate::{CurateVerb, Where};
pub use inspect::{Inspect, InspectModel, InspectRecipe};

/// Trains, extends and runs language models over millions of tokens, on the hardware you have.
#[derive(Parser)]
#[command(name = "fathom", bin_name = "fathom", version, long_version = version::long(), max_term_width = 110)]
#[command(styles = console::HELP)]
pub struct Args {
    /// Prints only results, warnings and errors.
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Also prints the version, the keys that a recipe sets, every step, and each cause of an error.
    #[arg(long, short, global = true)]
    pub verbose: bool,
    /// The action.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    /// Makes a working model from raw text: curates, trains, extends, measures, exports, reports.
    Quickstart(Quickstart),
    /// Lists, shows or copies the shipped recipes.
    Recipes {
        /// Action.
        #[command(subcommand)]
        action: Recipes,
    },
    /// Trains by a recipe; resumes when run again on the same folder.
    Train(Train),
    /// Cleans, filters, deduplicates and tokenises text by a recipe; resumes when run again on the same folder.
    Curate(Curate),
    /// Predicts a run's memory to the byte, and its time, by running it without data.
    Plan(Plan),
    /// Fits scaling laws: trains a ladder of sizes within a time budget, and predicts a larger run before it trains it. Run again, it
    /// goes on.
    Scale(Scale),
    /// Measures a model: bits per byte, loss by position, needle retrieval.
    Eval(Eval),
    /// Scores answers by a model's likelihood, best tokens or reward, and writes the scores into the rows.
    Score(Score),
    /// Continues a prompt.
    Generate(Generate),
    /// Chats with a model, by its chat template.
    Chat(Chat),
    /// Serves models over HTTP: OpenAI's endpoints, and a page for chat and monitoring.
    Serve(Serve),
    /// Measures guardrails, and translates those of NeMo.
    Guard {
        /// The verb.
        #[command(subcommand)]
        what: Guard,
    },
    /// Makes documents searchable: Markdown, text, web pages, PDFs, JSON lines, source code. Run again, it reads what changed.
    Index(Index),
    /// Finds the passages of an index that answer a query.
    Search(Search),
    /// Compiles the structure of an answer for a server.
    #[command(hide = true)]
    CompileStructure {
        /// Time limit in seconds.
        seconds: f64,
    },
    /// Lists or erases the prompt prefixes that `fathom serve --prefix-store` keeps.
    Prefixes(Prefixes),
    /// Inspects training data.
    Data {
        /// The action.
        #[command(subcommand)]
        action: DataAction,
    },
    /// Measures this machine; prints one JSON object per line.
    Bench {
        /// The benchmark.
        #[command(subcommand)]
        what: Bench,
    },
    /// Writes a run's or checkpoint's model as a Hugging Face folder, or as a .gguf file for llama.cpp.
    Export(Convert),
    /// Writes a model with quantized weights.
    Quantize(Quantize),
    /// Writes a smaller model, without the layers, channels, heads and MLP columns that matter least for some text.
    Prune(Prune),
    /// Converts a Hugging Face folder to Fathom's own layout of the same format.
    Import(Convert),
    /// Prints a model's logits, gradients or activations.
    Inspect {
        /// Part that is printed.
        #[command(subcommand)]
        what: Inspect,
    },
    /// Writes the report of a run from its log, also while it runs or after it failed.
    Report {
        /// The folder of the run.
        run: PathBuf,
        /// The page to write; default: `report.html` in the run's folder.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Compares two runs and finds the first step where their bits differ.
    Diff {
        /// The folder of a run.
        left: PathBuf,
        /// The folder of another run.
        right: PathBuf,
        /// Prints one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Lists, compares and tags the runs of a folder.
    Runs(Runs),
    /// Shows the runs of a folder in a browser while they go on.
    Board(Board),
    /// Shows a run on the whole terminal while it goes on.
    Watch(Watch),
    /// Reports what this machine can do, and checks that Fathom works on it.
    Doctor(Doctor),
    /// Writes or submits a job that trains a recipe on many ranks.
    Launch {
        /// The scheduler or machine that runs the job.
        #[command(subcommand)]
        on: Launch,
    },
    /// Restarts a job from its last checkpoint when it dies: fathom supervise -- mpirun ... fathom train ...
    Supervise(Supervise),
    /// Prints completions for a shell: fathom completions bash > /etc/bash_completion.d/fathom.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page of a verb, or writes all pages.
    Man {
        /// Verb, such as `bench step`; default: `fathom` itself.
        verb: Vec<String>,
        /// A folder for the pages of all verbs.
        #[arg(long, value_name = "DIR", conflicts_with = "verb")]
        out: Option<PathBuf>,
    },
}

/// `fathom quickstart`.
#[derive(Group)]
pub struct Quickstart {
    /// Minutes for the whole run.
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Number of steps of each stage, instead of --minutes; two such runs are identical.
    #[arg(long)]
    pub steps: Option<u64>,
    /// Folder of the run.
    #[arg(long, default_value = "out/quickstart")]
    pub out: PathBuf,
    /// Your own text: files or folders of .txt .md .rs .html .jsonl .jsonl.zst .jsonl.gz .parquet. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub data: Vec<PathBuf>,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE", last = false)]
    pub settings: Vec<String>,
}

/// `fathom recipes`.
#[derive(Subcommand)]
pub enum Recipes {
    /// Lists the shipped recipes, by group.
    Ls,
    /// Prints a resolved recipe, with the source of each value.
    Show {
        /// A shipped recipe's name, or a file.
        name: String,
        /// Recipe keys.
        #[arg(value_name = "PATH=VALUE")]
        settings: Vec<String>,
    },
    /// Copies a shipped recipe to a file.
    Cp {
        /// The recipe's name.
        name: String,
        /// The file; default: `NAME.toml`.
        file: Option<PathBuf>,
    },
    /// Prints a JSON schema of the recipe keys, with which editors complete and check recipes.
    Schema {
        /// Prints the schema of curation recipes.
        #[arg(long)]
        curate: bool,
    },
    /// Translates a YAML file of axolotl, LLaMA-Factory, torchtune or TRL to a recipe, and lists what cannot be
    /// translated.
    From {
        /// The file.
        file: PathBuf,
        /// File for the recipe; default: standard output.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Training method, if not the one that the keys suggest.
        #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(METHODS))]
        method: Option<String>,
    },
}

fn ranks() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1024)
}

fn threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(..=4096)
}

fn counted() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 30)
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// `fathom plan`.
#[derive(Group, Default)]
pub struct Plan {
    /// A shipped recipe's name, or a file.
    pub recipe: String,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE")]
    pub settings: Vec<String>,
    /// Prints one JSON object per stage.
    #[arg(long)]
    pub json: bool,
    /// Memory limit of a step, such as 24GiB; default: the recipe's, else the machine's memory.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Machine to plan for: cpu, h100, h200, b200, with interconnect dgx-h100, dgx-h200, dgx-b200, or a file of
    /// `fathom bench profile --out`.
    #[arg(long, value_name = "NAME|FILE")]
    pub machine_profile: Option<String>,
    /// Explains the peak and names the single change that lowers it most.
    #[arg(long)]
    pub why: bool,
    /// Searches for the longest sequence (`max-tokens`) or the best meshes of --gpus ranks (`mesh`).
    #[arg(long, value_enum)]
    pub solve: Option<Question>,
    /// Number of ranks for --solve mesh; default: as in the recipe.
    #[arg(long, value_name = "N", requires = "solve")]
    pub gpus: Option<usize>,
    /// Prints the result of --solve mesh as a row of a Markdown table, next to the recipe's mesh.
    #[arg(long, requires = "solve", conflicts_with = "json")]
    pub markdown: bool,
    /// Writes a Chrome trace for Perfetto: a step of each stage on the recipe's mesh.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Writes the plan as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Questions that `fathom plan --solve` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// The longest sequence that fits, under the best table of places.
    MaxTokens,
    /// The best meshes.
    Mesh,
}

/// Sampling flags.
#[derive(Group)]
pub struct Sampling {
    /// Divides the logits: higher is more random, 0 takes the most likely token. Default: 0; for chat the model's
    /// generation_config.json, as for the next four flags.
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Keeps the k most likely tokens; default: 0, all.
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Keeps the smallest set of tokens that reaches this probability; default: 1.
    #[arg(long)]
    pub top_p: Option<f64>,
    /// Drops tokens less likely than this fraction of the most likely one; default: 0.
    #[arg(long)]
    pub min_p: Option<f64>,
    /// Penalises tokens that have occurred; default: 1, no penalty.
    #[arg(long)]
    pub repetition_penalty: Option<f64>,
    /// Seed of the sampler.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Maximum number of new tokens; default: 256, or what fits into the context.
    #[arg(long, value_parser = at_least_one())]
    pub max_tokens: Option<usize>,
    /// Stops before this text; may be repeated.
    #[arg(long)]
    pub stop: Vec<String>,
}

/// `fathom generate`.
#[derive(Group)]
pub struct Generate {
    /// The folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Folder of an adapter for the model, or of the run that trained it.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// The prompt; default: standard input.
    pub prompt: Option<String>,
    /// Sampling flags.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Maximum number of tokens of prompt and answer together; default: the model's context.
    #[arg(long)]
    pub context: Option<usize>,
    /// Type of the weights; default: as stored.
    #[arg(long)]
    pub precision: Option<Precision>,
    /// Prints the token ids of the answer instead of its text.
    #[arg(long)]
    pub ids: bool,
    /// The ranks.
    #[command(flatten)]
    pub mesh: Mesh,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// Threads; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
}

/// `fathom data`.
#[derive(Subcommand)]
pub enum DataAction {
    /// Tokenises every row and shows which tokens are learned.
    Check(DataCheck),
}

/// `fathom data check`.
#[derive(Group)]
pub struct DataCheck {
    /// A file of rows, or a recipe's name or file.
    pub subject: String,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE")]
    pub settings: Vec<String>,
    /// The model's folder (`model.from`).
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Number of rows to show.
    #[arg(long, default_value_t = 3)]
    pub rows: usize,
    /// Prints one JSON object per row, in order: `ids`, `supervised` (0 or 1 each) and `text`.
    #[arg(long)]
    pub json: bool,
}

/// `fathom chat`.
#[derive(Group)]
pub struct Chat {
    /// The folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Folder of an adapter for the model, or of the run that trained it.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// File with a chat template; default: the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Sampling flags.
    #[command(flatten)]
    pub sampling: Sampling,
    /// Maximum number of tokens of the conversation; default: the model's context, but at most 8192.
    #[arg(long)]
    pub context: Option<usize>,
    /// Type of the weights; default: as stored.
    #[arg(long)]
    pub precision: Option<Precision>,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// Threads; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
}

/// `fathom eval`.
#[derive(Group)]
pub struct Eval {
    /// The folder of a run, or a Hugging Face folder.
    #[arg(required_unless_present_any = ["retrieval", "compare"])]
    pub model: Option<PathBuf>,
    /// Folder of an adapter for the model, or of the run that trained it.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Text to measure on; may be repeated. Default: the run's held-out documents.
    #[arg(long, value_name = "PATH")]
    pub data: Vec<PathBuf>,
    /// Longest sequence in tokens; default: the model's context, up to 32768.
    #[arg(long)]
    pub tokens: Option<usize>,
    /// Time limit in seconds; default: none.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Trials per length and depth of the needle test; 0 skips it.
    #[arg(long, default_value_t = 3)]
    pub needle_trials: usize,
    /// Prints a reward model's accuracy by subset of a RewardBench file: JSON lines of `prompt`, `chosen`, `rejected`,
    /// `subset`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["adapter", "data", "tokens", "seconds", "needle_trials"])]
    pub reward_bench: Option<PathBuf>,
    /// Measures a search: nDCG, MRR and recall on a folder in the layout of BEIR (`corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv`), by BM25,
    /// or with the encoder that MODEL names.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["adapter", "data", "tokens", "seconds", "needle_trials", "reward_bench"])]
    pub retrieval: Option<PathBuf>,
    /// Measures an encoder of vectors: how well cosines agree with the judged similarity of pairs, in JSON lines of `sentence1`, `sentence2`,
    /// `score` (STS): Spearman's and Pearson's correlation.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["adapter", "data", "tokens", "seconds", "needle_trials", "reward_bench", "retrieval"])]
    pub sts: Option<PathBuf>,
    /// Measures an encoder with labels: macro F1 and accuracy on JSON lines of `text` and `label`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["adapter", "data", "tokens", "seconds", "needle_trials", "reward_bench", "retrieval", "sts"])]
    pub labels: Option<PathBuf>,
    /// How to rank.
    #[command(flatten)]
    pub ranking: Ranking,
    /// Tasks of lm-evaluation-harness.
    #[command(flatten)]
    pub tasks: Tasks,
    /// Answers that another model judges.
    #[command(flatten)]
    pub judged: Judge,
    /// The machine that computes.
    #[arg(long, value_enum, default_value = "auto")]
    pub machine: On,
    /// Prints one JSON object per line.
    #[arg(long)]
    pub json: bool,
}
