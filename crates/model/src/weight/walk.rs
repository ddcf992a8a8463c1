//! Iteration over a model's weights.

use fathom_grad::ParamId;

use super::cut::Cut;
use super::declaration::{Begins, InFiles, Kind, Module, NormSpec, Parallel, Projection, WeightSpec};
use super::names::Names;
use super::params::{AdapterParams, DistanceParams, LinearParams, NormParams, PrefixEncoder};

/// Adds an adapter's weights to those of projections.
pub(crate) trait Adapts {
    /// Declares the adapter's weights for a projection whose tensor names follow `at`; `None` if it has none.
    fn declare(&self, w: &mut Walk<'_>, at: &str, p: &Projection<'_>) -> Option<AdapterParams>;
}

/// Callback for a weight, with its layer if it is in a block; returns its id.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(Option<usize>, &WeightSpec<'_>) -> ParamId;

/// Callback for a projection, with its layer.
pub(crate) type See<'a> = &'a mut dyn FnMut(Option<usize>, &Projection<'_>, LinearParams);

/// A walk over a model's weights in their fixed order: every sub-layer declares its weights and gets the ids that it
/// computes with.
pub struct Walk<'a> {
    pub(crate) names: &'a Names,
    /// Names of the family, and the layers of its source.
    family: (&'a Names, usize),
    layer: Option<usize>,
    visit: Visit<'a>,
    adapter: Option<&'a dyn Adapts>,
    /// Called for projections, before their weights.
    see: Option<See<'a>>,
    /// The first weight that the adapter added to each projection.
    pub(crate) adapted: Vec<ParamId>,
    /// Weights of an encoder's input that its blocks read.
    pub(crate) distances: Option<DistanceParams>,
    /// Table of biases that the blocks of a stack share.
    pub(crate) biases: Option<ParamId>,
    /// Shared encoder of an adapter's prefix.
    pub(crate) prefix: Option<PrefixEncoder>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        (names, source): (&'a Names, usize),
        adapter: Option<&'a dyn Adapts>,
        visit: Visit<'a>,
    ) -> Walk<'a> {
        Walk {
            names,
            family: (names, source),
            layer: None,
            visit,
            adapter,
            see: None,
            adapted: Vec::new(),
            distances: None,
            biases: None,
            prefix: None,
        }
    }

    /// The same walk, also calling `see` for projections.
    pub(crate) fn seen_by(self, see: See<'a>) -> Walk<'a> {
        Walk { see: Some(see), ..self }
    }

    /// Moves the walk to a layer.
    pub(crate) fn enter(&mut self, layer: Option<usize>) {
        self.layer = layer;
        let (names, source) = self.family;
        (self.names, _) = names.of(source, layer, Module::Attention);
    }

    /// Prefix of the names of a module's tensors here.
    pub(crate) fn prefix(&self, module: Module) -> String {
        let (names, source) = self.family;
        names.of(source, self.layer, module).1
    }

    /// The current layer.
    pub(crate) fn layer(&self) -> Option<usize> {
        self.layer
    }

    /// Declares a weight.
    pub fn weight(&mut self, weight: WeightSpec<'_>) -> ParamId {
        (self.visit)(self.layer, &weight)
    }

    /// Declares a projection.
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
            let at = self.prefix(p.module);
            adapter.declare(self, &at, &p)
        });
        self.adapted.extend(adapter.as_ref().and_then(AdapterParams::first));
        let params = LinearParams { weight, bias, adapter };
        if let Some(see) = &mut self.see {
            see(self.layer, &p, params);
        }
        params
    }

    /// Declares a norm of this many columns.
    pub fn norm(&mut self, role: &'static str, module: Module, width: usize, n: NormSpec) -> NormParams {
        let (cut, stored) = (Cut::Whole(n.seen), InFiles::one(n.name, width));
        let weight = WeightSpec::new(role, (module, Kind::Norm), [1, width], cut, stored.clone());
        let weight = self.weight(weight);
        let bias = WeightSpec::new(role, (module, Kind::Bias), [1, width], cut, stored);
        NormParams { weight, bias: n.bias.then(|| self.weight(bias)) }
    }
}
