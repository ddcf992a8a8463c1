//! Modes of pointwise operations and operators of reductions: their operands and computation.

use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::{self as Name, *};
use cudarc::cudnn::sys::cudnnPointwiseMode_t::{self as Mode, *};
use cudarc::cudnn::sys::cudnnReduceTensorOp_t::{self as Operator, *};
use cudarc::cudnn::sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;

use super::refusal::{Outcome, require};
use super::tensor::{Element, Tensor};

const X: &[Name] = &[CUDNN_ATTR_OPERATION_POINTWISE_XDESC];
const X_B: &[Name] = &[CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC];
const X_B_T: &[Name] = &[
    CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
];
const X_DY: &[Name] = &[CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC];

const ALL: &[Mode] = &[
    CUDNN_POINTWISE_ADD,
    CUDNN_POINTWISE_ADD_SQUARE,
    CUDNN_POINTWISE_DIV,
    CUDNN_POINTWISE_MAX,
    CUDNN_POINTWISE_MIN,
    CUDNN_POINTWISE_MUL,
    CUDNN_POINTWISE_POW,
    CUDNN_POINTWISE_SUB,
    CUDNN_POINTWISE_ABS,
    CUDNN_POINTWISE_CEIL,
    CUDNN_POINTWISE_EXP,
    CUDNN_POINTWISE_FLOOR,
    CUDNN_POINTWISE_LOG,
    CUDNN_POINTWISE_NEG,
    CUDNN_POINTWISE_RSQRT,
    CUDNN_POINTWISE_SQRT,
    CUDNN_POINTWISE_IDENTITY,
    CUDNN_POINTWISE_RECIPROCAL,
    CUDNN_POINTWISE_TANH_FWD,
    CUDNN_POINTWISE_TANH_BWD,
    CUDNN_POINTWISE_SIGMOID_FWD,
    CUDNN_POINTWISE_CMP_EQ,
    CUDNN_POINTWISE_CMP_NEQ,
    CUDNN_POINTWISE_CMP_GT,
    CUDNN_POINTWISE_CMP_GE,
    CUDNN_POINTWISE_CMP_LT,
    CUDNN_POINTWISE_CMP_LE,
    CUDNN_POINTWISE_LOGICAL_AND,
    CUDNN_POINTWISE_LOGICAL_OR,
    CUDNN_POINTWISE_LOGICAL_NOT,
    CUDNN_POINTWISE_GEN_INDEX,
    CUDNN_POINTWISE_BINARY_SELECT,
];

/// The mode of a number; `None` if the rehearsal does not support it.
pub fn known(number: i64) -> Option<Mode> {
    ALL.iter().copied().find(|mode| *mode as i64 == number)
}

fn is_comparison(mode: Mode) -> bool {
    (CUDNN_POINTWISE_CMP_EQ as u32..=CUDNN_POINTWISE_CMP_LE as u32).contains(&(mode as u32))
}

fn is_logical(mode: Mode) -> bool {
    (CUDNN_POINTWISE_LOGICAL_AND as u32..=CUDNN_POINTWISE_LOGICAL_NOT as u32).contains(&(mode as u32))
}

/// The input tensors of a mode, in order, and its output.
pub fn tensors(mode: Mode) -> (&'static [Name], Name) {
    let y = CUDNN_ATTR_OPERATION_POINTWISE_YDESC;
    match mode {
        CUDNN_POINTWISE_TANH_BWD => (X_DY, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC),
        CUDNN_POINTWISE_BINARY_SELECT => (X_B_T, y),
        CUDNN_POINTWISE_GEN_INDEX | CUDNN_POINTWISE_LOGICAL_NOT => (X, y),
        _ if unary(mode).is_some() => (X, y),
        _ => (X_B, y),
    }
}

/// True if a mode can be computed in a type: floats in single precision, indices also as integers, booleans also as
/// booleans.
pub fn computes_in(mode: Mode, precision: Element) -> bool {
    use Mode as M;
    match precision {
        Element::F32 => true,
        Element::I32 => {
            let whole = [
                M::CUDNN_POINTWISE_ADD,
                M::CUDNN_POINTWISE_SUB,
                M::CUDNN_POINTWISE_MUL,
                M::CUDNN_POINTWISE_MAX,
                M::CUDNN_POINTWISE_MIN,
                M::CUDNN_POINTWISE_IDENTITY,
                M::CUDNN_POINTWISE_GEN_INDEX,
            ];
            is_comparison(mode) || whole.contains(&mode)
        }
        Element::Bool => is_comparison(mode) || is_logical(mode),
        _ => false,
    }
}

/// Checks the operand types of a mode.
///
/// # Errors
/// If they do not fit.
pub fn types(mode: Mode, inputs: &[Arc<Tensor>], output: &Tensor) -> Outcome {
    let why = || {
        let from: Vec<Element> = inputs.iter().map(|input| input.element).collect();
        format!("{mode:?} of {from:?} to {:?}", output.element)
    };
    let is = |index: usize, wanted: bool| (inputs[index].element == Element::Bool) == wanted;
    let fits = if mode == CUDNN_POINTWISE_BINARY_SELECT {
        is(2, true) && is(0, output.element == Element::Bool) && is(1, output.element == Element::Bool)
    } else if mode == CUDNN_POINTWISE_GEN_INDEX {
        output.element != Element::Bool
    } else if mode == CUDNN_POINTWISE_IDENTITY {
        is(0, output.element == Element::Bool)
    } else {
        let logical = is_logical(mode);
        let makes = logical || is_comparison(mode);
        (0..inputs.len()).all(|index| is(index, logical)) && (output.element == Element::Bool) == makes
    };
    let offsets = inputs.iter().any(|input| input.element == Element::I64) || output.element == Element::I64;
    require(fits && !offsets, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, why)
}

/// The function of a mode with one input.
pub fn unary(mode: Mode) -> Option<fn(f32) -> f32> {
    Some(match mode {
        CUDNN_POINTWISE_ABS => f32::abs,
        CUDNN_POINTWISE_CEIL => f32::ceil,
        CUDNN_POINTWISE_EXP => f32::exp,
        CUDNN_POINTWISE_FLOOR => f32::floor,
        CUDNN_POINTWISE_LOG => f32::ln,
        CUDNN_POINTWISE_NEG => |x| -x,
        CUDNN_POINTWISE_RSQRT => |x| 1.0 / x.sqrt(),
        CUDNN_POINTWISE_SQRT => f32::sqrt,
        CUDNN_POINTWISE_IDENTITY => |x| x,
        CUDNN_POINTWISE_RECIPROCAL => |x| 1.0 / x,
        CUDNN_POINTWISE_TANH_FWD => f32::tanh,
        CUDNN_POINTWISE_SIGMOID_FWD => |x| 1.0 / (1.0 + (-x).exp()),
        CUDNN_POINTWISE_LOGICAL_NOT => |x| truth(x == 0.0),
        _ => return None,
    })
}

fn truth(value: bool) -> f32 {
    f32::from(u8::from(value))
}

/// The larger number; NaN if either is.
pub fn larger(x: f32, y: f32) -> f32 {
    if x.is_nan() || x > y { x } else { y }
}

/// The smaller number; NaN if either is.
pub fn smaller(x: f32, y: f32) -> f32 {
    if x.is_nan() || x < y { x } else { y }
}

/// The function of a mode with two inputs, x and b, or x and dy.
pub fn binary(mode: Mode) -> Option<fn(f32, f32) -> f32> {
    Some(match mode {
        CUDNN_POINTWISE_ADD => |x, b| x + b,
        CUDNN_POINTWISE_ADD_SQUARE => |x, b| x + b * b,
        CUDNN_POINTWISE_DIV => |x, b| x / b,
        CUDNN_POINTWISE_MAX => larger,
        CUDNN_POINTWISE_MIN => smaller,
        CUDNN_POINTWISE_MUL => |x, b| x * b,
        CUDNN_POINTWISE_POW => f32::powf,
        CUDNN_POINTWISE_SUB => |x, b| x - b,
        CUDNN_POINTWISE_CMP_EQ => |x, b| truth(x == b),
        CUDNN_POINTWISE_CMP_NEQ => |x, b| truth(x != b),
        CUDNN_POINTWISE_CMP_GT => |x, b| truth(x > b),
        CUDNN_POINTWISE_CMP_GE => |x, b| truth(x >= b),
        CUDNN_POINTWISE_CMP_LT => |x, b| truth(x < b),
        CUDNN_POINTWISE_CMP_LE => |x, b| truth(x <= b),
        CUDNN_POINTWISE_LOGICAL_AND => |x, b| truth(x != 0.0 && b != 0.0),
        CUDNN_POINTWISE_LOGICAL_OR => |x, b| truth(x != 0.0 || b != 0.0),
        CUDNN_POINTWISE_TANH_BWD => |x, dy| dy * (1.0 - x.tanh() * x.tanh()),
        _ => return None,
    })
}

/// The operator of a number.
pub fn operator(number: i64) -> Option<Operator> {
    let all = [
        CUDNN_REDUCE_TENSOR_ADD,
        CUDNN_REDUCE_TENSOR_MUL,
        CUDNN_REDUCE_TENSOR_MIN,
        CUDNN_REDUCE_TENSOR_MAX,
        CUDNN_REDUCE_TENSOR_AMAX,
        CUDNN_REDUCE_TENSOR_AVG,
        CUDNN_REDUCE_TENSOR_NORM1,
        CUDNN_REDUCE_TENSOR_NORM2,
        CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS,
    ];
    all.into_iter().find(|operator| *operator as i64 == number)
}

/// Initial value and step of a reduction.
pub fn fold(operator: Operator) -> (f32, fn(f32, f32) -> f32) {
    match operator {
        CUDNN_REDUCE_TENSOR_ADD | CUDNN_REDUCE_TENSOR_AVG => (0.0, |sum, x| sum + x),
        CUDNN_REDUCE_TENSOR_MUL => (1.0, |product, x| product * x),
        CUDNN_REDUCE_TENSOR_MIN => (f32::INFINITY, smaller),
        CUDNN_REDUCE_TENSOR_MAX => (f32::NEG_INFINITY, larger),
        CUDNN_REDUCE_TENSOR_AMAX => (0.0, |most, x| larger(most, x.abs())),
        CUDNN_REDUCE_TENSOR_NORM1 => (0.0, |sum, x| sum + x.abs()),
        CUDNN_REDUCE_TENSOR_NORM2 => (0.0, |sum, x| sum + x * x),
        CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS => (1.0, |product, x| if x == 0.0 { product } else { product * x }),
    }
}

/// Final value of a reduction over `count` elements.
pub fn finish(operator: Operator, result: f32, count: usize) -> f32 {
    match operator {
        CUDNN_REDUCE_TENSOR_AVG => result / count as f32,
        CUDNN_REDUCE_TENSOR_NORM2 => result.sqrt(),
        _ => result,
    }
}
