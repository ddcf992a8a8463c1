//! Where AWQ's factors go: columns of projections are multiplied by them, and what gives the columns is divided.

use std::collections::BTreeMap;

use fathom_model::{BlockTensor, InputSizes, Residual, SafeTensors, Scaled, Spec, awq_scales, read_f32};

use super::moments::At;

/// Tokens that an expert has to be given, at least, for the mean sizes of its inputs to count: they are then within a fifth or so.
const ENOUGH: u64 = 32;
/// What the activation of a gated MLP is multiplied with, where it is a tensor of its own.
const SECOND: &[&str] = &["up_proj", "w3"];

/// Factors by the name of a tensor.
#[derive(Default)]
pub(super) struct Factors {
    /// Of columns: of projections, and of routers and gates that read what they read.
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
    for ((layer, role, expert), seen) in sizes {
        let of = |role: &'static str, expert: Option<usize>| {
            let at = (*layer, role, expert);
            tensors.iter().filter(move |tensor| (tensor.layer, tensor.role, tensor.expert) == at)
        };
        let givers: Vec<&BlockTensor> = match *role {
            "qkv" => of("attn_norm", None).collect(),
            // All that reads the norm has its columns multiplied: an MLP, or experts, what they share, the router and gates.
            "up" => of("mlp_norm", None).collect(),
            // A value's columns come out as they are where each head has its own; a gated MLP's as much as its second factor.
            "attn_out" if spec.heads == spec.kv_heads => named(of("qkv", None), &["v_proj"]),
            "down" if spec.mlp.gated => named(of("up", None), SECOND),
            "shared.down" if spec.mlp.gated => named(of("shared.up", None), SECOND),
            "experts.down" if seen.tokens >= ENOUGH => named(of("experts.up", *expert), SECOND),
            _ => Vec::new(),
        };
        if givers.is_empty() {
            continue;
        }
        let readers: Vec<&BlockTensor> = match *role {
            "up" => tensors.iter().filter(|tensor| tensor.layer == *layer && reads_norm(tensor)).collect(),
            role => of(role, *expert).filter(|tensor| tensor.shape.len() == 2).collect(),
        };
        let found = shared_factors(source, (&readers, group), seen, sizes)?;
        let divided = if matches!(*role, "qkv" | "up") { &mut all.norms } else { &mut all.rows };
        divided.extend(givers.into_iter().map(|tensor| (tensor.name.clone(), found.clone())));
        all.columns.extend(readers.into_iter().map(|tensor| (tensor.name.clone(), found.clone())));
    }
    Ok(all)
}

/// Whether it is a matrix that reads what the norm before the MLP gives.
fn reads_norm(tensor: &BlockTensor) -> bool {
    let roles = ["up", "shared.up", "experts.up", "router", "shared.gate"];
    tensor.shape.len() == 2 && roles.contains(&tensor.role)
}

/// Factors of the columns of some weights, by those that are rounded.
fn shared_factors(
    source: &SafeTensors,
    (readers, group): (&[&BlockTensor], usize),
    seen: &InputSizes,
    sizes: &BTreeMap<At, InputSizes>,
) -> Result<Vec<f32>, String> {
    let nothing = InputSizes::default();
    let rounded = readers.iter().filter(|tensor| !matches!(tensor.role, "router" | "shared.gate"));
    let read = |tensor: &&BlockTensor| {
        let values = read_f32(source, &tensor.name, 0..tensor.shape[0]).map_err(|error| error.to_string())?;
        let given = sizes.get(&(tensor.layer, tensor.role, tensor.expert)).unwrap_or(&nothing);
        Ok(Scaled { values, shape: [tensor.shape[0], tensor.shape[1]], given })
    };
    let weights = rounded.map(read).collect::<Result<Vec<_>, String>>()?;
    Ok(awq_scales(&weights, seen, group))
}

/// Those of modules, their biases too.
fn named<'a>(of: impl Iterator<Item = &'a BlockTensor>, modules: &[&str]) -> Vec<&'a BlockTensor> {
    let is_one =
        |tensor: &&BlockTensor| modules.iter().any(|module| tensor.name.contains(&format!(".{module}.")));
    of.filter(is_one).collect()
}

impl Factors {
    /// Whether the columns of a projection have factors.
    pub fn has(&self, name: &str) -> bool {
        self.columns.contains_key(name)
    }

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

    /// Divides a norm's weights, or a bias; multiplies the columns of a router or a gate.
    pub fn adjust(&self, name: &str, values: &mut [f32]) {
        if let Some(factors) = self.columns.get(name) {
            let rows = values.chunks_exact_mut(factors.len());
            rows.for_each(|row| row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor));
        }
        let more = if self.plus_one && name.ends_with(".weight") { 1.0 } else { 0.0 };
        if let Some(factors) = self.norms.get(name) {
            values.iter_mut().zip(factors).for_each(|(x, factor)| *x = (*x + more) / factor - more);
        }
        if let Some(factors) = self.rows.get(name) {
            values.iter_mut().zip(factors).for_each(|(x, factor)| *x /= factor);
        }
    }
}
