//! What a machine is, as plain data and pure functions, constructible without the machine.

use serde::{Deserialize, Serialize};

use crate::ggml::Kind;
use crate::ggml::octets::interleaves;
use crate::{BlockFormat, DType, Fabric, Narrow};

/// Rates for the roofline, in FLOP/s and bytes/s. Those of transfers are 0 where they were not measured.
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
    /// In addition to its products, attention takes this many seconds for each pair and head (the exponential), in each
    /// direction: why small heads are slower.
    pub attention_pair_s: f64,
    /// Memory, read and write together, where nothing is computed.
    pub memory_bytes_per_s: f64,
    /// As much for norms, activation functions, rotations and losses.
    pub elementwise_bytes_per_s: f64,
    /// What every call costs, however little it does.
    pub call_s: f64,
    /// Memory to disk.
    pub disk_write_bytes_per_s: f64,
    /// Disk to memory.
    pub disk_read_bytes_per_s: f64,
    /// The link to the host's memory, in each direction.
    pub host_bytes_per_s: f64,
}

impl Rates {
    /// What each of so many ranks has that share a machine.
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

    /// Seconds of attention's arithmetic.
    pub fn attention_s(&self, flops: f64, pairs: f64, backward: bool) -> f64 {
        let rate =
            if backward { self.attention_backward_flops_per_s } else { self.attention_forward_flops_per_s };
        flops / rate + pairs * self.attention_pair_s
    }
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
        /// A is stored [k, m].
        a_trans: bool,
        /// B is stored [n, k].
        b_trans: bool,
    },
    /// The same, and products of short sums that are added to columns of C.
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
        /// Columns and summed size of each term; zeros where there is none.
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
        /// Storage of A and C, of a W of bf16 whose rows are interleaved; of others what they need does not depend on it.
        numbers: Option<(DType, DType)>,
    },
    /// The same of operands that are narrowed first.
    Narrow {
        /// Rows of C.
        m: usize,
        /// Columns of C.
        n: usize,
        /// The summed size.
        k: usize,
        /// Type of A and B before.
        input: DType,
        /// Type of C.
        output: DType,
        /// A is stored [k, m].
        a_trans: bool,
        /// B is stored [n, k].
        b_trans: bool,
        /// How A and B are stored when they meet.
        how: [Narrow; 2],
    },
    /// A product of `tokens x slots` rows, each with the weight of its expert, or the gradient of those weights.
    Grouped {
        /// Tokens.
        tokens: usize,
        /// Experts of a token.
        slots: usize,
        /// The summed size; of a weight's gradient, its rows.
        inner: usize,
        /// Columns of the result.
        out: usize,
        /// Type of the operands.
        input: DType,
        /// Type of the result.
        output: DType,
        /// The gradient of the weights.
        weight: bool,
    },
    /// A product of rows, each with the packed weight of its expert.
    PackedGrouped {
        /// Tokens times experts of a token.
        rows: usize,
        /// The summed size.
        inner: usize,
    },
    /// Attention; `backward` needs more.
    Attention {
        /// Query rows.
        q_tokens: usize,
        /// Key rows.
        k_tokens: usize,
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
        /// Columns of one head.
        head_dim: usize,
        /// Storage type of q, k, v.
        dtype: DType,
        /// Most slices of the mask.
        slices: usize,
        /// A library makes results apart, which then join those of other keys ([`crate::Mask::partial`]).
        partial: bool,
        /// The backward pass.
        backward: bool,
    },
}

/// What a machine takes at a time: the more of it works at once, the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portions {
    /// Bytes that a tile of f32 logits should not exceed.
    pub logits_bytes: usize,
    /// Bytes that the gradients of some tiles of logits should not exceed where they are narrower than f32: the more tokens
    /// they cover, the less often the head's main gradient is read and written.
    pub logit_grads_bytes: usize,
    /// The squares of a weight's gradient are added in one call, not in one for each of their sums.
    pub squares_at_once: bool,
}

impl Portions {
    /// Of a processor.
    pub const CPU: Portions =
        Portions { logits_bytes: 32 << 20, logit_grads_bytes: 64 << 20, squares_at_once: false };
}

/// What a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// The host's processor: ranks share its cores and its memory, and calls return when their work is done.
    Processor,
    /// A graphics processor: one for each rank, next to a host; calls return before their work is done.
    Graphics,
}

/// A machine's data sheet.
#[derive(Clone, Debug)]
pub struct Profile {
    /// `cpu`, `h200`, ...
    pub name: String,
    /// What it is.
    pub hardware: Hardware,
    /// Charges are multiples of this many bytes.
    pub granule: u64,
    /// Threads that share a kernel.
    pub threads: usize,
    /// Instruction set or compute capability.
    pub isa: String,
    /// Its memory, if the profile knows.
    pub memory_bytes: Option<u64>,
    /// Memory of its host, for a machine that has one.
    pub host_bytes: Option<u64>,
    /// What its libraries take of its memory outside the pool, for a machine that has such; `None` until measured.
    pub outside_pool_bytes: Option<u64>,
    /// For predicted times; `None` until measured.
    pub rates: Option<Rates>,
    /// What connects such machines, for predicted times of a mesh; `None` if it is not known.
    pub fabric: Option<Fabric>,
    /// What it takes at a time.
    pub portions: Portions,
    /// Scratch bytes an operation needs; the kernels ask the same function.
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

    /// What one of `ranks` ranks has of the machine that share its cores and its memory's bandwidth; lines of copies were measured
    /// between two.
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

    /// What a pool may have of so much free memory, for one of `together` ranks that compute in it: all but what libraries take
    /// behind its back. The only answer to this question, of runs and of plans.
    pub fn pool_bytes(&self, free: u64, together: u64) -> u64 {
        match (self.hardware, self.outside_pool_bytes) {
            (Hardware::Processor, _) => host_share(free) / together,
            (Hardware::Graphics, Some(outside)) => (free / together).saturating_sub(outside),
            // Where it has not been measured.
            (Hardware::Graphics, None) => free / 100 * 95 / together,
        }
    }

    /// Scratch bytes an operation needs.
    pub fn workspace(&self, op: &OpDesc) -> u64 {
        (self.workspace)(self, op)
    }

    /// Whether such a machine multiplies with packed weights of this format. bf16 whose rows are interleaved is for processors that
    /// have no unit for products of it.
    pub fn multiplies(&self, format: BlockFormat) -> bool {
        self.hardware == Hardware::Processor
            && match format {
                BlockFormat::Octets(Kind::Bf16) => matches!(self.isa.as_str(), "portable" | "avx2"),
                BlockFormat::Octets(kind) => interleaves(kind),
                BlockFormat::Ggml(kind) => kind.block() > 1,
                BlockFormat::Grouped(_) | BlockFormat::Nf4 | BlockFormat::Int8 => true,
            }
    }

    /// All of it that a file can hold.
    pub fn sheet(&self) -> Sheet {
        let Profile { threads, granule, memory_bytes, host_bytes, outside_pool_bytes, rates, fabric, .. } =
            *self;
        let (name, isa) = (self.name.clone(), self.isa.clone());
        Sheet { name, isa, threads, granule, memory_bytes, host_bytes, outside_pool_bytes, rates, fabric }
    }
}

/// What a run may use of so much free memory of a host.
pub fn host_share(free: u64) -> u64 {
    free / 10 * 9
}

/// A profile as a file has it: everything but what it is, its portions and the scratch function, which the name stands for.
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
    /// The profile, with what no file holds of the machine that the name stands for.
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
