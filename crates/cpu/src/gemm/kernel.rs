//! A kernel of matrix products: the sizes of its tiles, and its functions.
#![allow(unsafe_code)]

use crate::mat::Elem;

/// An operand for packing: `outer` rows of A (columns of B) by `k`.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub ptr: *const u8,
    pub elem: Elem,
    /// Elements from one index to the next along the direction that is not contiguous.
    pub stride: usize,
    /// True if the k direction is contiguous; otherwise the outer one is.
    pub k_contiguous: bool,
    /// True if groups of eight outer indices are interleaved ([`super::Layout::Octets`]).
    pub octets: bool,
    pub outer: usize,
    pub k: usize,
}

impl Source {
    /// Offset of element `k` of an outer index, in elements.
    #[inline(always)]
    pub fn at(&self, outer: usize, k: usize) -> usize {
        match (self.octets, self.k_contiguous) {
            (true, _) => outer / 8 * 8 * self.stride + k / 2 * 16 + outer % 8 * 2 + k % 2,
            (false, true) => outer * self.stride + k,
            (false, false) => k * self.stride + outer,
        }
    }
}

/// A range of an operand to pack: outer indices `o0..o0 + outer`, sums `k0..k1`. Both may extend past the operand;
/// elements outside it are packed as zero.
#[derive(Clone, Copy)]
pub(super) struct PackRange {
    pub o0: usize,
    /// Number of panels.
    pub panels: usize,
    pub k0: usize,
    pub k1: usize,
}

/// Packs whole panels; `dst` has room for `panels * width * round_up(k1 - k0, unit)` packed elements and [`SLACK`]
/// bytes more.
pub(super) type Pack = unsafe fn(source: &Source, cut: PackRange, dst: *mut u8);

/// `C[mr,nr] += A * B` over `steps` units of k, for the first `rows` rows of the tile. Meanwhile prefetches
/// [`Kind::prefetch_lines`] of `panels.soon` per unit.
pub(super) type Micro = unsafe fn(steps: usize, panels: Panels, c: *mut f32, rows: usize, fresh: bool);

/// Operands of a micro-kernel.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub a: *const u8,
    pub b: *const u8,
    pub soon: Lines,
}

/// Cache lines to prefetch: some for each unit of k, `apart` bytes from one to the next.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub ptr: *const u8,
    pub apart: usize,
    /// Bytes from the lines of one unit of k to those of the next.
    pub unit: usize,
    /// Bytes from the lines of one tile to those of the next.
    pub tile: usize,
}

/// Copies between a tile of f32 and C.
pub(super) type Move = unsafe fn(tile: &super::block::Tile, c: &super::MatMut);

/// Computes a product with few columns.
pub(super) type Slim = unsafe fn(threads: &crate::threads::Threads, g: &super::Gemm, workspace: *mut u8);

/// Rounds the first rows of a tile.
pub(super) type Round = unsafe fn(tile: *mut f32, rows: usize);

/// Computes some columns of a product with few rows.
pub(super) type Few = unsafe fn(g: &super::Gemm, cols: std::ops::Range<usize>);

/// Bytes a pack may write past its panels.
pub(super) const SLACK: usize = 64;

/// A micro-kernel with the layout of its panels.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Rows of a tile of C, the width of a panel of A.
    pub mr: usize,
    /// Columns of a tile of C, the width of a panel of B.
    pub nr: usize,
    /// Products summed together; panels are zero-padded to a multiple of it.
    pub unit: usize,
    /// Largest number of products per block of k: a multiple of `unit` and of [`fathom_tensor::SUM_CHUNK`].
    pub kc: usize,
    /// Bytes of a packed element.
    pub size: usize,
    /// Largest number of rows and of columns of a block of C.
    pub block: (usize, usize),
    /// Most bytes of A that a task keeps packed for all of k, so that it packs its rows once for several blocks of
    /// columns. Zero if a task is one block.
    pub keep: usize,
    /// Cost of a row of A and of a column of B for a task in addition to the arithmetic, measured, in single-element
    /// products.
    pub edges: (usize, usize),
    /// Panels of B packed together if its columns are contiguous, so that each row is read in long runs.
    pub group: usize,
    /// Packing B again for each block of C is expensive next to a fast unit: if C has more rows than a block, B is
    /// packed first, in parts of at most this many bytes. Zero if it is packed per block.
    pub pack_first_bytes: usize,
    pub pack_a: Pack,
    pub pack_b: Pack,
    pub micro: Micro,
    /// Lines that `micro` prefetches with each unit of k.
    pub prefetch_lines: usize,
    /// Called by each task before its first and after its last `micro`.
    pub enter: unsafe fn(),
    pub leave: unsafe fn(),
    pub load: Move,
    pub store: Move,
    /// Rounds the first rows of a tile to bf16, for terms added to its tiles ([`super::terms`]).
    pub round: Option<Round>,
    /// Size in bytes from which C leaves the caches before it is read again: it is written with non-temporal stores,
    /// which avoids reading it.
    pub stream_bytes: usize,
    /// For at most this many rows: computes columns of C straight from A `[m,k]` and B `[n,k]`, neither of them packed;
    /// the same sums as `micro`.
    pub few: Option<(usize, Few)>,
    /// For at most this many columns: A `[m,k]` is not packed; the same sums as `micro`. The workspace is
    /// [`slim_bytes`](super::kind::slim_bytes).
    pub slim: Option<(usize, Slim)>,
    /// True if `few` also accepts operands of other types and widens them as the panels would.
    pub few_widens: bool,
}

/// Does nothing, for micro-kernels without set-up.
pub(super) unsafe fn nothing() {}

/// Alignment of everything in the workspace.
pub(super) const ALIGN: usize = 64;
