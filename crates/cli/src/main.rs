//! The binary `fathom`.

mod alloc;
mod args;
mod choices;
mod commands;
mod console;
mod crew;
mod curate_models;
mod describe;
mod device;
mod exported;
mod folder;
mod gpu;
mod library;
mod live;
mod measure;
#[cfg(not(feature = "mpi"))]
mod no_mpi;
mod output;
mod pipeline;
mod profiles;
mod ranks;
mod signals;
mod version;
mod working;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use clap::Parser;
use fathom_tensor::OutOfMemory;

/// Exit code of a program whose reader went away (128 + SIGPIPE), as in `fathom recipes ls | head -1`.
const NOBODY_READS: i32 = 141;
/// What a panic of `println` begins with.
const UNPRINTED: &str = "failed printing to stdout: ";

fn main() -> ExitCode {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some(why) = info.payload_as_str().and_then(|text| text.strip_prefix(UNPRINTED)) {
            unprinted(why);
        }
        match info.payload().downcast_ref::<OutOfMemory>() {
            Some(full) => console::line(&full.to_string()),
            None => report(info),
        }
    }));
    let args = args::Args::try_parse().unwrap_or_else(|said| match said.print() {
        Ok(()) => std::process::exit(said.exit_code()),
        Err(error) => unprinted(&error.to_string()),
    });
    console::set(args.quiet, args.verbose);
    console::detail(&format!("fathom {}", version::long().replace('\n', ", ")));
    let advice = commands::memory_advice(&args.verb);
    match catch_unwind(AssertUnwindSafe(|| commands::run(args))) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            console::error(&describe(&error));
            if console::is_verbose() {
                error.chain().skip(1).for_each(|cause| console::line(&format!("  because: {cause}")));
            }
            ExitCode::FAILURE
        }
        Err(panic) => out_of_memory(panic, advice),
    }
}

/// Standard output takes nothing any more: its reader is gone, or its disk is full.
fn unprinted(why: &str) -> ! {
    if why.contains("Broken pipe") {
        std::process::exit(NOBODY_READS);
    }
    console::error(&format!("cannot write to standard output: {why}"));
    std::process::exit(1);
}

/// The end of a verb that found no memory, which is no fault of the program; any other panic goes on.
fn out_of_memory(panic: Box<dyn Any + Send>, advice: &str) -> ExitCode {
    if !panic.is::<OutOfMemory>() {
        resume_unwind(panic);
    }
    console::error(&format!("there is no memory for this; {advice}"));
    ExitCode::FAILURE
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
