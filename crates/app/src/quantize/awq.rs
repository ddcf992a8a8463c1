//! Placement of AWQ's factors: the columns of projections are multiplied by them, and the weights that produce these
//! columns are divided.

use std::collections::BTreeMap;

use fathom_model::{
    BlockTensor, InputSizes, Residual, SafeTensors, ScaledColumns, Spec, awq_scales, read_f32,
};

use super::moments::At;

/// Minimum tokens routed to an expert for the mean sizes of its inputs to count; they are then accurate to about a
/// fifth.
const ENOUGH: u64 = 32;
/// Projections whose output multiplies the activation of a gated MLP, if they are separate tensors.
const SECOND: &[&str] = &["up_proj", "w3"];

/// Factors by tensor name.
#[derive(Default)]
pub(super) struct Factors {
    /// Multipliers of columns: of projections, and of the routers and gates with the same input.
    columns: BTreeMap<String, Vec<f32>>,
    /// Divisors of a projection's rows and of its bias.
    rows: BTreeMap<String, Vec<f32>>,
    /// Divisors of a norm's weights, which are stored minus 1 if `plus_one`.
    norms: BTreeMap<String, Vec<f32>>,
    plus_one: bool,
}

/// Computes all factors of a model from the sizes of its projections' inputs.
///
/// # Errors
/// A model whose projections have no norm of their own before them; a file that cannot be read.
pub(super) fn factors(
    (spec, source): (&Spec, &SafeTensors),
    (tensors, group): (&[BlockTensor], usize),
    sizes: &BTreeMap<At, InputSizes>,
) -> Result<Factors, String> {
    let own = [Residual::Pre, Residual::Sandwich, Residual::Parallel];
    if !own.into_iter().any(|residual| spec.has_residual(residual)) {
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
            // Everything that reads the norm has its columns multiplied: an MLP, or experts, shared experts, the router
            // and gates.
            "up" => of("mlp_norm", None).collect(),
            // Columns of a value projection pass through attention unchanged if each head has its own; those of a gated
            // MLP scale with its second factor.
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

/// Returns whether a tensor is a matrix that reads the output of the norm before the MLP.
fn reads_norm(tensor: &BlockTensor) -> bool {
    let roles = ["up", "shared.up", "experts.up", "router", "shared.gate"];
    tensor.shape.len() == 2 && roles.contains(&tensor.role)
}

/// Computes the factors of the columns that some weights share, from those of them that are quantized.
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
        Ok(ScaledColumns { values, shape: [tensor.shape[0], tensor.shape[1]], given })
    };
    let weights = rounded.map(read).collect::<Result<Vec<_>, String>>()?;
    Ok(awq_scales(&weights, seen, group))
}

/// Selects the tensors of modules, including biases.
fn named<'a>(of: impl Iterator<Item = &'a BlockTensor>, modules: &[&str]) -> Vec<&'a BlockTensor> {
    let is_one =
        |tensor: &&BlockTensor| modules.iter().any(|module| tensor.name.contains(&format!(".{module}.")));
    of.filter(is_one).collect()
}

impl Factors {
    /// Returns whether the columns of a projection have factors.
    pub fn has(&self, name: &str) -> bool {
        self.columns.contains_key(name)
    }

    /// Multiplies the columns and divides the rows of a projection's weights [rows, cols].
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

    /// Divides a norm's weights or a bias; multiplies the columns of a router or a gate.
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
