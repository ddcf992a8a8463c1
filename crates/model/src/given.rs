//! What there is of a model's weights before they are declared.

use std::collections::BTreeMap;
use std::vec::IntoIter;

use fathom_grad::Value;
use fathom_tensor::Packing;

use crate::weight::{Kind, WeightSpec};

/// What there is of a model's weights as it is declared, besides room for them.
#[derive(Default)]
pub(crate) struct Given {
    /// Those that are held as blocks.
    pub blocked: Blocked,
    /// The values of the base, in their order, where another model has them.
    pub base: Option<IntoIter<Value>>,
    /// A head of scores is not one of them.
    pub own_scores: bool,
}

impl Given {
    /// A weight is one of the base's.
    pub fn shares(&self, weight: &WeightSpec<'_>) -> bool {
        weight.kind != Kind::Adapter && !(self.own_scores && weight.is_scores())
    }

    /// The value of a weight of the base, of which the rank has a part of this shape, if it is there.
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

    /// After the last weight.
    #[track_caller]
    pub fn end(&self) {
        let left = self.base.as_ref().map_or(0, ExactSizeIterator::len);
        assert!(left == 0, "over a base: it has {left} more weights");
    }
}

/// How weights are packed, by their numbers in the whole model.
pub(crate) type Blocked = BTreeMap<u32, Packing>;
