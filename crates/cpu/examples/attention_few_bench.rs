//! Times attention of a decode step: one new token in each of several sequences over keys in pages. Prints microseconds
//! per call and gigabytes of keys and values per second, the median of several runs; on one thread CPU time is
//! measured, so other load on the machine does not matter.
//!
//!     cargo run --release -p fathom-cpu --example attention_few_bench -- [threads] [sequences] [tokens] [heads] [key heads] [head size] [runs]
#![allow(unsafe_code)]

use fathom_cpu::attention::pages::{PackRows, pack};
use fathom_cpu::attention::{
    Elem, Forward, MaskOperands, Options, PageFormat, PageTable, Rows, RowsMut, Shape, Slice, forward,
    workspace_bytes_forward,
};
use fathom_cpu::isa::Isa;
use fathom_cpu::mat::Mat;
use fathom_cpu::threads::Threads;
use fathom_tensor::{DType, PAGE_ROWS};
use std::time::Instant;

/// CPU time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Elements between minus one and one.
fn noise(count: usize, elem: Elem, seed: u64) -> Vec<u8> {
    let mut state = 88172645463325252u64 ^ seed;
    let mut bytes = Vec::with_capacity(count * elem.bytes());
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let x = ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0).to_le_bytes();
        bytes.extend(&x[4 - elem.bytes()..]);
    }
    bytes
}

/// Keys or values of all pages in a format, and bytes per row.
fn held(
    threads: &Threads,
    x: &[u8],
    elem: Elem,
    format: PageFormat,
    (heads, dim): (usize, usize),
) -> (Vec<u8>, usize) {
    let rows = x.len() / (heads * dim * elem.bytes());
    if format == PageFormat::Plain {
        return (x.to_vec(), heads * dim * elem.bytes());
    }
    let out_bytes = heads * format.head_bytes(dim, DType::F32);
    let mut out = vec![0u8; rows * out_bytes];
    let packing = PackRows {
        x: Mat { ptr: x.as_ptr(), elem, stride: heads * dim },
        rows,
        heads,
        head_dim: dim,
        format,
        out: out.as_mut_ptr(),
        out_bytes,
        life: std::marker::PhantomData,
    };
    // SAFETY: both have the rows.
    unsafe { pack(threads, &packing) };
    (out, out_bytes)
}

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let of = |at: usize, or: usize| asked.get(at).copied().unwrap_or(or);
    let (threads, sequences, tokens) = (Threads::new(of(0, 1)), of(1, 16), of(2, 640));
    let (heads, kv_heads, dim, runs) = (of(3, 32), of(4, 8), of(5, 64), of(6, 15));
    let isa = Isa::select(None);
    let blocks = tokens.div_ceil(PAGE_ROWS);
    let keys = sequences * blocks * PAGE_ROWS;
    let shape = Shape { q_tokens: sequences, k_tokens: keys, heads, kv_heads, head_dim: dim, span: 0 };
    // A sequence's pages are scattered.
    let pages: Vec<i32> =
        (0..sequences * blocks).map(|at| (at * 7919 % (sequences * blocks)) as i32).collect();
    let is_free = |page: usize| pages.iter().filter(|other| **other == page as i32).count() == 1;
    let pages: Vec<i32> =
        if (0..pages.len()).all(is_free) { pages } else { (0..pages.len() as i32).collect() };
    let pos_q = vec![tokens as i32 - 1; sequences];
    let pos_k: Vec<i32> = (0..keys).map(|at| (at % (blocks * PAGE_ROWS)) as i32).collect();
    let slice = |at: usize| {
        let start = at * blocks * PAGE_ROWS;
        Slice::causal(at..at + 1, start..start + tokens, None)
    };
    let slices: Vec<Slice> = (0..sequences).map(slice).collect();
    for elem in [Elem::Bf16, Elem::F32] {
        let q = noise(sequences * heads * dim, elem, 1);
        let [k, v] = [2, 3].map(|seed| noise(keys * kv_heads * dim, elem, seed));
        for format in [PageFormat::Plain, PageFormat::Int8, PageFormat::Fp8, PageFormat::Int4] {
            let [(k, row), (v, _)] = [&k, &v].map(|x| held(&threads, x, elem, format, (kv_heads, dim)));
            let stride = if format == PageFormat::Plain { kv_heads * dim } else { row };
            let mut out = vec![0u8; q.len()];
            let mut lse = vec![0.0f32; sequences * heads];
            let bytes = workspace_bytes_forward(isa, threads.count(), &shape, elem, slices.len());
            let mut workspace = vec![0u8; bytes];
            let op = Forward {
                shape,
                elem,
                options: Options { scale: (dim as f32).powf(-0.5), softcap: 0.0 },
                mask: MaskOperands {
                    slices: &slices,
                    pos_q: &pos_q,
                    pos_k: &pos_k,
                    pages: Some(PageTable { pages: &pages, format }),
                },
                q: Rows { data: q.as_ptr(), stride: heads * dim },
                k: Rows { data: k.as_ptr(), stride },
                v: Rows { data: v.as_ptr(), stride },
                sinks: None,
                bias: None,
                out: RowsMut { data: out.as_mut_ptr(), stride: heads * dim, elem },
                lse: lse.as_mut_ptr(),
                resume: false,
            };
            let mut times = Vec::new();
            for _ in 0..runs {
                let (start, cpu) = (Instant::now(), thread_seconds());
                // SAFETY: operands and workspace have the extents of the call.
                unsafe { forward(&threads, isa, &op, workspace.as_mut_ptr()) };
                times.push(if threads.count() == 1 {
                    thread_seconds() - cpu
                } else {
                    start.elapsed().as_secs_f64()
                });
            }
            times.sort_by(f64::total_cmp);
            let bits = out.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
            println!(
                "{elem:?} {format:?}: {:.0} us (best {:.0}), {:.2} GB/s, bits {bits:x}",
                times[runs / 2] * 1e6,
                times[0] * 1e6,
                (2 * sequences * tokens * row) as f64 / times[runs / 2] * 1e-9
            );
        }
    }
}
