//! Plain Rust on arrays of sixteen, which the compiler vectorises where it can.
#![allow(unsafe_op_in_unsafe_fn)] // the whole trait is unsafe: pointers and preconditions are the callers'

use super::{EXP2_NEAR, LANES, Simd};

/// Any processor.
pub struct Portable;

type V = [f32; LANES];

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// bf16 of `x`, ties to even; a NaN stays one.
#[inline(always)]
pub fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[inline(always)]
fn exp2(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to the nearest integer, with no call into the mathematics library.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -127.0 { x } else { -127.0 };
    let x = if x < 127.0 { x } else { 127.0 };
    let n = (x + ROUND) - ROUND;
    let f = x - n;
    let [c1, c2, c3, c4, c5] = EXP2_NEAR;
    let p = 1.0 + f * (c1 + f * (c2 + f * (c3 + f * (c4 + f * c5))));
    p * f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23)
}

// SAFETY: needs no instruction set beyond the target's.
unsafe impl Simd for Portable {
    type V = V;
    const PAIRS: bool = false;
    const TILE: (usize, usize) = (2, 1);

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        p.cast::<V>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        p.cast::<V>().write_unaligned(v)
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn exp2(x: V) -> V {
        x.map(exp2)
    }
    #[inline(always)]
    unsafe fn sum(v: V) -> f32 {
        let a: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
        (b[0] + b[2]) + (b[1] + b[3])
    }
    #[inline(always)]
    unsafe fn peak(v: V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn select(bits: u16, a: V, b: V) -> V {
        std::array::from_fn(|i| if (bits >> i) & 1 == 1 { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn between(p: *const i32, lo: i32, hi: i32) -> u16 {
        (0..LANES).fold(0, |bits, i| bits | (u16::from((lo..=hi).contains(&*p.add(i))) << i))
    }
    #[inline(always)]
    unsafe fn widen(p: *const u16) -> V {
        std::array::from_fn(|i| f32::from_bits(u32::from(*p.add(i)) << 16))
    }
    #[inline(always)]
    unsafe fn narrow(p: *mut u16, v: V) {
        for (i, x) in v.into_iter().enumerate() {
            *p.add(i) = round_bf16(x);
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &mut [V; LANES]) {
        let old = *rows;
        for (i, row) in rows.iter_mut().enumerate() {
            *row = std::array::from_fn(|j| old[j][i]);
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: V, a: *const u32, b: V) -> V {
        let a = f32::from_bits(*a);
        std::array::from_fn(|i| acc[i] + a * b[i])
    }
    #[inline(always)]
    unsafe fn pair(_: V, _: V) -> V {
        unreachable!("words of this instruction set hold one f32")
    }
    #[inline(always)]
    unsafe fn zip(_: V, _: V) -> (V, V) {
        unreachable!("words of this instruction set hold one f32")
    }
}
