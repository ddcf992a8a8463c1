//! Rates of causal attention in bf16, with 8 query and 8 key heads. Usage:
//! `attention_bench [threads] [tokens] [head size] [documents] [rounds] [window]`; on one thread CPU time is measured,
//! so other load on the machine does not matter. FLOPs count the pairs of the mask once.
#![allow(unsafe_code)]

use fathom_cpu::attention::{
    Backward, Elem, Forward, MaskOperands, Options, Rows, RowsMut, Shape, Slice, backward, forward,
    workspace_bytes_backward, workspace_bytes_forward,
};
use fathom_cpu::isa::Isa;
use fathom_cpu::threads::Threads;
use std::time::Instant;

mod common;

use common::{memory, thread_seconds};

const HEADS: usize = 8;

fn filled(count: usize, seed: u64) -> *mut u8 {
    let to = memory(2 * count).cast::<u16>();
    let mut state = 88172645463325252u64 ^ seed;
    for i in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // SAFETY: the mapping holds `count` elements.
        unsafe { *to.add(i) = (((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0).to_bits() >> 16) as u16 };
    }
    to.cast()
}

fn checksum(data: *const u8, bytes: usize) -> u64 {
    // SAFETY: the mapping holds the bytes.
    let data = unsafe { std::slice::from_raw_parts(data, bytes) };
    data.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Seconds of each round of both passes, ascending: CPU time if there is one thread.
fn timed(threads: usize, rounds: usize, run: impl Fn(usize)) -> [Vec<f64>; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (pass, times) in times.iter_mut().enumerate() {
            let (start, cpu) = (Instant::now(), thread_seconds());
            run(pass);
            times.push(if threads == 1 { thread_seconds() - cpu } else { start.elapsed().as_secs_f64() });
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    times
}

/// Positions, slices and attending pairs of documents of equal length.
fn documents(tokens: usize, docs: usize, window: usize) -> (Vec<i32>, Vec<Slice>, usize) {
    let (mut pos, mut slices, mut pairs) = (Vec::new(), Vec::new(), 0);
    for doc in 0..docs {
        let range = doc * tokens / docs..(doc + 1) * tokens / docs;
        pos.extend(0..range.len() as i32);
        slices.push(Slice::causal(range.clone(), range.clone(), (window > 0).then_some(window)));
        pairs +=
            (0..range.len()).map(|at| (at + 1).min(if window > 0 { window } else { tokens })).sum::<usize>();
    }
    (pos, slices, pairs)
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|x| x.parse().ok()).collect();
    let arg = |index: usize, default: usize| args.get(index).copied().unwrap_or(default);
    let (threads, tokens, dim) = (Threads::new(arg(0, 1)), arg(1, 4096), arg(2, 128));
    let (docs, rounds, window) = (arg(3, 1), arg(4, 5), arg(5, 0));
    let isa = Isa::select(None);
    let (pos, slices, pairs) = documents(tokens, docs, window);
    let shape =
        Shape { q_tokens: tokens, k_tokens: tokens, heads: HEADS, kv_heads: HEADS, head_dim: dim, span: 0 };
    let width = HEADS * dim;
    let [q, k, v, out, dout, dq, dk, dv] = std::array::from_fn(|i| filled(tokens * width, i as u64));
    let rows = |data: *mut u8| Rows { data, stride: width };
    let rows_mut = |data| RowsMut { data, stride: width, elem: Elem::Bf16 };
    let lse = memory(tokens * HEADS * 4).cast::<f32>();
    let options = Options { scale: (dim as f32).powf(-0.5), softcap: 0.0 };
    let (mask, elem) = (MaskOperands { slices: &slices, pos_q: &pos, pos_k: &pos, pages: None }, Elem::Bf16);
    let [q, k, v, dout, o] = [q, k, v, dout, out].map(rows);
    let [out, dq, dk, dv] = [out, dq, dk, dv].map(rows_mut);
    let there =
        Forward { shape, elem, options, mask, q, k, v, sinks: None, bias: None, out, lse, resume: false };
    let accumulate = false;
    let back = Backward {
        shape,
        elem,
        options,
        mask,
        q,
        k,
        v,
        out: o,
        lse,
        dout,
        dq,
        dk,
        dv,
        accumulate,
        bias: None,
    };
    let count = threads.count();
    let most = workspace_bytes_forward(isa, count, &shape, elem, docs);
    let workspace = memory(most.max(workspace_bytes_backward(isa, count, &shape, elem, docs)));
    let times = timed(threads.count(), rounds, |pass| {
        // SAFETY: operands and workspace have the extents of the call.
        unsafe {
            match pass {
                0 => forward(&threads, isa, &there, workspace),
                _ => backward(&threads, isa, &back, workspace),
            }
        }
    });
    let bits = [out, dq, dk, dv]
        .iter()
        .fold(0, |all: u64, data| all.rotate_left(7) ^ checksum(data.data, 2 * tokens * width));
    let best = times.each_ref().map(|times| times[0]);
    let median = times.each_ref().map(|times| times[times.len() / 2]);
    let flops = 4.0 * (pairs * width) as f64 * 1e-9;
    println!(
        "{tokens} x {dim}, {docs} documents, window {window}: forward {:.1} ms {:.0} GF (best {:.0}), backward {:.1} ms {:.0} GF \
         (best {:.0}), both {:.0} GF, bits {bits:x}",
        median[0] * 1e3,
        flops / median[0],
        flops / best[0],
        median[1] * 1e3,
        2.5 * flops / median[1],
        2.5 * flops / best[1],
        3.5 * flops / (median[0] + median[1]),
    );
}
