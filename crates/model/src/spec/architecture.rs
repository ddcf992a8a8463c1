//! An architecture as data: the switches over the one block that serve every family, and what a family adds of its own.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use fathom_grad::{Ctx, Val};
use fathom_tensor::NormKind;
use serde_json::{Map, Value};

use super::adapter::Adapter;
use super::encoder::{EncoderParts, Relative};
use super::latent::Latent;
use super::moe::Moe;
use super::parts::{Biases, Mlp, QkNorm, Reach, Residual, StateProjections};
use crate::config::Config;
use crate::error::Result;
use crate::rope::{RopeScaling, RopeSpec};
use crate::weight::{Names, Walk};

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

/// One family of models.
pub struct Family {
    /// Hugging Face `model_type`.
    pub model_type: &'static str,
    /// Transformers' class with a language-model head.
    pub architecture: &'static str,
    /// Reads its configuration.
    pub read: fn(&Config<'_>, &'static Family) -> Result<Spec>,
    /// Writes it.
    pub write: fn(&Spec, &mut Map<String, Value>),
    /// What its weights are called.
    pub names: Names,
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.model_type == other.model_type
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.model_type)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}

/// A sub-layer as a specification names it.
pub trait SubLayer: fmt::Debug + Sync {
    /// What it is called: two of the same name are the same.
    fn name(&self) -> &'static str;
    /// Its weights, each declared once.
    fn declare(&self, w: &mut Walk<'_>, s: &Spec) -> Custom;
}

/// A sub-layer with its weights.
pub type Custom = Rc<dyn SubLayerParams>;

/// What a sub-layer computes with its weights.
pub trait SubLayerParams: fmt::Debug {
    /// `h_td`, normalised, to what is added to the residual stream. It is called within a rows region: what needs all rows at
    /// once is put into [`Ctx::whole`].
    fn forward(&self, cx: &mut Ctx<'_>, s: &Spec, h_td: Val) -> Val;
}

impl PartialEq for dyn SubLayer {
    fn eq(&self, other: &dyn SubLayer) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn SubLayer {}

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
