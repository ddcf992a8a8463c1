//! The operations, one folder each: contract and gradient in `mod.rs`, the slow composed definition in `reference.rs`,
//! compared by `tests.rs`. The methods on [`crate::Ctx`] for model code are here too.

pub mod activate;
pub mod add;
pub mod attention;
pub mod balance;
pub mod combine;
pub mod embed;
pub mod expert_mlp;
pub mod experts;
pub mod factors;
pub mod latent;
pub mod leading;
pub mod linear;
pub mod lora;
pub mod lstm;
pub mod norm;
pub mod parallel;
pub mod relative;
pub mod rescale;
pub mod rope;
pub mod route;
pub mod scale;
pub mod split;
pub mod table;

use crate::op::Out;

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
