//! Families of given sizes, built without files, that differ from Llama by more than a switch.

use fathom_tensor::{Activation, NormKind, RouterScores};

use std::sync::Arc;

use crate::mamba2::{Mamba2, StateSizes};
use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::{Biases, Family, Latent, LayerSpec, Mlp, Moe, PartKind, QkNorm, Spec};

/// Sizes of a new Llama-style model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaSizes {
    /// Hidden size.
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
    /// Whether the head is the embedding.
    pub tied: bool,
}

impl LlamaSizes {
    /// A model that trains in milliseconds, for checks and tests.
    pub const TINY: LlamaSizes = LlamaSizes {
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: 131,
        rope_theta: 1e4,
        max_positions: 256,
        tied: true,
    };
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
            qk_norm: QkNorm::None,
            latent: None,
            attention_gate: false,
            sinks: false,
            bias: Biases::default(),
            mlp: Mlp { activation: Activation::Silu, gated: true },
            moe: None,
            attention_scale: (head_dim as f64).powf(-0.5) as f32,
            attention_softcap: 0.0,
            layers: vec![LayerSpec::decoder(None, Some(0)); layers],
            source: 0,
            retrieval: None,
            position_bias: None,
            slopes: false,
            ropes: vec![rope],
            rereads: false,
            learned_positions: None,
            embed_norm: false,
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

    /// Turns it into a Qwen 2: biases on q, k and v, with which a head can attend by position from the first steps
    /// on.
    pub fn into_qwen2(self) -> Spec {
        let bias = Biases { qkv: true, ..Biases::default() };
        Spec { family: Family::named("qwen2"), bias, ..self }
    }

    /// Turns it into a Granite with biases: embeddings are multiplied by `embed_scale`, so that the residual stream
    /// starts as large as the sub-layers' contributions, independently of the head's weights.
    pub fn into_granite(self, embed_scale: f32) -> Spec {
        let bias = Biases { qkv: true, attn_out: true, ..Biases::default() };
        Spec { family: Family::named("granite"), bias, embed_scale, ..self }
    }

    /// Turns it into a SmolLM 3: the last of every `interval` layers does not rotate, so it matches at any distance
    /// (0: all rotate).
    pub fn into_smollm3(mut self, interval: usize) -> Spec {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if interval > 0 && (index + 1).is_multiple_of(interval) {
                layer.set_rope(None);
            }
        }
        Spec { family: Family::named("smollm3"), ..self }
    }

    /// Turns it into a Qwen 3: q and k are normalised per head.
    pub fn into_qwen3(self) -> Spec {
        Spec { family: Family::named("qwen3"), qk_norm: QkNorm::PerHead, ..self }
    }

    /// Turns it into a Mixtral: experts in every layer, each with the MLP's columns.
    pub fn into_mixtral(self, moe: Moe) -> Spec {
        Spec { family: Family::named("mixtral"), ffn: moe.ffn, moe: Some(moe), ..self }
    }

    /// Turns it into a Qwen 3 with experts.
    pub fn into_qwen3_moe(self, moe: Moe) -> Spec {
        Spec { family: Family::named("qwen3_moe"), moe: Some(moe), ..self.into_qwen3() }
    }

    /// Turns it into a DeepSeek-V3: `rotated` columns of each head are rotated and shared by all keys, the others
    /// come from a latent of `key_value` columns; routing by sigmoids, with a bias for the choice.
    pub fn into_deepseek_v3(self, mut moe: Moe, rotated: usize, key_value: usize) -> Spec {
        moe.routing.scores = RouterScores::Sigmoid;
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
    /// Turns it into a Nemotron 3 or 4 (arXiv 2402.16819): LayerNorm with biases that multiplies by one plus the
    /// weight, squared ReLU without a gate, rotation of half of each head.
    pub fn into_nemotron(mut self) -> Spec {
        for rope in &mut self.ropes {
            rope.rot_dim = self.head_dim / 2;
        }
        let norm = NormKind { centred: true, plus_one: true, round_first: false, eps: 1e-5 };
        let mlp = Mlp { activation: Activation::Relu2, gated: false };
        Spec { family: Family::named("nemotron"), norm, norm_bias: true, mlp, ..self }
    }
}

impl Spec {
    /// Turns it into a Mamba-2: mixers alone.
    pub fn into_mamba2(self, sizes: StateSizes) -> Spec {
        let mixer = Mamba2::new("mixer", sizes, self.norm.eps);
        let layer = LayerSpec::new([PartKind::Own(Arc::new(mixer))]);
        let (heads, kv_heads, head_dim) = (1, 1, 8usize);
        Spec {
            family: Family::named("mamba2"),
            heads,
            kv_heads,
            head_dim,
            attention_scale: (head_dim as f64).powf(-0.5) as f32,
            ffn: self.hidden,
            layers: vec![layer; self.layers.len()],
            ropes: Vec::new(),
            ..self
        }
    }

    /// Turns it into a Granite 4 without experts: attention where `attends` says so, mixers elsewhere, and an MLP in every
    /// layer. Attention rotates and has biases, or neither.
    pub fn into_granite_hybrid(
        mut self,
        sizes: StateSizes,
        attends: impl Fn(usize) -> bool,
        (embed_scale, rotates): (f32, bool),
    ) -> Spec {
        let mixer = Arc::new(Mamba2::new("mamba", sizes, self.norm.eps));
        for (index, layer) in self.layers.iter_mut().enumerate() {
            match (attends(index), rotates) {
                (false, _) => *layer = LayerSpec::new([PartKind::Own(mixer.clone()), PartKind::Mlp]),
                (true, false) => layer.set_rope(None),
                (true, true) => {}
            }
        }
        if !rotates {
            self.ropes.clear();
        }
        let bias = Biases { qkv: rotates, attn_out: rotates, ..Biases::default() };
        Spec { family: Family::named("granitemoehybrid"), bias, embed_scale, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::made::LlamaSizes;
    use crate::mamba2::StateSizes;
    use crate::spec::{Family, Spec};

    /// A built family equals the one read from its configuration.
    #[test]
    fn a_made_family_is_the_one_that_is_read() {
        let llama = Spec::llama(LlamaSizes {
            hidden: 32,
            head_dim: 8,
            ffn: 64,
            vocab: 96,
            max_positions: 128,
            tied: false,
            ..LlamaSizes::TINY
        });
        let states = StateSizes { heads: 4, head_dim: 16, state: 8, groups: 2 };
        let hybrid = |rotates| llama.clone().into_granite_hybrid(states, |layer| layer == 0, (3.0, rotates));
        let [rotating, plain] = [true, false].map(hybrid);
        for spec in [llama.clone().into_nemotron(), llama.clone().into_mamba2(states), rotating, plain] {
            // Writing reads its result back, and refuses differences.
            let config = Family::write(Path::new("config.json"), &spec).unwrap();
            assert_eq!(Family::read(Path::new("config.json"), &config).unwrap(), spec);
        }
    }
}
