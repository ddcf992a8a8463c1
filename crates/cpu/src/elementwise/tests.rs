//! Compares every kernel with plain f64 on every instruction set, and checks that the bits are the same for every
//! number of threads and every cut of the rows.
use super::*;
use crate::isa::Isa;
use crate::mat::{Elem, Mat, MatMut};
use crate::threads::Threads;
use fathom_tensor::{Activation, Distance, NormKind};
use half::bf16;

mod losses;
mod narrow;
mod norms;
mod others;

const ELEMS: [Elem; 2] = [Elem::F32, Elem::Bf16];

/// Every level that this machine supports.
fn levels() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect())
}

/// Calls `f` on each level with one and with three threads.
fn places(mut f: impl FnMut(Place<'_>)) {
    for count in [1, 3] {
        let threads = Threads::new(count);
        levels().for_each(|isa| f(Place { threads: &threads, isa }));
    }
}

/// A `[rows, cols]` matrix in memory with unused columns next to it.
#[derive(Clone, PartialEq)]
struct PaddedMatrix {
    bytes: Vec<u8>,
    elem: Elem,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl PaddedMatrix {
    fn new(rows: usize, cols: usize, elem: Elem, mut value: impl FnMut(usize, usize) -> f32) -> PaddedMatrix {
        let stride = cols + 3;
        let mut stored =
            PaddedMatrix { bytes: vec![0; rows * stride * elem.bytes()], elem, rows, cols, stride };
        for row in 0..rows {
            for col in 0..stride {
                stored.set(row, col, value(row, col));
            }
        }
        stored
    }

    /// Uniform in (-2, 2).
    fn random(rows: usize, cols: usize, elem: Elem, seed: u64) -> PaddedMatrix {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        PaddedMatrix::new(rows, cols, elem, |_, _| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 + 0.5) / (1u64 << 22) as f32 - 2.0
        })
    }

    /// Filled with a marker, to see what is written.
    fn blank(rows: usize, cols: usize, elem: Elem) -> PaddedMatrix {
        PaddedMatrix::new(rows, cols, elem, |_, _| -77.0)
    }

    fn set(&mut self, row: usize, col: usize, value: f32) {
        let at = (row * self.stride + col) * self.elem.bytes();
        match self.elem {
            Elem::F32 => self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()),
            Elem::Bf16 => self.bytes[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }

    fn get(&self, row: usize, col: usize) -> f64 {
        let at = (row * self.stride + col) * self.elem.bytes();
        match self.elem {
            Elem::F32 => f32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap()) as f64,
            Elem::Bf16 => bf16::from_le_bytes(self.bytes[at..at + 2].try_into().unwrap()).to_f64(),
        }
    }

    /// The matrix from row `row` on.
    fn mat(&self, row: usize) -> Mat {
        let at = row * self.stride * self.elem.bytes();
        Mat { ptr: self.bytes[at..].as_ptr(), elem: self.elem, stride: self.stride }
    }

    /// The matrix from row `row` on, to write.
    fn mat_mut(&mut self, row: usize) -> MatMut {
        let at = row * self.stride * self.elem.bytes();
        MatMut { ptr: self.bytes[at..].as_mut_ptr(), elem: self.elem, stride: self.stride }
    }

    /// Columns from `col` on, of every row.
    fn right_of(&self, col: usize) -> Mat {
        Mat { ptr: self.bytes[col * self.elem.bytes()..].as_ptr(), elem: self.elem, stride: self.stride }
    }

    /// Columns from `col` on, of every row.
    fn right_of_mut(&mut self, col: usize) -> MatMut {
        let ptr = self.bytes[col * self.elem.bytes()..].as_mut_ptr();
        MatMut { ptr, elem: self.elem, stride: self.stride }
    }

    /// Checks that each element is `want` within `tolerance` of `1 + |want|` (for bf16, plus half a unit in its last
    /// place), and that the unused columns are as in `before`.
    fn check(&self, name: &str, before: &PaddedMatrix, tolerance: f64, want: impl Fn(usize, usize) -> f64) {
        for row in 0..self.rows {
            for col in 0..self.cols {
                let (got, want) = (self.get(row, col), want(row, col));
                let rounding = if self.elem == Elem::Bf16 { want.abs() / 250.0 } else { 0.0 };
                let close = (got - want).abs() <= rounding + tolerance * (1.0 + want.abs());
                assert!(close, "{name} {:?} at {row},{col}: {got} is not {want}", self.elem);
            }
            for col in self.cols..self.stride {
                assert_eq!(self.get(row, col), before.get(row, col), "{name} wrote outside at {row},{col}");
            }
        }
    }
}

/// The first bits seen on each level; they may differ between levels.
#[derive(Default)]
struct Bits(Vec<(Isa, Vec<u8>)>);

impl Bits {
    /// Checks that `got` equals the earlier bits of this level, if there are any.
    fn check(&mut self, name: &str, isa: Isa, got: &[u8]) {
        match self.0.iter().find(|(level, _)| *level == isa) {
            Some((_, first)) => assert!(first == got, "{name} on {isa:?} changed bits"),
            None => self.0.push((isa, got.to_vec())),
        }
    }
}

#[test]
fn narrowing_is_that_of_half() {
    use super::level::Float;
    for i in 0..=u16::MAX as u32 {
        for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(i << 16 | low);
            assert_eq!(<bf16 as Float>::narrow(x).to_bits(), bf16::from_f32(x).to_bits(), "{x}");
        }
    }
}
