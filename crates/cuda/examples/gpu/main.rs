//! Checks of a device before anything is claimed about it, and checks that need no device. Prints one JSON object per
//! line.
//!
//! ```text
//! gpu device            libraries, the device; fails where there is none
//! gpu plans             cuDNN accepts every graph of attention for a described H200; needs a loadable driver, any stub will do
//! gpu parity            every operation against the CPU machine
//! gpu rates             the device, products, attention, copies
//! gpu pinned            how much of the host's memory can be pinned
//! gpu free              waits until the device's memory is free again
//! gpu ranks             ranks as streams of one device, NCCL, blocks as graphs
//! gpu nccl AT RANK OF   one of several processes that meet at host:port, with a device each
//! ```
mod experts;
mod memory;
mod parity;
mod plans;
mod ranks;
mod rates;

use std::process::ExitCode;

/// Result of a check, printed as a line.
pub struct Line {
    /// Name of the check.
    pub what: String,
    /// True if the check passed.
    pub ok: bool,
    /// Figures and text.
    pub found: String,
}

impl Line {
    /// Prints the result as JSON.
    fn print(&self) {
        let text = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
        println!(
            "{{\"what\":\"{}\",\"ok\":{},\"found\":\"{}\"}}",
            text(&self.what),
            self.ok,
            text(&self.found)
        );
    }
}

/// Results, printed as they arrive.
#[derive(Default)]
pub struct Lines {
    failed: usize,
}

impl Lines {
    /// Adds a result.
    pub fn say(&mut self, what: impl Into<String>, ok: bool, found: impl Into<String>) {
        Line { what: what.into(), ok, found: found.into() }.print();
        self.failed += usize::from(!ok);
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut lines = Lines::default();
    match args.first().map(String::as_str) {
        Some("plans") => plans::run(&mut lines),
        Some("parity") => parity::run(&mut lines),
        Some("rates") => rates::run(&mut lines),
        Some("pinned") => rates::pinned(&mut lines),
        Some("free") => rates::free(&mut lines),
        Some("device") => rates::device(&mut lines),
        Some("ranks") => ranks::run(&mut lines),
        Some("nccl") => ranks::process(&mut lines, &args[1..]),
        _ => {
            eprintln!(
                "usage: gpu device | plans | parity | rates | pinned | free | ranks | nccl HOST:PORT RANK RANKS"
            );
            return ExitCode::from(2);
        }
    }
    if lines.failed > 0 {
        eprintln!("{} of the checks failed", lines.failed);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
