//! Locations of the tensor parts that ranks hold, from which checkpoints are assembled.

use std::ops::Range;
use std::sync::Arc;

use fathom_grad::{ParamId, Value};
use fathom_model::{Holdings, Model, Piece};
use fathom_tensor::mesh::Axis;
use fathom_tensor::{DType, Device, Meta};

use super::{Ranks, shares};
use crate::step::Trainer;

/// Locations of one rank's parts.
pub(crate) struct Layout {
    pub holdings: Holdings,
    /// By [`ParamId`]: position of its elements in Hugging Face's tensors.
    pub pieces: Vec<Vec<Piece>>,
    /// By [`ParamId`]: the elements whose state the rank keeps; none for a weight without state.
    pub own: Vec<Option<Range<usize>>>,
    /// By [`ParamId`]: the elements that the rank keeps.
    pub kept: Vec<Range<usize>>,
    /// Copies of weights that an earlier stage has.
    copies: Vec<ParamId>,
}

/// Locations of all ranks' parts, by rank.
pub(crate) fn layouts(trainer: &Trainer) -> Vec<Layout> {
    let (model, mesh) = (&trainer.model, &trainer.device.mesh);
    let sharding = trainer.optimizer().shares().sharding;
    let (virtual_stages, layout) = (model.portion.chunks.len(), model.portion.layout);
    let layout = |rank: usize| {
        let ranks = Ranks { grid: *mesh.grid(), virtual_stages, layout, sharding, rank, ..Ranks::default() };
        let machine = Arc::new(Meta::new(trainer.device.machine.profile().clone()));
        let device = Device::on_mesh(machine, u64::MAX, ranks.imagined());
        let portion = ranks.portion(&model.spec, &device.mesh);
        let (part, params) = {
            let how = (portion.clone(), model.quantized.as_ref());
            Model::declare_quantized(&device, &model.spec, DType::F32, None, how)
        };
        let shares = shares(&device, &part, &params, sharding);
        let own = params.iter().map(|(id, param)| param.trainable.then(|| shares.own(id))).collect();
        // Packed weights are in the base of the run, not in its checkpoints.
        let kept = |value: &Value| if value.as_packed().is_some() { 0..0 } else { value.own() };
        let kept = params.iter().map(|(_, param)| kept(&param.value)).collect();
        let stage = device.mesh.index(Axis::Pp);
        let later = part.copies().into_iter().filter(|(_, stages)| stages[0] != stage);
        let copies = later.map(|(id, _)| id).collect();
        Layout { pieces: part.pieces(), holdings: part.holdings, own, kept, copies }
    };
    (0..mesh.grid().ranks()).map(layout).collect()
}

impl Layout {
    /// The rank's id of a weight, if this rank is the one that provides it.
    pub fn gives(&self, number: u32) -> Option<ParamId> {
        let index = self.holdings.iter().position(|held| held.number == number)?;
        let id = ParamId(index as u32);
        (self.holdings[index].leads && !self.copies.contains(&id)).then_some(id)
    }
}
