//! What a job computes on: the recipe's table of machines, with what this computer was found to have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fathom_base::human;
use fathom_base::memory::Memory;
use fathom_cuda::libs::{Library, LibraryStatus, Probe, Search, probe};
use fathom_cuda::nccl::Nccl;
use fathom_train::recipe::{Machine as Asked, MachineKind};

use crate::error::Result;
use crate::events::Events;
use crate::host;

/// A machine that a job computes on. It is looked at once: whatever of a GPU is asked later has the answer of the first time.
pub struct Machine {
    /// What the recipe says.
    pub asked: Asked,
    /// What there is of CUDA. Looked for when first needed, as a plan needs none.
    found: OnceLock<Probe>,
    /// What of a device was free before this job took any of it, for ranks that share it and come one after the other.
    free_bytes: Mutex<BTreeMap<usize, u64>>,
}

impl Machine {
    /// The machine that a recipe asks for.
    pub fn new(asked: Asked, events: &dyn Events) -> Machine {
        if Memory::read().is_none() && asked.memory_bytes.is_none() {
            let taken = human::bytes(host::UNKNOWN_MEMORY);
            events.warn(&format!(
                "this system does not say how much memory it has; {taken} are taken for it (machine.memory_bytes)"
            ));
        }
        Machine { asked, found: OnceLock::new(), free_bytes: Mutex::default() }
    }

    /// The machine of a request without a recipe.
    pub fn of_kind(kind: MachineKind, threads: usize, events: &dyn Events) -> Machine {
        Machine::new(Asked { kind, threads, ..Asked::default() }, events)
    }

    /// What there is of CUDA. Without a driver nothing else is looked for.
    pub(super) fn found(&self) -> &Probe {
        let named = self.asked.cuda_libs.iter().flat_map(|folders| std::env::split_paths(folders));
        self.found.get_or_init(|| probe(&Search::from_environment().before(named), false))
    }

    /// What there is of CUDA, if it may compute and can.
    fn usable(&self) -> Option<&Probe> {
        let is_wanted = !matches!(self.asked.kind, MachineKind::Cpu | MachineKind::Meta);
        is_wanted.then(|| self.found()).filter(|found| found.why_not.is_none())
    }

    /// The device of a rank, which is the `local`-th of its machine, and how many devices there are: they are dealt round.
    pub fn device_of(&self, local: usize) -> Option<(usize, usize)> {
        let devices = self.usable()?.devices.len().max(1);
        Some((local % devices, devices))
    }

    /// Where that device is plugged in, by which processes of a machine know whether they have the same.
    pub(crate) fn plug(&self, local: usize) -> Option<[u32; 3]> {
        let (device, _) = self.device_of(local)?;
        fathom_cuda::driver::Real::describe(device).ok().map(|facts| facts.pci)
    }

    /// How many of `ranks` threads compute in the same memory: on a GPU those that have the same one.
    pub(crate) fn sharers(&self, ranks: usize) -> usize {
        self.device_of(0).map_or(ranks, |(_, devices)| ranks.div_ceil(devices))
    }

    /// What was free of a device before this job took any of it; `now_bytes` are.
    pub(super) fn free_at_first(&self, device: usize, now_bytes: u64) -> u64 {
        let mut free = self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *free.entry(device).or_insert(now_bytes)
    }

    /// The library that connects devices of several processes, where a device computes and the library is there.
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

    /// Why the processor computes where the recipe leaves the choice; none if a device does, or the recipe asks for neither.
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
