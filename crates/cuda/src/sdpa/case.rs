//! What one plan of attention is for: sizes, strides, mask. Everything that decides the plan and nothing else.

use crate::blas::Element;

/// Numbers of the tensors in memory.
pub mod uid {
    /// Queries.
    pub const Q: i64 = 1;
    /// Keys.
    pub const K: i64 = 2;
    /// Values.
    pub const V: i64 = 3;
    /// The result.
    pub const OUT: i64 = 4;
    /// Logarithms of the rows' sums.
    pub const LSE: i64 = 5;
    /// Gradient of the result.
    pub const DOUT: i64 = 6;
    /// Gradient of the queries.
    pub const DQ: i64 = 7;
    /// Gradient of the keys.
    pub const DK: i64 = 8;
    /// Gradient of the values.
    pub const DV: i64 = 9;
    /// Of each row, the result times its gradient.
    pub const SUMS: i64 = 10;
    /// The queries' gradient in f32.
    pub const DQ_WIDE: i64 = 11;
    /// The keys' gradient of every query head.
    pub const DK_FULL: i64 = 12;
    /// The values'.
    pub const DV_FULL: i64 = 13;
    /// Lengths of the sequences' queries.
    pub const Q_LEN: i64 = 20;
    /// And keys.
    pub const K_LEN: i64 = 21;

    /// Where the sequences of a tensor begin.
    pub fn start_of(number: i64) -> i64 {
        30 + number
    }
}

/// Elements from one token to the next, by tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Strides {
    /// Of the tensors from [`uid::Q`] to [`uid::DV`]; that of [`uid::LSE`] is nothing where sequences are not packed.
    pub rows: [i64; 9],
}

impl Strides {
    /// Of a tensor.
    pub fn of(&self, number: i64) -> i64 {
        self.rows[number as usize - 1]
    }

    /// Sets one.
    pub fn set(&mut self, number: i64, stride: usize) {
        self.rows[number as usize - 1] = stride as i64;
    }

    /// Tensors without gaps between rows.
    pub fn plain(heads: i64, kv_heads: i64, head_dim: i64) -> Strides {
        let mut strides = Strides::default();
        for number in [uid::Q, uid::OUT, uid::DOUT, uid::DQ] {
            strides.set(number, (heads * head_dim) as usize);
        }
        for number in [uid::K, uid::V, uid::DK, uid::DV] {
            strides.set(number, (kv_heads * head_dim) as usize);
        }
        strides
    }
}

/// One plan's worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Case {
    /// Sequences; with `packed`, at most.
    pub sequences: i64,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads.
    pub kv_heads: i64,
    /// Query rows of a sequence; with `packed`, at most.
    pub q_tokens: i64,
    /// Key rows of a sequence; with `packed`, at most.
    pub k_tokens: i64,
    /// Columns of one head.
    pub head_dim: i64,
    /// Type of everything but sums.
    pub element: Element,
    /// A query attends to no later row.
    pub causal: bool,
    /// A query attends to no key that is too far in front: `key + window > query`, counted from a sequence's first. How far that
    /// is comes with the call ([`super::Call`]), and one plan does for all.
    pub window: bool,
    /// Sequences lie end to end, with their beginnings and lengths on the device.
    pub packed: bool,
    /// Rows.
    pub strides: Strides,
}

impl Case {
    /// Query heads that share a key head.
    pub fn group(&self) -> i64 {
        self.heads / self.kv_heads
    }

    /// What it is, in few words for a line of a log.
    pub fn said(&self, backward: bool) -> String {
        let Case { sequences, heads, kv_heads, q_tokens, k_tokens, head_dim, element, .. } = *self;
        let direction = if backward { "gradient of attention" } else { "attention" };
        let packed =
            if self.packed { format!(", packed, at most {sequences} sequences") } else { String::new() };
        let window = if self.window { ", within a window" } else { "" };
        let causal = if self.causal { ", causal" } else { "" };
        format!(
            "{direction} of {q_tokens} queries to {k_tokens} keys, {heads} and {kv_heads} heads of {head_dim} columns, \
             {element:?}{causal}{window}{packed}"
        )
    }
}
