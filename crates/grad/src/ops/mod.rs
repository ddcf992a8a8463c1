//! The operations, one folder each: contract and gradient in `mod.rs`, the slow composed definition in `reference.rs`,
//! compared by `tests.rs`. The methods on [`crate::Ctx`] for model code are here too.

pub mod activate;
pub mod add;
pub mod attention;
pub mod balance;
mod borders;
mod circle;
pub mod combine;
pub mod conv;
pub mod deal;
pub mod delta;
pub mod embed;
pub mod expert_mlp;
pub mod experts;
pub mod factors;
pub mod gated_norm;
pub mod latent;
pub mod leading;
pub mod linear;
pub mod lora;
pub mod lstm;
pub mod norm;
pub mod parallel;
pub mod product;
pub mod relative;
pub mod rescale;
pub mod rope;
pub mod route;
pub mod scale;
pub mod split;
pub mod ssd;
pub mod table;

use fathom_tensor::{DocumentRuns, Tensor};

use crate::op::{Exec, Out};

#[cfg(test)]
mod tests;

/// The single value of an operation with one output.
fn only<T: Copy>(outs: Vec<T>) -> T {
    outs[0]
}

/// A differentiable output shaped like an input.
fn like(name: &'static str, desc: crate::Desc) -> Vec<Out> {
    vec![Out::new(name, desc.cols, desc.dtype)]
}

/// The documents of the rows that an operation reads in order.
///
/// # Panics
/// If the batch has none.
#[track_caller]
fn documents<'a>(x: &Exec<'a>, op: &str) -> &'a DocumentRuns {
    let batch: &'a crate::Batch = x.batch;
    let Some(documents) = &batch.documents else {
        panic!("{op}: the batch does not say where documents begin")
    };
    documents
}

/// In generation, the states of this name before the rows of each of the batch's sequences; else none.
#[track_caller]
fn states(x: &mut Exec<'_>, op: &str, name: &str) -> Vec<Tensor> {
    let (runs, device, layer) = (&documents(x, op).runs, x.device, x.layer as usize);
    let Some(kv) = x.kv.as_deref_mut() else { return Vec::new() };
    runs.iter().map(|run| kv.state(device, layer, name, run.document)).collect()
}
