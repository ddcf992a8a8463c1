//! A model with its adapter switched off.

use fathom_grad::ParamId;

use super::TableParams;
use crate::model::Model;
use crate::weight::{Kind, LastParams, NOWHERE};
use crate::whole::EmbedParams;

impl Model {
    /// The base of this model over the same weights, without the adapter's terms. Equals the model that the adapter
    /// was added to if the base's weights are unchanged (not so with PiSSA, which subtracts its initial terms from
    /// the base).
    pub fn without_adapter(&self) -> Model {
        let (mut next, mut base) = (0, Vec::new());
        self.spec.walk(&mut |layer, weight| {
            let mut id = NOWHERE;
            if self.portion.has_weight(layer, weight, self.spec.tied) {
                id = ParamId(next);
                next += 1;
            }
            base.extend((weight.kind != Kind::Adapter).then_some(id));
            id
        });
        let spec = self.spec.without_adapter();
        let mut base = base.into_iter();
        let (_, blocks, _) = spec.walk(&mut |_, _| base.next().unwrap_or(NOWHERE));
        let here = |index: &usize| self.portion.layers().any(|layer| layer == *index);
        let blocks = blocks.into_iter().enumerate().filter(|(index, _)| here(index)).map(|(_, p)| p);
        // Segments are memoized by kind: these kinds differ from those with the adapter.
        let layers = spec.layers.len();
        let alike = self.alike.iter().map(|(like, first)| (like + layers, *first)).collect();
        let table = TableParams::default();
        let embed = self.embed.map(|embed| EmbedParams { prompt: None, table, ..embed });
        let last = self.last.map(|last| LastParams { term: None, ..last });
        Model { blocks: blocks.collect(), alike, spec, embed, last, ..self.clone() }
    }
}
