//! An adapter added to the weights that it is of.

use std::sync::Arc;

use fathom_grad::{Param, Params};
use fathom_tensor::{Category, DType, Device, Meta};

use super::begin::{Adapted, set, values};
use super::{Adapter, AdapterParams};
use crate::model::Model;
use crate::portion::Portion;
use crate::walk::Kind;

/// The model without an adapter whose weights have what the adapter does, times `weight`: 1 to merge, -1 to take out low-rank terms that
/// were merged. Weights are changed where they are, so f32 ones lose the least.
///
/// # Panics
/// If ranks have parts of the model, or `params` are not this model's.
#[track_caller]
pub fn merge(device: &Device, model: &Model, params: Params, weight: f32) -> (Model, Params) {
    let Some(adapter) = model.spec.adapter.as_deref() else { return (model.clone(), params) };
    assert!(model.portion == Portion::whole(&model.spec), "merge: of a whole model");
    let params = unpacked(device, &params);
    for adapted in model.adapted() {
        merge_one(device, &params, &adapted, (adapter, weight));
    }
    let mut of_adapter = Vec::new();
    model.visit(&mut |_, _, weight| of_adapter.push(weight.kind == Kind::Adapter));
    let spec = model.spec.without_adapter();
    let nowhere = Device::new(Arc::new(Meta::new(device.machine.profile().clone())), u64::MAX);
    let (merged, mut kept) = Model::declare(&nowhere, &spec, DType::F32);
    let names: Vec<String> = kept.iter().map(|(_, param)| param.name.clone()).collect();
    kept = Params::default();
    let base = params.iter().zip(of_adapter).filter(|(_, of_adapter)| !of_adapter);
    for ((_, param), name) in base.map(|(of, _)| of).zip(names) {
        let Param { value, decays, trainable, .. } = param;
        kept.push(Param { name, value: value.clone(), decays: *decays, trainable: *trainable });
    }
    (Model { embed_scale: model.embed_scale, quantized: None, ..merged }, kept)
}

/// The same weights, none in few bits.
fn unpacked(device: &Device, params: &Params) -> Params {
    let mut whole = Params::default();
    for (id, param) in params.iter() {
        let Param { name, value, decays, trainable } = param;
        let value = if value.as_packed().is_some() {
            let [rows, cols] = value.shape();
            device.from_f32(rows, cols, &values(device, params, id), Category::Params).into()
        } else {
            value.clone()
        };
        whole.push(Param { name: name.clone(), value, decays: *decays, trainable: *trainable });
    }
    whole
}

impl Model {
    /// Puts the weights of the model without its adapter in the place of the base's.
    ///
    /// # Panics
    /// If they are not that model's.
    pub fn take_base(&self, params: &mut Params, base: &Params) {
        let mut of_adapter = Vec::new();
        self.visit(&mut |_, _, weight| of_adapter.push(weight.kind == Kind::Adapter));
        let mut whole = Params::default();
        let mut theirs = base.iter();
        for ((_, param), of_adapter) in params.iter().zip(of_adapter) {
            let Param { name, decays, trainable, .. } = param;
            let value = if of_adapter {
                param.value.clone()
            } else {
                let Some((_, base)) = theirs.next() else { panic!("take_base: {name} is missing") };
                assert_eq!(base.value.shape(), param.value.shape(), "take_base: {name}");
                base.value.clone()
            };
            whole.push(Param { name: name.clone(), value, decays: *decays, trainable: *trainable });
        }
        *params = whole;
    }
}

fn merge_one(device: &Device, params: &Params, adapted: &Adapted, (adapter, share): (&Adapter, f32)) {
    let of = |id| values(device, params, id);
    let (mut weight, cols) = (of(adapted.params.weight), params.shape(adapted.params.weight)[1]);
    match adapted.params.adapter {
        Some(AdapterParams::Lora(lora, lengths)) => {
            let (a, b, m) = (of(lora.a), of(lora.b), lengths.map(of));
            let rank = params.shape(lora.b)[1];
            let mut first = 0;
            for (index, ((at, rows), name)) in lora.runs.iter().zip(&adapted.names).enumerate() {
                let scale = share * adapter.scale(adapter.modules[name]);
                let a = &a[index * rank * cols..(index + 1) * rank * cols];
                for row in 0..rows {
                    let b = &b[(first + row) * rank..(first + row + 1) * rank];
                    let weight = &mut weight[(at + row) * cols..(at + row + 1) * cols];
                    add_low_rank(weight, (a, b), scale);
                    if let Some(m) = &m {
                        let square: f64 = weight.iter().map(|x| f64::from(*x).powi(2)).sum();
                        let factor = (f64::from(m[first + row]) / square.sqrt()) as f32;
                        weight.iter_mut().for_each(|x| *x *= factor);
                    }
                }
                first += rows;
            }
        }
        Some(AdapterParams::Factors { factors, input: true, .. }) => {
            let factors = of(factors);
            weight.iter_mut().enumerate().for_each(|(at, x)| *x *= factors[at % cols]);
        }
        Some(AdapterParams::Factors { factors, runs, input: false }) => {
            let factors = of(factors);
            let mut bias = adapted.params.bias.map(of);
            let rows = runs.iter().flat_map(|(at, rows)| at..at + rows);
            for (row, factor) in rows.zip(&factors) {
                weight[row * cols..(row + 1) * cols].iter_mut().for_each(|x| *x *= factor);
                bias.iter_mut().for_each(|bias| bias[row] *= factor);
            }
            if let (Some(id), Some(bias)) = (adapted.params.bias, bias) {
                set(device, &params.get(id).value, &bias);
            }
        }
        None => {}
    }
    set(device, &params.get(adapted.params.weight).value, &weight);
}

/// `row += scale b A`, summed in f64.
fn add_low_rank(row: &mut [f32], (a, b): (&[f32], &[f32]), scale: f32) {
    let cols = row.len();
    let mut sum = vec![0.0f64; cols];
    for (b, a) in b.iter().zip(a.chunks_exact(cols)) {
        sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += f64::from(*b) * f64::from(*a));
    }
    row.iter_mut().zip(sum).for_each(|(x, sum)| *x = (f64::from(*x) + f64::from(scale) * sum) as f32);
}
