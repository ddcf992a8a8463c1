//! The parameters of an attention plan: sizes, strides, mask; exactly those that determine the plan.

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
    /// The result times its gradient, for each row.
    pub const SUMS: i64 = 10;
    /// The queries' gradient in f32.
    pub const DQ_WIDE: i64 = 11;
    /// The keys' gradient for every query head.
    pub const DK_FULL: i64 = 12;
    /// The values' gradient for every query head.
    pub const DV_FULL: i64 = 13;
    /// Lengths of the sequences' queries.
    pub const Q_LEN: i64 = 20;
    /// Lengths of the sequences' keys.
    pub const K_LEN: i64 = 21;

    /// Number of the list of a tensor's sequence starts.
    pub fn start_of(number: i64) -> i64 {
        30 + number
    }
}

/// Elements from one token to the next, by tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Strides {
    /// Strides of the tensors from [`uid::Q`] to [`uid::DV`]; that of [`uid::LSE`] is zero if sequences are not packed.
    pub rows: [i64; 9],
}

impl Strides {
    /// Stride of a tensor.
    pub fn of(&self, number: i64) -> i64 {
        self.rows[number as usize - 1]
    }

    /// Sets the stride of a tensor.
    pub fn set(&mut self, number: i64, stride: usize) {
        self.rows[number as usize - 1] = stride as i64;
    }

    /// Strides of tensors without gaps between rows.
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

/// Parameters of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Case {
    /// Number of sequences; with `packed`, at most.
    pub sequences: i64,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads.
    pub kv_heads: i64,
    /// Query rows per sequence; with `packed`, at most.
    pub q_tokens: i64,
    /// Key rows per sequence; with `packed`, at most.
    pub k_tokens: i64,
    /// Columns of one head.
    pub head_dim: i64,
    /// Type of everything but sums.
    pub element: Element,
    /// True if a query attends to no later row.
    pub causal: bool,
    /// True if a query attends to no key too far before it: `key + window > query`, counted from a sequence's first.
    /// The reach is part of the call ([`super::Call`]), so one plan serves all.
    pub window: bool,
    /// True if sequences are concatenated, with their starts and lengths on the device.
    pub packed: bool,
    /// Row strides.
    pub strides: Strides,
}

impl Case {
    /// One sequence of bf16 with contiguous rows, attending causally.
    pub fn causal([heads, kv_heads]: [i64; 2], tokens: i64, head_dim: i64) -> Case {
        Case {
            sequences: 1,
            heads,
            kv_heads,
            q_tokens: tokens,
            k_tokens: tokens,
            head_dim,
            element: Element::Bf16,
            causal: true,
            window: false,
            packed: false,
            strides: Strides::plain(heads, kv_heads, head_dim),
        }
    }

    /// Query heads per key head.
    pub fn group(&self) -> i64 {
        self.heads / self.kv_heads
    }

    /// Short description for a log line.
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
