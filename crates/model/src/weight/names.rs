//! Names of weights in Hugging Face folders.

use super::declaration::Module;

/// Names of a family's weights, without `.weight` and `.bias`. Block names follow `{base}{layers}.{index}.`.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Prefix of all names but the head's; some files lack it.
    pub base: &'static str,
    /// Token embedding.
    pub embed: &'static str,
    /// Norm after the embedding.
    pub embed_norm: &'static str,
    /// Learned positions.
    pub positions: &'static str,
    /// The list of blocks.
    pub layers: &'static str,
    /// Last norm.
    pub final_norm: &'static str,
    /// Output projection, if not tied.
    pub head: &'static str,
    /// Norm before attention.
    pub attn_norm: &'static str,
    /// Norm after attention.
    pub attn_post_norm: &'static str,
    /// A source and attention to it, in families that have them.
    pub cross: Option<CrossNames>,
    /// Names of the source's blocks, if they have others.
    pub source: Option<&'static Names>,
    /// Table of biases by distance, in each block or in a stack's first; the full name.
    pub distances: &'static str,
    /// Norm before the MLP.
    pub mlp_norm: &'static str,
    /// Norm after the MLP.
    pub mlp_post_norm: &'static str,
    /// Norms before attention and before the MLP if both read the block's input, if they have other names then.
    pub parallel_norms: Option<[&'static str; 2]>,
    /// Norm of q.
    pub q_norm: &'static str,
    /// Norm of k.
    pub k_norm: &'static str,
    /// Projections to q, k and v.
    pub qkv: Qkv,
    /// Attention's output projection.
    pub attn_out: &'static str,
    /// Attention's sinks; the full name.
    pub sinks: &'static str,
    /// MLP input projection.
    pub up: Up,
    /// MLP output projection.
    pub down: &'static str,
    /// Experts, in families that have them.
    pub moe: Option<MoeNames>,
    /// Whether projections in blocks are stored [in, out].
    pub transposed: bool,
    /// Suffixes of unused buffers in older files.
    pub ignored: &'static [&'static str],
    /// Prefixes of tensors that folders have for other uses.
    pub ignored_starts: &'static [&'static str],
    /// Names specific to encoders.
    pub encoder: Option<EncoderNames>,
    /// A tensor found only in multi-token prediction blocks after the last, which are not read.
    pub further: Option<&'static str>,
}

/// Names of a source and of attention to it.
#[derive(Clone, Copy, Debug)]
pub struct CrossNames {
    /// The source's token embedding; empty if both streams have one.
    pub embed: &'static str,
    /// The norm after the source's last block, outside the blocks.
    pub source_norm: &'static str,
    /// Norms before and after attention to the source.
    pub norms: [&'static str; 2],
    /// Projections to q, k and v, and the output projection.
    pub projections: [&'static str; 4],
}

/// Names of experts.
#[derive(Clone, Copy, Debug)]
pub struct MoeNames {
    /// The router.
    pub router: &'static str,
    /// The router's choice bias; the full name.
    pub choice_bias: &'static str,
    /// The experts.
    pub experts: Experts,
    /// The shared experts, whose parts are named like an MLP's.
    pub shared: &'static str,
    /// The gate of the shared experts.
    pub shared_gate: &'static str,
    /// Projections to the experts' own width and back.
    pub latent: [&'static str; 2],
}

/// Storage of experts.
#[derive(Clone, Copy, Debug)]
pub enum Experts {
    /// Tensors per expert, `{at}.{index}.{part}.weight`: gate, up, down.
    Each(&'static str, [&'static str; 3]),
    /// One tensor for all, [experts, in, out], with biases `{name}_bias`: interleaved gate and up, then down.
    Stacked([&'static str; 2]),
    /// One tensor for all, [experts, out, in], without biases: gate and up, then down.
    Joined([&'static str; 2]),
}

/// Storage of q, k and v.
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

/// Names of latent attention's parts.
#[derive(Clone, Copy, Debug)]
pub struct LatentNames {
    /// Queries without a latent.
    pub q: &'static str,
    /// Projection to the query latent, its norm, projection from it: each head is `[own | rotated]`.
    pub q_latent: [&'static str; 3],
    /// Stacked projection to the key/value latent and the shared key part, the latent's norm, projection from it.
    pub kv_latent: [&'static str; 3],
}

/// Storage of the MLP's input projection.
#[derive(Clone, Copy, Debug)]
pub enum Up {
    /// Gate and up.
    Pair([&'static str; 2]),
    /// One tensor: up alone, or gate then up.
    One(&'static str),
    /// Gate and up, or up alone under a name of its own if there is no gate.
    Either([&'static str; 2], &'static str),
}

/// Names specific to encoders.
#[derive(Clone, Copy, Debug)]
pub struct EncoderNames {
    /// The table of token types.
    pub types: &'static str,
    /// Projection of embeddings that have other columns than the blocks.
    pub project: &'static str,
    /// The table of distances, and its norm.
    pub distances: [&'static str; 2],
    /// A block's own projections of distances to keys and queries.
    pub positions: [&'static str; 2],
    /// Projection before the head of labels, and the norm after it; the full names.
    pub pool: [&'static str; 2],
    /// Head of labels of tokens; the full name.
    pub tokens: &'static str,
    /// Projection before the masked-language head, the norm after it, and the head's bias; the full names.
    pub masked: [&'static str; 3],
    /// That head where it is not the embedding's table; the full name, empty if it always is.
    pub own_head: &'static str,
}

impl CrossNames {
    /// Names of families without a source.
    pub(crate) const NONE: CrossNames =
        CrossNames { embed: "", source_norm: "", norms: [""; 2], projections: [""; 4] };
}

impl Names {
    /// Llama's names, which most families share.
    pub const LLAMA: Names = Names {
        base: "model.",
        embed: "embed_tokens",
        embed_norm: "",
        positions: "",
        layers: "layers",
        final_norm: "norm",
        head: "lm_head",
        attn_norm: "input_layernorm",
        attn_post_norm: "",
        cross: None,
        source: None,
        distances: "",
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

    /// Prefix of the names of the tensors of a stack's layer, or of those outside the layers.
    fn prefix(&self, layer: Option<usize>, module: Module) -> String {
        match (layer, module) {
            (Some(layer), module) if !matches!(module, Module::Source | Module::Input) => {
                format!("{}{}.{layer}.", self.base, self.layers)
            }
            (_, Module::Head) => String::new(),
            _ => self.base.to_string(),
        }
    }

    /// Names of a layer's tensors and their prefix, or those outside the layers, of a model whose first `source` layers are
    /// the source.
    pub(crate) fn of(&self, source: usize, layer: Option<usize>, module: Module) -> (&Names, String) {
        match (layer, self.source) {
            (Some(layer), Some(names)) if layer < source => (names, names.prefix(Some(layer), module)),
            (Some(layer), Some(_)) => (self, self.prefix(Some(layer - source), module)),
            _ => (self, self.prefix(layer, module)),
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
        latent: [""; 2],
    };
}
