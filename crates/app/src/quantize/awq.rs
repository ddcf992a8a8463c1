//! Where AWQ's factors go: columns of projections are multiplied by them, and what gives the columns is divided.

use std::collections::BTreeMap;

use fathom_model::{BlockTensor, InputSizes, Residual, SafeTensors, Spec, awq_scales, read_f32};

use super::moments::At;

/// Factors by the name of a tensor.
#[derive(Default)]
pub(super) struct Factors {
    /// Of columns.
    columns: BTreeMap<String, Vec<f32>>,
    /// By which rows of a projection are divided, and its bias.
    rows: BTreeMap<String, Vec<f32>>,
    /// By which a norm's weights are divided, one of which stands for 1 more if `plus_one`.
    norms: BTreeMap<String, Vec<f32>>,
    plus_one: bool,
}

/// All factors of a model whose projections are given inputs of these sizes.
///
/// # Errors
/// A model whose inputs have no norm of their own, or a file that cannot be read.
pub(super) fn factors(
    (spec, source): (&Spec, &SafeTensors),
    (tensors, group): (&[BlockTensor], usize),
    sizes: &BTreeMap<At, InputSizes>,
) -> Result<Factors, String> {
    if !matches!(spec.residual, Residual::Pre | Residual::Sandwich | Residual::Parallel) {
        return Err("has no norm of their own before its projections, which --to awq divides".into());
    }
    let mut all = Factors { plus_one: spec.norm.plus_one, ..Factors::default() };
    for ((layer, role), seen) in sizes {
        let of = |role: &'static str| {
            tensors.iter().filter(move |tensor| (tensor.layer, tensor.role) == (*layer, role))
        };
        let matrices: Vec<&BlockTensor> = of(role).filter(|tensor| tensor.shape.len() == 2).collect();
        let givers = match *role {
            "qkv" => of("attn_norm").collect(),
            "up" => of("mlp_norm").collect(),
            // A value's columns come out as they are where each head has its own; a gated MLP's as much as its second factor.
            "attn_out" if spec.heads == spec.kv_heads => named(of("qkv"), "v_proj"),
            "down" if spec.mlp.gated => named(of("up"), "up_proj"),
            _ => Vec::new(),
        };
        if givers.is_empty() {
            continue;
        }
        let read = |tensor: &&BlockTensor| {
            let values =
                read_f32(source, &tensor.name, 0..tensor.shape[0]).map_err(|error| error.to_string())?;
            Ok((values, [tensor.shape[0], tensor.shape[1]]))
        };
        let weights = matrices.iter().map(read).collect::<Result<Vec<_>, String>>()?;
        let found = awq_scales(&weights, seen, group);
        let divided = if matches!(*role, "qkv" | "up") { &mut all.norms } else { &mut all.rows };
        divided.extend(givers.into_iter().map(|tensor| (tensor.name.clone(), found.clone())));
        all.columns.extend(matrices.into_iter().map(|tensor| (tensor.name.clone(), found.clone())));
    }
    Ok(all)
}

/// Those of a module, its bias too.
fn named<'a>(of: impl Iterator<Item = &'a BlockTensor>, module: &str) -> Vec<&'a BlockTensor> {
    of.filter(|tensor| tensor.name.contains(&format!(".{module}."))).collect()
}

impl Factors {
    /// Multiplies and divides a projection's weights [rows, cols].
    pub fn scale(&self, name: &str, [_, cols]: [usize; 2], values: &mut [f32]) {
        if let Some(factors) = self.columns.get(name) {
            for row in values.chunks_exact_mut(cols) {
                row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
            }
        }
        if let Some(factors) = self.rows.get(name) {
            for (row, factor) in values.chunks_exact_mut(cols).zip(factors) {
                row.iter_mut().for_each(|x| *x /= factor);
            }
        }
    }

    /// Divides a norm's weights, or a bias.
    pub fn adjust(&self, name: &str, values: &mut [f32]) {
        let more = if self.plus_one && name.ends_with(".weight") { 1.0 } else { 0.0 };
        if let Some(factors) = self.norms.get(name) {
            values.iter_mut().zip(factors).for_each(|(x, factor)| *x = (*x + more) / factor - more);
        }
        if let Some(factors) = self.rows.get(name) {
            values.iter_mut().zip(factors).for_each(|(x, factor)| *x /= factor);
        }
    }
}
