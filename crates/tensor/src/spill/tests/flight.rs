//! Values in flight stay charged and cannot be used.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::spill::{Chaos, Kind, PAGE};

/// Slow enough that transfers are in flight when the next line runs.
fn slow(folder: &tempfile::TempDir) -> Options {
    Options { chaos: Some(Chaos { seed: 1, fault_one_in: 0 }), piece_bytes: PAGE, ..options(folder) }
}

fn live(device: &Device) -> u64 {
    device.pool.usage().by_category[Category::Activations]
}

#[test]
fn a_charge_ends_at_the_retire_point() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &slow(&folder)).unwrap();
    let writing = spill.write(filled(&device, 1, [1, 65536], DType::U8), Codec::AsIs, TAG).unwrap();
    assert_eq!((live(&device), spill.stats().live_bytes), (65536, 65536));
    // A transfer that ended long ago is still charged.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(live(&device), 65536);
    let stored = writing.retire().unwrap();
    assert_eq!((live(&device), spill.stats().live_bytes), (0, 65536));

    let into = device.empty(1, 65536, DType::U8, Category::Activations);
    let reading = spill.read(&stored, into).unwrap();
    // The read holds the extent as well.
    drop(stored);
    assert_eq!((live(&device), spill.stats().live_bytes), (65536, 65536));
    let tensor = reading.retire().unwrap();
    assert_eq!((live(&device), spill.stats().live_bytes), (65536, 0));
    assert_eq!(bytes(&device, &tensor), pattern(1, 65536));
}

#[test]
fn clones_and_views_of_what_is_in_flight_panic() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &slow(&folder)).unwrap();
    let whole = filled(&device, 1, [64, 128], DType::F32);
    let refused = |tensor: &Tensor| {
        let refusal = catch_unwind(AssertUnwindSafe(|| bytes(&device, tensor))).err();
        refusal.is_some_and(|panic| panic.downcast_ref::<String>().unwrap().contains("is in flight"))
    };
    let writing = spill.write(whole.view_rows(16..32), Codec::AsIs, TAG).unwrap();
    assert!(refused(&whole) && refused(&whole.view_rows(31..33)) && refused(&whole.view_cols(5..6)));
    assert!(!refused(&whole.view_rows(0..16)) && !refused(&whole.view_rows(32..64)));
    // Nor can it be sent twice.
    let twice = catch_unwind(AssertUnwindSafe(|| spill.write(whole.clone(), Codec::AsIs, TAG)));
    assert!(twice.is_err());
    let stored = writing.retire().unwrap();
    assert!(!refused(&whole));

    // Columns of heads: the other heads stay usable.
    let reading = spill.read(&stored, whole.view_rows(0..16)).unwrap();
    assert!(refused(&whole.view_rows(0..1).view_cols(0..3)));
    assert_eq!(reading.retire().unwrap().shape(), [16, 128]);
    let heads = spill.write(whole.view_cols(32..64), Codec::AsIs, TAG).unwrap();
    assert!(refused(&whole.view_cols(63..64)) && !refused(&whole.view_cols(64..128)));
    drop(heads);
    assert!(!refused(&whole));
}

/// A checkpoint's reader and a transfer into the same tensor exclude each other.
#[test]
fn what_another_thread_reads_is_not_read_into() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &options(&folder)).unwrap();
    let tensor = filled(&device, 1, [4, 100], DType::F32);
    let (share, reader) = device.machine.share(&tensor);
    // Writing it out only reads it.
    let stored = spill.write(tensor.clone(), Codec::AsIs, TAG).unwrap().retire().unwrap();
    let read = || spill.read(&stored, tensor.clone()).map(|reading| reading.retire());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(read()))).is_err());
    drop((reader, share));
    read().unwrap().unwrap();
    assert_eq!(bytes(&device, &tensor), pattern(1, 1600));
}

#[test]
fn dropped_transfers_wait_and_give_everything_back() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &slow(&folder)).unwrap();
    for seed in 0..20 {
        let writing = spill.write(filled(&device, seed, [1, 40000], DType::U8), Codec::AsIs, TAG).unwrap();
        drop(writing);
        assert_eq!((live(&device), spill.stats().live_bytes), (0, 0));
        // The same memory again, at once: if a worker were still using it, the next values would be corrupted.
    }
    let last = spill.write(filled(&device, 50, [1, 40000], DType::U8), Codec::AsIs, TAG).unwrap();
    // A value in flight keeps the engine alive.
    drop(spill);
    let stored = last.retire().unwrap();
    drop(stored);
    assert_eq!(device.pool.usage().live, 0);
}

#[test]
fn a_buffer_can_come_back_from_its_write() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &options(&folder)).unwrap();
    let mut buffer = device.empty(8, 5000, DType::Bf16, Category::Optimizer);
    let mut shelf = Vec::new();
    for seed in 0..5 {
        device.machine.write(&buffer, &pattern(seed, buffer.bytes()));
        let (stored, again) = spill.write(buffer, Codec::AsIs, TAG).unwrap().retire_with().unwrap();
        shelf.push(stored);
        buffer = again;
    }
    for (seed, stored) in shelf.iter().enumerate() {
        buffer = spill.read(stored, buffer).unwrap().retire().unwrap();
        assert_eq!(bytes(&device, &buffer), pattern(seed as u64, buffer.bytes()));
    }
    assert_eq!(device.pool.usage().peak_by_category[Category::Optimizer], device.pool.charge(80000));
}

#[test]
fn transfers_and_waits_are_recorded() {
    let folder = folder();
    let device = machine::plain(BUDGET);
    let spill = Spill::open(&device, &slow(&folder)).unwrap();
    round_trip(&device, &spill, filled(&device, 1, [1, 65536], DType::U8), Codec::AsIs);
    assert!(spill.recorded().is_empty());
    spill.record();
    let stalled = spill.stats().stall_s;
    round_trip(&device, &spill, filled(&device, 1, [1, 65536], DType::U8), Codec::AsIs);
    let spans = spill.recorded();
    let count = |kind| spans.iter().filter(|span| span.kind == kind).count();
    assert_eq!([Kind::Write, Kind::Read, Kind::Stall].map(count), [1, 1, 2]);
    assert!(spans.iter().all(|span| span.issued <= span.began && span.began <= span.ended));
    let moved: Vec<u64> = spans.iter().map(|span| span.bytes).filter(|bytes| *bytes > 0).collect();
    assert_eq!((moved, spans[0].tag.to_string().as_str()), (vec![65536, 65536], "mlp.act (layer 3)"));
    let waited: f64 = spans
        .iter()
        .filter(|span| span.kind == Kind::Stall)
        .map(|span| (span.ended - span.began).as_secs_f64())
        .sum();
    assert!((spill.stats().stall_s - stalled - waited).abs() < 0.01);
}
