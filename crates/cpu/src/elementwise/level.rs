//! One loop, compiled per instruction set, over blocks of rows or columns in parallel.
#![allow(unsafe_code)]

use super::Place;
use crate::isa::Isa;
use half::bf16;
use std::ops::Range;

/// An instruction set as a type with constants for generic loops.
pub(crate) trait Level {
    /// True if multiply-add is one instruction.
    const FUSED: bool;
}

/// Plain Rust.
pub(crate) struct Plain;

impl Level for Plain {
    const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
}

/// AVX2 with FMA and everything above it.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Fma;

#[cfg(target_arch = "x86_64")]
impl Level for Fma {
    const FUSED: bool = true;
}

/// `a * b + c`, rounded once if the instruction set has that.
#[inline(always)]
pub(crate) fn madd<L: Level>(a: f32, b: f32, c: f32) -> f32 {
    if L::FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// A storage type.
pub(super) trait Float: Copy + Send + Sync + 'static {
    fn wide(self) -> f32;
    /// Rounds to nearest even.
    fn narrow(x: f32) -> Self;
    /// Rounds up or down, depending on twenty bits of noise.
    fn settle(x: f32, noise: u32) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn settle(x: f32, _: u32) -> f32 {
        x
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    /// Branch-free, so that loops vectorise; the bits are those of `bf16::from_f32`.
    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
    #[inline(always)]
    fn settle(x: f32, noise: u32) -> bf16 {
        bf16::from_bits(fathom_tensor::moments::round_bf16(x, noise))
    }
}

/// Runs `$body` with `$t` standing for the storage type `$elem`.
macro_rules! by_elem {
    ($elem:expr, $t:ident => $body:expr) => {
        match $elem {
            $crate::mat::Elem::F32 => {
                type $t = f32;
                $body
            }
            $crate::mat::Elem::Bf16 => {
                type $t = half::bf16;
                $body
            }
        }
    };
}
pub(super) use by_elem;

/// A loop over rows, or over columns for sums over rows. The method must be `#[inline(always)]` and call only such
/// functions, as it is compiled once per instruction set.
pub(super) trait Kernel: Sync {
    /// Processes `part` of the rows or columns.
    ///
    /// # Safety
    /// The operands meet the public function's requirements; concurrent calls have disjoint parts.
    unsafe fn run<L: Level>(&self, part: Range<usize>);
}

/// Bytes below which waking another thread does not pay off. In tests even the smallest work is shared.
const SERIAL_BYTES: usize = if cfg!(test) { 8 } else { 64 << 10 };
/// Tasks per thread, so that a disturbed thread does not hold up the others.
const TASKS: usize = 8;

/// Runs `kernel` over `0..count` in parts that are multiples of `grain`, `bytes` of memory traffic each.
///
/// # Safety
/// The operands meet the public function's requirements; the processor has `place.isa`.
pub(super) unsafe fn run(place: Place<'_>, kernel: &impl Kernel, count: usize, grain: usize, bytes: usize) {
    let total = count.saturating_mul(bytes);
    let most = if total < SERIAL_BYTES { 1 } else { place.threads.count() * TASKS };
    let tasks = count.div_ceil(grain).min(most).min(total.div_ceil(SERIAL_BYTES / 4).max(1));
    let part = count.div_ceil(tasks.max(1)).next_multiple_of(grain).max(1);
    place.threads.run(count.div_ceil(part), &|task, _| {
        let part = task * part..((task + 1) * part).min(count);
        // SAFETY: passed on; parts are disjoint.
        unsafe {
            match place.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2(kernel, part),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512(kernel, part),
                _ => kernel.run::<Plain>(part),
            }
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<K: Kernel>(kernel: &K, part: Range<usize>) {
    // SAFETY: passed on.
    unsafe { kernel.run::<Fma>(part) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<K: Kernel>(kernel: &K, part: Range<usize>) {
    // SAFETY: passed on.
    unsafe { kernel.run::<Fma>(part) }
}

/// Lanes of a sum over columns; two or more vectors of every instruction set.
pub(super) const LANES: usize = 64;

/// Folds `term` over `x` into [`LANES`] lanes, element i into lane i mod LANES, and the lanes in halves.
#[inline(always)]
pub(super) fn fold_one<T: Float>(
    x: &[T],
    start: f32,
    join: impl Fn(f32, f32) -> f32,
    term: impl Fn(f32) -> f32,
) -> f32 {
    let mut lanes = [start; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for i in 0..LANES {
            lanes[i] = join(lanes[i], term(x[i].wide()));
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = join(*lane, term(x.wide()));
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The sum of `term` over `x`, see [`fold_one`].
#[inline(always)]
pub(super) fn sum_one<T: Float>(x: &[T], term: impl Fn(f32) -> f32) -> f32 {
    fold_one(x, 0.0, |a, b| a + b, term)
}

/// Two sums over `x` in one pass, each equal to that of [`sum_one`].
#[inline(always)]
pub(super) fn sum_two<T: Float>(x: &[T], term: impl Fn(f32) -> (f32, f32)) -> (f32, f32) {
    let (mut a, mut b) = ([0.0f32; LANES], [0.0f32; LANES]);
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for i in 0..LANES {
            let (more_a, more_b) = term(x[i].wide());
            a[i] += more_a;
            b[i] += more_b;
        }
    }
    for (i, x) in rest.iter().enumerate() {
        let (more_a, more_b) = term(x.wide());
        a[i] += more_a;
        b[i] += more_b;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            a[i] += a[i + half];
            b[i] += b[i + half];
        }
        half /= 2;
    }
    (a[0], b[0])
}

/// The sum of `term` over three slices of one length, in the same lanes.
#[inline(always)]
pub(super) fn sum_three<T: Float, W: Float>(
    x: &[T],
    y: &[T],
    w: &[W],
    term: impl Fn(f32, f32, f32) -> f32,
) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((xs, x), (ys, y), (ws, w)) =
        (x.as_chunks::<LANES>(), y.as_chunks::<LANES>(), w.as_chunks::<LANES>());
    for ((x, y), w) in xs.iter().zip(ys).zip(ws) {
        for i in 0..LANES {
            lanes[i] += term(x[i].wide(), y[i].wide(), w[i].wide());
        }
    }
    for (((lane, x), y), w) in lanes.iter_mut().zip(x).zip(y).zip(w) {
        *lane += term(x.wide(), y.wide(), w.wide());
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}
