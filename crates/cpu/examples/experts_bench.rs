//! Times products with the weights of experts, in bf16 and packed: CPU time of one thread for an input and an output
//! projection of a layer, the median of several runs, measured alternately.
//!
//!     cargo run --release -p fathom-cpu --example experts_bench -- [experts] [of a token] [hidden] [inside] [runs]
#![allow(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::ggml::Kind;
use fathom_tensor::grouped::Codes;
use fathom_tensor::{BlockFormat, Category, DType, Device, Grouped, GroupedMatMul, Packing, Tensor};

/// CPU time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Random weights in a format, or in bf16.
fn weights(device: &Device, format: Option<BlockFormat>, rows: usize, cols: usize) -> Tensor {
    let Some(format) = format else {
        let weights = device.empty(rows, cols, DType::Bf16, Category::Data);
        device.machine.write(&weights, &[0x12, 0x3c].repeat(rows * cols));
        return weights;
    };
    let bytes = rows * format.row_bytes(cols);
    let weights = device.empty(1, bytes, DType::U8, Category::Data);
    let noise: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(2654435761) >> 13) as u8 & 0x3b).collect();
    device.machine.write(&weights, &noise);
    weights.packed(Rc::new(Packing { cols, runs: vec![(format, rows)], turned: false }))
}

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let of = |at: usize, or: usize| asked.get(at).copied().unwrap_or(or);
    let (experts, slots, hidden, inside, runs) = (of(0, 64), of(1, 8), of(2, 2048), of(3, 768), of(4, 7));
    let device = Device::new(Arc::new(Cpu::new(1, None)), 8 << 30);
    let mxfp4 = BlockFormat::Grouped(Grouped { codes: Codes::E2m1, group: 32 });
    let formats =
        [None, Some(BlockFormat::Octets(Kind::Q4K)), Some(BlockFormat::Ggml(Kind::Q8_0)), Some(mxfp4)];
    for (what, inner, out) in [("in", hidden, 2 * inside), ("out", inside, hidden)] {
        let all = formats.map(|format| weights(&device, format, experts * out, inner));
        for tokens in [1, 8, 512] {
            let index: Vec<i32> =
                (0..tokens * slots).map(|at| ((at / slots * 37 + at * 5) % experts) as i32).collect();
            let index = device.from_i32(&index, Category::Data).reshape(tokens, slots);
            let a: Vec<f32> = (0..tokens * inner * slots).map(|at| (at as f32 * 0.1).sin()).collect();
            let wide = device.from_f32(tokens, inner * slots, &a, Category::Data);
            let a = device.empty(tokens, inner * slots, DType::Bf16, Category::Data);
            device.machine.copy(&wide, &a);
            let c = device.empty(tokens, slots * out, DType::Bf16, Category::Data);
            let mut times = vec![Vec::new(); formats.len()];
            for _ in 0..runs {
                for (weights, times) in all.iter().zip(&mut times) {
                    let op = GroupedMatMul { a: &a, weights, experts, trans: true, index: &index, c: &c };
                    let scratch = device.machine.profile().workspace(&op.desc()) as usize;
                    let ws = device.empty(1, scratch, DType::U8, Category::Workspace);
                    let start = thread_seconds();
                    device.machine.grouped_matmul(&op, &ws);
                    times.push(thread_seconds() - start);
                }
            }
            for (format, times) in formats.iter().zip(&mut times) {
                times.sort_by(f64::total_cmp);
                let name = format.map_or("bf16", BlockFormat::name);
                let ms = 1e3 * times[runs / 2];
                println!("{what:<3} {tokens:4} tokens, {slots} of {experts} experts, {name:<13} {ms:8.3} ms");
            }
        }
    }
}
