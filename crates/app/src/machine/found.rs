//! Machine of a job: the recipe's `machine` table, and the hardware that was found.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fathom_base::human;
use fathom_base::memory::Memory;
use fathom_cuda::libs::{Library, LibraryStatus, Probe, Search, probe};
use fathom_cuda::nccl::Nccl;
use fathom_tensor::{Device, Revocable};
use fathom_train::recipe::{Machine as Asked, MachineKind};

use crate::error::Result;
use crate::events::Events;
use crate::resources;

/// A machine that a job runs on. The hardware is probed once; later questions about a GPU get the first answer.
pub struct Machine {
    /// Table of the recipe.
    pub asked: Asked,
    /// CUDA devices and libraries; probed when first needed, as a plan needs none.
    found: OnceLock<Probe>,
    /// Bytes of each device that were free before this job used any, for ranks that share the device one after the
    /// other.
    free_bytes: Mutex<BTreeMap<usize, u64>>,
    /// Set by the caller to give up work that leaves nothing behind.
    stop: Option<Arc<AtomicBool>>,
}

impl Machine {
    /// Makes the machine that a recipe asks for.
    pub fn new(asked: Asked, events: &dyn Events) -> Machine {
        if Memory::read().is_none() && asked.memory_bytes.is_none() {
            let taken = human::bytes(resources::UNKNOWN_MEMORY);
            events.warn(&format!(
                "this system does not say how much memory it has; {taken} are taken for it (machine.memory_bytes)"
            ));
        }
        Machine { asked, found: OnceLock::new(), free_bytes: Mutex::default(), stop: None }
    }

    /// The same machine for another thread; what has been probed is not probed again.
    pub fn again(&self) -> Machine {
        let free_bytes = self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Machine { asked, found, stop, .. } = self;
        let (asked, found, stop) = (asked.clone(), found.clone(), stop.clone());
        Machine { asked, found, free_bytes: Mutex::new(free_bytes), stop }
    }

    /// Gives up measurements and conversions on this machine once `stop` is set.
    pub fn stopped_by(self, stop: &Arc<AtomicBool>) -> Machine {
        Machine { stop: Some(stop.clone()), ..self }
    }

    /// Makes work on a device end at its next allocation once the caller asks for it, until the returned value is
    /// dropped.
    pub(crate) fn revocable(&self, device: &Device) -> Option<Revocable> {
        self.stop.as_ref().map(|stop| device.pool.revocable(stop))
    }

    /// Makes the machine of a request without a recipe.
    pub fn of_kind(kind: MachineKind, threads: usize, events: &dyn Events) -> Machine {
        Machine::new(Asked { kind, threads, ..Asked::default() }, events)
    }

    /// Returns the CUDA devices and libraries. Without a driver, the libraries are not looked for.
    pub(super) fn found(&self) -> &Probe {
        let named = self.asked.cuda_libs.iter().flat_map(|folders| std::env::split_paths(folders));
        self.found.get_or_init(|| probe(&Search::from_environment().before(named), false))
    }

    /// Returns the CUDA devices and libraries if the recipe allows a GPU and one is usable.
    fn usable(&self) -> Option<&Probe> {
        let is_wanted = !matches!(self.asked.kind, MachineKind::Cpu | MachineKind::Meta);
        is_wanted.then(|| self.found()).filter(|found| found.why_not.is_none())
    }

    /// Returns the device of the rank with index `local` on its machine, and the number of devices; devices are
    /// assigned in turn.
    pub fn device_of(&self, local: usize) -> Option<(usize, usize)> {
        let devices = self.usable()?.devices.len().max(1);
        Some((local % devices, devices))
    }

    /// Returns the PCI address of that device, by which processes on a machine detect that they share one.
    pub(crate) fn plug(&self, local: usize) -> Option<[u32; 3]> {
        let (device, _) = self.device_of(local)?;
        fathom_cuda::driver::Real::describe(device).ok().map(|facts| facts.pci)
    }

    /// Returns how many of `ranks` threads share a memory: on GPUs, those assigned to the same device.
    pub(crate) fn sharers(&self, ranks: usize) -> usize {
        self.device_of(0).map_or(ranks, |(_, devices)| ranks.div_ceil(devices))
    }

    /// Returns the bytes of a device that were free before this job used any; `now_bytes` are free now.
    pub(super) fn free_at_first(&self, device: usize, now_bytes: u64) -> u64 {
        let mut free = self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *free.entry(device).or_insert(now_bytes)
    }

    /// Opens NCCL, which connects the devices of several processes, if a GPU is used and the library is installed.
    ///
    /// # Errors
    /// A library that cannot be opened.
    pub fn nccl(&self) -> Result<Option<Arc<Nccl>>> {
        let is_nccl = |found: &&LibraryStatus| found.library == Library::Nccl && found.problem.is_none();
        let library = self.usable().and_then(|found| found.libraries.iter().find(is_nccl));
        match library.and_then(|found| found.path.as_ref()) {
            Some(path) => Ok(Some(Arc::new(Nccl::open(path)?))),
            None => Ok(None),
        }
    }

    /// Returns the reason why the processor is used if the recipe leaves the choice; `None` if a GPU is used or the
    /// recipe decides.
    pub fn why_not(&self) -> Option<&str> {
        if self.asked.kind == MachineKind::Auto { self.found().why_not.as_deref() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Silent;

    #[test]
    fn ranks_of_a_processor_share_all_of_its_memory() {
        assert_eq!(Machine::of_kind(MachineKind::Cpu, 0, &Silent).sharers(6), 6);
    }
}
