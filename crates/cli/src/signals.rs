//! Signals that ask a program to save and stop.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
#[cfg(feature = "curate")]
use signal_hook::flag::{register, register_conditional_default, register_conditional_shutdown};

/// Sets `stop` when the process is asked to end. A second signal of the kind ends it at once; one of another kind asks for what
/// was asked already.
pub fn ask(stop: &Arc<AtomicBool>) -> Result<()> {
    for signal in [SIGTERM, SIGUSR1, SIGINT] {
        let came = Arc::new(AtomicBool::new(false));
        register_conditional_shutdown(signal, 128 + signal, came.clone())
            .and_then(|_| register(signal, came))
            .and_then(|_| register(signal, stop.clone()))
            .context("cannot watch for signals")?;
    }
    hang_up(stop)
}

/// Sets `stop` when the process is asked to end. A second signal ends it at once, whichever it is.
#[cfg(feature = "curate")]
pub fn ask_once(stop: &Arc<AtomicBool>) -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // The second signal ends the process as usual.
        register_conditional_default(signal, stop.clone())
            .and_then(|_| register(signal, stop.clone()))
            .context("cannot listen to signals")?;
    }
    hang_up(stop)
}

/// Sets `stop` when the terminal goes, which may be said twice: by the shell and by the system. Under `nohup`, which has the
/// signal ignored, nothing is asked.
fn hang_up(stop: &Arc<AtomicBool>) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !is_ignored(&status, SIGHUP) {
        register(SIGHUP, stop.clone()).context("cannot watch for signals")?;
    }
    Ok(())
}

/// Whether a process ignores a signal, by its `/proc/PID/status`.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_known() {
        let status = "Name:\tfathom\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP) && !is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGHUP));
    }
}
