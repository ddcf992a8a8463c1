//! Targets of a head's losses: labels, and a teacher's distributions.

use std::ops::Range;

use fathom_tensor::Tensor;

use super::Head;
use crate::params::Weights;
use crate::scope::Scope;

/// Targets of a micro-batch.
#[derive(Clone)]
pub struct Labels<'a> {
    /// i32 [1, t]; below zero: no loss.
    pub ids: Tensor,
    /// u8 [t, vocab / 8, rounded up]: bit masks of the tokens from which each label was sampled
    /// ([`fathom_tensor::choice::Choose::kept`]), over which alone the softmax is taken; all if absent.
    pub kept: Option<Tensor>,
    /// Further measurements of the first term at the labels, if it is a cross-entropy.
    pub measures: Option<Measures>,
    /// A teacher, for losses that have one.
    pub teacher: Option<Teacher<'a>>,
}

impl Labels<'_> {
    /// Labels of the whole vocabulary, at which nothing is measured, without a teacher.
    pub fn plain(ids: Tensor) -> Labels<'static> {
        Labels { ids, kept: None, measures: None, teacher: None }
    }
}

/// Sums over tokens with labels of what the cross-entropy finds besides the loss.
#[derive(Clone, Debug)]
pub struct Measures {
    /// f32 [2, 1], accumulators: the entropy of the softmax in nats, and 1 if the label has the largest logit.
    pub sums: Tensor,
    /// f32 [1, t], in the order of the labels: weight of the second metric; one if absent.
    pub of: Option<Tensor>,
    /// f32 [1, t], in the order of the labels: receives the second metric of each token.
    pub hits: Option<Tensor>,
}

/// Source of a teacher's distribution.
#[derive(Clone, Copy)]
pub enum Teacher<'a> {
    /// Another model's head, over hidden states [t, d] of the same rows. If the numbers of its rows and the student's
    /// differ, the common first rows are compared.
    Model {
        /// Its head.
        head: Head,
        /// Its weights.
        scope: &'a Scope<'a>,
        /// Its hidden states.
        x: &'a Tensor,
    },
    /// Its best tokens at the temperature, in the order of the labels.
    Best {
        /// i32 [t, k].
        ids: &'a Tensor,
        /// f32 [t, k].
        logps: &'a Tensor,
        /// True if the remaining mass is one more token.
        rest: bool,
    },
}

impl<'a> Teacher<'a> {
    /// The weights of its head, in memory until the result is dropped.
    pub(super) fn weights(&self) -> Option<Weights<'a>> {
        match self {
            Teacher::Model { head, scope, .. } => Some(head.weights(scope)),
            Teacher::Best { .. } => None,
        }
    }

    /// Its hidden states for these rows of this rank, and of the ranks that share them.
    pub(super) fn collect(&self, rows: Range<usize>) -> Option<Tensor> {
        match self {
            Teacher::Model { head, scope, x } => Some(head.collect(scope, &x.view_rows(rows))),
            Teacher::Best { .. } => None,
        }
    }
}
