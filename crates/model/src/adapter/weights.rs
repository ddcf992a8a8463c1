//! Weights that an adapter has apart from those of projections.

use fathom_grad::ParamId;

use crate::weight::{Begins, Cut, InFiles, InputSharing, Kind, LinearParams, Module, Term, Walk, WeightSpec};

/// A linear layer's role, and the names of its weight and bias in files; an empty name means no bias.
pub(super) type LayerNames = [&'static str; 3];

/// Declares a weight that every rank has whole.
pub(super) fn weight(
    w: &mut Walk<'_>,
    (role, module): (&'static str, Module),
    shape: [usize; 2],
    (name, term): (&'static str, Term),
    begins: Begins,
) -> ParamId {
    let in_file = if term == Term::Bias { vec![shape[1]] } else { shape.to_vec() };
    let stored = InFiles::whole(name, in_file);
    let spec = WeightSpec::new(role, (module, Kind::Adapter), shape, Cut::Whole(InputSharing::Rows), stored);
    w.weight(WeightSpec { term, begins, decays: term != Term::Bias, ..spec })
}

/// Declares a linear layer [out, inner] of an encoder; PyTorch initializes them within a bound of `inner`.
pub(super) fn linear(
    w: &mut Walk<'_>,
    ([role, name, bias], at): (LayerNames, Module),
    [out, inner]: [usize; 2],
    begins: Begins,
) -> LinearParams {
    let weighed = weight(w, (role, at), [out, inner], (name, Term::Weight), begins);
    let bias = (!bias.is_empty()).then(|| weight(w, (role, at), [1, out], (bias, Term::Bias), begins));
    LinearParams { weight: weighed, bias, adapter: None }
}
