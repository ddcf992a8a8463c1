//! Maps families' weight names to tensors in Hugging Face folders.

use std::borrow::Cow;
use std::ops::Range;

use fathom_grad::LatentUse;

use crate::spec::{Moe, Residual, Spec};
use crate::weight::{
    CrossNames, Experts, InFiles, LatentNames, Module, MoeNames, Names, Qkv, StoredRows, Up,
};

impl Names {
    /// The norm before a sub-layer.
    pub(crate) fn norm_before(&self, module: Module, residual: Residual) -> &'static str {
        let parallel = self.parallel_norms.filter(|_| residual == Residual::Parallel);
        let [attention, mlp] = parallel.unwrap_or([self.attn_norm, self.mlp_norm]);
        match module {
            Module::Cross => self.cross.unwrap_or(CrossNames::NONE).norms[0],
            Module::Mlp => mlp,
            _ => attention,
        }
    }
}

impl Names {
    /// The tensors of q, k and v, stacked in the weight.
    pub(crate) fn qkv(&self, s: &Spec) -> InFiles {
        let (q, kv) = (s.q_cols(), s.kv_cols());
        match self.qkv {
            Qkv::Separate([q_name, k_name, v_name]) if s.attention_gate => {
                let whole = |name, row| StoredRows { name, all: kv, runs: vec![(0..kv, row)] };
                let q = StoredRows { name: q_name, all: 2 * q, runs: with_gates(s) };
                InFiles::Rows(vec![q, whole(k_name, 2 * s.q_cols()), whole(v_name, 2 * s.q_cols() + kv)])
            }
            Qkv::Separate([q_name, k_name, v_name]) => {
                InFiles::Stack(vec![(q_name.into(), q), (k_name.into(), kv), (v_name.into(), kv)])
            }
            Qkv::Fused(name) => InFiles::one(name, q + 2 * kv),
            Qkv::Grouped(name) => InFiles::rows(name, q + 2 * kv, grouped(s)),
            Qkv::Latent(_) => InFiles::Unnamed,
        }
    }

    /// The tensors of an MLP's input projection; of shared experts, under `inside`.
    pub(crate) fn up(&self, s: &Spec, ffn: usize, inside: Option<&str>) -> InFiles {
        match self.up {
            Up::Pair(names) => InFiles::Stack(names.map(|name| (within(name, inside), ffn)).into()),
            Up::Either(names, _) if s.mlp.gated => {
                InFiles::Stack(names.map(|name| (within(name, inside), ffn)).into())
            }
            Up::Either(_, name) => InFiles::one(within(name, inside), ffn),
            Up::One(name) => InFiles::one(within(name, inside), if s.mlp.gated { 2 * ffn } else { ffn }),
        }
    }

    /// The tensors of its output projection.
    pub(crate) fn down(&self, s: &Spec, inside: Option<&str>) -> InFiles {
        InFiles::Stack(vec![(within(self.down, inside), s.hidden)])
    }
}

/// Name of an MLP's part, with `inside` in place of its first component.
fn within(name: &'static str, inside: Option<&str>) -> Cow<'static, str> {
    let part = || name.split_once('.').map_or(name, |(_, part)| part);
    inside.map_or(name.into(), |inside| format!("{inside}.{}", part()).into())
}

/// Rows of a tensor that has each key head's queries, key and value together; the weight has all queries, all keys,
/// all values.
fn grouped(s: &Spec) -> Vec<(Range<usize>, usize)> {
    let queries = s.q_cols() / s.kv_heads;
    let group = queries + 2 * s.head_dim;
    let of_head = |kv_head: usize| {
        let (start, key) = (kv_head * group, s.q_cols() + kv_head * s.head_dim);
        let cuts = [start, start + queries, start + queries + s.head_dim, start + group];
        let rows = [kv_head * queries, key, s.kv_cols() + key];
        [0, 1, 2].map(|part| (cuts[part]..cuts[part + 1], rows[part]))
    };
    (0..s.kv_heads).flat_map(of_head).collect()
}

/// Rows of a tensor that has each head's query and gate together; the weight has all queries, then all gates.
fn with_gates(s: &Spec) -> Vec<(Range<usize>, usize)> {
    let of_part = |part: usize| {
        let (row, gate) = (part * s.head_dim, part % 2);
        (row..row + s.head_dim, gate * s.q_cols() + part / 2 * s.head_dim)
    };
    (0..2 * s.heads).map(of_part).collect()
}

impl MoeNames {
    /// The tensors of all experts' input projections.
    pub(crate) fn up(&self, s: &Spec, m: &Moe) -> InFiles {
        match self.experts {
            Experts::Each(at, [gate, up, _]) if s.mlp.gated => {
                InFiles::Experts(at, vec![(gate, m.ffn), (up, m.ffn)])
            }
            Experts::Each(at, [_, up, _]) => InFiles::Experts(at, vec![(up, m.ffn)]),
            Experts::Stacked([name, _]) => InFiles::whole(name, vec![m.experts, s.hidden, 2 * m.ffn]),
            Experts::Joined([name, _]) => {
                InFiles::whole(name, vec![m.experts, m.wide(s.mlp.gated), m.width(s.hidden)])
            }
        }
    }

    /// The tensors of their output projections.
    pub(crate) fn down(&self, s: &Spec, m: &Moe) -> InFiles {
        match self.experts {
            Experts::Each(at, [.., down]) => InFiles::Experts(at, vec![(down, m.width(s.hidden))]),
            Experts::Stacked([_, name]) => InFiles::whole(name, vec![m.experts, m.ffn, s.hidden]),
            Experts::Joined([_, name]) => InFiles::whole(name, vec![m.experts, m.width(s.hidden), m.ffn]),
        }
    }

    /// The tensors of the input (0) or output (1) projections' biases.
    pub(crate) fn bias(&self, part: usize, shape: [usize; 2]) -> InFiles {
        match self.experts {
            Experts::Stacked(names) => InFiles::whole(format!("{}_bias", names[part]), shape),
            Experts::Each(..) | Experts::Joined(_) => InFiles::Unnamed,
        }
    }
}

impl LatentNames {
    /// The tensor of the queries, each head's rotated part first in memory.
    pub(crate) fn queries(&self, s: &Spec, how: LatentUse, latent: bool) -> InFiles {
        let runs = |head: usize| {
            let cut = head + how.own;
            [(head..cut, head + how.rotated), (cut..head + s.head_dim, head)]
        };
        let name = if latent { self.q_latent[2] } else { self.q };
        InFiles::rows(name, s.q_cols(), (0..s.q_cols()).step_by(s.head_dim).flat_map(runs).collect())
    }

    /// Some rows of the tensor that projects to the key/value latent and the shared key part.
    pub(crate) fn key_value(&self, all: usize, rows: Range<usize>) -> InFiles {
        InFiles::rows(self.kv_latent[0], all, vec![(rows, 0)])
    }
}
