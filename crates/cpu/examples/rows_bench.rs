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

/// CPU time of this thread: the cost of a single-threaded kernel, independent of other load on the machine.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Prints wall time, or CPU time on one thread: best and median.
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

/// Columns of a row, of a feed-forward row and of a vocabulary.
const D: usize = 2048;
const F: usize = 4096;
const VOCAB: usize = 32000;

fn bf(x: &[u16], stride: usize) -> Mat {
    Mat { ptr: x.as_ptr().cast(), elem: Elem::Bf16, stride }
}

fn bf_mut(x: &mut [u16], stride: usize) -> MatMut {
    MatMut { ptr: x.as_mut_ptr().cast(), elem: Elem::Bf16, stride }
}

fn f32_mut(x: &mut [f32], stride: usize) -> MatMut {
    MatMut { ptr: x.as_mut_ptr().cast(), elem: Elem::F32, stride }
}

/// Two inputs and an output of `rows x 2 F`.
struct Memory<'a> {
    place: Place<'a>,
    rows: usize,
    x: Vec<u16>,
    dy: Vec<u16>,
    y: Vec<u16>,
}

fn main() {
    let arg = |i: usize| std::env::args().nth(i).and_then(|x| x.parse().ok());
    let (threads, rows): (Threads, usize) = (Threads::new(arg(1).unwrap_or(2)), arg(2).unwrap_or(8192));
    let isa = Isa::select(std::env::var("FATHOM_ISA").ok().and_then(|name| Isa::from_name(&name)));
    println!("{isa:?}, {} threads, {rows} rows", threads.count());
    let line = |seed: u64| random(rows * 2 * F, seed);
    let place = Place { threads: &threads, isa };
    let mut memory = Memory { place, rows, x: line(1), dy: line(3), y: line(4) };
    norms(&mut memory);
    activations(&mut memory);
    moves(&mut memory);
    rotations(&mut memory);
    look_ups(&mut memory);
    losses(&mut memory);
    updates(&mut memory);
}

fn norms(memory: &mut Memory<'_>) {
    let Memory { place, rows, x, dy, y } = memory;
    let (place, rows, w) = (*place, *rows, random(D, 2));
    let (mut stats, mut dw) = (vec![0f32; rows * 2], vec![0f32; D]);
    for (name, centred) in [("rms norm", false), ("layer norm", true)] {
        let kind = NormKind { centred, plus_one: false, round_first: !centred, eps: 1e-6 };
        let (x, weight, out) = (bf(x, D), bf(&w, D), bf_mut(y, D));
        let stats = f32_mut(&mut stats, 2);
        let op = Norm { kind, rows, groups: 1, width: D, x, weight, bias: None, out, stats };
        // SAFETY: the buffers have the given sizes; likewise below.
        show(&format!("{name} {rows}x{D}"), rows * D * 4, || unsafe { norm(place, &op) });
        let (stats, dy) = (stats.as_mat(), bf(dy, D));
        let op = NormBackward { kind, rows, groups: 1, width: D, x, weight, stats, dy };
        let (dx, dweight) = (bf_mut(y, D), f32_mut(&mut dw, D));
        show(&format!("{name} backward input"), rows * D * 6, || unsafe {
            norm_backward_input(place, &op, dx, false)
        });
        show(&format!("{name} backward weight"), rows * D * 4, || unsafe {
            norm_backward_weight(place, &op, dweight, None)
        });
    }
}

fn activations(memory: &mut Memory<'_>) {
    let Memory { place, rows, x, dy, y } = memory;
    let (place, rows, cols) = (*place, *rows, F);
    for kind in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Relu2] {
        let (gate, up) = (bf(x, 2 * F), Some(bf(&x[F..], 2 * F)));
        let op = Activate { kind, rows, cols, gate, up, out: bf_mut(y, F) };
        show(&format!("{kind:?} gated {rows}x{F}"), rows * F * 6, || unsafe { activate(place, &op) });
        let (dgate, dup) = (bf_mut(y, 2 * F), Some(bf_mut(&mut y[F..], 2 * F)));
        let op = ActivateBackward { kind, rows, cols, gate, up, dy: bf(dy, F), dgate, dup };
        show(&format!("{kind:?} gated backward"), rows * F * 10, || unsafe { activate_backward(place, &op) });
    }
}

fn moves(memory: &mut Memory<'_>) {
    let Memory { place, rows, x, dy, y } = memory;
    let (place, rows, a, b, out) = (*place, *rows, bf(x, D), bf(dy, D), bf_mut(y, D));
    show("add", rows * D * 6, || unsafe { add(place, rows, D, a, b, out) });
    show("add in place", rows * D * 6, || unsafe { add(place, rows, D, out.as_mat(), b, out) });
    show("copy", rows * D * 4, || unsafe { copy(place, rows, D, a, out) });
}

fn rotations(memory: &mut Memory<'_>) {
    let Memory { place, rows, x, y, .. } = memory;
    let (place, rows, rot, head_dim) = (*place, *rows, 64, 64);
    let inv_freq: Vec<f32> = (0..rot / 2).map(|i| 10000f32.powf(-(i as f32) / 32.0)).collect();
    let positions: Vec<i32> = (0..rows as i32).collect();
    let mut table = vec![0f32; rows * rot];
    let out = f32_mut(&mut table, rot);
    let op = RopeTable { positions: &positions, inv_freq: &inv_freq, factor: 1.0, out };
    show("rope table", rows * rot * 4, || unsafe { rope_table(place, &op) });
    let (x, table, heads, out) = (bf(x, D), out.as_mat(), D / head_dim, bf_mut(y, D));
    for interleaved in [false, true] {
        let (inverse, accumulate) = (false, false);
        let op = Rope { rows, heads, head_dim, rot, x, out, table, interleaved, inverse, accumulate };
        show(&format!("rope interleaved {interleaved}"), rows * D * 4, || unsafe { rope(place, &op) });
    }
}

fn look_ups(memory: &mut Memory<'_>) {
    let Memory { place, rows, x, dy, y } = memory;
    let (place, rows, vocab, cols, scale) = (*place, *rows, 4001, D, 1.0);
    let ids: Vec<i32> = (0..rows as i32).map(|i| i.wrapping_mul(7919) % 4001).collect();
    let (table, out, first) = (bf(x, D), bf_mut(y, D), None);
    let op = Embed { ids: &ids, vocab, cols, table, scale, out, accumulate: false, first };
    show("embed", rows * D * 4, || unsafe { embed(place, &op) });
    let mut dtable = vec![0f32; vocab * D];
    let (dy, dtable) = (bf(dy, D), f32_mut(&mut dtable, D));
    let op = EmbedBackward { ids: &ids, vocab, cols, dy, scale, dtable, first };
    show("embed backward", rows * D * 10, || unsafe { embed_backward(place, &op) });
}

fn losses(memory: &mut Memory<'_>) {
    let Memory { place, rows, x, y, .. } = memory;
    let tile = (*rows * 2 * F / VOCAB).min(512);
    let labels: Vec<i32> = (0..tile as i32).map(|i| i * 13 % VOCAB as i32).collect();
    let (mut loss, mut found) = (vec![0f32; tile], vec![0f32; 2 * tile]);
    for (name, softcap, measured) in [
        ("", 0.0, false),
        (" measured", 0.0, true),
        (" softcap", 30.0, false),
        (" softcap measured", 30.0, true),
    ] {
        let op = CrossEntropy {
            vocab: VOCAB,
            logits: bf(x, VOCAB),
            labels: &labels,
            weights: None,
            loss: f32_mut(&mut loss, tile),
            logp: None,
            dlogits: Some(bf_mut(y, VOCAB)),
            scale: 1.0,
            softcap,
            z_loss: 0.0,
            spread: None,
            measures: measured.then(|| f32_mut(&mut found, tile)),
        };
        let place = *place;
        show(&format!("cross entropy{name} {tile}x{VOCAB}"), tile * VOCAB * 4, || unsafe {
            cross_entropy(place, &op)
        });
    }
}

fn updates(memory: &mut Memory<'_>) {
    let count = 8 << 20;
    let zeros = || vec![0f32; count];
    let (mut master, mut m, mut v, grad) = (zeros(), zeros(), zeros(), vec![0.1f32; count]);
    let (one, zero) = (1.0f32, 0.0f32);
    memory.y.resize(count.max(memory.y.len()), 0);
    let op = AdamW {
        count,
        elem: Elem::Bf16,
        param: memory.y.as_mut_ptr().cast(),
        master: master.as_mut_ptr(),
        moments: Elem::F32,
        coded: None,
        keys: [1, 2],
        weight_key: 3,
        first: 0,
        m: m.as_mut_ptr().cast(),
        v: v.as_mut_ptr().cast(),
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
    let place = memory.place;
    show("adamw, bf16 with master", count * 30, || unsafe { adamw(place, &op) });
    show("sum of squares", count * 4, || unsafe { assert!(sum_squares(place, &grad) > 0.0) });
}
