//! Rate of a Mamba-2 layer's convolution, scan and gated norm, forward and backward, and the share of each. Usage:
//! `scan_bench [threads] [tokens,tokens,..] [f32|bf16] [heads] [width] [state] [groups]`; on one thread CPU time is
//! measured, so other load on the machine does not matter. A rate of f32 matrix products is measured next to them.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_tensor::*;

/// CPU time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Extents and memory of a layer.
struct Layer {
    device: Device,
    dtype: DType,
    threads: usize,
    heads: usize,
    width: usize,
    state: usize,
    groups: usize,
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed + 1;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| draw()).collect()
}

impl Layer {
    fn tensor(&self, rows: usize, cols: usize, seed: u64, dtype: DType) -> Tensor {
        let tensor = self.device.empty(rows, cols, dtype, Category::Data);
        for first in (0..rows).step_by(1024) {
            let part = tensor.view_rows(first..rows.min(first + 1024));
            let wide = random(part.rows() * cols, seed + first as u64);
            let wide = self.device.from_f32(part.rows(), cols, &wide, Category::Data);
            self.device.machine.copy(&wide, &part);
        }
        tensor
    }

    /// The least seconds of a few runs.
    fn seconds(&self, work: &dyn Fn()) -> f64 {
        let one = || {
            let (start, cpu) = (Instant::now(), thread_seconds());
            work();
            if self.threads == 1 { thread_seconds() - cpu } else { start.elapsed().as_secs_f64() }
        };
        one();
        (0..3).map(|_| one()).fold(f64::INFINITY, f64::min)
    }

    fn scratch(&self, desc: OpDesc) -> Tensor {
        let bytes = self.device.machine.profile().workspace(&desc);
        self.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    }

    /// FLOP/s of f32 products of 1,024 rows and columns.
    fn products(&self) -> f64 {
        let n = 1024;
        let [a, b, c] = [1, 2, 3].map(|seed| self.tensor(n, n, seed, DType::F32));
        let op = MatMul { a: &a, a_trans: false, b: &b, b_trans: true, c: &c, accumulate: false };
        let ws = self.scratch(op.desc());
        2.0 * (n as f64).powi(3) / self.seconds(&|| self.device.machine.matmul(&op, &ws))
    }

    /// Seconds of each operation over a document of this many tokens.
    fn measure(&self, tokens: usize) -> [f64; 6] {
        let Layer { heads, width, state, groups, dtype, .. } = *self;
        let (machine, inner) = (&self.device.machine, heads * width);
        let cols = inner + 2 * groups * state;
        let run = DocumentRun { rows: 0..tokens, document: 0, offset: 0 };
        let documents = &DocumentRuns::new(&self.device, vec![run], 1);
        let [u, du] = [1, 2].map(|seed| self.tensor(tokens, cols, seed, dtype));
        let [y, z, dy, dz] = [3, 4, 5, 6].map(|seed| self.tensor(tokens, inner, seed, dtype));
        let [dt, ddt] = [7, 8].map(|seed| self.tensor(tokens, heads, seed, dtype));
        let small = |rows, cols, seed| self.tensor(rows, cols, seed, DType::F32);
        let (weight, bias, scale) = (small(cols, 4, 9), small(1, cols, 10), small(1, inner, 11));
        let [a_log, dt_bias, d] = [12, 13, 14].map(|seed| small(1, heads, seed));
        let (dweight, dbias, dscale) = (small(cols, 4, 15), small(1, cols, 16), small(1, inner, 17));
        let kept = self.device.empty(tokens, state_cols(inner * state), DType::F32, Category::Activations);
        let conv = ConvOperands { u: &u, weight: &weight, bias: Some(&bias), silu: true, documents };
        let norm = GatedNormOperands {
            y: &y,
            z: &z,
            weight: Some(&scale),
            width: inner / groups,
            gate_first: true,
            eps: 1e-5,
        };
        let (a_log, dt_bias, d) = (&a_log, &dt_bias, &d);
        let limit = [0.0, f32::INFINITY];
        let ssd = SsdOperands { u: &u, dt: &dt, a_log, dt_bias, d, groups, state, limit, documents };
        let (dweight, dbias) = (Some(&dweight), Some(&dbias));
        let scratch = |desc| self.scratch(desc);
        [
            self.seconds(&|| machine.conv(&Conv { of: conv, states: &[], out: &du })),
            self.seconds(&|| {
                let ws = scratch(ssd.desc(false));
                machine.ssd(&Ssd { of: ssd, before: None, states: &[], y: &y, kept: &kept }, &ws);
            }),
            self.seconds(&|| machine.gated_norm(&GatedNorm { of: norm, out: &dy })),
            self.seconds(&|| {
                let (dy, dz, dweight) = (Some(&dy), Some(&dz), Some(&dscale));
                let ws = scratch(norm.desc());
                machine.gated_norm_backward(&GatedNormBackward { of: norm, dout: &y, dy, dz, dweight }, &ws);
            }),
            self.seconds(&|| {
                let ws = scratch(ssd.desc(true));
                let (du, ddt) = (Some(&du), Some(&ddt));
                machine.ssd_backward(
                    &SsdBackward {
                        of: ssd,
                        before: None,
                        after: None,
                        kept: &kept,
                        dy: &dy,
                        du,
                        ddt,
                        dweights: [None; 3],
                    },
                    &ws,
                );
            }),
            self.seconds(&|| {
                machine.conv_backward(&ConvBackward { of: conv, dy: &u, du: Some(&du), dweight, dbias });
            }),
        ]
    }
}

fn main() {
    let arg = |i: usize| std::env::args().nth(i);
    let number = |i: usize, or: usize| arg(i).and_then(|x| x.parse().ok()).unwrap_or(or);
    let threads = number(1, 1);
    let tokens: Vec<usize> =
        arg(2).map_or(vec![2048, 16384], |list| list.split(',').flat_map(str::parse).collect());
    let dtype = if arg(3).is_some_and(|dtype| dtype == "f32") { DType::F32 } else { DType::Bf16 };
    let isa = std::env::var("FATHOM_ISA").ok().and_then(|name| Isa::from_name(&name));
    let cpu = Cpu::new(threads, isa);
    let name = cpu.isa().name();
    let device = Device::new(Arc::new(cpu), 16 << 30);
    let (heads, width, state, groups) = (number(4, 16), number(5, 64), number(6, 128), number(7, 1));
    let layer = Layer { device, dtype, threads, heads, width, state, groups };
    let peak = layer.products();
    println!("{name}, {threads} threads, {dtype:?}, H{heads} P{width} N{state} G{groups}");
    println!("f32 products {:.1} GFLOP/s", peak * 1e-9);
    for tokens in tokens {
        let times = layer.measure(tokens);
        let flops = [false, true].map(|backward| ssd_flops(tokens, [heads, width, groups, state], backward));
        let total: f64 = times.iter().sum();
        let rate = tokens as f64 / total / threads as f64;
        let share = flops.iter().sum::<u64>() as f64 / total / peak;
        println!("{tokens:8} tokens: {rate:8.0} token-layers/s a core, {:.0} % of products", 100.0 * share);
        let names = ["conv", "ssd", "norm", "norm'", "ssd'", "conv'"];
        let part = |(name, time): (&str, &f64)| format!("{name} {:.2} us", 1e6 * time / tokens as f64);
        let parts: Vec<String> = names.into_iter().zip(&times).map(part).collect();
        let of_peak = |flops: u64, time: f64| 100.0 * flops as f64 / time / peak;
        let [forward, backward] = [of_peak(flops[0], times[1]), of_peak(flops[1], times[4])];
        println!("         {}; scans at {forward:.0} and {backward:.0} %", parts.join(", "));
    }
}
