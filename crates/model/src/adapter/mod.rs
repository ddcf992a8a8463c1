//! Adapters of projections, as data: which method, of which projections, of what size. A specification with one declares the adapter's
//! weights next to those of each projection, so names in files, sharding, first values, plans and checkpoints follow.
//!
//! Names in files are those of PEFT without `base_model.model.`: an adapter is of a projection as files know it (`q_proj`), also where the
//! model has several of them in one weight.

mod apply;
mod begin;
mod config;
mod experts;
mod houlsby;
mod leading;
mod lstm;
mod merge;
mod off;
mod peft;
mod read;
mod saved;
mod share;
mod singular;
mod tables;
mod targets;
mod tensors;
mod turned;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fathom_grad::{Drops, ExpertTerm, LoraUse, ParamId, Runs};

use crate::portion::{Cut, Seen};
use crate::spec::Spec;
use crate::walk::{Begins, InFiles, Kind, Module, Parallel, Projection, Term, Walk, WeightSpec};

pub use begin::{adapt, begin_as, load_adapted};
pub(crate) use experts::declare_experts;
pub use houlsby::HoulsbyParams;
pub use leading::{PrefixEncoder, PrefixParams, PromptParams};
pub(crate) use leading::{declare_prefix, led};
pub use merge::merge;
pub use peft::{SavedAdapter, load_peft, open_peft, save_peft};
pub(crate) use share::Given;
pub use share::{changes_base, fix_lengths, load_scores, share_base, share_untrained, shared_bytes};
pub(crate) use tables::head_term;
pub use tables::{EmbedTerm, TableParams};
pub use targets::Targets;
pub use tensors::PeftTensors;

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

/// The weights of a projection's adapter.
#[derive(Clone, Copy, Debug)]
pub enum AdapterParams {
    /// Low-rank terms, and the lengths [1, columns] of DoRA.
    Lora(LoraUse, Option<ParamId>),
    /// Low-rank terms of experts.
    Experts([Option<ExpertTerm>; 2]),
    /// Factors [1, columns] of these columns of the output, or of all of the input.
    Factors {
        /// The factors.
        factors: ParamId,
        /// Of which columns.
        runs: Runs,
        /// Of the input.
        input: bool,
    },
}

/// A tensor of files that an adapter can be of.
struct StoredRows {
    name: std::borrow::Cow<'static, str>,
    /// Its rows of the weight.
    rows: Range<usize>,
}

/// The tensors of files that are all of a projection's weight.
fn parts(p: &Projection<'_>) -> Vec<StoredRows> {
    let out: usize = p.out.iter().sum();
    match &p.stored {
        InFiles::Stack(list) => {
            let mut first = 0;
            let part = |(name, rows): &(std::borrow::Cow<'static, str>, usize)| {
                first += rows;
                StoredRows { name: name.clone(), rows: first - rows..first }
            };
            list.iter().map(part).collect()
        }
        InFiles::Rows(name, all, _) if *all == out => vec![StoredRows { name: (*name).into(), rows: 0..out }],
        InFiles::Rows(..) | InFiles::Whole(..) | InFiles::Experts(..) | InFiles::Unnamed => Vec::new(),
    }
}

impl Spec {
    /// Its adapter drops some of what it reads, in steps that train.
    pub fn drops(&self) -> bool {
        self.adapter.as_ref().is_some_and(|adapter| adapter.dropout > 0.0)
    }

    /// What the adapter has in a layer, by names within the layer: sizes, and whether factors are of an input. Weights of equal shapes can
    /// still be of other projections, or have another weight.
    pub(crate) fn adapted_in(&self, layer: usize) -> BTreeMap<&str, (Size, bool)> {
        let Some(adapter) = self.adapter.as_deref() else { return BTreeMap::new() };
        let at = prefix(&self.family.names, Some(layer), Module::Attention);
        let own = adapter.modules.iter().filter_map(|(name, size)| {
            name.strip_prefix(&at).map(|rest| (rest, (*size, adapter.inputs.contains(name))))
        });
        own.collect()
    }
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
    fn has_lengths(&self) -> bool {
        matches!(self.method, AdapterMethod::Lora { lengths: true, .. })
    }

    /// The width of its networks.
    pub(crate) fn network(&self) -> Option<usize> {
        match self.method {
            AdapterMethod::Networks(width) => Some(width),
            _ => None,
        }
    }

    /// The adapter's weights of a projection whose tensors' names follow `at`; `None` where it has none.
    pub(crate) fn declare(&self, w: &mut Walk<'_>, at: &str, p: &Projection<'_>) -> Option<AdapterParams> {
        if p.kind != Kind::Linear {
            return None;
        }
        let size = |part: &StoredRows| self.modules.get(&format!("{at}{}", part.name)).copied();
        let chosen: Vec<StoredRows> = parts(p).into_iter().filter(|part| size(part).is_some()).collect();
        let sizes: Vec<Size> = chosen.iter().filter_map(size).collect();
        // Those of lower rank are filled up with zeros, which stay.
        let rank = sizes.iter().map(|size| size.rank).max()?;
        let scales: Vec<f32> = sizes.iter().map(|size| self.scale(*size)).collect();
        let input = chosen.iter().any(|part| self.inputs.contains(&format!("{at}{}", part.name)));
        Some(match self.method {
            AdapterMethod::Lora { lengths, singular, .. } => {
                let begins = if singular { Begins::Zeros } else { Begins::Uniform };
                Declared { w, p, chosen: &chosen, of: self }.lora((rank, &scales), begins, lengths)
            }
            AdapterMethod::Factors => Declared { w, p, chosen: &chosen, of: self }.factors(input),
            _ => return None,
        })
    }
}

/// A projection whose adapter is declared.
struct Declared<'a, 'w, 'p> {
    w: &'a mut Walk<'w>,
    p: &'a Projection<'p>,
    chosen: &'a [StoredRows],
    of: &'a Adapter,
}

impl Declared<'_, '_, '_> {
    fn weight(
        &mut self,
        term: Term,
        shape: [usize; 2],
        cut: Cut<'_>,
        stored: InFiles,
        begins: Begins,
    ) -> ParamId {
        let spec = WeightSpec::new(self.p.role, (self.p.module, Kind::Adapter), shape, cut, stored);
        let decays = matches!(term, Term::LoraA | Term::LoraB);
        self.w.weight(WeightSpec { term, begins, decays, ..spec })
    }

    fn runs(&self) -> Runs {
        let runs: Vec<(usize, usize)> =
            self.chosen.iter().map(|part| (part.rows.start, part.rows.len())).collect();
        Runs::new(&runs)
    }

    /// The columns of all runs as ranks cut those of the projection: a tensor in files may be several of its parts.
    fn groups(&self) -> Vec<usize> {
        let mut groups = Vec::new();
        for part in self.chosen {
            let mut end = 0;
            for out in self.p.out {
                end += out;
                let both = part.rows.start.max(end - out)..part.rows.end.min(end);
                groups.extend((!both.is_empty()).then_some(both.len()));
            }
        }
        groups
    }

    /// What files call the adapter's part for each column of the projection.
    fn by_columns(&self) -> InFiles {
        match &self.p.stored {
            rows @ InFiles::Rows(..) => rows.clone(),
            _ => self.stack(Range::len),
        }
    }

    fn stack(&self, rows: impl Fn(&Range<usize>) -> usize) -> InFiles {
        InFiles::Stack(self.chosen.iter().map(|part| (part.name.clone(), rows(&part.rows))).collect())
    }

    fn lora(&mut self, (rank, scales): (usize, &[f32]), begins: Begins, lengths: bool) -> AdapterParams {
        let (inner, runs) = (self.p.inner, self.runs());
        let groups = self.groups();
        let (low, all) = (runs.len() * rank, [inner]);
        let [a_cut, b_cut, m_cut] = match self.p.parallel {
            Parallel::Whole(seen) => [Cut::Whole(seen); 3],
            Parallel::Columns => [Cut::Whole(Seen::Own), Cut::Rows(&groups), Cut::Rows(&groups)],
            // One row is a vector.
            Parallel::Rows if low == 1 => [Cut::Rows(&all), Cut::Whole(Seen::Own), Cut::Whole(Seen::Rows)],
            Parallel::Rows => [Cut::Cols, Cut::Whole(Seen::Own), Cut::Whole(Seen::Rows)],
        };
        let a = self.weight(
            Term::LoraA,
            [low, inner],
            a_cut,
            self.stack(|_| if low == 1 { inner } else { rank }),
            begins,
        );
        let by_columns = self.by_columns();
        let b = self.weight(Term::LoraB, [runs.columns(), rank], b_cut, by_columns.clone(), Begins::Zeros);
        let row = [1, runs.columns()];
        let bias = self
            .of
            .biases
            .then(|| self.weight(Term::LoraBias, row, m_cut, by_columns.clone(), Begins::Zeros));
        let m = lengths.then(|| self.weight(Term::Lengths, row, m_cut, by_columns, Begins::Identity));
        let (drops, fixed) = (self.drops(), self.of.fixed);
        AdapterParams::Lora(LoraUse { bias, drops, fixed, ..LoraUse::new(a, b, scales, runs) }, m)
    }

    /// How the terms of this projection drop what they read.
    fn drops(&self) -> Option<Drops> {
        let salt = self
            .p
            .role
            .bytes()
            .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let (rate, layer) = (self.of.dropout as f32, self.w.layer().unwrap_or_default());
        (rate > 0.0).then_some(Drops { rate, salt, layer })
    }

    fn factors(&mut self, input: bool) -> AdapterParams {
        let runs = if input { Runs::new(&[(0, self.p.inner)]) } else { self.runs() };
        let groups = if input { vec![self.p.inner] } else { self.groups() };
        let cut = match (self.p.parallel, input) {
            (Parallel::Columns, false) | (Parallel::Rows, true) => Cut::Rows(&groups),
            (Parallel::Whole(seen), _) => Cut::Whole(seen),
            (Parallel::Columns, true) | (Parallel::Rows, false) => Cut::Whole(Seen::Rows),
        };
        let stored = if input { self.stack(|_| self.p.inner) } else { self.by_columns() };
        let factors = self.weight(Term::Factors, [1, runs.columns()], cut, stored, Begins::Identity);
        AdapterParams::Factors { factors, runs, input }
    }
}

/// What stands before the names of a layer's tensors, or of those outside the layers.
pub(crate) fn prefix(names: &crate::family::Names, layer: Option<usize>, module: Module) -> String {
    match (layer, module) {
        (Some(layer), _) => format!("{}{}.{layer}.", names.base, names.layers),
        (None, Module::Head) => String::new(),
        (None, _) => names.base.to_string(),
    }
}
