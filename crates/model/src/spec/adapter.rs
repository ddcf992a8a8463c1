//! Adapters of projections, as data: which method, of which projections, of what size.

use std::collections::{BTreeMap, BTreeSet};

/// What an adapter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterMethod {
    /// Low-rank terms (Hu et al., 2021).
    Lora {
        /// `alpha / sqrt(rank)` in place of `alpha / rank` (Kalajdzievski, 2023).
        rank_stabilised: bool,
        /// Lengths of rows are trained apart from their directions (DoRA; Liu et al., 2024).
        lengths: bool,
        /// Terms begin as the base's largest singular parts, which the base then lacks (PiSSA; Meng et al., 2024).
        singular: bool,
    },
    /// Trained factors of columns (IA3; Liu et al., 2022).
    Factors,
    /// Networks of this width behind sub-layers (Houlsby et al., 2019).
    Networks(usize),
    /// Virtual tokens before every document, whose embeddings are trained (Lester et al., 2021).
    Prompt {
        /// How many.
        tokens: usize,
        /// What computes them, if anything does (p-tuning; Liu et al., 2021).
        encoder: Option<PromptEncoder>,
    },
    /// Virtual tokens of which each layer's keys and values are trained (Li and Liang, 2021).
    Prefix {
        /// How many.
        tokens: usize,
        /// Hidden columns of the network that computes those of all layers, if there is one.
        encoder: Option<usize>,
    },
}

/// What computes the embeddings of virtual tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptEncoder {
    /// Its hidden columns; of an LSTM those of each direction.
    pub hidden: usize,
    /// An LSTM of two layers in both directions and an MLP of two layers, in place of an MLP of three.
    pub lstm: bool,
}

impl PromptEncoder {
    /// An MLP.
    pub fn mlp(hidden: usize) -> PromptEncoder {
        PromptEncoder { hidden, lstm: false }
    }
}

impl AdapterMethod {
    /// It has low-rank terms.
    pub(crate) fn is_low_rank(self) -> bool {
        matches!(self, AdapterMethod::Lora { .. })
    }
}

/// An adapter of a model's projections.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// What it does.
    pub method: AdapterMethod,
    /// The projections, by their names in files.
    pub modules: BTreeMap<String, Size>,
    /// Those of them whose input has the factors, not their output.
    pub inputs: BTreeSet<String>,
    /// Tokens of which the rows of the embedding are trained, in the order of these rows in files.
    pub tokens: Vec<u32>,
    /// Low-rank terms of projections have biases (`lora_bias` of PEFT).
    pub biases: bool,
    /// The share of what low-rank terms of projections read that is dropped in steps that train (`lora_dropout` of PEFT).
    pub dropout: f64,
    /// Files have A and B of stacked experts as PEFT 0.17 and 0.18 wrote them: A is of the output, B of the input.
    pub swapped: bool,
    /// Lengths are held as what columns are multiplied with, of weights that do not change ([`fix_lengths`]).
    pub fixed: bool,
}

/// The size of a projection's low-rank terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Columns between A and B.
    pub rank: usize,
    /// Over the rank, or its root, their weight.
    pub alpha: f64,
}

impl Adapter {
    /// An adapter of projections, without anything else.
    pub fn of(method: AdapterMethod, modules: BTreeMap<String, Size>, inputs: BTreeSet<String>) -> Adapter {
        let (tokens, biases, dropout, swapped) = (Vec::new(), false, 0.0, false);
        Adapter { method, modules, inputs, tokens, biases, dropout, swapped, fixed: false }
    }

    /// The weight of low-rank terms.
    pub fn scale(&self, Size { rank, alpha }: Size) -> f32 {
        let rank = rank as f64;
        match self.method {
            AdapterMethod::Lora { rank_stabilised: true, .. } => (alpha / rank.sqrt()) as f32,
            AdapterMethod::Lora { .. } => (alpha / rank) as f32,
            _ => 1.0,
        }
    }

    /// It adds terms to weights and does nothing else.
    pub fn adds(&self) -> bool {
        self.tokens.is_empty()
            && matches!(self.method, AdapterMethod::Lora { lengths: false, singular: false, .. })
    }

    /// Lengths of rows are trained apart from their directions.
    pub(crate) fn has_lengths(&self) -> bool {
        matches!(self.method, AdapterMethod::Lora { lengths: true, .. })
    }

    /// The width of its networks.
    pub(crate) fn network(&self) -> Option<usize> {
        match self.method {
            AdapterMethod::Networks(width) => Some(width),
            _ => None,
        }
    }
}
