//! All weights of a model, in their fixed order.

use fathom_grad::ParamId;

use crate::adapter::{PromptParams, TableParams, head_term};
use crate::block::BlockParams;
use crate::encoder::EncoderInput;
use crate::spec::{Spec, StateProjections};
use crate::weight::{
    Adapts, Begins, CrossNames, Cut, DistanceParams, InFiles, InputSharing, Kind, LastParams, Module,
    NOWHERE, NormParams, PrefixEncoder, SCORE, See, Visit, Walk, WeightSpec,
};

/// Weights of a whole model.
pub(crate) type WholeModel = (EmbedParams, Vec<BlockParams>, LastParams);

impl Spec {
    /// Visits all weights in their fixed order: embedding, blocks, final norm, head. A tied head is the embedding.
    pub(crate) fn walk(&self, visit: Visit<'_>) -> WholeModel {
        self.pass(&mut self.walking(visit))
    }

    /// Visits all projections.
    pub(crate) fn walk_projections(&self, see: See<'_>) {
        self.pass(&mut self.walking(&mut |_, _| NOWHERE).seen_by(see));
    }

    /// A walk over this specification's weights.
    pub(crate) fn walking<'a>(&'a self, visit: Visit<'a>) -> Walk<'a> {
        let adapter = self.adapter.as_deref().map(|adapter| adapter as &dyn Adapts);
        Walk::new((&self.family.names, self.source), adapter, visit)
    }

    /// Declares all weights on a walk.
    pub(crate) fn pass(&self, w: &mut Walk<'_>) -> WholeModel {
        let (names, vocab) = (&self.family.names, [self.vocab]);
        let table = |role, module, cut, name| {
            let stored = InFiles::one(name, self.vocab);
            WeightSpec::new(role, (module, Kind::Table), [self.vocab, self.embed_cols()], cut, stored)
        };
        let tokens = w.weight(table("embed", Module::Tokens, Cut::Rows(&vocab), names.embed));
        let positions = self.learned_positions.map(|rows| {
            let (cut, stored) = (Cut::Whole(InputSharing::Own), InFiles::one(names.positions, rows));
            let at = (Module::Input, Kind::Table);
            w.weight(WeightSpec::new("positions", at, [rows, self.embed_cols()], cut, stored))
        });
        let source = (self.source > 0).then(|| {
            let name = names.cross.unwrap_or(CrossNames::NONE).embed;
            if name.is_empty() {
                return tokens;
            }
            w.weight(table("source_embed", Module::Source, Cut::Rows(&vocab), name))
        });
        let encoder = self.encoder.as_ref().map(|parts| EncoderInput::declare(w, self, parts));
        let normed = self.normed(names.embed_norm);
        let embed_norm =
            self.embed_norm.then(|| w.norm("embed_norm", Module::Input, self.embed_cols(), normed));
        let prompt = PromptParams::declare(w, self);
        let of_table = TableParams::declare(w, self);
        w.prefix = PrefixEncoder::declare(w, self);
        w.distances = self.relative().map(|relative| DistanceParams::declare(w, self, &relative));
        let block = |index: usize| {
            w.enter(Some(index));
            BlockParams::declare(w, self, index)
        };
        let blocks = (0..self.layers.len()).map(block).collect();
        w.enter(None);
        let normed = self.normed(names.final_norm);
        let norm = (!self.ends_normalised()).then(|| w.norm("final_norm", Module::Last, self.hidden, normed));
        let last = match &self.encoder {
            Some(parts) => LastParams::declare(w, self, parts, tokens),
            None => {
                let head = if self.tied {
                    tokens
                } else {
                    w.weight(table("head", Module::Head, Cut::Rows(&vocab), names.head))
                };
                let (at, stored) = ((Module::Head, Kind::Bias), InFiles::one(names.head, self.vocab));
                let bias = WeightSpec::new("head", at, [1, self.vocab], Cut::Rows(&vocab), stored);
                let head_bias = self.head_bias.then(|| w.weight(bias));
                let term = head_term(w, self);
                LastParams {
                    norm: None,
                    pool: None,
                    pool_norm: None,
                    head,
                    head_bias,
                    term,
                    score: None,
                    projections: None,
                }
            }
        };
        let score = (self.scores > 0).then(|| {
            let shape = [self.scores, self.hidden];
            let (at, stored) = ((Module::Head, Kind::Gate), InFiles::whole("score.weight", shape));
            let score = WeightSpec::new(SCORE, at, shape, Cut::Whole(InputSharing::Rows), stored);
            // A single score is a matrix too, with one row.
            w.weight(WeightSpec { decays: true, begins: Begins::Normal, ..score })
        });
        // Last, so that the numbers of all other weights do not depend on them.
        let projections = self.projections.map(|StateProjections { count, columns }| {
            let shape = [count * columns, self.hidden];
            let (at, stored) = ((Module::Head, Kind::Gate), InFiles::whole(PROJECTIONS, shape));
            let all = WeightSpec::new("projections", at, shape, Cut::Whole(InputSharing::Rows), stored);
            w.weight(WeightSpec { decays: true, begins: Begins::Normal, ..all })
        });
        let embed =
            EmbedParams { tokens, positions, source, encoder, norm: embed_norm, prompt, table: of_table };
        (embed, blocks, LastParams { norm, score, projections, ..last })
    }

    pub(crate) fn visit_layer(&self, index: usize, visit: &mut dyn FnMut(&WeightSpec<'_>)) {
        let mut visit = |_: Option<usize>, weight: &WeightSpec<'_>| {
            visit(weight);
            NOWHERE
        };
        let mut w = self.walking(&mut visit);
        w.enter(Some(index));
        BlockParams::declare(&mut w, self, index);
    }
}

/// Name of the projections of hidden states in checkpoints.
pub const PROJECTIONS: &str = "hidden_projection.weight";

/// Weights before the first block.
#[derive(Clone, Copy, Debug)]
pub struct EmbedParams {
    /// [vocab, d].
    pub tokens: ParamId,
    /// [max_positions, d].
    pub positions: Option<ParamId>,
    /// [vocab, d]: the source's.
    pub source: Option<ParamId>,
    /// Weights specific to encoders.
    pub encoder: Option<EncoderInput>,
    /// Norm after the embedding.
    pub norm: Option<NormParams>,
    /// Embeddings of an adapter's virtual tokens.
    pub prompt: Option<PromptParams>,
    /// Weights of the embedding's adapter.
    pub table: TableParams,
}
