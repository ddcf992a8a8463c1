//! Opens what lies behind the machine's memory for a stage's places.

use std::path::Path;

use fathom_grad::{Offload, Place, Places};
use fathom_tensor::Device;
use fathom_tensor::spill::{Chaos, Options, Spill};

use crate::error::Result;
use crate::plan::Plan;

/// Where values go that leave the machine's memory, and how much room there is.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// Folder of the spill file.
    pub folder: &'a Path,
    /// Bytes with the host.
    pub host_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// An adversary for tests.
    pub chaos: Option<Chaos>,
}

impl<'a> Room<'a> {
    /// What a plan asks for; weights and optimizer state have room of their own.
    pub fn of(plan: &Plan, folder: &'a Path, chaos: Option<Chaos>) -> Room<'a> {
        let host_bytes = plan.host_peak_bytes - plan.host_state_bytes;
        Room { folder, host_bytes, disk_bytes: plan.spill_peak_bytes, chaos }
    }

    /// Bytes with the host and on disk, each where places ask for some.
    pub(crate) fn wanted(&self, places: &Places) -> [Option<u64>; 2] {
        [(Place::Host, self.host_bytes), (Place::Disk, self.disk_bytes)]
            .map(|(place, bytes)| places.uses(place).then_some(bytes))
    }

    /// As much as it takes: for plans.
    pub fn endless() -> Room<'static> {
        Room { folder: Path::new(""), host_bytes: 1 << 60, disk_bytes: 1 << 60, chaos: None }
    }
}

/// The engines that a table of places needs; none if it keeps everything in memory.
///
/// # Errors
/// A folder that takes no file of this size, a machine without copies.
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

/// What is open behind the machine's memory, which runs that take turns pass on: between two steps nothing is in it.
#[derive(Default)]
pub(crate) struct Passed {
    pub offload: Option<Offload>,
    /// Its bytes with the host and on disk; `None` where nothing is open.
    pub bytes: [Option<u64>; 2],
}

impl Passed {
    /// Whether it is what a step wants, or the same and larger.
    pub fn serves(&self, wanted: [Option<u64>; 2]) -> bool {
        self.bytes.iter().zip(wanted).all(|(have, want)| have.is_some() == want.is_some() && *have >= want)
    }
}
