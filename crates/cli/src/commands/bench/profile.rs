//! This machine's rates: what the roofline of a plan is drawn with.

use anyhow::{Context, Result};
use fathom_tensor::{Category, DType, Rates};
use serde_json::json;

use super::attention::{Case, attend};
use super::row::Row;
use super::watch::{Timed, measure};
use super::{Bed, gemm};
use crate::args::Bench;

/// Extents of the products: large enough that edges do not count.
const SIZE: usize = 2048;
/// Tokens of the attention.
const TOKENS: usize = 4096;
/// Bytes that are copied: far more than any cache.
const COPY_BYTES: usize = 256 << 20;

/// Runs the benchmark.
pub fn run(args: &Bench) -> Result<()> {
    let bed = Bed::new(args)?;
    let shape = [SIZE; 3];
    let of = |dtype| Bed { dtype, cpu: bed.cpu.clone(), device: bed.device.clone() };
    let (narrow, wide) = (of(DType::Bf16), of(DType::F32));
    let bf16 = gemm::product(&narrow, shape, false, 1, args.repeat);
    let f32 = gemm::product(&wide, shape, false, 1, args.repeat);
    let case = Case { tokens: TOKENS, docs: 1, heads: 8, kv_heads: 8, head_dim: 128, backward: false };
    let both = Case { backward: true, ..case };
    let [forward, forward_backward] = [case, both].map(|case| attend(&narrow, &case, args.repeat));
    let memory = copy(&wide, args.repeat);
    let rate = |work: f64, seconds: f64| (work / seconds).round();
    let backward_s = forward_backward.median_s - forward.median_s;
    let rates = Rates {
        matmul_bf16_flops_per_s: rate(gemm::flops(shape), bf16.median_s),
        matmul_f32_flops_per_s: rate(gemm::flops(shape), f32.median_s),
        attention_forward_flops_per_s: rate(case.flops(), forward.median_s),
        attention_backward_flops_per_s: rate(both.flops() - case.flops(), backward_s),
        memory_bytes_per_s: rate(2.0 * COPY_BYTES as f64, memory.median_s),
        ..Rates::default()
    };
    let profile = bed.device.machine.profile();
    let loaded = [&bf16, &f32, &forward, &forward_backward, &memory].into_iter().any(|timed| timed.loaded);
    let rates = serde_json::to_value(rates)?;
    if let Some(path) = &args.out {
        let text =
            json!({ "name": profile.name, "isa": profile.isa, "threads": profile.threads, "rates": rates });
        std::fs::write(path, format!("{text:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Row::new("profile")
        .with("name", profile.name.as_str())
        .with("isa", profile.isa.as_str())
        .with("threads", profile.threads)
        .with("rates", rates)
        .print(loaded);
    Ok(())
}

/// Times of a copy, every byte read and written once.
fn copy(bed: &Bed, repeat: usize) -> Timed {
    let cols = 4096;
    let rows = COPY_BYTES / 4 / cols;
    let from = bed.random(rows, cols, 1);
    let to = bed.device.empty(rows, cols, bed.dtype, Category::Data);
    measure(repeat, || bed.device.machine.copy(&from, &to))
}
