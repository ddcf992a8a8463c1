//! An architecture as data: the switches over the one block that serve every family.

use fathom_tensor::{Activation, NormKind, Scores};

use crate::latent::Latent;
use crate::moe::Moe;
use crate::rope::{RopeScaling, RopeSpec};

/// A decoder-only model.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Hugging Face `model_type`.
    pub family: &'static str,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Columns inside the MLP.
    pub ffn: usize,
    /// Normalisation of the residual stream.
    pub norm: NormKind,
    /// Norms have biases.
    pub norm_bias: bool,
    /// Where a block normalises.
    pub residual: Residual,
    /// Normalisation of q and k before rotation.
    pub qk_norm: QkNorm,
    /// Queries, keys and values go through latents.
    pub latent: Option<Latent>,
    /// Heads have sinks: logits that join each row's denominator.
    pub sinks: bool,
    /// Biases of projections.
    pub bias: Biases,
    /// Inside the MLP.
    pub mlp: Mlp,
    /// Experts in the place of MLPs.
    pub moe: Option<Moe>,
    /// Multiplies q k.
    pub attention_scale: f32,
    /// `cap tanh(s / cap)` on scores; 0 for none.
    pub attention_softcap: f32,
    /// What differs from layer to layer.
    pub layers: Vec<LayerSpec>,
    /// The rotary settings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// Rows of a learned position table, if the family has one.
    pub learned_positions: Option<usize>,
    /// Multiplies embeddings.
    pub embed_scale: f32,
    /// Multiplies what a sub-layer adds to the residual stream.
    pub residual_scale: f32,
    /// Multiplies logits.
    pub logit_scale: f32,
    /// `cap tanh(x / cap)` on logits; 0 for none.
    pub logit_softcap: f32,
    /// The head is the embedding.
    pub tied: bool,
    /// The head has a bias.
    pub head_bias: bool,
    /// Longest sequence the configuration names.
    pub max_positions: usize,
}

/// What one layer has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Sliding window in tokens.
    pub window: Option<usize>,
    /// Index into [`Spec::ropes`]; `None` for no rotation.
    pub rope: Option<usize>,
}

/// Where a block normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// Before attention and before the MLP (Llama).
    Pre,
    /// After each, before the addition (OLMo 2).
    Post,
    /// Before and after each (Gemma 2 and 3).
    Sandwich,
    /// Before each; both read the block's input (GPT-NeoX).
    Parallel,
    /// Once, for both, which read the block's input (Phi-2, Cohere 2).
    SharedNorm,
}

impl Residual {
    /// A norm before attention.
    pub fn before_attention(self) -> bool {
        self != Residual::Post
    }

    /// A norm before the MLP.
    pub fn before_mlp(self) -> bool {
        !matches!(self, Residual::Post | Residual::SharedNorm)
    }

    /// Norms after the sub-layers.
    pub fn after(self) -> bool {
        matches!(self, Residual::Post | Residual::Sandwich)
    }
}

/// Normalisation of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head alone, one weight for all heads (Qwen 3, Gemma 3).
    PerHead,
    /// All heads together (OLMo 2).
    Full,
}

/// Which projections have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// q, k and v.
    pub qkv: bool,
    /// Attention's output.
    pub attn_out: bool,
    /// MLP up and down.
    pub mlp: bool,
}

/// Inside the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mlp {
    /// The function.
    pub activation: Activation,
    /// `act(gate) up` instead of `act(up)`.
    pub gated: bool,
}

impl Spec {
    /// Columns of all query heads.
    pub fn q_cols(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Columns of what attention hands on: all values.
    pub fn attention_cols(&self) -> usize {
        self.heads * self.latent.map_or(self.head_dim, |latent| latent.value)
    }

    /// Columns of all key heads.
    pub fn kv_cols(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The length beyond which keys made before must be made again: Phi-3's switch from short to long factors, as its
    /// published code does. The other families keep the keys that they have.
    pub fn rereads_beyond(&self) -> Option<usize> {
        let rope = self.ropes.first().filter(|_| self.family == "phi3")?;
        match rope.scaling {
            RopeScaling::Longrope { .. } => rope.scaling.original_positions(),
            _ => None,
        }
    }

    /// Some layer has an ordinary MLP.
    pub fn has_dense_ffn(&self) -> bool {
        self.moe.as_ref().is_none_or(|moe| !moe.dense_layers.is_empty())
    }

    /// The experts of a layer, unless it has an ordinary MLP.
    pub fn experts_of(&self, layer: usize) -> Option<&Moe> {
        self.moe.as_ref().filter(|moe| !moe.dense_layers.contains(&layer))
    }

    /// The products of a layer that a token goes through besides attention's pairs, in pairs: a weight is one product, a pair two
    /// for each column of the queries.
    pub fn token_pairs(&self) -> u64 {
        let attention = self.q_cols() + 2 * self.kv_cols() + self.attention_cols();
        let matrices = if self.mlp.gated { 3 } else { 2 };
        let ffn = self.moe.as_ref().map_or(self.ffn, |moe| {
            moe.ffn * moe.routing.top_k + moe.shared.as_ref().map_or(0, |shared| shared.ffn)
        });
        let weights = self.hidden * (attention + matrices * ffn);
        (weights / (2 * self.q_cols()).max(1)) as u64
    }

    /// The distinct windows, in order of first use; a layer's mask is its window's index here.
    pub fn windows(&self) -> Vec<Option<usize>> {
        let mut windows = Vec::new();
        for layer in &self.layers {
            if !windows.contains(&layer.window) {
                windows.push(layer.window);
            }
        }
        windows
    }
}

/// The sizes of a Llama-style model made from nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaSizes {
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of one head.
    pub head_dim: usize,
    /// Columns inside the MLP.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Longest sequence.
    pub max_positions: usize,
    /// The head is the embedding.
    pub tied: bool,
}

impl Spec {
    /// A Llama: RMSNorm before each sub-layer, SwiGLU, rotary positions in every layer.
    pub fn llama(sizes: LlamaSizes) -> Spec {
        let LlamaSizes {
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn,
            vocab,
            rope_theta,
            max_positions,
            tied,
        } = sizes;
        let rope = RopeSpec {
            theta: rope_theta,
            rot_dim: head_dim,
            interleaved: false,
            scaling: RopeScaling::Default,
            max_positions,
        };
        Spec {
            family: "llama",
            hidden,
            vocab,
            heads,
            kv_heads,
            head_dim,
            ffn,
            norm: NormKind { centred: false, plus_one: false, round_first: true, eps: 1e-5 },
            norm_bias: false,
            residual: Residual::Pre,
            qk_norm: QkNorm::None,
            latent: None,
            sinks: false,
            bias: Biases::default(),
            mlp: Mlp { activation: Activation::Silu, gated: true },
            moe: None,
            attention_scale: (head_dim as f64).powf(-0.5) as f32,
            attention_softcap: 0.0,
            layers: vec![LayerSpec { window: None, rope: Some(0) }; layers],
            ropes: vec![rope],
            learned_positions: None,
            embed_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: 0.0,
            tied,
            head_bias: false,
            max_positions,
        }
    }

    /// A Llama's sizes as Qwen 2: biases on q, k and v, with which a head attends by position alone from the first
    /// steps on.
    pub fn into_qwen2(self) -> Spec {
        let bias = Biases { qkv: true, ..Biases::default() };
        Spec { family: "qwen2", bias, ..self }
    }

    /// A Llama's sizes as SmolLM 3: of every `interval` layers the last does not rotate, and so finds what it looks
    /// for however far away it is (0: all rotate).
    pub fn into_smollm3(mut self, interval: usize) -> Spec {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if interval > 0 && (index + 1).is_multiple_of(interval) {
                layer.rope = None;
            }
        }
        Spec { family: "smollm3", ..self }
    }

    /// A Llama's sizes as Qwen 3: q and k normalised per head.
    pub fn into_qwen3(self) -> Spec {
        Spec { family: "qwen3", qk_norm: QkNorm::PerHead, ..self }
    }

    /// A Llama's sizes as Mixtral: experts in every layer, whose columns are those of the MLP.
    pub fn into_mixtral(self, moe: Moe) -> Spec {
        Spec { family: "mixtral", ffn: moe.ffn, moe: Some(moe), ..self }
    }

    /// A Llama's sizes as Qwen 3 with experts.
    pub fn into_qwen3_moe(self, moe: Moe) -> Spec {
        Spec { family: "qwen3_moe", moe: Some(moe), ..self.into_qwen3() }
    }

    /// A Llama's sizes as DeepSeek-V3: of each head's columns `rotated` are rotated and the same for all keys, the others come
    /// from a latent of `key_value` columns; sigmoids weigh experts, and biases join their choice.
    pub fn into_deepseek_v3(self, mut moe: Moe, rotated: usize, key_value: usize) -> Spec {
        moe.routing.scores = Scores::Sigmoid;
        moe.choice_bias = true;
        let value = self.head_dim - rotated;
        let ropes = self.ropes.iter().cloned();
        let ropes = ropes.map(|rope| RopeSpec { rot_dim: rotated, interleaved: true, ..rope }).collect();
        let latent = Some(Latent { query: None, key_value, value });
        Spec { family: "deepseek_v3", kv_heads: self.heads, ropes, latent, moe: Some(moe), ..self }
    }
}
