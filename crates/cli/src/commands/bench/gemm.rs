//! Rates of matrix products `y = x W^T`.

use anyhow::{Result, bail};
use fathom_tensor::{Category, MatMul};

use super::bed::Bed;
use super::row::Row;
use super::watch::{RunTimes, measure};
use crate::args::bench::Gemm;

/// (m, n, k) in the table of figures.
const SHAPES: [[usize; 3]; 10] = [
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [4096, 3072, 768],
    [4096, 768, 3072],
    [768, 3072, 4096],
    [2048, 1408, 512],
    [2048, 32000, 512],
    [128, 4096, 4096],
];

/// Small products are repeated within a sample, so that the clock sees some milliseconds: up to this work, and for
/// about this time.
const SAMPLE_FLOPS: f64 = 1e10;
const SAMPLE_S: f64 = 0.02;

/// Runs the benchmark.
pub fn run(args: &Gemm) -> Result<()> {
    let bed = Bed::new(args.timing.threads, args.dtype)?;
    for [m, n, k] in shapes(args)? {
        let forms: &[bool] = if args.packed { &[true] } else { &[false, true] };
        for packed in forms {
            let work = flops([m, n, k]);
            let most = (SAMPLE_FLOPS / work).round() as usize;
            let inner = if most > 1 {
                let once_s = product(&bed, [m, n, k], *packed, 1, 3).best_s;
                ((SAMPLE_S / once_s) as usize).clamp(1, most)
            } else {
                1
            };
            let timed = product(&bed, [m, n, k], *packed, inner, args.timing.repeat);
            let rate = |seconds: f64| inner as f64 * work / seconds * 1e-9;
            Row::new("gemm")
                .with("dtype", args.dtype.name())
                .with("m", m)
                .with("n", n)
                .with("k", k)
                .with("packed", *packed)
                .with("threads", bed.threads())
                .figure("gflops", rate(timed.median_s))
                .figure("gflops_best", rate(timed.best_s))
                .with("isa", bed.isa())
                .print(timed.loaded);
        }
    }
    Ok(())
}

pub fn flops([m, n, k]: [usize; 3]) -> f64 {
    2.0 * m as f64 * n as f64 * k as f64
}

fn shapes(args: &Gemm) -> Result<Vec<[usize; 3]>> {
    match args.shape.as_slice() {
        [] => Ok(SHAPES.to_vec()),
        [m, n, k] if m * n * k > 0 => Ok(vec![[*m, *n, *k]]),
        other => bail!("--shape {other:?}: three sizes M,N,K above zero are needed"),
    }
}

/// Times `inner` products.
pub fn product(bed: &Bed, [m, n, k]: [usize; 3], packed: bool, inner: usize, repeat: usize) -> RunTimes {
    let (x, w) = (bed.random(m, k, 1), bed.random(n, k, 2));
    let y = bed.device.empty(m, n, bed.dtype, Category::Data);
    if packed {
        let w = bed.cpu.pack(&bed.device, &w);
        let ws = bed.scratch(bed.cpu.packed_workspace(m, &w, bed.dtype));
        return measure(repeat, || (0..inner).for_each(|_| bed.cpu.matmul_packed(&x, &w, &y, &ws)));
    }
    let op = MatMul { a: &x, a_trans: false, b: &w, b_trans: true, c: &y, accumulate: false };
    let ws = bed.scratch(bed.device.machine.profile().workspace(&op.desc()));
    measure(repeat, || (0..inner).for_each(|_| bed.device.machine.matmul(&op, &ws)))
}
