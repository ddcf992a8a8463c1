//! Inner loops of MinHash, compiled for every supported vector width and selected at run time.
//!
//! Lane i of a signature is the minimum over all shingles x of `(x xor b[i]) a[i]` or of `a[i] x + b[i]`, modulo
//! 2^32. The lanes of a block stay in registers while all shingles pass, so each shingle costs one multiplication,
//! one addition (or exclusive or) and one minimum per vector.

use fearless_simd::{Simd, SimdBase, u32x16};

/// Lanes in a vector; signatures are padded to whole vectors.
pub(super) const LANES: usize = 16;

/// Vectors held in registers at once: three registers each, plus one for the shingle.
const BLOCK: usize = 4;

/// Lowers `minima` to the minimum of `(x xor b) a` (`LINEAR`: of `a x + b`) over all x in `hashes`. The other three
/// slices have equal length, a multiple of [`LANES`].
#[inline(always)]
pub(super) fn multiply_min<S: Simd, const LINEAR: bool>(
    simd: S,
    hashes: &[u32],
    a: &[u32],
    b: &[u32],
    minima: &mut [u32],
) {
    let blocks = minima.len() / (LANES * BLOCK) * (LANES * BLOCK);
    let (wide, narrow) = minima.split_at_mut(blocks);
    for (block, minima) in wide.chunks_exact_mut(LANES * BLOCK).enumerate() {
        let from = block * LANES * BLOCK;
        lower::<S, BLOCK, LINEAR>(simd, hashes, &a[from..], &b[from..], minima);
    }
    for (block, minima) in narrow.chunks_exact_mut(LANES).enumerate() {
        let from = blocks + block * LANES;
        lower::<S, 1, LINEAR>(simd, hashes, &a[from..], &b[from..], minima);
    }
}

#[inline(always)]
fn lower<S: Simd, const VECTORS: usize, const LINEAR: bool>(
    simd: S,
    hashes: &[u32],
    a: &[u32],
    b: &[u32],
    minima: &mut [u32],
) {
    let load = |from: &[u32], v: usize| u32x16::from_slice(simd, &from[v * LANES..(v + 1) * LANES]);
    let a: [u32x16<S>; VECTORS] = std::array::from_fn(|v| load(a, v));
    let b: [u32x16<S>; VECTORS] = std::array::from_fn(|v| load(b, v));
    let mut least: [u32x16<S>; VECTORS] = std::array::from_fn(|v| load(minima, v));
    for &hash in hashes {
        let x = u32x16::splat(simd, hash);
        for v in 0..VECTORS {
            let value = if LINEAR { a[v] * x + b[v] } else { (x ^ b[v]) * a[v] };
            least[v] = least[v].min(value);
        }
    }
    for (v, least) in least.into_iter().enumerate() {
        least.store_slice(&mut minima[v * LANES..(v + 1) * LANES]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fearless_simd::{Level, dispatch};

    #[test]
    fn is_the_minimum_of_each_lane() {
        let a: Vec<u32> = (0..112u32).map(|i| i.wrapping_mul(2_654_435_761) | 1).collect();
        let b: Vec<u32> = (0..112u32).map(|i| i.wrapping_mul(40_503)).collect();
        let hashes: Vec<u32> = (0..77u32).map(|i| i.wrapping_mul(0x85eb_ca6b)).collect();
        for lanes in [16, 64, 80, 112] {
            let (a, b) = (&a[..lanes], &b[..lanes]);
            let (mut linear, mut mixed) = (vec![u32::MAX; lanes], vec![u32::MAX; lanes]);
            dispatch!(Level::new(), simd => multiply_min::<_, true>(simd, &hashes, a, b, &mut linear));
            dispatch!(Level::new(), simd => multiply_min::<_, false>(simd, &hashes, a, b, &mut mixed));
            for lane in 0..lanes {
                let least = hashes.iter().map(|&x| x.wrapping_mul(a[lane]).wrapping_add(b[lane])).min();
                assert_eq!(Some(linear[lane]), least, "lane {lane} of {lanes}");
                let least = hashes.iter().map(|&x| (x ^ b[lane]).wrapping_mul(a[lane])).min();
                assert_eq!(Some(mixed[lane]), least, "lane {lane} of {lanes}");
            }
        }
    }
}
