//! A device's own figures: what it is, copies between it and the host, products, attention. Medians of repeats by the
//! device's clock.
#![allow(unsafe_code)]

use std::sync::Arc;

use fathom_cuda::Cuda;
use fathom_cuda::driver::{Driver, Event, Stream};
use fathom_cuda::libs::{Search, probe};
use fathom_cuda::sdpa::Cudnn;
use fathom_tensor::{
    Attention, AttentionBackward, Category, DType, Device, Extent, Machine, Mask, MatMul, Packed, Slice,
    Tensor,
};

use super::{Lines, memory};

const REPEATS: usize = 5;

/// A device to measure.
pub struct Bench {
    /// With memory.
    pub device: Device,
    /// Its own calls.
    pub cuda: Arc<Cuda>,
}

impl Bench {
    /// Not initialised.
    pub fn empty(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        self.device.empty(rows, cols, dtype, Category::Data)
    }

    /// Zeros would be multiplied at less power than numbers.
    pub fn numbers(&self, rows: usize, cols: usize) -> Tensor {
        let (wide, narrow) = (self.empty(1, 4096, DType::F32), self.empty(rows, cols, DType::Bf16));
        let values: Vec<u8> = (0..4096u32)
            .flat_map(|at| ((at.wrapping_mul(2_654_435_761) >> 9) as f32 / 4e6 - 1.0).to_le_bytes())
            .collect();
        self.cuda.write(&wide, &values);
        let flat = narrow.reshape(rows * cols / 4096, 4096);
        for row in 0..flat.rows().min(64) {
            self.cuda.copy(&wide, &flat.view_rows(row..row + 1));
        }
        for start in (64..flat.rows()).step_by(64) {
            let end = flat.rows().min(start + 64);
            self.cuda.copy(&flat.view_rows(0..end - start), &flat.view_rows(start..end));
        }
        narrow
    }

    /// For an operation.
    pub fn scratch(&self, op: &fathom_tensor::OpDesc) -> Tensor {
        self.empty(1, self.cuda.profile().workspace(op).max(1) as usize, DType::U8)
    }

    /// Median seconds of a call on the compute stream.
    fn seconds(&self, mut call: impl FnMut()) -> fathom_cuda::Result<f64> {
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

/// Runs everything.
pub fn run(lines: &mut Lines) {
    if let Err(error) = figures(lines) {
        lines.say("device", false, error.to_string());
    }
}

/// Says what was found and whether it computes.
pub fn device(lines: &mut Lines) {
    let found = probe(&Search::from_environment(), true);
    for library in &found.libraries {
        let version = library.version.clone().or_else(|| library.problem.clone()).unwrap_or_default();
        // Attention and several devices can do without theirs.
        lines.say(library.library.name(), library.problem.is_none() || !library.library.is_needed(), version);
    }
    match &found.why_not {
        Some(why) => lines.say("device", false, why),
        None => lines.say("device", true, found.devices.join(", ")),
    }
}

fn figures(lines: &mut Lines) -> fathom_cuda::Result<()> {
    let found = probe(&Search::from_environment(), true);
    let cuda = Arc::new(Cuda::open(&found, 0)?);
    lines.say("facts", true, format!("{:?}", cuda.driver().facts()));
    let (before, total) = cuda.driver().memory()?;
    lines.say("taken without a tensor", true, format!("{} of {total} bytes", total - before));
    describe(lines);
    memory::copies(lines, &cuda)?;
    memory::pinned(lines, &cuda)?;
    let device = Device::new(cuda.clone(), before / 10 * 9);
    let bench = Bench { device, cuda };
    products(lines, &bench)?;
    memory::beside(lines, &bench)?;
    for (tokens, docs) in [(8192, 1), (32_768, 1), (131_072, 1), (131_072, 8)] {
        attention(lines, &bench, tokens, docs)?;
    }
    let (after, _) = bench.cuda.driver().memory()?;
    let (reserved, taken) = (bench.device.pool.usage().peak_reserved, before - after);
    let beside = taken as i64 - reserved as i64;
    lines.say("taken beside the pool", true, format!("{beside} bytes beside {reserved}"));
    Ok(())
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
        let seconds = bench.seconds(|| bench.cuda.matmul(&op, &ws))?;
        let rate = 2.0 * m as f64 * n as f64 * k as f64 / seconds / 1e12;
        lines.say(format!("product, {name}"), true, format!("{rate:.0} TFLOP/s"));
    }
    Ok(())
}

/// cuDNN's own description of the device, to be compared with the one that `plans` uses.
fn describe(lines: &mut Lines) {
    match Cudnn::new().and_then(|cudnn| cudnn.description()) {
        Ok(text) => lines.say("the device in cuDNN's words", true, text),
        Err(error) => lines.say("the device in cuDNN's words", false, error.to_string()),
    }
}

/// Causal attention of 32 heads that share 8 of keys, 128 columns each, over documents of equal length.
fn attention(lines: &mut Lines, bench: &Bench, tokens: usize, docs: usize) -> fathom_cuda::Result<()> {
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
    let packed = Packed::of(&slices, &numbers);
    let (pos_q, pos_k) = (positions.clone(), positions);
    let mask = Mask { table, slices: Extent::Fixed(docs), pos_q, pos_k, pairs: 0, packed };
    let op = Attention {
        q: &q,
        k: &k,
        v: &v,
        out: &out,
        lse: &lse,
        mask: &mask,
        head_dim: dim,
        scale: 0.088,
        softcap: 0.0,
        sinks: None,
        resume: false,
    };
    let ws = bench.scratch(&op.desc(false));
    let forward = bench.seconds(|| bench.cuda.attention(&op, &ws))?;
    let dout = bench.numbers(tokens, heads * dim);
    let [dq, dk, dv] = [&q, &k, &v].map(|x| bench.empty(x.rows(), x.cols(), DType::Bf16));
    let call = AttentionBackward {
        forward: op,
        dout: &dout,
        dq: &dq,
        dk: &dk,
        dv: &dv,
        dsinks: None,
        accumulate: false,
    };
    let ws = bench.scratch(&op.desc(true));
    let backward = bench.seconds(|| bench.cuda.attention_backward(&call, &ws))?;
    let pairs = docs as f64 * each as f64 * (each as f64 + 1.0) / 2.0;
    let rate = |per_pair: f64, seconds: f64| per_pair * pairs * (heads * dim) as f64 / seconds / 1e12;
    let (forward, backward) = (rate(4.0, forward), rate(10.0, backward));
    let text = format!("{forward:.0} TFLOP/s forward, {backward:.0} backward");
    let packed = if docs > 1 { format!(" in {docs} documents") } else { String::new() };
    lines.say(format!("causal attention, {tokens} tokens{packed}"), true, text);
    Ok(())
}
