//! `fathom compile-structure`, started by a server: compiles the structure on standard input within limits of time
//! and memory.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fathom_app::serve::compile_structure::{MOST_MEMORY, TOO_LARGE, TOO_LONG, answer};

use crate::exit::ExitCode;

/// Interval between checks of the limits.
const LOOK: Duration = Duration::from_millis(5);

/// Runs the verb.
pub fn run(seconds: f64) -> Result<ExitCode> {
    let most = Duration::try_from_secs_f64(seconds).context("the seconds that it may take")?;
    thread::Builder::new().name("limits".into()).spawn(move || watch(most))?;
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).context("standard input")?;
    Ok(match answer(&input) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            outln!("{why}");
            ExitCode::FAILURE
        }
    })
}

/// Exits the process at its limits, abandoning its work.
fn watch(most: Duration) {
    let started = Instant::now();
    loop {
        thread::sleep(LOOK);
        if started.elapsed() > most {
            std::process::exit(TOO_LONG.into());
        }
        if resident_bytes().is_some_and(|bytes| bytes > MOST_MEMORY) {
            std::process::exit(TOO_LARGE.into());
        }
    }
}

/// Resident memory of this process.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
