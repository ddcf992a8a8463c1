//! The machine on a device that is host memory and does its work as late as possible ([`Fake`]).
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use fathom_tensor::spill::{Codec, Options, Spill, Stats, Tag};
use fathom_tensor::{
    Category, DType, Device, Machine, MatMul, Meta, OutOfMemory, PoolUsage, Profile, Tensor, gpu,
};

use super::Cuda;
use super::build::MachineLibraries;
use crate::Result;
use crate::blas::{Operands, Products, Shape};
use crate::driver::Stream;
use crate::driver::fake::Fake;
use crate::programs::tests::Writer;

fn sheet() -> Profile {
    gpu::named("h200").unwrap()
}

pub(super) fn machine(fake: &Arc<Fake>, parts: MachineLibraries) -> Arc<Cuda> {
    let compiler = Box::new(Writer(Arc::default(), "1"));
    Arc::new(Cuda::with(fake.clone(), sheet(), compiler, parts).unwrap())
}

fn device(fake: &Arc<Fake>) -> Device {
    Device::new(machine(fake, MachineLibraries::default()), 16 << 20)
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
        // One read that is not waited for, and one larger than a slot.
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
    // More than all slots together, with gaps between rows and row ends inside slots.
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
    let cuda = machine(&fake, MachineLibraries::default());
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
fn a_device_that_is_full_says_so_and_goes_on() {
    let fake = Arc::new(Fake::new(8 << 20));
    let device = device(&fake);
    let ask = |bytes| device.empty(1, bytes, DType::U8, Category::Data);
    let refused = catch_unwind(AssertUnwindSafe(|| ask(12 << 20))).err().unwrap();
    let said = refused.downcast::<OutOfMemory>().unwrap().to_string();
    assert!(said.starts_with("out of memory: the device's pool has 0 bytes and asks for 12582912"), "{said}");
    // A failed reservation is not taken for backed memory.
    let _held = ask(1 << 20);
    assert!((1 << 20..=8 << 20).contains(&fake.used()));
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

fn spill_step(machine: Arc<dyn Machine>, options: &Options) -> (PoolUsage, Stats, Vec<f32>) {
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
        let (usage, stats, back) = spill_step(machine(&fake, MachineLibraries::default()), &options);
        let (planned, plan, nothing) = spill_step(Arc::new(Meta::new(sheet())), &options);
        assert_eq!((usage, stats), (planned, plan));
        assert!(nothing.is_empty() && back == [values(130_000), values(130_000)].concat());
        assert!(fake.is_clean());
    }
}

/// Supports even sizes, and records the products.
#[derive(Default)]
struct Even(Arc<Mutex<Vec<(Shape, bool)>>>);

// SAFETY: accesses no memory.
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
    let parts =
        MachineLibraries { products: Some(Arc::new(Even(Arc::clone(&seen)))), ..MachineLibraries::default() };
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
