//! Opens the offload engines for a stage's places.

use std::path::Path;

use fathom_grad::{Offload, Place, Places};
use fathom_tensor::Device;
use fathom_tensor::spill::{Chaos, Options, Spill};

use crate::error::Result;
use crate::plan::Plan;

/// Destinations of offloaded values, with their capacity.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// Folder of the spill file.
    pub folder: &'a Path,
    /// Capacity on the host, in bytes.
    pub host_bytes: u64,
    /// Capacity on disk, in bytes.
    pub disk_bytes: u64,
    /// Fault injection for tests.
    pub chaos: Option<Chaos>,
}

impl<'a> Room<'a> {
    /// The room that a plan needs, without weights and optimizer state, which have room of their own.
    pub fn of(plan: &Plan, folder: &'a Path, chaos: Option<Chaos>) -> Room<'a> {
        let host_bytes = plan.host_peak_bytes - plan.host_state_bytes;
        Room { folder, host_bytes, disk_bytes: plan.spill_peak_bytes, chaos }
    }

    /// Bytes wanted on the host and on disk, each only if a place uses it.
    pub(crate) fn wanted(&self, places: &Places) -> [Option<u64>; 2] {
        [(Place::Host, self.host_bytes), (Place::Disk, self.disk_bytes)]
            .map(|(place, bytes)| places.uses(place).then_some(bytes))
    }

    /// Unlimited room, for plans.
    pub fn endless() -> Room<'static> {
        Room { folder: Path::new(""), host_bytes: 1 << 60, disk_bytes: 1 << 60, chaos: None }
    }
}

/// The engines that a table of places needs; `None` if it keeps everything in memory.
///
/// # Errors
/// A folder that cannot hold a file of this size; a machine without copies.
pub fn open(device: &Device, places: &Places, room: Room<'_>) -> Result<Option<Offload>> {
    let Room { folder, host_bytes, disk_bytes, chaos } = room;
    let engine = |place: Place, options: Options| -> Result<Option<Spill>> {
        let options = Options { chaos, ..options };
        Ok(if places.uses(place) { Some(Spill::open(device, &options)?) } else { None })
    };
    let host = engine(Place::Host, Options::in_memory(host_bytes))?;
    let disk = engine(Place::Disk, Options::new(folder, disk_bytes))?;
    let offload = Offload { host, disk };
    let any = offload.engines().next().is_some();
    Ok(any.then_some(offload))
}

/// The open engines, which runs that take turns hand over to each other: they are empty between two steps.
#[derive(Default)]
pub(crate) struct OpenEngines {
    pub offload: Option<Offload>,
    /// Their bytes on the host and on disk; `None` for one that is not open.
    pub bytes: [Option<u64>; 2],
}

impl OpenEngines {
    /// True if they have the same places as a step wants, each at least as large.
    pub fn serves(&self, wanted: [Option<u64>; 2]) -> bool {
        self.bytes.iter().zip(wanted).all(|(have, want)| have.is_some() == want.is_some() && *have >= want)
    }
}
