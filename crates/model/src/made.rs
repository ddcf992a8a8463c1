//! Families of given sizes, made from nothing, that differ from Llama in more than a switch.

use fathom_tensor::{Activation, NormKind, Scores};

use crate::rope::{RopeScaling, RopeSpec};

use crate::spec::{Biases, Family, Latent, LayerSpec, Mlp, Moe, QkNorm, Residual, Spec};

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
            family: Family::named("llama"),
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
            layers: vec![LayerSpec::decoder(None, Some(0)); layers],
            ropes: vec![rope],
            rereads: false,
            learned_positions: None,
            embed_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: 0.0,
            tied,
            head_bias: false,
            scores: 0,
            padding: None,
            projections: None,
            max_positions,
            encoder: None,
            adapter: None,
        }
    }

    /// A Llama's sizes as Qwen 2: biases on q, k and v, with which a head attends by position alone from the first
    /// steps on.
    pub fn into_qwen2(self) -> Spec {
        let bias = Biases { qkv: true, ..Biases::default() };
        Spec { family: Family::named("qwen2"), bias, ..self }
    }

    /// A Llama's sizes as Granite with biases: embeddings are multiplied by this, so that the residual stream begins as large as what
    /// sub-layers add to it, whatever the head's weights are.
    pub fn into_granite(self, embed_scale: f32) -> Spec {
        let bias = Biases { qkv: true, attn_out: true, ..Biases::default() };
        Spec { family: Family::named("granite"), bias, embed_scale, ..self }
    }

    /// A Llama's sizes as SmolLM 3: of every `interval` layers the last does not rotate, and so finds what it looks
    /// for at any distance (0: all rotate).
    pub fn into_smollm3(mut self, interval: usize) -> Spec {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if interval > 0 && (index + 1).is_multiple_of(interval) {
                layer.set_rope(None);
            }
        }
        Spec { family: Family::named("smollm3"), ..self }
    }

    /// A Llama's sizes as Qwen 3: q and k normalised per head.
    pub fn into_qwen3(self) -> Spec {
        Spec { family: Family::named("qwen3"), qk_norm: QkNorm::PerHead, ..self }
    }

    /// A Llama's sizes as Mixtral: experts in every layer, whose columns are those of the MLP.
    pub fn into_mixtral(self, moe: Moe) -> Spec {
        Spec { family: Family::named("mixtral"), ffn: moe.ffn, moe: Some(moe), ..self }
    }

    /// A Llama's sizes as Qwen 3 with experts.
    pub fn into_qwen3_moe(self, moe: Moe) -> Spec {
        Spec { family: Family::named("qwen3_moe"), moe: Some(moe), ..self.into_qwen3() }
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
        Spec {
            family: Family::named("deepseek_v3"),
            kv_heads: self.heads,
            ropes,
            latent,
            moe: Some(moe),
            ..self
        }
    }
}

impl Spec {
    /// A Llama's sizes as Nemotron 3 and 4 (arXiv 2402.16819): LayerNorm with biases that multiplies by one plus the weight,
    /// squared ReLU without a gate, half of each head rotates.
    pub fn into_nemotron(mut self) -> Spec {
        for rope in &mut self.ropes {
            rope.rot_dim = self.head_dim / 2;
        }
        let norm = NormKind { centred: true, plus_one: true, round_first: false, eps: 1e-5 };
        let mlp = Mlp { activation: Activation::Relu2, gated: false };
        Spec { family: Family::named("nemotron"), norm, norm_bias: true, mlp, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::made::LlamaSizes;
    use crate::spec::{Family, Spec};

    /// What is made is what a Hugging Face configuration of the family says.
    #[test]
    fn a_made_family_is_the_one_that_is_read() {
        let llama = Spec::llama(LlamaSizes {
            hidden: 32,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            ffn: 64,
            vocab: 96,
            rope_theta: 1e4,
            max_positions: 128,
            tied: false,
        });
        let spec = llama.into_nemotron();
        // Writing reads what was written, and refuses what differs.
        let config = Family::write(Path::new("config.json"), &spec).unwrap();
        assert_eq!(Family::read(Path::new("config.json"), &config).unwrap(), spec);
    }
}
