//! Flags of `fathom eval --judge`.

use std::path::PathBuf;

use clap::Args as Group;

/// Answers that another model judges.
#[derive(Group)]
#[command(next_help_heading = "Judged answers")]
pub struct Judge {
    /// Has MODEL's answers judged by the model of a folder, or of a server that speaks OpenAI's chat completions
    /// (`http://host:port`). MODEL may be a file of answers.
    #[arg(long, value_name = "DIR|URL", conflicts_with_all = ["tasks", "data", "reward_bench", "retrieval"])]
    pub judge: Option<String>,
    /// File of answers to compare with, each pair in both orders: rows of `instruction` and `output`. Gives the win rate, and the
    /// length-controlled one of AlpacaEval 2.
    #[arg(long, requires = "judge", value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// File of instructions whose answers are rated from 1 to 10: rows of `instruction`.
    #[arg(long, requires = "judge", value_name = "FILE", conflicts_with = "against")]
    pub instructions: Option<PathBuf>,
    /// Name of the server's model that judges.
    #[arg(long, requires = "judge", value_name = "NAME")]
    pub judge_model: Option<String>,
    /// File whose first line is the server's API key.
    #[arg(long, requires = "judge", value_name = "FILE")]
    pub judge_key_file: Option<PathBuf>,
    /// Tokens of an answer, at most.
    #[arg(long, requires = "judge", default_value_t = 512, value_name = "N")]
    pub answer_tokens: usize,
    /// Tokens of a judge's text, at most.
    #[arg(long, requires = "judge", default_value_t = 512, value_name = "N")]
    pub judge_tokens: usize,
}
