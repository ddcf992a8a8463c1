//! Ranks on this machine.

use std::process::Command;

use anyhow::{Context, Result};

use super::text::command;
use super::work::{Work, code, this_program};
use crate::args::Local;
use crate::exit::ExitCode;

/// Prints the command, or runs it.
pub fn run(args: &Local) -> Result<ExitCode> {
    let words = words(args)?;
    if !args.job.submit {
        outln!("{}", command(&words));
        return Ok(ExitCode::SUCCESS);
    }
    let status = Command::new(&words[0]).args(&words[1..]).status();
    Ok(code(status.with_context(|| format!("cannot start {}", words[0]))?))
}

/// Threads of one process, or mpirun processes if this binary supports them.
fn words(args: &Local) -> Result<Vec<String>> {
    let work = Work::of(&args.job)?;
    let program = work.program(this_program);
    let mut words = work.supervise(&program);
    if work.ranks > 1 && cfg!(feature = "mpi") && !args.threads {
        words.extend(mpirun(work.ranks));
        if is_root() {
            words.push("--allow-run-as-root".into());
        }
    }
    words.extend(work.train(&program, None));
    Ok(words)
}

/// `mpirun` for this many ranks. They divide the cores among themselves, so they are not bound.
pub fn mpirun(ranks: usize) -> Vec<String> {
    let words = format!("mpirun --oversubscribe --bind-to none -n {ranks}");
    words.split(' ').map(String::from).collect()
}

/// Returns whether this runs as root, which mpirun refuses without an option, as needed in containers.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    ids.split_whitespace().nth(1) == Some("0")
}
