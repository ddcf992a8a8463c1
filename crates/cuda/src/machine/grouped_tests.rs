//! Selection of products by expert for a grouped library, and their description to it.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use fathom_tensor::gpu::{GroupedScratch, MATMUL_SCRATCH};
use fathom_tensor::{Category, DType, Device, GroupedMatMul, GroupedWeight, Machine, OpDesc, Tensor};

use super::Cuda;
use super::build::MachineLibraries;
use super::tests::machine;
use crate::Result;
use crate::blas::{Element, GroupOperands, GroupedProducts, Groups};
use crate::driver::Stream;
use crate::driver::fake::Fake;

type Seen = Arc<Mutex<Vec<(Groups, GroupOperands)>>>;

/// Supports groups of less than 100 columns, and records them.
struct Library(Seen);

// SAFETY: accesses no memory.
unsafe impl GroupedProducts for Library {
    fn takes(&self, groups: &Groups, operands: &GroupOperands) -> Result<bool> {
        assert_eq!(operands.workspace_bytes, MATMUL_SCRATCH);
        Ok(groups.likely[0] < 100)
    }
    unsafe fn product(&self, groups: &Groups, operands: &GroupOperands, _: Stream) -> Result<()> {
        self.0.lock().unwrap().push((*groups, *operands));
        Ok(())
    }
}

const TOKENS: usize = 40;
const SLOTS: usize = 2;
const EXPERTS: usize = 5;

/// A machine with such a library, and the calls that it saw.
struct Bed {
    fake: Arc<Fake>,
    cuda: Arc<Cuda>,
    device: Device,
    seen: Seen,
}

impl Bed {
    fn new(grouped: std::result::Result<(), String>) -> Bed {
        let (fake, seen) = (Arc::new(Fake::new(256 << 20)), Seen::default());
        let library: Arc<dyn GroupedProducts> = Arc::new(Library(Arc::clone(&seen)));
        let cuda = machine(
            &fake,
            MachineLibraries { grouped: grouped.map(|()| library), ..MachineLibraries::default() },
        );
        let device = Device::new(cuda.clone(), 192 << 20);
        Bed { fake, cuda, device, seen }
    }

    fn empty(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        self.device.empty(rows, cols, dtype, Category::Data)
    }

    /// Scratch with room for this many rows at a time; all that is charged if `None`.
    fn scratch(&self, op: &OpDesc, rows: Option<usize>) -> Tensor {
        let parted = |rows| GroupedScratch { rows, ..GroupedScratch::of(op).unwrap() }.bytes();
        let bytes = rows.map_or_else(|| self.cuda.profile().workspace(op), parted);
        self.empty(1, bytes as usize, DType::U8)
    }

    fn forward(&self, [inner, out]: [usize; 2], dtype: DType, rows: Option<usize>) {
        let a = self.empty(TOKENS, inner, dtype);
        let weights = self.empty(EXPERTS * out, inner, dtype);
        let (index, c) = (self.empty(TOKENS, SLOTS, DType::I32), self.empty(TOKENS, SLOTS * out, dtype));
        let op =
            GroupedMatMul { a: &a, weights: &weights, experts: EXPERTS, trans: true, index: &index, c: &c };
        self.cuda.grouped_matmul(&op, &self.scratch(&op.desc(), rows));
    }

    fn gradient(&self, rows: Option<usize>) {
        let [a, b] = [48, 64].map(|cols| self.empty(TOKENS, SLOTS * cols, DType::F16));
        let (index, c) = (self.empty(TOKENS, SLOTS, DType::I32), self.empty(EXPERTS * 48, 64, DType::F32));
        let op = GroupedWeight { a: &a, b: &b, index: &index, experts: EXPERTS, c: &c };
        self.cuda.grouped_weight(&op, &self.scratch(&op.desc(), rows));
    }

    /// Kernels launched since the last call.
    fn kernels(&self, before: &mut usize) -> Vec<String> {
        self.cuda.synchronise().unwrap();
        let all = self.fake.launched();
        let new = all[*before..].iter().map(|launched| launched.name.clone()).collect();
        *before = all.len();
        new
    }
}

const SORT: [&str; 4] = ["expert_counts", "expert_offsets", "set_slots", "expert_order"];

#[test]
fn groups_are_gathered_multiplied_and_sent_back_in_parts() {
    let bed = Bed::new(Ok(()));
    let mut before = 0;
    bed.forward([64, 32], DType::Bf16, None);
    let part = ["gather_slots", "group_tables", "scatter_slots"];
    assert_eq!(bed.kernels(&mut before), [&SORT[..], &["zero_empty"], &part].concat());
    {
        let seen = bed.seen.lock().unwrap();
        let (groups, operands) = &seen[0];
        assert_eq!((groups.count, groups.input, groups.output), (5, Element::Bf16, Element::Bf16));
        assert!(groups.first_trans && !groups.second_trans);
        // 80 slots plus padding of five lists, divided by five.
        assert_eq!(groups.likely, [32, 32, 64]);
        let tables = [operands.pointers, operands.sizes, operands.strides].concat();
        assert!(tables.iter().all(|at| at.is_multiple_of(16)));
        assert!(tables.windows(2).all(|pair| pair[0] + 20 <= pair[1]));
    }
    // 80 slots plus at most seven to pad each list are 115 entries: three parts of 48.
    bed.gradient(Some(48));
    let part = ["gather_slots", "gather_slots", "group_tables"];
    assert_eq!(bed.kernels(&mut before), [&SORT[..], &part, &part, &part].concat());
    let seen = bed.seen.lock().unwrap();
    let (groups, operands) = &seen[1];
    assert_eq!((groups.input, groups.output, groups.likely), (Element::F16, Element::F32, [64, 48, 32]));
    assert!(!groups.first_trans && groups.second_trans);
    assert!(seen.len() == 4 && seen[3] == (*groups, *operands));
    let calls = bed.cuda.grouped_calls();
    assert_eq!((calls.library, calls.kernels), (2, 0));
}

#[test]
fn what_groups_do_not_take_is_for_kernels() {
    let bed = Bed::new(Ok(()));
    let mut before = 0;
    let own = ["expert_counts", "expert_offsets", "expert_order", "zero_empty"];
    for (sizes, dtype, kernel, said) in [
        ([64, 32], DType::F32, "grouped_f32", ""),
        ([60, 32], DType::Bf16, "grouped_bf16", "groups take no operands of grouped matmul 60 x 32"),
        ([64, 104], DType::F16, "grouped_f16", "cuBLASLt has no groups for grouped matmul 64 x 104"),
    ] {
        for _ in 0..2 {
            bed.forward(sizes, dtype, None);
            assert_eq!(bed.kernels(&mut before), [&own[..], &[kernel]].concat());
        }
        let lines = bed.cuda.refusals();
        assert_eq!(lines.iter().filter(|line| line.starts_with(said)).count(), lines.len().min(1));
    }
    assert!(bed.seen.lock().unwrap().is_empty() && bed.cuda.refusals().len() == 2);
    let calls = bed.cuda.grouped_calls();
    assert_eq!((calls.library, calls.kernels), (0, 6));
}

#[test]
fn a_library_without_groups_is_said_once() {
    let bed = Bed::new(Err("cuBLAS is old".into()));
    bed.forward([64, 32], DType::Bf16, None);
    bed.gradient(None);
    assert!(!bed.cuda.has_groups());
    assert_eq!(bed.cuda.refusals(), ["cuBLAS is old"]);
}

#[test]
fn groups_are_part_of_graphs() {
    let bed = Bed::new(Ok(()));
    bed.cuda.streams().capture(true);
    for _ in 0..4 {
        bed.cuda.enter_block();
        bed.gradient(Some(48));
        bed.cuda.leave_block();
    }
    // Four launches sort; each of three parts has three launches and a product. The second run captures, which calls
    // the library again.
    let counts = bed.cuda.graphs();
    assert_eq!((counts.single, counts.captured, counts.replayed), (16, 1, [2, 32]));
    assert_eq!(bed.seen.lock().unwrap().len(), 6);
}
