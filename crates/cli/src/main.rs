//! The binary `fathom`: arguments, output and exit codes around `fathom-app`.

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
mod signals;
mod version;
mod working;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    exit::report_panics();
    let args = args::Args::try_parse().unwrap_or_else(|said| exit::unparsed(&said));
    console::set(args.quiet, args.verbose);
    messages::start();
    console::detail(&format!("fathom {}", version::long().replace('\n', ", ")));
    let advice = commands::memory_advice(&args.verb);
    exit::code(exit::caught(|| commands::run(args)), advice)
}
