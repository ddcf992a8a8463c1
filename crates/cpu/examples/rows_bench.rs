//! Rates of the row kernels, bf16: median time and memory traffic. Usage: `rows_bench [threads] [rows]`.
#![allow(unsafe_code)]

use fathom_cpu::elementwise::*;
use fathom_cpu::isa::Isa;
use fathom_cpu::mat::{Elem, Mat, MatMut};
use fathom_cpu::threads::Threads;
use fathom_tensor::{Activation, NormKind};
use std::time::Instant;

fn random(count: usize, seed: u64) -> Vec<u16> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (((state >> 40) as f32 / (1u64 << 22) as f32 - 2.0).to_bits() >> 16) as u16
        })
        .collect()
}

/// CPU time of this thread: what a kernel on one thread costs, whoever shares the machine.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Wall time, or on one thread its CPU time: best and median.
fn show(name: &str, bytes: usize, mut f: impl FnMut()) {
    let one = std::env::args().nth(1).is_some_and(|threads| threads == "1");
    f();
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let (start, cpu) = (Instant::now(), thread_seconds());
            f();
            if one { thread_seconds() - cpu } else { start.elapsed().as_secs_f64() }
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0] * 1e3, times[4] * 1e3);
    println!("{name:34} {best:7.2} / {median:7.2} ms {:7.1} GB/s", bytes as f64 / times[0] * 1e-9);
}

fn main() {
    let arg = |i: usize| std::env::args().nth(i).and_then(|x| x.parse().ok());
    let (threads, rows): (Threads, usize) = (Threads::new(arg(1).unwrap_or(2)), arg(2).unwrap_or(8192));
    let isa = Isa::select(std::env::var("FATHOM_ISA").ok().and_then(|name| Isa::from_name(&name)));
    let place = Place { threads: &threads, isa };
    println!("{isa:?}, {} threads, {rows} rows", threads.count());
    let (d, f, vocab) = (2048usize, 4096usize, 32000usize);
    let bf = |x: &[u16], stride: usize| Mat { ptr: x.as_ptr().cast(), elem: Elem::Bf16, stride };
    let bfm = |x: &mut [u16], stride: usize| MatMut { ptr: x.as_mut_ptr().cast(), elem: Elem::Bf16, stride };
    let fm = |x: &mut [f32], stride: usize| MatMut { ptr: x.as_mut_ptr().cast(), elem: Elem::F32, stride };
    let (x, w, dy) = (random(rows * 2 * f, 1), random(d, 2), random(rows * 2 * f, 3));
    let mut y = random(rows * 2 * f, 4);
    let (mut stats, mut dw) = (vec![0f32; rows * 32], vec![0f32; d]);
    for (name, centred) in [("rms norm", false), ("layer norm", true)] {
        let kind = NormKind { centred, plus_one: false, round_first: !centred, eps: 1e-6 };
        let op = Norm {
            kind,
            rows,
            groups: 1,
            width: d,
            x: bf(&x, d),
            weight: bf(&w, d),
            bias: None,
            out: bfm(&mut y, d),
            stats: fm(&mut stats, 2),
        };
        // SAFETY: the buffers have the sizes named; so below.
        show(&format!("{name} {rows}x{d}"), rows * d * 4, || unsafe { norm(place, &op) });
        let op = NormBackward {
            kind,
            rows,
            groups: 1,
            width: d,
            x: bf(&x, d),
            weight: bf(&w, d),
            stats: op.stats.as_mat(),
            dy: bf(&dy, d),
        };
        let (dx, dweight) = (bfm(&mut y, d), fm(&mut dw, d));
        show(&format!("{name} backward input"), rows * d * 6, || unsafe {
            norm_backward_input(place, &op, dx, false)
        });
        show(&format!("{name} backward weight"), rows * d * 4, || unsafe {
            norm_backward_weight(place, &op, dweight, None)
        });
    }
    for kind in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Relu2] {
        let half = |x: &[u16]| bf(&x[f..], 2 * f);
        let op =
            Activate { kind, rows, cols: f, gate: bf(&x, 2 * f), up: Some(half(&x)), out: bfm(&mut y, f) };
        show(&format!("{kind:?} gated {rows}x{f}"), rows * f * 6, || unsafe { activate(place, &op) });
        let (dgate, dup) = (bfm(&mut y, 2 * f), bfm(&mut y[f..], 2 * f));
        let op = ActivateBackward {
            kind,
            rows,
            cols: f,
            gate: op.gate,
            up: op.up,
            dy: bf(&dy, f),
            dgate,
            dup: Some(dup),
        };
        show(&format!("{kind:?} gated backward"), rows * f * 10, || unsafe { activate_backward(place, &op) });
    }
    let out = bfm(&mut y, d);
    show("add", rows * d * 6, || unsafe { add(place, rows, d, bf(&x, d), bf(&dy, d), out) });
    show("add in place", rows * d * 6, || unsafe { add(place, rows, d, out.as_mat(), bf(&dy, d), out) });
    show("copy", rows * d * 4, || unsafe { copy(place, rows, d, bf(&x, d), out) });
    let (rot, head_dim) = (64, 64);
    let inv_freq: Vec<f32> = (0..rot / 2).map(|i| 10000f32.powf(-(i as f32) / 32.0)).collect();
    let positions: Vec<i32> = (0..rows as i32).collect();
    let mut table = vec![0f32; rows * rot];
    let op = RopeTable { positions: &positions, inv_freq: &inv_freq, factor: 1.0, out: fm(&mut table, rot) };
    show("rope table", rows * rot * 4, || unsafe { rope_table(place, &op) });
    for interleaved in [false, true] {
        let op = Rope {
            rows,
            heads: d / head_dim,
            head_dim,
            rot,
            x: bf(&x, d),
            out,
            table: op.out.as_mat(),
            interleaved,
            inverse: false,
            accumulate: false,
        };
        show(&format!("rope interleaved {interleaved}"), rows * d * 4, || unsafe { rope(place, &op) });
    }
    let ids: Vec<i32> = (0..rows as i32).map(|i| i.wrapping_mul(7919) % 4001).collect();
    let op = Embed { ids: &ids, vocab: 4001, cols: d, table: bf(&x, d), scale: 1.0, out, accumulate: false };
    show("embed", rows * d * 4, || unsafe { embed(place, &op) });
    let mut dtable = vec![0f32; 4001 * d];
    let to = fm(&mut dtable, d);
    show("embed backward", rows * d * 10, || unsafe {
        embed_backward(place, &ids, 4001, d, bf(&dy, d), 1.0, to)
    });
    let tile = (rows * 2 * f / vocab).min(512);
    let labels: Vec<i32> = (0..tile as i32).map(|i| i * 13 % vocab as i32).collect();
    let mut loss = vec![0f32; tile];
    for (name, softcap) in [("", 0.0), (" softcap", 30.0)] {
        let op = CrossEntropy {
            vocab,
            logits: bf(&x, vocab),
            labels: &labels,
            weights: None,
            loss: fm(&mut loss, tile),
            logp: None,
            dlogits: Some(bfm(&mut y, vocab)),
            scale: 1.0,
            softcap,
            z_loss: 0.0,
        };
        show(&format!("cross entropy{name} {tile}x{vocab}"), tile * vocab * 4, || unsafe {
            cross_entropy(place, &op)
        });
    }
    let count = 8 << 20;
    let (mut master, mut m, mut v, grad) =
        (vec![0f32; count], vec![0f32; count], vec![0f32; count], vec![0.1f32; count]);
    let (one, zero) = (1.0f32, 0.0f32);
    let op = AdamW {
        count,
        elem: Elem::Bf16,
        param: y.as_mut_ptr().cast(),
        master: master.as_mut_ptr(),
        m: m.as_mut_ptr(),
        v: v.as_mut_ptr(),
        grad: grad.as_ptr(),
        scale: &one,
        skip: &zero,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        correction1: 0.5,
        correction2: 0.5,
    };
    show("adamw, bf16 with master", count * 30, || unsafe { adamw(place, &op) });
    show("sum of squares", count * 4, || unsafe { assert!(sum_squares(place, &grad) > 0.0) });
}
