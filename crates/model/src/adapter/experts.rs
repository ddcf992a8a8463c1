//! Low-rank terms of experts. An adapter applies to each expert's projections, separate modules in files, or to the
//! tensors in which Transformers 5 stacks all experts of a layer (PEFT's `target_parameters`); then gate and up share
//! one A.

use std::borrow::Cow;

use fathom_grad::ExpertTerm;

use crate::spec::{Adapter, Moe, Size, Spec};
use crate::weight::{
    AdapterParams, Begins, Cut, Experts, InFiles, Inside, Kind, Module, MoeNames, Term, Walk, WeightSpec,
};

/// Names of the stacked experts inside a block in Transformers 5, for every family: inputs, then outputs.
pub(super) const STACKED: [&str; 2] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"];
/// Roles of the weights that the terms apply to.
const ROLES: [&str; 3] = ["experts.gate", "experts.up", "experts.down"];

/// A projection of experts to which an adapter can apply.
pub(super) struct ExpertPart {
    /// Name inside its block.
    pub name: String,
    pub role: &'static str,
    pub out: usize,
    pub inner: usize,
    /// Whether it holds all experts.
    pub stacked: bool,
}

/// The projections of the experts of a layer.
pub(super) fn parts(s: &Spec, names: &MoeNames, m: &Moe) -> Vec<ExpertPart> {
    let (d, f) = (m.width(s.hidden), m.ffn);
    let stacked = STACKED.into_iter().zip([(ROLES[1], m.wide(s.mlp.gated), d), (ROLES[2], d, f)]);
    let mut all: Vec<ExpertPart> = stacked
        .map(|(name, (role, out, inner))| ExpertPart { name: name.into(), role, out, inner, stacked: true })
        .collect();
    if let Experts::Each(at, each) = names.experts {
        let sizes = [(f, d), (f, d), (d, f)];
        all.extend((0..m.experts).flat_map(|expert| {
            let parts = each.into_iter().zip(ROLES).zip(sizes).skip(usize::from(!s.mlp.gated));
            parts.map(move |((part, role), (out, inner))| ExpertPart {
                name: format!("{at}.{expert}.{part}"),
                role,
                out,
                inner,
                stacked: false,
            })
        }));
    }
    all
}

/// One term of a layer's experts, being declared.
struct ExpertTerms<'a> {
    m: &'a Moe,
    adapter: &'a Adapter,
    role: &'static str,
    size: Size,
    /// Its columns of an expert's result: the first, and their count.
    columns: (usize, usize),
    /// Groups of these columns, split among ranks that share an expert.
    groups: &'a [usize],
    inner: usize,
    way_in: bool,
    /// Names of A and B in files.
    stored: [InFiles; 2],
}

impl ExpertTerms<'_> {
    fn term(self, w: &mut Walk<'_>) -> ExpertTerm {
        let (n, rank) = (self.m.experts, self.size.rank);
        let [a_inside, b_inside] = if self.way_in {
            [Inside::Whole, Inside::Rows(self.groups)]
        } else {
            [Inside::Cols, Inside::Whole]
        };
        let [a_stored, b_stored] = self.stored;
        let mut weight = |term, shape, inside, stored, begins| {
            let at = (Module::Mlp, Kind::Adapter);
            let spec = WeightSpec::new(self.role, at, shape, Cut::Experts(n, inside), stored);
            w.weight(WeightSpec { term, begins, decays: true, ..spec })
        };
        let a = weight(Term::LoraA, [n * rank, self.inner], a_inside, a_stored, Begins::Uniform);
        let out = self.columns.1;
        let b = weight(Term::LoraB, [n * out, rank], b_inside, b_stored, Begins::Zeros);
        ExpertTerm { a, b, scale: self.adapter.scale(self.size), columns: self.columns }
    }
}

/// Terms of the input or output projections of a layer's experts, if the adapter has any.
pub(crate) fn declare_experts(w: &mut Walk<'_>, s: &Spec, m: &Moe, way_in: bool) -> Option<AdapterParams> {
    let (adapter, names) = (s.adapter.as_deref()?, w.names.moe.as_ref()?);
    let at = w.prefix(Module::Mlp);
    let (d, f, wide) = (m.width(s.hidden), m.ffn, m.wide(s.mlp.gated));
    let inner = if way_in { d } else { f };
    let stacked = STACKED[usize::from(!way_in)];
    if let Some(size) = adapter.modules.get(&format!("{at}{stacked}")).copied() {
        let (columns, halves) = (if way_in { wide } else { d }, [f, f]);
        // Interleaved gate and up are split in pairs.
        let all = [columns];
        let groups: &[usize] = if way_in && !m.transposed && wide > f { &halves } else { &all };
        let file = |end: &str, shape: [usize; 2]| InFiles::whole(Cow::from(format!("{stacked}{end}")), shape);
        let (n, rank) = (m.experts, size.rank);
        let stored =
            [file(Term::LoraA.end(), [n * rank, inner]), file(Term::LoraB.end(), [n * columns, rank])];
        let (role, columns) = (ROLES[if way_in { 1 } else { 2 }], (0, columns));
        let term = ExpertTerms { m, adapter, role, size, columns, groups, inner, way_in, stored }.term(w);
        return Some(AdapterParams::Experts([Some(term), None]));
    }
    let Experts::Each(place, each) = names.experts else { return None };
    let which: &[usize] = match (way_in, s.mlp.gated) {
        (true, true) => &[0, 1],
        (true, false) => &[1],
        (false, _) => &[2],
    };
    let mut terms = [None; 2];
    for (term, part) in terms.iter_mut().zip(which) {
        let name = each[*part];
        let Some(size) = adapter.modules.get(&format!("{at}{place}.0.{name}")).copied() else { continue };
        let out = if way_in { f } else { d };
        let columns = (if *part == 1 { wide - f } else { 0 }, out);
        let file = |rows| InFiles::Experts(place, vec![(name, rows)]);
        let (stored, role, groups) = ([file(size.rank), file(out)], ROLES[*part], [out]);
        let groups = &groups[..];
        *term = Some(ExpertTerms { m, adapter, role, size, columns, groups, inner, way_in, stored }.term(w));
    }
    terms.iter().any(Option::is_some).then_some(AdapterParams::Experts(terms))
}
