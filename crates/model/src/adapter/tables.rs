//! Adapters of the token embedding and of the head. Low-rank terms of an embedding look up a row of A by token
//! (PEFT's `lora_embedding_A` and `lora_embedding_B`), trained rows replace the base's (PEFT's
//! `trainable_token_indices`), and a head has the terms of any projection. In a tied model the two keep separate
//! terms, as in PEFT.

use fathom_grad::{Ctx, HeadTerm, ParamId, Val};

use crate::spec::{Adapter, Spec};
use crate::weight::{Begins, Cut, InFiles, InputSharing, Kind, Module, Term, Walk, WeightSpec};

/// The low-rank terms of an embedding.
#[derive(Clone, Copy, Debug)]
pub struct EmbedTerm {
    /// [vocab, rank].
    pub a: ParamId,
    /// [d, rank].
    pub b: ParamId,
    /// Factor of their product.
    pub scale: f32,
}

/// Weights of an embedding's adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableParams {
    /// Low-rank terms.
    pub term: Option<EmbedTerm>,
    /// Trained rows [n, d] of some tokens.
    pub rows: Option<ParamId>,
}

impl Spec {
    /// Returns whether the adapter applies to the token embedding.
    pub fn adapts_embedding(&self) -> bool {
        let of = |adapter: &Adapter| {
            !adapter.tokens.is_empty() || adapter.modules.contains_key(&self.table_names()[0])
        };
        self.adapter.as_deref().is_some_and(of)
    }

    /// Names in files of the token embedding and the head.
    pub(super) fn table_names(&self) -> [String; 2] {
        let names = &self.family.names;
        [format!("{}{}", names.base, names.embed), names.head.to_string()]
    }
}

/// Declares a weight of an adapter of a table.
fn weight(
    w: &mut Walk<'_>,
    (role, module, term): (&'static str, Module, Term),
    shape: [usize; 2],
    cut: Cut<'_>,
    begins: Begins,
) -> ParamId {
    let names = w.names;
    let name = if module == Module::Head { names.head } else { names.embed };
    let rows = if shape[0] == 1 { shape[1] } else { shape[0] };
    let spec = WeightSpec::new(role, (module, Kind::Adapter), shape, cut, InFiles::one(name, rows));
    w.weight(WeightSpec { term, begins, decays: true, ..spec })
}

/// Declares the low-rank terms of the head, if the adapter has them.
pub(crate) fn head_term(w: &mut Walk<'_>, s: &Spec) -> Option<HeadTerm> {
    let adapter = s.adapter.as_deref()?;
    let size = *adapter.modules.get(&s.table_names()[1])?;
    let (at, vocab) = (|term| ("head", Module::Head, term), [s.vocab]);
    let a = weight(w, at(Term::LoraA), [size.rank, s.hidden], Cut::Whole(InputSharing::Own), Begins::Uniform);
    let b = weight(w, at(Term::LoraB), [s.vocab, size.rank], Cut::Rows(&vocab), Begins::Zeros);
    Some(HeadTerm { a, b, scale: adapter.scale(size) })
}

impl TableParams {
    /// Declares those of the model's adapter.
    pub(crate) fn declare(w: &mut Walk<'_>, s: &Spec) -> TableParams {
        let Some(adapter) = s.adapter.as_deref() else { return TableParams::default() };
        let at = |term| ("embed", Module::Input, term);
        let cut = Cut::Whole(InputSharing::Rows);
        let term = adapter.modules.get(&s.table_names()[0]).map(|size| {
            // PEFT's initialization: A is zero.
            let a = weight(w, at(Term::EmbedA), [s.vocab, size.rank], cut, Begins::Zeros);
            let b = weight(w, at(Term::EmbedB), [s.hidden, size.rank], cut, Begins::Standard);
            EmbedTerm { a, b, scale: adapter.scale(*size) }
        });
        let tokens = adapter.tokens.len();
        let rows =
            (tokens > 0).then(|| weight(w, at(Term::TokenRows), [tokens, s.hidden], cut, Begins::Normal));
        TableParams { term, rows }
    }

    /// Applies the adapter to `x_td`, the tokens' embeddings times `factor`.
    pub(crate) fn forward(&self, cx: &mut Ctx<'_>, x_td: Val, factor: f32) -> Val {
        let mut x_td = x_td;
        if let Some(EmbedTerm { a, b, scale }) = self.term {
            let u_tr = cx.embed_rows("embed.low", a, scale * factor);
            let u_td = cx.linear("embed.term", u_tr, b, None);
            x_td = cx.add("embed.adapted", x_td, u_td);
        }
        if let Some(rows) = self.rows {
            let rows_nd = cx.table("embed.rows", rows);
            let rows_nd = cx.scale("embed.rows.scaled", rows_nd, factor);
            x_td = cx.add_leading("embed.trained", x_td, rows_nd);
        }
        x_td
    }
}
