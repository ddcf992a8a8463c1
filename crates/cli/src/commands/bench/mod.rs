//! `fathom bench`: figures of this machine, one JSON object per line.
//!
//! Random operands, one warm-up, medians of repeats. Rows measured while other processes compute have `"loaded":true`
//! and are not meaningful.

mod attention;
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

use std::sync::Arc;

use anyhow::Result;
use fathom_app::{models, resources};
use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, Tensor};
use fathom_train::recipe::Precision;

use crate::args::Bench;

pub use kernels::{Measurement, Rate, rates};

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

/// The processor, both as itself for its own operations and as a device.
struct Bed {
    cpu: Arc<Cpu>,
    device: Device,
    dtype: DType,
}

impl Bed {
    fn new(threads: usize, dtype: Precision) -> Result<Bed> {
        let cpu = Arc::new(Cpu::new(resources::threads(threads)?, resources::isa_mask()?));
        let device = Device::new(cpu.clone(), resources::default_budget());
        Ok(Bed { cpu, device, dtype: dtype.dtype() })
    }

    fn threads(&self) -> usize {
        self.device.machine.profile().threads
    }

    fn isa(&self) -> &'static str {
        self.cpu.isa().name()
    }

    fn scratch(&self, bytes: u64) -> Tensor {
        self.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    }

    fn random(&self, rows: usize, cols: usize, seed: u64) -> Tensor {
        let tensor = self.device.empty(rows, cols, self.dtype, Category::Data);
        random::fill(&self.device, &tensor, seed);
        tensor
    }
}
