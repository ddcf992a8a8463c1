//! Signals to and from supervised processes.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;

/// Polling interval for the job and signals.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Sends a signal by the shell's `kill`. The job may have ended by itself, which the next check finds.
pub(super) fn kill(signal: i32, whom: &str) -> Result<()> {
    let kill = format!("kill -{signal} {whom} 2>/dev/null");
    Command::new("sh").args(["-c", &kill]).status().context("cannot pass a signal on").map(drop)
}

/// A watched signal.
pub(super) struct Signal {
    pub(super) number: i32,
    /// Set when it arrives; cleared by each check.
    pub(super) came: Arc<AtomicBool>,
    /// Whether it arrived before the last check.
    pub(super) before: bool,
}

impl Signal {
    pub(super) fn watched(number: i32) -> Result<Signal> {
        let came = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(number, came.clone()).context("cannot watch for signals")?;
        Ok(Signal { number, came, before: false })
    }
}
