//! Rates of products of few rows with packed weights and with bf16, in CPU time of one thread: GMAC per second and GB
//! of weights per second, the best of several runs over weights larger than the caches.
//!
//!     cargo run --release -p fathom-cpu --example packed_rows_bench -- [columns] [k] [rows ..]
#![allow(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_tensor::ggml::Kind;
use fathom_tensor::{BlockFormat, Category, DType, Device, MatMul, Packing, Tensor};

const FORMATS: [Option<BlockFormat>; 5] = [
    Some(BlockFormat::Octets(Kind::Q4K)),
    Some(BlockFormat::Octets(Kind::Q6K)),
    Some(BlockFormat::Ggml(Kind::Q8_0)),
    Some(BlockFormat::Nf4),
    None,
];

/// CPU time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Random weights in a format or in bf16, and their bytes.
fn weights(device: &Device, format: Option<BlockFormat>, rows: usize, cols: usize) -> (Tensor, usize) {
    let Some(format) = format else {
        let weights = device.empty(rows, cols, DType::Bf16, Category::Data);
        device.machine.write(&weights, &[0x12, 0x3c].repeat(rows * cols));
        return (weights, 2 * rows * cols);
    };
    let bytes = rows * format.row_bytes(cols);
    let weights = device.empty(1, bytes, DType::U8, Category::Data);
    let noise: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(2654435761) >> 13) as u8 & 0x3b).collect();
    device.machine.write(&weights, &noise);
    (weights.packed(Rc::new(Packing { cols, runs: vec![(format, rows)], turned: false })), bytes)
}

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (cols, inner) = (asked.first().copied().unwrap_or(32768), asked.get(1).copied().unwrap_or(2048));
    let counts = if asked.len() > 2 { asked[2..].to_vec() } else { vec![1, 2, 4, 8, 16, 64, 256] };
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(7);
    let isa = std::env::var("FATHOM_ISA").ok().and_then(|name| Isa::from_name(&name));
    let device = Device::new(Arc::new(Cpu::new(1, isa)), 4 << 30);
    for format in FORMATS {
        let (weights, bytes) = weights(&device, format, cols, inner);
        print!("{:<8}", format.map_or("bf16", BlockFormat::name));
        for rows in &counts {
            let a: Vec<f32> = (0..rows * inner).map(|at| (at as f32 * 0.1).sin()).collect();
            let wide = device.from_f32(*rows, inner, &a, Category::Data);
            let a = device.empty(*rows, inner, DType::Bf16, Category::Data);
            device.machine.copy(&wide, &a);
            let c = device.empty(*rows, cols, DType::Bf16, Category::Data);
            let op = MatMul { a: &a, a_trans: false, b: &weights, b_trans: true, c: &c, accumulate: false };
            let packed = op.packed();
            let desc = packed.as_ref().map_or_else(|| op.desc(), |op| op.desc());
            let scratch = device.machine.profile().workspace(&desc) as usize;
            let ws = device.empty(1, scratch.max(64), DType::U8, Category::Workspace);
            let mut best = f64::INFINITY;
            for _ in 0..runs {
                let start = thread_seconds();
                match &packed {
                    Some(op) => device.machine.packed_matmul(op, &ws),
                    None => device.machine.matmul(&op, &ws),
                }
                best = best.min(thread_seconds() - start);
            }
            let rate = |work: usize| work as f64 / best / 1e9;
            print!("  {rows:3}: {:4.0} {:5.1}", rate(rows * cols * inner), rate(bytes));
        }
        println!();
    }
}
