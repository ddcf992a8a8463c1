//! Times products with packed weights: gigabytes of weights per second of one thread's CPU time, the median of several
//! runs. Rows interleaved by eight are measured alternately with plain ones.
//!
//!     cargo run --release -p fathom-cpu --example blocks_bench -- [rows of the weight] [columns] [runs]
#![allow(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::ggml::Kind;
use fathom_tensor::ggml::octets::interleaves;
use fathom_tensor::grouped::Codes;
use fathom_tensor::{BlockFormat, Category, DType, Device, Grouped, PackedMatMul, Packing};

/// CPU time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Groups of formats that are measured alternately.
fn formats() -> Vec<Vec<BlockFormat>> {
    let kinds = [Kind::Q8_0, Kind::Q4_0, Kind::Q4_1, Kind::Q5_0, Kind::Q5_1, Kind::Q4K, Kind::Q5K, Kind::Q6K]
        .map(|kind| {
            let octets = interleaves(kind).then_some(BlockFormat::Octets(kind));
            std::iter::once(BlockFormat::Ggml(kind)).chain(octets).collect()
        });
    let grouped = [(Codes::Int4, 128), (Codes::Int8, 128), (Codes::E2m1, 32), (Codes::E4m3, 128)];
    let grouped = grouped.map(|(codes, group)| vec![BlockFormat::Grouped(Grouped { codes, group })]);
    kinds.into_iter().chain(grouped).collect()
}

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let of = |at: usize, or: usize| asked.get(at).copied().unwrap_or(or);
    // The second size fits in the second-level cache.
    let (rows, cols, runs) = (of(0, 32768), of(1, 2048), of(2, 9));
    let device = Device::new(Arc::new(Cpu::new(1, None)), 4 << 30);
    for formats in formats() {
        for (rows, m) in [(rows, 1), (rows, 4), (rows, 8), (rows, 16), (64, 1), (64, 4), (1024, 256)] {
            let bytes = rows * formats[0].row_bytes(cols);
            let noise: Vec<u8> =
                (0..bytes).map(|at| (at.wrapping_mul(2654435761) >> 13) as u8 & 0x3b).collect();
            let weights = formats.iter().map(|format| {
                let weight = device.empty(1, bytes, DType::U8, Category::Data);
                device.machine.write(&weight, &noise);
                weight.packed(Rc::new(Packing { cols, runs: vec![(*format, rows)], turned: false }))
            });
            let weights: Vec<_> = weights.collect();
            let a: Vec<f32> = (0..m * cols).map(|at| (at as f32 * 0.1).sin()).collect();
            let a = device.from_f32(m, cols, &a, Category::Data);
            let c = device.empty(m, rows, DType::F32, Category::Data);
            let times = (32768 / rows / m).max(1);
            let mut all = vec![Vec::new(); weights.len()];
            for _ in 0..runs {
                for (weight, all) in weights.iter().zip(&mut all) {
                    let op = PackedMatMul { a: &a, weight, c: &c };
                    let scratch = device.machine.profile().workspace(&op.desc()) as usize;
                    let ws = device.empty(1, scratch, DType::U8, Category::Workspace);
                    let start = thread_seconds();
                    (0..times).for_each(|_| device.machine.packed_matmul(&op, &ws));
                    all.push((thread_seconds() - start) / times as f64);
                }
            }
            for (format, all) in formats.iter().zip(&mut all) {
                all.sort_by(f64::total_cmp);
                let (median, macs) = (all[runs / 2], (m * rows * cols) as f64);
                let how = if matches!(format, BlockFormat::Octets(_)) { "by eight" } else { "" };
                println!(
                    "{:<13} {how:<8} {rows:6} x {cols}, {m:3} rows: {:6.2} GB/s {:6.1} GMAC/s",
                    format.name(),
                    bytes as f64 / median / 1e9,
                    macs / median / 1e9
                );
            }
            if let [plain, octets] = &all[..] {
                println!("{:>62.3} times as fast", plain[runs / 2] / octets[runs / 2]);
            }
        }
    }
}
