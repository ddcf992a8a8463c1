//! The binary `fathom`.

mod alloc;
mod args;
mod commands;
mod device;
mod library;
mod live;
mod measure;
mod pipeline;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    commands::run(args::Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
