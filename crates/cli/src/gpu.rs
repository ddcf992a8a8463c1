//! Whether a device of CUDA computes: what the recipe asks for, what there is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail};
use fathom_cuda::Cuda;
use fathom_cuda::libs::{Found, Library, Probe, Search, probe};
use fathom_cuda::nccl::Nccl;
use fathom_tensor::Machine as _;
use fathom_train::recipe::{Machine, MachineKind};

use crate::device::{self, Place};

/// A device that computes for one rank.
pub struct Opened {
    /// The machine.
    pub machine: Arc<Cuda>,
    /// Bytes that the rank may use.
    pub budget: u64,
}

/// Where CUDA's libraries are looked for.
fn search(machine: &Machine) -> Search {
    let named = machine.cuda_libs.iter().flat_map(|folders| std::env::split_paths(folders));
    Search::from_environment().before(named)
}

/// What there is of CUDA, looked for once. Without a driver nothing else is looked for.
fn found(machine: &Machine) -> &'static Probe {
    static FOUND: OnceLock<Probe> = OnceLock::new();
    FOUND.get_or_init(|| probe(&search(machine), false))
}

/// What of a device was free before this process took any of it, for ranks that share it and come one after the other.
fn free_at_first(device: usize, now: u64) -> u64 {
    static FREE: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());
    *FREE.lock().unwrap_or_else(PoisonError::into_inner).entry(device).or_insert(now)
}

/// What there is of CUDA, if it may compute and can.
fn usable(machine: &Machine) -> Option<&'static Probe> {
    let is_wanted = !matches!(machine.kind, MachineKind::Cpu | MachineKind::Meta);
    Some(machine).filter(|_| is_wanted).map(found).filter(|found| found.why_not.is_none())
}

/// The device of a rank, which is the `local`-th of its machine, and how many devices there are: they are dealt round.
pub fn device_of(machine: &Machine, local: usize) -> Option<(usize, usize)> {
    let devices = usable(machine)?.devices.len().max(1);
    Some((local % devices, devices))
}

/// Where that device is plugged in, by which processes of a machine know whether they have the same.
pub fn plug(machine: &Machine, local: usize) -> Option<[u32; 3]> {
    let (device, _) = device_of(machine, local)?;
    fathom_cuda::driver::Real::describe(device).ok().map(|facts| facts.pci)
}

/// How many of `ranks` threads compute in the same memory: on a GPU those that have the same one.
pub fn sharers(machine: &Machine, ranks: usize) -> usize {
    device_of(machine, 0).map_or(ranks, |(_, devices)| ranks.div_ceil(devices))
}

/// The device of a rank, if the recipe wants one, or leaves the choice and there is one.
pub fn open(machine: &Machine, place: Place) -> Result<Option<Opened>> {
    let wanted = match machine.kind {
        MachineKind::Cpu | MachineKind::Meta => return Ok(None),
        MachineKind::Auto => false,
        MachineKind::Cuda => true,
    };
    let found = found(machine);
    if let Some(why) = &found.why_not {
        if wanted {
            bail!("machine.kind = \"cuda\": {why}; `fathom doctor` has the whole list");
        }
        return Ok(None);
    }
    let device = place.local % found.devices.len().max(1);
    let opened = if place.ranks == 1 { Cuda::open_alone(found, device) } else { Cuda::open(found, device) };
    let cuda = opened.context("the CUDA machine; `--machine cpu` does without it")?;
    let host = machine.host_bytes.unwrap_or_else(device::default_budget) / place.host as u64;
    let cuda = cuda.with_graphs(machine.graphs).with_host(host);
    let free = free_at_first(device, cuda.driver().memory()?.0);
    // Ranks on one device share its memory: what is free before the first of them takes any.
    let together = place.memory as u64;
    let share = machine.memory_bytes.map(|bytes| bytes / together);
    let budget = share.unwrap_or_else(|| cuda.profile().pool_bytes(free, together));
    debug_assert!(cuda.has_data());
    Ok(Some(Opened { machine: Arc::new(cuda), budget }))
}

/// The library that connects devices of several processes, where a device computes and the library is there.
pub fn nccl(machine: &Machine) -> Result<Option<Arc<Nccl>>> {
    let is_nccl = |found: &&Found| found.library == Library::Nccl && found.problem.is_none();
    let library = usable(machine).and_then(|found| found.libraries.iter().find(is_nccl));
    match library.and_then(|found| found.path.as_ref()) {
        Some(path) => Ok(Some(Arc::new(Nccl::open(path)?))),
        None => Ok(None),
    }
}

/// Why the processor computes where the recipe leaves the choice; none if a device does, or nobody asked.
pub fn why_not(machine: &Machine) -> Option<&'static str> {
    if machine.kind == MachineKind::Auto { found(machine).why_not.as_deref() } else { None }
}

/// What libraries take of the first device beside a pool, if it was measured on such a device.
pub fn beside() -> Option<u64> {
    fathom_cuda::driver::Real::describe(0).ok().and_then(|facts| fathom_cuda::profile(&facts).beside_bytes)
}

/// All that there is, for `fathom doctor`.
pub fn everything() -> Probe {
    probe(&Search::from_environment(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_processor_share_all_of_its_memory() {
        assert_eq!(sharers(&Machine { kind: MachineKind::Cpu, ..Machine::default() }, 6), 6);
    }
}
