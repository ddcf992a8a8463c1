//! An architecture as data: layers as lists of parts, switches over the one block that serves every family, and a
//! family's own sub-layers.

use std::any::Any;
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
use super::parts::{
    Biases, Factors, Mlp, PositionBias, QkNorm, RankExchange, Reach, Residual, Retrieval, Sharers,
    SplitDimension, StateProjections,
};
use crate::config::Config;
use crate::error::Result;
use crate::rope::{RopeScaling, RopeSpec};
use crate::weight::{Module, Names, Walk};

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
    /// Normalisation of q and k before rotation.
    pub qk_norm: QkNorm,
    /// Latents of queries, keys and values, if any.
    pub latent: Option<Latent>,
    /// Whether each head's result is multiplied by the sigmoid of a gate, projected with its query.
    pub attention_gate: bool,
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
    /// Number of the first layers that are the source: they run over a stream of their own, to whose result parts of the
    /// others attend; 0 without one.
    pub source: usize,
    /// Neighbours of the main stream's chunks that the source reads, if it does not read a text of its own.
    pub retrieval: Option<Retrieval>,
    /// Terms of scores by distance, if there are any.
    pub position_bias: Option<PositionBias>,
    /// Whether scores have slopes by distance ([`slopes`](super::slopes)).
    pub slopes: bool,
    /// Rotary settings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// Whether keys are recomputed beyond the length at which the first setting switches to its long factors, as in
    /// Phi-3's published code; other families keep cached keys.
    pub rereads: bool,
    /// Rows of a learned position table, if the family has one.
    pub learned_positions: Option<usize>,
    /// Whether embeddings are normalised before the first block.
    pub embed_norm: bool,
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
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Its parts, in order: one (Nemotron-H), usually two, or more.
    pub parts: Vec<Part>,
}

/// A part of a layer: a sub-layer, with the norms around it and what it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its computation.
    pub kind: PartKind,
    /// Its norms, and whether it reads the residual stream, the block's input, or what the part before it read.
    pub residual: Residual,
    /// Constants that multiply its values.
    pub factors: Factors,
}

/// A sub-layer, as named by a specification.
#[derive(Clone, Debug)]
pub enum PartKind {
    /// Attention.
    Attention {
        /// Tokens that a token attends to.
        reach: Reach,
        /// Index into [`Spec::ropes`]; `None` for no rotation.
        rope: Option<usize>,
    },
    /// Attention to the result of the source.
    Cross,
    /// The model's MLP, or its experts in layers that have them ([`Spec::experts_of`]).
    Mlp,
    /// A family's own sub-layer.
    Own(Arc<dyn SubLayer>),
}

impl LayerSpec {
    /// Sub-layers with a norm before each.
    pub fn new(kinds: impl IntoIterator<Item = PartKind>) -> LayerSpec {
        let part = |kind| Part { kind, residual: Residual::Pre, factors: Factors::NONE };
        LayerSpec { parts: kinds.into_iter().map(part).collect() }
    }

    /// Causal attention with an optional window in tokens and an optional rotary setting of [`Spec::ropes`], and a
    /// feed-forward network.
    pub fn decoder(window: Option<usize>, rope: Option<usize>) -> LayerSpec {
        let reach = window.map_or(Reach::Causal, Reach::Window);
        LayerSpec::new([PartKind::Attention { reach, rope }, PartKind::Mlp])
    }

    /// Reach and rotary setting of its attention.
    fn attention(&self) -> Option<(Reach, Option<usize>)> {
        self.parts.iter().find_map(|part| match part.kind {
            PartKind::Attention { reach, rope } => Some((reach, rope)),
            PartKind::Cross | PartKind::Mlp | PartKind::Own(_) => None,
        })
    }

    /// Reach of its attention.
    pub fn reach(&self) -> Option<Reach> {
        self.attention().map(|(reach, _)| reach)
    }

    /// The sliding window of its attention in tokens.
    pub fn window(&self) -> Option<usize> {
        self.reach().and_then(Reach::window)
    }

    /// The rotary setting of its attention.
    pub fn rope(&self) -> Option<usize> {
        self.attention().and_then(|(_, rope)| rope)
    }

    /// Returns whether it has the model's MLP or experts.
    pub fn has_mlp(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.kind, PartKind::Mlp))
    }

    /// Its family's own sub-layers.
    pub fn own(&self) -> impl Iterator<Item = &dyn SubLayer> {
        self.parts.iter().filter_map(|part| match &part.kind {
            PartKind::Own(own) => Some(&**own),
            PartKind::Attention { .. } | PartKind::Cross | PartKind::Mlp => None,
        })
    }

    /// Sets or removes its attention's window.
    pub fn set_window(&mut self, window: Option<usize>) {
        for part in &mut self.parts {
            if let PartKind::Attention { reach, .. } = &mut part.kind {
                *reach = window.map_or(Reach::Causal, Reach::Window);
            }
        }
    }

    /// Sets or removes its attention's rotary setting.
    pub fn set_rope(&mut self, setting: Option<usize>) {
        for part in &mut self.parts {
            if let PartKind::Attention { rope, .. } = &mut part.kind {
                *rope = setting;
            }
        }
    }
}

impl PartKind {
    /// The module that its weights belong to.
    pub(crate) fn module(&self) -> Module {
        match self {
            PartKind::Attention { .. } => Module::Attention,
            PartKind::Cross => Module::Cross,
            PartKind::Mlp => Module::Mlp,
            PartKind::Own(own) => own.module(),
        }
    }
}

impl PartialEq for PartKind {
    fn eq(&self, other: &PartKind) -> bool {
        use PartKind::{Attention, Cross, Mlp, Own};
        match (self, other) {
            (Attention { reach, rope }, Attention { reach: its_reach, rope: its_rope }) => {
                (reach, rope) == (its_reach, its_rope)
            }
            (Cross, Cross) | (Mlp, Mlp) => true,
            (Own(own), Own(its)) => own.equals(&**its),
            (Attention { .. } | Cross | Mlp | Own(_), _) => false,
        }
    }
}

/// Equality of sub-layers by value, which their `PartialEq` implements.
pub trait SameValue: Any {
    /// Returns whether `other` has the same type and value.
    fn equals(&self, other: &dyn Any) -> bool;
    /// Itself, to be recognised by its type.
    fn as_any(&self) -> &dyn Any;
}

impl<T: PartialEq + 'static> SameValue for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A family's own sub-layer with its sizes: layers may have sub-layers of one type and different sizes.
///
/// Its activations are named `mixer.*` or `mlp.*`, by its module, so that the modules and units of recipes and plans
/// cover them; results of passes over all tokens are called `mixer.out*`, which `linear` recompute keeps.
pub trait SubLayer: SameValue + fmt::Debug + Send + Sync {
    /// [`Module::Attention`] if it exchanges information between tokens, [`Module::Mlp`] if not. It decides the names
    /// of its norms, and which layers of an adapter follow it.
    fn module(&self) -> Module;
    /// Declares its weights, of a layer.
    ///
    /// Rows that tensor-parallel ranks share, each needing all of them, are a projection of their own
    /// ([`Parallel::Whole`](crate::Parallel::Whole)), which may be some rows of a tensor in files
    /// ([`InFiles::Rows`](crate::InFiles::Rows)).
    fn declare(&self, w: &mut Walk<'_>, s: &Spec, layer: usize) -> Own;
    /// Checks that ranks can share it.
    ///
    /// # Errors
    /// A thing that they cannot share, or a size that their number does not divide, with numbers that would.
    fn check(&self, ranks: &Sharers) -> std::result::Result<(), (SplitDimension, String)>;
    /// Exchange of ranks that share documents, if states can be passed from piece to piece; otherwise they can only
    /// have all tokens of some heads.
    fn passes(&self, _: &Sharers) -> Option<RankExchange> {
        None
    }
    /// Its memory of a sequence during generation, on one of these ranks; its operations find it by name
    /// ([`LayerMemory::state`](fathom_grad::LayerMemory::state)).
    fn states(&self, ranks: &Sharers) -> Vec<StateSpec>;
}

/// A state of a sequence in generation, f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Its name in the layer.
    pub name: &'static str,
    /// Rows x columns.
    pub shape: [usize; 2],
}

/// A sub-layer with its weights.
pub type Own = Rc<dyn SubLayerParams>;

/// Forward pass of a sub-layer with its weights.
pub trait SubLayerParams: fmt::Debug {
    /// Maps `h_td`, normalised, to the residual contribution. It runs within a rows region: use [`Ctx::whole`] for
    /// operations that need all rows at once. `s` is this rank's part of the specification. Layers of one kind share
    /// what is recorded here; an operation finds the layer that it runs for in [`Exec::layer`](fathom_grad::Exec).
    fn forward(&self, cx: &mut Ctx<'_>, s: &Spec, layer: &LayerSpec, h_td: Val) -> Val;
}

/// Layers that run over one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Those before all others, if there are any ([`Spec::source`]).
    Source,
    /// The others.
    Main,
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

    /// Columns of embeddings, and of the vocabulary's head if that is the embedding.
    pub fn embed_cols(&self) -> usize {
        self.encoder.as_ref().and_then(|parts| parts.embedding).unwrap_or(self.hidden)
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

    /// The position of a document's first token in the table of learned positions.
    pub fn first_position(&self) -> usize {
        self.encoder.as_ref().map_or(0, |parts| parts.first_position)
    }

    /// Most tokens of a document for which there are learned positions; `None` if there is no table of them.
    pub fn position_room(&self) -> Option<usize> {
        self.learned_positions.map(|rows| rows.saturating_sub(self.first_position()))
    }

    /// Relative positions in attention scores, if any.
    pub(crate) fn relative(&self) -> Option<Relative> {
        self.encoder.as_ref().and_then(|parts| parts.relative)
    }

    /// The same with this placement of norms in all blocks.
    pub fn with_residual(mut self, residual: Residual) -> Spec {
        self.layers.iter_mut().flat_map(|layer| &mut layer.parts).for_each(|part| part.residual = residual);
        self
    }

    /// Returns whether all blocks have this placement of norms.
    pub fn has_residual(&self, residual: Residual) -> bool {
        self.layers.iter().flat_map(|layer| &layer.parts).all(|part| part.residual == residual)
    }

    /// Prefix of the names of a layer's tensors, or of those outside the layers.
    pub(crate) fn prefix(&self, layer: Option<usize>, module: Module) -> String {
        self.family.names.of(self.source, layer, module).1
    }

    /// Returns whether a layer declares a table of biases, which the others of its stack may share.
    pub(crate) fn has_biases(&self, layer: usize) -> bool {
        let first = layer == 0 || layer == self.source;
        self.position_bias.is_some_and(|bias| bias.each_layer || first)
    }

    /// Returns the number of layers that read the table of biases of a layer that declares one.
    pub(crate) fn readers_of_biases(&self, layer: usize) -> usize {
        let end = if layer < self.source { self.source } else { self.layers.len() };
        if self.shares_biases() { end - layer } else { 1 }
    }

    /// Returns whether layers share weights.
    pub(crate) fn layers_share_weights(&self) -> bool {
        self.relative().is_some() || self.encodes_prefix() || self.shares_biases()
    }

    /// Returns whether several segments of a pass share weights, whose gradients are complete after the last of them.
    pub fn segments_share_weights(&self) -> bool {
        self.source > 0 || self.layers_share_weights()
    }

    /// Returns whether layers share a table of biases.
    pub fn shares_biases(&self) -> bool {
        self.position_bias.is_some_and(|bias| !bias.each_layer)
    }

    /// Returns whether the last block ends with a norm, so that none follows it.
    pub(crate) fn ends_normalised(&self) -> bool {
        let last = self.layers.last().and_then(|layer| layer.parts.last());
        last.is_some_and(|part| part.residual == Residual::Sum)
    }

    /// Returns whether a layer is the source's last.
    pub(crate) fn ends_source(&self, layer: usize) -> bool {
        layer + 1 == self.source
    }

    /// One of its stacks, as a model of its layers alone.
    pub fn stack(&self, stack: Stack) -> Spec {
        let layers = match stack {
            Stack::Source => &self.layers[..self.source],
            Stack::Main => &self.layers[self.source..],
        };
        Spec { layers: layers.to_vec(), source: 0, ..self.clone() }
    }

    /// Returns whether some layer has attention.
    pub fn attends(&self) -> bool {
        self.layers.iter().any(|layer| layer.reach().is_some())
    }

    /// Returns whether some layer has a mixer of its family's own, which starts over with each document.
    pub fn mixes_by_document(&self) -> bool {
        self.layers.iter().flat_map(LayerSpec::own).any(|own| own.module() == Module::Attention)
    }

    /// Values that its layers that read rows in order pass from piece to piece of a document; `None` if there are none, or one cannot.
    pub fn passes(&self, ranks: &Sharers) -> Option<Vec<RankExchange>> {
        let own = self.layers.iter().flat_map(LayerSpec::own).filter(|own| own.module() == Module::Attention);
        let passed: Option<Vec<RankExchange>> = own.map(|own| own.passes(ranks)).collect();
        passed.filter(|passed| !passed.is_empty())
    }

    /// Returns whether generation has states besides keys and values.
    pub fn has_states(&self) -> bool {
        let has = |own: &dyn SubLayer| !own.states(&Sharers::NONE).is_empty();
        self.layers.iter().flat_map(LayerSpec::own).any(has)
    }

    /// Returns whether some layer has an ordinary MLP.
    pub fn has_dense_ffn(&self) -> bool {
        let dense = |(index, layer): (usize, &LayerSpec)| layer.has_mlp() && self.experts_of(index).is_none();
        self.layers.iter().enumerate().any(dense)
    }

    /// First layer of the same kind: equal parts.
    pub fn first_like(&self, layer: usize) -> usize {
        let like = |other: &usize| {
            self.layers[*other] == self.layers[layer]
                && self.experts_of(*other).is_some() == self.experts_of(layer).is_some()
                && self.ends_source(*other) == self.ends_source(layer)
        };
        (0..layer).find(like).unwrap_or(layer)
    }

    /// The experts of a layer; `None` if it has an ordinary MLP, or none.
    pub fn experts_of(&self, layer: usize) -> Option<&Moe> {
        let moe = self.moe.as_ref().filter(|moe| !moe.dense_layers.contains(&layer))?;
        self.layers.get(layer)?.has_mlp().then_some(moe)
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
        let mut known: Vec<(usize, usize)> = Vec::new();
        let mut all = 0;
        for index in 0..self.layers.len() {
            let kind = self.first_like(index);
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
        reaches(&self.layers)
    }

    /// The windows of [`Spec::reaches`] in the main stack.
    pub fn windows(&self) -> Vec<Option<usize>> {
        reaches(&self.layers[self.source..]).into_iter().map(Reach::window).collect()
    }
}

/// The kinds of reach of some layers, in the order in which they first occur.
fn reaches(layers: &[LayerSpec]) -> Vec<Reach> {
    let mut reaches = Vec::new();
    for reach in layers.iter().filter_map(LayerSpec::reach) {
        if !reaches.contains(&reach) {
            reaches.push(reach);
        }
    }
    reaches
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
