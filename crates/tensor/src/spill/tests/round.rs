//! Values are read back unchanged.

use std::sync::atomic::Ordering;

use super::*;
use crate::spill::{Access, PAGE};

const TYPES: [DType; 9] = [
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U32,
];

/// Both kinds of access, and a machine whose tensors the host cannot reach.
fn everywhere(check: impl Fn(&Device, &Spill)) {
    let folder = folder();
    for direct in [true, false] {
        let options = Options { direct, ..options(&folder) };
        for device in [machine::plain(BUDGET), machine::fenced(&options, BUDGET).0] {
            let spill = Spill::open(&device, &options).unwrap();
            assert!(direct || matches!(spill.access(), Access::Buffered { .. }));
            check(&device, &spill);
        }
    }
}

#[test]
fn all_types_and_strides() {
    everywhere(|device, spill| {
        for (seed, dtype) in TYPES.into_iter().enumerate() {
            let shape = [37, 1000];
            let expected = bytes(device, &filled(device, seed as u64, shape, dtype));
            let back = round_trip(device, spill, filled(device, seed as u64, shape, dtype), Codec::AsIs);
            assert_eq!(bytes(device, &back), expected, "{dtype:?}");

            // A view of rows and columns, read into another view.
            let whole = filled(device, seed as u64, [50, 300], dtype);
            let view = || whole.view_rows(3..48).view_cols(17..256);
            let expected = bytes(device, &view());
            let stored = spill.write(view(), Codec::AsIs, TAG).unwrap().retire().unwrap();
            let other = filled(device, 99, [60, 400], dtype);
            let into = other.view_rows(10..55).view_cols(100..339);
            let back = spill.read(&stored, into).unwrap().retire().unwrap();
            assert_eq!(bytes(device, &back), expected, "{dtype:?}");
            // Nothing around the view has changed.
            let (around, before) = (bytes(device, &other), pattern(99, other.bytes()));
            let size = dtype.bytes();
            for (row, (now, then)) in around.chunks(400 * size).zip(before.chunks(400 * size)).enumerate() {
                let inside = (10..55).contains(&row);
                assert!(now[..100 * size] == then[..100 * size] && now[339 * size..] == then[339 * size..]);
                assert!(inside || now == then);
            }
        }
        assert_eq!(spill.stats().live_bytes, 0);
    });
}

/// Sizes around pages and pieces, at addresses that are page-aligned and that are not.
#[test]
fn edges_of_pages_and_pieces() {
    everywhere(|device, spill| {
        let sizes = [1, 2, 4095, 4096, 4097, 8191, 8192, 16383, 16384, 16385, 20480, 20481, 65536, 65537];
        for size in sizes {
            for skip in [0usize, 1, 511, 4096] {
                let whole = filled(device, size as u64, [1, size + skip], DType::U8);
                let view = whole.view_cols(skip..size + skip);
                let expected = bytes(device, &view);
                let before = spill.stats();
                let stored = spill.write(view, Codec::AsIs, TAG).unwrap().retire().unwrap();
                let charged = (size as u64).next_multiple_of(PAGE);
                assert_eq!((stored.charged_bytes(), spill.stats().live_bytes), (charged, charged));
                let target = filled(device, 7, [1, size + 2 * skip], DType::U8);
                let into = target.view_cols(skip..size + skip);
                let back = spill.read(&stored, into).unwrap().retire().unwrap();
                assert!(bytes(device, &back) == expected, "{size} bytes at {skip}");
                let around = bytes(device, &target);
                let untouched = pattern(7, around.len() as u64);
                assert!(around[..skip] == untouched[..skip]);
                assert!(around[size + skip..] == untouched[size + skip..], "{size} bytes at {skip}");
                let after = spill.stats();
                assert_eq!(after.written_bytes - before.written_bytes, size as u64);
                assert_eq!(after.read_bytes - before.read_bytes, size as u64);
            }
        }
    });
}

#[test]
fn rows_come_back_by_other_tiles() {
    everywhere(|device, spill| {
        let shape @ [rows, cols] = [123, 331];
        for codec in [Codec::AsIs, Codec::Fp8Block] {
            let values: Vec<f32> =
                (0..rows * cols).map(|i| (i as f32 * 0.37).sin() * (i % 97) as f32).collect();
            let tensor = device.from_f32(rows, cols, &values, Category::Activations);
            let stored = spill.write(tensor, codec, TAG).unwrap().retire().unwrap();
            let whole = device.empty(rows, cols, DType::F32, Category::Activations);
            let whole = spill.read(&stored, whole).unwrap().retire().unwrap();
            let whole = device.to_f32(&whole);
            assert!(codec == Codec::Fp8Block || whole == values);
            for tile in [1, 2, 40, 64, 123] {
                for first in (0..rows).step_by(tile) {
                    let range = first..(first + tile).min(rows);
                    let into = device.empty(range.len(), cols, DType::F32, Category::Activations);
                    let part = spill.read_rows(&stored, range.clone(), into).unwrap().retire().unwrap();
                    let expected = &whole[range.start * cols..range.end * cols];
                    assert!(device.to_f32(&part) == expected, "{codec:?} rows {range:?} of {shape:?}");
                }
            }
            // Codes do not depend on the tiles of the write.
            let tensor = device.from_f32(rows, cols, &values, Category::Activations);
            for range in [0..60, 60..61, 61..123] {
                let view = tensor.view_rows(range.clone());
                let back = round_trip(device, spill, view, codec);
                assert!(device.to_f32(&back) == whole[range.start * cols..range.end * cols], "{range:?}");
            }
        }
    });
}

#[test]
fn fp8_is_near_in_the_file_and_at_home() {
    everywhere(|device, spill| {
        for (rows, cols) in [(1, 1), (3, 128), (200, 129), (64, 512), (2, 40000)] {
            let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 1.7).sin() * 3.0).collect();
            let tensor = device.from_f32(rows, cols, &values, Category::Activations);
            let before = spill.stats().written_bytes;
            let back = round_trip(device, spill, tensor, Codec::Fp8Block);
            let moved = Codec::Fp8Block.bytes(rows, cols, DType::F32);
            assert_eq!(spill.stats().written_bytes - before, moved);
            for (x, y) in values.iter().zip(device.to_f32(&back)) {
                assert!((x - y).abs() <= (x.abs() / 16.0).max(3.0 / 448.0 / 1024.0) * 1.001, "{x} {y}");
            }
        }
    });
}

#[test]
fn what_the_host_cannot_reach_goes_through_copies() {
    let folder = folder();
    let options = options(&folder);
    let (device, copies) = machine::fenced(&options, BUDGET);
    let spill = Spill::open(&device, &options).unwrap();
    let tensor = filled(&device, 1, [4, 16384], DType::U8);
    let back = round_trip(&device, &spill, tensor, Codec::AsIs);
    assert_eq!(bytes(&device, &back), pattern(1, 65536));
    assert_eq!(copies.count.load(Ordering::Relaxed), 8);

    // Plain memory in whole pages needs no copies.
    let (device, copies) = machine::reaching(u64::MAX, BUDGET);
    let spill = Spill::open(&device, &options).unwrap();
    let tensor = filled(&device, 1, [4, 16384], DType::U8);
    let back = round_trip(&device, &spill, tensor, Codec::AsIs);
    assert_eq!(bytes(&device, &back), pattern(1, 65536));
    assert_eq!(copies.count.load(Ordering::Relaxed), 0);
}

#[test]
fn nothing_is_a_value_too() {
    everywhere(|device, spill| {
        for shape in [[0, 5], [5, 0]] {
            let back = round_trip(device, spill, filled(device, 0, shape, DType::F32), Codec::AsIs);
            assert_eq!(back.shape(), shape);
            round_trip(device, spill, filled(device, 0, shape, DType::F32), Codec::Fp8Block);
        }
    });
}
