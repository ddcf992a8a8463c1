//! Maximal update parametrization (muP; Yang et al., "Tensor Programs V", 2022, table 3, for Adam): initial values and
//! learning rates with which the best learning rate does not change with the width.

use fathom_grad::Params;

use crate::model::Model;
use crate::weight::{Kind, Module, WeightSpec};

/// Axes of a matrix that grow with the width.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// None, or its results' alone: embeddings, biases, norms.
    Results,
    /// Its inputs' and its results'.
    Both,
    /// Its inputs' alone: the head, routers.
    Inputs,
}

fn growth(weight: &WeightSpec<'_>) -> Growth {
    match weight.kind {
        Kind::Linear | Kind::Experts(_) => Growth::Both,
        Kind::Gate => Growth::Inputs,
        Kind::Table if weight.module == Module::Head => Growth::Inputs,
        _ => Growth::Results,
    }
}

/// Factor of a weight's initial deviation, in a model `ratio` times as wide.
pub(super) fn deviation(weight: &WeightSpec<'_>, ratio: f64) -> f64 {
    match growth(weight) {
        Growth::Results => 1.0,
        Growth::Both => 1.0 / ratio.sqrt(),
        Growth::Inputs => 1.0 / ratio,
    }
}

impl Model {
    /// Follows muP: the model is `ratio` times as wide as one for which the initial deviation and the learning rate were
    /// chosen. Sets the rates of `params`; initial values follow when they are made.
    pub fn follow_width(&mut self, params: &mut Params, ratio: f64) {
        self.width_ratio = ratio;
        self.visit(&mut |id, _, weight| {
            if growth(weight) != Growth::Results {
                params.scale_rate(id, (1.0 / ratio) as f32);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fathom_cpu::Cpu;
    use fathom_tensor::{DType, Device};

    use super::*;
    use crate::{Init, LlamaSizes, Spec, initialise};

    /// By name, the deviation of each matrix and its rate, at a width.
    fn seen(hidden: usize, base: usize) -> BTreeMap<String, (f64, f32)> {
        let sizes = LlamaSizes {
            hidden,
            heads: hidden / 16,
            kv_heads: hidden / 16,
            head_dim: 16,
            ffn: 2 * hidden,
            layers: 1,
            tied: false,
            ..LlamaSizes::TINY
        };
        let device = Device::new(std::sync::Arc::new(Cpu::new(1, None)), 1 << 28);
        let (mut model, mut params) = Model::declare(&device, &Spec::llama(sizes), DType::F32);
        model.follow_width(&mut params, hidden as f64 / base as f64);
        initialise(&device, &model, &mut params, Init::new(1));
        let seen = |(id, param): (_, &fathom_grad::Param)| {
            let values = device.to_f32(param.value.resident().unwrap());
            let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            (param.name.clone(), ((squares / values.len() as f64).sqrt(), params.rate(id)))
        };
        params.iter().map(seen).collect()
    }

    #[test]
    fn deviations_and_rates_follow_the_width_by_role() {
        let (base, wide) = (seen(32, 32), seen(512, 32));
        for (name, (deviation, rate)) in &wide {
            let ratio = deviation / base[name].0;
            let (expected, of_rate) = match name.as_str() {
                "embed.weight" => (1.0, 1.0),
                "head.weight" => (1.0 / 16.0, 1.0 / 16.0),
                name if name.contains("norm") => (1.0, 1.0),
                _ => (0.25, 1.0 / 16.0),
            };
            assert!((ratio / expected - 1.0).abs() < 0.15, "{name}: {ratio} for {expected}");
            assert_eq!(*rate, of_rate, "{name}");
        }
        assert!(base.values().all(|(_, rate)| *rate == 1.0));
    }
}
