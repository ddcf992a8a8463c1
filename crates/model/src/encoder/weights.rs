//! Weights of encoders before the first block and after the last, and the input of their heads.

use fathom_grad::{Ctx, ParamId, Val};

use crate::spec::{EncoderParts, Spec};
use crate::weight::{
    Begins, Cut, InFiles, InputSharing, Kind, LastParams, LinearParams, Module, NormParams, Parallel,
    Projection, Walk, WeightSpec,
};

/// Weights before the first block of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderInput {
    /// [types, d], looked up by the batch's token types.
    pub types: Option<ParamId>,
    /// Norm after the embedding.
    pub norm: NormParams,
}

impl EncoderInput {
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, parts: &EncoderParts) -> EncoderInput {
        let (types, norm) = w.names.encoder.map_or(("", ""), |names| (names.types, names.norm));
        let (at, shape) = ((Module::Input, Kind::Table), [parts.types, s.hidden]);
        let stored = InFiles::Whole(format!("{types}.weight").into(), shape.into());
        let types = WeightSpec::new("types", at, shape, Cut::Whole(InputSharing::Own), stored);
        EncoderInput {
            types: (parts.types > 0)
                .then(|| w.weight(WeightSpec { decays: true, begins: Begins::Normal, ..types })),
            norm: w.norm("embed_norm", Module::Input, s.hidden, s.normed(norm)),
        }
    }
}

impl LastParams {
    /// Declares the head, whole on every rank as it has few rows. Without labels, the embedding's table takes its
    /// place.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec, parts: &EncoderParts, tokens: ParamId) -> LastParams {
        let none = LastParams {
            norm: None,
            pool: None,
            term: None,
            score: None,
            projections: None,
            head: tokens,
            head_bias: None,
        };
        if parts.labels == 0 {
            return none;
        }
        let pool = w.names.encoder.map_or("", |names| names.pool);
        let (cols, name, seen) = ([s.hidden], w.names.head, InputSharing::Rows);
        let pool = Projection::new("pool", Module::Head, &cols, s.hidden, InFiles::one(pool, s.hidden));
        let shape = [parts.labels, s.hidden];
        let stored = InFiles::Whole(format!("{name}.weight").into(), shape.into());
        let head = WeightSpec::new("head", (Module::Head, Kind::Table), shape, Cut::Whole(seen), stored);
        let at = (Module::Head, Kind::Bias);
        let bias = InFiles::one(name, parts.labels);
        let bias = WeightSpec::new("head", at, [1, parts.labels], Cut::Whole(seen), bias);
        LastParams {
            pool: parts
                .pool
                .map(|_| w.linear(Projection { bias: true, parallel: Parallel::Whole(seen), ..pool })),
            head: w.weight(WeightSpec { decays: true, begins: Begins::Normal, ..head }),
            head_bias: Some(w.weight(bias)),
            ..none
        }
    }
}

/// The input of an encoder's head.
pub(crate) fn pool(cx: &mut Ctx<'_>, s: &Spec, p: Option<LinearParams>, x_td: Val) -> Val {
    let kind = s.encoder.as_ref().and_then(|parts| parts.pool);
    let (Some(p), Some(kind)) = (p, kind) else { return x_td };
    let x_td = p.whole(cx, "pool", x_td);
    cx.activate("pool.act", kind, x_td)
}
