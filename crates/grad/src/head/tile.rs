//! A loss over logits as a value: what it is of a tile of tokens, and its gradient. A new one is a file with an implementation of
//! [`TileLoss`], and a kernel where operations of the machine do not suffice.

use std::fmt;
use std::ops::Range;

use fathom_tensor::{Category, DType, Tensor};

use super::{Head, Labels, Measures};
use crate::scope::Scope;

/// A loss of each token by its logits. Tensor parallel ranks have some columns of the logits each and call both methods together.
pub trait TileLoss: fmt::Debug + Send + Sync {
    /// Its name in what a step reports.
    fn name(&self) -> &'static str;

    /// The loss of each token into `losses`, f32 [1, r]; those whose label is below zero get 0. Reads the logits alone.
    fn losses(&self, tile: &Tile<'_>, losses: &Tensor);

    /// The gradient by the logits of the sum that `term` says, and the losses if it wants them. The gradient is [r, columns], in `to`
    /// if that is given, which may be the logits and may be narrower than f32; else in a tensor of its own, f32, which leaves out last
    /// columns that are all zeros.
    fn gradient(&self, tile: &Tile<'_>, term: &LossTerm<'_>, to: Option<&Tensor>) -> Tensor;
}

/// Some tokens' logits.
#[derive(Clone)]
pub struct Tile<'a> {
    /// Whose they are: what happens to them on the way to a loss, and which columns these are.
    pub head: &'a Head,
    /// Compute and memory.
    pub scope: &'a Scope<'a>,
    /// f32 [r, columns of this rank], before scale and cap.
    pub logits: &'a Tensor,
    /// Labels of all tokens.
    pub labels: &'a Labels<'a>,
    /// Those of this tile among them.
    pub tokens: Range<usize>,
    /// The teacher's hidden states of these tokens, if a model teaches.
    pub taught_by: Option<Tensor>,
    /// Further measurements of a cross-entropy, if it is the first term.
    pub measures: Option<&'a Measures>,
}

impl Tile<'_> {
    /// i32 [1, r]: the labels.
    pub fn ids(&self) -> Tensor {
        self.labels.ids.view_cols(self.tokens.clone())
    }

    /// The statistics of all ranks of the distributions at a temperature, f32 [2 x ranks, r] ([`fathom_tensor::VocabularyShare::all`]).
    pub fn statistics(&self, temperature: f64) -> Tensor {
        self.head.at(temperature).all_statistics(self.scope, &self.ids(), self.logits)
    }

    /// Room for rows of a number for each token.
    pub fn rows(&self, rows: usize) -> Tensor {
        self.scope.device.empty(rows, self.logits.rows(), DType::F32, Category::Activations)
    }

    /// Room for a gradient by the logits.
    pub fn like_logits(&self) -> Tensor {
        let [rows, columns] = self.logits.shape();
        self.scope.device.empty(rows, columns, DType::F32, Category::Activations)
    }
}

/// A loss in the sum that a head minimises: the factor times the sum of each token's loss times its weight. Of a tile it has the tile's
/// tokens.
#[derive(Clone)]
pub struct LossTerm<'a> {
    /// The loss.
    pub loss: &'a dyn TileLoss,
    /// f32 [1, t], in the order of the labels: weight of each token; one if absent.
    pub weights: Option<Tensor>,
    /// Multiplies all of them.
    pub factor: f32,
    /// f32 [1, t], in the same order: where each token's loss goes, without its weight, if it is wanted.
    pub losses: Option<Tensor>,
}

impl<'a> LossTerm<'a> {
    /// All tokens alike, their losses into f32 [1, t].
    pub fn of(loss: &'a dyn TileLoss, losses: &Tensor) -> LossTerm<'a> {
        LossTerm { loss, weights: None, factor: 1.0, losses: Some(losses.clone()) }
    }

    /// That of some tokens.
    pub(super) fn view(&self, tokens: &Range<usize>) -> LossTerm<'a> {
        let [weights, losses] =
            [&self.weights, &self.losses].map(|of| of.as_ref().map(|of| of.view_cols(tokens.clone())));
        LossTerm { weights, losses, ..*self }
    }

    /// Where a tile's losses go, for a kernel that writes them in any case.
    pub fn room(&self, tile: &Tile<'_>) -> Tensor {
        self.losses.clone().unwrap_or_else(|| tile.rows(1))
    }

    /// A tile's weights, for a kernel that needs them in any case.
    pub fn some_weights(&self, tile: &Tile<'_>) -> Tensor {
        let (device, rows) = (tile.scope.device, tile.logits.rows());
        let ones = || device.from_f32(1, rows, &vec![1.0; rows], Category::Activations);
        self.weights.clone().unwrap_or_else(ones)
    }

    /// A tile's weights times the factor; `None` where all are one.
    pub fn products(&self, tile: &Tile<'_>) -> Option<Tensor> {
        if self.factor == 1.0 {
            return self.weights.clone();
        }
        let products = tile.rows(1);
        tile.scope.device.machine.scale(&self.some_weights(tile), self.factor, &products);
        Some(products)
    }
}
