//! Tensors: shapes, strides and locations of elements.

use std::sync::Arc;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnDataType_t as Data;
use cudarc::cudnn::sys::cudnnStatus_t::*;

use super::refusal::{Outcome, refuse, require};
use super::set::Set;

/// Supported element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16, the upper half of a single.
    Bf16,
    /// 32-bit integers.
    I32,
    /// 64-bit integers, only for offsets.
    I64,
    /// Booleans, only for virtual tensors: in memory they would be packed bits.
    Bool,
}

impl Element {
    /// The type of a `cudnnDataType_t` number.
    ///
    /// # Errors
    /// If the rehearsal does not support it.
    pub fn of(data: i64) -> Outcome<Element> {
        Ok(match data {
            d if d == Data::CUDNN_DATA_FLOAT as i64 => Element::F32,
            d if d == Data::CUDNN_DATA_HALF as i64 => Element::F16,
            d if d == Data::CUDNN_DATA_BFLOAT16 as i64 => Element::Bf16,
            d if d == Data::CUDNN_DATA_INT32 as i64 => Element::I32,
            d if d == Data::CUDNN_DATA_INT64 as i64 => Element::I64,
            d if d == Data::CUDNN_DATA_BOOLEAN as i64 => Element::Bool,
            other => {
                let why = format!("the rehearsal's tensors have no data type {other}");
                return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, why);
            }
        })
    }

    /// Bytes per element in memory.
    pub fn bytes(self) -> i64 {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::I64 => 8,
            Element::Bool => 1,
        }
    }

    /// True for float types.
    pub fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F16 | Element::Bf16)
    }
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Identifier.
    pub uid: i64,
    /// Element type.
    pub element: Element,
    /// Sizes.
    pub dims: Vec<i64>,
    /// Strides in elements.
    pub strides: Vec<i64>,
    /// Alignment of its address in bytes.
    pub alignment: i64,
    /// True if it has no memory: one operation computes it, others use it.
    pub is_virtual: bool,
    /// True for a scalar in host memory.
    pub by_value: bool,
    /// Start of each sequence in elements, in place of the first dimension's stride.
    pub ragged: Option<Arc<Tensor>>,
}

impl Tensor {
    /// Creates a tensor from its attributes.
    ///
    /// # Errors
    /// If something is missing or invalid.
    pub fn new(set: &Set) -> Outcome<Tensor> {
        let flag = |name| set.int(name) == Some(1);
        let tensor = Tensor {
            uid: set.need_ints(CUDNN_ATTR_TENSOR_UNIQUE_ID)?[0],
            element: Element::of(set.need_ints(CUDNN_ATTR_TENSOR_DATA_TYPE)?[0])?,
            dims: set.need_ints(CUDNN_ATTR_TENSOR_DIMENSIONS)?.to_vec(),
            strides: set.need_ints(CUDNN_ATTR_TENSOR_STRIDES)?.to_vec(),
            alignment: set.need_ints(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)?[0],
            is_virtual: flag(CUDNN_ATTR_TENSOR_IS_VIRTUAL),
            by_value: flag(CUDNN_ATTR_TENSOR_IS_BY_VALUE),
            ragged: set.object(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC)?,
        };
        let plain = set.int(CUDNN_ATTR_TENSOR_VECTOR_COUNT).unwrap_or(1) == 1
            && set.int(CUDNN_ATTR_TENSOR_REORDERING_MODE).unwrap_or(0) == 0;
        let why = || "the rehearsal has no vectorized or reordered tensors".to_string();
        require(plain, CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, why)?;
        tensor.check()?;
        Ok(tensor)
    }

    fn check(&self) -> Outcome {
        let bad = |holds: bool, why: &str| {
            require(holds, CUDNN_STATUS_BAD_PARAM, || format!("tensor {}: {why}", self.uid))
        };
        bad(self.dims.len() == self.strides.len(), "as many strides as dimensions are needed")?;
        bad(self.dims.iter().all(|dim| *dim > 0), "a dimension that is not positive")?;
        bad(self.strides.iter().all(|stride| *stride >= 0), "a stride that is negative")?;
        let bytes = self.element.bytes();
        bad(self.alignment > 0 && self.alignment % bytes == 0, "an alignment that is none of its elements")?;
        bad(self.alignment.count_ones() == 1, "an alignment that is no power of two")?;
        bad(!(self.is_virtual && self.by_value), "both virtual and by value")?;
        if self.by_value {
            bad(self.count() == 1, "by value, and not one element")?;
            bad(self.ragged.is_none(), "by value, and ragged")?;
        }
        let in_memory = !self.is_virtual && !self.by_value;
        let packed = self.element == Element::Bool && in_memory;
        require(!packed, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, || {
            format!("tensor {}: the rehearsal has no packed bits in memory", self.uid)
        })?;
        let Some(offsets) = &self.ragged else { return Ok(()) };
        bad(self.dims.len() > 2, "ragged, and without sequences")?;
        bad(matches!(offsets.element, Element::I32 | Element::I64), "ragged offsets are INT32 or INT64")?;
        let real = !offsets.is_virtual && !offsets.by_value && offsets.ragged.is_none();
        bad(real, "ragged offsets are a plain tensor in memory")?;
        let one_each = offsets.dims[0] == self.dims[0] + 1 && offsets.count() == offsets.dims[0];
        bad(one_each, "one ragged offset a batch and one more are needed")?;
        bad(offsets.strides[0] == 1, "ragged offsets lie one after the other")
    }

    /// Number of elements.
    pub fn count(&self) -> i64 {
        self.dims.iter().product()
    }

    /// True if it has device memory.
    pub fn is_real(&self) -> bool {
        !self.is_virtual && !self.by_value
    }

    /// Elements from the first to the end of the last, for these sizes; zero if there are none.
    pub fn reach(&self, dims: &[i64]) -> i64 {
        if dims.contains(&0) {
            return 0;
        }
        dims.iter().zip(&self.strides).map(|(dim, stride)| (dim - 1) * stride).sum::<i64>() + 1
    }

    /// True if no two elements share an address: dimensions, ordered by stride, do not overlap. For ragged tensors
    /// without the first dimension, which the offsets determine.
    pub fn is_apart(&self) -> bool {
        let first = usize::from(self.ragged.is_some());
        let mut order: Vec<usize> = (first..self.dims.len()).filter(|dim| self.dims[*dim] > 1).collect();
        order.sort_by_key(|dim| self.strides[*dim]);
        let mut behind = 1;
        for dim in order {
            if self.strides[dim] < behind {
                return false;
            }
            behind += (self.dims[dim] - 1) * self.strides[dim];
        }
        true
    }

    /// True if it has exactly one address for each element, without gaps.
    pub fn is_packed(&self) -> bool {
        self.is_apart() && self.reach(&self.dims) == self.count()
    }
}
