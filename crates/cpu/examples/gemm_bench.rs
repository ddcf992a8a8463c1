//! GEMM rates of one process, `y = x W^T` in bf16 unless told otherwise: random operands, best and median of
//! repeated runs. Usage: `gemm_bench [threads] [seconds per shape] [filter]`.
#![allow(unsafe_code)]

use fathom_cpu::gemm::{Elem, Gemm, Mat, MatMut, Shape, gemm, pack_b, packed_bytes, workspace_bytes};
use fathom_cpu::isa::Isa;
use fathom_cpu::threads::Threads;
use std::time::Instant;

/// CPU time of this thread: what a product on one thread costs, whoever shares the machine.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

struct Aligned {
    bytes: Vec<u64>,
    skip: usize,
}

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        let bytes = vec![0u64; bytes / 8 + 520];
        let skip = bytes.as_ptr().align_offset(4096);
        Aligned { bytes, skip }
    }

    fn random(count: usize, elem: Elem, seed: u64) -> Aligned {
        let mut memory = Aligned::new(count * elem.bytes());
        let mut state = seed;
        for i in 0..count {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let x = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            // SAFETY: `i` lies inside the allocation.
            unsafe {
                match elem {
                    Elem::F32 => *memory.ptr().cast::<f32>().add(i) = x,
                    Elem::Bf16 => *memory.ptr().cast::<u16>().add(i) = (x.to_bits() >> 16) as u16,
                }
            }
        }
        memory
    }

    fn ptr(&mut self) -> *mut u8 {
        self.bytes[self.skip..].as_mut_ptr().cast()
    }
}

const SHAPES: [[usize; 3]; 16] = [
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [4096, 3072, 768],
    [4096, 768, 3072],
    [768, 3072, 4096],
    [2048, 1408, 512],
    [2048, 32000, 512],
    [128, 4096, 4096],
    [8192, 512, 1408],
    [512, 1408, 8192],
    [1, 4096, 4096],
    [1, 32000, 512],
    [4, 4096, 4096],
    [16, 4096, 4096],
];

fn main() {
    let arg = |i: usize| std::env::args().nth(i);
    let threads = Threads::new(arg(1).and_then(|x| x.parse().ok()).unwrap_or(2));
    let seconds: f64 = arg(2).and_then(|x| x.parse().ok()).unwrap_or(1.0);
    let filter = arg(3).unwrap_or_default();
    let isa = Isa::select(std::env::var("FATHOM_ISA").ok().and_then(|name| Isa::from_name(&name)));
    println!("{isa:?}, {} threads, m x n x k: GFLOP/s best / median", threads.count());
    let forms =
        [("nt", false, true, Elem::Bf16), ("nn", false, false, Elem::Bf16), ("tn", true, false, Elem::Bf16)];
    for [m, n, k] in SHAPES {
        for (name, elem, a_trans, b_trans, packed) in [
            ("bf16 nt packed", Elem::Bf16, false, true, true),
            ("bf16 nt", Elem::Bf16, forms[0].1, forms[0].2, false),
            ("bf16 nn (dX)", Elem::Bf16, forms[1].1, forms[1].2, false),
            ("bf16 tn (dW)", Elem::Bf16, forms[2].1, forms[2].2, false),
            ("f32 nt", Elem::F32, false, true, false),
        ] {
            let title = format!("{m}x{n}x{k} {name}");
            if !title.contains(&filter) {
                continue;
            }
            let c_elem = if a_trans { Elem::F32 } else { elem };
            let (mut a, mut b) = (Aligned::random(m * k, elem, 7), Aligned::random(k * n, elem, 9));
            let mut c = Aligned::new(m * n * c_elem.bytes());
            let shape = Shape { m, n, k, a: elem, b: elem, b_packed: packed };
            let mut workspace = Aligned::new(workspace_bytes(isa, threads.count(), &shape, c_elem));
            let mut b_mat = Mat { ptr: b.ptr(), elem, stride: if b_trans { k } else { n } };
            let mut kept = Aligned::new(if packed { packed_bytes(isa, elem, elem, k, n) } else { 0 });
            if packed {
                // SAFETY: the buffers have the sizes asked for.
                unsafe { pack_b(&threads, isa, elem, &b_mat, b_trans, k, n, kept.ptr()) };
                b_mat.ptr = kept.ptr();
            }
            let g = Gemm {
                m,
                n,
                k,
                a: Mat { ptr: a.ptr(), elem, stride: if a_trans { m } else { k } },
                a_trans,
                b: b_mat,
                b_trans,
                b_packed: packed,
                c: MatMut { ptr: c.ptr(), elem: c_elem, stride: n },
                accumulate: a_trans,
            };
            let start = Instant::now();
            let mut times = vec![];
            while times.len() < 4 || start.elapsed().as_secs_f64() < seconds {
                let (t, cpu) = (Instant::now(), thread_seconds());
                // SAFETY: as above.
                unsafe { gemm(&threads, isa, &g, workspace.ptr()) };
                let wall = t.elapsed().as_secs_f64();
                times.push(if threads.count() == 1 { thread_seconds() - cpu } else { wall });
            }
            times.remove(0);
            times.sort_by(f64::total_cmp);
            let rate = |s: f64| 2e-9 * (m * n * k) as f64 / s;
            let bytes = (k * n * elem.bytes()) as f64 * 1e-9;
            let (best, median) = (times[0], times[times.len() / 2]);
            println!("{title:32} {:6.0} / {:6.0}   B {:5.1} GB/s", rate(best), rate(median), bytes / best);
        }
    }
}
