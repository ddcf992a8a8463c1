//! The disk behind weights and optimizer state, as large as they need it.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use fathom_grad::{AdamW, OnDisk, StateDisk};
use fathom_model::{Model, Portion, Spec};
use fathom_tensor::spill::Options;
use fathom_tensor::{DType, Device, Meta};

use crate::error::Result;
use crate::offload::{self, Room};
use crate::step::{InStep, Trainer};

/// A plan's disk is as large as it has to be.
const MOST_DISK_BYTES: u64 = 1 << 60;

/// Bytes of disk that a model's weights and optimizer state take where `on_disk` says so.
pub fn state_disk_bytes(device: &Device, spec: &Spec, dtype: DType, on_disk: OnDisk) -> Result<u64> {
    let meta = Device::new(Arc::new(Meta::new(device.machine.profile().clone())), u64::MAX);
    let disk = StateDisk::open(&meta, &Options::new("", MOST_DISK_BYTES), on_disk, dtype)?;
    let (_, params) = Model::declare_on(&meta, spec, dtype, Some(disk.clone()));
    let _state = AdamW::new(&meta, &params);
    Ok(disk.stats().peak_reserved_bytes)
}

/// A trainer on a machine without data, with disks as large as they have to be.
pub(crate) fn planned_trainer(device: &Device, spec: &Spec, dtype: DType, how: &InStep) -> Trainer {
    let options = Options::new("", MOST_DISK_BYTES);
    // Without data there is no file, so nothing can fail.
    let open = |on_disk| StateDisk::open(device, &options, on_disk, dtype).ok();
    let disk = Some(how.on_disk).filter(|on_disk| on_disk.any()).and_then(open);
    let portion = Portion::of(spec, &device.mesh, how.ranks.virtual_stages);
    let (model, params) = Model::declare_part(device, spec, dtype, disk, portion);
    let mut trainer = Trainer::sharded(device, model, params, how.ranks.sharding);
    trainer.offload = offload::open(device, &how.places, Room::endless()).ok().flatten();
    trainer
}

/// Opens a file for weights and optimizer state in a folder; `None` if none of them is on disk.
///
/// # Errors
/// If the folder takes no file of this size.
pub fn open_state_disk(
    device: &Device,
    spec: &Spec,
    dtype: DType,
    on_disk: OnDisk,
    folder: &Path,
) -> Result<Option<Rc<StateDisk>>> {
    if !on_disk.any() {
        return Ok(None);
    }
    let options = Options::new(folder, state_disk_bytes(device, spec, dtype, on_disk)?);
    Ok(Some(StateDisk::open(device, &options, on_disk, dtype)?))
}
