//! The machine over a device that is memory of the host and does its work as late as it may ([`Fake`]).
#![allow(unsafe_code)]

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use fathom_tensor::spill::{Codec, Options, Spill, Stats, Tag};
use fathom_tensor::{
    Attention, AttentionBackward, Category, DType, Device, Extent, Machine, Mask, MatMul, Meta, OpDesc,
    Packed, Profile, Tensor, Usage, gpu,
};

use super::Cuda;
use super::build::Parts;
use crate::Result;
use crate::blas::{Operands, Products, Shape};
use crate::driver::fake::Fake;
use crate::driver::{Driver, Stream};
use crate::programs::tests::Writer;
use crate::sdpa::{Attend, Call, Case, uid};

fn sheet() -> Profile {
    gpu::named("h200").unwrap()
}

pub(super) fn machine(fake: &Arc<Fake>, parts: Parts) -> Arc<Cuda> {
    let compiler = Box::new(Writer(Arc::default(), "1"));
    Arc::new(Cuda::with(fake.clone(), sheet(), compiler, parts).unwrap())
}

fn device(fake: &Arc<Fake>) -> Device {
    Device::new(machine(fake, Parts::default()), 16 << 20)
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|at| at as f32).collect()
}

#[test]
fn what_is_written_is_read_late_and_as_it_was() {
    let fake = Arc::new(Fake::new(64 << 20));
    {
        let device = device(&fake);
        let whole = device.from_f32(6, 10, &values(60), Category::Data);
        let part = whole.view_cols(2..9);
        let early = device.machine.read(&part);
        device.machine.zero(&part);
        let late = device.machine.read(&whole);
        let expected: Vec<f32> =
            (0..6).flat_map(|row| (2..9).map(move |col| (10 * row + col) as f32)).collect();
        let bytes = |list: &[f32]| list.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(early.wait(), bytes(&expected));
        let cleared: Vec<f32> =
            (0..60).map(|at| if (2..9).contains(&(at % 10)) { 0.0 } else { at as f32 }).collect();
        assert_eq!(late.wait(), bytes(&cleared));
        // One that nobody waits for, and one that is larger than a slot.
        drop(device.machine.read(&whole));
        let large = device.from_f32(100, 1000, &values(100_000), Category::Data);
        assert_eq!(device.to_f32(&large), values(100_000));
    }
    assert!(fake.is_clean() && fake.used() == 0);
}

#[test]
fn what_is_written_may_go_at_once_however_large_it_is() {
    let fake = Arc::new(Fake::new(64 << 20));
    let device = device(&fake);
    // More than all slots at once, in rows with gaps that no slot ends with.
    let count = 3 << 20;
    let whole = device.zeros(1 << 10, 3100, DType::F32, Category::Data);
    let part = whole.view_cols(7..7 + 3072);
    let mut bytes: Vec<u8> = values(count).iter().flat_map(|x| x.to_le_bytes()).collect();
    device.machine.write(&part, &bytes);
    bytes.fill(0);
    let found = device.to_f32(&whole);
    let expected = |row: usize, col: usize| match col {
        7..3079 => (3072 * row + col - 7) as f32,
        _ => 0.0,
    };
    assert!(found.iter().enumerate().all(|(at, x)| *x == expected(at / 3100, at % 3100)));
}

#[test]
fn more_reads_than_slots_are_waited_for() {
    let fake = Arc::new(Fake::new(64 << 20));
    let device = device(&fake);
    let numbers = device.from_f32(1, 200, &values(200), Category::Data);
    let reads: Vec<_> = (0..200).map(|at| device.machine.read(&numbers.view_cols(at..at + 1))).collect();
    let found: Vec<f32> = reads.into_iter().map(fathom_tensor::InFlight::wait_f32).collect();
    assert_eq!(found, values(200));
}

#[test]
fn memory_comes_as_the_pool_grows_and_goes_with_it() {
    let fake = Arc::new(Fake::new(256 << 20));
    let cuda = machine(&fake, Parts::default());
    let device = Device::new(cuda.clone(), 200 << 20);
    assert_eq!(fake.used(), 0);
    let a = device.empty(1, 1 << 20, DType::U8, Category::Data);
    let one_step = fake.used();
    assert!((1 << 20..=33 << 20).contains(&one_step));
    drop(a);
    let _again = device.empty(1, 8 << 20, DType::U8, Category::Data);
    assert_eq!(fake.used(), one_step);
    let _more = device.empty(1, 100 << 20, DType::U8, Category::Data);
    let reserved = device.pool.usage().peak_reserved;
    assert!(fake.used() >= reserved && fake.used() <= reserved + (32 << 20));
    assert_eq!(cuda.backed_bytes(), fake.used());
    let another = Device::new(cuda.clone(), 200 << 20);
    let held = another.empty(1, 1 << 20, DType::U8, Category::Data);
    assert!(cuda.backed_bytes() == fake.used() && fake.used() > reserved);
    drop((held, another));
    assert_eq!(cuda.backed_bytes(), fake.used());
}

#[test]
#[should_panic(expected = "out of memory on the device")]
fn a_device_that_is_full_says_so() {
    let fake = Arc::new(Fake::new(8 << 20));
    device(&fake).empty(1, 12 << 20, DType::U8, Category::Data);
}

#[test]
fn tensors_are_filled_and_shared() {
    let fake = Arc::new(Fake::new(64 << 20));
    let device = device(&fake);
    let whole = device.zeros(40, 25, DType::F32, Category::Data);
    let groups: Vec<Vec<Tensor>> = (0..10).map(|at| vec![whole.view_rows(4 * at..4 * at + 4)]).collect();
    device.machine.fill(&groups, &|index, rows| {
        for (at, out) in rows[0].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *out = ((100 * index + at) as f32).to_le_bytes();
        }
    });
    assert_eq!(device.to_f32(&whole), values(1000));
    let (share, reader) = device.machine.share(&whole.view_cols(1..4));
    let thread = std::thread::spawn(move || {
        let mut out = Vec::new();
        reader.read(2..4, 1..3, &mut out).unwrap();
        out
    });
    let bytes = thread.join().unwrap();
    drop(share);
    let found: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(found, [52.0, 53.0, 77.0, 78.0]);
}

#[test]
#[should_panic(expected = "end its share first")]
fn what_is_shared_is_not_written() {
    let fake = Arc::new(Fake::new(64 << 20));
    let device = device(&fake);
    let tensor = device.zeros(2, 3, DType::F32, Category::Params);
    let (_share, _reader) = device.machine.share(&tensor);
    device.machine.zero(&tensor.view_rows(1..2));
}

fn spill_step(machine: Arc<dyn Machine>, options: &Options) -> (Usage, Stats, Vec<f32>) {
    let device = Device::new(machine, 64 << 20);
    let spill = Spill::open(&device, options).unwrap();
    let x = device.from_f32(1000, 130, &values(130_000), Category::Activations);
    let heads = device.zeros(1000, 260, DType::F32, Category::Activations);
    let bytes: Vec<u8> = values(130_000).iter().flat_map(|x| x.to_le_bytes()).collect();
    device.machine.write(&heads.view_cols(130..260), &bytes);
    let tag = |name| Tag { name, layer: 0 };
    let writes = [
        spill.write(x, Codec::AsIs, tag("x")).unwrap(),
        spill.write(heads.view_cols(130..260), Codec::AsIs, tag("heads")).unwrap(),
    ];
    drop(heads);
    let stored = writes.map(|writing| writing.retire().unwrap());
    let mut back = Vec::new();
    for value in &stored {
        let into = device.empty(1000, 130, value.dtype(), Category::Activations);
        back.extend(device.to_f32(&spill.read(value, into).unwrap().retire().unwrap()));
    }
    drop(stored);
    let stats = Stats { stall_s: 0.0, ..spill.stats() };
    (device.pool.usage(), stats, back)
}

#[test]
fn tensors_go_to_disk_and_to_the_host_and_the_plan_knows() {
    let folder = tempfile::tempdir().unwrap();
    for options in [Options::new(folder.path(), 8 << 20), Options::in_memory(8 << 20)] {
        let fake = Arc::new(Fake::new(128 << 20));
        let (usage, stats, back) = spill_step(machine(&fake, Parts::default()), &options);
        let (planned, plan, nothing) = spill_step(Arc::new(Meta::new(sheet())), &options);
        assert_eq!((usage, stats), (planned, plan));
        assert!(nothing.is_empty() && back == [values(130_000), values(130_000)].concat());
        assert!(fake.is_clean());
    }
}

/// Takes even products, and remembers them.
#[derive(Default)]
struct Even(Arc<Mutex<Vec<(Shape, bool)>>>);

// SAFETY: it touches nothing.
unsafe impl Products for Even {
    fn takes(&self, shape: &Shape, operands: &Operands) -> Result<bool> {
        assert!(operands.workspace_bytes >= gpu::MATMUL_SCRATCH);
        Ok(shape.inner.is_multiple_of(2))
    }
    unsafe fn product(&self, shape: &Shape, operands: &Operands, _: Stream) -> Result<()> {
        self.0.lock().unwrap().push((*shape, operands.accumulate));
        Ok(())
    }
}

#[test]
fn products_that_the_library_refuses_are_for_kernels() {
    let fake = Arc::new(Fake::new(128 << 20));
    let seen = Arc::default();
    let parts = Parts { products: Some(Arc::new(Even(Arc::clone(&seen)))), ..Parts::default() };
    let cuda = machine(&fake, parts);
    let device = Device::new(cuda.clone(), 64 << 20);
    for k in [8, 9] {
        let [a, b, c] =
            [[4, k], [k, 6], [4, 6]].map(|[rows, cols]| device.empty(rows, cols, DType::F32, Category::Data));
        let op = MatMul { a: &a, a_trans: false, b: &b, b_trans: false, c: &c, accumulate: true };
        let ws =
            device.empty(1, cuda.profile().workspace(&op.desc()) as usize, DType::U8, Category::Workspace);
        cuda.matmul(&op, &ws);
    }
    cuda.synchronise().unwrap();
    let names: Vec<String> = fake.launched().into_iter().map(|launched| launched.name).collect();
    assert_eq!(names, ["gemm_f32"]);
    let seen = seen.lock().unwrap();
    assert!(seen.len() == 1 && seen[0].1);
}

/// A call of attention as the library saw it.
struct Seen {
    case: Case,
    backward: bool,
    tensors: Vec<(i64, u64)>,
    workspace: (u64, u64),
}

#[derive(Default)]
struct Watch(Arc<Mutex<Vec<Seen>>>);

// SAFETY: it touches nothing.
unsafe impl Attend for Watch {
    fn takes(&self, _: &Case, _: bool, _: u64) -> bool {
        true
    }
    unsafe fn attend(&self, case: &Case, backward: bool, call: &Call<'_>, _: Stream) -> Result<()> {
        let workspace = (call.workspace, call.workspace_bytes);
        let tensors = call.tensors.to_vec();
        self.0.lock().unwrap().push(Seen { case: *case, backward, tensors, workspace });
        Ok(())
    }
}

struct Problem {
    device: Device,
    /// q, k and v beside each other, out, lse.
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Mask,
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
            packed: Some(Packed { ends: Rc::from(ends), window }),
        };
        let (qkv, out) = (empty((HEADS + 2 * KV_HEADS) * DIM, DType::Bf16), empty(HEADS * DIM, DType::Bf16));
        let lse = empty(HEADS, DType::F32);
        Problem { qkv, out, lse, mask, device }
    }

    fn parts(&self, whole: &Tensor) -> [Tensor; 3] {
        let [q, k] = [HEADS * DIM, (HEADS + KV_HEADS) * DIM];
        [whole.view_cols(0..q), whole.view_cols(q..k), whole.view_cols(k..k + KV_HEADS * DIM)]
    }

    /// Runs forward and backward and returns what the library saw of them, and the kernels that ran.
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
        let call = AttentionBackward {
            forward: op,
            dout: &dout,
            dq: &dq,
            dk: &dk,
            dv: &dv,
            dsinks: None,
            accumulate: false,
        };
        self.device.machine.attention_backward(&call, &ws(true));
    }
}

fn watched(budget: u64) -> (Arc<Fake>, Arc<Mutex<Vec<Seen>>>, Device) {
    let fake = Arc::new(Fake::new(8 << 30));
    let seen = Arc::default();
    let parts = Parts { attend: Some(Arc::new(Watch(Arc::clone(&seen)))), ..Parts::default() };
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
        assert!(case.packed && case.causal && case.window == Some(30));
        assert_eq!(case.strides.of(uid::K), problem.qkv.stride() as i64);
    }
    let address = |call: &Seen, number| call.tensors.iter().find(|(n, _)| *n == number).unwrap().1;
    // The lists are on the device once the stream has come there.
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
    // Forward's scratch is gone; that of backward was the last to be written.
    for (number, stride) in [(uid::Q, 512), (uid::OUT, 256), (uid::LSE, 4), (uid::DQ, 256), (uid::DK, 128)] {
        let at = address(backward, uid::start_of(number));
        assert!(at.is_multiple_of(16), "graphs promise that");
        assert_eq!(list(at, 5), [0, 40, 70, 128, 128].map(|row| row * stride), "tensor {number}");
        assert!(number == uid::LSE || backward.case.strides.of(number) == stride);
    }
    assert_eq!(lengths(address(backward, uid::Q_LEN)), [40, 30, 58, 0]);
    // Packed gradients are made in scratch, and copied from there.
    assert_eq!(address(backward, uid::LSE), problem.lse.address());
    let launched: Vec<String> = fake.launched().into_iter().map(|launched| launched.name).collect();
    assert_eq!(launched, ["copy_bytes"; 3]);
    let scratch = gpu::AttentionScratch::of(&OpDesc::Attention {
        q_tokens: 128,
        k_tokens: 128,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        dtype: DType::Bf16,
        slices: 8,
        backward: true,
    });
    assert_eq!(backward.workspace.1, scratch.unwrap().own);
}

#[test]
fn long_gradients_take_some_heads_at_a_time() {
    // Two key heads of 2^20 queries are more than the bound, one is not.
    let tokens = 1 << 20;
    let (fake, seen, device) = watched(7 << 30);
    let problem = Problem::new(device, tokens, &[tokens], None);
    problem.run(0.0);
    fake.synchronise(Stream(1)).unwrap();
    let seen = seen.lock().unwrap();
    let calls: Vec<&Seen> = seen.iter().filter(|call| call.backward).collect();
    assert_eq!((seen.len(), calls.len()), (3, 2));
    let address = |call: &Seen, number| call.tensors.iter().find(|(n, _)| *n == number).unwrap().1;
    for (number, bytes) in [(uid::Q, 2 * 2 * 64), (uid::DK, 2 * 64), (uid::LSE, 0), (uid::SUMS, 0)] {
        assert_eq!(address(calls[1], number) - address(calls[0], number), bytes, "tensor {number}");
    }
    let case = &calls[0].case;
    assert!(!case.packed && case.window.is_none() && (case.heads, case.kv_heads) == (2, 1));
    // The library has logarithms head after head.
    let launched: Vec<String> = fake.launched().into_iter().map(|launched| launched.name).collect();
    assert_eq!(launched, ["transpose"; 3]);
    // The room that packed sequences use for full gradients is the engine's here.
    assert!(calls[0].workspace.1 > 2 * (tokens * 2 * 64 * 2) as u64);
}

#[test]
fn prompts_of_many_lengths_have_few_plans() {
    let (fake, seen, device) = watched(64 << 20);
    let problem = Problem::new(device, 100, &[100], None);
    problem.run(0.0);
    let seen = seen.lock().unwrap();
    let [forward, backward] = &seen[..] else { panic!("{} calls", seen.len()) };
    let told = |call: &Seen| (call.case.packed, call.case.sequences, call.case.q_tokens);
    assert_eq!((told(forward), told(backward)), ((true, 1, 128), (false, 1, 100)));
    let address = |call: &Seen, number| call.tensors.iter().find(|(n, _)| *n == number).unwrap().1;
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
