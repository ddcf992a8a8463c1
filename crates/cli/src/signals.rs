//! Signals that request saving and stopping.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
#[cfg(feature = "curate")]
use signal_hook::flag::register_conditional_default;
use signal_hook::flag::{register, register_conditional_shutdown};

/// Sets `stop` when the process is asked to end. A second signal of the same kind ends it at once; another kind only
/// repeats the request.
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

/// Sets `stop` when the process is asked to end. A second signal of any kind ends it at once.
#[cfg(feature = "curate")]
pub fn ask_once(stop: &Arc<AtomicBool>) -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // The second signal has its default effect.
        register_conditional_default(signal, stop.clone())
            .and_then(|_| register(signal, stop.clone()))
            .context("cannot listen to signals")?;
    }
    hang_up(stop)
}

/// Sets `stop` on a hang-up, which the shell and the system may both signal. Under `nohup`, which ignores the signal,
/// it has no effect.
fn hang_up(stop: &Arc<AtomicBool>) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !is_ignored(&status, SIGHUP) {
        register(SIGHUP, stop.clone()).context("cannot watch for signals")?;
    }
    Ok(())
}

/// Returns whether a process ignores a signal, from its `/proc/PID/status`.
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
