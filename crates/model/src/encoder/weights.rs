//! Weights of encoders before the first block and after the last, and the input of their heads.

use fathom_grad::{Ctx, ParamId, Val};

use crate::attention::attention_use;
use crate::norm::norm;
use crate::spec::{EncoderHead, EncoderParts, Reach, Spec};
use crate::weight::{
    Begins, Cut, InFiles, InputSharing, Kind, LABELS, LastParams, LinearParams, Module, Parallel, Projection,
    Walk, WeightSpec,
};

/// Weights before the first block of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderInput {
    /// [types, d], looked up by the batch's token types.
    pub types: Option<ParamId>,
    /// [d, e]: projection of embeddings that have other columns than the blocks.
    pub project: Option<LinearParams>,
}

impl EncoderInput {
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, parts: &EncoderParts) -> EncoderInput {
        let [types, project] = w.names.encoder.map_or([""; 2], |names| [names.types, names.project]);
        let (at, shape) = ((Module::Input, Kind::Table), [parts.types, s.embed_cols()]);
        let stored = InFiles::whole(format!("{types}.weight"), shape);
        let types = WeightSpec::new("types", at, shape, Cut::Whole(InputSharing::Own), stored);
        let (cols, stored) = ([s.hidden], InFiles::one(project, s.hidden));
        let project = Projection::new("embed_project", Module::Input, &cols, s.embed_cols(), stored);
        let project = Projection { bias: true, parallel: Parallel::Whole(InputSharing::Rows), ..project };
        EncoderInput {
            types: (parts.types > 0)
                .then(|| w.weight(WeightSpec { decays: true, begins: Begins::Normal, ..types })),
            project: parts.embedding.map(|_| w.linear(project)),
        }
    }
}

impl LastParams {
    /// Declares the head and the projection before it, whole on every rank as they have few rows; the masked-language
    /// head is the embedding's table, which also takes the place of a head that is missing, unless it has its own.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, parts: &EncoderParts, tokens: ParamId) -> LastParams {
        let bare = LastParams {
            norm: None,
            pool: None,
            pool_norm: None,
            term: None,
            score: None,
            projections: None,
            head: tokens,
            head_bias: None,
        };
        let (Some(names), seen) = (w.names.encoder, InputSharing::Rows) else { return bare };
        let ([pool, norm], head) = match parts.head {
            EncoderHead::None => return bare,
            EncoderHead::Masked => ([names.masked[0], names.masked[1]], names.masked[2]),
            EncoderHead::Text(_) => (names.pool, w.names.head),
            EncoderHead::Tokens(_) => (names.pool, names.tokens),
        };
        let labels = parts.head.labels();
        let width = if labels > 0 { s.hidden } else { s.embed_cols() };
        let [of_pool, of_norm, of_head] =
            if labels > 0 { LABELS } else { ["masked_pool", "masked_norm", "head"] };
        let (cols, stored) = ([width], InFiles::one(pool, width));
        let pool = Projection::new(of_pool, Module::Head, &cols, s.hidden, stored);
        let pool = Projection { bias: parts.pool_bias, parallel: Parallel::Whole(seen), ..pool };
        let pool = parts.pool.map(|_| w.linear(pool));
        let pool_norm =
            (pool.is_some() && parts.pool_norm).then(|| w.norm(of_norm, Module::Head, width, s.normed(norm)));
        let at = (Module::Head, Kind::Bias);
        if labels == 0 {
            let (vocab, name) = ([s.vocab], if s.tied { head } else { names.own_head });
            let stored = || InFiles::one(name, s.vocab);
            let table = (Module::Head, Kind::Table);
            let table = WeightSpec::new(of_head, table, [s.vocab, width], Cut::Rows(&vocab), stored());
            let head = if s.tied { tokens } else { w.weight(table) };
            let bias = WeightSpec::new(of_head, at, [1, s.vocab], Cut::Rows(&vocab), stored());
            return LastParams { pool, pool_norm, head, head_bias: Some(w.weight(bias)), ..bare };
        }
        let shape = [labels, s.hidden];
        let stored = InFiles::whole(format!("{head}.weight"), shape);
        let weight = WeightSpec::new(of_head, (Module::Head, Kind::Table), shape, Cut::Whole(seen), stored);
        let bias = WeightSpec::new(of_head, at, [1, labels], Cut::Whole(seen), InFiles::one(head, labels));
        let head = w.weight(WeightSpec { decays: true, begins: Begins::Normal, ..weight });
        LastParams { pool, pool_norm, head, head_bias: Some(w.weight(bias)), ..bare }
    }
}

/// The mean of each text's rows in all of them, if its labels read that: attention to the whole text with scores of zero.
pub(crate) fn means(cx: &mut Ctx<'_>, s: &Spec, x_td: Val) -> Val {
    let wanted = |parts: &EncoderParts| parts.mean && matches!(parts.head, EncoderHead::Text(_));
    if !s.encoder.as_ref().is_some_and(wanted) {
        return x_td;
    }
    let x_td = cx.rows_of_all("mean.rows", x_td);
    let zero_td = cx.scale("mean.zero", x_td, 0.0);
    let how = attention_use(s, Some(Reach::Full));
    let m_td = cx.whole(|cx| cx.attention(zero_td, zero_td, x_td, how, None));
    cx.part_of_rows("mean.own", m_td)
}

/// The input of an encoder's head.
pub(crate) fn pool(cx: &mut Ctx<'_>, s: &Spec, p: &LastParams, x_td: Val) -> Val {
    let kind = s.encoder.as_ref().and_then(|parts| parts.pool);
    let (Some(pool), Some(kind)) = (p.pool, kind) else { return x_td };
    let x_td = pool.whole(cx, "pool", x_td);
    let x_td = cx.activate("pool.act", kind, x_td);
    norm(cx, s, ["pool.norm", "pool.norm.stats"], x_td, p.pool_norm)
}
