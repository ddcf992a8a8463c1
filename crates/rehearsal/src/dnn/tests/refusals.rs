//! Refused calls and their statuses.

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t::*;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::*;
use cudarc::cudnn::sys::{cudnnBackendDescriptor_t as Descriptor, cudnnStatus_t as Status};

use super::super::*;
use super::attention::{Shape, forward};
use super::bench::*;
use super::execution::copying;

const SINGLE: Data = Data::CUDNN_DATA_FLOAT;

/// A tensor descriptor with these sizes, not finalized.
fn draft(dims: &[i64], of: &[i64], data: Data, alignment: i64) -> Descriptor {
    let draft = new(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    put(draft, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &[77_i64]);
    put(draft, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &[data]);
    put(draft, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims);
    put(draft, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, of);
    put(draft, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &[alignment]);
    draft
}

#[test]
fn attributes_are_of_their_descriptor_type_and_count() {
    let tensor = draft(&[2, 3], &[3, 1], SINGLE, 16);
    let check = |name, of, values: &[i64], status: Status| {
        assert_eq!(set(tensor, name, of, values), status, "{name:?}");
        assert!(words().contains("cudnnBackendSetAttribute"));
        assert_eq!(words(), "");
    };
    check(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &[0], CUDNN_STATUS_BAD_PARAM);
    check(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT32, &[1], CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    check(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &[1, 2], CUDNN_STATUS_BAD_PARAM);
    check(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, &[1; 9], CUDNN_STATUS_BAD_PARAM);
    check(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[5], CUDNN_STATUS_BAD_PARAM);
    let open = new(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    let ragged = CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC;
    let status = set(tensor, ragged, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[open]);
    assert_eq!(status, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    finish(tensor);
    words();
    check(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &[1], CUDNN_STATUS_BAD_PARAM);
    assert_eq!(cudnnBackendFinalize(tensor), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(cudnnBackendDestroyDescriptor(tensor), OK);
    assert_eq!(cudnnBackendDestroyDescriptor(tensor), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(cudnnBackendFinalize(std::ptr::null_mut()), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}

#[test]
fn tensors_are_complete_and_possible() {
    let check = |tensor: Descriptor, status: Status| assert_eq!(cudnnBackendFinalize(tensor), status);
    check(new(CUDNN_BACKEND_TENSOR_DESCRIPTOR), CUDNN_STATUS_BAD_PARAM);
    check(draft(&[2, 0], &[3, 1], SINGLE, 16), CUDNN_STATUS_BAD_PARAM);
    check(draft(&[2, 3], &[3, -1], SINGLE, 16), CUDNN_STATUS_BAD_PARAM);
    check(draft(&[2, 3], &[3, 1, 1], SINGLE, 16), CUDNN_STATUS_BAD_PARAM);
    check(draft(&[2, 3], &[3, 1], SINGLE, 2), CUDNN_STATUS_BAD_PARAM);
    check(draft(&[2, 3], &[3, 1], SINGLE, 12), CUDNN_STATUS_BAD_PARAM);
    let packed_bits = draft(&[2, 3], &[3, 1], Data::CUDNN_DATA_BOOLEAN, 16);
    check(packed_bits, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    check(draft(&[2, 3], &[3, 1], Data::CUDNN_DATA_FP8_E4M3, 16), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    let both = draft(&[1], &[1], SINGLE, 4);
    put(both, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &[true]);
    put(both, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &[true]);
    check(both, CUDNN_STATUS_BAD_PARAM);
    let many = draft(&[2], &[1], SINGLE, 4);
    put(many, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &[true]);
    check(many, CUDNN_STATUS_BAD_PARAM);
    let bench = Bench::new();
    for (dims, data) in [([3, 1, 1, 1], SINGLE), ([2, 1, 1, 1], Data::CUDNN_DATA_INT32)] {
        let ragged = draft(&[2, 1, 4, 8], &[32, 8, 8, 1], SINGLE, 16);
        let offsets = bench.real(data, &dims).descriptor;
        put(ragged, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[offsets]);
        check(ragged, CUDNN_STATUS_BAD_PARAM);
    }
}

/// Finalizes an operation with these parts.
fn operation(
    kind: cudnnBackendDescriptorType_t,
    parts: &[(cudnnBackendAttributeName_t, Descriptor)],
) -> Status {
    let operation = new(kind);
    for (name, part) in parts {
        put(operation, *name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[*part]);
    }
    cudnnBackendFinalize(operation)
}

fn matmul(a: &Tensor, b: &Tensor, c: &Tensor) -> Status {
    let what = new(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    put(what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &[SINGLE]);
    let parts = [
        (CUDNN_ATTR_OPERATION_MATMUL_DESC, finish(what)),
        (CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor),
        (CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor),
        (CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor),
    ];
    operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &parts)
}

fn pointwise(mode: Mode, x: &Tensor, b: Option<&Tensor>, y: &Tensor) -> Status {
    let what = new(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    put(what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &[mode]);
    put(what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &[SINGLE]);
    let mut parts = vec![
        (CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finish(what)),
        (CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor),
        (CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor),
    ];
    parts.extend(b.map(|b| (CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b.descriptor)));
    operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &parts)
}

#[test]
fn operations_have_the_tensors_that_they_need() {
    let bench = Bench::new();
    let real = |dims: &[i64]| bench.real(SINGLE, dims);
    let a = real(&[2, 3, 4]);
    let shape = CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    assert_eq!(matmul(&a, &real(&[2, 5, 6]), &real(&[2, 3, 6])), shape);
    assert_eq!(matmul(&a, &real(&[2, 4, 6]), &real(&[2, 3, 5])), shape);
    assert_eq!(matmul(&a, &real(&[3, 4, 6]), &real(&[3, 3, 6])), shape);
    assert_eq!(matmul(&real(&[3, 4]), &real(&[4, 6]), &real(&[3, 6])), shape);
    let half = bench.real(Data::CUDNN_DATA_BFLOAT16, &[2, 4, 6]);
    assert_eq!(matmul(&a, &half, &real(&[2, 3, 6])), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    let overlapping = bench.tensor(Place::Device, SINGLE, &[2, 3, 6], &[18, 5, 1], None);
    assert_eq!(matmul(&a, &real(&[2, 4, 6]), &overlapping), CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
    let (add, exp) = (Mode::CUDNN_POINTWISE_ADD, Mode::CUDNN_POINTWISE_EXP);
    assert_eq!(pointwise(add, &a, None, &real(&[2, 3, 4])), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(pointwise(exp, &a, Some(&a), &real(&[2, 3, 4])), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(pointwise(add, &a, Some(&real(&[2, 1, 2])), &real(&[2, 3, 4])), shape);
    assert_eq!(pointwise(exp, &real(&[2, 3, 1]), None, &real(&[2, 3, 4])), shape);
    assert_eq!(pointwise(exp, &a, None, &a), CUDNN_STATUS_NOT_SUPPORTED);
    let compare = Mode::CUDNN_POINTWISE_CMP_GE;
    let status = pointwise(compare, &a, Some(&a), &real(&[2, 3, 4]));
    assert_eq!(status, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    let index = new(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    let mode = [Mode::CUDNN_POINTWISE_GEN_INDEX];
    put(index, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
    put(index, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &[SINGLE]);
    assert_eq!(cudnnBackendFinalize(index), CUDNN_STATUS_BAD_PARAM);
}

#[test]
fn graphs_make_each_tensor_once_and_need_what_they_make() {
    let check = |write: fn(&mut Bench), status: Status| {
        let mut bench = Bench::new();
        write(&mut bench);
        assert_eq!(cudnnBackendFinalize(bench.graph()), status, "{}", words());
    };
    check(
        |bench| {
            let [x, y] = [(); 2].map(|()| bench.real(SINGLE, &[1, 2, 3, 4]));
            bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&x], &y);
            bench.pointwise(Mode::CUDNN_POINTWISE_EXP, &[&x], &y);
        },
        CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
    );
    check(
        |bench| {
            let x = bench.real(SINGLE, &[1, 2, 3, 4]);
            bench.then(Mode::CUDNN_POINTWISE_IDENTITY, &[&x]);
        },
        CUDNN_STATUS_BAD_PARAM,
    );
    check(
        |bench| {
            let (x, y) = (bench.between(SINGLE, &[1, 2, 3, 4]), bench.real(SINGLE, &[1, 2, 3, 4]));
            bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&x], &y);
        },
        CUDNN_STATUS_BAD_PARAM,
    );
    check(
        |bench| {
            let [x, y] = [(); 2].map(|()| bench.between(SINGLE, &[1, 2, 3, 4]));
            bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&x], &y);
            bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&y], &x);
        },
        CUDNN_STATUS_BAD_PARAM,
    );
    check(
        |bench| {
            let offsets = bench.real(Data::CUDNN_DATA_INT32, &[2, 1, 1, 1]);
            let of = strides(&[1, 2, 3, 4]);
            let x = bench.tensor(Place::Device, SINGLE, &[1, 2, 3, 4], &of, Some(&offsets));
            let y = bench.real(SINGLE, &[1, 2, 3, 4]);
            bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&x], &y);
        },
        CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
    );
    check(
        |bench| {
            let [a, b, c, d] = [(); 4].map(|()| bench.real(SINGLE, &[1, 4, 4]));
            let lengths = bench.real(Data::CUDNN_DATA_INT32, &[1, 1, 1]);
            bench.matmul(&a, &b, &c, [Some(&lengths), None, None]);
            bench.matmul(&a, &b, &d, [None; 3]);
        },
        CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
    );
    let graph = new(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    assert_eq!(cudnnBackendFinalize(graph), CUDNN_STATUS_BAD_PARAM);
}

#[test]
fn devices_are_described_and_plans_for_them_do_not_run() {
    let bench = Bench::new();
    let json = CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION;
    let device = new(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    assert_eq!(cudnnBackendFinalize(device), CUDNN_STATUS_BAD_PARAM);
    put(device, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, &[bench.handle]);
    finish(device);
    let (status, count) = get::<u8>(device, json, CUDNN_TYPE_CHAR, &mut []);
    assert_eq!(status, OK);
    let mut words = vec![0_u8; count as usize];
    assert_eq!(get(device, json, CUDNN_TYPE_CHAR, &mut words), (OK, count));
    let same = new(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    put(same, json, CUDNN_TYPE_CHAR, &words);
    finish(same);
    let other = new(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    put(other, json, CUDNN_TYPE_CHAR, b"{}");
    assert_eq!(cudnnBackendFinalize(other), CUDNN_STATUS_BAD_PARAM);
}

#[test]
fn heuristics_fill_descriptors_that_are_there() {
    let (bench, plan, ..) = copying();
    let heuristics = new(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    let graph = finish(bench.graph());
    put(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[graph]);
    assert_eq!(cudnnBackendFinalize(heuristics), CUDNN_STATUS_BAD_PARAM);
    put(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &[3_u32]);
    let read = |room: &mut [Descriptor]| {
        get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, room)
    };
    assert_eq!(read(&mut []).0, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    finish(heuristics);
    assert_eq!(read(&mut []), (OK, 2));
    let mut wrong = [new(CUDNN_BACKEND_TENSOR_DESCRIPTOR)];
    assert_eq!(read(&mut wrong).0, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
    let mut room = [(); 2].map(|()| new(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    assert_eq!(read(&mut room), (OK, 2));
    assert_eq!(read(&mut room).0, CUDNN_STATUS_BAD_PARAM);
    let (mut size, mut same) = ([0_i64], [0_i64]);
    let name = CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE;
    assert_eq!(get(room[1], name, CUDNN_TYPE_INT64, &mut size), (OK, 1));
    let name = CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
    assert_eq!(get(plan, name, CUDNN_TYPE_INT64, &mut same), (OK, 1));
    assert!(size[0] == 256 && size == same);
    let status = set(plan, name, CUDNN_TYPE_INT64, &[5_i64]);
    assert_eq!(status, CUDNN_STATUS_BAD_PARAM);
}

#[test]
fn heads_that_no_engine_takes_have_no_plan() {
    let check = |width: i64, status: Status| {
        let mut bench = Bench::new();
        let data = Data::CUDNN_DATA_BFLOAT16;
        let shape = Shape { batch: 1, heads: 2, shared: 1, queries: 8, keys: 8, width, data };
        forward(&mut bench, shape, None);
        let graph = finish(bench.graph());
        let engine = new(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        put(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[graph]);
        put(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &[1_i64]);
        let config = new(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        put(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[finish(engine)]);
        let plan = new(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        let config = [finish(config)];
        put(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, &config);
        assert_eq!(cudnnBackendFinalize(plan), status);
    };
    check(24, OK);
    check(256, OK);
    check(12, CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
    check(264, CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
}
