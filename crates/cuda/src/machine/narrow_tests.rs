//! Selection of low-precision GEMMs for the library, and their description to it.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use fathom_tensor::{
    AmaxHistory, Blocks, Category, DType, Device, Element, Machine, MatMul, Narrow, NarrowMatMul,
    NarrowOperand, ScaleRule, Tensor,
};

use super::Cuda;
use super::build::MachineLibraries;
use super::tests::machine;
use crate::Result;
use crate::blas::{self, Operands, Products, Scales, Shape};
use crate::driver::Stream;
use crate::driver::fake::Fake;

/// Records products; supports scales if `scaled`.
struct Library {
    scaled: bool,
    seen: Arc<Mutex<Vec<(Shape, Operands)>>>,
}

// SAFETY: accesses no memory.
unsafe impl Products for Library {
    fn takes(&self, shape: &Shape, _: &Operands) -> Result<bool> {
        Ok(self.scaled || shape.scales.is_none())
    }
    unsafe fn product(&self, shape: &Shape, operands: &Operands, _: Stream) -> Result<()> {
        self.seen.lock().unwrap().push((*shape, *operands));
        Ok(())
    }
}

/// A machine with such a library, and the calls that it saw.
struct Bed {
    fake: Arc<Fake>,
    cuda: Arc<Cuda>,
    device: Device,
    seen: Arc<Mutex<Vec<(Shape, Operands)>>>,
}

impl Bed {
    fn new(scaled: bool) -> Bed {
        let (fake, seen) = (Arc::new(Fake::new(256 << 20)), Arc::default());
        let library = Library { scaled, seen: Arc::clone(&seen) };
        let cuda = machine(
            &fake,
            MachineLibraries { products: Some(Arc::new(library)), ..MachineLibraries::default() },
        );
        let device = Device::new(cuda.clone(), 192 << 20);
        Bed { fake, cuda, device, seen }
    }

    fn empty(&self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        self.device.empty(rows, cols, dtype, Category::Data)
    }

    /// The gradient of a weight [64, 32] over tokens: both operands are transposed.
    fn weight(&self, tokens: usize, [a, b]: [NarrowOperand<'_>; 2]) {
        let (x, dy) = (self.empty(tokens, 32, DType::Bf16), self.empty(tokens, 64, DType::Bf16));
        let dw = self.empty(64, 32, DType::F32);
        self.call([(&dy, true), (&x, false)], &dw, [a, b]);
    }

    fn call(
        &self,
        [(a, a_trans), (b, b_trans)]: [(&Tensor, bool); 2],
        c: &Tensor,
        how: [NarrowOperand<'_>; 2],
    ) {
        let product = MatMul { a, a_trans, b, b_trans, c, accumulate: true };
        let op = NarrowMatMul { product, a: how[0], b: how[1] };
        let ws = self.empty(1, self.cuda.profile().workspace(&op.desc()) as usize, DType::U8);
        self.cuda.narrow_matmul(&op, &ws);
        self.cuda.synchronise().unwrap();
    }

    /// Kernels launched since the last call.
    fn kernels(&self, before: &mut usize) -> Vec<String> {
        let all = self.fake.launched();
        let new = all[*before..].iter().map(|launched| launched.name.clone()).collect();
        *before = all.len();
        new
    }
}

fn how<'a>(element: Element, blocks: Blocks) -> NarrowOperand<'a> {
    NarrowOperand { how: Narrow { element, blocks, rule: ScaleRule::Covers }, delayed: None }
}

#[test]
fn tensors_with_one_scale_go_to_fp8_units_in_their_one_layout() {
    let bed = Bed::new(true);
    let mut before = 0;
    let (a, b) = (how(Element::E5M2, Blocks::Tensor), how(Element::E4M3, Blocks::Tensor));
    bed.weight(40, [a, b]);
    let own = ["zero_bytes", "sizes", "largest_of_sizes", "encode"];
    assert_eq!(bed.kernels(&mut before), [own, own].concat());
    {
        let seen = bed.seen.lock().unwrap();
        let (shape, operands) = &seen[0];
        assert!(operands.accumulate && shape.first_trans && !shape.second_trans && !shape.fast);
        assert_eq!(shape.scales, Some([Scales::Tensor; 2]));
        assert_eq!((shape.input, shape.second_input), (blas::Element::E4M3, blas::Element::E5M2));
        // Forty tokens are padded to 48.
        let sizes = [shape.first.rows, shape.first.cols, shape.second.rows, shape.second.cols, shape.inner];
        assert_eq!(sizes, [48, 32, 48, 64, 48]);
        assert!(operands.scales.iter().all(|at| at.is_multiple_of(16) && *at != 0));
        assert_ne!(operands.scales[0], operands.scales[1]);
    }
    // Delayed scales: this step's largest element is found on the way. E4M3 for both means a forward pass.
    let [seen, now] = [0, 1].map(|_| bed.empty(1, 1, DType::F32));
    let late = NarrowOperand { delayed: Some(AmaxHistory { before: &seen, now: Some(&now) }), ..b };
    bed.weight(48, [late, late]);
    assert_eq!(bed.kernels(&mut before), ["encode", "encode"]);
    assert!(bed.seen.lock().unwrap()[1].0.fast);
}

#[test]
fn blocks_go_to_units_that_have_them() {
    let bed = Bed::new(true);
    let mut before = 0;
    let [line, tile, micro] =
        [Blocks::Line(128), Blocks::Tile(128), Blocks::Line(32)].map(|blocks| how(Element::E4M3, blocks));
    bed.weight(48, [line, line]);
    assert_eq!(bed.kernels(&mut before), ["encode", "encode"]);
    let (x, w, y) =
        (bed.empty(8, 48, DType::F32), bed.empty(64, 48, DType::F32), bed.empty(8, 64, DType::Bf16));
    bed.call([(&x, false), (&w, true)], &y, [line, tile]);
    assert_eq!(bed.kernels(&mut before), ["encode", "zero_bytes", "encode"]);
    // The profile is an H200's.
    bed.weight(48, [micro, micro]);
    assert_eq!(bed.kernels(&mut before), ["narrow", "narrow"]);
    let seen = bed.seen.lock().unwrap();
    let found: Vec<_> = seen.iter().map(|(shape, _)| (shape.scales, shape.fast)).collect();
    let (lines, tiles) = (Scales::Lines128, Scales::Tiles128);
    assert_eq!(found, [(Some([lines; 2]), false), (Some([tiles, lines]), false), (None, false)]);
    assert_eq!(seen[2].0.input, blas::Element::Bf16);
}

#[test]
fn what_no_unit_takes_is_emulated_and_said_once() {
    for scaled in [false, true] {
        let bed = Bed::new(scaled);
        let mut before = 0;
        let line = how(Element::E4M3, Blocks::Line(128));
        for _ in 0..2 {
            if scaled {
                // Six rows do not fill the pieces of the lines' scales.
                let (x, w) = (bed.empty(6, 48, DType::Bf16), bed.empty(64, 48, DType::Bf16));
                bed.call([(&x, false), (&w, true)], &bed.empty(6, 64, DType::Bf16), [line, line]);
            } else {
                bed.weight(48, [line, line]);
            }
            assert_eq!(bed.kernels(&mut before), ["narrow", "narrow"]);
        }
        let said = bed.cuda.said.lock().unwrap();
        assert_eq!(said.len(), 1);
        let line = said.first().unwrap();
        let words = if scaled { "FP8 units take no" } else { "cuBLASLt has no FP8 product" };
        assert!(line.starts_with(words) && line.ends_with("emulated"), "{line}");
        assert_eq!(bed.seen.lock().unwrap().len(), 2);
    }
}
