//! `fathom bench`: figures of this machine, one JSON object per line.
//!
//! Random operands, one warm-up, medians of repeats. Rows measured while other processes compute have `"loaded":true`
//! and are not meaningful.

mod attention;
mod bed;
#[cfg(feature = "curate")]
mod curate;
mod decode;
mod formats;
mod gemm;
mod kernels;
mod link;
mod load;
mod ops;
mod peaks;
mod profile;
mod random;
mod row;
mod save;
mod serve;
mod step;
mod subject;
mod watch;

use anyhow::Result;

pub use kernels::{Measurement, Rate, rates};

use crate::args::Bench;

/// Runs the verb.
pub fn run(what: &Bench) -> Result<()> {
    match what {
        Bench::Gemm(args) => gemm::run(args),
        Bench::Attention(args) => attention::run(args),
        Bench::Step(args) => step::run(args),
        Bench::Decode(args) => decode::run(args),
        Bench::Prefill(args) => decode::prefill(args),
        Bench::Load(args) => load::run(args),
        Bench::Serve(args) => serve::run(args),
        Bench::Profile(args) => profile::run(args),
        #[cfg(feature = "curate")]
        Bench::Curate(args) => curate::run(args),
        Bench::Save(args) => save::run(args),
        Bench::Formats(args) => formats::run(args),
    }
}
