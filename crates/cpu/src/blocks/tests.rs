//! Compares kernels with the reference definition, bit for bit, for every instruction set and several numbers of
//! threads.

use std::sync::Arc;

use fathom_tensor::ggml::octets::{OCTET, interleave};
use fathom_tensor::ggml::{Kind, dequantise, quantise};
use fathom_tensor::{BlockFormat, Category, DType, Device, FourBits, Pack, RoundWeights, Unpack};

use crate::Cpu;
use crate::isa::Isa;

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let number = |at: usize, bits: u32| match at % 97 {
        0 => 0.0,
        _ => (f64::from(bits) / 2f64.powi(31) - 1.0) as f32 * [1.0, 1e-4, 300.0][at / 640 % 3],
    };
    (0..count).map(|at| number(at, next())).collect()
}

fn check(format: BlockFormat, [rows, cols]: [usize; 2], threads: usize, isa: Isa) {
    let what = format!("{format:?} [{rows}, {cols}] on {threads} threads with {isa:?}");
    let device = Device::new(Arc::new(Cpu::new(threads, Some(isa))), 1 << 26);
    let mut x = numbers(rows * cols, 7);
    // A block of zeros, and one with a single nonzero element.
    x.iter_mut().take(64).for_each(|x| *x = 0.0);
    let width = format.row_bytes(cols);
    let mut expected = vec![0; rows * width];
    let mut back = vec![0.0; x.len()];
    for row in 0..rows {
        let packed = &mut expected[row * width..][..width];
        format.pack_row(&x[row * cols..][..cols], packed);
        format.unpack_row(packed, &mut back[row * cols..][..cols]);
    }
    let plain = device.from_f32(rows, cols, &x, Category::Data);
    let packed = device.zeros(rows, width, DType::U8, Category::Data);
    device.machine.write(&packed, &vec![0xa5; rows * width]);
    device.machine.pack(&Pack { format, x: &plain, out: &packed });
    assert!(device.machine.read(&packed).wait() == expected, "pack {what}");
    for dtype in [DType::F32, DType::Bf16] {
        let out = device.zeros(rows, cols, dtype, Category::Data);
        device.machine.unpack(&Unpack { format, packed: &packed, out: &out });
        let rounded: Vec<f32> = match dtype {
            DType::Bf16 => back.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect(),
            _ => back.clone(),
        };
        let found = device.to_f32(&out);
        let same = found.iter().zip(&rounded).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "unpack to {dtype:?} {what}");
    }
}

#[test]
fn kernels_are_the_definition() {
    for isa in Isa::ALL {
        for format in [BlockFormat::Nf4, BlockFormat::Int8] {
            for shape in [[1, 1], [1, 63], [1, 64], [1, 1001], [3, 64], [5, 192], [2, 4096], [17, 320]] {
                for threads in [1, 3] {
                    check(format, shape, threads, isa);
                }
            }
        }
    }
}

/// Interleaving does not change the values of rows.
#[test]
fn interleaved_rows_are_unpacked() {
    let (rows, cols) = (16, 512);
    let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 26);
    for kind in [Kind::Q4_0, Kind::Q4_1, Kind::Q5_0, Kind::Q5_1, Kind::Q4K, Kind::Q5K, Kind::Q6K] {
        let width = kind.bytes(cols);
        let (mut bytes, mut plain) = (vec![0; rows * width], vec![0.0; rows * cols]);
        quantise(kind, &numbers(rows * cols, 5), &mut bytes);
        dequantise(kind, &bytes, &mut plain);
        bytes.chunks_mut(OCTET * width).for_each(|rows| interleave(kind, rows));
        let packed = device.zeros(rows, width, DType::U8, Category::Data);
        device.machine.write(&packed, &bytes);
        for dtype in [DType::F32, DType::Bf16] {
            let out = device.zeros(rows, cols, dtype, Category::Data);
            let format = BlockFormat::Octets(kind);
            device.machine.unpack(&Unpack { format, packed: &packed, out: &out });
            let rounded = |x: &f32| match dtype {
                DType::Bf16 => half::bf16::from_f32(*x).to_f32(),
                _ => *x,
            };
            let found = device.to_f32(&out);
            assert!(found.iter().zip(&plain).all(|(x, y)| *x == rounded(y)), "{kind:?} to {dtype:?}");
        }
    }
}

/// Rows do not depend on each other.
#[test]
fn rows_are_packed_by_themselves() {
    let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 26);
    let format = BlockFormat::Nf4;
    let x = device.from_f32(6, 128, &numbers(768, 3), Category::Data);
    let all = device.zeros(6, format.row_bytes(128), DType::U8, Category::Data);
    device.machine.pack(&Pack { format, x: &x, out: &all });
    let some = device.zeros(2, format.row_bytes(128), DType::U8, Category::Data);
    device.machine.pack(&Pack { format, x: &x.view_rows(3..5), out: &some });
    let read = |tensor| device.machine.read(tensor).wait();
    assert_eq!(read(&all.view_rows(3..5)), read(&some));
}

#[test]
fn masters_become_what_the_definition_says() {
    let x = numbers(128 * 150, 11);
    for isa in Isa::ALL {
        for (format, threads) in [(FourBits::Mxfp4, 1), (FourBits::Nvfp4, 3), (FourBits::Int4(64), 2)] {
            let device = Device::new(Arc::new(Cpu::new(threads, Some(isa))), 1 << 26);
            let masters = device.from_f32(1, x.len(), &x, Category::Data);
            // Larger than all elements, which are only a part of the weight.
            let most = device.from_f32(1, 1, &[310.0], Category::Data);
            let largest = format.has_factor().then_some(&most);
            let expected = format.round(&x, format.factor(310.0));
            for dtype in [DType::F32, DType::Bf16] {
                let out = device.empty(1, x.len(), dtype, Category::Data);
                device.machine.round_weights(&RoundWeights { format, x: &masters, largest, out: &out });
                let rounded = |x: &f32| match dtype {
                    DType::Bf16 => half::bf16::from_f32(*x).to_f32(),
                    _ => *x,
                };
                let found = device.to_f32(&out);
                let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == rounded(b).to_bits());
                assert!(same, "{format:?} to {dtype:?} with {isa:?}");
            }
        }
    }
}
