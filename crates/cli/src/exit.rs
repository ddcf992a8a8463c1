//! Program exit: exit codes, and the final message.

use std::process::exit;

use anyhow::Result;
use fathom_app::{Error, in_full};
use fathom_tensor::OutOfMemory;

use crate::console;

/// Exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// Success.
    pub const SUCCESS: ExitCode = ExitCode(0);
    /// Any failure without a code of its own.
    pub const FAILURE: ExitCode = ExitCode(1);
}

impl From<u8> for ExitCode {
    fn from(code: u8) -> ExitCode {
        ExitCode(code)
    }
}

impl From<ExitCode> for u8 {
    fn from(code: ExitCode) -> u8 {
        code.0
    }
}

/// Exit code of a run that was asked to save and stop, and of a curation that waits for others (EX_TEMPFAIL): restart
/// it to continue. Job systems retry it.
pub const RESUME: u8 = 75;

/// Exit code of a Rust program that panicked.
const PANICKED: u8 = 101;

/// Reports panics from lack of memory in one line, and all others as usual.
pub fn report_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| match info.payload().downcast_ref::<OutOfMemory>() {
        Some(full) => console::line(&full.to_string()),
        None => report(info),
    }));
}

/// Runs a verb, turning a panic into an error.
///
/// # Errors
/// The verb's.
pub fn caught(verb: impl FnOnce() -> Result<ExitCode>) -> Result<ExitCode> {
    fathom_app::caught(|| Ok(verb())).unwrap_or_else(|panic| Err(panic.into()))
}

/// Exit code of a verb, after printing its error; `advice` is for lack of memory.
pub fn code(ended: Result<ExitCode>, advice: &str) -> ExitCode {
    let error = match ended {
        Ok(code) => return code,
        Err(error) => error,
    };
    match error.downcast_ref() {
        // The panic hook has printed the message.
        Some(Error::Panicked(_)) => return ExitCode::from(PANICKED),
        Some(Error::OutOfMemory(_)) => console::error(&format!("there is no memory for this; {advice}")),
        _ => {
            console::error(&in_full(error.as_ref()));
            if console::is_verbose() {
                error.chain().skip(1).for_each(|cause| console::line(&format!("  because: {cause}")));
            }
        }
    }
    ExitCode::FAILURE
}

/// Exits after a refused command line, or a request for help.
pub fn unparsed(said: &clap::Error) -> ! {
    match said.print() {
        Ok(()) => exit(said.exit_code()),
        Err(error) => console::unprinted(&error),
    }
}
