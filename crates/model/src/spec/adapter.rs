//! Adapters as data: method, modules and sizes.

use std::collections::{BTreeMap, BTreeSet};

/// Method of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterMethod {
    /// Low-rank terms (Hu et al., 2021).
    Lora {
        /// Scale `alpha / sqrt(rank)` instead of `alpha / rank` (Kalajdzievski, 2023).
        rank_stabilised: bool,
        /// Row magnitudes are trained separately from directions (DoRA; Liu et al., 2024).
        lengths: bool,
        /// Terms start as the base's largest singular parts, which are subtracted from the base (PiSSA; Meng et al.,
        /// 2024).
        singular: bool,
    },
    /// Trained factors of columns (IA3; Liu et al., 2022).
    Factors,
    /// Networks of this width after sub-layers (Houlsby et al., 2019).
    Networks(usize),
    /// Virtual tokens before every document, whose embeddings are trained (Lester et al., 2021).
    Prompt {
        /// Number of virtual tokens.
        tokens: usize,
        /// Encoder that computes the embeddings, if any (p-tuning; Liu et al., 2021).
        encoder: Option<PromptEncoder>,
    },
    /// Virtual tokens with trained keys and values in each layer (Li and Liang, 2021).
    Prefix {
        /// Number of virtual tokens.
        tokens: usize,
        /// Hidden columns of the shared network that computes them, if any.
        encoder: Option<usize>,
    },
}

/// Encoder of virtual tokens' embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptEncoder {
    /// Hidden columns; per direction for an LSTM.
    pub hidden: usize,
    /// A bidirectional LSTM of two layers and an MLP of two layers, instead of an MLP of three.
    pub lstm: bool,
}

impl PromptEncoder {
    /// An MLP encoder.
    pub fn mlp(hidden: usize) -> PromptEncoder {
        PromptEncoder { hidden, lstm: false }
    }
}

impl AdapterMethod {
    /// Returns whether it has low-rank terms.
    pub(crate) fn is_low_rank(self) -> bool {
        matches!(self, AdapterMethod::Lora { .. })
    }
}

/// An adapter of a model's projections.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Its method.
    pub method: AdapterMethod,
    /// Adapted modules, by name in files.
    pub modules: BTreeMap<String, Size>,
    /// Those whose factors scale the input instead of the output.
    pub inputs: BTreeSet<String>,
    /// Tokens with trained embedding rows, in the order of these rows in files.
    pub tokens: Vec<u32>,
    /// Whether low-rank terms of projections have biases (PEFT's `lora_bias`).
    pub biases: bool,
    /// Dropout rate on the input of projections' low-rank terms in training steps (PEFT's `lora_dropout`).
    pub dropout: f64,
    /// Whether files have A and B of stacked experts as PEFT 0.17 and 0.18 wrote them: A for the output, B for the
    /// input.
    pub swapped: bool,
    /// Whether magnitudes are replaced by column factors, for weights that do not change ([`fix_lengths`]).
    pub fixed: bool,
}

/// The size of a projection's low-rank terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Columns between A and B.
    pub rank: usize,
    /// Numerator of their scale; the denominator is the rank or its root.
    pub alpha: f64,
}

impl Adapter {
    /// An adapter of projections only.
    pub fn of(method: AdapterMethod, modules: BTreeMap<String, Size>, inputs: BTreeSet<String>) -> Adapter {
        let (tokens, biases, dropout, swapped) = (Vec::new(), false, 0.0, false);
        Adapter { method, modules, inputs, tokens, biases, dropout, swapped, fixed: false }
    }

    /// Scale of low-rank terms.
    pub fn scale(&self, Size { rank, alpha }: Size) -> f32 {
        let rank = rank as f64;
        match self.method {
            AdapterMethod::Lora { rank_stabilised: true, .. } => (alpha / rank.sqrt()) as f32,
            AdapterMethod::Lora { .. } => (alpha / rank) as f32,
            _ => 1.0,
        }
    }

    /// Returns whether it only adds low-rank terms.
    pub fn adds(&self) -> bool {
        self.tokens.is_empty()
            && matches!(self.method, AdapterMethod::Lora { lengths: false, singular: false, .. })
    }

    /// Returns whether row magnitudes are trained separately from directions.
    pub(crate) fn has_lengths(&self) -> bool {
        matches!(self.method, AdapterMethod::Lora { lengths: true, .. })
    }

    /// Width of its networks, if any.
    pub(crate) fn network(&self) -> Option<usize> {
        match self.method {
            AdapterMethod::Networks(width) => Some(width),
            _ => None,
        }
    }
}
