//! Packing for the AVX2 kernel: f32 panels `[k][width]` as in [`portable::pack`], eight rows transposed in registers at
//! a time.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::few_avx2::transposed;
use super::kernel::{PackRange, Source};
use super::{Elem, portable};

/// Elements per vector.
const LANES: usize = 8;

/// Packs panels of `W` outer indices; up to [`LANES`] f32 behind the last one are overwritten.
///
/// # Safety
/// See [`super::kind::Pack`].
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) unsafe fn pack<const W: usize>(source: &Source, cut: PackRange, dst: *mut u8) {
    let steps = cut.k1 - cut.k0;
    // A vector may extend past the panel, so the memory it reads must exist.
    let reach = W.next_multiple_of(LANES);
    for panel in 0..cut.panels {
        let o0 = cut.o0 + panel * W;
        let dst = dst.cast::<f32>().wrapping_add(panel * steps * W);
        let end = cut.k1.min(source.k).max(cut.k0);
        // SAFETY: rows o0..o0 + W and sums below `end` exist; the panel belongs to this call.
        let done = unsafe {
            if source.octets {
                if W.is_multiple_of(LANES) && o0 + W <= source.outer && cut.k0.is_multiple_of(2) {
                    apart::<W>(source, (o0, cut.k0, end), dst)
                } else {
                    0
                }
            } else if source.k_contiguous && o0 + W <= source.outer {
                turned::<W>(source, (o0, cut.k0, end), dst)
            } else if !source.k_contiguous && o0 + reach <= source.outer {
                copied::<W>(source, (o0, cut.k0, end), dst)
            } else {
                0
            }
        };
        let rest = PackRange { o0, panels: 1, k0: cut.k0 + done, k1: cut.k1 };
        // SAFETY: passed on.
        unsafe { portable::pack::<W>(source, rest, dst.wrapping_add(done * W).cast()) };
    }
}

/// Packs sums `k0..end` of rows with contiguous k, as many as fill whole vectors; returns how many.
///
/// # Safety
/// `W` rows from `o0` on have them; `dst` has room.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn turned<const W: usize>(
    source: &Source,
    (o0, k0, end): (usize, usize, usize),
    dst: *mut f32,
) -> usize {
    let size = source.elem.bytes();
    let step = 32 / size;
    let count = (end - k0) / step * step;
    for first in (0..W).step_by(LANES) {
        // Lanes past the panel repeat its last row; the next sum, or the next panel, overwrites them.
        let rows: [*const u8; LANES] = std::array::from_fn(|lane| {
            source.ptr.wrapping_add((o0 + (first + lane).min(W - 1)) * source.stride * size)
        });
        for k in (0..count).step_by(step) {
            // SAFETY: the caller's promise.
            unsafe {
                let dwords = transposed(&rows, (k0 + k) * size);
                for (at, dword) in dwords.into_iter().enumerate() {
                    let to = dst.add((k + at * step / LANES) * W + first);
                    match source.elem {
                        Elem::F32 => _mm256_storeu_ps(to, dword),
                        Elem::Bf16 => {
                            let bits = _mm256_castps_si256(dword);
                            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
                            _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)));
                            _mm256_storeu_ps(to.add(W), _mm256_castsi256_ps(_mm256_and_si256(bits, upper)));
                        }
                    }
                }
            }
        }
    }
    count
}

/// Packs sums `k0..end` of rows interleaved by eight, in whole pairs; returns how many.
///
/// # Safety
/// `W` rows from `o0` on have them, and `k0` is even; `dst` has room.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn apart<const W: usize>(
    source: &Source,
    (o0, k0, end): (usize, usize, usize),
    dst: *mut f32,
) -> usize {
    let count = (end - k0) / 2 * 2;
    let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    for first in (0..W).step_by(LANES) {
        let from = source.ptr.wrapping_add(2 * source.at(o0 + first, k0));
        for k in (0..count).step_by(2) {
            // SAFETY: the caller's promise.
            unsafe {
                let pairs = _mm256_loadu_si256(from.add(k * LANES * 2).cast());
                let to = dst.add(k * W + first);
                _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)));
                _mm256_storeu_ps(to.add(W), _mm256_castsi256_ps(_mm256_and_si256(pairs, upper)));
            }
        }
    }
    count
}

/// Packs sums `k0..end`, each with its rows adjacent; returns how many, which is all.
///
/// # Safety
/// `W` rows from `o0` on, padded to whole vectors, have them; `dst` has room.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn copied<const W: usize>(
    source: &Source,
    (o0, k0, end): (usize, usize, usize),
    dst: *mut f32,
) -> usize {
    for k in k0..end {
        for first in (0..W).step_by(LANES) {
            let at = k * source.stride + o0 + first;
            // SAFETY: the caller's promise.
            unsafe {
                let values = match source.elem {
                    Elem::F32 => _mm256_loadu_ps(source.ptr.cast::<f32>().add(at)),
                    Elem::Bf16 => {
                        let words = _mm_loadu_si128(source.ptr.cast::<u16>().add(at).cast());
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)))
                    }
                };
                _mm256_storeu_ps(dst.add((k - k0) * W + first), values);
            }
        }
    }
    end - k0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::SLACK;
    use crate::isa::Isa;

    /// Panels of a cut, by either packer; anything behind the panels is ignored.
    fn panels<const W: usize>(source: &Source, cut: PackRange, by_vectors: bool) -> Vec<u32> {
        let count = cut.panels * W * (cut.k1 - cut.k0);
        let mut out = vec![f32::NAN; count + SLACK / 4];
        let dst = out.as_mut_ptr().cast();
        // SAFETY: the processor supports it; the operand has its extents, and `out` the panels.
        unsafe {
            if by_vectors { pack::<W>(source, cut, dst) } else { portable::pack::<W>(source, cut, dst) }
        }
        out[..count].iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn panels_are_those_of_the_portable_packer() {
        if Isa::detect() == Isa::Portable {
            return;
        }
        let words: Vec<u32> =
            (0..70 * 70).map(|at: u32| at.wrapping_mul(2_654_435_761) & 0x3fff_3fff).collect();
        for elem in [Elem::F32, Elem::Bf16] {
            for k_contiguous in [true, false] {
                for (outer, k) in [(6, 16), (16, 16), (37, 53), (64, 64), (7, 3), (31, 48)] {
                    let stride = if k_contiguous { k } else { outer } + 3;
                    let ptr = words.as_ptr().cast();
                    let source = Source { ptr, elem, stride, k_contiguous, octets: false, outer, k };
                    for (k0, k1) in [(0, k), (0, k + 5), (k / 3, k), (k / 2, k / 2 + 9)] {
                        let cut = |width: usize| PackRange { o0: 0, panels: outer.div_ceil(width), k0, k1 };
                        let narrow = [true, false].map(|by| panels::<6>(&source, cut(6), by));
                        assert_eq!(narrow[0], narrow[1], "{outer} x {k}, {k0}..{k1}, {k_contiguous}");
                        let wide = [true, false].map(|by| panels::<16>(&source, cut(16), by));
                        assert_eq!(wide[0], wide[1], "{outer} x {k}, {k0}..{k1}, {k_contiguous}");
                    }
                }
            }
        }
    }
}
