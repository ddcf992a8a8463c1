//! Quantization of rows to integers of 16 bits, as in [`super::super::rows`], and conversion of sums to bf16.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use half::bf16;

use super::super::format::GROUP;
use super::super::rows::{Bytes, GroupSums, LEAST, MOST, Rows};
use crate::mat::{Elem, Mat};

/// Like [`super::super::rows::quantise`].
///
/// # Safety
/// See there.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn quantise_row(x: &Mat, from: usize, rows: Rows, to: usize) {
    let apart = !rows.bytes.is_null();
    let (groups, rows) = (rows.k / GROUP, rows.from(to));
    let row = x.ptr.wrapping_add(from * x.stride * x.elem.bytes());
    for group in 0..groups {
        // SAFETY: the caller's promise.
        unsafe {
            let values = match x.elem {
                Elem::F32 => {
                    let at = row.cast::<f32>().add(GROUP * group);
                    [0, 1, 2, 3].map(|part| _mm256_loadu_ps(at.add(8 * part)))
                }
                Elem::Bf16 => {
                    let at = row.cast::<u16>().add(GROUP * group);
                    [0, 1, 2, 3].map(|part| {
                        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(8 * part).cast()));
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
                    })
                }
            };
            let (codes, part) = one(values);
            let to = rows.codes.add(GROUP * group).cast::<__m256i>();
            _mm256_storeu_si256(to, codes[0]);
            _mm256_storeu_si256(to.add(1), codes[1]);
            rows.parts.add(group).write(part);
            if apart {
                store_bytes(codes, rows.bytes.add(group));
            }
        }
    }
}

/// The largest magnitude: magnitudes compare like their bits as integers, with NaN the largest.
#[target_feature(enable = "avx2")]
#[inline]
fn most(x: [__m256; 4]) -> f32 {
    let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff)));
    let most = _mm256_max_epu32(_mm256_max_epu32(bits[0], bits[1]), _mm256_max_epu32(bits[2], bits[3]));
    let most = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b1110>(most));
    let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b1>(most));
    f32::from_bits(_mm_cvtsi128_si32(most).cast_unsigned())
}

/// Quantizes a group: elements 0..8 and 16..24, then 8..16 and 24..32.
#[target_feature(enable = "avx2")]
#[inline]
fn one(x: [__m256; 4]) -> ([__m256i; 2], GroupSums) {
    let most = most(x);
    if !(LEAST..f32::INFINITY).contains(&most) {
        let scale = if most < LEAST { 0.0 } else { f32::NAN };
        return ([_mm256_setzero_si256(); 2], GroupSums { scale, halves: [0; 2], sum: 0, total: 0.0 });
    }
    let factor = _mm256_set1_ps(MOST / most);
    // Rounds to nearest, ties to even.
    let x = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, factor)));
    let both = |x, y| _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x, y));
    let codes = [both(x[0], x[2]), both(x[1], x[3])];
    // The first half of the group is in the lower lanes.
    let sums = codes.map(|codes| _mm256_madd_epi16(codes, _mm256_set1_epi16(1)));
    let sums = _mm256_add_epi32(sums[0], sums[1]);
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b1110>(sums));
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b1>(sums));
    let halves = [_mm256_extract_epi32::<0>(sums), _mm256_extract_epi32::<4>(sums)];
    let sum = halves[0].wrapping_add(halves[1]);
    (codes, GroupSums { scale: most / MOST, halves, sum, total: sum as f32 })
}

/// Writes the bytes of a group's integers.
///
/// # Safety
/// They can be written.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn store_bytes(codes: [__m256i; 2], to: *mut Bytes) {
    let upper = codes.map(|x| _mm256_srai_epi16::<8>(_mm256_add_epi16(x, _mm256_set1_epi16(128))));
    let lower = codes.map(|x| _mm256_and_si256(x, _mm256_set1_epi16(255)));
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_storeu_si256(to.cast(), _mm256_packs_epi16(upper[0], upper[1]));
        _mm256_storeu_si256(to.cast::<__m256i>().add(1), _mm256_packus_epi16(lower[0], lower[1]));
    }
}

/// Rounds to bf16, to the nearest, ties to even.
///
/// # Safety
/// There is room for them at `to`.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn store_bf16(values: &[f32], to: *mut bf16) {
    let (whole, rest) = values.as_chunks::<8>();
    for (at, values) in whole.iter().enumerate() {
        // SAFETY: eight f32; the caller's promise.
        unsafe {
            let x = _mm256_loadu_ps(values.as_ptr());
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan));
            let upper = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(upper, upper));
            _mm_storeu_si128(to.add(8 * at).cast(), _mm256_castsi256_si128(upper));
        }
    }
    for (at, value) in rest.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(8 * whole.len() + at).write(bf16::from_f32(*value)) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::rows::{quantise, swapped};
    use super::*;
    use crate::isa::Isa;

    /// Numbers of all magnitudes, and groups with non-finite numbers, zeros, or tiny numbers.
    fn values(k: usize) -> Vec<f32> {
        let mut values: Vec<f32> =
            (0..k).map(|at| (at as f32 * 1.7).sin() * 10f32.powi(at as i32 / 64 % 60 - 28)).collect();
        for (group, value) in
            [f32::NAN, -f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, 0.0].into_iter().enumerate()
        {
            values[GROUP * group + 5 * group] = value;
        }
        values[6 * GROUP..7 * GROUP].fill(-0.0);
        values[7 * GROUP..8 * GROUP].fill(f32::from_bits(1));
        values[8 * GROUP..9 * GROUP].fill(-LEAST);
        values[9 * GROUP..10 * GROUP].fill(LEAST * 0.999);
        // Half-integers, which are ties.
        for (at, value) in values[10 * GROUP..11 * GROUP].iter_mut().enumerate() {
            *value = if at == 3 { MOST } else { at as f32 - 15.5 };
        }
        values
    }

    /// Bits of everything written.
    fn written(rows: Rows, count: usize) -> (Vec<i16>, Vec<[u32; 5]>, Vec<[i8; GROUP]>) {
        let groups = rows.k / GROUP;
        let (mut codes, mut parts, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..count {
            let row = rows.from(row);
            // SAFETY: this part was written.
            unsafe {
                codes.extend((0..rows.k).map(|at| *row.codes.add(at / GROUP * GROUP + swapped(at % GROUP))));
                for group in 0..groups {
                    let part = *row.parts.add(group);
                    let [first, second] = part.halves.map(i32::cast_unsigned);
                    let scale = if part.scale.is_nan() { u32::MAX } else { part.scale.to_bits() };
                    parts.push([scale, first, second, part.sum.cast_unsigned(), part.total.to_bits()]);
                    if !rows.bytes.is_null() {
                        bytes.extend([(*row.bytes.add(group)).upper, (*row.bytes.add(group)).lower]);
                    }
                }
            }
        }
        (codes, parts, bytes)
    }

    #[test]
    fn rows_are_those_of_the_portable_kernel() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let k = 128 * GROUP;
        for count in [1, 7] {
            let values = values(count * k);
            let halves: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
            let single = Mat { ptr: values.as_ptr().cast(), elem: Elem::F32, stride: k };
            let half = Mat { ptr: halves.as_ptr().cast(), elem: Elem::Bf16, stride: k };
            for x in [single, half] {
                let found = [false, true].map(|fast| {
                    let mut memory = vec![0u64; Rows::bytes(Isa::Avx2, count, k) / 8 + 8];
                    let memory: *mut u8 = memory.as_mut_ptr().cast();
                    let rows = Rows::at(memory.wrapping_add(memory.align_offset(64)), Isa::Avx2, count, k);
                    for row in 0..count {
                        // SAFETY: both rows have these elements, and the processor supports it.
                        unsafe {
                            if fast { quantise_row(&x, row, rows, row) } else { quantise(&x, row, rows, row) }
                        }
                    }
                    written(rows, count)
                });
                assert_eq!(found[0], found[1], "{count} rows of {:?}", x.elem);
            }
        }
    }

    #[test]
    fn sums_are_rounded_as_others_are() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let mut values = values(128 * GROUP);
        values.extend((0..77u32).map(|at| f32::from_bits(0x3f80_7ffe + at * 0x8001)));
        let mut found = vec![bf16::ZERO; values.len()];
        // SAFETY: there is room for as many, and the processor supports it.
        unsafe { store_bf16(&values, found.as_mut_ptr()) };
        for (value, found) in values.iter().zip(found) {
            assert_eq!(found.to_bits(), bf16::from_f32(*value).to_bits(), "{value}");
        }
    }
}
