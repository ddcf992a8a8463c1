//! The running program: its arguments, and how another process starts it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A program that is this command line: the binary, or a script that calls the library.
#[derive(Clone, Debug)]
pub struct Program {
    /// Arguments, beginning with the program's name.
    pub argv: Vec<OsString>,
    /// Path that starts it.
    pub path: PathBuf,
    /// Path that starts the very image that is running, even if its file was replaced since.
    pub image: PathBuf,
}

impl Program {
    /// The binary of this process.
    pub fn of_this_process() -> Program {
        Program {
            argv: std::env::args_os().collect(),
            path: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("fathom")),
            image: "/proc/self/exe".into(),
        }
    }
}

static RUNNING: OnceLock<Program> = OnceLock::new();

/// Keeps the running program for [`path`], [`image`] and [`words`]; returns its arguments.
pub(crate) fn start(program: Program) -> &'static [OsString] {
    &RUNNING.get_or_init(|| program).argv
}

fn running() -> &'static Program {
    RUNNING.get_or_init(Program::of_this_process)
}

/// Path that starts this program.
pub(crate) fn path() -> &'static Path {
    &running().path
}

/// Path that starts the image that is running.
pub(crate) fn image() -> &'static Path {
    &running().image
}

/// Arguments after the program's name.
pub(crate) fn words() -> Vec<String> {
    running().argv.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}
