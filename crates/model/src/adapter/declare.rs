//! Declares the weights that an adapter adds to a projection.

use std::collections::BTreeMap;
use std::ops::Range;

use fathom_grad::{Drops, LoraUse, ParamId, Runs};

use crate::spec::{Adapter, AdapterMethod, Size, Spec};
use crate::weight::{
    AdapterParams, Adapts, Begins, Cut, InFiles, InputSharing, Kind, Module, Parallel, Projection,
    StoredRows, Term, Walk, WeightSpec,
};

/// A tensor in files to which an adapter can apply.
pub(super) struct Part {
    pub name: std::borrow::Cow<'static, str>,
    /// Its rows within the weight.
    pub rows: Range<usize>,
}

/// The tensors in files that together make up a projection's weight.
pub(super) fn parts(p: &Projection<'_>) -> Vec<Part> {
    match &p.stored {
        InFiles::Stack(list) => {
            let mut first = 0;
            let part = |(name, rows): &(std::borrow::Cow<'static, str>, usize)| {
                first += rows;
                Part { name: name.clone(), rows: first - rows..first }
            };
            list.iter().map(part).collect()
        }
        InFiles::Rows(tensors) => {
            let part = |tensor: &StoredRows| Some(Part { name: tensor.name.into(), rows: tensor.within()? });
            tensors.iter().map(part).collect::<Option<_>>().unwrap_or_default()
        }
        InFiles::Whole(..) | InFiles::Experts(..) | InFiles::Unnamed => Vec::new(),
    }
}

impl Spec {
    /// Returns whether the adapter applies dropout in training steps.
    pub fn drops(&self) -> bool {
        self.adapter.as_ref().is_some_and(|adapter| adapter.dropout > 0.0)
    }

    /// The adapter's modules in a layer, by name within the layer: size, and whether factors apply to the input.
    /// Layers with equal weight shapes can still differ in these.
    pub(crate) fn adapted_in(&self, layer: usize) -> BTreeMap<&str, (Size, bool)> {
        let Some(adapter) = self.adapter.as_deref() else { return BTreeMap::new() };
        let at = self.prefix(Some(layer), Module::Attention);
        let own = adapter.modules.iter().filter_map(|(name, size)| {
            name.strip_prefix(&at).map(|rest| (rest, (*size, adapter.inputs.contains(name))))
        });
        own.collect()
    }
}

impl Adapts for Adapter {
    fn declare(&self, w: &mut Walk<'_>, at: &str, p: &Projection<'_>) -> Option<AdapterParams> {
        if p.kind != Kind::Linear {
            return None;
        }
        let size = |part: &Part| self.modules.get(&format!("{at}{}", part.name)).copied();
        let chosen: Vec<Part> = parts(p).into_iter().filter(|part| size(part).is_some()).collect();
        let sizes: Vec<Size> = chosen.iter().filter_map(size).collect();
        // Terms of lower rank are padded with zeros that stay zero.
        let rank = sizes.iter().map(|size| size.rank).max()?;
        let scales: Vec<f32> = sizes.iter().map(|size| self.scale(*size)).collect();
        let input = chosen.iter().any(|part| self.inputs.contains(&format!("{at}{}", part.name)));
        Some(match self.method {
            AdapterMethod::Lora { lengths, singular, .. } => {
                let begins = if singular { Begins::Zeros } else { Begins::Uniform };
                ProjectionTerms { w, p, chosen: &chosen, of: self }.lora((rank, &scales), begins, lengths)
            }
            AdapterMethod::Factors => ProjectionTerms { w, p, chosen: &chosen, of: self }.factors(input),
            _ => return None,
        })
    }
}

/// A projection whose adapter is being declared.
struct ProjectionTerms<'a, 'w, 'p> {
    w: &'a mut Walk<'w>,
    p: &'a Projection<'p>,
    chosen: &'a [Part],
    of: &'a Adapter,
}

impl ProjectionTerms<'_, '_, '_> {
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

    /// Column groups by which ranks split the adapter like its projection; a tensor in files may span several parts
    /// of it.
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

    /// Names in files of a per-column part of the adapter.
    fn by_columns(&self) -> InFiles {
        match &self.p.stored {
            InFiles::Rows(tensors) => {
                let mut end = 0;
                let part = |part: &Part| {
                    let tensor = tensors.iter().find(|tensor| tensor.name == part.name)?;
                    end += part.rows.len();
                    Some(tensor.moved(part.rows.start, end - part.rows.len()))
                };
                InFiles::Rows(self.chosen.iter().filter_map(part).collect())
            }
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
            Parallel::Columns => [Cut::Whole(InputSharing::Own), Cut::Rows(&groups), Cut::Rows(&groups)],
            // One row is a vector.
            Parallel::Rows if low == 1 => {
                [Cut::Rows(&all), Cut::Whole(InputSharing::Own), Cut::Whole(InputSharing::Rows)]
            }
            Parallel::Rows => [Cut::Cols, Cut::Whole(InputSharing::Own), Cut::Whole(InputSharing::Rows)],
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

    /// Dropout of this projection's terms.
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
            (Parallel::Columns, true) | (Parallel::Rows, false) => Cut::Whole(InputSharing::Rows),
        };
        let stored = if input { self.stack(|_| self.p.inner) } else { self.by_columns() };
        let factors = self.weight(Term::Factors, [1, runs.columns()], cut, stored, Begins::Identity);
        AdapterParams::Factors { factors, runs, input }
    }
}
