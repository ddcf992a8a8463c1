//! Compact construction of graphs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::{self as Name, *};
use cudarc::cudnn::sys::cudnnBackendAttributeType_t::{self as Type, *};
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::{self as Kind, *};
pub use cudarc::cudnn::sys::cudnnDataType_t as Data;
pub use cudarc::cudnn::sys::cudnnPointwiseMode_t as Mode;
pub use cudarc::cudnn::sys::cudnnReduceTensorOp_t as Operator;
use cudarc::cudnn::sys::{cudnnBackendDescriptor_t as Descriptor, cudnnHandle_t, cudnnStatus_t as Status};
use half::bf16;

use super::super::*;
use crate::device::{StreamState, drive, state};

pub const OK: Status = CUDNN_STATUS_SUCCESS;

/// Message of the last refusal.
pub fn words() -> String {
    let mut text = [0 as c_char; 512];
    // SAFETY: the size is that of the buffer.
    unsafe {
        cudnnGetLastErrorString(text.as_mut_ptr(), text.len());
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    }
}

pub fn new(kind: Kind) -> Descriptor {
    let mut descriptor = std::ptr::null_mut();
    // SAFETY: room for one.
    assert_eq!(unsafe { cudnnBackendCreateDescriptor(kind, &mut descriptor) }, OK);
    descriptor
}

pub fn set<T>(descriptor: Descriptor, name: Name, of: Type, values: &[T]) -> Status {
    // SAFETY: the count is that of the slice.
    unsafe {
        cudnnBackendSetAttribute(descriptor, name, of, values.len() as i64, values.as_ptr().cast::<c_void>())
    }
}

/// Number of an attribute's elements, and as many of them as fit.
pub fn get<T>(descriptor: Descriptor, name: Name, of: Type, room: &mut [T]) -> (Status, i64) {
    let mut count = -1;
    let to = if room.is_empty() { std::ptr::null_mut() } else { room.as_mut_ptr().cast::<c_void>() };
    // SAFETY: the count is that of the slice.
    let status = unsafe { cudnnBackendGetAttribute(descriptor, name, of, room.len() as i64, &mut count, to) };
    (status, count)
}

pub fn put<T>(descriptor: Descriptor, name: Name, of: Type, values: &[T]) {
    assert_eq!(set(descriptor, name, of, values), OK, "{name:?}: {}", words());
}

pub fn finish(descriptor: Descriptor) -> Descriptor {
    assert_eq!(cudnnBackendFinalize(descriptor), OK, "{}", words());
    descriptor
}

/// Strides of contiguous elements.
pub fn strides(dims: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    strides
}

/// Device memory with these values.
pub fn memory<T: Copy>(values: &[T]) -> u64 {
    let address = state().allocate(0, size_of_val(values) as u64).unwrap();
    for (index, value) in values.iter().enumerate() {
        let at = address as usize + index * size_of::<T>();
        // SAFETY: just allocated.
        unsafe { std::ptr::with_exposed_provenance_mut::<T>(at).write(*value) };
    }
    address
}

/// Values in memory.
pub fn values<T: Copy>(address: u64, count: usize) -> Vec<T> {
    let from: *const T = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: allocated by a test.
    (0..count).map(|index| unsafe { from.add(index).read() }).collect()
}

/// Numbers between minus one and one that are exact in bf16.
pub fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut at = seed.wrapping_mul(2_654_435_769) | 1;
    let mut one = || {
        at ^= at << 13;
        at ^= at >> 17;
        at ^= at << 5;
        (f64::from(at) / f64::from(u32::MAX) * 2.0 - 1.0) as f32
    };
    (0..count).map(|_| bf16::from_f32(one()).to_f32()).collect()
}

pub fn close(left: &[f32], right: &[f32], tolerance: f32) {
    assert_eq!(left.len(), right.len());
    for (index, (left, right)) in left.iter().zip(right).enumerate() {
        let near = (left - right).abs() <= tolerance * right.abs().max(1.0);
        assert!(near || left == right, "{index}: {left}, not {right}");
    }
}

/// A tensor of a graph.
#[derive(Clone)]
pub struct Tensor {
    pub uid: i64,
    pub descriptor: Descriptor,
    pub dims: Vec<i64>,
    pub data: Data,
}

/// A graph under construction, with its handle and a stream.
pub struct Bench {
    pub handle: cudnnHandle_t,
    pub stream: u64,
    pub operations: Vec<Descriptor>,
    /// Padding value of products, if set.
    pub padding: Option<f64>,
    last: Cell<i64>,
    scalars: Vec<(i64, Box<f32>)>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Place {
    Device,
    Virtual,
    Host,
}

impl Bench {
    pub fn new() -> Bench {
        state().contexts.insert(0);
        let stream = state().handle();
        state().streams.insert(stream, StreamState::default());
        let mut handle = std::ptr::null_mut();
        // SAFETY: room for one.
        assert_eq!(unsafe { cudnnCreate(&mut handle) }, OK);
        assert_eq!(cudnnSetStream(handle, std::ptr::without_provenance_mut(stream as usize)), OK);
        Bench {
            handle,
            stream,
            operations: Vec::new(),
            padding: None,
            last: Cell::new(0),
            scalars: Vec::new(),
        }
    }

    /// A tensor with all attributes given.
    pub fn tensor(
        &self,
        place: Place,
        data: Data,
        dims: &[i64],
        strides: &[i64],
        ragged: Option<&Tensor>,
    ) -> Tensor {
        self.last.set(self.last.get() + 1);
        let uid = self.last.get();
        let descriptor = new(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
        put(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &[uid]);
        put(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &[data]);
        put(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims);
        put(descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
        put(descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &[16_i64]);
        put(descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &[place == Place::Virtual]);
        put(descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &[place == Place::Host]);
        let ragged = ragged.map(|offsets| offsets.descriptor);
        if let Some(offsets) = ragged {
            put(descriptor, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[offsets]);
        }
        finish(descriptor);
        Tensor { uid, descriptor, dims: dims.to_vec(), data }
    }

    pub fn real(&self, data: Data, dims: &[i64]) -> Tensor {
        self.tensor(Place::Device, data, dims, &strides(dims), None)
    }

    pub fn between(&self, data: Data, dims: &[i64]) -> Tensor {
        self.tensor(Place::Virtual, data, dims, &strides(dims), None)
    }

    pub fn scalar(&mut self, value: f32) -> Tensor {
        let tensor = self.tensor(Place::Host, Data::CUDNN_DATA_FLOAT, &[1, 1, 1, 1], &[1; 4], None);
        self.scalars.push((tensor.uid, Box::new(value)));
        tensor
    }

    fn pointwise_of(&self, mode: Mode, precision: Data, axis: Option<i64>) -> Descriptor {
        let what = new(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
        put(what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &[mode]);
        put(what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &[precision]);
        if let Some(axis) = axis {
            put(what, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &[axis]);
        }
        finish(what)
    }

    fn operation(&mut self, kind: Kind, parts: &[(Name, Descriptor)]) {
        let operation = new(kind);
        for (name, part) in parts {
            put(operation, *name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[*part]);
        }
        self.operations.push(finish(operation));
    }

    pub fn pointwise(&mut self, mode: Mode, inputs: &[&Tensor], output: &Tensor) {
        let precision = match mode as u32 {
            300..500 => Data::CUDNN_DATA_BOOLEAN,
            _ if inputs.iter().all(|input| input.data == Data::CUDNN_DATA_INT32) => Data::CUDNN_DATA_INT32,
            _ => Data::CUDNN_DATA_FLOAT,
        };
        let what = self.pointwise_of(mode, precision, None);
        let names = [
            CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        let mut parts = vec![(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what)];
        parts.extend(names.into_iter().zip(inputs.iter().map(|input| input.descriptor)));
        parts.push((CUDNN_ATTR_OPERATION_POINTWISE_YDESC, output.descriptor));
        self.operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &parts);
    }

    /// The same, to a new virtual tensor of the first input's size.
    pub fn then(&mut self, mode: Mode, inputs: &[&Tensor]) -> Tensor {
        let data = match mode as u32 {
            300..500 => Data::CUDNN_DATA_BOOLEAN,
            _ => inputs[0].data,
        };
        let output = self.between(data, &inputs[0].dims);
        self.pointwise(mode, inputs, &output);
        output
    }

    pub fn index(&mut self, of: &Tensor, axis: i64) -> Tensor {
        let output = self.between(Data::CUDNN_DATA_INT32, &of.dims);
        let what = self.pointwise_of(Mode::CUDNN_POINTWISE_GEN_INDEX, Data::CUDNN_DATA_INT32, Some(axis));
        self.operation(
            CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
            &[
                (CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what),
                (CUDNN_ATTR_OPERATION_POINTWISE_XDESC, of.descriptor),
                (CUDNN_ATTR_OPERATION_POINTWISE_YDESC, output.descriptor),
            ],
        );
        output
    }

    /// A product with lengths of rows, columns and terms.
    pub fn matmul(&mut self, a: &Tensor, b: &Tensor, c: &Tensor, lengths: [Option<&Tensor>; 3]) {
        let what = new(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
        put(what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &[Data::CUDNN_DATA_FLOAT]);
        if let Some(padding) = self.padding {
            put(what, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, &[padding]);
        }
        let mut parts = vec![
            (CUDNN_ATTR_OPERATION_MATMUL_DESC, finish(what)),
            (CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor),
            (CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor),
            (CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor),
        ];
        let names = [
            CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
            CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
            CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC,
        ];
        for (name, length) in names.into_iter().zip(lengths) {
            parts.extend(length.map(|length| (name, length.descriptor)));
        }
        self.operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &parts);
    }

    pub fn reduction(&mut self, operator: Operator, x: &Tensor, y: &Tensor) {
        let what = new(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
        put(what, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &[Data::CUDNN_DATA_FLOAT]);
        put(what, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &[operator]);
        let parts = [
            (CUDNN_ATTR_OPERATION_REDUCTION_DESC, finish(what)),
            (CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor),
            (CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor),
        ];
        self.operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &parts);
    }

    pub fn reshape(&mut self, x: &Tensor, y: &Tensor) {
        let parts = [
            (CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor),
            (CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor),
        ];
        self.operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &parts);
    }

    /// The graph, not finalized.
    pub fn graph(&self) -> Descriptor {
        let graph = new(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
        put(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &[self.handle]);
        put(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &self.operations);
        graph
    }

    /// The plan of the first engine.
    pub fn plan(&self) -> Descriptor {
        let heuristics = new(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
        let graph = finish(self.graph());
        put(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[graph]);
        let mode = cudarc::cudnn::sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A;
        put(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &[mode]);
        finish(heuristics);
        let results = CUDNN_ATTR_ENGINEHEUR_RESULTS;
        let (status, count) = get::<Descriptor>(heuristics, results, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut []);
        assert!(status == OK && count > 0);
        let mut room = vec![new(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)];
        let (status, _) = get(heuristics, results, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut room);
        assert_eq!(status, OK);
        let plan = new(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        put(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, &room);
        finish(plan)
    }

    /// A pack of memory, with the scalars and as much workspace as the plan requires.
    pub fn pack(&self, plan: Descriptor, memory: &BTreeMap<i64, u64>) -> Descriptor {
        let mut size = [0_i64];
        let name = CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
        assert_eq!(get(plan, name, CUDNN_TYPE_INT64, &mut size), (OK, 1));
        let workspace = state().allocate(0, size[0].max(1) as u64).unwrap();
        let mut all = memory.clone();
        for (uid, value) in &self.scalars {
            all.insert(*uid, std::ptr::from_ref::<f32>(value).expose_provenance() as u64);
        }
        let (uids, pointers): (Vec<i64>, Vec<u64>) = all.into_iter().unzip();
        let pack = new(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
        put(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, &uids);
        put(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, &pointers);
        put(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &[workspace]);
        finish(pack)
    }

    /// Runs the graph to completion.
    pub fn run(&self, memory: &[(&Tensor, u64)]) {
        let memory = memory.iter().map(|(tensor, address)| (tensor.uid, *address)).collect();
        let plan = self.plan();
        let pack = self.pack(plan, &memory);
        assert_eq!(cudnnBackendExecute(self.handle, plan, pack), OK, "{}", words());
        drive(self.stream);
        assert!(state().failed.is_none());
    }
}
