//! Operations, the tensors they act on, and their constraints.

use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::{self as Name, *};
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::{self as Kind, *};
use cudarc::cudnn::sys::cudnnPointwiseMode_t as Mode;
use cudarc::cudnn::sys::cudnnReduceTensorOp_t as Operator;
use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::modes;
use super::refusal::{Outcome, refuse, require};
use super::set::Set;
use super::tensor::{Element, Tensor};

/// Parameters of a pointwise operation.
pub struct Pointwise {
    /// Function applied to each element.
    pub mode: Mode,
    /// Type of the computation.
    pub precision: Element,
    /// Axis of index generation.
    pub axis: Option<i64>,
}

impl Pointwise {
    /// Creates the parameters from attributes.
    ///
    /// # Errors
    /// If something is missing, or the rehearsal does not support it.
    pub fn new(set: &Set) -> Outcome<Pointwise> {
        let number = set.need_ints(CUDNN_ATTR_POINTWISE_MODE)?[0];
        let Some(mode) = modes::known(number) else {
            let why = format!("the rehearsal does not have pointwise mode {number}");
            return refuse(CUDNN_STATUS_NOT_SUPPORTED, why);
        };
        let precision = Element::of(set.need_ints(CUDNN_ATTR_POINTWISE_MATH_PREC)?[0])?;
        let axis = set.int(CUDNN_ATTR_POINTWISE_AXIS);
        let indexed = mode == Mode::CUDNN_POINTWISE_GEN_INDEX;
        require(!indexed || axis.is_some_and(|axis| axis >= 0), CUDNN_STATUS_BAD_PARAM, || {
            "an index is of an axis, which was not set".to_string()
        })?;
        require(modes::computes_in(mode, precision), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, || {
            format!("{mode:?} is not computed in {precision:?}")
        })?;
        Ok(Pointwise { mode, precision, axis })
    }
}

fn in_single(set: &Set, name: Name) -> Outcome {
    let single = Element::of(set.need_ints(name)?[0])? == Element::F32;
    require(single, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, || {
        format!("{:?}: the rehearsal computes in FLOAT", set.kind)
    })
}

/// Parameters of a product.
pub struct Matmul {
    /// Value of elements that are not computed.
    pub padding: f32,
}

impl Matmul {
    /// Creates the parameters from attributes.
    ///
    /// # Errors
    /// If something is missing, or the rehearsal does not support it.
    pub fn new(set: &Set) -> Outcome<Matmul> {
        in_single(set, CUDNN_ATTR_MATMUL_COMP_TYPE)?;
        Ok(Matmul { padding: set.float(CUDNN_ATTR_MATMUL_PADDING_VALUE).unwrap_or(0.0) as f32 })
    }
}

/// Parameters of a reduction.
pub struct Reduction {
    /// Operator applied to all elements of a row.
    pub operator: Operator,
}

impl Reduction {
    /// Creates the parameters from attributes.
    ///
    /// # Errors
    /// If something is missing, or the rehearsal does not support it.
    pub fn new(set: &Set) -> Outcome<Reduction> {
        in_single(set, CUDNN_ATTR_REDUCTION_COMP_TYPE)?;
        let number = set.need_ints(CUDNN_ATTR_REDUCTION_OPERATOR)?[0];
        match modes::operator(number) {
            Some(operator) => Ok(Reduction { operator }),
            None => refuse(CUDNN_STATUS_BAD_PARAM, format!("{number} is no operator of reductions")),
        }
    }
}

/// Kind of an operation.
#[derive(Clone)]
pub enum Step {
    /// Pointwise; the inputs are x, b and t, scaled by these factors.
    Pointwise(Arc<Pointwise>, [f32; 2]),
    /// Product of inputs a and b.
    Matmul(Arc<Matmul>),
    /// Reduction of one input.
    Reduction(Arc<Reduction>),
    /// View of the same memory with other sizes and strides.
    Reshape,
}

/// An operation.
pub struct Operation {
    /// Kind and parameters.
    pub step: Step,
    /// Input tensors.
    pub inputs: Vec<Arc<Tensor>>,
    /// Output tensor.
    pub output: Arc<Tensor>,
    /// For products: numbers of rows, columns and terms computed in each batch.
    pub lengths: [Option<Arc<Tensor>>; 3],
}

impl Operation {
    /// Creates an operation from its attributes.
    ///
    /// # Errors
    /// If something is missing or inconsistent.
    pub fn new(kind: Kind, set: &Set) -> Outcome<Operation> {
        let operation = match kind {
            CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR => Operation::pointwise(set)?,
            CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR => Operation::matmul(set)?,
            CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR => Operation::reduction(set)?,
            _ => Operation::reshape(set)?,
        };
        let output = &operation.output;
        require(!output.by_value, CUDNN_STATUS_BAD_PARAM, || {
            format!("tensor {} is an output and by value", output.uid)
        })?;
        require(output.is_apart(), CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, || {
            format!("tensor {} is an output, and elements share places", output.uid)
        })?;
        let own = operation.inputs.iter().any(|input| input.uid == output.uid);
        require(!own, CUDNN_STATUS_NOT_SUPPORTED, || {
            format!("tensor {} is both input and output; the rehearsal has nothing in place", output.uid)
        })?;
        Ok(operation)
    }

    fn plain(step: Step, inputs: Vec<Arc<Tensor>>, output: Arc<Tensor>) -> Operation {
        Operation { step, inputs, output, lengths: [None, None, None] }
    }

    fn pointwise(set: &Set) -> Outcome<Operation> {
        let what = set.need::<Pointwise>(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)?;
        let (needed, output) = modes::tensors(what.mode);
        let all = [
            CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_DXDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_DYDESC,
        ];
        for name in all {
            let spare = set.parts(name).is_some() && !needed.contains(&name) && name != output;
            require(!spare, CUDNN_STATUS_BAD_PARAM, || format!("{:?} has no {name:?}", what.mode))?;
        }
        let inputs = needed.iter().map(|name| set.need::<Tensor>(*name)).collect::<Outcome<Vec<_>>>()?;
        let output = set.need::<Tensor>(output)?;
        for input in &inputs {
            broadcasts(input, &output)?;
        }
        let indexed = what.axis.filter(|_| what.mode == Mode::CUDNN_POINTWISE_GEN_INDEX);
        require(indexed.is_none_or(|axis| axis < output.dims.len() as i64), CUDNN_STATUS_BAD_PARAM, || {
            format!("an index of an axis that tensor {} does not have", output.uid)
        })?;
        covers(&inputs, &output)?;
        modes::types(what.mode, &inputs, &output)?;
        let whole = what.precision != Element::I32 || indexed.is_some();
        let whole = whole || inputs.iter().all(|input| input.element == Element::I32);
        require(whole, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, || {
            format!("{:?} is computed in integers, of tensors that are not", what.mode)
        })?;
        let scale = |name| set.float(name).unwrap_or(1.0) as f32;
        let scales =
            [scale(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1), scale(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2)];
        Ok(Operation::plain(Step::Pointwise(what, scales), inputs, output))
    }

    fn matmul(set: &Set) -> Outcome<Operation> {
        let what = set.need::<Matmul>(CUDNN_ATTR_OPERATION_MATMUL_DESC)?;
        let a = set.need::<Tensor>(CUDNN_ATTR_OPERATION_MATMUL_ADESC)?;
        let b = set.need::<Tensor>(CUDNN_ATTR_OPERATION_MATMUL_BDESC)?;
        let c = set.need::<Tensor>(CUDNN_ATTR_OPERATION_MATMUL_CDESC)?;
        let shape =
            || format!("{:?} of tensor {} by {:?} of {} to {:?}", a.dims, a.uid, b.dims, b.uid, c.dims);
        let rank = c.dims.len();
        let same = a.dims.len() == rank && b.dims.len() == rank && rank > 2;
        require(same, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, || format!("ranks: {}", shape()))?;
        let (m, n) = (rank - 2, rank - 1);
        let inner = a.dims[m] == c.dims[m] && b.dims[n] == c.dims[n] && a.dims[n] == b.dims[m];
        require(inner, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, shape)?;
        for dim in 0..m {
            let fits = c.dims[dim] == a.dims[dim].max(b.dims[dim])
                && c.dims[dim] % a.dims[dim] == 0
                && c.dims[dim] % b.dims[dim] == 0;
            require(fits, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, || format!("batches: {}", shape()))?;
        }
        // An intermediate factor may still be in single precision, as in NVIDIA's own graphs.
        let loose = |tensor: &Tensor| tensor.is_virtual && tensor.element == Element::F32;
        let floats = [&a, &b, &c].iter().all(|tensor| tensor.element.is_float());
        let alike = a.element == b.element || loose(&a) || loose(&b);
        require(floats && alike, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, || {
            format!("{:?} by {:?} to {:?}", a.element, b.element, c.element)
        })?;
        require(!a.by_value && !b.by_value, CUDNN_STATUS_BAD_PARAM, || "a factor by value".to_string())?;
        let names = [
            CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
            CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
            CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC,
        ];
        let mut lengths: [Option<Arc<Tensor>>; 3] = [None, None, None];
        for (length, name) in lengths.iter_mut().zip(names) {
            *length = set.object(name)?;
            let Some(tensor) = length else { continue };
            let fits = tensor.is_real()
                && tensor.element == Element::I32
                && tensor.dims[0] == c.dims[0]
                && tensor.count() == tensor.dims[0]
                && tensor.ragged.is_none();
            require(fits, CUDNN_STATUS_BAD_PARAM, || format!("{name:?}: not an INT32 a batch in memory"))?;
        }
        let step = Step::Matmul(what);
        Ok(Operation { step, inputs: vec![a, b], output: c, lengths })
    }

    fn reduction(set: &Set) -> Outcome<Operation> {
        let what = set.need::<Reduction>(CUDNN_ATTR_OPERATION_REDUCTION_DESC)?;
        let x = set.need::<Tensor>(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)?;
        let y = set.need::<Tensor>(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)?;
        let fits = x.dims.len() == y.dims.len() && x.dims.iter().zip(&y.dims).all(|(x, y)| x % y == 0);
        require(fits, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, || {
            format!("{:?} of tensor {} reduced to {:?} of {}", x.dims, x.uid, y.dims, y.uid)
        })?;
        require(x.element.is_float() && y.element.is_float(), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, || {
            format!("a reduction of {:?} to {:?}", x.element, y.element)
        })?;
        Ok(Operation::plain(Step::Reduction(what), vec![x], y))
    }

    fn reshape(set: &Set) -> Outcome<Operation> {
        let x = set.need::<Tensor>(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)?;
        let y = set.need::<Tensor>(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)?;
        require(x.count() == y.count(), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, || {
            format!("{:?} of tensor {} seen as {:?} of {}", x.dims, x.uid, y.dims, y.uid)
        })?;
        require(x.ragged == y.ragged, CUDNN_STATUS_BAD_PARAM, || {
            format!("tensor {} and its view {} have different ragged offsets", x.uid, y.uid)
        })?;
        let whole = x.ragged.is_none() && x.is_packed() && y.is_packed();
        require(permutation(&x, &y).is_some() || whole, CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, || {
            format!("tensor {} is no view of the memory of {}", y.uid, x.uid)
        })?;
        Ok(Operation::plain(Step::Reshape, vec![x], y))
    }
}

/// Checks that an input can be broadcast to an output: sizes are equal or one. Scalars by value have any rank.
fn broadcasts(input: &Tensor, output: &Tensor) -> Outcome {
    let fits = input.dims.len() == output.dims.len()
        && input.dims.iter().zip(&output.dims).all(|(input, output)| input == output || *input == 1);
    require(fits || input.by_value, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, || {
        format!("{:?} of tensor {} is not broadcast to {:?}", input.dims, input.uid, output.dims)
    })
}

/// Checks that an output is as large as its inputs together and no larger.
fn covers(inputs: &[Arc<Tensor>], output: &Tensor) -> Outcome {
    let full = |dim: usize| {
        inputs.iter().any(|input| input.dims.get(dim).is_some_and(|size| *size == output.dims[dim]))
            || output.dims[dim] == 1
    };
    require((0..output.dims.len()).all(full), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, || {
        format!("tensor {} of {:?} is larger than its inputs", output.uid, output.dims)
    })
}

/// The dimension of `x` that corresponds to each of `y`, if both are the same memory with permuted dimensions.
pub fn permutation(x: &Tensor, y: &Tensor) -> Option<Vec<usize>> {
    if x.dims.len() != y.dims.len() {
        return None;
    }
    let mut left: Vec<usize> = (0..x.dims.len()).collect();
    let mut order = vec![usize::MAX; y.dims.len()];
    // Dimensions of one element match anything: they are assigned last, to their own place if possible.
    let mut dims: Vec<usize> = (0..y.dims.len()).collect();
    dims.sort_by_key(|dim| y.dims[*dim] == 1);
    for dim in dims {
        let same = |from: &usize| {
            x.dims[*from] == y.dims[dim] && (y.dims[dim] == 1 || x.strides[*from] == y.strides[dim])
        };
        let own = left.iter().position(|from| *from == dim && same(from));
        let at = own.or_else(|| left.iter().position(same))?;
        order[dim] = left.remove(at);
    }
    (x.ragged.is_none() || order[0] == 0).then_some(order)
}
