//! Calls of mixture-of-experts layers: routing, products grouped by expert, and the weighted sum of experts' results.
//!
//! A token has `k` slots, each with an expert: `index` i32 [t, k]. A value that each slot has for itself is [t, k x
//! cols], slot after slot; rows are never permuted, so a tile of tokens is a tile of slots, and kernels gather the rows
//! of each expert. A negative index is an empty slot: its results are zeros and it gives no gradient. The number of
//! tokens per expert is data on the machine; the host never knows it.

use crate::{DType, OpDesc, Tensor};

/// Largest number of experts in a layer, and of owners of experts: the size of the kernels' tables.
pub const MOST_EXPERTS: usize = 1024;

/// Empties the slots of each expert beyond `capacity` of them.
#[derive(Clone, Copy, Debug)]
pub struct LimitExperts<'a> {
    /// i32 [t, k].
    pub index: &'a Tensor,
    /// f32 [t, k]: the heaviest slots stay, the first of equals; without weights, the first slots stay.
    pub weights: Option<&'a Tensor>,
    /// Number of experts.
    pub experts: usize,
    /// Slots per expert.
    pub capacity: usize,
    /// i32 [t, k]: `index` or -1.
    pub out: &'a Tensor,
}

/// Load balancing without a loss: `bias += rate x sign(mean load - load)` (Wang et al., 2024, algorithm 1; DeepSeek-V3,
/// section 2.1.2).
#[derive(Clone, Copy, Debug)]
pub struct BalanceBias<'a> {
    /// f32 [1, experts]: added to the scores in the choice of experts.
    pub bias: &'a Tensor,
    /// f32 [1, experts]: slots of each expert in the step.
    pub load: &'a Tensor,
    /// Step size.
    pub rate: f32,
    /// f32 [1, 1]: if nonzero, nothing changes.
    pub skip: &'a Tensor,
}

/// Assigns slots to the owners of experts in one round. Owner o has the experts `o x own .. (o + 1) x own`; of its
/// slots, ascending, the round takes numbers `round x cap .. (round + 1) x cap`.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    /// i32 [t, k].
    pub index: &'a Tensor,
    /// Experts per owner.
    pub own: usize,
    /// Number of the round.
    pub round: usize,
    /// i32 [owners, cap]: the slot at each place, `token x k + slot`; -1 at empty places, as in the next two.
    pub slots: &'a Tensor,
    /// Like `slots`: the slot's token.
    pub tokens: &'a Tensor,
    /// Like `slots`: the index of the slot's expert within its owner.
    pub experts: &'a Tensor,
    /// i32 [t, k]: the place of each slot, `owner x cap + place`; -1 for empty slots and those of other rounds.
    pub places: &'a Tensor,
}

/// Function from a router's logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Normalised over all experts.
    Softmax,
    /// Each expert independently (DeepSeek-V3).
    Sigmoid,
}

/// Groups of experts; experts are chosen from the best groups only (DeepSeek-V2, section 2.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups, equal in size; neighbours are together.
    pub count: usize,
    /// Number of groups chosen from.
    pub top: usize,
    /// Number of best scores whose sum ranks a group: 1 in DeepSeek-V2, 2 in V3.
    pub by: usize,
}

/// Routing parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Slots per token.
    pub top_k: usize,
    /// Function from logits to scores.
    pub scores: RouterScores,
    /// Groups that are chosen first.
    pub groups: Option<Groups>,
    /// Divides a token's weights by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
}

/// Chooses experts: the `top_k` largest of scores + bias in descending order, the first of equals; weights are the
/// scores without the bias.
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// Routing parameters.
    pub routing: Routing,
    /// f32 [t, experts].
    pub logits: &'a Tensor,
    /// f32 [1, experts]: affects the choice only (Wang et al., 2024, auxiliary-loss-free balancing).
    pub bias: Option<&'a Tensor>,
    /// i32 [t, k].
    pub index: &'a Tensor,
    /// f32 [t, k].
    pub weights: &'a Tensor,
}

/// The backward pass of [`Route`]: overwrites `dlogits`.
#[derive(Clone, Copy, Debug)]
pub struct RouteBackward<'a> {
    /// Routing parameters.
    pub routing: Routing,
    /// f32 [t, experts].
    pub logits: &'a Tensor,
    /// i32 [t, k].
    pub index: &'a Tensor,
    /// f32 [t, k].
    pub dweights: &'a Tensor,
    /// f32 [t, experts].
    pub dlogits: &'a Tensor,
}

/// The gradient of a router's own losses, summed over tokens: overwrites `dlogits`. Probabilities are the softmax, or
/// the normalised sigmoids.
#[derive(Clone, Copy, Debug)]
pub struct RouterLosses<'a> {
    /// Function from logits to scores.
    pub scores: RouterScores,
    /// f32 [t, experts].
    pub logits: &'a Tensor,
    /// f32 [1, experts]: slots of each expert in the whole micro-batch.
    pub load: &'a Tensor,
    /// Coefficient of `sum over tokens and experts of load x probability` (Fedus et al., 2021, eq. 4).
    pub aux: f32,
    /// Coefficient of `sum over tokens of logsumexp(logits)^2` (Zoph et al., 2022, eq. 5).
    pub z: f32,
    /// f32 [t, experts].
    pub dlogits: &'a Tensor,
}

/// `C = A op(W_e)` for each slot, where e is its expert.
#[derive(Clone, Copy, Debug)]
pub struct GroupedMatMul<'a> {
    /// [t, in], shared by a token's slots, or [t, k x in].
    pub a: &'a Tensor,
    /// Stacked experts: [experts x out, in] with `trans`, else [experts x in, out]. Packed weights
    /// ([`Tensor::packing`]) are always [experts x out, in].
    pub weights: &'a Tensor,
    /// Number of experts.
    pub experts: usize,
    /// True if W_e is stored [out, in].
    pub trans: bool,
    /// i32 [t, k].
    pub index: &'a Tensor,
    /// [t, k x out].
    pub c: &'a Tensor,
}

impl GroupedMatMul<'_> {
    /// Sizes (t, k, in, out).
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn sizes(&self) -> (usize, usize, usize, usize) {
        let packed = self.weights.packing().map(|packing| [packing.rows(), packing.cols]);
        let ([t, k], [rows, cols]) = (self.index.shape(), packed.unwrap_or(self.weights.shape()));
        let own = rows / self.experts.max(1);
        let (inner, out) = if self.trans || packed.is_some() { (cols, own) } else { (own, cols) };
        let fits = self.experts > 0
            && rows % self.experts == 0
            && (self.a.shape() == [t, inner] || self.a.shape() == [t, k * inner])
            && self.c.shape() == [t, k * out]
            && (packed.is_some() || self.a.dtype() == self.weights.dtype());
        assert!(fits, "grouped matmul: {self:?}");
        (t, k, inner, out)
    }

    /// Shapes and types of the call.
    #[track_caller]
    pub fn desc(&self) -> OpDesc {
        let (tokens, slots, inner, out) = self.sizes();
        if self.weights.packing().is_some() {
            return OpDesc::PackedGrouped { rows: tokens * slots, inner };
        }
        let (input, output) = (self.a.dtype(), self.c.dtype());
        OpDesc::Grouped { tokens, slots, inner, out, input, output, weight: false }
    }
}

/// `C_e += A_e^T B_e` over the slots of each expert, tokens ascending: the gradient of its weight. Cutting the tokens
/// at multiples of [`crate::SUM_CHUNK`] changes no bit, unless one of the machine's libraries sums in its own order.
#[derive(Clone, Copy, Debug)]
pub struct GroupedWeight<'a> {
    /// [t, m], shared by a token's slots, or [t, k x m].
    pub a: &'a Tensor,
    /// [t, n] or [t, k x n].
    pub b: &'a Tensor,
    /// i32 [t, k].
    pub index: &'a Tensor,
    /// Experts.
    pub experts: usize,
    /// f32 [experts x m, n].
    pub c: &'a Tensor,
}

impl GroupedWeight<'_> {
    /// Sizes (t, k, m, n).
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn sizes(&self) -> (usize, usize, usize, usize) {
        let ([t, k], [rows, n]) = (self.index.shape(), self.c.shape());
        let m = rows / self.experts.max(1);
        let is = |x: &Tensor, cols: usize| x.shape() == [t, cols] || x.shape() == [t, k * cols];
        let fits = self.experts > 0
            && rows % self.experts == 0
            && is(self.a, m)
            && is(self.b, n)
            && self.a.dtype() == self.b.dtype()
            && self.c.dtype() == DType::F32;
        assert!(fits, "grouped weight gradient: {self:?}");
        (t, k, m, n)
    }

    /// Shapes and types of the call.
    #[track_caller]
    pub fn desc(&self) -> OpDesc {
        let (tokens, slots, inner, out) = self.sizes();
        let (input, output) = (self.a.dtype(), self.c.dtype());
        OpDesc::Grouped { tokens, slots, inner, out, input, output, weight: true }
    }
}

/// `out = sum over slots of weight x y`, slots ascending, in f32; without weights, the plain sum.
#[derive(Clone, Copy, Debug)]
pub struct Combine<'a> {
    /// [t, k x d].
    pub y: &'a Tensor,
    /// f32 [t, k].
    pub weights: Option<&'a Tensor>,
    /// [t, d].
    pub out: &'a Tensor,
}

/// The backward pass of [`Combine`] with weights: `dy = weight x dout`, `dweight = dout . y`.
#[derive(Clone, Copy, Debug)]
pub struct CombineBackward<'a> {
    /// [t, k x d].
    pub y: &'a Tensor,
    /// f32 [t, k].
    pub weights: &'a Tensor,
    /// [t, d].
    pub dout: &'a Tensor,
    /// Like y.
    pub dy: Option<&'a Tensor>,
    /// Like the weights.
    pub dweights: Option<&'a Tensor>,
}
