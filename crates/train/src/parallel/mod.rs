//! A step over a mesh: what each rank keeps of the optimizer's state, and what ranks owe each other between the backward
//! pass and the update. Tensor and context parallel live inside the operations; here are data and pipeline parallel.

pub(crate) mod collect;
pub(crate) mod pipeline;
pub mod stages;

use std::ops::Range;

use fathom_grad::{AdamW, CpComm, Grads, Param, ParamId, ParamShares, Params, SLOT, Shares, deal};
use fathom_model::{Model, Portion, Spec, Weight};
use fathom_tensor::mesh::{Axis, Grid, Imagined, Mesh};
use fathom_tensor::{Device, Tensor};

use crate::step::Trainer;

/// What ranks with the same weights share (the names are Megatron-FSDP's `data_parallel_sharding_strategy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharding {
    /// Nothing: each has the whole state.
    NoShard,
    /// The optimizer's state (ZeRO-1, Megatron's distributed optimizer).
    #[default]
    Optim,
}

/// The ranks of a step, and which of them is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// The sizes of the mesh.
    pub grid: Grid,
    /// Stages of the pipeline on each rank.
    pub virtual_stages: usize,
    /// What ranks with the same weights share.
    pub sharding: Sharding,
    /// How keys and values travel between context parallel ranks.
    pub cp_comm: CpComm,
    /// The rank that is planned; a trainer's own is its device's.
    pub rank: usize,
}

impl Default for Ranks {
    fn default() -> Ranks {
        let (grid, sharding, cp_comm) = (Grid::default(), Sharding::default(), CpComm::P2p);
        Ranks { grid, virtual_stages: 1, sharding, cp_comm, rank: 0 }
    }
}

impl Ranks {
    /// The rank's place, on a machine without data.
    pub fn imagined(&self) -> Mesh {
        match self.grid.ranks() {
            1 => Mesh::alone(),
            ranks => Mesh::new(self.grid, Box::new(Imagined::new(self.rank, ranks))),
        }
    }

    /// Whether a model can be spread like this.
    ///
    /// # Errors
    /// What does not divide, and what would.
    pub fn check(&self, spec: &Spec) -> Result<(), String> {
        let Grid { tp, cp, .. } = self.grid;
        let (layers, stages) = (spec.layers.len(), self.grid.pp * self.virtual_stages);
        if layers < stages && stages > 1 {
            return Err(format!("{layers} layers are fewer than the {stages} stages of the pipeline"));
        }
        Portion::of(spec, &self.imagined(), self.virtual_stages).check(spec)?;
        self.cp_comm.check(cp, spec.heads / tp, spec.kv_heads / tp)
    }

    /// Ranks whose plans may differ: one of each stage of the pipeline, of each context parallel and each tensor parallel index.
    pub fn distinct(&self) -> Vec<usize> {
        let Grid { tp, cp, dp, pp, .. } = self.grid;
        (0..pp).flat_map(|stage| (0..tp * cp).map(move |index| stage * tp * cp * dp + index)).collect()
    }
}

/// Elements of a rank's part of a weight, at most.
fn local_len(weight: &Weight) -> usize {
    let ([rows, cols], parts) = (weight.shape, weight.parts);
    // A vocabulary need not divide; everything else that is parted does.
    match parts {
        1 => rows * cols,
        _ => (rows * cols).div_ceil(parts).max(rows.div_ceil(parts) * cols),
    }
}

/// The whole model with its weights on the first rank, nothing on the others: for an export. All ranks call this together.
pub fn whole(trainer: &Trainer) -> Option<(Model, Params)> {
    let pick = |trainer: &Trainer, id: ParamId| {
        let value = trainer.params.get(id).value.clone();
        let all = 0..value.len();
        (value, all)
    };
    let values = collect::collect(trainer, trainer.model.dtype(&trainer.params), false, &pick)?;
    let model = collect::whole_model(trainer);
    let mut params = Params::default();
    for (number, value) in values.into_iter().enumerate() {
        params.push(Param { name: format!("weight {number}"), value, decays: true, trainable: false });
    }
    Some((model, params))
}

/// Who keeps the optimizer's state of what.
pub fn shares(device: &Device, model: &Model, params: &Params, sharding: Sharding) -> Shares {
    let mesh = &device.mesh;
    let (replicas, experts) = (mesh.group(&[Axis::Cp, Axis::Dp]), mesh.group(&[Axis::Edp]));
    // Every rank numbers the slots of the whole model in the same way.
    let mut first = Vec::new();
    let mut num_slots = 0;
    for weight in &model.weights {
        first.push(num_slots);
        num_slots += local_len(weight).div_ceil(SLOT) * weight.parts;
    }
    let whole = sharding == Sharding::NoShard || (replicas.size() == 1 && experts.size() == 1);
    let slot = |id: ParamId| {
        let held = &model.holdings[id.index()];
        let at = held.number as usize;
        // The copy of a tied embedding on the last stage is counted on the first.
        let copy = !model.portion.first && model.embed.is_some_and(|embed| embed.tokens == id);
        // What several have all of the first of them counts.
        let same = if held.expert { &experts } else { &replicas };
        let counts = held.leads && !copy && !(whole && same.index() > 0);
        counts.then(|| first[at] + held.part * local_len(&model.weights[at]).div_ceil(SLOT))
    };
    let is_expert = |id: ParamId| model.holdings[id.index()].expert;
    // Experts have replicas of their own, and are dealt to them by themselves.
    let lens = |experts: bool| -> Vec<usize> {
        params
            .iter()
            .map(|(id, param)| if is_expert(id) == experts { param.value.len() } else { 0 })
            .collect()
    };
    let ranges = |of_experts: bool, members: usize| -> Vec<Vec<Range<usize>>> {
        match whole {
            true => lens(of_experts).iter().map(|len| vec![0..*len; members]).collect(),
            false => deal(&lens(of_experts), members),
        }
    };
    let both = ranges(false, replicas.size()).into_iter().zip(ranges(true, experts.size()));
    let share = |((id, _), (dense, of_expert))| {
        let expert = is_expert(id);
        ParamShares { ranges: if expert { of_expert } else { dense }, slot: slot(id), expert }
    };
    let params = params.iter().zip(both).map(share).collect();
    let squares = mesh.everybody();
    Shares { params, num_slots, replicas, experts, whole, squares }
}

/// Completes the gradients of the sum over all micro batches of all ranks: the parts of weights that every tensor parallel
/// rank has, the two copies of a tied embedding, and the sum over ranks with the same weights.
pub(crate) fn complete(device: &Device, model: &Model, optimizer: &AdamW, grads: &Grads) {
    let mesh = &device.mesh;
    device.pool.enter("reduce gradients", -1);
    let (tp, etp) = (mesh.group(&[Axis::Tp]), mesh.group(&[Axis::Etp]));
    for (id, grad) in grads.iter() {
        let held = &model.holdings[id.index()];
        let ranks = if held.expert { &etp } else { &tp };
        if held.partial {
            ranks.all_reduce(device, grad);
        }
    }
    let pp = mesh.group(&[Axis::Pp]);
    if model.spec.tied
        && pp.size() > 1
        && let Some(grad) = model.embed.and_then(|embed| grads.get(embed.tokens))
    {
        pp.some("pp ends", &[0, pp.size() - 1]).all_reduce(device, grad);
    }
    optimizer.reduce(device, grads);
}

/// Sums of a step over all ranks: the loss, which the last stage has, and the valid tokens, which every stage has.
pub(crate) fn sums(device: &Device, loss: &Tensor, count: &Tensor) {
    let mesh = &device.mesh;
    let replicas = mesh.group(&[Axis::Cp, Axis::Dp]);
    replicas.all_reduce(device, loss);
    replicas.all_reduce(device, count);
    let pp = mesh.group(&[Axis::Pp]);
    pp.broadcast(device, pp.size() - 1, loss);
}
