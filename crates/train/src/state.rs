//! The disk for weights and optimizer state, sized by their needs.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use fathom_grad::{OnDisk, StateDisk};
use fathom_model::{LoadedModel, Model, ModelView, Spec, share_untrained};
use fathom_tensor::{DType, Device, Meta};

use crate::error::Result;
use crate::in_step::InStep;
use crate::objective::Goal;
use crate::offload::{self, Room};
use crate::reference::{Reference, Refers};
use crate::step::Trainer;
use crate::weights::{frozen, quantizes};

/// Capacity of a plan's disk, practically unlimited.
const MOST_DISK_BYTES: u64 = 1 << 60;

/// Specification of the reference copy, which has neither adapter nor value head.
fn compared(spec: &Spec) -> Spec {
    Spec { scores: 0, ..spec.without_adapter() }
}

/// A trainer on a machine without data, with disks of sufficient size.
fn planned_trainer(device: &Device, spec: &Spec, dtype: DType, how: &InStep) -> Result<Trainer> {
    let open = |on_disk: OnDisk| {
        let options = on_disk.options(Path::new(""), MOST_DISK_BYTES);
        StateDisk::open(device, &options, on_disk, dtype)
    };
    let disk = Some(how.on_disk).filter(|on_disk| on_disk.any()).map(open).transpose()?;
    let portion = how.ranks.portion(spec, &device.mesh);
    let quantized = how.goal.quantized.as_ref();
    quantizes(quantized, spec, &portion)?;
    let (mut model, mut params) = Model::declare_quantized(device, spec, dtype, disk, (portion, quantized));
    frozen(&mut model, &mut params, &how.goal.trained)?;
    let mut trainer = Trainer::sharded(device, model, params, how.ranks.sharding, how.adamw.moments);
    trainer.narrow(how.narrow.as_ref())?;
    trainer.round_to(how.round_to)?;
    trainer.round();
    trainer.teacher = how.goal.teacher.as_ref().map(|spec| {
        let portion = how.ranks.portion(spec, &device.mesh);
        let (model, params) = Model::declare_part(device, spec, dtype, None, portion);
        Rc::new(LoadedModel { device: device.clone(), model, params })
    });
    match how.goal.refers {
        Refers::Not => {}
        Refers::AdapterOff => trainer.refer_to(Reference::adapter_off(&trainer.model)),
        Refers::Copy => {
            let spec = compared(spec);
            let disk = trainer.params.disk().cloned();
            let (model, params) =
                Model::declare_part(device, &spec, dtype, disk, how.ranks.portion(&spec, &device.mesh));
            trainer.refer_to(Reference::copy(model, params, None));
        }
    }
    trainer.make_sums(how);
    Ok(trainer)
}

/// The trainers of a run on a machine without data, in order of creation: that of `spec`, and those of the other
/// adapters over its base.
pub(crate) fn planned_trainers(
    device: &Device,
    spec: &Spec,
    dtype: DType,
    how: &InStep,
) -> Result<(Trainer, Vec<Trainer>)> {
    let Goal { before, after, .. } = &how.goal;
    let mut order = before.iter().map(AsRef::as_ref).chain([spec]).chain(after.iter().map(AsRef::as_ref));
    let mut all = vec![planned_trainer(device, order.next().unwrap_or(spec), dtype, how)?];
    for spec in order {
        all.push(planned_other(&all[0], spec, how)?);
    }
    let mut own = all.remove(before.len());
    own.offload = offload::open(device, &how.places, Room::endless())?;
    Ok((own, all))
}

/// The trainer of another adapter over the base of `first`.
fn planned_other(first: &Trainer, spec: &Spec, how: &InStep) -> Result<Trainer> {
    let Trainer { device, model, params, .. } = first;
    let (mut model, mut params) = share_untrained(ModelView { device, model, params }, spec);
    frozen(&mut model, &mut params, &how.goal.trained)?;
    let mut other = Trainer::sharded(device, model, params, how.ranks.sharding, how.adamw.moments);
    other.narrow(how.narrow.as_ref())?;
    other.ask_whom(first);
    other.make_sums(how);
    Ok(other)
}

/// Opens a file in a folder for a rank's weights and optimizer state, including the other adapters' over the same base,
/// with the size of its plan; `None` if none of them is on disk. The rank is the device's.
///
/// # Errors
/// If the folder cannot hold a file of this size, and those of a plan.
pub fn open_state_disk(
    device: &Device,
    spec: &Spec,
    dtype: DType,
    how: &InStep,
    folder: &Path,
) -> Result<Option<Rc<StateDisk>>> {
    let on_disk = how.on_disk;
    if !on_disk.any() {
        return Ok(None);
    }
    let mut how = how.clone();
    how.ranks.rank = device.mesh.rank();
    let machine = Arc::new(Meta::new(device.machine.profile().clone()));
    let meta = Device::on_mesh(machine, u64::MAX, how.ranks.imagined());
    let (planned, _others) = planned_trainers(&meta, spec, dtype, &how)?;
    let bytes = planned.params.disk().map_or(0, |disk| disk.stats().peak_reserved_bytes);
    Ok(Some(StateDisk::open(device, &on_disk.options(folder, bytes), on_disk, dtype)?))
}
