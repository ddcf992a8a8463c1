//! Execution of plans: missing memory, sequences that do not fit, scalars.

use std::collections::BTreeMap;

use cudarc::cudnn::sys::cudnnBackendAttributeName_t::*;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t::*;
use cudarc::cudnn::sys::cudnnBackendDescriptor_t as Descriptor;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t::*;

use super::super::*;

use super::bench::*;

const SINGLE: Data = Data::CUDNN_DATA_FLOAT;

/// A graph of one copy, its plan, its uids, and its memory.
pub fn copying() -> (Bench, Descriptor, [i64; 2], BTreeMap<i64, u64>) {
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

/// Checks the result of a plan's work.
fn outcome(bench: &Bench, places: &[(&Tensor, u64)], wanted: Option<&str>) {
    let plan = bench.plan();
    let places = places.iter().map(|(tensor, place)| (tensor.uid, *place)).collect();
    let pack = bench.pack(plan, &places);
    let mut all = registry();
    let plan = all.object(plan.addr() as u64).unwrap().get::<Plan>().unwrap();
    let pack = all.object(pack.addr() as u64).unwrap().get::<Pack>().unwrap();
    drop(all);
    let result = plan.work(&pack).unwrap()();
    match wanted {
        None => assert_eq!(result, Ok(())),
        Some(words) => assert!(result.as_ref().is_err_and(|why| why.contains(words)), "{result:?}"),
    }
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
        let places = [
            (&starts, memory(&offsets)),
            (&a, memory(&[1.0_f32; 5 * 8])),
            (&b, memory(&[1.0_f32; 128])),
            (&c, memory(&[0.0_f32; 64])),
            (&rows, memory(&lengths)),
        ];
        outcome(&bench, &places, wanted);
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
fn work_fails_by_rows_of_no_terms() {
    let check = |rows: [i32; 2], terms: [i32; 2], wanted: Option<&str>| {
        let mut bench = Bench::new();
        let [a, b, c] = [(); 3].map(|()| bench.real(SINGLE, &[2, 1, 4, 4]));
        let [m, k] = [(); 2].map(|()| bench.real(Data::CUDNN_DATA_INT32, &[2, 1, 1, 1]));
        bench.matmul(&a, &b, &c, [Some(&m), None, Some(&k)]);
        let mut places: Vec<_> = [&a, &b, &c].map(|tensor| (tensor, memory(&[1.0_f32; 32]))).into();
        places.extend([(&m, memory(&rows)), (&k, memory(&terms))]);
        outcome(&bench, &places, wanted);
    };
    check([4, 0], [4, 0], None);
    check([4, 0], [4, 3], None);
    check([4, 1], [4, 0], Some("batch 1 has rows of no terms"));
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
