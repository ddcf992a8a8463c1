//! Graphs that no engine is known to support, according to NVIDIA's own frontend (`sdpa_support_surface.h` and
//! `scaled_dot_product_flash_attention.h`). They can be described without an error but have no plan.

use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::graph::Graph;
use super::operations::Step;
use super::refusal::{Outcome, require};
use super::tensor::{Element, Tensor};

/// Largest number of columns per head on Hopper.
const COLUMNS: i64 = 256;

/// Checks whether a graph may have an engine.
///
/// # Errors
/// If it has none.
pub fn check(graph: &Graph) -> Outcome {
    let products = graph.operations.iter().filter(|operation| matches!(operation.step, Step::Matmul(_)));
    let is_attention = products.clone().count() > 1;
    for operation in products {
        for tensor in operation.inputs.iter().chain([&operation.output]) {
            if is_attention && tensor.is_real() && matches!(tensor.element, Element::Bf16 | Element::F16) {
                columns(tensor)?;
            }
        }
    }
    for tensor in graph.tensors.values().filter(|tensor| tensor.ragged.is_some() && tensor.is_real()) {
        let made = graph.outputs.contains(&tensor.uid);
        let used = graph.operations.iter().flat_map(|operation| &operation.inputs);
        let between = made && used.clone().any(|input| input.uid == tensor.uid);
        let last = tensor.dims.last().copied().unwrap_or(1);
        require(!between || last == 1 || last % 16 == 0, CUDNN_STATUS_NOT_SUPPORTED_SHAPE, || {
            let uid = tensor.uid;
            format!(
                "tensor {uid} is ragged between operations; with {last} columns that is known to be wrong"
            )
        })?;
    }
    Ok(())
}

/// Checks a factor or product of attention: contiguous columns, a multiple of eight, and not too many.
fn columns(tensor: &Tensor) -> Outcome {
    let Tensor { uid, dims, strides, .. } = tensor;
    let innermost = (dims.len() - 2..dims.len()).find(|dim| strides[*dim] == 1 && dims[*dim] > 1);
    let count = innermost.map(|dim| dims[dim]);
    require(count.is_some(), CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, || {
        format!("tensor {uid}: columns of a head are not contiguous")
    })?;
    let fits = count.is_some_and(|count| count % 8 == 0 && count <= COLUMNS);
    require(fits, CUDNN_STATUS_NOT_SUPPORTED_SHAPE, || {
        format!("tensor {uid}: {} columns of a head are no multiple of 8 up to {COLUMNS}", count.unwrap_or(0))
    })
}
