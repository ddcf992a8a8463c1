//! Freezes weights that do not receive gradients. Frozen weights have no gradient, master or moments, and are sharded
//! over ranks like trained ones.

use std::collections::{BTreeMap, BTreeSet};

use fathom_grad::{ParamId, Params};
use regex::RegexSet;

use crate::model::Model;
use crate::spec::TrainableWeights;

impl Model {
    /// Blocks are alike if their weights, the trained subset and the adapter's parts and sizes agree.
    pub(crate) fn tell_apart(&mut self, params: &Params) {
        let mut of_layer: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        self.visit(&mut |id, layer, weight| {
            if let Some(layer) = layer {
                let trained = params.get(id).trainable;
                of_layer.entry(layer).or_default().push((weight.role, weight.term, weight.shape, trained));
            }
        });
        let adapted: BTreeMap<usize, _> =
            self.portion.layers().map(|layer| (layer, self.spec.adapted_in(layer))).collect();
        let layers: Vec<usize> = self.portion.layers().collect();
        let kinds: Vec<usize> = self.alike.iter().map(|(kind, _)| *kind).collect();
        for (at, (kind, _)) in self.alike.iter_mut().enumerate() {
            let same = |index: &usize| {
                let (other, own) = (layers[*index], layers[at]);
                kinds[*index] == kinds[at]
                    && of_layer.get(&other) == of_layer.get(&own)
                    && adapted.get(&other) == adapted.get(&own)
            };
            if let Some(first) = (0..at).find(same) {
                *kind = layers[first];
            } else {
                *kind = layers[at];
            }
        }
    }

    /// Freezes this rank's weights that are not selected.
    ///
    /// # Errors
    /// A pattern that matches no weight; tensors fused into one weight of which only some are selected; with an
    /// adapter, weights that its folder cannot store.
    pub fn freeze(&mut self, params: &mut Params, trained: &TrainableWeights) -> Result<(), String> {
        if trained.is_all() {
            return Ok(());
        }
        let nothing = RegexSet::empty();
        let patterns = trained.patterns.as_ref().unwrap_or(&nothing);
        let mut taken = Vec::new();
        self.visit(&mut |_, _, weight| taken.push(trained.takes(weight)));
        let all: BTreeSet<String> = self.spec.stored_names().into_iter().collect();
        let met: BTreeSet<usize> = all.iter().flat_map(|name| patterns.matches(name)).collect();
        if let Some(vain) = (0..patterns.len()).find(|pattern| !met.contains(pattern)) {
            let [first, last] = [all.first(), all.last()].map(|name| name.map_or("", String::as_str));
            return Err(format!(
                "no weight has a name with `{}`; names are like {first} and {last}",
                patterns.patterns()[vain]
            ));
        }
        self.spec.saves(trained)?;
        for (index, pieces) in self.pieces().iter().enumerate() {
            let (chosen, others): (Vec<&str>, Vec<&str>) =
                pieces.iter().map(|piece| piece.name.as_str()).partition(|name| patterns.is_match(name));
            if let (Some(chosen), Some(other)) = (chosen.first(), others.first()) {
                return Err(format!("{chosen} and {other} are one weight here: train both or neither"));
            }
            if chosen.is_empty() && !taken[index] {
                params.freeze(ParamId(index as u32));
            }
        }
        self.tell_apart(params);
        Ok(())
    }
}
