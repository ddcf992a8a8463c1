//! The disk behind weights and optimizer state, as large as they need it.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use fathom_grad::{AdamW, Moments, OnDisk, Params, StateDisk};
use fathom_model::{Model, NarrowLayers, Spec};
use fathom_tensor::{DType, Device, Meta, Profile};

use crate::error::{Error, Result};
use crate::offload::{self, Room};
use crate::parallel::{Ranks, shares};
use crate::step::{InStep, Trainer};

/// A plan's disk is as large as it has to be.
const MOST_DISK_BYTES: u64 = 1 << 60;

/// Bytes of disk that a rank's weights and optimizer state take where `on_disk` says so.
///
/// # Errors
/// As [`StateDisk::open`].
pub fn state_disk_bytes(
    profile: &Profile,
    spec: &Spec,
    dtype: DType,
    on_disk: OnDisk,
    (ranks, moments): (&Ranks, Moments),
) -> Result<u64> {
    let machine = Arc::new(Meta::new(profile.clone()));
    let meta = Device::on_mesh(machine, u64::MAX, ranks.imagined());
    let disk = StateDisk::open(&meta, &on_disk.options(Path::new(""), MOST_DISK_BYTES), on_disk, dtype)?;
    let portion = ranks.portion(spec, &meta.mesh);
    let (model, params) = Model::declare_part(&meta, spec, dtype, Some(disk.clone()), portion);
    let shares = shares(&meta, &model, &params, ranks.sharding);
    let _state = AdamW::shared(&meta, &params, Rc::new(shares), moments);
    Ok(disk.stats().peak_reserved_bytes)
}

/// Whether products of narrow operands go with a model and its mesh.
///
/// # Errors
/// As [`Trainer::narrow`].
pub(crate) fn check_narrow(profile: &Profile, spec: &Spec, how: &InStep) -> Result<()> {
    let Some(narrow) = &how.narrow else { return Ok(()) };
    let meta = Device::on_mesh(Arc::new(Meta::new(profile.clone())), u64::MAX, how.ranks.imagined());
    let portion = how.ranks.portion(spec, &meta.mesh);
    let (model, mut params) = Model::declare_part(&meta, spec, DType::Bf16, None, portion);
    narrowed(&meta, &model, &mut params, Some(narrow))
}

/// As [`Trainer::narrow`].
pub(crate) fn narrowed(
    device: &Device,
    model: &Model,
    params: &mut Params,
    how: Option<&NarrowLayers>,
) -> Result<()> {
    let refuse = |message| Error::Recipe { key: "precision.gemm".into(), message };
    model.narrow(device, params, how).map_err(refuse)
}

/// A trainer on a machine without data, with disks as large as they have to be.
pub(crate) fn planned_trainer(device: &Device, spec: &Spec, dtype: DType, how: &InStep) -> Trainer {
    // Without data there is no file, so nothing can fail.
    let open = |on_disk: OnDisk| {
        let options = on_disk.options(Path::new(""), MOST_DISK_BYTES);
        StateDisk::open(device, &options, on_disk, dtype).ok()
    };
    let disk = Some(how.on_disk).filter(|on_disk| on_disk.any()).and_then(open);
    let portion = how.ranks.portion(spec, &device.mesh);
    let (model, params) = Model::declare_part(device, spec, dtype, disk, portion);
    let mut trainer = Trainer::sharded(device, model, params, how.ranks.sharding, how.adamw.moments);
    trainer.offload = offload::open(device, &how.places, Room::endless()).ok().flatten();
    // What does not go with the model was refused when the workload was made.
    let _ = trainer.narrow(how.narrow.as_ref());
    trainer
}

/// Opens a file for a rank's weights and optimizer state in a folder; `None` if none of them is on disk. The rank is the device's.
///
/// # Errors
/// If the folder takes no file of this size.
pub fn open_state_disk(
    device: &Device,
    spec: &Spec,
    dtype: DType,
    on_disk: OnDisk,
    (ranks, moments): (&Ranks, Moments),
    folder: &Path,
) -> Result<Option<Rc<StateDisk>>> {
    if !on_disk.any() {
        return Ok(None);
    }
    let ranks = Ranks { rank: device.mesh.rank(), ..*ranks };
    let bytes = state_disk_bytes(device.machine.profile(), spec, dtype, on_disk, (&ranks, moments))?;
    let options = on_disk.options(folder, bytes);
    Ok(Some(StateDisk::open(device, &options, on_disk, dtype)?))
}
