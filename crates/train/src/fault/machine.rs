//! A machine that spoils one gradient with a NaN: the first that an operation of a step writes.

use std::sync::Arc;

use fathom_tensor::choice::{Choose, LeaveOut};
use fathom_tensor::spill::Copies;
use fathom_tensor::{
    Activate, ActivateBackward, AdamW, Arena, Attention, AttentionBackward, BalanceBias, BlockFormat,
    Category, Clock, Combine, CombineBackward, Conv, ConvBackward, CrossEntropy, DType, Delta, DeltaAdvance,
    DeltaBackward, DeltaBegins, DeltaEnds, Dispatch, Divergence, Dropout, Embed, GatedNorm,
    GatedNormBackward, GroupedMatMul, GroupedWeight, InFlight, LimitExperts, Machine, MatMul, NarrowMatMul,
    Norm, NormBackward, Pack, PackPages, PackedMatMul, ProductTerm, Profile, Reader, Rope, RopeTable,
    RoundWeights, Route, RouteBackward, RouterLosses, RowDistance, Share, SinksBackward, Ssd, SsdBackward,
    SsdBegins, SsdEnds, StepScale, Tensor, Unpack,
};

use super::injector::Injector;

/// Wraps a machine.
pub(super) fn around(inner: Arc<dyn Machine>, injector: &Arc<Injector>) -> Arc<dyn Machine> {
    Arc::new(FaultyMachine { inner, injector: injector.clone() })
}

struct FaultyMachine {
    inner: Arc<dyn Machine>,
    injector: Arc<Injector>,
}

impl FaultyMachine {
    /// Called after an operation that wrote a tensor.
    fn wrote(&self, tensor: &Tensor) {
        let is_gradient = tensor.category() == Category::Grads && tensor.dtype() == DType::F32;
        if is_gradient && !tensor.is_empty() && self.injector.takes_gradient() {
            let first = tensor.view_rows(0..1).view_cols(0..1);
            self.inner.write(&first, &f32::NAN.to_le_bytes());
        }
    }
}

/// Methods forwarded to the inner machine.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
            self.inner.$name($($arg),*)
        })*
    };
}

impl Machine for FaultyMachine {
    fn matmul(&self, op: &MatMul<'_>, ws: &Tensor) {
        self.inner.matmul(op, ws);
        self.wrote(op.c);
    }

    fn matmul_with(&self, op: &MatMul<'_>, terms: &[ProductTerm<'_>], ws: &Tensor) {
        self.inner.matmul_with(op, terms, ws);
        self.wrote(op.c);
    }

    fn narrow_matmul(&self, op: &NarrowMatMul<'_>, ws: &Tensor) {
        self.inner.narrow_matmul(op, ws);
        self.wrote(op.product.c);
    }

    fn grouped_weight(&self, op: &GroupedWeight<'_>, ws: &Tensor) {
        self.inner.grouped_weight(op, ws);
        self.wrote(op.c);
    }

    fn norm_backward_weight(&self, op: &NormBackward<'_>, dweight: &Tensor, dbias: Option<&Tensor>) {
        self.inner.norm_backward_weight(op, dweight, dbias);
        self.wrote(dweight);
    }

    fn embed_backward(&self, ids: &Tensor, dy: &Tensor, scale: f32, dtable: &Tensor, first: Option<usize>) {
        self.inner.embed_backward(ids, dy, scale, dtable, first);
        self.wrote(dtable);
    }

    fn bias_backward(&self, dy: &Tensor, dbias: &Tensor) {
        self.inner.bias_backward(dy, dbias);
        self.wrote(dbias);
    }

    fn add(&self, a: &Tensor, b: &Tensor, out: &Tensor) {
        self.inner.add(a, b, out);
        self.wrote(out);
    }

    forward! {
        fn profile(&self) -> &Profile;
        fn reserve(&self, bytes: u64) -> Box<dyn Arena>;
        fn has_data(&self) -> bool;
        fn clock(&self) -> Option<&Clock>;
        fn copies(&self) -> Option<Arc<dyn Copies>>;
        fn write(&self, dst: &Tensor, bytes: &[u8]);
        fn fill(&self, dst: &[Vec<Tensor>], fill: &(dyn Fn(usize, &mut [&mut [u8]]) + Sync));
        fn read(&self, src: &Tensor) -> InFlight;
        fn share(&self, src: &Tensor) -> (Share, Reader);
        fn fence(&self) -> u64;
        fn take(&self, from: &Reader, dst: &Tensor, fence: u64) -> bool;
        fn enter_block(&self);
        fn leave_block(&self);
        fn stamp(&self) -> Option<u64>;
        fn stamps(&self) -> Vec<f64>;
        fn zero(&self, dst: &Tensor);
        fn copy(&self, src: &Tensor, dst: &Tensor);
        fn multiply(&self, a: &Tensor, b: &Tensor, out: &Tensor);
        fn rsqrt(&self, x: &Tensor, out: &Tensor);
        fn scale(&self, x: &Tensor, factor: f32, out: &Tensor);
        fn softcap(&self, x: &Tensor, cap: f32);
        fn jitter(&self, x: &Tensor, keys: &Tensor, scales: &Tensor);
        fn dropout(&self, x: &Tensor, keys: &Tensor, how: Dropout);
        fn add_bias(&self, x: &Tensor, bias: &Tensor);
        fn multiplies(&self, format: BlockFormat) -> bool;
        fn packed_matmul(&self, op: &PackedMatMul<'_>, ws: &Tensor);
        fn largest(&self, x: &Tensor, out: &Tensor);
        fn norm(&self, op: &Norm<'_>);
        fn norm_backward_input(&self, op: &NormBackward<'_>, dx: &Tensor, accumulate: bool);
        fn conv(&self, op: &Conv<'_>);
        fn conv_backward(&self, op: &ConvBackward<'_>);
        fn gated_norm(&self, op: &GatedNorm<'_>);
        fn gated_norm_backward(&self, op: &GatedNormBackward<'_>, ws: &Tensor);
        fn delta_ends(&self, op: &DeltaEnds<'_>, ws: &Tensor);
        fn delta_begins(&self, op: &DeltaBegins<'_>, ws: &Tensor);
        fn delta_advance(&self, op: &DeltaAdvance<'_>);
        fn delta(&self, op: &Delta<'_>, ws: &Tensor);
        fn delta_backward(&self, op: &DeltaBackward<'_>, ws: &Tensor);
        fn ssd(&self, op: &Ssd<'_>, ws: &Tensor);
        fn ssd_backward(&self, op: &SsdBackward<'_>, ws: &Tensor);
        fn ssd_ends(&self, op: &SsdEnds<'_>, ws: &Tensor);
        fn ssd_begins(&self, op: &SsdBegins<'_>, ws: &Tensor);
        fn ssd_advance(&self, state: &Tensor, decays: &Tensor, added: &Tensor);
        fn activate(&self, op: &Activate<'_>);
        fn activate_backward(&self, op: &ActivateBackward<'_>);
        fn rope_table(&self, op: &RopeTable<'_>);
        fn rope(&self, op: &Rope<'_>);
        fn embed(&self, op: &Embed<'_>);
        fn route(&self, op: &Route<'_>);
        fn route_backward(&self, op: &RouteBackward<'_>);
        fn router_losses(&self, op: &RouterLosses<'_>);
        fn count_experts(&self, index: &Tensor, load: &Tensor);
        fn limit_experts(&self, op: &LimitExperts<'_>);
        fn balance_bias(&self, op: &BalanceBias<'_>);
        fn dispatch(&self, op: &Dispatch<'_>);
        fn grouped_matmul(&self, op: &GroupedMatMul<'_>, ws: &Tensor);
        fn combine(&self, op: &Combine<'_>);
        fn combine_backward(&self, op: &CombineBackward<'_>);
        fn attention(&self, op: &Attention<'_>, ws: &Tensor);
        fn reads_pages(&self) -> bool;
        fn pack_pages(&self, op: &PackPages<'_>);
        fn attention_backward(&self, op: &AttentionBackward<'_>, ws: &Tensor);
        fn sinks_backward(&self, op: &SinksBackward<'_>);
        fn cross_entropy(&self, op: &CrossEntropy<'_>);
        fn divergence(&self, op: &Divergence<'_>);
        fn row_distance(&self, op: &RowDistance<'_>);
        fn choose(&self, op: &Choose<'_>);
        fn leave_out(&self, op: &LeaveOut<'_>);
        fn sum(&self, x: &Tensor, out: &Tensor);
        fn sum_squares(&self, x: &Tensor, out: &Tensor);
        fn sum_squares_slots(&self, x: &Tensor, slot: usize, out: &Tensor);
        fn step_scale(&self, op: &StepScale<'_>);
        fn adamw(&self, op: &AdamW<'_>);
        fn round_weights(&self, op: &RoundWeights<'_>);
        fn pack(&self, op: &Pack<'_>);
        fn unpack(&self, op: &Unpack<'_>);
    }
}
