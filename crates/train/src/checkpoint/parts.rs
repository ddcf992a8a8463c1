//! The parts of a checkpoint, and the values of each that a rank holds.

use std::path::Path;

use fathom_grad::{ParamId, State as Moments, Value};
use fathom_model::{CodeScales, SafeTensors, Slot, load_slots};
use fathom_tensor::DType;

use super::base::Base;
use crate::error::Result;
use crate::reference::Reference;
use crate::step::Trainer;

/// A part of a checkpoint: its sub-folder, and the value of the optimizer's state that it holds (none for weights).
type Section = (&'static str, Option<fn(&Moments) -> Option<&Value>>);

/// Weights of a moving reference.
pub(super) const REFERENCE: &str = "reference";

/// Masters of narrow weights.
pub(super) const MASTER: &str = "master";

pub(super) const PARTS: [Section; 5] = [
    ("model", None),
    (REFERENCE, None),
    ("moment1", Some(|state| Some(&state.m))),
    ("moment2", Some(|state| state.v.as_ref())),
    (MASTER, Some(|state| state.master.as_ref())),
];

/// The parts that a trainer of this configuration needs. Masters need narrow weights that keep them, second moments
/// need squares, and the reference needs one that moves.
pub(super) fn parts(trainer: &Trainer) -> impl Iterator<Item = Section> {
    let narrow = trainer.model.dtype(&trainer.params) != DType::F32;
    let moments = trainer.optimizer().moments();
    let moves = trainer.reference().is_some_and(|reference| reference.moving().is_some());
    let wanted = move |name: &str| match name {
        REFERENCE => moves,
        MASTER => narrow && moments.masters,
        "moment2" => moments.second,
        _ => true,
    };
    PARTS.into_iter().filter(move |(name, _)| wanted(name))
}

/// The values of a part that this rank holds. Weights that are not trained have no state and are in the base, if there
/// is one; quantized weights always are. Values that steps change without a gradient are always stored with the
/// weights.
pub(super) fn slots(trainer: &Trainer, (name, pick): Section, base: Option<&Base>) -> Vec<Slot> {
    let changes: Vec<ParamId> = trainer.model.choice_biases().map(|(_, id)| id).collect();
    let slot = |(id, param): (ParamId, &fathom_grad::Param)| {
        let Some(pick) = pick else {
            if param.value.as_packed().is_some() {
                return None;
            }
            if base.is_some() && !param.trainable && !changes.contains(&id) {
                return None;
            }
            return Some(Slot { id, range: param.value.own(), value: param.value.own_part(), coded: None });
        };
        let state = trainer.optimizer().state(id)?;
        let root = name == "moment2";
        let scales = state.scales.get(usize::from(root)).filter(|_| name != MASTER).cloned();
        let coded = scales.map(|scales| CodeScales { scales, root });
        Some(Slot { id, value: pick(state)?.clone(), range: state.range.clone(), coded })
    };
    let moving = trainer.reference().and_then(Reference::moving).filter(|_| name == REFERENCE);
    moving.unwrap_or(&trainer.params).iter().filter_map(slot).collect()
}

/// Reads this rank's part of everything.
pub(super) fn load_parts(trainer: &Trainer, folder: &Path, base: Option<&Base>) -> Result<()> {
    let device = &trainer.device;
    for part in parts(trainer) {
        device.pool.enter("load", -1);
        let source = SafeTensors::open_folder(&folder.join(part.0))?;
        load_slots(device, &trainer.model, &slots(trainer, part, base), &source)?;
    }
    Ok(trainer.params.disk().map_or(Ok(()), |disk| disk.check())?)
}
