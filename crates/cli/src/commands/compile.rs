//! `fathom compile-structure`, which a server starts: compiles the structure on standard input, and ends where that takes too long or too
//! much memory.

use std::io::Read;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fathom_app::serve::compile_structure::{MOST_MEMORY, TOO_LARGE, TOO_LONG, answer};

/// Between two looks at what it takes.
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

/// Ends the process at its limits: whatever it does then is left undone.
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

/// What this process holds in memory.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
