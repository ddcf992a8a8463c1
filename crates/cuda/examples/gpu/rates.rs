//! A device's own figures: its description, copies to and from the host, products, attention. Medians of repeats by the
//! device's clock.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use fathom_cuda::Cuda;
use fathom_cuda::driver::{Driver, Event, Real, Stream};
use fathom_cuda::libs::{Library, Search, mapped, probe};
use fathom_cuda::sdpa::Cudnn;
use fathom_tensor::{
    Attention, AttentionBackward, Blocks, Category, DType, Device, Element, Extent, Machine, Mask, MatMul,
    Narrow, NarrowMatMul, NarrowOperand, PackedMask, ScaleRule, Slice, Tensor,
};

use super::{Lines, experts, memory};

const REPEATS: usize = 5;
/// A driver takes some seconds to clear the memory of an ended process.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// A device to measure.
pub struct Bench {
    /// Device with a pool.
    pub device: Device,
    /// Its CUDA machine.
    pub cuda: Arc<Cuda>,
}

impl Bench {
    /// An uninitialised tensor.
    pub fn empty(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        self.device.empty(rows, cols, dtype, Category::Data)
    }

    /// Independent numbers between -1 and 1: zeros or repeating rows would be multiplied at lower power.
    pub fn numbers(&self, rows: usize, cols: usize) -> Tensor {
        let out = self.empty(rows, cols, DType::Bf16);
        let below = self.device.from_f32(1, cols, &vec![-1.0; cols], Category::Data);
        // Live tensors never share an address, so the address serves as a seed.
        self.cuda.random(&out, out.address());
        self.cuda.scale(&out, 2.0, &out);
        self.cuda.add_bias(&out, &below);
        out
    }

    /// True if the expected library computes: on Hopper the given one, elsewhere any.
    fn is_by(&self, by: &str, library: &str) -> bool {
        by == library || self.cuda.driver().facts().capability != (9, 0)
    }

    /// Scratch for an operation.
    pub fn scratch(&self, op: &fathom_tensor::OpDesc) -> Tensor {
        self.empty(1, self.cuda.profile().workspace(op).max(1) as usize, DType::U8)
    }

    /// Median seconds of a call on the compute stream.
    pub fn seconds(&self, mut call: impl FnMut()) -> fathom_cuda::Result<f64> {
        call();
        let driver = self.cuda.driver().clone();
        median(driver.as_ref(), self.cuda.compute()?, || {
            call();
            Ok(())
        })
    }
}

/// Median seconds between two points of a stream.
pub fn median(
    driver: &dyn Driver,
    stream: Stream,
    mut call: impl FnMut() -> fathom_cuda::Result<()>,
) -> fathom_cuda::Result<f64> {
    let [from, to]: [Event; 2] = [driver.event(true)?, driver.event(true)?];
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        driver.record(from, stream)?;
        call()?;
        driver.record(to, stream)?;
        driver.join(to)?;
        seconds.push(driver.seconds(from, to)?);
    }
    driver.end_event(from)?;
    driver.end_event(to)?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[REPEATS / 2])
}

/// Runs all measurements.
pub fn run(lines: &mut Lines) {
    if let Err(error) = figures(lines) {
        lines.say("device", false, error.to_string());
    }
}

/// Reports what was found and whether it computes.
pub fn device(lines: &mut Lines) {
    let found = probe(&Search::from_environment(), true);
    for library in &found.libraries {
        let version = library.version.clone().or_else(|| library.problem.clone()).unwrap_or_default();
        // Libraries for attention and for several devices are optional.
        lines.say(library.library.name(), library.problem.is_none() || !library.library.is_needed(), version);
    }
    files(lines);
    match &found.why_not {
        Some(why) => lines.say("device", false, why),
        None => lines.say("device", true, found.devices.join(", ")),
    }
}

/// The files of each library that are mapped by now: a second copy was opened by another library.
fn files(lines: &mut Lines) {
    for library in Library::ALL {
        let files = mapped(library.file());
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        lines.say(format!("{}, the file in use", library.name()), files.len() < 2, names.join(", "));
    }
}

/// Waits until nearly all of the device's memory is free, as after a process has ended.
pub fn free(lines: &mut Lines) {
    let started = Instant::now();
    let wait = || -> fathom_cuda::Result<(u64, u64)> {
        let driver = Real::open(0)?;
        loop {
            let (free, total) = driver.memory()?;
            if free >= total / 20 * 19 || started.elapsed() > LONGEST_WAIT {
                return Ok((free, total));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let found = probe(&Search::from_environment(), false);
    let waited = match found.why_not {
        Some(why) => Err(why),
        None => wait().map_err(|error| error.to_string()),
    };
    match waited {
        Ok((free, total)) => {
            lines.say("free memory", free >= total / 20 * 19, format!("{free} of {total} bytes"));
        }
        Err(why) => lines.say("free memory", false, why),
    }
}

fn figures(lines: &mut Lines) -> fathom_cuda::Result<()> {
    let found = probe(&Search::from_environment(), true);
    let cuda = Arc::new(Cuda::open_alone(&found, 0)?);
    lines.say("facts", true, format!("{:?}", cuda.driver().facts()));
    let (before, total) = cuda.driver().memory()?;
    lines.say("taken without a tensor", true, format!("{} of {total} bytes", total - before));
    describe(lines);
    let device = Device::new(cuda.clone(), before / 10 * 9);
    let bench = Bench { device, cuda };
    // Measurements with bars come first, slow ones last.
    products(lines, &bench)?;
    narrow_products(lines, &bench)?;
    for (length, peaked) in [
        ((8192, 1), false),
        ((32_768, 1), false),
        ((131_072, 1), false),
        ((131_072, 8), false),
        ((32_768, 1), true),
    ] {
        attention(lines, &bench, length, peaked)?;
    }
    experts::run(lines, &bench)?;
    let (after, _) = bench.cuda.driver().memory()?;
    let (reserved, taken) = (bench.device.pool.usage().peak_reserved, before - after);
    let outside = taken as i64 - reserved as i64;
    lines.say("taken outside the pool", true, format!("{outside} bytes outside {reserved}"));
    bench.cuda.refusals().into_iter().for_each(|line| lines.say("refused", true, line));
    files(lines);
    memory::copies(lines, &bench.cuda)?;
    memory::with_copies(lines, &bench)
}

/// Measures how much of the host's memory can be pinned, and how fast.
pub fn pinned(lines: &mut Lines) {
    let cuda = Cuda::open(&probe(&Search::from_environment(), true), 0);
    if let Err(error) = cuda.and_then(|cuda| memory::pinned(lines, &cuda)) {
        lines.say("pinned", false, error.to_string());
    }
}

fn products(lines: &mut Lines, bench: &Bench) -> fathom_cuda::Result<()> {
    for (name, [m, n, k], dtype) in [
        ("8192 cubed, bf16", [8192, 8192, 8192], DType::Bf16),
        ("16384 tokens by 2048 x 8192, bf16", [16_384, 8192, 2048], DType::Bf16),
        ("8192 cubed into f32, added", [8192, 8192, 8192], DType::F32),
    ] {
        let (a, b, c) = (bench.numbers(m, k), bench.numbers(n, k), bench.empty(m, n, dtype));
        bench.cuda.zero(&c);
        let accumulate = dtype == DType::F32;
        let op = MatMul { a: &a, a_trans: false, b: &b, b_trans: true, c: &c, accumulate };
        let ws = bench.scratch(&op.desc());
        let [before, _] = bench.cuda.calls();
        let seconds = bench.seconds(|| bench.cuda.matmul(&op, &ws))?;
        let by = bench.cuda.calls()[0].since(before, "cuBLASLt");
        let rate = 2.0 * m as f64 * n as f64 * k as f64 / seconds / 1e12;
        let ok = bench.is_by(&by, "cuBLASLt");
        lines.say(format!("product, {name}"), ok, format!("{rate:.0} TFLOP/s by {by}"));
    }
    Ok(())
}

/// Products of operands that are quantized each time.
fn narrow_products(lines: &mut Lines, bench: &Bench) -> fathom_cuda::Result<()> {
    let size = 8192;
    let (a, b) = (bench.numbers(size, size), bench.numbers(size, size));
    let c = bench.empty(size, size, DType::Bf16);
    for (name, blocks, of_weight) in [
        ("FP8 by tensor", Blocks::Tensor, Blocks::Tensor),
        ("FP8 by blocks of 128", Blocks::Line(128), Blocks::Tile(128)),
    ] {
        let product = MatMul { a: &a, a_trans: false, b: &b, b_trans: true, c: &c, accumulate: false };
        let [a, b] = [blocks, of_weight].map(|blocks| NarrowOperand {
            how: Narrow { element: Element::E4M3, blocks, rule: ScaleRule::Covers },
            delayed: None,
        });
        let op = NarrowMatMul { product, a, b };
        let ws = bench.scratch(&op.desc());
        let before = bench.cuda.narrow_calls();
        let seconds = bench.seconds(|| bench.cuda.narrow_matmul(&op, &ws))?;
        let by = bench.cuda.narrow_calls().since(before, "FP8 units");
        let rate = 2.0 * (size as f64).powi(3) / seconds / 1e12;
        lines.say(
            format!("product, 8192 cubed, {name}"),
            bench.is_by(&by, "FP8 units"),
            format!("{rate:.0} TFLOP/s by {by}, with conversions"),
        );
    }
    Ok(())
}

/// cuDNN's own description of the device, to be compared with the one that `plans` uses.
fn describe(lines: &mut Lines) {
    let found = Real::describe(0).and_then(|facts| Cudnn::new(facts.capability)?.description());
    match found {
        Ok(text) => lines.say("the device in cuDNN's words", true, text),
        Err(error) => lines.say("the device in cuDNN's words", false, error.to_string()),
    }
}

/// Scales scores so that a row's span 200, like a trained model's: six standard deviations, a third of which is what
/// uniform numbers between -1 and 1 give.
const SPREAD: f32 = 200.0 / 2.0;

/// Causal attention of 32 query heads and 8 key heads, 128 columns each, over documents of equal length.
fn attention(
    lines: &mut Lines,
    bench: &Bench,
    (tokens, docs): (usize, usize),
    peaked: bool,
) -> fathom_cuda::Result<()> {
    let (heads, kv_heads, dim) = (32, 8, 128);
    let (q, k, v) = (
        bench.numbers(tokens, heads * dim),
        bench.numbers(tokens, kv_heads * dim),
        bench.numbers(tokens, kv_heads * dim),
    );
    let (out, lse) = (bench.empty(tokens, heads * dim, DType::Bf16), bench.empty(tokens, heads, DType::F32));
    let each = tokens / docs;
    let document = |doc: usize| doc * each..(doc + 1) * each;
    let slices: Vec<Slice> = (0..docs).map(|doc| Slice::causal(document(doc), document(doc), None)).collect();
    let numbers: Vec<i32> = (0..tokens).map(|at| (at % each) as i32).collect();
    let positions = bench.device.from_i32(&numbers, Category::Data);
    let table = bench.empty(docs, 6, DType::I64);
    let row =
        |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi].map(|x| x.to_le_bytes()).concat();
    bench.cuda.write(&table, &slices.iter().flat_map(row).collect::<Vec<u8>>());
    let packed = PackedMask::of(&slices, &numbers, &numbers);
    let (slices, pos_q, pos_k) = (Extent::Fixed(docs), positions.clone(), positions);
    let mask = Mask { table, slices, pos_q, pos_k, pairs: 0, packed, partial: false, pages: None };
    let scale = if peaked { 0.088 * SPREAD } else { 0.088 };
    let op = Attention { scale, ..Attention::plain([&q, &k, &v], [&out, &lse], &mask, dim) };
    let [_, started] = bench.cuda.calls();
    let ws = bench.scratch(&op.desc(false));
    let forward = bench.seconds(|| bench.cuda.attention(&op, &ws))?;
    let [_, between] = bench.cuda.calls();
    let dout = bench.numbers(tokens, heads * dim);
    let [dq, dk, dv] = [&q, &k, &v].map(|x| bench.empty(x.rows(), x.cols(), DType::Bf16));
    let call = AttentionBackward { forward: op, dout: &dout, dq: &dq, dk: &dk, dv: &dv, accumulate: false };
    let ws = bench.scratch(&op.desc(true));
    let backward = bench.seconds(|| bench.cuda.attention_backward(&call, &ws))?;
    let pairs = docs as f64 * each as f64 * (each as f64 + 1.0) / 2.0;
    let rate = |per_pair: f64, seconds: f64| per_pair * pairs * (heads * dim) as f64 / seconds / 1e12;
    let (forward, backward) = (rate(4.0, forward), rate(10.0, backward));
    let [_, ended] = bench.cuda.calls();
    let by = [between.since(started, "cuDNN"), ended.since(between, "cuDNN")];
    let text = format!("{forward:.0} TFLOP/s forward by {}, {backward:.0} backward by {}", by[0], by[1]);
    let packed = if docs > 1 { format!(" in {docs} documents") } else { String::new() };
    let ok = by.iter().all(|by| bench.is_by(by, "cuDNN"));
    let peaked = if peaked { ", peaked" } else { "" };
    lines.say(format!("causal attention, {tokens} tokens{packed}{peaked}"), ok, text);
    Ok(())
}
