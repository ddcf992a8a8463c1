//! The contract of an operation: forward and backward live together, and neither has a default body, so no
//! operation can exist without its gradient.

use std::ops::Range;

use fathom_tensor::{DType, Device, MatMul, ProductTerm, TERMS, Tensor};

use crate::batch::Batch;
use crate::param_id::ParamId;
use crate::params::Params;

/// Columns and type of a value; its rows are the segment's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// Columns.
    pub cols: usize,
    /// Element type.
    pub dtype: DType,
}

impl Desc {
    /// The columns and type of a tensor.
    pub fn of(x: &Tensor) -> Desc {
        Desc { cols: x.cols(), dtype: x.dtype() }
    }
}

/// One output of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// The activation's name.
    pub name: &'static str,
    /// Columns.
    pub cols: usize,
    /// Element type.
    pub dtype: DType,
    /// True if gradients flow through it.
    pub differentiable: bool,
    /// True if it is one row for all tokens, to which each tile adds, starting from zero. Only the backward pass may
    /// read it, and it is always kept for that.
    pub total: bool,
    /// Its own number of rows, unrelated to the tokens; values computed only from such ones have these rows too.
    pub rows: Option<usize>,
}

impl Out {
    /// A differentiable output.
    pub fn new(name: &'static str, cols: usize, dtype: DType) -> Out {
        Out { name, cols, dtype, differentiable: true, total: false, rows: None }
    }

    /// An f32 statistic that only the backward pass reads.
    pub fn statistic(name: &'static str, cols: usize) -> Out {
        Out { differentiable: false, ..Out::new(name, cols, DType::F32) }
    }

    /// i32 indices.
    pub fn index(name: &'static str, cols: usize) -> Out {
        Out { differentiable: false, ..Out::new(name, cols, DType::I32) }
    }

    /// An f32 sum over all tokens, [1, cols].
    pub fn total(name: &'static str, cols: usize) -> Out {
        Out { total: true, ..Out::statistic(name, cols) }
    }
}

/// The gradients that a node has to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Gradients of the inputs.
    pub inputs: bool,
    /// Gradients of the weights.
    pub weights: bool,
}

/// The values that the backward pass reads, as indices into inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// Inputs.
    pub ins: Vec<usize>,
    /// Outputs.
    pub outs: Vec<usize>,
}

/// Capabilities of an operation's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backward {
    /// Inputs whose gradient is the output's, unchanged.
    pub passes: &'static [usize],
    /// True if `backward_input` can add to `dx`.
    pub accumulates: bool,
    /// True if `backward_weight` can overwrite the first weight's gradient instead of adding to it.
    pub writes_weight: bool,
    /// True if `backward_input` adds to the gradients of weights too, those in [`Exec::dw`]: for operations that
    /// compute both in one pass. `backward_weight` is then for gradients of weights alone.
    pub together: bool,
}

impl Backward {
    /// Every gradient is computed; those of inputs are overwritten, those of weights are added to.
    pub const PLAIN: Backward =
        Backward { passes: &[], accumulates: false, writes_weight: false, together: false };
}

/// Floating-point operations of one node. Model FLOPs count attention once under the mask, without replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// Forward.
    pub forward: u64,
    /// Backward, by inputs.
    pub input: u64,
    /// Backward, by the first weight. Work for biases is not counted, as in the forward pass.
    pub weight: u64,
    /// Additional work of the backward kernels (attention recomputes its scores).
    pub extra: u64,
}

/// The values named by [`Saves`], for the current rows.
pub struct SavedValues {
    pub(crate) ins: Vec<Option<Tensor>>,
    pub(crate) outs: Vec<Option<Tensor>>,
    /// The weights.
    pub params: Vec<Tensor>,
}

impl SavedValues {
    /// A saved input.
    #[track_caller]
    pub fn input(&self, index: usize) -> &Tensor {
        self.ins[index].as_ref().unwrap_or_else(|| panic!("input {index} was not saved"))
    }

    /// A saved output.
    #[track_caller]
    pub fn output(&self, index: usize) -> &Tensor {
        self.outs[index].as_ref().unwrap_or_else(|| panic!("output {index} was not saved"))
    }
}

impl SavedValues {
    /// The saved values that the gradients of weights need, without the weights.
    pub(crate) fn for_weights(&self, op: &dyn Op) -> SavedValues {
        let Saves { ins, outs } = op.saves(Want { inputs: false, weights: true });
        let only = |vals: &[Option<Tensor>], wanted: Vec<usize>| {
            let of = |(index, val): (usize, &Option<Tensor>)| val.clone().filter(|_| wanted.contains(&index));
            vals.iter().enumerate().map(of).collect()
        };
        SavedValues { ins: only(&self.ins, ins), outs: only(&self.outs, outs), params: Vec::new() }
    }
}

/// Gradients of a node's outputs or weights; `None` for those that have none.
pub type OptGrads<'a> = &'a [Option<Tensor>];

/// Target of an input's gradient.
pub struct Dx {
    /// [rows, cols of the input].
    pub tensor: Tensor,
    /// Add instead of overwriting.
    pub accumulate: bool,
}

/// Memory of earlier tokens in a layer, during generation.
pub trait LayerMemory {
    /// For attention: appends the rows of `k` and `v` for a layer and returns all rows that the batch's masks refer to.
    fn append(&mut self, device: &Device, layer: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor);
    /// For attention to a source: takes `k` and `v` of the sources whose result the batch computed, and returns those of all sources
    /// that its masks refer to.
    fn source(&mut self, _device: &Device, _layer: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        (k.clone(), v.clone())
    }
    /// For recurrences: a named state of a layer before the rows of one of the batch's sequences
    /// ([`DocumentRun::document`](crate::DocumentRun)), in f32. It is zero at a sequence's beginning and is to be
    /// overwritten with the new state.
    fn state(&mut self, device: &Device, layer: usize, name: &str, sequence: usize) -> Tensor;
}

/// The context of a running operation.
pub struct Exec<'a> {
    /// Compute and memory.
    pub device: &'a Device,
    /// Weights.
    pub params: &'a Params,
    /// Token ids, positions, masks.
    pub batch: &'a Batch,
    /// Memory of earlier tokens, in generation.
    pub kv: Option<&'a mut dyn LayerMemory>,
    /// The token rows of the current tile.
    pub rows: Range<usize>,
    /// The first weight of the current operation, in a forward pass.
    pub weight: Option<ParamId>,
    /// The segment's layer.
    pub layer: i32,
    /// Number of layers between where the operations were recorded and this one.
    pub layers_on: i32,
    /// Number of groups of heads that attention processes one after the other.
    pub head_groups: usize,
    /// True if the gradient of the first weight is added to; otherwise an operation with [`Backward::writes_weight`]
    /// overwrites it.
    pub adds: bool,
    /// Gradients of weights that `backward_input` adds to, of operations with [`Backward::together`]; else empty.
    pub dw: Vec<Option<Tensor>>,
    /// Value passed from an operation's weight gradient to its input gradient, which follows it.
    pub carry: Option<Tensor>,
    /// f32 [layers, experts]: routing counts, in a forward pass that trains.
    pub loads: Option<Tensor>,
    /// True if the pass belongs to a training step.
    pub trains: bool,
}

impl Exec<'_> {
    /// A matrix product with its scratch, also with a packed weight.
    #[track_caller]
    pub fn matmul(&self, op: MatMul<'_>) {
        if let Some(op) = op.packed() {
            let ws = self.workspace(self.device.machine.profile().workspace(&op.desc()));
            return self.device.machine.packed_matmul(&op, &ws);
        }
        let ws = self.workspace(self.device.machine.profile().workspace(&op.desc()));
        self.device.machine.matmul(&op, &ws);
    }

    /// A matrix product with terms, and its scratch, also with a packed weight.
    #[track_caller]
    pub fn matmul_with(&self, op: MatMul<'_>, terms: &[ProductTerm<'_>]) {
        if op.packed().is_some() || terms.len() > TERMS {
            self.matmul(op);
            return terms.iter().for_each(|term| term.added(op.c, |op| self.matmul(*op)));
        }
        let ws = self.workspace(self.device.machine.profile().workspace(&op.desc_with(terms)));
        self.device.machine.matmul_with(&op, terms, &ws);
    }

    /// Scratch memory, in bytes.
    pub fn workspace(&self, bytes: u64) -> Tensor {
        self.device.empty(1, bytes as usize, DType::U8, fathom_tensor::Category::Workspace)
    }
}

/// A fused operation. `forward` writes `outs`; `backward_input` writes (or adds to) each existing `dx`;
/// `backward_weight` adds to each existing main gradient (f32), or overwrites the first.
pub trait Op {
    /// Name for messages and profiles.
    fn name(&self) -> &'static str;
    /// Names and shapes of the outputs.
    ///
    /// # Panics
    /// If the inputs do not fit, with the operation's name and the shapes.
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out>;
    /// The values that the backward pass reads.
    fn saves(&self, _: Want) -> Saves {
        Saves::default()
    }
    /// Capabilities of its gradients.
    fn backward(&self) -> Backward {
        Backward::PLAIN
    }
    /// Work of its products for `rows` tokens.
    fn flops(&self, _rows: usize, _ins: &[Desc], _params: &[[usize; 2]], _batch: &Batch) -> Flops {
        Flops::default()
    }
    /// Computes the outputs.
    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]);
    /// Gradients of the inputs that want one and are not passed through.
    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]);
    /// Gradients of the weights.
    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>);
}
