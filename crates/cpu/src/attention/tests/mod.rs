//! Compares attention with a naive f64 reference on every kernel family of this processor, and checks the order rules
//! bit by bit.

mod bias;
mod few;
#[cfg(target_arch = "x86_64")]
mod granules;
mod order;
mod parts;
mod reference;

use super::*;
use crate::elementwise::{Place, SinksBackward, sinks_backward};
use crate::isa::Isa;
use crate::mat::Mat;
use fathom_tensor::{Buckets, DistanceTerms};
use reference::{Reference, reference};

/// Inputs and parameters of a run, in f32; the kernels see them as `elem`.
pub struct Problem {
    pub shape: Shape,
    pub elem: Elem,
    pub options: Options,
    pub slices: Vec<Slice>,
    pub pos_q: Vec<i32>,
    pub pos_k: Vec<i32>,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub dout: Vec<f32>,
    pub sinks: Option<Vec<f32>>,
    /// Table of biases, and the terms of distances.
    pub bias: Option<(Vec<f32>, DistanceTerms)>,
}

/// Results of the kernels.
#[derive(PartialEq, Debug)]
pub struct Results {
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
    pub dq: Vec<f32>,
    pub dk: Vec<f32>,
    pub dv: Vec<f32>,
    pub d_sinks: Vec<f32>,
    pub d_bias: Vec<f32>,
}

/// Roughly normal numbers, the same on every machine; exact in bf16.
pub fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let round = |x: f32| f32::from_bits((x.to_bits() >> 16) << 16);
    (0..count).map(|_| round((next() + next() + next() + next()) * 1.7)).collect()
}

/// A causal problem over `tokens` tokens.
pub fn problem(elem: Elem, tokens: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Problem {
    let shape = Shape { q_tokens: tokens, k_tokens: tokens, heads, kv_heads, head_dim, span: 0 };
    Problem {
        shape,
        elem,
        options: Options { scale: (head_dim as f32).powf(-0.5), softcap: 0.0 },
        slices: vec![Slice::causal(0..tokens, 0..tokens, None)],
        pos_q: (0..tokens as i32).collect(),
        pos_k: (0..tokens as i32).collect(),
        q: noise(1, tokens * heads * head_dim),
        k: noise(2, tokens * kv_heads * head_dim),
        v: noise(3, tokens * kv_heads * head_dim),
        dout: noise(4, tokens * heads * head_dim),
        sinks: None,
        bias: None,
    }
}

/// A tensor as bytes, with a row stride larger than the row.
struct StridedTensor {
    data: Vec<u8>,
    stride: usize,
    width: usize,
    elem: Elem,
}

impl StridedTensor {
    fn mat(&self) -> Mat {
        Mat { ptr: self.data.as_ptr(), elem: self.elem, stride: self.stride }
    }

    fn new(values: &[f32], width: usize, elem: Elem) -> StridedTensor {
        let stride = width + 8;
        let mut data = vec![0xff; values.len() / width * stride * elem.bytes()];
        for (at, x) in values.iter().enumerate() {
            let at = (at / width * stride + at % width) * elem.bytes();
            match elem {
                Elem::F32 => data[at..at + 4].copy_from_slice(&x.to_le_bytes()),
                Elem::Bf16 => data[at..at + 2].copy_from_slice(&x.to_le_bytes()[2..]),
            }
        }
        StridedTensor { data, stride, width, elem }
    }

    fn rows(&self) -> Rows {
        Rows { data: self.data.as_ptr(), stride: self.stride }
    }

    fn rows_mut(&mut self) -> RowsMut {
        RowsMut { data: self.data.as_mut_ptr(), stride: self.stride, elem: self.elem }
    }

    fn values(&self) -> Vec<f32> {
        let size = self.elem.bytes();
        let value = |at: &[u8]| match self.elem {
            Elem::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
            Elem::Bf16 => f32::from_le_bytes([0, 0, at[0], at[1]]),
        };
        let row = |row: &[u8]| row[..self.width * size].chunks(size).map(value).collect::<Vec<_>>();
        let rows = self.data.chunks(self.stride * size);
        // No kernel may touch the gap between rows.
        assert!(rows.clone().all(|r| r[self.width * size..].iter().all(|&b| b == 0xff)), "wrote past a row");
        rows.flat_map(row).collect()
    }
}

impl Problem {
    fn mask(&self) -> MaskOperands<'_> {
        MaskOperands { slices: &self.slices, pos_q: &self.pos_q, pos_k: &self.pos_k, pages: None }
    }

    /// Forward and backward.
    pub fn run(&self, isa: Isa, threads: usize) -> Results {
        self.run_with(
            threads,
            |threads, slices| {
                (
                    workspace_bytes_forward(isa, threads, &self.shape, self.elem, slices),
                    workspace_bytes_backward(isa, threads, &self.shape, self.elem, slices),
                )
            },
            // SAFETY: `run_with` gives buffers of the extents.
            |pool, op, work| unsafe { forward(pool, isa, op, work) },
            // SAFETY: as above.
            |pool, op, work| unsafe { backward(pool, isa, op, work) },
        )
    }

    /// Forward and backward by any kernels; `bytes` gives their workspaces.
    pub fn run_with(
        &self,
        threads: usize,
        bytes: impl Fn(usize, usize) -> (usize, usize),
        forward: impl Fn(&Threads, &Forward<'_>, *mut u8),
        backward: impl Fn(&Threads, &Backward<'_>, *mut u8),
    ) -> Results {
        let (shape, elem) = (self.shape, self.elem);
        let (qw, kw) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let pool = Threads::new(threads);
        let [q, dout] = [&self.q, &self.dout].map(|x| StridedTensor::new(x, qw, elem));
        let [k, v] = [&self.k, &self.v].map(|x| StridedTensor::new(x, kw, elem));
        let mut out = StridedTensor::new(&vec![7.0; self.q.len()], qw, elem);
        let mut lse = vec![7.0; shape.q_tokens * shape.heads];
        // The workspace is filled with NaN, whose contents must not matter; nothing may be written beyond its end.
        let (bytes_forward, bytes_backward) = bytes(threads, self.slices.len());
        let workspace = |bytes: usize| [vec![0xffu8; bytes], vec![0xa5; 256]].concat();
        let intact = |work: &[u8]| work[work.len() - 256..].iter().all(|byte| *byte == 0xa5);
        let mut work = workspace(bytes_forward);
        let (options, mask, [q, k, v]) = (self.options, self.mask(), [q.rows(), k.rows(), v.rows()]);
        let mut d_bias = self.bias.as_ref().map_or(Vec::new(), |(table, _)| vec![0.0; table.len()]);
        let gradient = |terms: &DistanceTerms, sums: *mut f32| match terms {
            DistanceTerms::Buckets(_) => sums,
            DistanceTerms::Slopes => std::ptr::null_mut(),
        };
        let bias = self.bias.as_ref().map(|(table, terms)| Bias {
            table: table.as_ptr(),
            gradient: gradient(terms, d_bias.as_mut_ptr()),
            strides: [self.shape.heads; 2],
            terms: *terms,
        });
        let (sinks, to, sums) = (self.sinks.as_deref(), out.rows_mut(), lse.as_mut_ptr());
        let resume = false;
        let forward_pass =
            Forward { shape, elem, options, mask, q, k, v, sinks, bias, out: to, lse: sums, resume };
        forward(&pool, &forward_pass, work.as_mut_ptr());
        assert!(intact(&work), "forward wrote behind its workspace: {shape:?}");
        let mut dq = StridedTensor::new(&vec![7.0; self.q.len()], qw, elem);
        let [mut dk, mut dv] = [&self.k, &self.v].map(|x| StridedTensor::new(&vec![7.0; x.len()], kw, elem));
        let mut work = workspace(bytes_backward);
        let backward_pass = Backward {
            shape,
            elem,
            options,
            mask,
            q,
            k,
            v,
            out: out.rows(),
            lse: lse.as_ptr(),
            dout: dout.rows(),
            dq: dq.rows_mut(),
            dk: dk.rows_mut(),
            dv: dv.rows_mut(),
            accumulate: false,
            bias,
        };
        backward(&pool, &backward_pass, work.as_mut_ptr());
        assert!(intact(&work), "backward wrote behind its workspace: {shape:?}");
        let d_sinks = self.sink_gradients(&pool, &out, &dout, &lse);
        let [out, dq, dk, dv] = [out, dq, dk, dv].map(|x| x.values());
        Results { out, lse, dq, dk, dv, d_sinks, d_bias }
    }

    /// The gradients of the sinks; zeros without sinks.
    fn sink_gradients(
        &self,
        pool: &Threads,
        out: &StridedTensor,
        dout: &StridedTensor,
        lse: &[f32],
    ) -> Vec<f32> {
        let Shape { q_tokens: rows, heads, head_dim, .. } = self.shape;
        let mut sums = vec![0.0; heads];
        if let Some(sinks) = &self.sinks {
            let [out, dout] = [out.mat(), dout.mat()];
            let lse = Mat { ptr: lse.as_ptr().cast(), elem: Elem::F32, stride: heads };
            let op =
                SinksBackward { rows, heads, head_dim, out, dout, lse, sinks, dsinks: sums.as_mut_ptr() };
            // SAFETY: the buffers have the extents; the instruction set is this processor's.
            unsafe { sinks_backward(Place { threads: pool, isa: Isa::detect() }, &op) }
        }
        sums
    }

    fn rows(mut self, q_tokens: usize, offset: i32) -> Problem {
        let width = self.shape.heads * self.shape.head_dim;
        self.shape.q_tokens = q_tokens;
        self.q.truncate(q_tokens * width);
        self.dout.truncate(q_tokens * width);
        self.pos_q = (offset..offset + q_tokens as i32).collect();
        self.slices = vec![Slice::causal(0..q_tokens, 0..self.shape.k_tokens, None)];
        self
    }

    fn documents(mut self, ends: &[usize], window: Option<usize>) -> Problem {
        self.slices.clear();
        let mut start = 0;
        for &end in ends {
            self.slices.push(Slice::causal(start..end, start..end, window));
            for (at, pos) in (start..end).enumerate() {
                self.pos_q[pos] = at as i32;
                self.pos_k[pos] = at as i32;
            }
            start = end;
        }
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Problem)) -> Problem {
        change(&mut self);
        self
    }
}

/// The kernel families of this processor.
pub fn families() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|&isa| isa <= Isa::detect()).collect()
}

/// |a - b| / |b| over all elements, with a floor against tensors that are zero.
fn distance(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (mut error, mut norm) = (0.0, 1e-12 * b.len() as f64);
    for (&a, &b) in a.iter().zip(b) {
        if b == f64::NEG_INFINITY && a == f32::NEG_INFINITY {
            continue;
        }
        error += (f64::from(a) - b).powi(2);
        norm += b * b;
    }
    (error / norm).sqrt()
}

fn check(name: &str, problem: &Problem) {
    let Reference { out, lse, dq, dk, dv, d_sinks, d_bias } = reference(problem);
    for isa in families() {
        let got = problem.run(isa, 2);
        // bf16: inputs and outputs have 8 bits, as do probabilities before they are multiplied by V.
        let (value, log) = if problem.elem == Elem::F32 { (2e-5, 1e-6) } else { (1.2e-2, 1e-5) };
        let compare = |what: &str, got: &[f32], want: &[f64], limit: f64| {
            let distance = distance(got, want);
            assert!(
                distance <= limit,
                "{name}, {}, {:?}: {what} off by {distance:.2e}",
                isa.name(),
                problem.elem
            );
        };
        compare("out", &got.out, &out, value);
        compare("lse", &got.lse, &lse, log);
        compare("dq", &got.dq, &dq, value);
        compare("dk", &got.dk, &dk, value);
        compare("dv", &got.dv, &dv, value);
        if problem.sinks.is_some() {
            compare("d_sinks", &got.d_sinks, &d_sinks, value);
        }
        if problem.bias.is_some() {
            compare("d_bias", &got.d_bias, &d_bias, value);
        }
    }
}

fn check_both(name: &str, make: impl Fn(Elem) -> Problem) {
    check(name, &make(Elem::F32));
    check(name, &make(Elem::Bf16));
}

#[test]
fn head_sizes_and_groups() {
    for (heads, kv_heads, head_dim) in [
        (2, 2, 32),
        (2, 1, 64),
        (2, 2, 80),
        (3, 1, 96),
        (2, 2, 128),
        (1, 1, 256),
        (2, 1, 72),
        (3, 1, 20),
        (2, 2, 33),
        (2, 1, 1),
    ] {
        check_both(&format!("causal {heads}/{kv_heads} x {head_dim}"), |e| {
            problem(e, 200, heads, kv_heads, head_dim)
        });
    }
    check_both("grouped 8/2", |e| problem(e, 150, 8, 2, 64));
    check_both("one key head for 20", |e| problem(e, 40, 20, 1, 32));
}

#[test]
fn masks() {
    check_both("longer than a tile", |e| problem(e, 700, 1, 1, 64));
    check_both("window", |e| problem(e, 500, 2, 1, 64).with(|p| p.slices[0].lo = -99));
    check_both("packed", |e| problem(e, 400, 2, 1, 64).documents(&[1, 60, 128, 300, 333, 400], None));
    check_both("packed, windowed", |e| problem(e, 400, 2, 2, 64).documents(&[150, 399, 400], Some(40)));
    check_both("bidirectional", |e| {
        problem(e, 200, 2, 1, 64).with(|p| p.slices = vec![Slice::full(0..200, 0..200)])
    });
    check_both("window on both sides", |e| {
        problem(e, 300, 2, 2, 64).with(|p| (p.slices[0].lo, p.slices[0].hi) = (-20, 30))
    });
    check_both("uncovered rows and keys", |e| problem(e, 300, 2, 1, 64).documents(&[130, 170], None));
    check_both("uncovered rows with sinks", |e| {
        problem(e, 300, 4, 2, 64).documents(&[130], None).with(|p| p.sinks = Some(noise(9, 4)))
    });
    check_both("no slice", |e| problem(e, 100, 2, 1, 64).with(|p| p.slices.clear()));
    check_both("two slices for one query", |e| {
        problem(e, 300, 2, 1, 64).with(|p| {
            p.slices = vec![Slice::full(0..300, 0..50), Slice::causal(0..300, 50..300, None)];
        })
    });
    check_both("positions that descend", |e| problem(e, 200, 2, 1, 64).with(|p| p.pos_k.reverse()));
}

#[test]
fn cached_keys() {
    check_both("one query", |e| problem(e, 300, 8, 2, 64).rows(1, 299));
    check_both("five queries in the middle", |e| problem(e, 300, 4, 1, 64).rows(5, 130));
    check_both("a chunk", |e| problem(e, 500, 2, 2, 64).rows(170, 330));
}

#[test]
fn caps_and_sinks() {
    check_both("softcap", |e| problem(e, 200, 2, 1, 64).with(|p| p.options.softcap = 2.0));
    check_both("softcap, large scores", |e| {
        problem(e, 200, 2, 1, 64).with(|p| p.options = Options { scale: 3.0, softcap: 20.0 })
    });
    check_both("sinks", |e| problem(e, 200, 4, 2, 64).with(|p| p.sinks = Some(vec![-3.0, 0.0, 2.0, 30.0])));
    check_both("all together", |e| {
        problem(e, 300, 4, 2, 64).documents(&[77, 300], Some(64)).with(|p| {
            p.options.softcap = 5.0;
            p.sinks = Some(noise(8, 4));
        })
    });
}

#[test]
fn hard_scores() {
    check_both("scores times 30", |e| problem(e, 300, 2, 1, 64).with(|p| p.options.scale *= 30.0));
    for grow in [true, false] {
        check_both("key norms that change", |e| {
            problem(e, 400, 2, 1, 64).with(|p| {
                for (at, x) in p.k.iter_mut().enumerate() {
                    let share = (at / 64) as f32 / 400.0;
                    let norm = 1.0 + 19.0 * if grow { share } else { 1.0 - share };
                    *x = f32::from_bits((*x * norm).to_bits() & 0xffff_0000);
                }
            })
        });
    }
    check_both("all zero", |e| problem(e, 200, 1, 1, 64).with(|p| p.q.fill(0.0)));
}

#[test]
#[should_panic(expected = "head size 520 is not 1 to 512")]
fn a_wrong_head_size_is_named() {
    problem(Elem::F32, 4, 1, 1, 520).run(Isa::Portable, 1);
}
