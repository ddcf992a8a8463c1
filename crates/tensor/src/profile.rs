//! Description of a machine as plain data and pure functions, constructible without the machine.

use serde::{Deserialize, Serialize};

use crate::ggml::Kind;
use crate::ggml::octets::interleaves;
use crate::{BlockFormat, DType, Fabric, Narrow};

/// Rates for the roofline, in FLOP/s and bytes/s. Rates of transfers are 0 if not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// bf16 matrix products.
    pub matmul_bf16_flops_per_s: f64,
    /// f32 matrix products.
    pub matmul_f32_flops_per_s: f64,
    /// Attention forward: 4 FLOPs per pair, head and column, pairs of the mask counted once.
    pub attention_forward_flops_per_s: f64,
    /// Attention backward: 10 FLOPs per pair, head and column.
    pub attention_backward_flops_per_s: f64,
    /// Seconds per pair and head that attention takes in addition to its products, in each direction (the exponential);
    /// the reason that small heads are slower.
    pub attention_pair_s: f64,
    /// Memory traffic, reads and writes together, without computation.
    pub memory_bytes_per_s: f64,
    /// Memory traffic of norms, activation functions, rotations and losses.
    pub elementwise_bytes_per_s: f64,
    /// Overhead of every call.
    pub call_s: f64,
    /// Memory to disk.
    pub disk_write_bytes_per_s: f64,
    /// Disk to memory.
    pub disk_read_bytes_per_s: f64,
    /// The link to the host's memory, in each direction.
    pub host_bytes_per_s: f64,
}

impl Rates {
    /// Each rank's share of the rates when `ranks` ranks share a machine.
    pub fn among(&self, ranks: usize) -> Rates {
        let share = 1.0 / ranks.max(1) as f64;
        Rates {
            matmul_bf16_flops_per_s: share * self.matmul_bf16_flops_per_s,
            matmul_f32_flops_per_s: share * self.matmul_f32_flops_per_s,
            attention_forward_flops_per_s: share * self.attention_forward_flops_per_s,
            attention_backward_flops_per_s: share * self.attention_backward_flops_per_s,
            attention_pair_s: self.attention_pair_s / share,
            memory_bytes_per_s: share * self.memory_bytes_per_s,
            elementwise_bytes_per_s: share * self.elementwise_bytes_per_s,
            disk_write_bytes_per_s: share * self.disk_write_bytes_per_s,
            disk_read_bytes_per_s: share * self.disk_read_bytes_per_s,
            ..*self
        }
    }

    /// Seconds that attention's arithmetic takes.
    pub fn attention_s(&self, flops: f64, pairs: f64, backward: bool) -> f64 {
        let rate =
            if backward { self.attention_backward_flops_per_s } else { self.attention_forward_flops_per_s };
        flops / rate + pairs * self.attention_pair_s
    }
}

/// Sizes of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Query rows.
    pub q_tokens: usize,
    /// Key rows.
    pub k_tokens: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Storage type of q, k, v.
    pub dtype: DType,
    /// Most slices of the mask.
    pub slices: usize,
    /// True if a library makes results separately, which are then merged with those of other keys
    /// ([`crate::Mask::partial`]).
    pub partial: bool,
    /// Distance from which on all keys have the same bias; 0 without biases, or if they have no end.
    pub span: usize,
    /// True if this is the backward pass.
    pub backward: bool,
}

/// An operation's shape, as far as its scratch memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpDesc {
    /// `C[m,n] (+)= op(A)[m,k] op(B)[k,n]`.
    MatMul {
        /// Rows of C.
        m: usize,
        /// Columns of C.
        n: usize,
        /// The summed size.
        k: usize,
        /// Type of A and B.
        input: DType,
        /// Type of C.
        output: DType,
        /// True if A is stored [k, m].
        a_trans: bool,
        /// True if B is stored [n, k].
        b_trans: bool,
    },
    /// The same with terms, products of short sums that are added to columns of C.
    WithTerms {
        /// Rows of C.
        m: usize,
        /// Columns of C.
        n: usize,
        /// The summed size.
        k: usize,
        /// Type of A and B.
        input: DType,
        /// Type of C.
        output: DType,
        /// Columns and summed size of each term; zeros for absent terms.
        terms: [(usize, usize); crate::TERMS],
    },
    /// `C[m,n] = A[m,k] W[n,k]^T` with a packed W.
    Packed {
        /// Rows of C.
        m: usize,
        /// Columns of C.
        n: usize,
        /// The summed size.
        k: usize,
        /// Storage of A and C if W is interleaved bf16; scratch for other formats does not depend on it.
        numbers: Option<(DType, DType)>,
    },
    /// A product of operands that are rounded to fewer bits first.
    Narrow {
        /// Rows of C.
        m: usize,
        /// Columns of C.
        n: usize,
        /// The summed size.
        k: usize,
        /// Type of A and B before rounding.
        input: DType,
        /// Type of C.
        output: DType,
        /// True if A is stored [k, m].
        a_trans: bool,
        /// True if B is stored [n, k].
        b_trans: bool,
        /// Storage of A and B as multiplied.
        how: [Narrow; 2],
    },
    /// A product of `tokens x slots` rows, each with the weight of its expert, or the gradient of those weights.
    Grouped {
        /// Tokens.
        tokens: usize,
        /// Experts per token.
        slots: usize,
        /// The summed size; of a weight's gradient, its rows.
        inner: usize,
        /// Columns of the result.
        out: usize,
        /// Type of the operands.
        input: DType,
        /// Type of the result.
        output: DType,
        /// True if this is the gradient of the weights.
        weight: bool,
    },
    /// A product of rows, each with the packed weight of its expert.
    PackedGrouped {
        /// Tokens times experts per token.
        rows: usize,
        /// The summed size.
        inner: usize,
    },
    /// Attention; the backward pass needs more.
    Attention(AttentionSizes),
    /// The backward pass of a gated norm.
    GatedNorm {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
    /// Mamba-2's scan; the backward pass needs more.
    Ssd {
        /// Rows.
        rows: usize,
        /// Heads.
        heads: usize,
        /// Columns of a head.
        width: usize,
        /// Groups of heads.
        groups: usize,
        /// Columns of B and of C, per group.
        state: usize,
        /// Places of states at borders of runs ([`crate::RunStates`]).
        places: usize,
        /// True if this is the backward pass.
        backward: bool,
    },
    /// Gated DeltaNet; the backward pass needs more.
    Delta {
        /// Rows.
        rows: usize,
        /// Heads of q and of k.
        key_heads: usize,
        /// Heads of v.
        heads: usize,
        /// Columns of a head of q or of k.
        key: usize,
        /// Columns of a head of v.
        value: usize,
        /// True if there are states at borders of runs.
        passes: bool,
        /// True if this is the backward pass.
        backward: bool,
    },
}

/// Working-set sizes; the more of it a machine works on in parallel, the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portions {
    /// Most bytes of a tile of f32 logits.
    pub logits_bytes: usize,
    /// Most bytes of the gradients of several tiles of logits, if narrower than f32: the more tokens they cover, the
    /// less often the head's main gradient is read and written.
    pub logit_grads_bytes: usize,
    /// True if the squares of a weight's gradient are added in one call rather than one for each of their sums.
    pub squares_at_once: bool,
}

impl Portions {
    /// Sizes for a CPU.
    pub const CPU: Portions =
        Portions { logits_bytes: 32 << 20, logit_grads_bytes: 64 << 20, squares_at_once: false };
}

/// Kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// The host's CPU: ranks share its cores and memory, and calls return when their work is done.
    Processor,
    /// A GPU: one per rank, with a host; calls return before their work is done.
    Graphics,
}

/// A machine's data sheet.
#[derive(Clone, Debug)]
pub struct Profile {
    /// `cpu`, `h200`, ...
    pub name: String,
    /// Kind of machine.
    pub hardware: Hardware,
    /// Granularity of charges in bytes.
    pub granule: u64,
    /// Threads that share a kernel.
    pub threads: usize,
    /// Instruction set or compute capability.
    pub isa: String,
    /// Memory, if known.
    pub memory_bytes: Option<u64>,
    /// Host memory, for a machine that has a host.
    pub host_bytes: Option<u64>,
    /// Memory that the machine's libraries take outside the pool, if it has such libraries; `None` until measured.
    pub outside_pool_bytes: Option<u64>,
    /// Rates for predicted times; `None` until measured.
    pub rates: Option<Rates>,
    /// Interconnect of such machines, for predicted times of a mesh; `None` if unknown.
    pub fabric: Option<Fabric>,
    /// Working-set sizes.
    pub portions: Portions,
    /// Scratch bytes of an operation; the kernels call the same function.
    pub workspace: fn(&Profile, &OpDesc) -> u64,
}

impl Profile {
    /// A machine that needs no scratch, with 256-byte granules.
    pub fn portable(threads: usize) -> Profile {
        let (name, isa) = ("portable".to_string(), "portable".to_string());
        Profile {
            name,
            hardware: Hardware::Processor,
            granule: 256,
            threads,
            isa,
            memory_bytes: None,
            host_bytes: None,
            outside_pool_bytes: None,
            rates: None,
            fabric: None,
            portions: Portions::CPU,
            workspace: |_, _| 0,
        }
    }

    /// Profile of one of `ranks` ranks that share the machine's cores and memory bandwidth. Copy lines are unchanged:
    /// they were measured between two ranks.
    pub fn among(&self, ranks: usize) -> Profile {
        let mut profile = self.clone();
        profile.threads = (self.threads / ranks.max(1)).max(1);
        profile.rates = self.rates.map(|rates| rates.among(ranks));
        if let Some(fabric) = profile.fabric.as_mut().filter(|fabric| fabric.copied && ranks > 2) {
            fabric.node.bytes_per_s *= 2.0 / ranks as f64;
            fabric.network = fabric.node;
        }
        profile
    }

    /// Pool size for one of `together` ranks that compute in this much free memory: all but what libraries take outside
    /// the pool. Both runs and plans use this function.
    pub fn pool_bytes(&self, free: u64, together: u64) -> u64 {
        match (self.hardware, self.outside_pool_bytes) {
            (Hardware::Processor, _) => host_share(free) / together,
            (Hardware::Graphics, Some(outside)) => (free / together).saturating_sub(outside),
            // Not measured yet.
            (Hardware::Graphics, None) => free / 100 * 95 / together,
        }
    }

    /// Scratch bytes of an operation.
    pub fn workspace(&self, op: &OpDesc) -> u64 {
        (self.workspace)(self, op)
    }

    /// True if such a machine multiplies packed weights of this format. Interleaved bf16 is for CPUs without a unit for
    /// bf16 products.
    pub fn multiplies(&self, format: BlockFormat) -> bool {
        self.hardware == Hardware::Processor
            && match format {
                BlockFormat::Octets(Kind::Bf16) => matches!(self.isa.as_str(), "portable" | "avx2"),
                BlockFormat::Octets(kind) => interleaves(kind),
                BlockFormat::Ggml(kind) => kind.block() > 1,
                BlockFormat::Grouped(_) | BlockFormat::Nf4 | BlockFormat::Int8 => true,
            }
    }

    /// The parts of the profile that a file can hold.
    pub fn sheet(&self) -> Sheet {
        let Profile { threads, granule, memory_bytes, host_bytes, outside_pool_bytes, rates, fabric, .. } =
            *self;
        let (name, isa) = (self.name.clone(), self.isa.clone());
        Sheet { name, isa, threads, granule, memory_bytes, host_bytes, outside_pool_bytes, rates, fabric }
    }
}

/// Free host memory that a run may use.
pub fn host_share(free: u64) -> u64 {
    free / 10 * 9
}

/// A profile as stored in a file: everything but the kind of hardware, the portions and the scratch function, which
/// follow from the name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sheet {
    /// [`Profile::name`].
    pub name: String,
    /// [`Profile::isa`].
    pub isa: String,
    /// [`Profile::threads`].
    pub threads: usize,
    /// [`Profile::granule`].
    pub granule: u64,
    /// [`Profile::memory_bytes`].
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// [`Profile::host_bytes`].
    #[serde(default)]
    pub host_bytes: Option<u64>,
    /// [`Profile::outside_pool_bytes`].
    #[serde(default, rename = "beside_bytes")]
    pub outside_pool_bytes: Option<u64>,
    /// [`Profile::rates`].
    #[serde(default)]
    pub rates: Option<Rates>,
    /// [`Profile::fabric`].
    #[serde(default)]
    pub fabric: Option<Fabric>,
}

impl Sheet {
    /// The profile, completed with the parts of `of` that files do not hold.
    pub fn profile(self, of: &Profile) -> Profile {
        let Sheet {
            name,
            isa,
            threads,
            granule,
            memory_bytes,
            host_bytes,
            outside_pool_bytes,
            rates,
            fabric,
        } = self;
        Profile {
            name,
            hardware: of.hardware,
            granule,
            threads,
            isa,
            memory_bytes,
            host_bytes,
            outside_pool_bytes,
            rates,
            fabric,
            portions: of.portions,
            workspace: of.workspace,
        }
    }
}

/// Largest number of terms in a product.
pub const TERMS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_leaves_what_others_take() {
        let of =
            |hardware, outside_pool_bytes| Profile { hardware, outside_pool_bytes, ..Profile::portable(1) };
        let unknown = of(Hardware::Graphics, None);
        let known = of(Hardware::Graphics, Some(30));
        assert_eq!([1, 2].map(|ranks| unknown.pool_bytes(1000, ranks)), [950, 475]);
        assert_eq!([1, 2].map(|ranks| known.pool_bytes(1000, ranks)), [970, 470]);
        assert_eq!(known.pool_bytes(10, 1), 0);
        assert_eq!(of(Hardware::Processor, None).pool_bytes(1000, 2), 450);
    }
}
