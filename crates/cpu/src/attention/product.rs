//! `C (+)= A B` on packed operands: the register tile of every vector instruction set.
//!
//! A is rows of words, B is panels of 16 columns `[panel][depth][16]` (also the layout of an AMX tile), C is rows
//! of f32. Each element of C is one chain over ascending depth, so neither the tile nor its neighbours change it.
#![allow(unsafe_op_in_unsafe_fn)] // one kernel, its contract is stated at `Product`

use super::simd::{LANES, Simd};

/// Rows of the tile on instruction sets with sixteen registers of half a vector each.
const FEW_REGISTERS: usize = 6;

/// Operands and extents of one product.
pub struct Product {
    /// First word of A, and words between its rows.
    pub a: *const u32,
    pub lda: usize,
    /// First word of B, and words between its panels.
    pub b: *const u32,
    pub ldb: usize,
    /// Words of the inner dimension.
    pub depth: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub rows: usize,
    /// Panels of 16 columns.
    pub panels: usize,
    /// Add to C instead of overwriting it.
    pub add: bool,
}

/// The product by register tiles of `S::TILE`.
///
/// # Safety
/// The operands cover the extents; C overlaps neither A nor B; the processor has `S`.
#[inline(always)]
pub unsafe fn product<S: Simd>(p: &Product) {
    let mut panel = 0;
    while panel < p.panels {
        let left = p.panels - panel;
        // One or two rows have too few sums in a panel to cover the latency.
        let few = if S::TILE.0 == FEW_REGISTERS { p.rows } else { usize::MAX };
        panel += if (S::TILE.1 >= 4 || few == 1) && left >= 4 {
            columns::<S, 4>(p, panel)
        } else if (S::TILE.1 >= 2 || few <= 2) && left >= 2 {
            columns::<S, 2>(p, panel)
        } else {
            columns::<S, 1>(p, panel)
        };
    }
}

#[inline(always)]
unsafe fn columns<S: Simd, const C: usize>(p: &Product, panel: usize) -> usize {
    let mut row = 0;
    while row < p.rows {
        let left = p.rows - row;
        // The last panels get more rows, so that there are enough sums to cover the latency.
        row += if C <= 2 && S::TILE.0 == 4 && left >= 8 {
            tile::<S, 8, C>(p, row, panel)
        } else if S::TILE.0 == FEW_REGISTERS && C == 1 && left >= 3 {
            // Seven or eight rows are split into fours, which have enough sums; one or two rows at the end would not.
            match left {
                3 => tile::<S, 3, C>(p, row, panel),
                5 => tile::<S, 5, C>(p, row, panel),
                4 | 7 | 8 => tile::<S, 4, C>(p, row, panel),
                _ => tile::<S, 6, C>(p, row, panel),
            }
        } else if S::TILE.0 >= 4 && left >= 4 {
            tile::<S, 4, C>(p, row, panel)
        } else if left >= 2 {
            tile::<S, 2, C>(p, row, panel)
        } else {
            tile::<S, 1, C>(p, row, panel)
        };
    }
    C
}

#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize>(p: &Product, row: usize, panel: usize) -> usize {
    // Loops, not closures: a closure is compiled without the instruction set and may not be inlined.
    let mut c = [p.c.add(row * p.ldc + panel * LANES); R];
    let mut a = [p.a.add(row * p.lda); R];
    let mut b = [p.b.add(panel * p.ldb); C];
    for r in 1..R {
        c[r] = c[r - 1].add(p.ldc);
        a[r] = a[r - 1].add(p.lda);
    }
    for j in 1..C {
        b[j] = b[j - 1].add(p.ldb);
    }
    let mut acc = [[S::splat(0.0); C]; R];
    if p.add {
        for r in 0..R {
            // Prefetches the sums of the tile below, which is next.
            let next = c[r].wrapping_add(R * p.ldc);
            for j in 0..C {
                S::prefetch(next.wrapping_add(j * LANES).cast());
                acc[r][j] = S::load(c[r].add(j * LANES));
            }
        }
    }
    for k in 0..p.depth {
        let mut words = [S::splat(0.0); C];
        for j in 0..C {
            words[j] = S::load(b[j].cast());
            b[j] = b[j].add(LANES);
        }
        for r in 0..R {
            for j in 0..C {
                acc[r][j] = S::dot(acc[r][j], a[r].add(k), words[j]);
            }
        }
    }
    for r in 0..R {
        for j in 0..C {
            S::store(c[r].add(j * LANES), acc[r][j]);
        }
    }
    R
}
