//! The walk past a model's weights.

use fathom_grad::ParamId;

use super::cut::Cut;
use super::declaration::{Begins, InFiles, Kind, Module, Normed, Parallel, Projection, WeightSpec};
use super::names::Names;
use super::params::{AdapterParams, DistanceParams, LinearParams, NormParams, PrefixEncoder};

/// Adds an adapter's weights to those of projections.
pub(crate) trait Adapts {
    /// The adapter's weights of a projection whose tensors' names follow `at`; `None` where it has none.
    fn declare(&self, w: &mut Walk<'_>, at: &str, p: &Projection<'_>) -> Option<AdapterParams>;
}

/// A weight that something calls at its place: the layer, if it is a block's.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Option<usize>, &WeightSpec<'_>) -> ParamId;

/// A projection that something looks at.
pub(crate) type See<'a> = &'a mut dyn FnMut(Option<usize>, &Projection<'_>, LinearParams);

/// A walk past the weights of a model, in their fixed order: every sub-layer says what it has, and gets the ids that it computes
/// with.
pub struct Walk<'a> {
    pub(crate) names: &'a Names,
    layer: Option<usize>,
    visit: Visit<'a>,
    adapter: Option<&'a dyn Adapts>,
    /// Sees projections before their weights.
    see: Option<See<'a>>,
    /// What blocks of an encoder read of its input's weights.
    pub(crate) distances: Option<DistanceParams>,
    /// What the keys and values of an adapter's prefix are computed from in all layers.
    pub(crate) prefix: Option<PrefixEncoder>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(names: &'a Names, adapter: Option<&'a dyn Adapts>, visit: Visit<'a>) -> Walk<'a> {
        Walk { names, layer: None, visit, adapter, see: None, distances: None, prefix: None }
    }

    /// The same walk, on which something looks at projections.
    pub(crate) fn seen_by(self, see: See<'a>) -> Walk<'a> {
        Walk { see: Some(see), ..self }
    }

    /// The same walk, now in a layer.
    pub(crate) fn enter(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    /// The layer that it is in.
    pub(crate) fn layer(&self) -> Option<usize> {
        self.layer
    }

    /// Any weight.
    pub fn weight(&mut self, weight: WeightSpec<'_>) -> ParamId {
        (self.visit)(self.layer, &weight)
    }

    /// A projection.
    pub fn linear(&mut self, p: Projection<'_>) -> LinearParams {
        let [cut, bias_cut] = p.cuts();
        let (shape, stored) = ([p.out.iter().sum(), p.inner], p.stored.clone());
        let weight = WeightSpec::new(p.role, (p.module, p.kind), shape, cut, stored);
        let ends = p.parallel == Parallel::Rows && weight.begins == Begins::Normal;
        let weight = self.weight(if ends { WeightSpec { begins: Begins::Ending, ..weight } } else { weight });
        let bias = p.bias.then(|| {
            let stored = p.stored.clone();
            self.weight(WeightSpec::new(p.role, (p.module, Kind::Bias), [1, shape[0]], bias_cut, stored))
        });
        let adapter = self.adapter.and_then(|adapter| {
            let at = self.names.prefix(self.layer, p.module);
            adapter.declare(self, &at, &p)
        });
        let params = LinearParams { weight, bias, adapter };
        if let Some(see) = &mut self.see {
            see(self.layer, &p, params);
        }
        params
    }

    /// A norm of this many columns.
    pub fn norm(&mut self, role: &'static str, module: Module, width: usize, n: Normed) -> NormParams {
        let (cut, stored) = (Cut::Whole(n.seen), InFiles::one(n.name, width));
        let weight = WeightSpec::new(role, (module, Kind::Norm), [1, width], cut, stored.clone());
        let weight = self.weight(weight);
        let bias = WeightSpec::new(role, (module, Kind::Bias), [1, width], cut, stored);
        NormParams { weight, bias: n.bias.then(|| self.weight(bias)) }
    }
}
