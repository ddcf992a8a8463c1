//! Optional norms.

use fathom_grad::{Ctx, Val};

use crate::spec::Spec;
use crate::weight::{InputSharing, NormParams, NormSpec};

/// Applies a norm if the family has one here.
pub(crate) fn norm(
    cx: &mut Ctx<'_>,
    s: &Spec,
    names: [&'static str; 2],
    x: Val,
    p: Option<NormParams>,
) -> Val {
    p.map_or(x, |p| cx.norm(names, x, s.norm, p.weight, p.bias))
}

impl Spec {
    /// A norm of the residual stream.
    pub(crate) fn normed(&self, name: &'static str) -> NormSpec {
        NormSpec { name, bias: self.norm_bias, seen: InputSharing::Rows }
    }
}
