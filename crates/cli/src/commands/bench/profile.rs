//! This machine's rates, for the roofline of plans. The best repeat counts: other processes can only slow down a
//! short measurement, and a whole step averages over them.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use fathom_app::output;
use fathom_base::memory::Memory;
use fathom_tensor::spill::{Codec, Options, Spill, Tag};
use fathom_tensor::{Activate, Activation, Category, DType, Fabric, Profile, Rates, Tensor};
use fathom_train::recipe::Precision;

use super::attention::{Case, attend};
use super::bed::Bed;
use super::row::Row;
use super::watch::{RunTimes, Watch, measure};
use super::{gemm, link};
use crate::args::bench::Profile as Args;

/// Extents of the products: large enough that edges do not matter.
const SIZE: usize = 2048;
/// Tokens of the attention.
const TOKENS: usize = 4096;
/// Bytes copied: far more than any cache.
const COPY_BYTES: usize = 256 << 20;
/// Rows and columns of the gated activation function: far more than any cache.
const ACTIVATE: [usize; 2] = [16_384, 2816];
/// Size of a value moved to disk and back, and number of values.
const SPILL: (usize, usize) = (64 << 20, 12);

/// Runs the benchmark.
pub fn run(args: &Args) -> Result<()> {
    args.out.as_deref().map_or(Ok(()), output::regular)?;
    let bed = Bed::new(args.timing.threads, Precision::Bf16)?;
    let watch = Watch::begin();
    let rates = rates(&bed, args)?;
    let fabric = Some(Fabric::threads(link::measure(&bed, args.timing.repeat)?));
    let profile = Profile {
        memory_bytes: Memory::read().map(|memory| memory.total_bytes),
        rates: Some(rates),
        fabric,
        ..bed.device.machine.profile().clone()
    };
    let sheet = serde_json::to_value(profile.sheet())?;
    if let Some(path) = &args.out {
        std::fs::write(path, format!("{sheet:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let row = ["name", "isa", "threads", "granule", "memory_bytes", "rates", "fabric"]
        .into_iter()
        .fold(Row::new("profile"), |row, key| row.with(key, sheet[key].clone()));
    row.print(watch.loaded());
    Ok(())
}

fn rates(bed: &Bed, args: &Args) -> Result<Rates> {
    let shape = [SIZE; 3];
    let of = |dtype| Bed { dtype, cpu: bed.cpu.clone(), device: bed.device.clone() };
    let (narrow, wide) = (of(DType::Bf16), of(DType::F32));
    let rate = |work: f64, seconds: f64| (work / seconds).round();
    let product =
        |bed| rate(gemm::flops(shape), gemm::product(bed, shape, false, 1, args.timing.repeat).best_s);
    let attention = attention(&narrow, args.timing.repeat);
    let memory = copy(&wide, args.timing.repeat, COPY_BYTES);
    let elementwise = activate(&narrow, args.timing.repeat, ACTIVATE);
    let [rows, cols] = ACTIVATE;
    let disk = args.spill.as_deref().map(|folder| disk(bed, folder)).transpose()?.unwrap_or_default();
    Ok(Rates {
        matmul_bf16_flops_per_s: product(&narrow),
        matmul_f32_flops_per_s: product(&wide),
        memory_bytes_per_s: rate(2.0 * COPY_BYTES as f64, memory.best_s),
        elementwise_bytes_per_s: rate((rows * cols * 3) as f64, elementwise.best_s),
        call_s: call_s(&wide, args.timing.repeat),
        disk_write_bytes_per_s: disk[0].round(),
        disk_read_bytes_per_s: disk[1].round(),
        ..attention
    })
}

/// Attention's three rates: forward and backward at head sizes 64 and 128 give the cost of a column and of a pair.
fn attention(bed: &Bed, repeat: usize) -> Rates {
    let timed = |head_dim: usize| {
        let case = Case::plain(TOKENS, 8, head_dim);
        let both = Case { backward: true, ..case };
        let [forward_s, both_s] = [case, both].map(|case| attend(bed, &case, repeat).best_s);
        (case.flops(), both.flops() - case.flops(), forward_s, both_s - forward_s)
    };
    let (narrow, wide) = (timed(64), timed(128));
    let pairs = wide.0 / (4.0 * 128.0);
    // t(64) = p + c and t(128) = p + 2c for each direction; p is their mean. As a small difference of two times it is
    // noisy, so it is clamped between zero and half of the shorter time.
    let pair_s = |t64: f64, t128: f64| ((2.0 * t64 - t128) / pairs).clamp(0.0, 0.5 * t64.min(t128) / pairs);
    let pair_s =
        0.5 * (pair_s(narrow.2, wide.2) + pair_s(narrow.3, wide.3)).min(narrow.2.min(wide.2) / pairs);
    let rate = |flops: f64, seconds: f64| (flops / (seconds - pair_s * pairs)).round();
    Rates {
        attention_forward_flops_per_s: rate(wide.0, wide.2),
        attention_backward_flops_per_s: rate(wide.1, wide.3),
        attention_pair_s: pair_s,
        ..Rates::default()
    }
}

/// Times a copy, every byte read and written once.
pub(super) fn copy(bed: &Bed, repeat: usize, bytes: usize) -> RunTimes {
    let cols = 4096;
    let rows = bytes / bed.dtype.bytes() / cols;
    let from = bed.random(rows, cols, 1);
    let to = bed.device.empty(rows, cols, bed.dtype, Category::Data);
    measure(repeat, || bed.device.machine.copy(&from, &to))
}

/// Times a gated activation function.
pub(super) fn activate(bed: &Bed, repeat: usize, [rows, cols]: [usize; 2]) -> RunTimes {
    let x = bed.random(rows, cols, 1);
    let out = bed.device.empty(rows, cols / 2, bed.dtype, Category::Data);
    let op = Activate { kind: Activation::Silu, gated: true, x: &x, out: &out };
    measure(repeat, || bed.device.machine.activate(&op))
}

/// Overhead of a call with almost no work.
fn call_s(bed: &Bed, repeat: usize) -> f64 {
    const CALLS: usize = 1000;
    let x = bed.random(128, 64, 1);
    let timed = measure(repeat, || (0..CALLS).for_each(|_| bed.device.machine.scale(&x, 1.0, &x)));
    timed.best_s / CALLS as f64
}

/// Bytes per second to disk and back, through the engine that steps use.
fn disk(bed: &Bed, folder: &Path) -> Result<[f64; 2]> {
    let (bytes, count) = SPILL;
    let options = Options::new(folder, (bytes * count) as u64);
    let spill = Spill::open(&bed.device, &options)?;
    let values: Vec<Tensor> = (0..count).map(|seed| bed.random(bytes / 8192, 4096, seed as u64)).collect();
    let moved = (values.len() as u64 * values[0].bytes()) as f64;
    let started = Instant::now();
    let tag = Tag { name: "profile", layer: -1 };
    let writing: Vec<_> =
        values.into_iter().map(|value| spill.write(value, Codec::AsIs, tag)).collect::<Result<_, _>>()?;
    let stored = writing.into_iter().map(|writing| writing.retire_with()).collect::<Result<Vec<_>, _>>()?;
    let written_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let reading: Vec<_> =
        stored.into_iter().map(|(stored, into)| spill.read(&stored, into)).collect::<Result<_, _>>()?;
    reading.into_iter().try_for_each(|reading| reading.retire().map(drop))?;
    Ok([moved / written_s, moved / started.elapsed().as_secs_f64()])
}
