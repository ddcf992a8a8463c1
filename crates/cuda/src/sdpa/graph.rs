//! A graph of operations in cuDNN's format: numbered tensors, and intermediate values that never reach memory.

use std::sync::Arc;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Type, cudnnDataType_t as Data,
    cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduce,
};

use super::desc::{Desc, Draft};
use crate::Result;

/// Extents or strides: sequences, heads, tokens, columns.
pub type Four = [i64; 4];

/// A tensor of the graph.
#[derive(Clone)]
pub struct Node {
    desc: Arc<Desc>,
    /// Extents.
    pub dim: Four,
}

/// A scalar passed by value when the plan runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// The scale of the scores.
    Scale,
    /// Reach of the window.
    Window,
    /// A constant.
    Fixed(f32),
}

/// Operations in order.
#[derive(Default)]
pub struct Graph {
    /// Their descriptors.
    pub ops: Vec<Arc<Desc>>,
    /// Scalars by the numbers of their tensors.
    pub scalars: Vec<(i64, Scalar)>,
    /// The last number generated for an unnamed tensor.
    last: i64,
}

/// Tensor numbers given by callers are below this.
const FIRST_OWN: i64 = 1000;

/// Strides without gaps.
pub fn packed([_, h, s, d]: Four) -> Four {
    [h * s * d, s * d, d, 1]
}

/// Per-sequence overrides of a product's sizes: rows, columns, the summed size.
pub type Overrides<'a> = [Option<&'a Node>; 3];

impl Graph {
    fn fresh(&mut self) -> i64 {
        self.last = self.last.max(FIRST_OWN) + 1;
        self.last
    }

    fn tensor(number: i64, data: Data, dim: Four, stride: Four, is_virtual: bool) -> Result<Draft> {
        Draft::new(Type::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[data])?
            .set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &dim)?
            .set(Name::CUDNN_ATTR_TENSOR_STRIDES, &stride)?
            .set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number])?
            .set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[16i64])?
            .set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[is_virtual])
    }

    /// A tensor in memory; with `ragged`, sequence i begins at the offset in that tensor's element i.
    ///
    /// # Errors
    /// If cuDNN refuses it; likewise for all methods.
    pub fn real(number: i64, data: Data, dim: Four, stride: Four, ragged: Option<&Node>) -> Result<Node> {
        let draft = Graph::tensor(number, data, dim, stride, false)?;
        let ragged = ragged.map(|node| &node.desc);
        let desc = draft.refer_if(Name::CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged)?.finish("a tensor")?;
        Ok(Node { desc, dim })
    }

    /// An intermediate value.
    pub fn between(&mut self, data: Data, dim: Four) -> Result<Node> {
        let desc = Graph::tensor(self.fresh(), data, dim, packed(dim), true)?.finish("a value")?;
        Ok(Node { desc, dim })
    }

    /// An intermediate f32 value.
    pub fn wide(&mut self, dim: Four) -> Result<Node> {
        self.between(Data::CUDNN_DATA_FLOAT, dim)
    }

    /// A scalar passed by value.
    pub fn scalar(&mut self, value: Scalar) -> Result<Node> {
        let number = self.fresh();
        let desc = Draft::new(Type::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[Data::CUDNN_DATA_FLOAT])?
            .set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &[1i64; 4])?
            .set(Name::CUDNN_ATTR_TENSOR_STRIDES, &[1i64; 4])?
            .set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number])?
            .set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[16i64])?
            .set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?
            .finish("a scalar")?;
        self.scalars.push((number, value));
        Ok(Node { desc, dim: [1; 4] })
    }

    fn pointwise_of(mode: Mode, math: Data, axis: Option<i64>) -> Result<Arc<Desc>> {
        let draft = Draft::new(Type::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_POINTWISE_MODE, &[mode])?
            .set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, &[math])?;
        match axis {
            Some(axis) => draft.set(Name::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?,
            None => draft,
        }
        .finish("a pointwise mode")
    }

    fn pointwise(&mut self, mode: &Arc<Desc>, operands: [Option<&Node>; 3], y: &Node) -> Result<()> {
        let [x, b, t] = operands.map(|node| node.map(|node| &node.desc));
        let op = Draft::new(Type::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[mode])?
            .refer_if(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)?
            .refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[&y.desc])?
            .refer_if(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b)?
            .refer_if(Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t)?;
        self.ops.push(op.finish("a pointwise operation")?);
        Ok(())
    }

    /// `y = mode(x, b)` in f32.
    pub fn apply(&mut self, mode: Mode, x: &Node, b: Option<&Node>, y: &Node) -> Result<()> {
        let mode = Graph::pointwise_of(mode, Data::CUDNN_DATA_FLOAT, None)?;
        self.pointwise(&mode, [Some(x), b, None], y)
    }

    /// `mode(x, b)` in f32.
    pub fn map(&mut self, mode: Mode, x: &Node, b: Option<&Node>) -> Result<Node> {
        let y = self.wide(x.dim)?;
        self.apply(mode, x, b, &y)?;
        Ok(y)
    }

    /// Index of each element along an axis. Length masks use i32, position masks f32.
    pub fn index(&mut self, x: &Node, axis: i64, math: Data) -> Result<Node> {
        let y = self.between(Data::CUDNN_DATA_INT32, x.dim)?;
        let mode = Graph::pointwise_of(Mode::CUDNN_POINTWISE_GEN_INDEX, math, Some(axis))?;
        self.pointwise(&mode, [Some(x), None, None], &y)?;
        Ok(y)
    }

    /// A comparison, or `and`.
    pub fn test(&mut self, mode: Mode, x: &Node, b: &Node) -> Result<Node> {
        let y = self.between(Data::CUDNN_DATA_BOOLEAN, x.dim)?;
        let mode = Graph::pointwise_of(mode, Data::CUDNN_DATA_BOOLEAN, None)?;
        self.pointwise(&mode, [Some(x), Some(b), None], &y)?;
        Ok(y)
    }

    /// `x` where `keep`, else minus infinity.
    pub fn mask(&mut self, x: &Node, keep: &Node) -> Result<Node> {
        let never = self.scalar(Scalar::Fixed(f32::NEG_INFINITY))?;
        let y = self.wide(x.dim)?;
        let mode = Graph::pointwise_of(Mode::CUDNN_POINTWISE_BINARY_SELECT, Data::CUDNN_DATA_FLOAT, None)?;
        self.pointwise(&mode, [Some(x), Some(&never), Some(keep)], &y)?;
        Ok(y)
    }

    /// `c = a b`, accumulated in f32.
    pub fn product(&mut self, a: &Node, b: &Node, c: &Node, [m, n, k]: Overrides<'_>) -> Result<()> {
        let how = Draft::new(Type::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, &[Data::CUDNN_DATA_FLOAT])?
            .finish("a product's type")?;
        let desc = |node: Option<&Node>| node.map(|node| node.desc.clone());
        let op = Draft::new(Type::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[&a.desc])?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[&b.desc])?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[&c.desc])?
            .refer(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])?
            .refer_if(Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, desc(m).as_ref())?
            .refer_if(Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, desc(n).as_ref())?
            .refer_if(Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, desc(k).as_ref())?;
        self.ops.push(op.finish("a product")?);
        Ok(())
    }

    /// Reduces `x` to the extents of `y`.
    pub fn reduce(&mut self, how: Reduce, x: &Node, y: &Node) -> Result<()> {
        let how = Draft::new(Type::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, &[Data::CUDNN_DATA_FLOAT])?
            .set(Name::CUDNN_ATTR_REDUCTION_OPERATOR, &[how])?
            .finish("a reduction's type")?;
        let op = Draft::new(Type::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&how])?
            .refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[&x.desc])?
            .refer(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[&y.desc])?;
        self.ops.push(op.finish("a reduction")?);
        Ok(())
    }

    /// The same elements with other extents and strides.
    pub fn reshape(
        &mut self,
        x: &Node,
        data: Data,
        dim: Four,
        stride: Four,
        ragged: Option<&Node>,
    ) -> Result<Node> {
        let draft = Graph::tensor(self.fresh(), data, dim, stride, true)?;
        let ragged = ragged.map(|node| &node.desc);
        let desc = draft.refer_if(Name::CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged)?.finish("a value")?;
        let op = Draft::new(Type::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[&x.desc])?
            .refer(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[&desc])?;
        self.ops.push(op.finish("a reshape")?);
        Ok(Node { desc, dim })
    }
}
