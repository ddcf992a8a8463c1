//! Checks the arguments that the library gets, and the placement of its results.
#![allow(unsafe_code)]

mod parts;

use std::sync::{Arc, Mutex};

use fathom_tensor::{
    Attention, AttentionBackward, AttentionSizes, Band, Category, DType, Device, Extent, Mask, OpDesc,
    PackedMask, Sequence, Tensor, gpu,
};

use super::call::{rounded, spanned};
use super::fake_attention::{FakeAttention, RecordedCall};
use crate::driver::fake::Fake;
use crate::driver::{Driver, Stream};
use crate::machine::build::MachineLibraries;
use crate::machine::tests::machine;
use crate::sdpa::uid;

struct Problem {
    device: Device,
    /// q, k and v adjacent in one tensor, out, lse.
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Mask,
}

/// Consecutive documents.
fn documents(ends: &[usize], window: Option<usize>) -> PackedMask {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let document =
        |(start, end): (usize, &usize)| Sequence { q: start..*end, k: start..*end, band: Band::Causal };
    PackedMask { sequences: starts.zip(ends).map(document).collect(), window }
}

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;

impl Problem {
    fn new(device: Device, tokens: usize, ends: &[usize], window: Option<usize>) -> Problem {
        let empty = |cols, dtype| device.empty(tokens, cols, dtype, Category::Data);
        let positions = device.empty(1, tokens, DType::I32, Category::Data);
        let mask = Mask {
            table: device.empty(8, 6, DType::I64, Category::Data),
            slices: Extent::Fixed(if ends.len() == 1 { 1 } else { 8 }),
            pos_q: positions.clone(),
            pos_k: positions,
            pairs: 0,
            packed: Some(documents(ends, window)),
            partial: false,
            pages: None,
        };
        let (qkv, out) = (empty((HEADS + 2 * KV_HEADS) * DIM, DType::Bf16), empty(HEADS * DIM, DType::Bf16));
        let lse = empty(HEADS, DType::F32);
        Problem { qkv, out, lse, mask, device }
    }

    fn parts(&self, whole: &Tensor) -> [Tensor; 3] {
        let [q, k] = [HEADS * DIM, (HEADS + KV_HEADS) * DIM];
        [whole.view_cols(0..q), whole.view_cols(q..k), whole.view_cols(k..k + KV_HEADS * DIM)]
    }

    /// Runs forward and backward and returns the library's calls and the kernels that ran.
    fn run(&self, softcap: f32) {
        let [q, k, v] = self.parts(&self.qkv);
        let op = Attention {
            q: &q,
            k: &k,
            v: &v,
            out: &self.out,
            lse: &self.lse,
            mask: &self.mask,
            head_dim: DIM,
            scale: 0.125,
            softcap,
            sinks: None,
            bias: None,
            resume: false,
        };
        let ws = |backward| {
            let bytes = self.device.machine.profile().workspace(&op.desc(backward));
            self.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
        };
        self.device.machine.attention(&op, &ws(false));
        let [dqkv, dout] = [&self.qkv, &self.out]
            .map(|like| self.device.empty(like.rows(), like.cols(), DType::Bf16, Category::Data));
        let [dq, dk, dv] = self.parts(&dqkv);
        let call =
            AttentionBackward { forward: op, dout: &dout, dq: &dq, dk: &dk, dv: &dv, accumulate: false };
        self.device.machine.attention_backward(&call, &ws(true));
    }
}

fn watched(budget: u64) -> (Arc<Fake>, Arc<Mutex<Vec<RecordedCall>>>, Device) {
    let fake = Arc::new(Fake::new(8 << 30));
    let seen = Arc::default();
    let library = FakeAttention { seen: Arc::clone(&seen), fake: None };
    let parts = MachineLibraries { attend: Some(Arc::new(library)), ..MachineLibraries::default() };
    let device = Device::new(machine(&fake, parts), budget);
    (fake, seen, device)
}

#[test]
fn attention_of_packed_documents_tells_where_they_lie() {
    let (fake, seen, device) = watched(64 << 20);
    let problem = Problem::new(device, 128, &[40, 70, 128], Some(30));
    problem.run(0.0);
    let seen = seen.lock().unwrap();
    let [forward, backward] = &seen[..] else { panic!("{} calls", seen.len()) };
    assert!(!forward.backward && backward.backward);
    for call in [forward, backward] {
        let case = &call.case;
        assert_eq!((case.sequences, case.heads, case.kv_heads), (4, 4, 2));
        assert!(case.packed && case.causal && case.window && call.window == 30);
        assert_eq!(case.strides.of(uid::K), problem.qkv.stride() as i64);
    }
    let address = RecordedCall::address;
    // The lists are on the device once the stream has executed their upload.
    fake.synchronise(Stream(1)).unwrap();
    let list = |at: u64, count: usize| -> Vec<i64> {
        let start: *const i64 = std::ptr::with_exposed_provenance(at as usize);
        // SAFETY: memory of the fake device, which is memory of the host.
        unsafe { std::slice::from_raw_parts(start, count) }.to_vec()
    };
    let lengths = |at: u64| -> Vec<i32> {
        let start: *const i32 = std::ptr::with_exposed_provenance(at as usize);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(start, 4) }.to_vec()
    };
    // The forward pass's scratch has been overwritten by that of the backward pass.
    for (number, stride) in [(uid::Q, 512), (uid::OUT, 256), (uid::LSE, 4), (uid::DQ, 256), (uid::DK, 128)] {
        let at = address(backward, uid::start_of(number));
        assert!(at.is_multiple_of(16), "graphs promise that");
        assert_eq!(list(at, 5), [0, 40, 70, 128, 128].map(|row| row * stride), "tensor {number}");
        assert!(number == uid::LSE || backward.case.strides.of(number) == stride);
    }
    assert_eq!(lengths(address(backward, uid::Q_LEN)), [40, 30, 58, 0]);
    // Packed gradients are written to scratch and copied from there.
    assert_eq!(address(backward, uid::LSE), problem.lse.address());
    let launched: Vec<String> = fake.launched().into_iter().map(|launched| launched.name).collect();
    assert_eq!(launched, ["copy_bytes"; 3]);
    let scratch = gpu::AttentionScratch::of(&OpDesc::Attention(AttentionSizes {
        q_tokens: 128,
        k_tokens: 128,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        dtype: DType::Bf16,
        slices: 8,
        partial: false,
        span: 0,
        backward: true,
    }));
    assert_eq!(backward.workspace.1, scratch.unwrap().own);
}

#[test]
fn long_gradients_take_some_heads_at_a_time() {
    // Two key heads of 2^20 queries exceed the bound, one does not.
    let tokens = 1 << 20;
    let (fake, seen, device) = watched(7 << 30);
    let problem = Problem::new(device, tokens, &[tokens], None);
    problem.run(0.0);
    fake.synchronise(Stream(1)).unwrap();
    let seen = seen.lock().unwrap();
    let calls: Vec<&RecordedCall> = seen.iter().filter(|call| call.backward).collect();
    assert_eq!((seen.len(), calls.len()), (3, 2));
    let address = RecordedCall::address;
    for (number, bytes) in [(uid::Q, 2 * 2 * 64), (uid::DK, 2 * 64), (uid::LSE, 0), (uid::SUMS, 0)] {
        assert_eq!(address(calls[1], number) - address(calls[0], number), bytes, "tensor {number}");
    }
    let case = &calls[0].case;
    assert!(!case.packed && !case.window && (case.heads, case.kv_heads) == (2, 1));
    // The library stores logarithms head after head.
    let launched: Vec<String> = fake.launched().into_iter().map(|launched| launched.name).collect();
    assert_eq!(launched, ["transpose"; 3]);
    // The room that packed sequences use for full gradients belongs to the engine here.
    assert!(calls[0].workspace.1 > 2 * (tokens * 2 * 64 * 2) as u64);
}

#[test]
fn prompts_of_many_lengths_have_few_plans() {
    let (fake, seen, device) = watched(64 << 20);
    let problem = Problem::new(device, 100, &[100], None);
    problem.run(0.0);
    let seen = seen.lock().unwrap();
    let [forward, backward] = &seen[..] else { panic!("{} calls", seen.len()) };
    let shape = |call: &RecordedCall| (call.case.packed, call.case.sequences, call.case.q_tokens);
    assert_eq!((shape(forward), shape(backward)), ((true, 1, 128), (false, 1, 100)));
    let address = RecordedCall::address;
    assert_eq!(address(forward, uid::LSE), problem.lse.address());
    assert_ne!(address(backward, uid::LSE), problem.lse.address());
    drop(fake);
}

#[test]
fn what_the_library_cannot_say_is_for_kernels() {
    let (fake, seen, device) = watched(64 << 20);
    let machine = device.machine.clone();
    let mut problem = Problem::new(device, 128, &[128], None);
    problem.run(30.0);
    problem.mask.packed = None;
    problem.run(0.0);
    assert!(seen.lock().unwrap().is_empty());
    drop((problem, machine));
    let names: Vec<String> = fake.launched().into_iter().map(|launched| launched.name).collect();
    assert!(
        names.len() >= 6
            && names.iter().all(|name| name.starts_with("attention") || name.starts_with("flash")),
        "{names:?}"
    );
}

#[test]
fn few_lengths_of_one_document_have_plans() {
    for (tokens, expected) in [
        (1, Some(128)),
        (100, Some(128)),
        (128, None),
        (300, Some(512)),
        (1024, None),
        (3072, None),
        (3073, Some(4096)),
        (8191, Some(8192)),
        (8193, None),
    ] {
        assert_eq!(rounded(tokens), expected, "{tokens} tokens");
    }
    let plans: std::collections::BTreeSet<usize> = (1..8192).map(|at| rounded(at).unwrap_or(at)).collect();
    assert_eq!(plans.len(), 11);
    for (longest, expected) in
        [(1, 128), (129, 256), (8192, 8192), (8193, 10_240), (16_384, 16_384), (100_000, 114_688)]
    {
        assert_eq!(spanned(longest), expected, "{longest} tokens at most");
    }
}
