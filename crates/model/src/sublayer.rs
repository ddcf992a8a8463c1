//! Sub-layers that a family brings along: what mixes tokens, or what each token goes through, declared and computed in a file of
//! its own.

use std::fmt;
use std::rc::Rc;

use fathom_grad::{Ctx, Val};

use crate::spec::Spec;
use crate::walk::Walk;

/// A sub-layer as a specification names it.
pub trait SubLayer: fmt::Debug + Sync {
    /// What it is called: two of the same name are the same.
    fn name(&self) -> &'static str;
    /// Its weights, each declared once.
    fn declare(&self, w: &mut Walk<'_>, s: &Spec) -> Custom;
}

/// A sub-layer with its weights.
pub type Custom = Rc<dyn SubLayerParams>;

/// What a sub-layer computes with its weights.
pub trait SubLayerParams: fmt::Debug {
    /// `h_td`, normalised, to what is added to the residual stream. It is called within a rows region: what needs all rows at
    /// once is put into [`Ctx::whole`].
    fn forward(&self, cx: &mut Ctx<'_>, s: &Spec, h_td: Val) -> Val;
}

impl PartialEq for dyn SubLayer {
    fn eq(&self, other: &dyn SubLayer) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn SubLayer {}
