//! Activation functions, plain and gated, with their gradients.
#![allow(unsafe_code)]

use super::Place;
use super::level::{Float, Kernel, Level, by_elem, madd, run};
use super::math::{normal, sigmoid, tanh};
use crate::mat::{Mat, MatMut};
use fathom_tensor::Activation;
use std::marker::PhantomData;
use std::ops::Range;

/// `out = act(gate) * up`, or `act(gate)` without `up`. A fused `[rows, 2 * cols]` tensor is two views of it.
#[derive(Clone, Copy, Debug)]
pub struct Activate {
    /// The function.
    pub kind: Activation,
    /// Rows.
    pub rows: usize,
    /// Columns of each operand.
    pub cols: usize,
    /// `[rows, cols]`.
    pub gate: Mat,
    /// `[rows, cols]`, stored like the gate.
    pub up: Option<Mat>,
    /// `[rows, cols]`, stored like the gate.
    pub out: MatMut,
}

/// The backward pass of [`Activate`]: `dgate = dy * up * act'(gate)`, `dup = dy * act(gate)`.
#[derive(Clone, Copy, Debug)]
pub struct ActivateBackward {
    /// The function.
    pub kind: Activation,
    /// Rows.
    pub rows: usize,
    /// Columns of each operand.
    pub cols: usize,
    /// The forward input.
    pub gate: Mat,
    /// The forward input.
    pub up: Option<Mat>,
    /// Gradient of the output.
    pub dy: Mat,
    /// `[rows, cols]`, overwritten.
    pub dgate: MatMut,
    /// `[rows, cols]`, overwritten; present if and only if `up` is.
    pub dup: Option<MatMut>,
}

/// A function and its derivative.
trait Function: Sync + 'static {
    fn both<L: Level>(x: f32) -> (f32, f32);
}

struct Silu;
struct GeluTanh;
struct GeluErf;
struct Relu;
struct Relu2;
struct Tanh;
struct Sigmoid;

impl Function for Silu {
    #[inline(always)]
    fn both<L: Level>(x: f32) -> (f32, f32) {
        let s = sigmoid::<L>(x);
        (x * s, s * madd::<L>(x, 1.0 - s, 1.0))
    }
}

impl Function for GeluTanh {
    /// With `u = sqrt(2 / pi) (x + 0.044715 x^3)`, `(1 + tanh u) / 2 = sigmoid(2 u)`.
    #[inline(always)]
    fn both<L: Level>(x: f32) -> (f32, f32) {
        const TWICE: f32 = 1.595_769;
        const CUBE: f32 = 0.044_715;
        let square = x * x;
        let s = sigmoid::<L>(TWICE * x * madd::<L>(CUBE, square, 1.0));
        let slope = TWICE * madd::<L>(3.0 * CUBE, square, 1.0);
        (x * s, madd::<L>(x * s * (1.0 - s), slope, s))
    }
}

impl Function for GeluErf {
    #[inline(always)]
    fn both<L: Level>(x: f32) -> (f32, f32) {
        let (phi, density) = normal::<L>(x);
        (x * phi, madd::<L>(x, density, phi))
    }
}

impl Function for Relu {
    #[inline(always)]
    fn both<L: Level>(x: f32) -> (f32, f32) {
        if x <= 0.0 { (0.0, 0.0) } else { (x, 1.0) }
    }
}

impl Function for Relu2 {
    #[inline(always)]
    fn both<L: Level>(x: f32) -> (f32, f32) {
        if x <= 0.0 { (0.0, 0.0) } else { (x * x, 2.0 * x) }
    }
}

impl Function for Tanh {
    #[inline(always)]
    fn both<L: Level>(x: f32) -> (f32, f32) {
        let t = tanh::<L>(x);
        (t, madd::<L>(-t, t, 1.0))
    }
}

impl Function for Sigmoid {
    #[inline(always)]
    fn both<L: Level>(x: f32) -> (f32, f32) {
        let s = sigmoid::<L>(x);
        (s, s * (1.0 - s))
    }
}

/// Runs `$body` with `$f` standing for the function `$kind`.
macro_rules! by_function {
    ($kind:expr, $f:ident => $body:expr) => {
        match $kind {
            Activation::Silu => {
                type $f = Silu;
                $body
            }
            Activation::GeluTanh => {
                type $f = GeluTanh;
                $body
            }
            Activation::GeluErf => {
                type $f = GeluErf;
                $body
            }
            Activation::Relu => {
                type $f = Relu;
                $body
            }
            Activation::Relu2 => {
                type $f = Relu2;
                $body
            }
            Activation::Tanh => {
                type $f = Tanh;
                $body
            }
            Activation::Sigmoid => {
                type $f = Sigmoid;
                $body
            }
            Activation::ClampedSwiglu => panic!("activate: the clamped SwiGLU is gated, by pairs"),
        }
    };
}

struct Forward<'a, T, F>(&'a Activate, PhantomData<fn(T, F)>);

/// Computes `op.out`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn activate(place: Place<'_>, op: &Activate) {
    let fits = op.out.elem == op.gate.elem && op.up.is_none_or(|up| up.elem == op.gate.elem);
    assert!(fits, "activate: storage of {op:?}");
    let bytes = op.cols * op.gate.elem.bytes() * 3;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(op.gate.elem, T => by_function!(op.kind, F => unsafe {
        run(place, &Forward::<T, F>(op, PhantomData), op.rows, 1, bytes)
    }));
}

impl<T: Float, F: Function> Kernel for Forward<'_, T, F> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let op = self.0;
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (gate, up, out) = unsafe {
                (
                    op.gate.row::<T>(row, op.cols),
                    op.up.as_ref().map(|up| up.row::<T>(row, op.cols)),
                    op.out.row::<T>(row, op.cols),
                )
            };
            match up {
                Some(up) => {
                    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                        *out = T::narrow(F::both::<L>(gate.wide()).0 * up.wide());
                    }
                }
                None => {
                    for (out, gate) in out.iter_mut().zip(gate) {
                        *out = T::narrow(F::both::<L>(gate.wide()).0);
                    }
                }
            }
        }
    }
}

struct Backward<'a, T, F>(&'a ActivateBackward, PhantomData<fn(T, F)>);

/// Computes `op.dgate` and `op.dup`.
///
/// # Safety
/// See the module documentation.
pub unsafe fn activate_backward(place: Place<'_>, op: &ActivateBackward) {
    let elem = op.gate.elem;
    let fits = op.dy.elem == elem
        && op.dgate.elem == elem
        && op.up.is_none_or(|up| up.elem == elem)
        && op.dup.is_none_or(|dup| dup.elem == elem)
        && op.up.is_some() == op.dup.is_some();
    assert!(fits, "activate backward: storage of {op:?}");
    let bytes = op.cols * elem.bytes() * 5;
    // SAFETY: the caller's promise; rows are disjoint.
    by_elem!(elem, T => by_function!(op.kind, F => unsafe {
        run(place, &Backward::<T, F>(op, PhantomData), op.rows, 1, bytes)
    }));
}

impl<T: Float, F: Function> Kernel for Backward<'_, T, F> {
    #[inline(always)]
    unsafe fn run<L: Level>(&self, part: Range<usize>) {
        let (op, cols) = (self.0, self.0.cols);
        for row in part {
            // SAFETY: rows and columns named by the descriptor.
            let (gate, dy, dgate, up, dup) = unsafe {
                (
                    op.gate.row::<T>(row, cols),
                    op.dy.row::<T>(row, cols),
                    op.dgate.row::<T>(row, cols),
                    op.up.as_ref().map(|up| up.row::<T>(row, cols)),
                    op.dup.as_ref().map(|dup| dup.row::<T>(row, cols)),
                )
            };
            if let (Some(up), Some(dup)) = (up, dup) {
                for i in 0..cols {
                    let (value, slope) = F::both::<L>(gate[i].wide());
                    let dy = dy[i].wide();
                    dgate[i] = T::narrow(dy * up[i].wide() * slope);
                    dup[i] = T::narrow(dy * value);
                }
            } else {
                for i in 0..cols {
                    dgate[i] = T::narrow(dy[i].wide() * F::both::<L>(gate[i].wide()).1);
                }
            }
        }
    }
}
