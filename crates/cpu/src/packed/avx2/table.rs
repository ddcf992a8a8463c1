//! Factors of eight columns' groups.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use fathom_tensor::ggml::Kind;

use super::super::format::{Columns, Format, Lies, OCTET, Table};

/// f16 words in the lower or the upper halves of dwords, widened.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn halves(words: __m256i) -> __m256 {
    let packed = _mm256_packus_epi32(words, words);
    let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
    _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
}

/// The f16 at `at` of each of eight blocks.
///
/// # Safety
/// The blocks have it.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn halves_at(blocks: Columns, at: usize) -> __m256 {
    // SAFETY: the caller's promise.
    let word = |col: usize| unsafe { blocks.at(col).add(at).cast::<u16>().read_unaligned() };
    let four = |col: usize| (0..4).fold(0u64, |all, i| all | u64::from(word(col + i)) << (16 * i));
    _mm256_cvtph_ps(_mm_set_epi64x(four(4).cast_signed(), four(0).cast_signed()))
}

/// Like [`super::super::format::table`].
///
/// # Safety
/// The columns have this type and the block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) unsafe fn table<F: Format>(columns: Columns, index: usize, out: &mut Table) {
    let blocks = columns.block::<F>(index);
    let store = |to: &mut [f32; OCTET], x: __m256| {
        // SAFETY: eight f32.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
    };
    // SAFETY: the caller's promise.
    unsafe {
        match F::LIES {
            Lies::Behind(_) | Lies::Nf4 | Lies::Signed => behind::<F>(columns, index, out),
            Lies::Within(Kind::Q4K | Kind::Q5K) => {
                // Sixteen bytes: d, dmin, scales of groups 0..4, their offsets, and the rest.
                let two = |col: usize| {
                    let load = |col| _mm_loadu_si128(blocks.at(col).cast());
                    _mm256_set_m128i(load(col + 4), load(col))
                };
                let (a, b, c, d) = (two(0), two(1), two(2), two(3));
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                let both = _mm256_unpacklo_epi64(ab, cd);
                let scales = _mm256_unpackhi_epi64(ab, cd);
                let (ab, cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                let (mins, rest) = (_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
                let d = halves(_mm256_and_si256(both, _mm256_set1_epi32(0xffff)));
                let least = halves(_mm256_srli_epi32::<16>(both));
                let six = _mm256_set1_epi8(63);
                let four = _mm256_set1_epi8(15);
                // Moves the upper two bits of each byte to bits four and five.
                let upper = |x| _mm256_and_si256(_mm256_srli_epi32::<2>(x), _mm256_set1_epi8(48));
                let late = |x, low| _mm256_or_si256(_mm256_and_si256(low, four), upper(x));
                let all = [
                    (_mm256_and_si256(scales, six), _mm256_and_si256(mins, six)),
                    (late(scales, rest), late(mins, _mm256_srli_epi32::<4>(rest))),
                ];
                for (part, (scales, mins)) in all.into_iter().enumerate() {
                    for byte in 0..4 {
                        let of = |x| {
                            let x = _mm256_srlv_epi32(x, _mm256_set1_epi32(8 * byte as i32));
                            _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(255)))
                        };
                        let group = 4 * part + byte;
                        store(&mut out.factors[group], _mm256_mul_ps(d, of(scales)));
                        store(&mut out.offsets[group], _mm256_mul_ps(least, of(mins)));
                    }
                }
            }
            Lies::Within(Kind::Q6K) => {
                let d = halves_at(blocks, 208);
                let mut bytes: [__m128i; OCTET] =
                    std::array::from_fn(|col| _mm_loadu_si128(blocks.at(col).add(192).cast()));
                // Three perfect shuffles transpose [column][byte] to [byte][column].
                for _ in 0..3 {
                    let old = bytes;
                    for i in 0..4 {
                        bytes[2 * i] = _mm_unpacklo_epi8(old[i], old[i + 4]);
                        bytes[2 * i + 1] = _mm_unpackhi_epi8(old[i], old[i + 4]);
                    }
                }
                for (pair, bytes) in bytes.into_iter().enumerate() {
                    for (half, bytes) in [bytes, _mm_srli_si128::<8>(bytes)].into_iter().enumerate() {
                        let scale = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                        store(&mut out.factors[2 * pair + half], _mm256_mul_ps(d, scale));
                    }
                }
            }
            Lies::Within(kind) => {
                store(&mut out.factors[0], halves_at(blocks, 0));
                if matches!(kind, Kind::Q4_1 | Kind::Q5_1) {
                    let added = halves_at(blocks, 2);
                    store(&mut out.offsets[0], _mm256_xor_ps(added, _mm256_set1_ps(-0.0)));
                }
            }
        }
    }
}

/// Factors that are stored behind the codes of eight columns.
///
/// # Safety
/// See [`table`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn behind<F: Format>(columns: Columns, index: usize, out: &mut Table) {
    let of = columns.behind;
    // SAFETY: the caller's promise.
    unsafe {
        let scales = |at: usize| -> [f32; OCTET] {
            let at = of.scales + 4 * at;
            std::array::from_fn(|col| columns.at(col).add(at).cast::<f32>().read_unaligned())
        };
        if of.span == 0 {
            return out.scaled::<F>([scales(2 * index), scales(2 * index + 1)]);
        }
        let at = index / of.span;
        out.scaled::<F>([scales(at); 2]);
        if F::ZEROS {
            out.zeros = std::array::from_fn(|col| i32::from(*columns.at(col).add(of.zeros + at)));
        }
    }
}
