//! Times products of few rows with packed weights: gigabytes of the weights a second of one thread's CPU time, the median of some runs.
//!
//!     cargo run --release -p fathom-cpu --example blocks_bench -- [rows of the weight] [columns] [runs]
#![allow(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::ggml::Kind;
use fathom_tensor::grouped::Codes;
use fathom_tensor::{BlockFormat, Category, DType, Device, Grouped, PackedMatMul, Packing};

/// CPU time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn formats() -> Vec<BlockFormat> {
    let kinds = [Kind::Q8_0, Kind::Q4_0, Kind::Q4K, Kind::Q5K, Kind::Q6K].map(BlockFormat::Ggml);
    let grouped = [(Codes::Int4, 128), (Codes::Int8, 128), (Codes::E2m1, 32), (Codes::E4m3, 128)];
    let grouped = grouped.map(|(codes, group)| BlockFormat::Grouped(Grouped { codes, group }));
    kinds.into_iter().chain(grouped).collect()
}

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let of = |at: usize, or: usize| asked.get(at).copied().unwrap_or(or);
    // The second size fits the second cache.
    let (rows, cols, runs) = (of(0, 32768), of(1, 2048), of(2, 9));
    let device = Device::new(Arc::new(Cpu::new(1, None)), 4 << 30);
    for format in formats() {
        for rows in [rows, 64] {
            let bytes = rows * format.row_bytes(cols);
            let noise: Vec<u8> =
                (0..bytes).map(|at| (at.wrapping_mul(2654435761) >> 13) as u8 & 0x3b).collect();
            let weight = device.empty(1, bytes, DType::U8, Category::Data);
            device.machine.write(&weight, &noise);
            let weight = weight.packed(Rc::new(Packing { cols, runs: vec![(format, rows)] }));
            for m in [1, 4] {
                let a: Vec<f32> = (0..m * cols).map(|at| (at as f32 * 0.1).sin()).collect();
                let a = device.from_f32(m, cols, &a, Category::Data);
                let c = device.empty(m, rows, DType::F32, Category::Data);
                let op = PackedMatMul { a: &a, weight: &weight, c: &c };
                let scratch = device.machine.profile().workspace(&op.desc()) as usize;
                let ws = device.empty(1, scratch, DType::U8, Category::Workspace);
                let times = (32768 / rows).max(1);
                let mut all: Vec<f64> = (0..runs)
                    .map(|_| {
                        let start = thread_seconds();
                        (0..times).for_each(|_| device.machine.packed_matmul(&op, &ws));
                        (times * bytes) as f64 / (thread_seconds() - start) / 1e9
                    })
                    .collect();
                all.sort_by(f64::total_cmp);
                println!("{:<13} {rows:6} x {cols}, {m} rows: {:6.2} GB/s", format.name(), all[runs / 2]);
            }
        }
    }
}
