//! Arguments of operations that read the rows of each document in order: causal convolutions and the scans of
//! state-space layers, and the gated norm after them.

use crate::{DocumentRuns, OpDesc, RunPlaces, Tensor};

/// Rows of a document whose state is computed at once; a product takes the state from one such chunk to the next. The value
/// is no part of a model: any gives the same function.
pub const SCAN_CHUNK: usize = crate::SUM_CHUNK;

/// Rows of a document between two states that the forward pass keeps for the backward pass.
pub const SCAN_SPAN: usize = 16 * SCAN_CHUNK;

/// In generation, most rows of a document that a scan takes one after the other, each by itself: so the state after some
/// tokens of an answer has the same bits however many of them a step reads. More rows are taken by chunks.
pub const SCAN_STEPS: usize = 32;

/// Columns of f32 per row in which the states of [`SCAN_SPAN`] rows fit.
pub fn state_cols(state: usize) -> usize {
    state.div_ceil(SCAN_SPAN)
}

/// Operands of a causal depthwise convolution over the rows of each document:
/// `act(bias + sum over k of weight[c, k] u[t - W + 1 + k, c])`, where rows before the document are zero.
#[derive(Clone, Copy, Debug)]
pub struct ConvOperands<'a> {
    /// [t, c].
    pub u: &'a Tensor,
    /// [c, w].
    pub weight: &'a Tensor,
    /// [1, c], stored like the weight.
    pub bias: Option<&'a Tensor>,
    /// Whether act is `x sigmoid(x)` or nothing.
    pub silu: bool,
    /// The rows' documents.
    pub documents: &'a DocumentRuns,
}

/// A causal convolution, forward.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// Operands.
    pub of: ConvOperands<'a>,
    /// In generation, for each run: f32 [w - 1, c], the rows of u before it, the oldest first. Replaced by the last
    /// rows including the run's.
    pub states: &'a [Tensor],
    /// [t, c].
    pub out: &'a Tensor,
}

/// The gradients of [`Conv`] that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct ConvBackward<'a> {
    /// Operands of the forward pass.
    pub of: ConvOperands<'a>,
    /// [t, c].
    pub dy: &'a Tensor,
    /// [t, c]; overwritten.
    pub du: Option<&'a Tensor>,
    /// f32 [c, w]; added to.
    pub dweight: Option<&'a Tensor>,
    /// f32 [1, c]; added to.
    pub dbias: Option<&'a Tensor>,
}

/// Operands of a gated norm: `y silu(z)` normalised, or y normalised and then times `silu(z)`. Norms are RMSNorms of
/// each group of `width` columns.
#[derive(Clone, Copy, Debug)]
pub struct GatedNormOperands<'a> {
    /// [t, c].
    pub y: &'a Tensor,
    /// [t, c].
    pub z: &'a Tensor,
    /// [1, c], or [1, width] for all groups; `None` for the gate alone.
    pub weight: Option<&'a Tensor>,
    /// Columns that are normalised together.
    pub width: usize,
    /// Whether y is gated before it is normalised.
    pub gate_first: bool,
    /// Added to the mean square.
    pub eps: f32,
}

impl GatedNormOperands<'_> {
    /// Shapes and types of the call.
    pub fn desc(&self) -> OpDesc {
        OpDesc::GatedNorm { rows: self.y.rows(), cols: self.y.cols() }
    }
}

/// A gated norm, forward.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm<'a> {
    /// Operands.
    pub of: GatedNormOperands<'a>,
    /// [t, c].
    pub out: &'a Tensor,
}

/// The gradients of [`GatedNorm`] that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct GatedNormBackward<'a> {
    /// Operands of the forward pass.
    pub of: GatedNormOperands<'a>,
    /// [t, c].
    pub dout: &'a Tensor,
    /// [t, c]; overwritten.
    pub dy: Option<&'a Tensor>,
    /// [t, c]; overwritten.
    pub dz: Option<&'a Tensor>,
    /// f32, like the weight; added to.
    pub dweight: Option<&'a Tensor>,
}

/// Operands of Mamba-2's scan (Dao and Gu, 2024): per head, with `a = -exp(a_log)` and
/// `delta = clamp(softplus(dt + dt_bias))`, `S_t = e^(delta a) S_(t-1) + delta x_t B_t^T` and `y_t = S_t C_t + d x_t`,
/// from nothing in each document. Groups of heads share B and C.
#[derive(Clone, Copy, Debug)]
pub struct SsdOperands<'a> {
    /// [t, heads x width + 2 x groups x state]: x, B and C side by side.
    pub u: &'a Tensor,
    /// [t, heads].
    pub dt: &'a Tensor,
    /// f32 [1, heads].
    pub a_log: &'a Tensor,
    /// f32 [1, heads].
    pub dt_bias: &'a Tensor,
    /// f32 [1, heads].
    pub d: &'a Tensor,
    /// Groups of heads.
    pub groups: usize,
    /// Columns of B and of C, per group.
    pub state: usize,
    /// Limits of delta.
    pub limit: [f32; 2],
    /// The rows' documents.
    pub documents: &'a DocumentRuns,
}

impl SsdOperands<'_> {
    /// Heads.
    pub fn heads(&self) -> usize {
        self.dt.cols()
    }

    /// Columns of a head of x.
    pub fn width(&self) -> usize {
        (self.u.cols() - 2 * self.groups * self.state) / self.heads()
    }

    /// Shapes and types of the call.
    pub fn desc(&self, backward: bool) -> OpDesc {
        let (rows, heads, width) = (self.u.rows(), self.heads(), self.width());
        OpDesc::Ssd { rows, heads, width, groups: self.groups, state: self.state, places: 0, backward }
    }

    /// [`SsdOperands::desc`] of a call with states at borders of runs, in so many places.
    pub fn desc_between(&self, of_places: usize, backward: bool) -> OpDesc {
        match self.desc(backward) {
            OpDesc::Ssd { rows, heads, width, groups, state, backward, .. } => {
                OpDesc::Ssd { rows, heads, width, groups, state, places: of_places, backward }
            }
            other => other,
        }
    }

    /// FLOPs of the products of all rows with a state.
    pub fn state_flops(&self) -> u64 {
        (2 * self.u.rows() * self.heads() * self.width() * self.state) as u64
    }

    /// FLOPs of the products of a pass.
    pub fn flops(&self, backward: bool) -> u64 {
        ssd_flops(self.u.rows(), [self.heads(), self.width(), self.groups, self.state], backward)
    }
}

/// FLOPs of a scan's products: `[heads, width, groups, state]`. Triangles count half.
pub fn ssd_flops(rows: usize, [heads, width, groups, state]: [usize; 4], backward: bool) -> u64 {
    let (chunk, inner) = (SCAN_CHUNK, heads * width);
    let scores = chunk * groups * state;
    let within = chunk * inner;
    let between = 2 * state * inner;
    let per_row =
        if backward { 3 * scores + 2 * within + 5 * between } else { scores + within + 2 * between };
    (rows * per_row) as u64
}

/// States at borders of runs whose documents other ranks have rows of, or gradients of these.
#[derive(Clone, Copy, Debug)]
pub struct RunStates<'a> {
    /// The runs that have one.
    pub of: &'a RunPlaces,
    /// f32 [places, heads x state x width]; of gated DeltaNet [places, heads x key x value].
    pub states: &'a Tensor,
}

/// The map from the state before a run to that after it: `decays S + ends`.
#[derive(Clone, Copy, Debug)]
pub struct SsdEnds<'a> {
    /// Operands of the scan.
    pub of: SsdOperands<'a>,
    /// The states after runs that begin with zero; written.
    pub ends: RunStates<'a>,
    /// f32 [places, heads]: the products of their rows' decays; written.
    pub decays: &'a Tensor,
}

/// Gradients of the states before runs, by their rows alone.
#[derive(Clone, Copy, Debug)]
pub struct SsdBegins<'a> {
    /// Operands of the scan.
    pub of: SsdOperands<'a>,
    /// [t, heads x width].
    pub dy: &'a Tensor,
    /// The gradients; written.
    pub begins: RunStates<'a>,
}

/// Mamba-2's scan, forward.
#[derive(Clone, Copy, Debug)]
pub struct Ssd<'a> {
    /// Operands.
    pub of: SsdOperands<'a>,
    /// The states before runs that do not begin with zero, in a training step.
    pub before: Option<RunStates<'a>>,
    /// In generation, for each run: f32 [heads, state x width], the state before it, of each head `state` rows of
    /// `width`. Replaced by the state after it.
    pub states: &'a [Tensor],
    /// [t, heads x width].
    pub y: &'a Tensor,
    /// f32 [t, [`state_cols`]]: states of documents at every [`SCAN_SPAN`] of their rows.
    pub kept: &'a Tensor,
}

/// The gradients of [`Ssd`] that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct SsdBackward<'a> {
    /// Operands of the forward pass.
    pub of: SsdOperands<'a>,
    /// The states that the forward pass began with.
    pub before: Option<RunStates<'a>>,
    /// The gradients of the states after runs, where they are not zero.
    pub after: Option<RunStates<'a>>,
    /// The states that the forward pass wrote.
    pub kept: &'a Tensor,
    /// [t, heads x width].
    pub dy: &'a Tensor,
    /// Like u; overwritten.
    pub du: Option<&'a Tensor>,
    /// Like dt; overwritten.
    pub ddt: Option<&'a Tensor>,
    /// Gradients of a_log, dt_bias and d: f32 [1, heads]; added to.
    pub dweights: [Option<&'a Tensor>; 3],
}

/// Operands of gated DeltaNet (Yang et al., 2024): per value head, with `g = -exp(a_log) softplus(a + dt_bias)`, a step
/// size `beta sigmoid(b)`, q and k of its key head divided by their lengths, and q by the root of their columns:
/// `S <- e^g S`, `S <- S + step k (v - S^T k)^T`, `out = S^T q`, from nothing in each document.
#[derive(Clone, Copy, Debug)]
pub struct DeltaOperands<'a> {
    /// [t, 2 x key_heads x key + heads x value]: q, k and v side by side.
    pub u: &'a Tensor,
    /// [t, heads].
    pub a: &'a Tensor,
    /// [t, heads].
    pub b: &'a Tensor,
    /// f32 [1, heads].
    pub a_log: &'a Tensor,
    /// f32 [1, heads].
    pub dt_bias: &'a Tensor,
    /// Heads of q and of k.
    pub key_heads: usize,
    /// Columns of a head of q or of k.
    pub key: usize,
    /// Added to squares of lengths.
    pub eps: f32,
    /// Factor of step sizes.
    pub beta: f32,
    /// The rows' documents.
    pub documents: &'a DocumentRuns,
}

impl DeltaOperands<'_> {
    /// Value heads.
    pub fn heads(&self) -> usize {
        self.a.cols()
    }

    /// Columns of a head of v.
    pub fn value(&self) -> usize {
        (self.u.cols() - 2 * self.key_heads * self.key) / self.heads()
    }

    /// Shapes and types of the call; `passes` if there are states at borders of runs.
    pub fn desc(&self, passes: bool, backward: bool) -> OpDesc {
        let (rows, heads, value) = (self.u.rows(), self.heads(), self.value());
        OpDesc::Delta { rows, key_heads: self.key_heads, heads, key: self.key, value, passes, backward }
    }

    /// FLOPs of the products of a pass.
    pub fn flops(&self, backward: bool) -> u64 {
        delta_flops(self.u.rows(), [self.key_heads, self.heads(), self.key, self.value()], backward)
    }

    /// FLOPs of the products of [`DeltaEnds`], or of [`DeltaBegins`].
    pub fn border_flops(&self, backward: bool) -> u64 {
        let (chunk, [heads, key]) = (SCAN_CHUNK / 2, [self.heads(), self.key]);
        let wide = heads * if backward { self.value() } else { self.value() + key };
        let products = if backward { 3 } else { 2 };
        let per_row = products * (chunk * self.key_heads * key + 2 * key * wide) + chunk * wide;
        (self.u.rows() * per_row) as u64
    }
}

/// FLOPs of gated DeltaNet's products: `[key_heads, heads, key, value]`. Triangles count half.
pub fn delta_flops(rows: usize, [key_heads, heads, key, value]: [usize; 4], backward: bool) -> u64 {
    let chunk = SCAN_CHUNK / 2;
    let (scores, within, state) = (chunk * key_heads * key, chunk * heads * value, 2 * heads * key * value);
    let per_row =
        if backward { 5 * scores + 4 * within + 7 * state } else { 2 * scores + 2 * within + 3 * state };
    (rows * per_row) as u64
}

/// The map from the state before a run to that after it: `M S + ends` per head, with M the product of its rows'
/// `e^g (1 - step k k^T)`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaEnds<'a> {
    /// Operands of gated DeltaNet.
    pub of: DeltaOperands<'a>,
    /// The states after runs that begin with zero; written.
    pub ends: RunStates<'a>,
    /// f32 [places, heads x key x key]: M of each head; written.
    pub matrices: &'a Tensor,
}

/// Gradients of the states before runs, by their rows alone.
#[derive(Clone, Copy, Debug)]
pub struct DeltaBegins<'a> {
    /// Operands of gated DeltaNet.
    pub of: DeltaOperands<'a>,
    /// [t, heads x value].
    pub dout: &'a Tensor,
    /// The gradients; written.
    pub begins: RunStates<'a>,
}

/// A state after a run, or the gradient of one before it: `M before + added` per head, or `M^T before + added`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaAdvance<'a> {
    /// f32 [heads, key x key].
    pub matrices: &'a Tensor,
    /// Whether they are transposed.
    pub transposed: bool,
    /// f32 [heads, key x value].
    pub before: &'a Tensor,
    /// Like `before`.
    pub added: &'a Tensor,
    /// Like `before`; written.
    pub after: &'a Tensor,
}

/// Gated DeltaNet, forward.
#[derive(Clone, Copy, Debug)]
pub struct Delta<'a> {
    /// Operands.
    pub of: DeltaOperands<'a>,
    /// The states before runs that do not begin with zero, in a training step.
    pub before: Option<RunStates<'a>>,
    /// In generation, for each run: f32 [heads, key x value], the state before it, of each head `key` rows of `value`.
    /// Replaced by the state after it.
    pub states: &'a [Tensor],
    /// [t, heads x value].
    pub out: &'a Tensor,
    /// f32 [t, [`state_cols`]]: states of documents at every [`SCAN_SPAN`] of their rows.
    pub kept: &'a Tensor,
}

/// The gradients of [`Delta`] that are wanted.
#[derive(Clone, Copy, Debug)]
pub struct DeltaBackward<'a> {
    /// Operands of the forward pass.
    pub of: DeltaOperands<'a>,
    /// The states that the forward pass began with.
    pub before: Option<RunStates<'a>>,
    /// The gradients of the states after runs, where they are not zero.
    pub after: Option<RunStates<'a>>,
    /// The states that the forward pass wrote.
    pub kept: &'a Tensor,
    /// [t, heads x value].
    pub dout: &'a Tensor,
    /// Like u; overwritten.
    pub du: Option<&'a Tensor>,
    /// Like a; overwritten.
    pub da: Option<&'a Tensor>,
    /// Like b; overwritten.
    pub db: Option<&'a Tensor>,
    /// Gradients of a_log and dt_bias: f32 [1, heads]; added to.
    pub dweights: [Option<&'a Tensor>; 2],
}

/// Slots of kept states: the state before row `row` of the stream, which is [`SCAN_SPAN`] rows or more after the
/// beginning of its run, has a slot of its own.
pub fn state_slot(row: usize) -> usize {
    row / SCAN_SPAN - 1
}
