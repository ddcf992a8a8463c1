//! Masks as short lists of slices, and sizes that live on the device.

mod packed;

use crate::{DType, Tensor};

pub use packed::{Band, PackedMask, Sequence};

/// Query row i and key row j attend iff `q` holds i, `k` holds j and `lo <= pos_k[j] - pos_q[i] <= hi`.
/// At most one slice of a mask covers a pair. Causal, windowed, full and cross attention, packed documents
/// and ring chunks are values of this one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Slice {
    /// First query row.
    pub q_start: i64,
    /// One past the last query row.
    pub q_end: i64,
    /// First key row.
    pub k_start: i64,
    /// One past the last key row.
    pub k_end: i64,
    /// Smallest `pos_k - pos_q` that attends.
    pub lo: i64,
    /// Largest `pos_k - pos_q` that attends.
    pub hi: i64,
}

impl Slice {
    /// Open end of `lo` or `hi`.
    pub const OPEN: i64 = i64::MAX / 2;

    /// Causal attention of rows to rows, within a window of `window` tokens if given.
    pub fn causal(q: std::ops::Range<usize>, k: std::ops::Range<usize>, window: Option<usize>) -> Slice {
        let lo = window.map_or(-Slice::OPEN, |w| 1 - w as i64);
        let [q_start, q_end, k_start, k_end] = [q.start, q.end, k.start, k.end].map(|x| x as i64);
        Slice { q_start, q_end, k_start, k_end, lo, hi: 0 }
    }

    /// Attention of every row to every row.
    pub fn full(q: std::ops::Range<usize>, k: std::ops::Range<usize>) -> Slice {
        Slice { lo: -Slice::OPEN, hi: Slice::OPEN, ..Slice::causal(q, k, None) }
    }
}

/// A number of rows: known to the host, or an upper bound with the count on the device.
#[derive(Clone, Debug)]
pub enum Extent {
    /// Exactly this many.
    Fixed(usize),
    /// At most `cap`; kernels read `count` (one i32).
    UpTo {
        /// Upper bound, used for shapes, charges and plans.
        cap: usize,
        /// The count, one i32.
        count: Tensor,
    },
}

impl Extent {
    /// The upper bound used for shapes and charges.
    pub fn cap(&self) -> usize {
        match self {
            Extent::Fixed(n) => *n,
            Extent::UpTo { cap, .. } => *cap,
        }
    }
}

/// Rows per page of keys and values; attention reads a page at a time.
pub const PAGE_ROWS: usize = 128;

/// A mask on the device.
#[derive(Clone, Debug)]
pub struct Mask {
    /// i64 [cap, 6]: the fields of [`Slice`].
    pub table: Tensor,
    /// Number of rows of `table` that are slices.
    pub slices: Extent,
    /// Positions of query rows, i32 [1, q_tokens].
    pub pos_q: Tensor,
    /// Positions of key rows, i32 [1, k_tokens].
    pub pos_k: Tensor,
    /// Pairs that attend; the host's count, for FLOPs only.
    pub pairs: u64,
    /// The same mask as packed sequences, if it is one and the host knows.
    pub packed: Option<PackedMask>,
    /// Set for ring steps and gathered keys: a library's results under this mask are merged with each other or with
    /// those of other keys, which takes scratch ([`crate::OpDesc::Attention`]). Plans know this, but no sequences.
    pub partial: bool,
    /// Page table, if keys and values lie in pages of [`PAGE_ROWS`] rows anywhere in their tensors; the `r`-th key is
    /// in row `pages[r / 128] * 128 + r % 128`. Only for machines with [`crate::Machine::reads_pages`], and only
    /// forward.
    pub pages: Option<PageTable>,
}

/// Locations of pages of keys and values.
#[derive(Clone, Debug)]
pub struct PageTable {
    /// i32 [1, pages].
    pub pages: Tensor,
    /// Format of the pages.
    pub format: PageFormat,
}

/// Storage format of keys and values in pages. When quantized, each head of a token has its own f32 scale in front of
/// its codes; the head's largest magnitude maps to the largest code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageFormat {
    /// Not quantized.
    #[default]
    Plain,
    /// 8-bit floats, e4m3.
    Fp8,
    /// Signed bytes from -127 to 127.
    Int8,
    /// Signed halves of bytes from -7 to 7, the first in the lower half.
    Int4,
}

impl PageFormat {
    /// The largest code's magnitude.
    pub fn largest(self) -> f32 {
        match self {
            PageFormat::Plain => 1.0,
            PageFormat::Fp8 => 448.0,
            PageFormat::Int8 => 127.0,
            PageFormat::Int4 => 7.0,
        }
    }

    /// Bytes of a head's codes and scale; elements of `dtype` if plain.
    pub fn head_bytes(self, head_dim: usize, dtype: DType) -> usize {
        match self {
            PageFormat::Plain => head_dim * dtype.bytes(),
            PageFormat::Fp8 | PageFormat::Int8 => 4 + head_dim,
            PageFormat::Int4 => 4 + head_dim.div_ceil(2),
        }
    }

    /// Element type and columns of a tensor of `heads` heads.
    pub fn storage(self, heads: usize, head_dim: usize, dtype: DType) -> (DType, usize) {
        match self {
            PageFormat::Plain => (dtype, heads * head_dim),
            PageFormat::Fp8 | PageFormat::Int8 | PageFormat::Int4 => {
                (DType::U8, heads * self.head_bytes(head_dim, dtype))
            }
        }
    }
}

/// Quantizes rows of keys or values for pages.
#[derive(Clone, Copy, Debug)]
pub struct PackPages<'a> {
    /// [t, heads x head_dim].
    pub x: &'a Tensor,
    /// Columns of one head.
    pub head_dim: usize,
    /// Format of the pages; not plain.
    pub format: PageFormat,
    /// u8 [t, heads x [`PageFormat::head_bytes`]].
    pub out: &'a Tensor,
}

impl Mask {
    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.pos_k.cols()
    }
}
