//! A reference attention library on the simulated device, which computes one pair after another from the memory layout
//! of cases and graphs; and one that only records calls.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use half::bf16;

use crate::Result;
use crate::driver::Stream;
use crate::driver::fake::Fake;
use crate::sdpa::{Attend, Call, Case, uid};

/// A call of attention as seen by the library.
pub struct Seen {
    pub case: Case,
    pub backward: bool,
    pub tensors: Vec<(i64, u64)>,
    pub workspace: (u64, u64),
    pub window: usize,
}

impl Seen {
    /// Address of a tensor.
    pub fn address(&self, number: i64) -> u64 {
        let found = self.tensors.iter().find(|(of, _)| *of == number);
        found.unwrap_or_else(|| panic!("no tensor {number}")).1
    }
}

/// Records calls, and executes them if there is a device.
#[derive(Default)]
pub struct Pretended {
    pub seen: Arc<Mutex<Vec<Seen>>>,
    pub fake: Option<Arc<Fake>>,
}

// SAFETY: reads and writes only what the graphs of a case name, and the workspace.
unsafe impl Attend for Pretended {
    fn takes(&self, _: &Case, _: bool, _: u64) -> bool {
        true
    }
    unsafe fn attend(&self, case: &Case, backward: bool, call: &Call<'_>, stream: Stream) -> Result<()> {
        let workspace = (call.workspace, call.workspace_bytes);
        let (tensors, window) = (call.tensors.to_vec(), call.window);
        let seen = || Seen { case: *case, backward, tensors: tensors.clone(), workspace, window };
        self.seen.lock().unwrap().push(seen());
        if let Some(fake) = &self.fake {
            let (seen, scale) = (seen(), call.scale);
            fake.call(Arc::new(move || Memory { seen: &seen, scale }.attend()), stream);
        }
        Ok(())
    }
}

fn read<T: Copy>(at: u64) -> T {
    let at: *const T = std::ptr::with_exposed_provenance(at as usize);
    // SAFETY: memory of the simulated device, which is host memory set up by a test.
    unsafe { at.read() }
}

fn write<T>(at: u64, value: T) {
    let at: *mut T = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: as above.
    unsafe { at.write(value) }
}

/// Memory and scale of a call.
struct Memory<'a> {
    seen: &'a Seen,
    scale: f32,
}

/// One sequence of a call.
#[derive(Clone, Copy)]
struct Of {
    sequence: u64,
    queries: u64,
    keys: u64,
}

impl Memory<'_> {
    fn attend(&self) {
        let Seen { case, backward, workspace: (at, bytes), .. } = self.seen;
        (0..*bytes).for_each(|byte| write(at + byte, 0xffu8));
        for sequence in 0..case.sequences as u64 {
            let [queries, keys] = if case.packed {
                [uid::Q_LEN, uid::K_LEN]
                    .map(|list| read::<i32>(self.seen.address(list) + 4 * sequence) as u64)
            } else {
                [case.q_tokens as u64, case.k_tokens as u64]
            };
            assert!(queries <= case.q_tokens as u64 && keys <= case.k_tokens as u64);
            assert!(!case.window || case.q_tokens <= case.k_tokens, "NVIDIA's frontend refuses that");
            let of = Of { sequence, queries, keys };
            if *backward { self.backward(of) } else { self.forward(of) }
        }
    }

    /// Elements before a sequence's first row.
    fn start(&self, number: i64, of: Of) -> u64 {
        if self.seen.case.packed {
            read::<i64>(self.seen.address(uid::start_of(number)) + 8 * of.sequence) as u64
        } else {
            0
        }
    }

    /// Address of a head's part of a row.
    fn row(&self, number: i64, of: Of, row: u64, head: u64) -> u64 {
        let (case, at) = (&self.seen.case, self.seen.address(number));
        assert!(at.is_multiple_of(16), "graphs promise that");
        let columns = row * case.strides.of(number) as u64 + head * case.head_dim as u64;
        at + 2 * (self.start(number, of) + columns)
    }

    fn get(&self, number: i64, of: Of, row: u64, head: u64) -> Vec<f64> {
        let at = self.row(number, of, row, head);
        (0..self.seen.case.head_dim as u64)
            .map(|col| f64::from(bf16::from_bits(read(at + 2 * col)).to_f32()))
            .collect()
    }

    fn set(&self, number: i64, of: Of, row: u64, head: u64, values: &[f64]) {
        let at = self.row(number, of, row, head);
        values.iter().zip(0u64..).for_each(|(x, col)| write(at + 2 * col, bf16::from_f64(*x).to_bits()));
    }

    /// Address of the f32 for a query row of a head.
    fn of_row(&self, number: i64, of: Of, row: u64, head: u64) -> u64 {
        let (case, at) = (&self.seen.case, self.seen.address(number));
        assert!(at.is_multiple_of(16), "graphs promise that");
        if case.packed {
            at + 4 * (self.start(uid::LSE, of) + row * case.strides.of(uid::LSE) as u64 + head)
        } else {
            at + 4 * (head * case.q_tokens as u64 + row)
        }
    }

    /// Keys that a row attends to.
    fn keys(&self, of: Of, row: u64) -> std::ops::Range<u64> {
        let Seen { case, window, .. } = self.seen;
        let end = if case.causal { of.keys.min(row + 1) } else { of.keys };
        let start = if case.window { (row + 1).saturating_sub(*window as u64) } else { 0 };
        assert!(start < end, "a row without keys is nothing that one could count on");
        start..end
    }

    fn forward(&self, of: Of) {
        let case = &self.seen.case;
        for head in 0..case.heads as u64 {
            let kv_head = head / case.group() as u64;
            for row in 0..of.queries {
                let q = self.get(uid::Q, of, row, head);
                let keys = self.keys(of, row);
                let score = |key| dot(&q, &self.get(uid::K, of, key, kv_head)) * f64::from(self.scale);
                let scores: Vec<f64> = keys.clone().map(score).collect();
                let total = scores.iter().map(|score| score.exp()).sum::<f64>().ln();
                let mut out = vec![0.0; q.len()];
                for (key, score) in keys.zip(&scores) {
                    add(&mut out, (score - total).exp(), &self.get(uid::V, of, key, kv_head));
                }
                self.set(uid::OUT, of, row, head, &out);
                write(self.of_row(uid::LSE, of, row, head), total as f32);
            }
        }
    }

    fn backward(&self, of: Of) {
        let case = &self.seen.case;
        let zeros = || vec![vec![0.0; case.head_dim as usize]; of.keys as usize];
        for kv_head in 0..case.kv_heads as u64 {
            let [mut dk, mut dv] = [zeros(), zeros()];
            for head in kv_head * case.group() as u64..(kv_head + 1) * case.group() as u64 {
                for row in 0..of.queries {
                    let [q, out, dout] =
                        [uid::Q, uid::OUT, uid::DOUT].map(|number| self.get(number, of, row, head));
                    let total = f64::from(read::<f32>(self.of_row(uid::LSE, of, row, head)));
                    let mut dq = vec![0.0; q.len()];
                    for key in self.keys(of, row) {
                        let [k, v] = [uid::K, uid::V].map(|number| self.get(number, of, key, kv_head));
                        let p = (dot(&q, &k) * f64::from(self.scale) - total).exp();
                        let ds = p * (dot(&dout, &v) - dot(&dout, &out)) * f64::from(self.scale);
                        add(&mut dq, ds, &k);
                        add(&mut dk[key as usize], ds, &q);
                        add(&mut dv[key as usize], p, &dout);
                    }
                    self.set(uid::DQ, of, row, head, &dq);
                    self.spoil(of, row, head);
                }
            }
            for key in 0..of.keys {
                self.set(uid::DK, of, key, kv_head, &dk[key as usize]);
                self.set(uid::DV, of, key, kv_head, &dv[key as usize]);
            }
        }
        self.spoil_full(of);
    }

    /// Overwrites a row's sums and its query's f32 gradient, as an engine may leave anything there.
    fn spoil(&self, of: Of, row: u64, head: u64) {
        let (case, dim) = (&self.seen.case, self.seen.case.head_dim as u64);
        write(self.of_row(uid::SUMS, of, row, head), f32::NAN);
        let elements = if case.packed {
            self.start(uid::DQ, of) + row * case.strides.of(uid::DQ) as u64 + head * dim
        } else {
            (head * case.q_tokens as u64 + row) * dim
        };
        let at = self.seen.address(uid::DQ_WIDE) + 4 * elements;
        (0..dim).for_each(|col| write(at + 4 * col, f32::NAN));
    }

    /// Overwrites the gradients of every query head likewise.
    fn spoil_full(&self, of: Of) {
        let case = &self.seen.case;
        if !case.packed || case.group() == 1 {
            return;
        }
        for (full, number) in [(uid::DK_FULL, uid::DK), (uid::DV_FULL, uid::DV)] {
            let stride = case.strides.of(number) as u64;
            let first = (self.start(number, of)) * case.group() as u64;
            for element in first..first + of.keys * stride * case.group() as u64 {
                write(self.seen.address(full) + 2 * element, 0xffffu16);
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f64], factor: f64, x: &[f64]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
}
