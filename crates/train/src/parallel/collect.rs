//! Whole tensors from the parts that ranks hold, on the first rank: what a checkpoint and an exported model are made of.

use std::ops::Range;
use std::sync::Arc;

use fathom_grad::{ParamId, Value};
use fathom_model::{Holdings, Model, Piece, Shard};
use fathom_tensor::mesh::{Axis, Mesh};
use fathom_tensor::{Category, DType, Device, Meta, Tensor};

use super::{Ranks, Sharding, shares};
use crate::step::Trainer;

/// What is collected of each weight: its values, or a part of the optimizer's state, and which elements of it are here.
pub(crate) type Pick<'a> = &'a dyn Fn(&Trainer, ParamId) -> (Value, Range<usize>);

/// Where one rank's parts lie.
pub(crate) struct Layout {
    pub holdings: Holdings,
    /// By [`ParamId`]: where its elements are in Hugging Face's tensors.
    pub pieces: Vec<Vec<Piece>>,
    /// By [`ParamId`]: the elements whose state the rank keeps; none of a weight that has no state.
    pub own: Vec<Option<Range<usize>>>,
    /// By [`ParamId`]: the elements that the rank keeps.
    pub kept: Vec<Range<usize>>,
    /// Among the ranks with the same weights, and among those with the same experts.
    replica: [usize; 2],
    /// The copy of a tied embedding on the last stage.
    copy: Option<ParamId>,
}

/// The whole model of a trainer's part, without weights.
pub(crate) fn whole_model(trainer: &Trainer) -> Model {
    let nowhere = nowhere(&trainer.device, Mesh::alone());
    Model::declare(&nowhere, &trainer.model.spec, trainer.model.dtype(&trainer.params)).0
}

fn nowhere(device: &Device, mesh: Mesh) -> Device {
    Device::on_mesh(Arc::new(Meta::new(device.machine.profile().clone())), u64::MAX, mesh)
}

/// Where all ranks' parts lie, by rank.
pub(crate) fn layouts(trainer: &Trainer) -> Vec<Layout> {
    let (model, mesh) = (&trainer.model, &trainer.device.mesh);
    let sharding = trainer.optimizer().shares().sharding;
    let (virtual_stages, layout) = (model.portion.chunks.len(), model.portion.layout);
    let layout = |rank: usize| {
        let ranks = Ranks { grid: *mesh.grid(), virtual_stages, layout, sharding, rank, ..Ranks::default() };
        let device = nowhere(&trainer.device, ranks.imagined());
        let portion = ranks.portion(&model.spec, &device.mesh);
        let (part, params) = Model::declare_part(&device, &model.spec, DType::F32, None, portion.clone());
        let shares = shares(&device, &part, &params, sharding);
        let own = params.iter().map(|(id, param)| param.trainable.then(|| shares.own(id))).collect();
        let kept = params.iter().map(|(_, param)| param.value.own()).collect();
        let replica = [&[Axis::Cp, Axis::Dp][..], &[Axis::Edp]].map(|axes| device.mesh.group(axes).index());
        let copy = part.embed.filter(|_| !portion.first).map(|embed| embed.tokens);
        Layout { pieces: part.pieces(), holdings: part.holdings, own, kept, replica, copy }
    };
    (0..mesh.grid().ranks()).map(layout).collect()
}

impl Layout {
    /// The rank's id of a weight, if it is the one that hands it over.
    pub fn gives(&self, number: u32) -> Option<ParamId> {
        let index = self.holdings.iter().position(|held| held.number == number)?;
        let id = ParamId(index as u32);
        (self.holdings[index].leads && self.copy != Some(id)).then_some(id)
    }
}

/// Every weight's tensor, by its number in the whole model, in `dtype`, on the first rank; nothing on the others. `state` says
/// that what is picked is shared out as the optimizer's state is. All ranks call this together.
pub(crate) fn collect(trainer: &Trainer, dtype: DType, state: bool, pick: Pick<'_>) -> Option<Vec<Value>> {
    let (device, mesh) = (&trainer.device, &trainer.device.mesh);
    device.pool.enter("collect", -1);
    trainer.params.settle(device);
    let (everybody, layouts) = (mesh.everybody(), layouts(trainer));
    let sharding = trainer.optimizer().shares().sharding;
    let parted = if state { sharding != Sharding::NoShard } else { sharding == Sharding::OptimGradsParams };
    let mut whole = Vec::new();
    for (number, weight) in trainer.model.weights.iter().enumerate() {
        let [rows, cols] = weight.shape;
        let all = (mesh.rank() == 0).then(|| device.empty(rows, cols, dtype, Category::Snapshot));
        for (rank, layout) in layouts.iter().enumerate() {
            let Some(id) = layout.gives(number as u32) else { continue };
            let held = &layout.holdings[id.index()];
            let (shard, replica) = (&held.shard, layout.replica[usize::from(held.expert)]);
            let [rows, cols] = shard.local();
            let own = layout.own[id.index()].clone().filter(|_| parted);
            // Of several that have the same elements the first hands them over.
            let again = replica > 0 && own.is_none();
            let range = own.unwrap_or(0..rows * cols);
            if range.is_empty() || again {
                continue;
            }
            let mine = (rank == mesh.rank()).then(|| {
                let (value, elements) = pick(trainer, id);
                assert_eq!(elements, range, "collect: elements of weight {number}");
                at_hand(device, &value.own_part())
            });
            match (&all, mine) {
                (Some(all), Some(mine)) => scatter(device, all, shard, &range, &mine),
                (Some(all), None) => {
                    let part = device.empty(1, range.len(), dtype, Category::Comm);
                    everybody.exchange(device, "collect", &[], &[(rank, &part)]).wait();
                    scatter(device, all, shard, &range, &part);
                }
                (None, Some(mine)) => everybody.exchange(device, "collect", &[(0, &mine)], &[]).wait(),
                (None, None) => {}
            }
        }
        whole.extend(all.map(Value::from));
    }
    (mesh.rank() == 0).then_some(whole)
}

/// A value in memory, as one row.
fn at_hand(device: &Device, value: &Value) -> Tensor {
    if let Some(tensor) = value.resident() {
        return tensor.reshape(1, tensor.len());
    }
    let all = device.empty(1, value.len(), value.dtype(), Category::Snapshot);
    value.read(|range, part| device.machine.copy(part, &all.view_cols(range)));
    all
}

/// Puts some elements of a rank's part to their places in the whole.
fn scatter(device: &Device, whole: &Tensor, shard: &Shard, range: &Range<usize>, part: &Tensor) {
    let [rows, cols] = shard.local();
    if let ([held], false) = (&shard.rows[..], shard.vector)
        && range.len() == rows * cols
    {
        let to = whole.view_rows(held.clone()).view_cols(shard.cols.clone());
        return device.machine.copy(&part.reshape(rows, cols), &to);
    }
    let flat = whole.reshape(1, whole.len());
    for (here, at, len) in shard.runs() {
        let (from, to) = (here.max(range.start), (here + len).min(range.end));
        if from < to {
            let part = part.view_cols(from - range.start..to - range.start);
            device.machine.copy(&part, &flat.view_cols(at + from - here..at + to - here));
        }
    }
}
