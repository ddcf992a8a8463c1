//! Devices of a machine, for one rank or one of several.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_cuda::Cuda;
use fathom_tensor::mesh::Mesh;
use fathom_tensor::{Device, Machine as _, Profile};
use fathom_train::recipe::MachineKind;

use super::found::Machine;
use crate::error::{Context, Result, refuse};
use crate::place::Place;
use crate::{host, profiles};

/// A device that computes for one rank.
pub struct Opened {
    /// The machine.
    pub machine: Arc<Cuda>,
    /// Bytes that the rank may use.
    pub budget: u64,
}

impl Machine {
    /// The device that the recipe asks for, with a memory budget: what the recipe says, or most of what is available.
    ///
    /// # Errors
    /// A GPU that is asked for and is not there, or refuses.
    pub fn open(&self) -> Result<Device> {
        match self.gpu(Place::ALONE)? {
            Some(opened) => Ok(Device::new(opened.machine, opened.budget)),
            None => self.cpu(),
        }
    }

    /// The processor with a memory budget: what the recipe says, or most of what is available.
    ///
    /// # Errors
    /// A machine profile that cannot be read, or a variable of the environment that is none of its values.
    pub fn cpu(&self) -> Result<Device> {
        let rates = profiles::cpu_rates(&self.asked, 1)?;
        let threads = host::threads(self.asked.threads)?;
        let cpu = Cpu::new(threads, host::isa_mask()?).with_rates(rates);
        Ok(Device::new(Arc::new(cpu), self.host_budget()))
    }

    /// One of several ranks: its share of the cores and of the memory.
    ///
    /// # Errors
    /// As [`Machine::open`].
    pub fn rank(&self, mesh: Mesh, place: Place) -> Result<Device> {
        if let Some(opened) = self.gpu(place)? {
            return Ok(Device::on_mesh(opened.machine, opened.budget, mesh));
        }
        let cores = (host::threads(self.asked.threads)? / place.cores).max(1);
        let rates = profiles::cpu_rates(&self.asked, place.cores)?;
        let cpu = Cpu::new(cores, host::isa_mask()?).with_rates(rates);
        Ok(Device::on_mesh(Arc::new(cpu), self.host_budget() / place.host as u64, mesh))
    }

    /// The profile that plans are drawn with.
    ///
    /// # Errors
    /// An unknown name, or a file that is no profile.
    pub fn profile(&self) -> Result<Profile> {
        profiles::of(&self.asked)
    }

    /// What one of `ranks` ranks has of it.
    ///
    /// # Errors
    /// As [`Machine::profile`].
    pub fn profile_of_rank(&self, ranks: usize) -> Result<Profile> {
        profiles::of_rank(&self.asked, ranks)
    }

    /// The device of a rank, if the recipe wants one, or leaves the choice and there is one.
    ///
    /// # Errors
    /// A device that is asked for and is not there, or refuses.
    pub fn gpu(&self, place: Place) -> Result<Option<Opened>> {
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
        let host = self.asked.host_bytes.unwrap_or_else(host::default_budget) / place.host as u64;
        let cuda = cuda.with_graphs(self.asked.graphs).with_host(host);
        let free = self.free_at_first(device, cuda.driver().memory()?.0);
        // Ranks on one device share its memory: what is free before the first of them takes any.
        let together = place.memory as u64;
        let share = self.asked.memory_bytes.map(|bytes| bytes / together);
        let budget = share.unwrap_or_else(|| cuda.profile().pool_bytes(free, together));
        debug_assert!(cuda.has_data());
        Ok(Some(Opened { machine: Arc::new(cuda), budget }))
    }

    fn host_budget(&self) -> u64 {
        self.asked.memory_bytes.unwrap_or_else(host::default_budget)
    }
}
