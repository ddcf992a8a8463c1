//! An architecture as data: switches over the one block that serves every family, and a family's own additions.

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
    /// Family, which determines keys and names in files.
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
    /// Whether norms have biases.
    pub norm_bias: bool,
    /// Placement of norms in a block.
    pub residual: Residual,
    /// Normalisation of q and k before rotation.
    pub qk_norm: QkNorm,
    /// Latents of queries, keys and values, if any.
    pub latent: Option<Latent>,
    /// Whether heads have sinks: logits that join each row's denominator.
    pub sinks: bool,
    /// Biases of projections.
    pub bias: Biases,
    /// Settings of the MLP.
    pub mlp: Mlp,
    /// Experts instead of MLPs.
    pub moe: Option<Moe>,
    /// Factor of q k.
    pub attention_scale: f32,
    /// `cap tanh(s / cap)` on scores; 0 for none.
    pub attention_softcap: f32,
    /// Settings per layer.
    pub layers: Vec<LayerSpec>,
    /// Rotary settings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// Whether keys are recomputed beyond the length at which the first setting switches to its long factors, as in
    /// Phi-3's published code; other families keep cached keys.
    pub rereads: bool,
    /// Rows of a learned position table, if the family has one.
    pub learned_positions: Option<usize>,
    /// Factor of embeddings.
    pub embed_scale: f32,
    /// Factor of sub-layers' residual contributions.
    pub residual_scale: f32,
    /// Factor of logits.
    pub logit_scale: f32,
    /// `cap tanh(x / cap)` on logits; 0 for none.
    pub logit_softcap: f32,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether the head has a bias.
    pub head_bias: bool,
    /// Outputs of a second head per token (a value, rewards); 0 without one.
    pub scores: usize,
    /// Padding token of the configuration: a text's scores are those of its last token other than this one
    /// ([`scored_at`]).
    pub padding: Option<u32>,
    /// Projections trained in distillation, and not exported.
    pub projections: Option<StateProjections>,
    /// Longest sequence in the configuration.
    pub max_positions: usize,
    /// Parts specific to an encoder with a head.
    pub encoder: Option<EncoderParts>,
    /// Adapter of its projections.
    pub adapter: Option<Arc<Adapter>>,
}

/// Settings of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Its mixer.
    pub mixer: Mixer,
    /// Its feed-forward network, if any.
    pub ffn: Option<Ffn>,
}

/// Mixer of a layer: exchanges information between tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention.
    Attention {
        /// Tokens that a token attends to.
        reach: Reach,
        /// Index into [`Spec::ropes`]; `None` for no rotation.
        rope: Option<usize>,
    },
    /// A family's own mixer.
    Custom(&'static dyn SubLayer),
    /// No mixer.
    None,
}

/// Feed-forward network of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// The model's MLP, or its experts in layers that have them ([`Spec::experts_of`]).
    Mlp,
    /// A family's own network.
    Custom(&'static dyn SubLayer),
}

impl LayerSpec {
    /// Causal attention with an optional window in tokens and an optional rotary setting of [`Spec::ropes`], and a
    /// feed-forward network.
    pub fn decoder(window: Option<usize>, rope: Option<usize>) -> LayerSpec {
        let reach = window.map_or(Reach::Causal, Reach::Window);
        LayerSpec { mixer: Mixer::Attention { reach, rope }, ffn: Some(Ffn::Mlp) }
    }

    /// Reach of its attention.
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

    /// Sets or removes its attention's window.
    pub fn set_window(&mut self, window: Option<usize>) {
        if let Mixer::Attention { reach, .. } = &mut self.mixer {
            *reach = window.map_or(Reach::Causal, Reach::Window);
        }
    }

    /// Sets or removes its attention's rotary setting.
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
    /// Names of its weights.
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

/// A family's own sub-layer, as named by a specification.
pub trait SubLayer: fmt::Debug + Sync {
    /// Its name, which decides equality.
    fn name(&self) -> &'static str;
    /// Declares its weights.
    fn declare(&self, w: &mut Walk<'_>, s: &Spec) -> Custom;
}

/// A sub-layer with its weights.
pub type Custom = Rc<dyn SubLayerParams>;

/// Forward pass of a sub-layer with its weights.
pub trait SubLayerParams: fmt::Debug {
    /// Maps `h_td`, normalised, to the residual contribution. It runs within a rows region: use [`Ctx::whole`] for
    /// operations that need all rows at once.
    fn forward(&self, cx: &mut Ctx<'_>, s: &Spec, h_td: Val) -> Val;
}

impl PartialEq for dyn SubLayer {
    fn eq(&self, other: &dyn SubLayer) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn SubLayer {}

/// Properties shared by layers of one kind: mixer, feed-forward network, whether it has experts.
type Like = (Mixer, Option<Ffn>, bool);

/// Index of the token with a text's scores: the last one that is not padding, as in Transformers
/// (`GenericForSequenceClassification`). If padding doubles as the end token, that is the one before the end.
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
    /// The same with this many scores per token instead of the vocabulary's head; the tied embedding stays in its
    /// place, unused.
    pub fn scoring(self, scores: usize) -> Spec {
        Spec { scores, tied: true, head_bias: false, ..self }
    }

    /// Columns of all query heads.
    pub fn q_cols(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Columns of attention's result: all values.
    pub fn attention_cols(&self) -> usize {
        self.heads * self.latent.map_or(self.head_dim, |latent| latent.value)
    }

    /// Columns of all key heads.
    pub fn kv_cols(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Length beyond which cached keys must be recomputed ([`Spec::rereads`]).
    pub fn rereads_beyond(&self) -> Option<usize> {
        let rope = self.ropes.first().filter(|_| self.rereads)?;
        match rope.scaling {
            RopeScaling::Longrope { .. } => rope.scaling.original_positions(),
            _ => None,
        }
    }

    /// Relative positions in attention scores, if any.
    pub(crate) fn relative(&self) -> Option<Relative> {
        self.encoder.as_ref().and_then(|parts| parts.relative)
    }

    /// Returns whether some layer has an ordinary MLP.
    pub fn has_dense_ffn(&self) -> bool {
        self.moe.as_ref().is_none_or(|moe| !moe.dense_layers.is_empty())
    }

    /// First layer of the same kind: same mixer and feed-forward network.
    pub fn first_like(&self, layer: usize) -> usize {
        let like = |other: &usize| {
            self.layers[*other] == self.layers[layer]
                && self.experts_of(*other).is_some() == self.experts_of(layer).is_some()
        };
        (0..layer).find(like).unwrap_or(layer)
    }

    /// The experts of a layer; `None` if it has an ordinary MLP.
    pub fn experts_of(&self, layer: usize) -> Option<&Moe> {
        self.moe.as_ref().filter(|moe| !moe.dense_layers.contains(&layer))
    }

    /// A layer's products per token except those of attention's pairs, in units of pairs: a weight is one product, a
    /// pair is two per column of the queries.
    pub fn token_pairs(&self) -> u64 {
        let layers = self.layers.len().max(1);
        (self.token_weights() / layers / (2 * self.q_cols()).max(1)) as u64
    }

    /// Number of weights in all layers that multiply a token.
    fn token_weights(&self) -> usize {
        let chosen = self.moe.as_ref().map_or(0, |moe| moe.routing.top_k);
        // Layers of one kind have equally many.
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

    /// Distinct reaches of attention, in order of first use; a layer's mask is its reach's index here.
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
