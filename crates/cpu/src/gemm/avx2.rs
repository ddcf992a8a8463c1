//! The AVX2 kernel: 6 x 16 tiles of f32 with fused multiply-add; bf16 is widened in the panels.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::kernel::{Kind, PackRange, Panels, Source, nothing};
use super::pack_avx2::pack;
use super::{block, few_avx2};

const MR: usize = 6;
const NR: usize = 16;

pub(super) static KIND: Kind = Kind {
    mr: MR,
    nr: NR,
    unit: 1,
    kc: 256,
    size: 4,
    block: (192, 256),
    keep: 0,
    edges: (14, 14),
    group: 4,
    pack_first_bytes: 0,
    pack_a,
    pack_b,
    micro,
    prefetch_lines: 0,
    enter: nothing,
    leave: nothing,
    load: block::load,
    store,
    round: None,
    stream_bytes: usize::MAX,
    few: Some((few_avx2::ROWS, few_avx2::few)),
    slim: None,
    few_widens: true,
};

#[target_feature(enable = "avx2,fma")]
unsafe fn store(tile: &block::Tile, c: &super::MatMut) {
    // SAFETY: passed on.
    unsafe { block::store(tile, c) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn pack_a(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on.
    unsafe { pack::<MR>(source, cut, dst) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn pack_b(source: &Source, cut: PackRange, dst: *mut u8) {
    // SAFETY: passed on.
    unsafe { pack::<NR>(source, cut, dst) }
}

/// See [`super::kind::Micro`].
#[target_feature(enable = "avx2,fma")]
unsafe fn micro(steps: usize, panels: Panels, c: *mut f32, rows: usize, fresh: bool) {
    let (a, b) = (panels.a, panels.b);
    // SAFETY: passed on; a panel of A holds MR rows whatever `rows` is.
    unsafe {
        match rows {
            1 => tile::<1>(steps, a.cast(), b.cast(), c, fresh),
            2 => tile::<2>(steps, a.cast(), b.cast(), c, fresh),
            3 | 4 => tile::<4>(steps, a.cast(), b.cast(), c, fresh),
            _ => tile::<6>(steps, a.cast(), b.cast(), c, fresh),
        }
    }
}

/// The first `R` rows of a tile.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn tile<const R: usize>(steps: usize, a: *const f32, b: *const f32, c: *mut f32, fresh: bool) {
    // SAFETY: `a` and `b` hold `steps` times MR and NR values, `c` holds MR x NR.
    unsafe {
        let mut sum = [[_mm256_setzero_ps(); 2]; R];
        if !fresh {
            for i in 0..R {
                sum[i] = [_mm256_loadu_ps(c.add(i * NR)), _mm256_loadu_ps(c.add(i * NR + 8))];
            }
        }
        for step in 0..steps {
            let (a, b) = (a.add(step * MR), b.add(step * NR));
            let (b0, b1) = (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)));
            for i in 0..R {
                let x = _mm256_broadcast_ss(&*a.add(i));
                sum[i] = [_mm256_fmadd_ps(x, b0, sum[i][0]), _mm256_fmadd_ps(x, b1, sum[i][1])];
            }
        }
        for i in 0..R {
            _mm256_storeu_ps(c.add(i * NR), sum[i][0]);
            _mm256_storeu_ps(c.add(i * NR + 8), sum[i][1]);
        }
    }
}
