//! Devices of a machine, for a single rank or one of several.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_cuda::Cuda;
use fathom_tensor::mesh::Mesh;
use fathom_tensor::{Device, Machine as _, Profile};
use fathom_train::recipe::MachineKind;

use super::found::Machine;
use crate::error::{Context, Result, refuse};
use crate::place::RankPlace;
use crate::{profiles, resources};

/// A GPU opened for one rank.
pub struct RankGpu {
    /// The GPU.
    pub machine: Arc<Cuda>,
    /// Memory budget of the rank, in bytes.
    pub budget: u64,
}

impl Machine {
    /// Opens the device that the recipe asks for, with the recipe's memory budget, or else most of the available
    /// memory.
    ///
    /// # Errors
    /// A requested GPU that is missing or fails.
    pub fn open(&self) -> Result<Device> {
        match self.gpu(RankPlace::ALONE)? {
            Some(opened) => Ok(Device::new(opened.machine, opened.budget)),
            None => self.cpu(),
        }
    }

    /// Opens the processor with the recipe's memory budget, or else most of the available memory.
    ///
    /// # Errors
    /// A machine profile that cannot be read, or an invalid environment variable.
    pub fn cpu(&self) -> Result<Device> {
        let rates = profiles::cpu_rates(&self.asked, 1)?;
        let threads = resources::threads(self.asked.threads)?;
        let cpu = Cpu::new(threads, resources::isa_mask()?).with_rates(rates);
        Ok(Device::new(Arc::new(cpu), self.host_budget()))
    }

    /// Opens the device of one of several ranks, with its share of cores and memory.
    ///
    /// # Errors
    /// Those of [`Machine::open`].
    pub fn rank(&self, mesh: Mesh, place: RankPlace) -> Result<Device> {
        if let Some(opened) = self.gpu(place)? {
            return Ok(Device::on_mesh(opened.machine, opened.budget, mesh));
        }
        let cores = (resources::threads(self.asked.threads)? / place.cores).max(1);
        let rates = profiles::cpu_rates(&self.asked, place.cores)?;
        let cpu = Cpu::new(cores, resources::isa_mask()?).with_rates(rates);
        Ok(Device::on_mesh(Arc::new(cpu), self.host_budget() / place.host as u64, mesh))
    }

    /// Returns the profile for plans.
    ///
    /// # Errors
    /// An unknown name, or an invalid profile file.
    pub fn profile(&self) -> Result<Profile> {
        profiles::of(&self.asked)
    }

    /// Returns the profile of one of `ranks` ranks that share the machine.
    ///
    /// # Errors
    /// Those of [`Machine::profile`].
    pub fn profile_of_rank(&self, ranks: usize) -> Result<Profile> {
        profiles::of_rank(&self.asked, ranks)
    }

    /// Opens the GPU of a rank, if the recipe asks for one, or leaves the choice and there is one.
    ///
    /// # Errors
    /// A requested device that is missing or fails.
    pub fn gpu(&self, place: RankPlace) -> Result<Option<RankGpu>> {
        let wanted = match self.asked.kind {
            MachineKind::Cpu | MachineKind::Meta => return Ok(None),
            MachineKind::Auto => false,
            MachineKind::Cuda => true,
        };
        let found = self.found();
        if let Some(why) = &found.why_not {
            if wanted {
                refuse!("machine.kind = \"cuda\": {why}; `fathom doctor` has the whole list");
            }
            return Ok(None);
        }
        let device = place.local % found.devices.len().max(1);
        let opened =
            if place.ranks == 1 { Cuda::open_alone(found, device) } else { Cuda::open(found, device) };
        let cuda = opened.context("the CUDA machine; `--machine cpu` does without it")?;
        let host = self.asked.host_bytes.unwrap_or_else(resources::default_budget) / place.host as u64;
        let cuda = cuda.with_graphs(self.asked.graphs).with_host(host);
        let free = self.free_at_first(device, cuda.driver().memory()?.0);
        // Ranks on one device share the bytes that were free before the first of them used any.
        let together = place.memory as u64;
        let share = self.asked.memory_bytes.map(|bytes| bytes / together);
        let budget = share.unwrap_or_else(|| cuda.profile().pool_bytes(free, together));
        debug_assert!(cuda.has_data());
        Ok(Some(RankGpu { machine: Arc::new(cuda), budget }))
    }

    fn host_budget(&self) -> u64 {
        self.asked.memory_bytes.unwrap_or_else(resources::default_budget)
    }
}
