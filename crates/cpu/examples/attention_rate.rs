//! Rates of the attention kernels: `attention_rate [threads [isa [tokens,tokens.. [head_dim,..]]]]`.
//!
//! GFLOP/s count the attended pairs of the mask: 4 x head_dim a pair and head forward, 3.5 times that with backward.
//! `kind` is causal, grouped (8 heads on 2), packed (documents of 1/8 of the tokens), window (1024) or decode.
#![allow(unsafe_code)]

use fathom_cpu::attention::*;
use fathom_cpu::isa::Isa;
use fathom_cpu::threads::Threads;
use std::time::Instant;

struct Case {
    kind: &'static str,
    elem: Elem,
    shape: Shape,
    slices: Vec<Slice>,
    pairs: f64,
}

fn slices(kind: &str, shape: &Shape) -> (Vec<Slice>, f64) {
    let (q, k) = (shape.q_tokens, shape.k_tokens);
    let half = |n: usize| n as f64 * (n as f64 + 1.0) / 2.0;
    match kind {
        "packed" => {
            let n = q / 8 - 5;
            let ends: Vec<usize> = (1..=8).map(|d| if d == 8 { q } else { d * n }).collect();
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let spans: Vec<_> = starts.zip(&ends).map(|(a, &b)| a..b).collect();
            let pairs = spans.iter().map(|s| half(s.len())).sum();
            (spans.into_iter().map(|s| Slice::causal(s.clone(), s, None)).collect(), pairs)
        }
        "window" => {
            let w = 1024.min(q);
            (vec![Slice::causal(0..q, 0..k, Some(w))], half(w) + (q - w) as f64 * w as f64)
        }
        _ => (vec![Slice::causal(0..q, 0..k, None)], half(q) + (k - q) as f64 * q as f64),
    }
}

fn case(kind: &'static str, elem: Elem, q: usize, k: usize, heads: (usize, usize), head_dim: usize) -> Case {
    let shape = Shape { q_tokens: q, k_tokens: k, heads: heads.0, kv_heads: heads.1, head_dim };
    let (slices, pairs) = slices(kind, &shape);
    Case { kind, elem, shape, slices, pairs }
}

/// Bytes at an address that is a multiple of 64.
struct Aligned {
    bytes: Vec<u8>,
    first: usize,
}

impl Aligned {
    fn new(from: &[u8]) -> Aligned {
        let mut bytes = vec![0u8; from.len() + 64];
        let first = bytes.as_ptr().align_offset(64);
        bytes[first..first + from.len()].copy_from_slice(from);
        Aligned { bytes, first }
    }

    fn rows(&self, stride: usize) -> Rows {
        Rows { data: self.bytes[self.first..].as_ptr(), stride }
    }

    fn rows_mut(&mut self, stride: usize) -> RowsMut {
        RowsMut { data: self.bytes[self.first..].as_mut_ptr(), stride }
    }
}

/// Random bytes of a tensor of roughly normal numbers.
fn noise(count: usize, elem: Elem, seed: u64) -> Aligned {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let mut bytes = Vec::with_capacity(count * elem.bytes());
    for _ in 0..count {
        let x = ((next() + next() + next() + next()) * 1.7).to_le_bytes();
        bytes.extend_from_slice(&x[4 - elem.bytes()..]);
    }
    Aligned::new(&bytes)
}

/// Seconds that this thread has computed: steadier than the clock on a shared machine.
fn thread_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Best and median seconds of `repeats` calls; of one thread, its computing time.
fn time(threads: &Threads, repeats: usize, mut f: impl FnMut()) -> (f64, f64) {
    let mut seconds: Vec<f64> = (0..repeats)
        .map(|_| {
            let (start, computed) = (Instant::now(), thread_seconds());
            f();
            if threads.count() == 1 { thread_seconds() - computed } else { start.elapsed().as_secs_f64() }
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[repeats / 2])
}

fn measure(threads: &Threads, isa: Isa, case: &Case, with_backward: bool) {
    let (s, elem) = (case.shape, case.elem);
    let (qw, kw) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let pos_k: Vec<i32> = (0..s.k_tokens as i32).collect();
    let pos_q = pos_k[s.k_tokens - s.q_tokens..].to_vec();
    let mask = Masking { slices: &case.slices, pos_q: &pos_q, pos_k: &pos_k };
    let options = Options { scale: (s.head_dim as f32).powf(-0.5), softcap: 0.0 };
    let [q, dout] = [1, 2].map(|seed| noise(s.q_tokens * qw, elem, seed));
    let [k, v] = [3, 4].map(|seed| noise(s.k_tokens * kw, elem, seed));
    let zeros = |width: usize, tokens: usize| Aligned::new(&vec![0u8; width * tokens * elem.bytes()]);
    let mut out = zeros(qw, s.q_tokens);
    let mut lse = vec![0f32; s.q_tokens * s.heads];
    let count = case.slices.len();
    let bytes_forward = workspace_bytes_forward(isa, threads.count(), &s, elem, count);
    let bytes_backward = workspace_bytes_backward(isa, threads.count(), &s, elem, count);
    let mut work = vec![0u8; bytes_forward.max(if with_backward { bytes_backward } else { 0 })];
    let f = Forward {
        shape: s,
        elem,
        options,
        mask,
        q: q.rows(qw),
        k: k.rows(kw),
        v: v.rows(kw),
        sinks: None,
        out: out.rows_mut(qw),
        lse: lse.as_mut_ptr(),
    };
    let flops = 4.0 * case.pairs * (s.heads * s.head_dim) as f64;
    let repeats = ((2e11 / flops) as usize).clamp(1, 25);
    // SAFETY: all buffers have the extents of the shape.
    let (best, median) = time(threads, repeats, || unsafe { forward(threads, isa, &f, work.as_mut_ptr()) });
    let mut line = format!(
        "{:8} {:?} q {:6} k {:6} heads {}/{} D {:3} fwd {:9.3} / {:9.3} ms {:6.0} / {:6.0} GF",
        case.kind,
        elem,
        s.q_tokens,
        s.k_tokens,
        s.heads,
        s.kv_heads,
        s.head_dim,
        best * 1e3,
        median * 1e3,
        flops / best / 1e9,
        flops / median / 1e9,
    );
    if case.kind == "decode" {
        let bytes = (2 * s.k_tokens * kw * elem.bytes()) as f64;
        line += &format!(" {:5.1} GB/s of keys and values", bytes / median / 1e9);
    }
    if with_backward {
        let (mut dq, mut dk, mut dv) = (zeros(qw, s.q_tokens), zeros(kw, s.k_tokens), zeros(kw, s.k_tokens));
        let b = Backward {
            shape: s,
            elem,
            options,
            mask,
            q: f.q,
            k: f.k,
            v: f.v,
            sinks: None,
            out: out.rows(qw),
            lse: lse.as_ptr(),
            dout: dout.rows(qw),
            dq: dq.rows_mut(qw),
            dk: dk.rows_mut(kw),
            dv: dv.rows_mut(kw),
            d_sinks: std::ptr::null_mut(),
        };
        // SAFETY: all buffers have the extents of the shape.
        let (best_b, median_b) =
            time(threads, repeats, || unsafe { backward(threads, isa, &b, work.as_mut_ptr()) });
        line += &format!(
            " | bwd {:9.3} ms {:6.0} GF | both {:9.3} ms {:6.0} / {:6.0} GF | workspace {:.1} MiB",
            median_b * 1e3,
            2.5 * flops / median_b / 1e9,
            (median + median_b) * 1e3,
            3.5 * flops / (best + best_b) / 1e9,
            3.5 * flops / (median + median_b) / 1e9,
            bytes_backward as f64 / 1_048_576.0,
        );
    }
    println!("{line}");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |s: &str| s.parse::<usize>().unwrap_or_else(|_| panic!("not a number: {s}"));
    let list = |at: usize, default: &str| -> Vec<usize> {
        args.get(at).map_or(default, |s| s).split(',').map(number).collect()
    };
    let threads = Threads::new(args.first().map_or(2, |s| number(s)));
    let isa = Isa::select(args.get(1).and_then(|name| Isa::from_name(name)));
    let kind = args.get(4).map_or("causal", |s| s);
    let elem = if args.get(5).is_some_and(|s| s == "f32") { Elem::F32 } else { Elem::Bf16 };
    println!("{} threads, {}", threads.count(), isa.name());
    for tokens in list(2, "2048,8192,16384") {
        for head_dim in list(3, "64,128") {
            match kind {
                "decode" => {
                    for heads in [(8, 8), (8, 2)] {
                        measure(&threads, isa, &case("decode", elem, 1, tokens, heads, head_dim), false);
                    }
                }
                "forward" => {
                    measure(&threads, isa, &case("causal", elem, tokens, tokens, (8, 8), head_dim), false)
                }
                "long" => {
                    measure(&threads, isa, &case("causal", elem, tokens, tokens, (2, 2), head_dim), true)
                }
                "grouped" => {
                    measure(&threads, isa, &case("grouped", elem, tokens, tokens, (8, 2), head_dim), true)
                }
                "packed" => {
                    measure(&threads, isa, &case("packed", elem, tokens, tokens, (8, 8), head_dim), true)
                }
                "window" => {
                    measure(&threads, isa, &case("window", elem, tokens, tokens, (8, 8), head_dim), true)
                }
                _ => measure(&threads, isa, &case("causal", elem, tokens, tokens, (8, 8), head_dim), true),
            }
        }
    }
}
