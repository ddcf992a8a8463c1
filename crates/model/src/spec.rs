//! An architecture as data: the switches over the one block that serve every family.

use std::sync::Arc;

use fathom_tensor::{Activation, NormKind, Scores};

use crate::adapter::Adapter;
use crate::encoder::{EncoderParts, Relative};
use crate::family::Family;
use crate::latent::Latent;
use crate::moe::Moe;
use crate::rope::{RopeScaling, RopeSpec};
use crate::sublayer::SubLayer;

/// A model of blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What its configuration and its weights are called in files.
    pub family: &'static Family,
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
    /// Keys are made again beyond the length where the first setting switches to its long factors, as Phi-3's published code
    /// does; the other families keep the keys that they have.
    pub rereads: bool,
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
    /// Numbers that a second head gives for each token (a value, rewards); 0 without one.
    pub scores: usize,
    /// The token that batches are filled up with, as its configuration says: of a text's scores those of its last token but this
    /// one count ([`scored_at`]).
    pub padding: Option<u32>,
    /// What a distillation trains besides, of which exported models have nothing.
    pub projections: Option<StateProjections>,
    /// Longest sequence the configuration names.
    pub max_positions: usize,
    /// What it has besides blocks if it is an encoder with a head.
    pub encoder: Option<EncoderParts>,
    /// What is added to its projections.
    pub adapter: Option<Arc<Adapter>>,
}

/// Projections of a student's hidden states to the width of its teacher's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateProjections {
    /// How many.
    pub count: usize,
    /// The teacher's width.
    pub columns: usize,
}

/// What one layer has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// How its tokens give each other something.
    pub mixer: Mixer,
    /// What each token goes through after that, if anything.
    pub ffn: Option<Ffn>,
}

/// How the tokens of a layer give each other something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention.
    Attention {
        /// Whom a token attends to.
        reach: Reach,
        /// Index into [`Spec::ropes`]; `None` for no rotation.
        rope: Option<usize>,
    },
    /// A family's own.
    Custom(&'static dyn SubLayer),
    /// They do not.
    None,
}

/// Whom a token attends to, of its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Itself and those before it.
    Causal,
    /// The same, at most this many.
    Window(usize),
    /// All.
    Full,
}

/// What each token goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// The model's MLP, or its experts in layers that have them ([`Spec::experts_of`]).
    Mlp,
    /// A family's own.
    Custom(&'static dyn SubLayer),
}

impl LayerSpec {
    /// Causal attention within a window in tokens, if there is one, rotated by a setting of [`Spec::ropes`], if there is one, and
    /// a feed-forward network.
    pub fn decoder(window: Option<usize>, rope: Option<usize>) -> LayerSpec {
        let reach = window.map_or(Reach::Causal, Reach::Window);
        LayerSpec { mixer: Mixer::Attention { reach, rope }, ffn: Some(Ffn::Mlp) }
    }

    /// Whom its attention reaches.
    pub fn reach(&self) -> Option<Reach> {
        match self.mixer {
            Mixer::Attention { reach, .. } => Some(reach),
            Mixer::Custom(_) | Mixer::None => None,
        }
    }

    /// The sliding window of its attention in tokens.
    pub fn window(&self) -> Option<usize> {
        self.reach().and_then(Reach::window)
    }

    /// The rotary setting of its attention.
    pub fn rope(&self) -> Option<usize> {
        match self.mixer {
            Mixer::Attention { rope, .. } => rope,
            Mixer::Custom(_) | Mixer::None => None,
        }
    }

    /// Gives its attention another window, or none.
    pub fn set_window(&mut self, window: Option<usize>) {
        if let Mixer::Attention { reach, .. } = &mut self.mixer {
            *reach = window.map_or(Reach::Causal, Reach::Window);
        }
    }

    /// Gives its attention another rotary setting, or none.
    pub fn set_rope(&mut self, setting: Option<usize>) {
        if let Mixer::Attention { rope, .. } = &mut self.mixer {
            *rope = setting;
        }
    }
}

impl Reach {
    /// The window in tokens.
    pub fn window(self) -> Option<usize> {
        match self {
            Reach::Window(tokens) => Some(tokens),
            Reach::Causal | Reach::Full => None,
        }
    }
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
    /// After each addition (BERT).
    Sum,
    /// Before each; both read the block's input (GPT-NeoX).
    Parallel,
    /// Once, for both, which read the block's input (Phi-2, Cohere 2).
    SharedNorm,
}

impl Residual {
    /// Norms before and after the mixer.
    pub fn attention(self) -> [bool; 2] {
        [!matches!(self, Residual::Post | Residual::Sum), self.after()]
    }

    /// Norms before and after the feed-forward network.
    pub fn mlp(self) -> [bool; 2] {
        [!matches!(self, Residual::Post | Residual::Sum | Residual::SharedNorm), self.after()]
    }

    fn after(self) -> bool {
        matches!(self, Residual::Post | Residual::Sandwich | Residual::Sum)
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

/// What layers have alike: mixer, feed-forward network, experts.
type Like = (Mixer, Option<Ffn>, bool);

/// The token of a text whose scores are the text's: the last that is no padding, as Transformers finds it
/// (`GenericForSequenceClassification`). Where the token that ends a text is padding too, that is the one before the end.
pub fn scored_at<I: DoubleEndedIterator<Item = i64> + ExactSizeIterator>(
    padding: Option<u32>,
    ids: I,
) -> usize {
    match padding.map(i64::from) {
        Some(padding) => ids.enumerate().rfind(|(_, id)| *id != padding).map_or(0, |(at, _)| at),
        None => ids.len().saturating_sub(1),
    }
}

impl Spec {
    /// The same with so many scores for each token, and without the vocabulary's head: what is left of that is the embedding, unused.
    pub fn scoring(self, scores: usize) -> Spec {
        Spec { scores, tied: true, head_bias: false, ..self }
    }

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

    /// The length beyond which keys made before must be made again ([`Spec::rereads`]).
    pub fn rereads_beyond(&self) -> Option<usize> {
        let rope = self.ropes.first().filter(|_| self.rereads)?;
        match rope.scaling {
            RopeScaling::Longrope { .. } => rope.scaling.original_positions(),
            _ => None,
        }
    }

    /// Positions in the scores of attention.
    pub(crate) fn relative(&self) -> Option<Relative> {
        self.encoder.as_ref().and_then(|parts| parts.relative)
    }

    /// Some layer has an ordinary MLP.
    pub fn has_dense_ffn(&self) -> bool {
        self.moe.as_ref().is_none_or(|moe| !moe.dense_layers.is_empty())
    }

    /// The first layer with the same attention and the same kind of MLP as a layer.
    pub fn first_like(&self, layer: usize) -> usize {
        let like = |other: &usize| {
            self.layers[*other] == self.layers[layer]
                && self.experts_of(*other).is_some() == self.experts_of(layer).is_some()
        };
        (0..layer).find(like).unwrap_or(layer)
    }

    /// The experts of a layer, unless it has an ordinary MLP.
    pub fn experts_of(&self, layer: usize) -> Option<&Moe> {
        self.moe.as_ref().filter(|moe| !moe.dense_layers.contains(&layer))
    }

    /// The products of a layer that a token goes through besides attention's pairs, in pairs: a weight is one product, a pair two
    /// for each column of the queries.
    pub fn token_pairs(&self) -> u64 {
        let layers = self.layers.len().max(1);
        (self.token_weights() / layers / (2 * self.q_cols()).max(1)) as u64
    }

    /// The weights of all layers that a token is multiplied with.
    fn token_weights(&self) -> usize {
        let chosen = self.moe.as_ref().map_or(0, |moe| moe.routing.top_k);
        // Layers of one kind have the same.
        let mut known: Vec<(Like, usize)> = Vec::new();
        let mut all = 0;
        for (index, layer) in self.layers.iter().enumerate() {
            let kind = (layer.mixer, layer.ffn, self.experts_of(index).is_some());
            let found = known.iter().find(|(other, _)| *other == kind).map(|(_, weights)| *weights);
            all += found.unwrap_or_else(|| {
                let mut weights = 0;
                self.visit_layer(index, &mut |weight| weights += weight.products(chosen));
                known.push((kind, weights));
                weights
            });
        }
        all
    }

    /// The distinct reaches of attention, in order of first use; a layer's mask is its reach's index here.
    pub fn reaches(&self) -> Vec<Reach> {
        let mut reaches = Vec::new();
        for reach in self.layers.iter().filter_map(LayerSpec::reach) {
            if !reaches.contains(&reach) {
                reaches.push(reach);
            }
        }
        reaches
    }

    /// The windows of [`Spec::reaches`].
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.reaches().into_iter().map(Reach::window).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_scored_where_transformers_reads_it() {
        for (padding, ids, at) in [
            (None, &[5, 6, 2][..], 2),
            (Some(0), &[5, 6, 2], 2),
            (Some(2), &[5, 6, 2], 1),
            (Some(2), &[5, 2, 6, 2, 2], 2),
            (Some(2), &[2, 2], 0),
            (None, &[], 0),
        ] {
            assert_eq!(scored_at(padding, ids.iter().map(|id| i64::from(*id))), at, "{padding:?} {ids:?}");
        }
    }
}
