//! Flags of the verbs over many runs: ladders of scaling laws, lists of runs, the board.

use std::path::PathBuf;

use clap::{Args as Group, ValueEnum};

/// `fathom scale`.
#[derive(Group)]
pub struct Scale {
    /// A shipped recipe's name, or a file; its table `scale` describes the ladder.
    pub recipe: String,
    /// Recipe keys.
    #[arg(value_name = "PATH=VALUE")]
    pub settings: Vec<String>,
    /// Time for all rungs together, such as 2h, 90m or 300s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub budget: f64,
    /// Folder of the ladder (`run.out`).
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Prints the planned ladder and trains nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Prints one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Order of a list of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunOrder {
    /// By name.
    Name,
    /// The newest first.
    Start,
    /// The lowest held-out loss first, or the last loss of runs without one.
    Loss,
}

/// `fathom runs`.
#[derive(Group)]
pub struct Runs {
    /// The folder that holds the folders of runs, at any depth.
    pub folder: PathBuf,
    /// Compares two runs: recipes, plans, figures, and the first step where their bits differ.
    #[arg(long, num_args = 2, value_names = ["RUN", "RUN"])]
    pub diff: Option<Vec<String>>,
    /// Tags a run; may be repeated.
    #[arg(long, value_name = "RUN=TAG", conflicts_with = "diff")]
    pub tag: Vec<String>,
    /// Removes a tag of a run; may be repeated.
    #[arg(long, value_name = "RUN=TAG", conflicts_with = "diff")]
    pub untag: Vec<String>,
    /// Lists runs with this tag alone; may be repeated.
    #[arg(long, value_name = "TAG", conflicts_with = "diff")]
    pub only: Vec<String>,
    /// Order of the list.
    #[arg(long, value_enum, default_value = "name")]
    pub sort: RunOrder,
    /// Prints one JSON object per run, with its recipe.
    #[arg(long)]
    pub json: bool,
}

/// `fathom board`.
#[derive(Group)]
pub struct Board {
    /// The folder that holds the folders of runs, at any depth.
    pub folder: PathBuf,
    /// The port; 0 for any free one.
    #[arg(long, default_value_t = 6007)]
    pub port: u16,
    /// The address to listen at; others than this machine's own show the runs to everyone who can reach it.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
}

/// `fathom watch`.
#[derive(Group)]
pub struct Watch {
    /// The folder of the run.
    pub run: PathBuf,
    /// Prints one picture instead.
    #[arg(long)]
    pub once: bool,
}

/// Reads a time in seconds: a number with `s`, `m`, `h` or `d`.
fn duration(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let factor = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err("write a number with its unit: 90m, 2h, 300s or 1d".into()),
    };
    let number = number.parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0);
    number.map(|number| number * factor).ok_or_else(|| "it is no positive number".into())
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn times_have_units() {
        assert_eq!(
            ["2h", "90m", "1.5d", "300s"].map(|text| duration(text).unwrap()),
            [7200.0, 5400.0, 129_600.0, 300.0]
        );
        for text in ["2", "h", "-1h", "2 h", "infs", "1w"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
