//! The device that kernels are measured on.

use std::sync::Arc;

use anyhow::Result;
use fathom_app::resources;
use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, Tensor};
use fathom_train::recipe::Precision;

use super::random;

/// The processor, both as itself for its own operations and as a device.
pub(super) struct Bed {
    pub(crate) cpu: Arc<Cpu>,
    pub(crate) device: Device,
    pub(crate) dtype: DType,
}

impl Bed {
    pub(crate) fn new(threads: usize, dtype: Precision) -> Result<Bed> {
        let cpu = Arc::new(Cpu::new(resources::threads(threads)?, resources::isa_mask()?));
        let device = Device::new(cpu.clone(), resources::default_budget());
        Ok(Bed { cpu, device, dtype: dtype.dtype() })
    }

    pub(crate) fn threads(&self) -> usize {
        self.device.machine.profile().threads
    }

    pub(crate) fn isa(&self) -> &'static str {
        self.cpu.isa().name()
    }

    pub(crate) fn scratch(&self, bytes: u64) -> Tensor {
        self.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    }

    pub(crate) fn random(&self, rows: usize, cols: usize, seed: u64) -> Tensor {
        let tensor = self.device.empty(rows, cols, self.dtype, Category::Data);
        random::fill(&self.device, &tensor, seed);
        tensor
    }
}
