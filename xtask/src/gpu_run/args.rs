//! The arguments of `gpu-run`.

use std::path::PathBuf;

use super::stages::{Stage, names};

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct Args {
    /// Folder containing the programs `gpu` and `fathom`; if given, nothing is built.
    pub folder: Option<PathBuf>,
    /// Also run the stages that do not fit into the eight minutes.
    pub long: bool,
    /// Run only these stages, in this order.
    pub stages: Vec<&'static Stage>,
    /// Append the results to the month's page in `docs/log`.
    pub log: bool,
    /// Factor for all time limits: for a rehearsal, where the CPU does all the work.
    pub patience: u64,
}

impl Default for Args {
    fn default() -> Args {
        Args { folder: None, long: false, stages: Vec::new(), log: false, patience: 1 }
    }
}

impl Args {
    /// Parses the arguments after `gpu-run`.
    ///
    /// # Errors
    /// An argument is neither an option nor a folder, or names an unknown stage.
    pub fn parse(words: &[&str]) -> Result<Args, String> {
        let (mut args, mut words) = (Args::default(), words.iter());
        while let Some(word) = words.next() {
            match *word {
                "--long" => args.long = true,
                "--log" => args.log = true,
                "--patience" => {
                    let times = words.next().and_then(|times| times.parse().ok());
                    args.patience = times
                        .filter(|times| (1..=1000).contains(times))
                        .ok_or("--patience TIMES: from 1 to 1000, how many times as long each limit is")?;
                }
                "--stage" => {
                    let list = words.next().ok_or_else(|| format!("--stage NAME: one of {}", names()))?;
                    for name in list.split(',') {
                        args.stages.push(Stage::named(name).ok_or_else(|| {
                            format!("--stage {name}: there is no such stage; they are {}", names())
                        })?);
                    }
                }
                option if option.starts_with('-') => {
                    return Err(format!("{option}: gpu-run has no such option"));
                }
                folder if args.folder.is_none() => args.folder = Some(folder.into()),
                other => return Err(format!("{other}: one folder has the programs already")),
            }
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::Args;

    #[test]
    fn stages_can_be_run_alone() {
        let args = Args::parse(&["--stage", "rates,longest", "--log", "brought"]).unwrap();
        assert_eq!((args.stages.len(), args.log, args.folder), (2, true, Some("brought".into())));
        assert!(Args::parse(&["--long"]).unwrap().long);
        assert_eq!(Args::parse(&["--patience", "30"]).unwrap().patience, 30);
        for (words, named) in [
            (&["--stage", "rate"][..], "rates"),
            (&["--stage"], "longest"),
            (&["--fast"], "--fast"),
            (&["--patience", "0"], "--patience"),
            (&["a", "b"], "b"),
        ] {
            let message = Args::parse(words).unwrap_err();
            assert!(message.contains(named), "{message}");
        }
    }
}
