//! Operands of attention and of its gradient.

use fathom_tensor::{PageFormat, Slice};

use super::bias::Bias;
use super::scores::Options;
use super::shape::{KEYS, Shape};
use crate::mat::Elem;

/// Rows to read: the first element, and elements between rows.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// First element.
    pub data: *const u8,
    /// Elements (not bytes) from one token to the next.
    pub stride: usize,
}

/// Rows to write.
#[derive(Clone, Copy, Debug)]
pub struct RowsMut {
    /// First element.
    pub data: *mut u8,
    /// Elements (not bytes) from one token to the next.
    pub stride: usize,
    /// Element type: that of q, or f32.
    pub elem: Elem,
}

/// Mask of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct MaskOperands<'a> {
    /// At most one slice covers a pair. A query row that none covers yields 0 and a log-sum-exp of minus infinity.
    pub slices: &'a [Slice],
    /// Position of each query token. Ascending positions let blocks be skipped; correctness does not need them.
    pub pos_q: &'a [i32],
    /// Position of each key token.
    pub pos_k: &'a [i32],
    /// Page table of the key blocks and their format; `None` if they are in order and plain. Forward only.
    pub pages: Option<PageTable<'a>>,
}

/// Page table of key blocks.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    /// Index of each block.
    pub pages: &'a [i32],
    /// Format of keys and values.
    pub format: PageFormat,
}

impl MaskOperands<'_> {
    /// The storage row of the key `first`, which begins a block.
    #[inline(always)]
    pub fn row(&self, first: usize) -> usize {
        self.pages.map_or(first, |paging| paging.pages[first / KEYS] as usize * KEYS)
    }

    /// Format of the keys.
    pub fn format(&self) -> PageFormat {
        self.pages.map_or(PageFormat::Plain, |paging| paging.format)
    }
}

/// One forward pass.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    pub shape: Shape,
    pub elem: Elem,
    pub options: Options,
    pub mask: MaskOperands<'a>,
    /// `[q_tokens, heads * head_dim]`.
    pub q: Rows,
    /// `[k_tokens, kv_heads * head_dim]`.
    pub k: Rows,
    /// `[k_tokens, kv_heads * head_dim]`.
    pub v: Rows,
    /// Logits `[heads]` that join each row's denominator and carry no value.
    pub sinks: Option<&'a [f32]>,
    /// Terms of scores by distance; not with a cap.
    pub bias: Option<Bias>,
    /// `[q_tokens, heads * head_dim]`.
    pub out: RowsMut,
    /// `[q_tokens, heads]`, natural logarithm, sinks included; null if not wanted.
    pub lse: *mut f32,
    /// Continues from `out` and `lse`, which hold the results over other keys.
    pub resume: bool,
}

/// One backward pass; overwrites `dq`, `dk`, `dv`. `out` and `lse` may cover more keys. Sinks are part of `lse`.
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    pub shape: Shape,
    pub elem: Elem,
    pub options: Options,
    pub mask: MaskOperands<'a>,
    pub q: Rows,
    pub k: Rows,
    pub v: Rows,
    /// Result of the forward pass.
    pub out: Rows,
    /// Result of the forward pass.
    pub lse: *const f32,
    /// Gradient of `out`.
    pub dout: Rows,
    pub dq: RowsMut,
    pub dk: RowsMut,
    pub dv: RowsMut,
    /// Adds to `dq`.
    pub accumulate: bool,
    /// The bias of the forward pass, to whose gradient is added.
    pub bias: Option<Bias>,
}
