//! Names of weights in Hugging Face folders.

use super::declaration::Module;

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

/// How the way into the MLP is stored.
#[derive(Clone, Copy, Debug)]
pub enum Up {
    /// Gate and up.
    Pair([&'static str; 2]),
    /// One tensor: up alone, or gate then up.
    One(&'static str),
}

/// What encoders alone have.
#[derive(Clone, Copy, Debug)]
pub struct EncoderNames {
    /// The table of token types.
    pub types: &'static str,
    /// After the embedding.
    pub norm: &'static str,
    /// The table of distances, and its norm.
    pub distances: [&'static str; 2],
    /// A block's own projections of distances to keys and queries.
    pub positions: [&'static str; 2],
    /// Before the head; all of the name.
    pub pool: &'static str,
}

impl Names {
    /// Llama's names, which most families share.
    pub const LLAMA: Names = Names {
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
    pub(crate) const SANDWICH: Names = Names {
        attn_post_norm: "post_attention_layernorm",
        mlp_norm: "pre_feedforward_layernorm",
        mlp_post_norm: "post_feedforward_layernorm",
        ..Names::LLAMA
    };

    /// What stands before the names of a layer's tensors, or of those outside the layers.
    pub(crate) fn prefix(&self, layer: Option<usize>, module: Module) -> String {
        match (layer, module) {
            (Some(layer), _) => format!("{}{}.{layer}.", self.base, self.layers),
            (None, Module::Head) => String::new(),
            (None, _) => self.base.to_string(),
        }
    }
}

impl MoeNames {
    /// Names of Qwen's experts, which most families share.
    pub(crate) const QWEN: MoeNames = MoeNames {
        router: "mlp.gate",
        choice_bias: "mlp.gate.e_score_correction_bias",
        experts: Experts::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
        shared: "mlp.shared_expert",
        shared_gate: "mlp.shared_expert_gate",
    };
}
