//! A step over a mesh: the optimizer state that each rank keeps, and the communication between the backward pass and
//! the update. Tensor and context parallelism are part of the operations; data and pipeline parallelism are here.

pub(crate) mod layouts;
pub(crate) mod pipeline;
pub mod stages;

use std::ops::Range;

pub use fathom_grad::Sharding;
use fathom_grad::{CpComm, Param, ParamId, ParamShares, Params, SLOT, Shares, deal_buckets};
use fathom_model::{Model, Portion, Spec, StageLayers, Weight};
use fathom_tensor::mesh::{Axis, CountingLink, Grid, Mesh};
use fathom_tensor::{DType, Device, SUM_CHUNK, Tensor};

use self::stages::Order;
use crate::error::{Error, Result};

/// The ranks of a step, and the one at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// The sizes of the mesh.
    pub grid: Grid,
    /// Stages of the pipeline on each rank.
    pub virtual_stages: usize,
    /// Number of layers in each stage.
    pub layout: StageLayers,
    /// Order in which micro-batches pass through the stages.
    pub order: Order,
    /// Sharding among ranks with the same weights.
    pub sharding: Sharding,
    /// How keys and values travel between context parallel ranks.
    pub cp_comm: CpComm,
    /// Exchange of layers that read rows in order between those ranks.
    pub cp_scan: CpScan,
    /// True if documents are kept on few of those ranks.
    pub cp_dynamic: bool,
    /// The planned rank; a trainer uses its device's.
    pub rank: usize,
}

/// Exchange of layers that read rows in order between context parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpScan {
    /// The one with fewer bytes.
    Auto,
    /// Tokens for heads, and back.
    A2a,
    /// States of documents, from piece to piece.
    States,
}

impl Default for Ranks {
    fn default() -> Ranks {
        let (grid, sharding, cp_comm) = (Grid::default(), Sharding::default(), CpComm::P2p);
        let order = Order::default();
        Ranks {
            grid,
            virtual_stages: 1,
            layout: StageLayers::default(),
            order,
            sharding,
            cp_comm,
            cp_scan: CpScan::A2a,
            cp_dynamic: false,
            rank: 0,
        }
    }
}

impl Ranks {
    /// A mesh for this rank on a machine without data.
    pub fn imagined(&self) -> Mesh {
        match self.grid.ranks() {
            1 => Mesh::alone(),
            ranks => Mesh::new(self.grid, Box::new(CountingLink::new(self.rank, ranks))),
        }
    }

    /// Checks that a model can be distributed like this.
    ///
    /// # Errors
    /// The size that does not divide, and ones that would.
    pub fn check(&self, spec: &Spec) -> Result<()> {
        let refuse = |key: &str, message| Error::Recipe { key: format!("mesh.{key}"), message };
        let Grid { tp, cp, .. } = self.grid;
        let (layers, stages) = (spec.layers.len(), self.grid.pp * self.virtual_stages);
        if layers < stages && stages > 1 {
            let message = format!(
                "{layers} layers are fewer than the {stages} stages of the pipeline; mesh.pp times \
                 mesh.virtual_stages may be at most {layers}"
            );
            return Err(refuse("pp", message));
        }
        self.layout.check(layers, stages).map_err(|message| refuse("layout", message))?;
        let portion = self.portion(spec, &self.imagined());
        let passes = spec.source == 0 && spec.passes(&portion.sharers_of_layers()).is_some();
        if self.cp_scan == CpScan::States && cp > 1 && spec.mixes_by_document() && !passes {
            let why = format!("ranks cannot pass the state of some layers of {}", spec.family);
            return Err(refuse("cp_scan_comm_type", format!("cannot be \"states\": {why}; take \"a2a\"")));
        }
        let dealt = portion.check(spec);
        let checked = match self.cp_scan {
            CpScan::States | CpScan::Auto if passes => Portion { cp: 1, ..portion }.check(spec),
            _ => dealt,
        };
        checked.map_err(|misfit| refuse(misfit.axis.name(), misfit.message))?;
        let looks_ahead = spec.reaches().iter().any(|reach| reach.looks_ahead());
        if spec.source > 0 && !SUM_CHUNK.is_multiple_of(cp) {
            let message = format!(
                "{cp} ranks do not divide streams of multiples of {SUM_CHUNK} tokens; give a power of two"
            );
            return Err(refuse("cp", message));
        }
        if cp > 1 && looks_ahead {
            // A source's keys are always gathered.
            if self.cp_comm != CpComm::AllGather && spec.source == 0 {
                let message = format!(
                    "is \"{}\", which is of causal attention; tokens of {} attend to both sides: give all_gather",
                    self.cp_comm, spec.family
                );
                return Err(refuse("cp_comm_type", message));
            }
            if self.cp_dynamic {
                return Err(refuse(
                    "cp_dynamic",
                    "keeps documents of causal attention on few ranks; give false".into(),
                ));
            }
        }
        let comm = |heads: usize| self.cp_comm.check(cp, heads / tp, spec.kv_heads / tp);
        let comm = if spec.attends() { comm(spec.heads) } else { Ok(()) };
        comm.map_err(|message| refuse("cp_comm_type", message))
    }

    /// Most rows before a row that layers read with it, if ranks pass states of a stream of `tokens` tokens instead of
    /// exchanging these for heads.
    pub fn passes(&self, spec: &Spec, tokens: usize, dtype: DType) -> Option<usize> {
        let cp = self.grid.cp;
        if cp == 1 || self.cp_scan == CpScan::A2a {
            return None;
        }
        let portion = self.portion(spec, &self.imagined());
        let passed = spec.passes(&portion.sharers_of_layers())?;
        let bytes = passed.iter().map(|layer| layer.bytes(cp, tokens, dtype.bytes()));
        let [heads, states] = bytes.fold([0, 0], |[a, b], [heads, states]| [a + heads, b + states]);
        let chosen = self.cp_scan == CpScan::States || states < heads || portion.check(spec).is_err();
        chosen.then(|| passed.iter().map(|layer| layer.reach).max().unwrap_or(0))
    }

    /// The part of a model that a rank holds.
    pub fn portion(&self, spec: &Spec, mesh: &Mesh) -> Portion {
        Portion::cut(spec, mesh, self.virtual_stages, self.layout)
            .with_parted(self.sharding == Sharding::OptimGradsParams)
    }
}

/// Maximum number of elements in a rank's part of a weight.
fn local_len(weight: &Weight) -> usize {
    let ([rows, cols], parts) = (weight.shape, weight.parts);
    // Only the vocabulary need not divide evenly.
    match parts {
        1 => rows * cols,
        _ => (rows * cols).div_ceil(parts).max(rows.div_ceil(parts) * cols),
    }
}

/// Assigns the optimizer's state to ranks.
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
    let (copies, pp) = (model.copies(), mesh.group(&[Axis::Pp]));
    let whole = sharding == Sharding::NoShard || (replicas.size() == 1 && experts.size() == 1);
    let slot = |id: ParamId| {
        let held = &model.holdings[id.index()];
        let at = held.number as usize;
        // Weights that several stages have are counted on the first of them.
        let copy = copies.iter().any(|(own, stages)| *own == id && stages[0] != pp.index());
        // Values that several ranks hold in full are counted on the first of them.
        let same = if held.expert { &experts } else { &replicas };
        let counts = held.leads && !copy && !(whole && same.index() > 0);
        counts.then(|| first[at] + held.part * local_len(&model.weights[at]).div_ceil(SLOT))
    };
    let is_expert = |id: ParamId| model.holdings[id.index()].expert;
    let members = |id: ParamId| if is_expert(id) { experts.size() } else { replicas.size() };
    let lens = params.iter().map(|(id, param)| (param.value.len(), members(id)));
    let ranges: Vec<Vec<Range<usize>>> = if whole {
        lens.map(|(len, members)| vec![0..len; members]).collect()
    } else {
        deal_buckets(params, &members)
    };
    let share = |(ranges, (id, _)): (Vec<Range<usize>>, (ParamId, &Param))| ParamShares {
        ranges,
        slot: slot(id),
        partial: model.holdings[id.index()].partial,
        copies: copies.iter().position(|(own, _)| *own == id),
        expert: is_expert(id),
    };
    let shares: Vec<ParamShares> = ranges.into_iter().zip(params.iter()).map(share).collect();
    let of_copies = |(_, stages): &(ParamId, Vec<usize>)| pp.some("pp copies", stages);
    let copies = copies.iter().map(of_copies).collect();
    let sharding = if whole { Sharding::NoShard } else { sharding };
    let (buckets, squares) = (params.buckets(), mesh.everybody());
    let [tp, etp] = [Axis::Tp, Axis::Etp].map(|axis| mesh.group(&[axis]));
    Shares {
        params: shares,
        buckets,
        num_slots,
        replicas,
        experts,
        sharding,
        whole,
        squares,
        tp,
        etp,
        copies,
    }
}

/// Sums over all ranks: the loss, which the last stage has, and the number of valid tokens, which every stage has.
pub(crate) fn sums(device: &Device, loss: &Tensor, count: &Tensor) {
    let mesh = &device.mesh;
    device.pool.enter("sum losses", -1);
    let replicas = mesh.group(&[Axis::Cp, Axis::Dp]);
    replicas.all_reduce(device, loss);
    replicas.all_reduce(device, count);
    let pp = mesh.group(&[Axis::Pp]);
    pp.broadcast(device, pp.size() - 1, loss);
}

/// Sums over the last stage's ranks, broadcast to all ranks.
pub(crate) fn of_last_stage(device: &Device, sums: &Tensor) {
    device.mesh.group(&[Axis::Cp, Axis::Dp]).all_reduce(device, sums);
    let pp = device.mesh.group(&[Axis::Pp]);
    pp.broadcast(device, pp.size() - 1, sums);
}
