//! The binary `fathom`.

use std::process::ExitCode;

use fathom_cli::{Program, main as run};

fn main() -> ExitCode {
    run(Program::of_this_process()).into()
}
