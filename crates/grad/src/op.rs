//! The contract of an operation: forward and backward live together, and nothing has a default body, so no
//! operation can exist without its gradient.

use std::ops::Range;

use fathom_tensor::{DType, Device, MatMul, TERMS, Tensor, Term};

use crate::batch::Batch;
use crate::params::{ParamId, Params};

/// Columns and type of a value; its rows are the segment's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// Columns.
    pub cols: usize,
    /// Element type.
    pub dtype: DType,
}

impl Desc {
    /// That of a tensor.
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
    /// Gradients flow through it.
    pub differentiable: bool,
    /// One row for all tokens, to which each tile adds; it begins at zero. Only the backward pass may read it, and it is
    /// always kept for that.
    pub total: bool,
    /// Rows of its own, which are none of the tokens'; what comes from such values alone has them too.
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

/// Which gradients a node has to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Of its inputs.
    pub inputs: bool,
    /// Of its weights.
    pub weights: bool,
}

/// What the backward pass reads, as indices into inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// Inputs.
    pub ins: Vec<usize>,
    /// Outputs.
    pub outs: Vec<usize>,
}

/// What the gradients of an operation allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backward {
    /// Inputs whose gradient is the output's, unchanged.
    pub passes: &'static [usize],
    /// `backward_input` can add to `dx`.
    pub accumulates: bool,
    /// `backward_weight` can write the first weight's gradient instead of adding to it.
    pub writes_weight: bool,
}

impl Backward {
    /// Every gradient is computed; those of inputs are written, those of weights are added to.
    pub const PLAIN: Backward = Backward { passes: &[], accumulates: false, writes_weight: false };
}

/// Floating-point operations of one node. Model FLOPs count attention once under the mask and no replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// Forward.
    pub forward: u64,
    /// Backward, by inputs.
    pub input: u64,
    /// Backward, by the first weight. What biases take is not counted, as in the forward pass.
    pub weight: u64,
    /// What the backward kernels do beyond that (attention recomputes its scores).
    pub extra: u64,
}

/// What [`Saves`] named, for the rows at hand.
pub struct Saved {
    pub(crate) ins: Vec<Option<Tensor>>,
    pub(crate) outs: Vec<Option<Tensor>>,
    /// The weights.
    pub params: Vec<Tensor>,
}

impl Saved {
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

impl Saved {
    /// What gradients of the weights alone are made from, but for the weights.
    pub(crate) fn for_weights(&self, op: &dyn Op) -> Saved {
        let Saves { ins, outs } = op.saves(Want { inputs: false, weights: true });
        let only = |vals: &[Option<Tensor>], wanted: Vec<usize>| {
            let of = |(index, val): (usize, &Option<Tensor>)| val.clone().filter(|_| wanted.contains(&index));
            vals.iter().enumerate().map(of).collect()
        };
        Saved { ins: only(&self.ins, ins), outs: only(&self.outs, outs), params: Vec::new() }
    }
}

/// Where an input's gradient goes.
pub struct Dx {
    /// [rows, cols of the input].
    pub tensor: Tensor,
    /// Add instead of overwriting.
    pub accumulate: bool,
}

/// What a layer remembers of earlier tokens, in generation.
pub trait LayerMemory {
    /// For attention: appends the rows of `k` and `v` for a layer and returns all rows that the batch's masks speak of.
    fn append(&mut self, device: &Device, layer: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor);
    /// For recurrences: of each sequence of the batch its rows of the stream, and what the layer kept of the rows before them: zeros
    /// at its beginning, [rows, cols] of f32, to be overwritten with what it keeps of these.
    fn state(&mut self, device: &Device, layer: usize, shape: [usize; 2]) -> Vec<(Range<usize>, Tensor)>;
}

/// The context of a running operation.
pub struct Exec<'a> {
    /// Compute and memory.
    pub device: &'a Device,
    /// Weights.
    pub params: &'a Params,
    /// Token ids, positions, masks.
    pub batch: &'a Batch,
    /// What layers remember, in generation.
    pub kv: Option<&'a mut dyn LayerMemory>,
    /// The token rows of the tile at hand.
    pub rows: Range<usize>,
    /// The first weight of the operation at hand, in a forward pass.
    pub weight: Option<ParamId>,
    /// The segment's layer.
    pub layer: i32,
    /// Layers between the one that the operations were recorded for and this one.
    pub layers_on: i32,
    /// Groups of heads that attention runs over, one after the other.
    pub head_groups: usize,
    /// The gradient of the first weight is added to; else an operation that [`Backward::writes_weight`] writes it.
    pub adds: bool,
    /// What an operation's weight gradient leaves for its input gradient, which follows it.
    pub carry: Option<Tensor>,
    /// f32 [layers, experts], in a forward pass that trains: routers count what they choose.
    pub loads: Option<Tensor>,
    /// The pass is of a step that trains.
    pub trains: bool,
}

impl Exec<'_> {
    /// A matrix product with its scratch, by a packed weight too.
    #[track_caller]
    pub fn matmul(&self, op: MatMul<'_>) {
        if let Some(op) = op.packed() {
            let ws = self.workspace(self.device.machine.profile().workspace(&op.desc()));
            return self.device.machine.packed_matmul(&op, &ws);
        }
        let ws = self.workspace(self.device.machine.profile().workspace(&op.desc()));
        self.device.machine.matmul(&op, &ws);
    }

    /// A matrix product with terms, and its scratch, by a packed weight too.
    #[track_caller]
    pub fn matmul_with(&self, op: MatMul<'_>, terms: &[Term<'_>]) {
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

/// A fused operation. `forward` writes `outs`; `backward_input` writes (or adds to) each `dx` that is there;
/// `backward_weight` adds to each main gradient that is there (f32), or writes the first.
pub trait Op {
    /// For messages and profiles.
    fn name(&self) -> &'static str;
    /// Names and shapes of the outputs.
    ///
    /// # Panics
    /// If the inputs do not fit, with the operation's name and the shapes.
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out>;
    /// What the backward pass reads.
    fn saves(&self, want: Want) -> Saves;
    /// What its gradients allow.
    fn backward(&self) -> Backward;
    /// Work for `rows` tokens.
    fn flops(&self, rows: usize, ins: &[Desc], params: &[[usize; 2]], batch: &Batch) -> Flops;
    /// Computes the outputs.
    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]);
    /// Gradients of the inputs, for those that want one and are not passed through.
    fn backward_input(&self, x: &mut Exec<'_>, saved: &Saved, dy: &[Option<Tensor>], dx: &[Option<Dx>]);
    /// Gradients of the weights.
    fn backward_weight(&self, x: &mut Exec<'_>, saved: &Saved, dy: &[Option<Tensor>], dw: &[Option<Tensor>]);
}
