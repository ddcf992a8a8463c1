//! The library's results, whole or as parts to be merged: compares the simulated device with the CPU.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::{
    Attention, AttentionBackward, Category, DType, Device, Extent, Mask, OpDesc, PackedMask, Slice, Tensor,
};

use super::super::fake_attention::{FakeAttention, RecordedCall};
use crate::driver::fake::Fake;
use crate::machine::build::MachineLibraries;
use crate::machine::tests::machine;

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 16;

/// Queries and a subset of the keys that they attend to.
#[derive(Clone)]
struct Step {
    slices: Vec<Slice>,
    pos_q: Vec<i32>,
    pos_k: Vec<i32>,
    /// Largest number of documents.
    docs: usize,
    /// True if the results are a part of the whole.
    partial: bool,
    /// True if results and the queries' gradient already hold those of other keys.
    goes_on: bool,
    /// True if results and gradients are f32.
    wide: bool,
    /// Number of key heads that scratch has room for.
    kv_heads: usize,
}

impl Step {
    /// A causal step of one document with tokens at these positions.
    fn causal(pos_q: Vec<i32>, pos_k: Vec<i32>, goes_on: bool) -> Step {
        let slices = vec![Slice::causal(0..pos_q.len(), 0..pos_k.len(), None)];
        Step { slices, pos_q, pos_k, docs: 1, partial: true, goes_on, wide: goes_on, kv_heads: KV_HEADS }
    }

    fn mask(&self, device: &Device) -> Mask {
        let row = |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi];
        let mut bytes: Vec<u8> = self.slices.iter().flat_map(row).flat_map(i64::to_le_bytes).collect();
        bytes.resize(self.docs * 48, 0);
        let table = device.empty(self.docs, 6, DType::I64, Category::Data);
        device.machine.write(&table, &bytes);
        let count = device.from_i32(&[self.slices.len() as i32], Category::Data);
        Mask {
            table,
            slices: Extent::UpTo { cap: self.docs, count },
            pos_q: device.from_i32(&self.pos_q, Category::Data),
            pos_k: device.from_i32(&self.pos_k, Category::Data),
            pairs: 0,
            packed: PackedMask::of(&self.slices, &self.pos_q, &self.pos_k),
            partial: self.partial,
            pages: None,
        }
    }

    fn scratch(&self, device: &Device, op: &OpDesc) -> Tensor {
        let (profile, mut op) = (device.machine.profile(), *op);
        if let (OpDesc::Attention(of), true) = (&mut op, profile.name == "h200") {
            (of.heads, of.kv_heads) = (of.heads / of.kv_heads * self.kv_heads, self.kv_heads);
        }
        let bytes = profile.workspace(&op).max(1) as usize;
        device.empty(1, bytes, DType::U8, Category::Workspace)
    }

    /// Runs the step and returns results, their logarithms, and three gradients.
    fn run(&self, device: &Device) -> Vec<Vec<f32>> {
        let (tokens, keys) = (self.pos_q.len(), self.pos_k.len());
        let wide = if self.wide { DType::F32 } else { DType::Bf16 };
        let random = |seed, rows: usize, cols: usize, dtype| {
            let wide = device.from_f32(rows, cols, &numbers(seed, rows * cols), Category::Data);
            let narrow = device.empty(rows, cols, dtype, Category::Data);
            device.machine.copy(&wide, &narrow);
            narrow
        };
        let qkv = random(1, tokens, (HEADS + 1) * DIM, DType::Bf16);
        let q = qkv.view_cols(0..HEADS * DIM);
        let [k, v] = [2, 3].map(|seed| random(seed, keys, KV_HEADS * DIM, DType::Bf16));
        let out = random(4, tokens, HEADS * DIM, wide);
        let lse = random(5, tokens, HEADS, DType::F32);
        let mask = self.mask(device);
        let plain = Attention::plain([&q, &k, &v], [&out, &lse], &mask, DIM);
        let op = Attention { scale: 0.3, resume: self.goes_on, ..plain };
        device.machine.attention(&op, &self.scratch(device, &op.desc(false)));
        let stored = device.empty(tokens, HEADS * DIM, DType::Bf16, Category::Data);
        device.machine.copy(&out, &stored);
        let dout = random(6, tokens, HEADS * DIM, DType::Bf16);
        let dq = random(7, tokens, HEADS * DIM, wide);
        let [dk, dv] = [8, 9].map(|seed| random(seed, keys, KV_HEADS * DIM, wide));
        let call = AttentionBackward {
            forward: Attention { out: &stored, resume: false, ..op },
            dout: &dout,
            dq: &dq,
            dk: &dk,
            dv: &dv,
            accumulate: self.goes_on,
        };
        device.machine.attention_backward(&call, &self.scratch(device, &op.desc(true)));
        [&out, &lse, &dq, &dk, &dv].map(|tensor| device.to_f32(tensor)).to_vec()
    }
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Checks that the library handles all of a step with the CPU's results; returns its calls, forward and backward.
#[track_caller]
fn check(what: &str, step: &Step) -> [Vec<RecordedCall>; 2] {
    let fake = Arc::new(Fake::new(256 << 20));
    let library = FakeAttention { fake: Some(fake.clone()), ..FakeAttention::default() };
    let seen = library.seen.clone();
    let parts = MachineLibraries { attend: Some(Arc::new(library)), ..MachineLibraries::default() };
    let device = Device::new(machine(&fake, parts), 64 << 20);
    let found = step.run(&device);
    let expected = step.run(&Device::new(Arc::new(Cpu::new(1, None)), 64 << 20));
    for ((name, found), expected) in ["out", "lse", "dq", "dk", "dv"].iter().zip(&found).zip(&expected) {
        let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let near = (found - expected).abs() <= 1e-2 * most;
            assert!(near, "{what}: {name} at {at}: {found}, not {expected}, of {most}");
        }
    }
    let kernels = ["copy", "copy_bytes", "add", "transpose", "attention_join"];
    for launched in fake.launched() {
        assert!(kernels.contains(&launched.name.as_str()), "{what}: {launched:?}");
    }
    drop(device);
    let mut calls = std::mem::take(&mut *seen.lock().unwrap());
    let backward = calls.extract_if(.., |call| call.backward).collect();
    [calls, backward]
}

/// A rank's tokens in zigzag order, two chunks each.
fn zigzag(rank: i32, ranks: i32, chunk: i32) -> Vec<i32> {
    let tokens = |at: i32| at * chunk..(at + 1) * chunk;
    tokens(rank).chain(tokens(2 * ranks - 1 - rank)).collect()
}

fn sizes(calls: &[RecordedCall]) -> Vec<(i64, i64, bool)> {
    calls.iter().map(|call| (call.case.q_tokens, call.case.k_tokens, call.case.causal)).collect()
}

#[test]
fn steps_of_a_ring_are_one_call_each() {
    let of = |rank| zigzag(rank, 4, 8);
    for (from, goes_on, expected) in
        [(1, false, (16, 16, true)), (0, true, (16, 8, false)), (3, true, (8, 16, false))]
    {
        let calls = check("ring", &Step::causal(of(1), of(from), goes_on));
        assert_eq!(calls.map(|calls| sizes(&calls)), [[expected], [expected]], "keys of {from}");
    }
    // The first step of a ring: f32 results, none before.
    let own = Step { wide: true, ..Step::causal(of(1), of(1), false) };
    check("own keys first", &own);
}

#[test]
fn gathered_keys_are_squares_and_what_is_before_them() {
    let all: Vec<i32> = (0..64).collect();
    let [forward, backward] = check("gathered", &Step::causal(zigzag(1, 4, 8), all, false));
    let expected = [(8, 8, true), (8, 8, true), (16, 8, false), (8, 40, false)];
    assert_eq!((sizes(&forward), sizes(&backward)), (expected.to_vec(), expected.to_vec()));
}

#[test]
fn documents_of_ranks_are_packed_sequences() {
    let stream = [0..20, 20..44, 44..64];
    let part = |rank| zigzag(rank, 4, 8);
    let rows = |positions: &[i32], doc: &std::ops::Range<i32>| {
        positions.partition_point(|at| *at < doc.start)..positions.partition_point(|at| *at < doc.end)
    };
    let step = |q: Vec<i32>, k: Vec<i32>, goes_on| {
        let slice = |doc| Slice::causal(rows(&q, doc), rows(&k, doc), None);
        let slices = stream.iter().map(slice).filter(|s| s.q_start < s.q_end && s.k_start < s.k_end);
        Step { slices: slices.collect(), docs: 4, ..Step::causal(q, k, goes_on) }
    };
    for (from, goes_on) in [(2, false), (0, true), (1, true), (3, true)] {
        let [forward, backward] = check("documents", &step(part(2), part(from), goes_on));
        assert!((forward.len(), backward.len()) == (1, 1) && forward[0].case.packed);
        assert_eq!(forward[0].case.causal, from == 2);
    }
    let [forward, _] = check("gathered documents", &step(part(2), (0..64).collect(), false));
    assert!(forward.iter().all(|call| call.case.packed && call.case.k_tokens == 64));
    assert!(forward.len() > 1 && forward[0].case.causal);
    // Keys that some query attends to, and no others.
    check("some keys", &step(part(2), (22..30).chain(33..38).collect(), true));
    // Ranks take small chunks in turns: each document has several groups of keys, and documents share layers.
    let turn = |of: i32| (0..64).filter(|at| at / 4 % 2 == of).collect::<Vec<i32>>();
    let [forward, backward] = check("turns", &step(turn(1), turn(0), true));
    assert!(forward.len() == backward.len() && (2..=4).contains(&forward.len()));
    assert!(forward[0].case.sequences == 4 && forward.iter().all(|call| !call.case.causal));
}

/// A causal step within a window, with documents that end at `ends`.
fn windowed(window: usize, ends: &[i32], q: Vec<i32>, k: Vec<i32>, goes_on: bool) -> Step {
    let rows = |positions: &[i32], doc: &std::ops::Range<i32>| {
        positions.partition_point(|at| *at < doc.start)..positions.partition_point(|at| *at < doc.end)
    };
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let slices = starts
        .zip(ends)
        .map(|(start, end)| start..*end)
        .map(|doc| Slice::causal(rows(&q, &doc), rows(&k, &doc), Some(window)))
        .filter(|slice| slice.q_start < slice.q_end && slice.k_start < slice.k_end);
    Step { slices: slices.collect(), ..Step::causal(q, k, goes_on) }
}

#[test]
fn windows_reach_keys_of_other_ranks() {
    let of = |rank| zigzag(rank, 4, 8);
    let shapes = |calls: &[RecordedCall]| -> Vec<(i64, i64, bool, usize)> {
        calls
            .iter()
            .map(|call| (call.case.q_tokens, call.case.k_tokens, call.case.causal, call.window))
            .collect()
    };
    // Windows shorter than a chunk, longer, and longer than two; rank 3's chunks are adjacent.
    for (window, rank, from, expected) in [
        (5, 1, 1, &[(8, 8, true, 5), (8, 8, true, 5)][..]),
        (5, 1, 0, &[(4, 4, false, 1)]),
        (5, 1, 2, &[(4, 4, false, 1)]),
        (5, 1, 3, &[]),
        (12, 1, 0, &[(8, 8, false, 4)]),
        (12, 2, 3, &[(8, 11, false, 1)]),
        (12, 3, 2, &[(3, 8, false, 0), (8, 8, false, 1)]),
        (20, 1, 3, &[(8, 11, false, 1)]),
        (20, 3, 2, &[(8, 8, false, 0), (8, 8, false, 4)]),
    ] {
        let goes_on = rank != from;
        let step = windowed(window, &[64], of(rank), of(from), goes_on);
        let [forward, backward] = check("window", &step);
        assert_eq!(shapes(&forward), expected, "{window} tokens, {rank} to {from}");
        assert_eq!(shapes(&backward), expected, "{window} tokens, {rank} to {from}");
        let packed = check("packed window", &Step { docs: 4, ..step });
        assert!(packed.iter().flatten().all(|call| call.case.packed));
    }
    let all: Vec<i32> = (0..64).collect();
    let [forward, _] = check("gathered window", &windowed(12, &[64], of(1), all, false));
    let left = (8, 11, false, 1);
    assert_eq!(shapes(&forward), [(8, 8, true, 12), (8, 8, true, 12), (8, 8, false, 4), left]);
}

#[test]
fn documents_within_windows_are_packed_sequences() {
    let ends = [20, 44, 64];
    let part = |rank| zigzag(rank, 4, 8);
    for window in [2, 3, 9, 14] {
        for from in 0..4 {
            let step = windowed(window, &ends, part(2), part(from), from != 2);
            for kv_heads in [1, KV_HEADS] {
                check("documents", &Step { docs: 4, kv_heads, ..step.clone() });
            }
        }
        let gathered = windowed(window, &ends, part(2), (0..64).collect(), false);
        check("gathered documents", &Step { docs: 4, ..gathered });
    }
    // Chunks in turns, as ranks have them under windows: one call for all sequences of a kind.
    let turn = |of: i32| (0..64).filter(|at| at / 4 % 2 == of).collect::<Vec<i32>>();
    let step = Step { docs: 8, ..windowed(6, &[64], turn(1), turn(0), true) };
    let [forward, backward] = check("turns", &step);
    let shapes = |calls: &[RecordedCall]| -> Vec<(i64, bool, usize)> {
        calls.iter().map(|call| (call.case.sequences, call.case.window, call.window)).collect()
    };
    assert_eq!(shapes(&forward), [(8, true, 2)]);
    assert_eq!(shapes(&backward), [(8, true, 2)]);
    let own = Step { docs: 8, wide: true, ..windowed(5, &[64], turn(1), turn(1), false) };
    assert_eq!(check("own turns", &own).map(|calls| calls.len()), [1, 1]);
}

#[test]
fn scratch_of_few_heads_is_enough() {
    let own = Step::causal(zigzag(0, 2, 8), zigzag(0, 2, 8), false);
    for docs in [1, 4] {
        let step = Step { kv_heads: 1, docs, ..own.clone() };
        let [forward, backward] = check("groups", &step);
        let heads = |calls: &[RecordedCall]| calls.iter().map(|call| call.case.kv_heads).collect::<Vec<_>>();
        assert_eq!((heads(&forward), heads(&backward)), (vec![1, 1], vec![1, 1]));
    }
}

#[test]
fn rows_without_partners_keep_what_they_hold_or_are_cleared() {
    let (q, k): (Vec<i32>, Vec<i32>) = ((0..32).collect(), (16..48).collect());
    for docs in [1, 3] {
        // The first queries see no key and no query sees the last keys, nor those of another document.
        check("ends", &Step { docs, ..Step::causal(q.clone(), k.clone(), true) });
        let slices = vec![Slice::causal(20..28, 2..20, None)];
        check("middle", &Step { docs, slices, ..Step::causal(q.clone(), k.clone(), true) });
        let none = Step { docs, slices: Vec::new(), ..Step::causal(q.clone(), k.clone(), true) };
        let calls = check("nothing", &none);
        assert!(calls.iter().all(Vec::is_empty));
    }
}

#[test]
fn documents_of_one_rank_are_whole() {
    let tokens: Vec<i32> = (0..96).collect();
    let of = |ends: &[usize], window, docs| {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let slice = |(start, end): (usize, &usize)| Slice::causal(start..*end, start..*end, window);
        let slices: Vec<Slice> = starts.zip(ends).map(slice).collect();
        Step { slices, docs, partial: false, ..Step::causal(tokens.clone(), tokens.clone(), false) }
    };
    for (step, expected) in [
        // Forward lengths are rounded to a few values; backward ones too if there may be several documents.
        (of(&[96], None, 1), [(1, 128, true), (1, 96, false)]),
        (of(&[96], None, 4), [(1, 128, true), (1, 128, true)]),
        (of(&[96], Some(10), 1), [(1, 128, true), (1, 96, false)]),
        (of(&[20, 21, 96], Some(10), 4), [(4, 128, true), (4, 128, true)]),
        (Step { kv_heads: 1, ..of(&[50, 96], None, 2) }, [(2, 128, true), (2, 128, true)]),
    ] {
        let calls = check("whole", &step);
        let shapes = |seen: &RecordedCall| (seen.case.sequences, seen.case.q_tokens, seen.case.packed);
        assert_eq!(calls.each_ref().map(|calls| shapes(&calls[0])), expected, "{:?}", step.slices);
        let window = if step.slices[0].lo > -100 { 10 } else { 0 };
        assert!(calls.iter().flatten().all(|call| (call.case.window, call.window) == (window > 0, window)));
        assert_eq!(calls[1].len(), KV_HEADS / step.kv_heads);
    }
}
