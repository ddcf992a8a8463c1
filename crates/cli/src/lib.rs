//! The command line `fathom`: arguments, output and exit codes around `fathom-app`. A library, because two programs are
//! it: the binary, and the command that the Python package installs.

#[macro_use]
mod console;
mod alloc;
// Without curation its flags are parsed but unused.
#[cfg_attr(not(feature = "curate"), allow(dead_code))]
mod args;
mod choices;
mod closing;
mod commands;
mod exit;
mod listen;
mod live;
mod messages;
mod program;
mod signals;
mod version;
mod watch;
mod working;

use clap::Parser;

pub use program::Program;

/// Runs a command line, and returns the exit code. A refused command line, or one that asks for help, ends the process.
pub fn main(program: Program) -> u8 {
    exit::report_panics();
    let args =
        args::Args::try_parse_from(program::start(program)).unwrap_or_else(|said| exit::unparsed(&said));
    console::set(args.quiet, args.verbose);
    messages::start();
    console::detail(&format!("fathom {}", version::long().replace('\n', ", ")));
    let advice = commands::memory_advice(&args.verb);
    exit::code(exit::caught(|| commands::run(args)), advice).into()
}
