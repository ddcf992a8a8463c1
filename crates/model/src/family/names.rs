//! What families call their weights in Hugging Face folders.

use std::borrow::Cow;
use std::ops::Range;

use fathom_grad::LatentUse;

use crate::encoder::EncoderNames;
use crate::moe::Moe;
use crate::spec::{Residual, Spec};
use crate::walk::InFiles;

/// Names of a family's weights, without `.weight` and `.bias`. Block names follow `{base}{layers}.{index}.`.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Prefix of all names but the head's; some files lack it.
    pub base: &'static str,
    /// Token embedding.
    pub embed: &'static str,
    /// Learned positions.
    pub positions: &'static str,
    /// The list of blocks.
    pub layers: &'static str,
    /// Last norm.
    pub final_norm: &'static str,
    /// Output projection, if not tied.
    pub head: &'static str,
    /// Before attention.
    pub attn_norm: &'static str,
    /// After attention.
    pub attn_post_norm: &'static str,
    /// Before the MLP.
    pub mlp_norm: &'static str,
    /// After the MLP.
    pub mlp_post_norm: &'static str,
    /// Before attention and before the MLP where both read the block's input, if they are called otherwise then.
    pub parallel_norms: Option<[&'static str; 2]>,
    /// Of q.
    pub q_norm: &'static str,
    /// Of k.
    pub k_norm: &'static str,
    /// Projections to q, k and v.
    pub qkv: Qkv,
    /// Attention's output.
    pub attn_out: &'static str,
    /// Attention's sinks, whole.
    pub sinks: &'static str,
    /// Into the MLP.
    pub up: Up,
    /// Out of the MLP.
    pub down: &'static str,
    /// Experts, of families that have them.
    pub moe: Option<MoeNames>,
    /// Weights of projections in blocks are stored [in, out].
    pub transposed: bool,
    /// Ends of names of buffers that older files carry and that are unused.
    pub ignored: &'static [&'static str],
    /// Beginnings of names of tensors that folders have for other uses.
    pub ignored_starts: &'static [&'static str],
    /// What encoders alone have.
    pub encoder: Option<EncoderNames>,
    /// A tensor that only blocks behind the last have, which predict further tokens and are not read.
    pub further: Option<&'static str>,
}

impl Names {
    /// Llama's, which most families share.
    pub const LLAMA: Names = LLAMA;

    /// The norms before attention and before the MLP.
    pub(crate) fn norms(&self, residual: Residual) -> [&'static str; 2] {
        let parallel = self.parallel_norms.filter(|_| residual == Residual::Parallel);
        parallel.unwrap_or([self.attn_norm, self.mlp_norm])
    }
}

impl Names {
    /// Where q, k and v are that lie on top of each other in the weight.
    pub(crate) fn qkv(&self, s: &Spec) -> InFiles {
        let (q, kv) = (s.q_cols(), s.kv_cols());
        match self.qkv {
            Qkv::Separate([q_name, k_name, v_name]) => {
                InFiles::Stack(vec![(q_name.into(), q), (k_name.into(), kv), (v_name.into(), kv)])
            }
            Qkv::Fused(name) => InFiles::one(name, q + 2 * kv),
            Qkv::Grouped(name) => InFiles::Rows(name, q + 2 * kv, grouped(s)),
            Qkv::Latent(_) => InFiles::Unnamed,
        }
    }

    /// Where the way into an MLP is: of shared experts, within `inside`.
    pub(crate) fn up(&self, s: &Spec, ffn: usize, inside: Option<&str>) -> InFiles {
        match self.up {
            Up::Pair(names) => InFiles::Stack(names.map(|name| (within(name, inside), ffn)).into()),
            Up::One(_) if inside.is_some() => InFiles::Unnamed,
            Up::One(name) => InFiles::one(name, if s.mlp.gated { 2 * ffn } else { ffn }),
        }
    }

    /// Where the way out of it is.
    pub(crate) fn down(&self, s: &Spec, inside: Option<&str>) -> InFiles {
        InFiles::Stack(vec![(within(self.down, inside), s.hidden)])
    }
}

/// A name of an MLP's part, with the part before the point exchanged.
fn within(name: &'static str, inside: Option<&str>) -> Cow<'static, str> {
    let part = || name.split_once('.').map_or(name, |(_, part)| part);
    inside.map_or(name.into(), |inside| format!("{inside}.{}", part()).into())
}

/// Each key head's queries, its key and its value together; the weight has all queries, all keys, all values.
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

/// What experts are called.
#[derive(Clone, Copy, Debug)]
pub struct MoeNames {
    /// The router.
    pub router: &'static str,
    /// The router's bias of the choice, whole.
    pub choice_bias: &'static str,
    /// The experts.
    pub experts: Experts,
    /// The shared experts: its parts are called as an MLP's are.
    pub shared: &'static str,
    /// The gate of the shared experts.
    pub shared_gate: &'static str,
}

/// How experts are stored.
#[derive(Clone, Copy, Debug)]
pub enum Experts {
    /// Each expert has tensors of its own, `{at}.{index}.{part}.weight`: gate, up, down.
    Each(&'static str, [&'static str; 3]),
    /// One tensor for all, [experts, in, out], with biases `{name}_bias`: gate and up in turns, down.
    Stacked([&'static str; 2]),
}

impl MoeNames {
    /// Where the way into all experts is.
    pub(crate) fn up(&self, s: &Spec, m: &Moe) -> InFiles {
        match self.experts {
            Experts::Each(at, [gate, up, _]) => InFiles::Experts(at, vec![(gate, m.ffn), (up, m.ffn)]),
            Experts::Stacked([name, _]) => InFiles::Whole(name.into(), vec![m.experts, s.hidden, 2 * m.ffn]),
        }
    }

    /// Where the way out of them is.
    pub(crate) fn down(&self, s: &Spec, m: &Moe) -> InFiles {
        match self.experts {
            Experts::Each(at, [.., down]) => InFiles::Experts(at, vec![(down, s.hidden)]),
            Experts::Stacked([_, name]) => InFiles::Whole(name.into(), vec![m.experts, m.ffn, s.hidden]),
        }
    }

    /// Where the biases of the ways in or out are, of `part` 0 or 1.
    pub(crate) fn bias(&self, part: usize, shape: [usize; 2]) -> InFiles {
        match self.experts {
            Experts::Stacked(names) => InFiles::Whole(format!("{}_bias", names[part]).into(), shape.into()),
            Experts::Each(..) => InFiles::Unnamed,
        }
    }
}

/// How q, k and v are stored.
#[derive(Clone, Copy, Debug)]
pub enum Qkv {
    /// Three tensors.
    Separate([&'static str; 3]),
    /// One, q then k then v.
    Fused(&'static str),
    /// One; each key head has its queries, key and value together: [key heads, queries + 2, head size].
    Grouped(&'static str),
    /// Through latents.
    Latent(LatentNames),
}

/// What the parts of latent attention are called.
#[derive(Clone, Copy, Debug)]
pub struct LatentNames {
    /// Queries without a latent.
    pub q: &'static str,
    /// To the latent of queries, its norm, and from it: each head `[own | rotated]`.
    pub q_latent: [&'static str; 3],
    /// To the latent of keys and values and to what heads share, below each other; its norm; from it.
    pub kv_latent: [&'static str; 3],
}

impl LatentNames {
    /// Where queries are, of `inner` columns: each head's rotated part comes first in memory.
    pub(crate) fn queries(&self, s: &Spec, how: LatentUse, latent: bool) -> InFiles {
        let runs = |head: usize| {
            let cut = head + how.own;
            [(head..cut, head + how.rotated), (cut..head + s.head_dim, head)]
        };
        let name = if latent { self.q_latent[2] } else { self.q };
        InFiles::Rows(name, s.q_cols(), (0..s.q_cols()).step_by(s.head_dim).flat_map(runs).collect())
    }

    /// Where some rows of the way to the latent of keys and values and to what heads share are.
    pub(crate) fn key_value(&self, all: usize, rows: Range<usize>) -> InFiles {
        InFiles::Rows(self.kv_latent[0], all, vec![(rows, 0)])
    }
}

/// How the way into the MLP is stored.
#[derive(Clone, Copy, Debug)]
pub enum Up {
    /// Gate and up.
    Pair([&'static str; 2]),
    /// One tensor: up alone, or gate then up.
    One(&'static str),
}

/// Llama's names, which most families share.
pub(super) const LLAMA: Names = Names {
    base: "model.",
    embed: "embed_tokens",
    positions: "",
    layers: "layers",
    final_norm: "norm",
    head: "lm_head",
    attn_norm: "input_layernorm",
    attn_post_norm: "",
    mlp_norm: "post_attention_layernorm",
    mlp_post_norm: "",
    parallel_norms: None,
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    qkv: Qkv::Separate(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    attn_out: "self_attn.o_proj",
    sinks: "self_attn.sinks",
    up: Up::Pair(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    moe: None,
    transposed: false,
    ignored: &["rotary_emb.inv_freq"],
    ignored_starts: &[],
    encoder: None,
    further: None,
};

/// Names of the families that normalise before and after each sub-layer.
pub(super) const SANDWICH: Names = Names {
    attn_post_norm: "post_attention_layernorm",
    mlp_norm: "pre_feedforward_layernorm",
    mlp_post_norm: "post_feedforward_layernorm",
    ..LLAMA
};

/// Names of Qwen's experts, which most families share.
pub(super) const QWEN_MOE: MoeNames = MoeNames {
    router: "mlp.gate",
    choice_bias: "mlp.gate.e_score_correction_bias",
    experts: Experts::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
    shared: "mlp.shared_expert",
    shared_gate: "mlp.shared_expert_gate",
};
