//! Sixteen-lane arithmetic: the operations that all attention kernels are written in.
//!
//! Every function is inlined into an entry point that enables the instruction set (`unit.rs`), so calling one
//! elsewhere is wrong as well as slow. A *word* is 32 bits of a product's operand: one f32, or two bf16.

pub mod portable;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;

use fathom_tensor::spill::E4M3;

/// Lanes of a vector and columns of an operand panel.
pub const LANES: usize = 16;

/// `2^f = 1 + f (C1 + f (C2 + ...))` on [-0.5, 0.5], relative error 9.1e-8 (minimax fit of our own).
#[allow(clippy::approx_constant)] // a fitted coefficient near ln 2
pub const EXP2_NEAR: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_2];
/// The same on [0, 1], relative error 8.2e-8.
pub const EXP2_UNIT: [f32; 5] = [0.693_151_3, 0.240_164_45, 0.055_799_916, 0.009_017_029, 0.001_867_130_7];
/// The same on [0, 1] with one term less, relative error 2.9e-6: for probabilities that become bf16.
pub const EXP2_SHORT: [f32; 4] = [0.693_044_84, 0.241_280_24, 0.052_242_436, 0.013_426_701];

/// Vector operations of one instruction set.
///
/// # Safety
/// Callers of every method guarantee that the processor has the instruction set and that pointers cover the
/// lanes that are read or written; nothing need be aligned.
pub unsafe trait Simd: 'static {
    /// Sixteen f32 or sixteen words.
    type V: Copy;
    /// Words hold two bf16 (`dot` takes two products) instead of one f32.
    const PAIRS: bool;
    /// Rows and panels of the register tile of a product.
    const TILE: (usize, usize);

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a b + c`, rounded once if the machine has that instruction.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `2^x` for x <= 126; exactly zero below -150.
    unsafe fn exp2(x: Self::V) -> Self::V;
    /// Sum of the lanes in a fixed order.
    unsafe fn sum(v: Self::V) -> f32;
    /// Largest lane.
    unsafe fn peak(v: Self::V) -> f32;
    /// True if a lane is above `limit` or NaN.
    #[inline(always)]
    unsafe fn exceeds(v: Self::V, limit: f32) -> bool {
        // SAFETY: this function's contract.
        let peak = unsafe { Self::peak(v) };
        peak.partial_cmp(&limit).is_none_or(std::cmp::Ordering::is_gt)
    }
    /// Lanes of `a` where the bit is set, of `b` elsewhere.
    unsafe fn select(bits: u16, a: Self::V, b: Self::V) -> Self::V;
    /// Bit i is `lo <= p[i] <= hi`.
    unsafe fn between(p: *const i32, lo: i32, hi: i32) -> u16;
    /// Sixteen bf16 as f32.
    unsafe fn widen(p: *const u16) -> Self::V;
    /// Rounds to bf16, ties to even.
    unsafe fn narrow(p: *mut u16, v: Self::V);
    /// Sixteen signed bytes as f32.
    #[inline(always)]
    unsafe fn whole(p: *const i8) -> Self::V {
        // SAFETY: this function's contract.
        unsafe {
            let whole = p.cast::<[i8; LANES]>().read_unaligned();
            Self::load(whole.map(f32::from).as_ptr())
        }
    }
    /// Sixteen e4m3 codes as f32.
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> Self::V {
        let mut values = [0.0f32; LANES];
        // SAFETY: this function's contract.
        unsafe {
            for (lane, value) in values.iter_mut().enumerate() {
                *value = E4M3[*p.add(lane) as usize];
            }
            Self::load(values.as_ptr())
        }
    }
    /// Transposes 16 x 16 words.
    unsafe fn transpose(rows: &mut [Self::V; LANES]);
    /// Sixteen bf16 of each of sixteen rows, from `at` bytes on, transposed and as f32.
    #[inline(always)]
    unsafe fn columns(rows: &[*const u8; LANES], at: usize) -> [Self::V; LANES] {
        // SAFETY: this function's contract.
        unsafe {
            let mut block = [Self::splat(0.0); LANES];
            for (row, v) in rows.iter().zip(&mut block) {
                *v = Self::widen(row.add(at).cast());
            }
            Self::transpose(&mut block);
            block
        }
    }
    /// Prefetches the cache line of `p`, which may be any address.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        let _ = p;
    }
    /// `acc + a . b`: the word at `a` with each word of `b`.
    unsafe fn dot(acc: Self::V, a: *const u32, b: Self::V) -> Self::V;
    /// Two runs of 16 f32 as one run of 32 bf16. Only with `PAIRS`.
    unsafe fn pair(low: Self::V, high: Self::V) -> Self::V;
    /// Two rows of 32 bf16 as 2 x 16 words (a, b) of equal column. Only with `PAIRS`.
    unsafe fn zip(a: Self::V, b: Self::V) -> (Self::V, Self::V);
}
