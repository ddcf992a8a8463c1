//! Merges an adapter into the weights of its base.

use std::sync::Arc;

use fathom_grad::{ExpertTerm, HeadTerm, Param, Params};
use fathom_tensor::{Category, DType, Device, Meta};

use super::begin::{AdaptedProjection, set, values};
use super::{EmbedTerm, TableParams};
use crate::block::BlockParams;
use crate::model::Model;
use crate::portion::Portion;
use crate::spec::Adapter;
use crate::weight::{AdapterParams, Kind};

/// Adds `weight` times the adapter to the base's weights and returns the model without it: 1 merges, -1 removes
/// low-rank terms merged before. Weights are changed in place, so f32 ones lose the least precision.
///
/// # Panics
/// If ranks hold parts of the model, or `params` are not this model's.
#[track_caller]
pub fn merge(device: &Device, model: &Model, params: Params, weight: f32) -> (Model, Params) {
    let Some(adapter) = model.spec.adapter.as_deref() else { return (model.clone(), params) };
    assert!(model.portion == Portion::whole(&model.spec), "merge: of a whole model");
    let params = unpacked(device, &params);
    for adapted in model.adapted() {
        merge_one(device, &params, &adapted, (adapter, weight));
    }
    merge_experts(device, model, &params, weight);
    merge_tables(device, model, &params, (adapter, weight));
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

/// The same weights, quantized ones dequantized to f32.
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
    /// Replaces the base's weights with those of a model without the adapter.
    ///
    /// # Panics
    /// If `base` is not of that model.
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

fn merge_one(
    device: &Device,
    params: &Params,
    adapted: &AdaptedProjection,
    (adapter, share): (&Adapter, f32),
) {
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
        Some(AdapterParams::Experts(_)) | None => {}
    }
    set(device, &params.get(adapted.params.weight).value, &weight);
}

fn merge_experts(device: &Device, model: &Model, params: &Params, share: f32) {
    let Some(m) = &model.spec.moe else { return };
    let of = |id| values(device, params, id);
    let experts = model.blocks.iter().filter_map(BlockParams::experts);
    for linear in experts.flat_map(|experts| [experts.up, experts.down]) {
        let Some(AdapterParams::Experts(terms)) = linear.adapter else { continue };
        let (mut weight, [rows, cols]) = (of(linear.weight), params.shape(linear.weight));
        let own = rows / m.experts;
        for ExpertTerm { a, b, scale, columns: (first, columns) } in terms.into_iter().flatten() {
            let ([low, inner], [_, rank]) = (params.shape(a), params.shape(b));
            let (a, b, scale) = (of(a), of(b), share * scale);
            debug_assert_eq!(low, m.experts * rank);
            for (expert, column) in (0..m.experts).flat_map(|expert| (0..columns).map(move |at| (expert, at)))
            {
                let a = &a[expert * rank * inner..(expert + 1) * rank * inner];
                let b = &b[(expert * columns + column) * rank..][..rank];
                if m.transposed {
                    // A column of the expert's weight.
                    let at = |row: usize| (expert * own + row) * cols + first + column;
                    let mut turned: Vec<f32> = (0..inner).map(|row| weight[at(row)]).collect();
                    add_low_rank(&mut turned, (a, b), scale);
                    turned.into_iter().enumerate().for_each(|(row, x)| weight[at(row)] = x);
                } else {
                    let row = expert * own + first + column;
                    add_low_rank(&mut weight[row * cols..(row + 1) * cols], (a, b), scale);
                }
            }
        }
        set(device, &params.get(linear.weight).value, &weight);
    }
}

fn merge_tables(device: &Device, model: &Model, params: &Params, (adapter, share): (&Adapter, f32)) {
    let of = |id| values(device, params, id);
    let d = model.spec.hidden;
    if let Some(embed) = model.embed {
        let TableParams { term, rows } = embed.table;
        let mut table = term.is_some().then(|| of(embed.tokens)).or(rows.map(|_| of(embed.tokens)));
        if let (Some(EmbedTerm { a, b, scale }), Some(table)) = (term, &mut table) {
            let rank = params.shape(b)[1];
            let (a, b) = (of(a), of(b));
            let turned: Vec<f32> = (0..rank * d).map(|at| b[(at % d) * rank + at / d]).collect();
            for (row, a) in table.chunks_exact_mut(d).zip(a.chunks_exact(rank)) {
                add_low_rank(row, (&turned, a), share * scale);
            }
        }
        if let (Some(rows), Some(table)) = (rows, &mut table) {
            for (token, row) in adapter.tokens.iter().zip(of(rows).chunks_exact(d)) {
                table[*token as usize * d..][..d].copy_from_slice(row);
            }
        }
        if let Some(table) = table {
            set(device, &params.get(embed.tokens).value, &table);
        }
    }
    if let Some((head, HeadTerm { a, b, scale })) = model.last.and_then(|last| Some((last.head, last.term?)))
    {
        let (rank, mut table) = (params.shape(b)[1], of(head));
        let (a, b) = (of(a), of(b));
        for (row, b) in table.chunks_exact_mut(d).zip(b.chunks_exact(rank)) {
            add_low_rank(row, (&a, b), share * scale);
        }
        set(device, &params.get(head).value, &table);
    }
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
