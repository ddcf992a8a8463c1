//! The binary `fathom`.

mod alloc;
mod args;
mod choices;
mod commands;
mod crew;
mod curate_models;
mod describe;
mod device;
mod folder;
mod gpu;
mod library;
mod live;
mod measure;
#[cfg(not(feature = "mpi"))]
mod no_mpi;
mod pipeline;
mod profiles;
mod ranks;
mod working;

use std::process::ExitCode;

use clap::Parser;
use fathom_tensor::OutOfMemory;

/// Exit code of a program whose reader went away (128 + SIGPIPE), as in `fathom recipes ls | head -1`.
const NOBODY_READS: i32 = 141;

fn main() -> ExitCode {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload_as_str().is_some_and(|text| text.starts_with("failed printing to stdout")) {
            std::process::exit(NOBODY_READS);
        }
        match info.payload().downcast_ref::<OutOfMemory>() {
            Some(full) => eprintln!("{full}"),
            None => report(info),
        }
    }));
    commands::run(args::Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {}", describe(&error));
        ExitCode::FAILURE
    })
}

/// The error and its causes; a cause that a message has told already is not told again.
fn describe(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.contains(&cause) {
            said += &format!("{}{cause}", if said.is_empty() { "" } else { ": " });
        }
    }
    said
}
