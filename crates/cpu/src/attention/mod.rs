//! Softmax attention, forward and backward, that never forms a score matrix.
//!
//! `out = softmax(mask(scale q k^T)) v` by blocks of 128 keys at absolute multiples of 128 (Dao et al.,
//! "FlashAttention"). Masks are slices, heads may share keys, scores may be capped, sinks may join the denominator.
//!
//! Order of addition: a row of `out`, `lse` or `dq` is one chain over ascending keys, a row of `dk` or `dv` one chain
//! over ascending queries (heads of a group ascending within a token). No result depends on the number of threads, on
//! which other rows are computed with it, or on where a call starts: a single row has the same bits as in a long
//! prefill.
//!
//! The kernels allocate nothing: the caller provides `workspace_bytes_*` of memory. Tensors must be finite even where
//! the mask hides them (a hidden score has weight exactly zero, but zero times NaN is NaN).
#![allow(unsafe_code)] // raw kernels over caller-owned memory

#[cfg(target_arch = "x86_64")]
mod amx;
mod backward;
mod bias;
mod forward;
mod mask;
mod operands;
pub(crate) mod pack;
pub mod pages;
pub(crate) mod product;
mod scores;
mod shape;
pub(crate) mod simd;
mod softmax;
pub(crate) mod unit;
mod wavefront;
pub(crate) mod workspace;

#[cfg(test)]
mod tests;

pub use bias::Bias;

use crate::isa::Isa;
pub use crate::mat::Elem;
use crate::threads::Threads;
use fathom_tensor::DistanceTerms;
pub use fathom_tensor::{PageFormat, Slice};
pub use operands::{Backward, Forward, MaskOperands, PageTable, Rows, RowsMut};
use pack::View;
pub use scores::Options;
pub use shape::Shape;

impl Shape {
    fn check(&self, mask: &MaskOperands<'_>, options: &Options, bias: Option<&Bias>) {
        self.check_bias(options, bias);
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "attention: {} heads do not share {} key heads evenly",
            self.heads,
            self.kv_heads
        );
        assert!((1..=512).contains(&self.head_dim), "attention: head size {} is not 1 to 512", self.head_dim);
        assert!(
            mask.pos_q.len() == self.q_tokens && mask.pos_k.len() == self.k_tokens,
            "attention: {} and {} positions for {} queries and {} keys",
            mask.pos_q.len(),
            mask.pos_k.len(),
            self.q_tokens,
            self.k_tokens
        );
        assert!(options.scale > 0.0, "attention: scale {} is not positive", options.scale);
    }

    fn check_bias(&self, options: &Options, bias: Option<&Bias>) {
        assert_eq!(self.span, bias.map_or(0, |bias| bias.terms.span()), "attention: distances of biases");
        let constant = |bias: &Bias| bias.terms != DistanceTerms::Slopes || bias.gradient.is_null();
        assert!(bias.is_none_or(constant), "attention: slopes have no gradient");
        assert!(bias.is_none() || options.softcap == 0.0, "attention: biases of capped scores");
    }

    /// Heads `first..first + group` of each token as rows.
    fn view(&self, data: *mut u8, stride: usize, elem: Elem, first: usize, group: usize) -> View {
        let head = self.head_dim * elem.bytes();
        View { data: data.wrapping_add(first * head), stride: stride * elem.bytes(), group, head, elem }
    }
}

/// Calls `$function::<family>(..)` for the kernel family of an instruction set and element type.
macro_rules! dispatch {
    ($isa:expr, $elem:expr, $function:path, ($($arg:expr),*)) => {
        match ($isa, $elem) {
            (Isa::Portable, _) => $function(unit::PortableUnit, $($arg),*),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => $function(unit::Avx2Unit, $($arg),*),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, _) | (Isa::Avx512Bf16 | Isa::Amx, Elem::F32) => {
                $function(unit::Avx512Unit, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, Elem::Bf16) => $function(unit::Avx512Bf16Unit, $($arg),*),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, Elem::Bf16) => $function(unit::AmxUnit, $($arg),*),
            #[cfg(not(target_arch = "x86_64"))]
            _ => $function(unit::PortableUnit, $($arg),*),
        }
    };
}

/// Bytes of workspace that `forward` needs: some tiles per thread.
pub fn workspace_bytes_forward(isa: Isa, threads: usize, shape: &Shape, elem: Elem, slices: usize) -> usize {
    dispatch!(isa, elem, forward::bytes, (threads, shape, slices))
}

/// Bytes of workspace that `backward` needs: some tiles per thread, two numbers per query row, and the f32 gradient of
/// the queries of at most two key heads.
pub fn workspace_bytes_backward(isa: Isa, threads: usize, shape: &Shape, elem: Elem, slices: usize) -> usize {
    dispatch!(isa, elem, backward::bytes, (threads, shape, slices))
}

/// Computes `out` and `lse`.
///
/// # Safety
/// The pointers cover the shape and outputs overlap nothing; `workspace` has `workspace_bytes_forward` bytes of any
/// contents; `isa` was returned by `Isa::select`.
///
/// # Panics
/// If the shape, positions, scale or sinks disagree.
pub unsafe fn forward(threads: &Threads, isa: Isa, op: &Forward<'_>, workspace: *mut u8) {
    op.shape.check(&op.mask, &op.options, op.bias.as_ref());
    assert!(op.sinks.is_none_or(|s| s.len() == op.shape.heads), "attention: one sink a head");
    // SAFETY: this function's contract.
    unsafe { dispatch!(isa, op.elem, forward::run, (threads, op, workspace)) }
}

/// Computes `dq`, `dk` and `dv`.
///
/// # Safety
/// The pointers cover the shape and outputs overlap nothing; `workspace` has `workspace_bytes_backward` bytes of any
/// contents; `isa` was returned by `Isa::select`.
///
/// # Panics
/// If the shape, positions or scale disagree.
pub unsafe fn backward(threads: &Threads, isa: Isa, op: &Backward<'_>, workspace: *mut u8) {
    op.shape.check(&op.mask, &op.options, op.bias.as_ref());
    // SAFETY: this function's contract.
    unsafe { dispatch!(isa, op.elem, backward::run, (threads, op, workspace)) }
}
