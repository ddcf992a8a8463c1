//! What is refused, and how.

use std::collections::BTreeMap;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t::*;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::*;
use cudarc::cudnn::sys::{cudnnBackendDescriptor_t as Descriptor, cudnnStatus_t as Status};

use super::super::*;
use super::bench::*;

const SINGLE: Data = Data::CUDNN_DATA_FLOAT;

/// A tensor's descriptor with these sizes, not finalized.
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

/// Finalizes an operation of these parts.
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

/// A graph of one copy, its plan, and what a pack of it has.
fn copying() -> (Bench, Descriptor, [i64; 2], BTreeMap<i64, u64>) {
    let mut bench = Bench::new();
    let [x, y] = [(); 2].map(|()| bench.real(SINGLE, &[1, 2, 3, 4]));
    bench.pointwise(Mode::CUDNN_POINTWISE_IDENTITY, &[&x], &y);
    let plan = bench.plan();
    let places = BTreeMap::from([(x.uid, memory(&[1.0_f32; 24])), (y.uid, memory(&[0.0_f32; 24]))]);
    (bench, plan, [x.uid, y.uid], places)
}

#[test]
fn execution_wants_memory_that_is_there() {
    let (bench, plan, [x, y], places) = copying();
    let with = |change: &dyn Fn(&mut BTreeMap<i64, u64>)| {
        let mut places = places.clone();
        change(&mut places);
        cudnnBackendExecute(bench.handle, plan, bench.pack(plan, &places))
    };
    assert_eq!(with(&|_| ()), OK);
    assert_eq!(with(&|places| _ = places.remove(&y)), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(with(&|places| _ = places.insert(99, 16)), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(with(&|places| _ = places.insert(x, 0)), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    let aligned = CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    assert_eq!(with(&|places| *places.get_mut(&x).unwrap() += 4), aligned);
    let short = memory(&[0.0_f32; 20]);
    assert_eq!(with(&|places| _ = places.insert(y, short)), CUDNN_STATUS_BAD_PARAM);
    let same = places[&x];
    assert_eq!(with(&|places| _ = places.insert(y, same)), CUDNN_STATUS_NOT_SUPPORTED);
    let other = Bench::new();
    let pack = bench.pack(plan, &places);
    assert_eq!(cudnnBackendExecute(other.handle, plan, pack), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(cudnnBackendExecute(bench.handle, pack, plan), CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
    let bare = new(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    let (uids, pointers): (Vec<i64>, Vec<u64>) = places.into_iter().unzip();
    put(bare, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, &uids);
    put(bare, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, &pointers);
    finish(bare);
    assert_eq!(cudnnBackendExecute(bench.handle, plan, bare), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    assert_eq!(cudnnDestroy(bench.handle), OK);
    assert_eq!(cudnnBackendExecute(bench.handle, plan, pack), CUDNN_STATUS_BAD_PARAM);
    assert_eq!(cudnnSetStream(other.handle, std::ptr::without_provenance_mut(64)), CUDNN_STATUS_BAD_PARAM);
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
fn work_fails_by_sequences_that_reach_into_the_next() {
    let check = |offsets: [i64; 3], lengths: [i32; 2], wanted: Option<&str>| {
        let mut bench = Bench::new();
        let starts = bench.real(Data::CUDNN_DATA_INT64, &[3, 1, 1, 1]);
        let of = strides(&[2, 1, 4, 8]);
        let a = bench.tensor(Place::Device, SINGLE, &[2, 1, 4, 8], &of, Some(&starts));
        let (b, c) = (bench.real(SINGLE, &[2, 1, 8, 8]), bench.real(SINGLE, &[2, 1, 4, 8]));
        let rows = bench.real(Data::CUDNN_DATA_INT32, &[2, 1, 1, 1]);
        bench.matmul(&a, &b, &c, [Some(&rows), None, None]);
        let plan = bench.plan();
        let places = BTreeMap::from([
            (starts.uid, memory(&offsets)),
            (a.uid, memory(&[1.0_f32; 5 * 8])),
            (b.uid, memory(&[1.0_f32; 128])),
            (c.uid, memory(&[0.0_f32; 64])),
            (rows.uid, memory(&lengths)),
        ]);
        let pack = bench.pack(plan, &places);
        let mut registry = registry();
        let (Ok(Made::Plan(plan)), Ok(Made::Pack(pack))) =
            (registry.made(plan.addr() as u64), registry.made(pack.addr() as u64))
        else {
            panic!("no plan and pack")
        };
        drop(registry);
        let result = plan.work(&pack).unwrap()();
        match wanted {
            None => assert_eq!(result, Ok(())),
            Some(words) => assert!(result.as_ref().is_err_and(|why| why.contains(words)), "{result:?}"),
        }
    };
    check([0, 24, 40], [3, 2], None);
    check([0, 24, 40], [3, 0], None);
    check([0, 16, 40], [3, 2], Some("to the next"));
    check([0, 24, 16], [3, 2], Some("offsets 24, then 16"));
    check([0, 24, 48], [3, 3], Some("no memory of a device"));
    check([0, 24, 40], [3, -1], Some("a length of -1"));
    check([0, 24, 40], [5, 2], Some("a length of 5, of 4"));
}

#[test]
fn scalars_are_copied_at_the_call() {
    let mut bench = Bench::new();
    let [x, y] = [(); 2].map(|()| bench.real(SINGLE, &[1, 1, 1, 2]));
    let scale = bench.tensor(Place::Host, SINGLE, &[1], &[1], None);
    bench.pointwise(Mode::CUDNN_POINTWISE_MUL, &[&x, &scale], &y);
    let plan = bench.plan();
    let mut value = Box::new(3.0_f32);
    let out = memory(&[0.0_f32; 2]);
    let at = std::ptr::from_mut::<f32>(&mut value).expose_provenance() as u64;
    let places = BTreeMap::from([(x.uid, memory(&[1.0_f32, 2.0])), (y.uid, out), (scale.uid, at)]);
    let pack = bench.pack(plan, &places);
    assert_eq!(cudnnBackendExecute(bench.handle, plan, pack), OK);
    *value = 5.0;
    crate::device::drive(bench.stream);
    assert_eq!(values::<f32>(out, 2), [3.0, 6.0]);
    let mut wrong = places;
    wrong.insert(scale.uid, memory(&[3.0_f32]));
    let pack = bench.pack(plan, &wrong);
    assert_eq!(cudnnBackendExecute(bench.handle, plan, pack), CUDNN_STATUS_BAD_PARAM);
}
