//! Rates of the products of a training step (hidden 512, ffn 1408, vocabulary 32000, bf16), with operands outside the
//! caches. Usage: `products_bench [threads] [tokens] [name]`; on one thread CPU time is measured, so other load on the
//! machine does not matter.
#![allow(unsafe_code)]

use fathom_cpu::gemm::{Gemm, Layout, gemm, workspace_bytes};
use fathom_cpu::isa::Isa;
use fathom_cpu::mat::{Elem, Mat, MatMut};
use fathom_cpu::threads::Threads;
use std::time::Instant;

mod common;

use common::{memory, thread_seconds};

fn filled(count: usize) -> *mut u8 {
    let to = memory(2 * count).cast::<u16>();
    let mut state = 88172645463325252u64;
    for i in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // SAFETY: the mapping holds `count` elements.
        unsafe { *to.add(i) = (((state >> 40) as f32 / (1u64 << 22) as f32 - 2.0).to_bits() >> 16) as u16 };
    }
    to.cast()
}

struct Case {
    name: &'static str,
    sizes: [usize; 3],
    a_trans: bool,
    b_trans: bool,
    c: Elem,
    accumulate: bool,
    calls: usize,
}

fn cases(tokens: usize, tile: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (names, out, inner) in [
        (["qkv", "qkv dx", "qkv dw"], 1024, 512),
        (["proj", "proj dx", "proj dw"], 512, 512),
        (["up", "up dx", "up dw"], 2816, 512),
        (["down", "down dx", "down dw"], 512, 1408),
        (["head", "head dx", "head dw"], 32000, 512),
    ] {
        let head = out == 32000;
        let t = if head { tile } else { tokens };
        let calls = if head { tokens.div_ceil(tile) } else { 8 };
        let first = if head { Elem::F32 } else { Elem::Bf16 };
        let case = |name, sizes, a_trans, b_trans, c, accumulate| Case {
            name,
            sizes,
            a_trans,
            b_trans,
            c,
            accumulate,
            calls,
        };
        cases.push(case(names[0], [t, out, inner], false, true, first, false));
        cases.push(case(names[1], [t, inner, out], false, false, Elem::Bf16, false));
        cases.push(case(names[2], [out, inner, t], true, false, Elem::F32, true));
        if !head {
            // The low-rank products of an adapter of rank 16.
            cases.push(case("low", [t, 16, inner], false, true, Elem::Bf16, false));
            cases.push(case("low add", [t, out, 16], false, true, Elem::Bf16, true));
            cases.push(case("low du", [t, 16, out], false, false, Elem::Bf16, false));
            cases.push(case("low dx", [t, inner, 16], false, false, Elem::Bf16, true));
            cases.push(case("low db", [out, 16, t], true, false, Elem::F32, true));
            cases.push(case("low da", [16, inner, t], true, false, Elem::F32, true));
        }
    }
    cases
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = Threads::new(args.next().map_or(1, |x| x.parse().unwrap_or(1)));
    let tokens = args.next().map_or(2048, |x| x.parse().unwrap_or(2048));
    let tile = args.next().map_or(256, |x| x.parse().unwrap_or(256));
    let only = args.next().unwrap_or_default();
    let isa = Isa::select(None);
    let (mut total_s, mut total_work) = (0.0, 0.0);
    for case in cases(tokens, tile).into_iter().filter(|case| case.name.starts_with(&only)) {
        let [m, n, k] = case.sizes;
        let copies = (96 << 20) / (2 * m * k + 2 * k * n + case.c.bytes() * m * n) + 2;
        let operands: Vec<[*mut u8; 3]> =
            (0..copies).map(|_| [filled(m * k), filled(k * n), memory(case.c.bytes() * m * n)]).collect();
        let call = |[a, b, c]: [*mut u8; 3]| Gemm {
            m,
            n,
            k,
            a: Mat { ptr: a, elem: Elem::Bf16, stride: if case.a_trans { m } else { k } },
            a_trans: case.a_trans,
            b: Mat { ptr: b, elem: Elem::Bf16, stride: if case.b_trans { k } else { n } },
            b_layout: Layout::of(case.b_trans),
            c: MatMut { ptr: c, elem: case.c, stride: n },
            accumulate: case.accumulate,
        };
        let workspace = memory(workspace_bytes(isa, threads.count(), &call(operands[0]).shape(), case.c));
        let mut times = Vec::new();
        for round in 0..copies + 8.max(copies) {
            let (start, cpu) = (Instant::now(), thread_seconds());
            // SAFETY: operands and workspace have the extents of the call.
            unsafe { gemm(&threads, isa, &call(operands[round % copies]), workspace) };
            let took =
                if threads.count() == 1 { thread_seconds() - cpu } else { start.elapsed().as_secs_f64() };
            if round >= copies {
                times.push(took);
            }
        }
        times.sort_by(f64::total_cmp);
        let work = 2e-9 * (m * n * k) as f64;
        let median = times[times.len() / 2];
        println!(
            "{:8} {m:6} x {n:6} x {k:6} {:8.2} ms a step {:6.0} GF (best {:.0})",
            case.name,
            median * 1e3 * case.calls as f64,
            work / median,
            work / times[0]
        );
        total_s += median * case.calls as f64;
        total_work += work * case.calls as f64;
        for operand in &operands {
            for (ptr, bytes) in operand.iter().zip([2 * m * k, 2 * k * n, case.c.bytes() * m * n]) {
                // SAFETY: the mapping of `memory`; only its pages are released.
                unsafe { libc::madvise(ptr.cast(), bytes, libc::MADV_DONTNEED) };
            }
        }
    }
    println!("total {:.1} ms a step, {:.0} GF", total_s * 1e3, total_work / total_s);
}
