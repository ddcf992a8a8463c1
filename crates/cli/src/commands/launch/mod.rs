//! `fathom launch`: writes the job that trains a recipe on many ranks, and submits it if requested. The submitted
//! text is the printed one.

mod kubernetes;
mod local;
mod slurm;
mod text;
mod work;

use anyhow::Result;

use crate::args::Launch;
use crate::exit::ExitCode;

/// Runs the verb.
pub fn run(on: &Launch) -> Result<ExitCode> {
    match on {
        Launch::Slurm(args) => slurm::run(args),
        Launch::Kubernetes(args) => kubernetes::run(args),
        Launch::Local(args) => local::run(args),
    }
}
