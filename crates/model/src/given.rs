//! Inputs for declaring a model's weights.

use std::collections::BTreeMap;
use std::vec::IntoIter;

use fathom_grad::Value;
use fathom_tensor::Packing;

use crate::weight::{Kind, WeightSpec};

/// Existing values and formats of a model's weights when it is declared.
#[derive(Default)]
pub(crate) struct ExistingWeights {
    /// Packing of weights kept in blocks.
    pub blocked: Packings,
    /// The base's values in order, if shared with another model.
    pub base: Option<IntoIter<Value>>,
    /// Whether the score head is not shared.
    pub own_scores: bool,
}

impl ExistingWeights {
    /// Returns whether a weight is shared with the base.
    pub fn shares(&self, weight: &WeightSpec<'_>) -> bool {
        weight.kind != Kind::Adapter && !(self.own_scores && weight.is_scores())
    }

    /// The shared value of a base weight, of which the rank's part has this shape, if there is one.
    #[track_caller]
    pub fn of_base(
        &mut self,
        layer: Option<usize>,
        weight: &WeightSpec<'_>,
        shape: [usize; 2],
    ) -> Option<Value> {
        let shares = self.shares(weight);
        let base = self.base.as_mut().filter(|_| shares)?;
        let Some(value) = base.next() else { panic!("over a base: {} is missing", weight.name(layer)) };
        assert_eq!(value.shape(), shape, "over a base: {}", weight.name(layer));
        Some(value)
    }

    /// Checks that no value of the base is left.
    #[track_caller]
    pub fn end(&self) {
        let left = self.base.as_ref().map_or(0, ExactSizeIterator::len);
        assert!(left == 0, "over a base: it has {left} more weights");
    }
}

/// Packing of weights, by number in the whole model.
pub(crate) type Packings = BTreeMap<u32, Packing>;
