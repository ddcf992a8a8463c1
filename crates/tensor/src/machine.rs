//! The operations of a machine: coarse methods, with outputs and scratch passed in by the caller.
//!
//! Rules that every machine keeps (each is tested for them): an output row depends only on its inputs and a fixed order
//! of addition, the same for one row and a million; sums over rows run in ascending order, continued from what the
//! output holds, so that cutting the rows at multiples of [`crate::SUM_CHUNK`] changes no bit. A machine that is slow with
//! denormal numbers reads and writes them as zeros in all its arithmetic.

use std::sync::Arc;

use crate::attend::{Attention, AttentionBackward, SinksBackward};
use crate::choice::{self, Choose, LeaveOut};
use crate::clock::Clock;
use crate::distance::RowDistance;
use crate::divergence::Divergence;
use crate::dropout::Dropout;
use crate::experts::{
    BalanceBias, Combine, CombineBackward, Dispatch, GroupedMatMul, GroupedWeight, LimitExperts, Route,
    RouteBackward, RouterLosses,
};
use crate::four_bits::RoundWeights;
use crate::in_flight::InFlight;
use crate::matmul::{MatMul, PackedMatMul};
use crate::narrow_matmul::NarrowMatMul;
use crate::pack::{Pack, Unpack};
use crate::pool::Arena;
use crate::scan::{
    Conv, ConvBackward, Delta, DeltaAdvance, DeltaBackward, DeltaBegins, DeltaEnds, GatedNorm,
    GatedNormBackward, Ssd, SsdBackward, SsdBegins, SsdEnds,
};
use crate::share::{Reader, Share};
use crate::spill::Copies;
use crate::tensor::floats;
use crate::term::ProductTerm;
use crate::{PackPages, Profile, Tensor};

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormKind {
    /// Subtracts the mean (LayerNorm) or not (RMSNorm).
    pub centred: bool,
    /// Multiplies by `1 + w` (Gemma, LayerNorm1P) instead of `w`.
    pub plus_one: bool,
    /// Rounds the normalised value to the storage type before multiplying by the weight, as Llama does.
    pub round_first: bool,
    /// Added to the variance.
    pub eps: f32,
}

/// Normalises each group of `weight.cols()` columns of each row.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// [t, groups x width].
    pub x: &'a Tensor,
    /// [1, width].
    pub weight: &'a Tensor,
    /// [1, width].
    pub bias: Option<&'a Tensor>,
    /// [t, groups x width].
    pub out: &'a Tensor,
    /// f32 [t, groups] reciprocal deviations, or [t, 2 x groups] (mean, reciprocal deviation) pairs if centred.
    pub stats: &'a Tensor,
}

/// The backward pass of [`Norm`]; each method uses some of the fields.
#[derive(Clone, Copy, Debug)]
pub struct NormBackward<'a> {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// The forward input.
    pub x: &'a Tensor,
    /// The forward weight.
    pub weight: &'a Tensor,
    /// Statistics written by the forward pass.
    pub stats: &'a Tensor,
    /// Gradient of the output.
    pub dy: &'a Tensor,
}

/// Activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x sigmoid(x).
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// GELU with erf.
    GeluErf,
    /// max(x, 0).
    Relu,
    /// max(x, 0) squared.
    Relu2,
    /// The hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// gpt-oss's activation, only gated: `(up + 1) gate sigmoid(1.702 gate)` with gate at most 7 and up within -7 and
    /// 7; x holds gate and up interleaved, not in halves.
    ClampedSwiglu,
}

/// `out = act(x)`, or `act(gate) * up` with `x = [gate | up]`.
#[derive(Clone, Copy, Debug)]
pub struct Activate<'a> {
    /// The function.
    pub kind: Activation,
    /// x holds gate and up halves.
    pub gated: bool,
    /// [t, f] or [t, 2f].
    pub x: &'a Tensor,
    /// [t, f].
    pub out: &'a Tensor,
}

/// The backward pass of [`Activate`]; overwrites `dx`.
#[derive(Clone, Copy, Debug)]
pub struct ActivateBackward<'a> {
    /// The function.
    pub kind: Activation,
    /// x holds gate and up halves.
    pub gated: bool,
    /// The forward input.
    pub x: &'a Tensor,
    /// [t, f].
    pub dy: &'a Tensor,
    /// Like x.
    pub dx: &'a Tensor,
}

/// Cosines and sines of positions: `out = [cos | sin] x factor`, f32 [t, 2 x frequencies].
#[derive(Clone, Copy, Debug)]
pub struct RopeTable<'a> {
    /// i32 [1, t].
    pub positions: &'a Tensor,
    /// f32 [1, rot/2]: radians per position.
    pub inv_freq: &'a Tensor,
    /// Multiplies cosines and sines (YaRN's and LongRoPE's attention factor).
    pub factor: f32,
    /// f32 [t, rot].
    pub out: &'a Tensor,
}

/// Rotates each head's first `table.cols()` columns; the rest are copied.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// [t, heads x head_dim].
    pub x: &'a Tensor,
    /// [t, heads x head_dim].
    pub out: &'a Tensor,
    /// f32 [t, rot].
    pub table: &'a Tensor,
    /// Columns of one head.
    pub head_dim: usize,
    /// Pairs are adjacent columns (GPT-J) instead of halves.
    pub interleaved: bool,
    /// Rotates in the opposite direction: the gradient.
    pub inverse: bool,
    /// Adds to `out`.
    pub accumulate: bool,
}

/// `out = scale x table[ids]`.
#[derive(Clone, Copy, Debug)]
pub struct Embed<'a> {
    /// i32 [1, t].
    pub ids: &'a Tensor,
    /// [vocab, d]; packed if the machine multiplies weights of that format.
    pub table: &'a Tensor,
    /// Multiplies each row.
    pub scale: f32,
    /// [t, d].
    pub out: &'a Tensor,
    /// Adds to `out`.
    pub accumulate: bool,
    /// The id of the table's first row, if it is a part of a larger table; ids without a row give zeros.
    pub first: Option<usize>,
}

/// Cross-entropy of a tile of logits.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a> {
    /// [r, vocab], f32 or bf16.
    pub logits: &'a Tensor,
    /// i32 [1, r]; below zero: ignored (no loss, zero gradient).
    pub labels: &'a Tensor,
    /// f32 [1, r]: multiplies a row's gradient; one if absent.
    pub weights: Option<&'a Tensor>,
    /// f32 [1, r]: `lse - logit[label] + z_loss lse^2`.
    pub loss: &'a Tensor,
    /// [r, vocab]: gradient of `sum(weight x loss)`; may share storage with `logits`.
    pub dlogits: Option<&'a Tensor>,
    /// Multiplies the logits first (Granite).
    pub scale: f32,
    /// `cap tanh(x / cap)`; 0 for none (Gemma 2).
    pub softcap: f32,
    /// Weight of the squared log-partition.
    pub z_loss: f32,
    /// Present if the logits are a column slice of a vocabulary that is spread over several ranks.
    pub spread: Option<VocabularyShare<'a>>,
    /// f32 [2, r]: the entropy of the softmax in nats, and 1 where the label is the largest logit (the first of
    /// equals), else 0; zeros where ignored. If present, a rank's statistics have four rows.
    pub measures: Option<&'a Tensor>,
}

impl<'a> CrossEntropy<'a> {
    /// Losses alone, of logits as they are.
    pub fn losses(logits: &'a Tensor, labels: &'a Tensor, loss: &'a Tensor) -> CrossEntropy<'a> {
        CrossEntropy {
            logits,
            labels,
            weights: None,
            loss,
            dlogits: None,
            scale: 1.0,
            softcap: 0.0,
            z_loss: 0.0,
            spread: None,
            measures: None,
        }
    }
}

/// Cross-entropy over a vocabulary that is spread over ranks: first each rank computes its statistics; then, given
/// those of all ranks, the loss and its own columns of the gradient.
#[derive(Clone, Copy, Debug)]
pub struct VocabularyShare<'a> {
    /// Vocabulary index of the first column.
    pub first: usize,
    /// f32 [2, r]: the log-sum-exp over these columns, and the label's logit if it is among them, else 0. With measures
    /// there are two more rows: the entropy of the softmax over these columns, and the least logit that would make the
    /// label the first of the largest among these columns. If given, only this is written.
    pub stats: Option<&'a Tensor>,
    /// f32 [2 x ranks, r], or [4 x ranks, r]: the statistics of all ranks, in their order.
    pub all: Option<&'a Tensor>,
}

/// One update of one tensor: AdamW (Loshchilov and Hutter, 2019) or, without a second moment, SGD with momentum and
/// decoupled decay (SGDW, in the same paper): `m = beta1 m + g`, `param -= lr (m + weight_decay param)`.
#[derive(Clone, Copy, Debug)]
pub struct AdamW<'a> {
    /// Updated weights. In bf16 without a master they are rounded stochastically ([`crate::moments`]).
    pub param: &'a Tensor,
    /// f32 master weights, if `param` is narrower and has them.
    pub master: Option<&'a Tensor>,
    /// First moment: f32; bf16, rounded after use; or e4m3 codes with `scales`.
    pub m: &'a Tensor,
    /// Second moment, of the same type as the first.
    pub v: Option<&'a Tensor>,
    /// Scales of moments in e4m3 codes ([`crate::moments`]).
    pub scales: Option<MomentScales<'a>>,
    /// Number of the weight. With `first` and `updates` it determines the rounding of narrow moments and of weights
    /// without masters.
    pub key: u32,
    /// Index of the first element within the whole weight; a multiple of the block size if there are scales.
    pub first: usize,
    /// f32 gradient of the sum; multiplied by `scale`.
    pub grad: &'a Tensor,
    /// f32 [1, 1]: one over the valid tokens, times the clip factor.
    pub scale: &'a Tensor,
    /// f32 [1, 1]: if nonzero, nothing changes.
    pub skip: &'a Tensor,
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root.
    pub eps: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// i32 [1, 1]: updates made, this one included; the moments are divided by `1 - beta^updates`.
    pub updates: &'a Tensor,
}

/// Scales of an update's moments, f32 [1, blocks].
#[derive(Clone, Copy, Debug)]
pub struct MomentScales<'a> {
    /// Scales of first moments.
    pub m: &'a Tensor,
    /// Scales of the roots of second moments.
    pub v: Option<&'a Tensor>,
}

/// Computes the factor of an update from the gradient's sum of squares. All tensors are f32 [1, 1], except the count of
/// updates.
#[derive(Clone, Copy, Debug)]
pub struct StepScale<'a> {
    /// Sum of squares of the gradient of the summed loss.
    pub sum_squares: &'a Tensor,
    /// Sum of the losses; only tested for being finite.
    pub loss: &'a Tensor,
    /// Valid tokens.
    pub count: &'a Tensor,
    /// Largest norm of the mean's gradient, to which it is clipped; 0 for no clipping.
    pub max_norm: f32,
    /// `min(1, max_norm / norm) / count`; 0 without a valid token.
    pub scale: &'a Tensor,
    /// 1 if loss or norm is not finite or there is no valid token, else 0.
    pub skip: &'a Tensor,
    /// `sqrt(sum_squares) / count`.
    pub norm: &'a Tensor,
    /// i32 [1, 1]: incremented unless skipped.
    pub updates: &'a Tensor,
}

/// A kind of hardware, or its stand-in without data. Methods panic with the operation's name and shapes if those do not
/// fit; `ws` is scratch of at least `profile().workspace(desc)` bytes.
pub trait Machine: Send + Sync {
    /// The data sheet.
    fn profile(&self) -> &Profile;
    /// Reserves address space for a pool; no memory is touched.
    fn reserve(&self, bytes: u64) -> Box<dyn Arena>;
    /// True if tensors hold data.
    fn has_data(&self) -> bool;
    /// The clock that calls advance, on a machine without data whose profile has rates.
    fn clock(&self) -> Option<&Clock> {
        None
    }
    /// Host-side copies of the machine's data, for [`crate::spill`]; `None` without data, or if it cannot spill.
    fn copies(&self) -> Option<Arc<dyn Copies>> {
        None
    }

    /// Writes from host to machine; `bytes` are the elements row by row, little-endian.
    fn write(&self, dst: &Tensor, bytes: &[u8]);
    /// Writes many tensors from the host: calls `fill(index, elements)` once for each group of `dst`, on any thread and
    /// several at a time. `elements` has for each tensor of `dst[index]` all its elements, row by row, little-endian,
    /// to be overwritten, so reading or converting there needs no extra buffer. Panics if rows of a tensor have gaps
    /// between them or two tensors overlap.
    fn fill(&self, dst: &[Vec<Tensor>], fill: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync));
    /// Reads from machine to host.
    fn read(&self, src: &Tensor) -> InFlight;
    /// Lets another thread read the elements as they are now while this one continues. Until the share ends, methods
    /// that would write to the tensor's storage panic.
    fn share(&self, src: &Tensor) -> (Share, Reader);
    /// Marks this point of the program, for [`Machine::take`].
    fn fence(&self) -> u64 {
        0
    }
    /// Copies a tensor shared by another rank into one of as many elements without gaps, bypassing the host, if both
    /// lie on one device; otherwise returns false. The copy begins after the fence, operations called later after the
    /// copy.
    fn take(&self, _from: &Reader, _dst: &Tensor, _fence: u64) -> bool {
        false
    }
    /// Starts a block, a sequence of operations up to [`Machine::leave_block`] that recurs in every step; a machine may
    /// collect them and issue them together.
    fn enter_block(&self) {}
    /// Ends the block and issues its operations.
    fn leave_block(&self) {}
    /// Records a timestamp on the machine's clock and returns its index; `None` if operations end before they return.
    fn stamp(&self) -> Option<u64> {
        None
    }
    /// Waits for all timestamps recorded so far, returns the seconds of each since the first, and clears them.
    fn stamps(&self) -> Vec<f64> {
        Vec::new()
    }
    /// Sets all bits to zero.
    fn zero(&self, dst: &Tensor);
    /// `dst = src`, converting between float types, or i32 unchanged; strides may differ.
    fn copy(&self, src: &Tensor, dst: &Tensor);
    /// `out = a + b`; `out` may be `a`, float types may differ.
    fn add(&self, a: &Tensor, b: &Tensor, out: &Tensor);
    /// `out = a b`, element by element; a single row `b` [1, cols] is used for all rows of `a`. `out` may be `a`, float
    /// types may differ.
    fn multiply(&self, a: &Tensor, b: &Tensor, out: &Tensor);
    /// `out = 1 / sqrt(x)`; `out` may be `x`.
    fn rsqrt(&self, x: &Tensor, out: &Tensor);
    /// `out = factor x`; `out` may be `x`.
    fn scale(&self, x: &Tensor, factor: f32, out: &Tensor);
    /// `x = cap tanh(x / cap)`.
    fn softcap(&self, x: &Tensor, cap: f32);
    /// `x[r, c] += scales[r] (2 u - 1)` with a 20-bit `u` in [0, 1) from [`crate::moments::noise`] of the row's key and
    /// the column; keys i32 and scales f32 [1, r].
    fn jitter(&self, x: &Tensor, keys: &Tensor, scales: &Tensor);
    /// `x[r, c] *= factor`, or zero where [`Dropout::drops`] is true for the row's key and the column; keys i32 [1, r].
    fn dropout(&self, x: &Tensor, keys: &Tensor, how: Dropout);
    /// `x += bias` on each row.
    fn add_bias(&self, x: &Tensor, bias: &Tensor);
    /// `dbias += sum over rows of dy`, ascending; f32.
    fn bias_backward(&self, dy: &Tensor, dbias: &Tensor);

    /// Matrix product.
    fn matmul(&self, op: &MatMul<'_>, ws: &Tensor);
    /// A product with terms added to its result, in one pass if the machine can, with the same bits. Scratch is that of
    /// [`MatMul::desc_with`].
    fn matmul_with(&self, op: &MatMul<'_>, terms: &[ProductTerm<'_>], ws: &Tensor) {
        self.matmul(op, ws);
        terms.iter().for_each(|term| term.added(op.c, |op| self.matmul(op, ws)));
    }
    /// True if [`Machine::packed_matmul`] and [`Machine::grouped_matmul`] take weights of this format, and
    /// [`Machine::embed`] tables that files have in it. The grouped product takes no plain numbers.
    fn multiplies(&self, _format: crate::BlockFormat) -> bool {
        false
    }
    /// Matrix product with a packed weight, on machines that support it.
    fn packed_matmul(&self, op: &PackedMatMul<'_>, _ws: &Tensor) {
        panic!("the machine {} multiplies with no packed weights: {op:?}", self.profile().name);
    }
    /// Matrix product of operands that are rounded to fewer bits first.
    fn narrow_matmul(&self, op: &NarrowMatMul<'_>, ws: &Tensor);
    /// `out = max(out, |x|)` over the finite elements of x: all of them for f32 [1, 1], by column for f32 [1, cols].
    fn largest(&self, x: &Tensor, out: &Tensor);
    /// Normalisation.
    fn norm(&self, op: &Norm<'_>);
    /// `dx (+)=` the gradient with respect to x.
    fn norm_backward_input(&self, op: &NormBackward<'_>, dx: &Tensor, accumulate: bool);
    /// `dweight +=`, `dbias +=`, ascending rows; f32.
    fn norm_backward_weight(&self, op: &NormBackward<'_>, dweight: &Tensor, dbias: Option<&Tensor>);
    /// Activation function.
    fn activate(&self, op: &Activate<'_>);
    /// Gradient of [`Machine::activate`].
    fn activate_backward(&self, op: &ActivateBackward<'_>);
    /// Cosines and sines.
    fn rope_table(&self, op: &RopeTable<'_>);
    /// Rotation.
    fn rope(&self, op: &Rope<'_>);
    /// Table lookup.
    fn embed(&self, op: &Embed<'_>);
    /// `dtable[ids] += scale x dy`, ascending rows; f32. `first` as in [`Embed`].
    fn embed_backward(&self, ids: &Tensor, dy: &Tensor, scale: f32, dtable: &Tensor, first: Option<usize>);
    /// Chooses experts.
    fn route(&self, op: &Route<'_>);
    /// Gradient of [`Machine::route`].
    fn route_backward(&self, op: &RouteBackward<'_>);
    /// The gradient of a router's own losses.
    fn router_losses(&self, op: &RouterLosses<'_>);
    /// `load[e] +=` slots whose expert is e; i32 [t, k] to f32 [1, experts].
    fn count_experts(&self, index: &Tensor, load: &Tensor);
    /// Empties slots beyond the capacity of experts.
    fn limit_experts(&self, op: &LimitExperts<'_>);
    /// Moves the biases of a router's choice towards even loads.
    fn balance_bias(&self, op: &BalanceBias<'_>);
    /// Sorts slots by the owners of their experts.
    fn dispatch(&self, op: &Dispatch<'_>);
    /// Products by expert.
    fn grouped_matmul(&self, op: &GroupedMatMul<'_>, ws: &Tensor);
    /// The gradient of experts' weights.
    fn grouped_weight(&self, op: &GroupedWeight<'_>, ws: &Tensor);
    /// Sums of experts' results.
    fn combine(&self, op: &Combine<'_>);
    /// Gradient of [`Machine::combine`].
    fn combine_backward(&self, op: &CombineBackward<'_>);
    /// Attention.
    fn attention(&self, op: &Attention<'_>, ws: &Tensor);
    /// True if [`Machine::attention`] reads keys and values in pages ([`Mask::pages`]); other machines need them in
    /// order.
    fn reads_pages(&self) -> bool {
        false
    }
    /// Quantizes rows of keys or values into pages, on machines that read pages.
    fn pack_pages(&self, op: &PackPages<'_>) {
        panic!("this machine holds no keys in {:?}", op.format);
    }
    /// Gradient of [`Machine::attention`].
    fn attention_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor);
    /// See [`SinksBackward`].
    fn sinks_backward(&self, op: &SinksBackward<'_>);
    /// A causal convolution over the rows of each document.
    fn conv(&self, op: &Conv<'_>);
    /// Gradients of [`Machine::conv`].
    fn conv_backward(&self, op: &ConvBackward<'_>);
    /// A norm with a gate.
    fn gated_norm(&self, op: &GatedNorm<'_>);
    /// Gradients of [`Machine::gated_norm`].
    fn gated_norm_backward(&self, op: &GatedNormBackward<'_>, ws: &Tensor);
    /// The scan of a state-space layer.
    fn ssd(&self, op: &Ssd<'_>, ws: &Tensor);
    /// Gradients of [`Machine::ssd`].
    fn ssd_backward(&self, op: &SsdBackward<'_>, ws: &Tensor);
    /// Maps from the states before some runs to those after them.
    fn ssd_ends(&self, op: &SsdEnds<'_>, ws: &Tensor);
    /// Gradients that runs add to those of the states before them, with the workspace of [`Machine::ssd_backward`].
    fn ssd_begins(&self, op: &SsdBegins<'_>, ws: &Tensor);
    /// `state = decays state + added` of f32 [heads, n], with a decay for each head: f32 [1, heads].
    fn ssd_advance(&self, state: &Tensor, decays: &Tensor, added: &Tensor);
    /// Maps from the states before some runs to those after them.
    fn delta_ends(&self, op: &DeltaEnds<'_>, ws: &Tensor);
    /// Gradients that runs add to those of the states before them, with the workspace of [`Machine::delta_backward`].
    fn delta_begins(&self, op: &DeltaBegins<'_>, ws: &Tensor);
    /// Applies such a map to a state, or its transpose to a gradient.
    fn delta_advance(&self, op: &DeltaAdvance<'_>);
    /// Gated DeltaNet.
    fn delta(&self, op: &Delta<'_>, ws: &Tensor);
    /// Gradients of [`Machine::delta`].
    fn delta_backward(&self, op: &DeltaBackward<'_>, ws: &Tensor);
    /// Cross-entropy of a tile.
    fn cross_entropy(&self, op: &CrossEntropy<'_>);
    /// Divergence of a tile of logits from a teacher.
    fn divergence(&self, op: &Divergence<'_>);
    /// Distances of rows from target rows.
    fn row_distance(&self, op: &RowDistance<'_>);
    /// Chooses tokens; `op.draws` has one entry per row.
    fn choose(&self, op: &Choose<'_>) {
        let logits = floats(op.logits.dtype(), &self.read(op.logits).wait());
        let ids = choice::of_rows(&logits, op.logits.cols(), op.draws);
        self.write(op.ids, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>());
        if let Some(kept) = op.kept {
            self.write(kept, &choice::kept_of_rows(&logits, op.logits.cols(), op.draws));
        }
    }
    /// Masks logits; see [`LeaveOut`].
    fn leave_out(&self, op: &LeaveOut<'_>) {
        let mut logits = floats(op.logits.dtype(), &self.read(op.logits).wait());
        let bits = self.read(op.kept).wait();
        let rows = logits.chunks_exact_mut(op.logits.cols()).zip(bits.chunks_exact(op.kept.cols()));
        rows.for_each(|(logits, kept)| choice::leave_out(logits, kept, op.first));
        self.write(op.logits, &logits.iter().flat_map(|logit| logit.to_le_bytes()).collect::<Vec<u8>>());
    }
    /// `out += sum(x)` in chunks of [`crate::SUM_CHUNK`] columns, ascending; f32 [1, n] to [1, 1].
    fn sum(&self, x: &Tensor, out: &Tensor);
    /// `out += sum(x^2)`; f32 to [1, 1].
    fn sum_squares(&self, x: &Tensor, out: &Tensor);
    /// `out[i] += sum(x^2)` of at most `slot` elements starting at `i slot`; f32 [1, n] to [1, ceil(n / slot)]. The
    /// order of addition within a sum depends only on the number of its elements.
    fn sum_squares_slots(&self, x: &Tensor, slot: usize, out: &Tensor) {
        for (index, start) in (0..x.cols()).step_by(slot).enumerate() {
            let part = x.view_cols(start..x.cols().min(start + slot));
            self.sum_squares(&part, &out.view_cols(index..index + 1));
        }
    }
    /// The factor of an update.
    fn step_scale(&self, op: &StepScale<'_>);
    /// The update.
    fn adamw(&self, op: &AdamW<'_>);
    /// Rounds weights as a format stores their masters: the bits of [`crate::FourBits::round`].
    fn round_weights(&self, op: &RoundWeights<'_>) {
        op.check();
        let largest = op.largest.map_or(0.0, |largest| self.read(largest).wait_f32());
        let x = floats(op.x.dtype(), &self.read(op.x).wait());
        self.write(op.out, &op.bytes(&x, largest));
    }
    /// Packs rows of weights: the bits of [`crate::BlockFormat::pack_row`].
    fn pack(&self, op: &Pack<'_>);
    /// Unpacks rows of weights: the bits of [`crate::BlockFormat::unpack_row`], rounded to the output's type.
    fn unpack(&self, op: &Unpack<'_>);
}
