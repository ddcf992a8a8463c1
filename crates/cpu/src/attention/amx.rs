//! `C (+)= A B` on AMX tiles, by inline assembly (stable Rust has no intrinsics for them).
//!
//! A block of C is 2 x 2 tiles of 16 x 16 f32; per 16 words of depth two tiles of A, two of B and four `tdpbf16ps`.
//! Tiles 0 to 3 hold C, 4 and 5 A, 6 and 7 B. (Intel SDM vol. 2, TDPBF16PS.)
#![allow(unsafe_op_in_unsafe_fn)] // one kernel, its contract is stated at `product`

use super::product::Product;
use super::simd::LANES;
use std::arch::asm;

/// Bytes of a row of a tile, and of a packed panel.
const ROW: usize = 64;

/// Size in bytes from which a B that is read once for 32 rows is streamed past the first-level cache, which then holds
/// everything else.
const FAR: usize = 16 << 10;

#[repr(C, align(64))]
struct TileConfig([u8; 64]);

/// Configures all eight tiles of this thread as 16 rows of 64 bytes.
///
/// # Safety
/// The process has the permission for tile state.
pub unsafe fn begin() {
    let mut config = TileConfig([0; 64]);
    config.0[0] = 1;
    for tile in 0..8 {
        config.0[16 + 2 * tile] = ROW as u8;
        config.0[48 + tile] = 16;
    }
    asm!("ldtilecfg [{}]", in(reg) config.0.as_ptr(), options(nostack, readonly));
}

/// Releases the tile state; otherwise every context switch would save 8 KiB.
///
/// # Safety
/// The process has the permission for tile state.
pub unsafe fn end() {
    asm!("tilerelease", options(nostack, nomem));
}

/// The product by blocks of 32 rows and two panels; a last odd panel by 32 rows and one.
///
/// # Safety
/// `begin` was called on this thread. Operands cover the extents with rows rounded up to 32; depth is a multiple
/// of 16; C overlaps neither A nor B.
pub unsafe fn product(p: &Product) {
    let mut panel = 0;
    while panel < p.panels {
        let pair = p.panels - panel >= 2;
        let mut row = 0;
        while row < p.rows {
            let a = p.a.add(row * p.lda);
            let b = p.b.add(panel * p.ldb);
            let c = p.c.add(row * p.ldc + panel * LANES);
            if pair {
                block_2x2(p, a, b, c)
            } else {
                block_2x1(p, a, b, c)
            }
            row += 32;
        }
        panel += if pair { 2 } else { 1 };
    }
}

#[inline(always)]
unsafe fn block_2x2(p: &Product, a: *const u32, b: *const u32, c: *mut f32) {
    let (lda, ldc) = (p.lda * 4, p.ldc * 4);
    let c1 = c.add(16 * p.ldc);
    if p.add {
        asm!(
            "tileloadd tmm0, [{c} + {l}*1]",
            "tileloadd tmm1, [{c} + {l}*1 + 64]",
            "tileloadd tmm2, [{d} + {l}*1]",
            "tileloadd tmm3, [{d} + {l}*1 + 64]",
            c = in(reg) c, d = in(reg) c1, l = in(reg) ldc, options(nostack, readonly)
        );
    } else {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
    }
    macro_rules! steps {
        ($load:literal) => {
            asm!(
                "2:",
                concat!($load, " tmm6, [{b} + {s}*1]"),
                "tileloadd tmm4, [{a} + {l}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                concat!($load, " tmm7, [{e} + {s}*1]"),
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{d} + {l}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 64",
                "add {d}, 64",
                "add {b}, 1024",
                "add {e}, 1024",
                "dec {k}",
                "jnz 2b",
                a = inout(reg) a => _, d = inout(reg) a.add(16 * p.lda) => _,
                b = inout(reg) b => _, e = inout(reg) b.add(p.ldb) => _,
                k = inout(reg) p.depth / 16 => _, l = in(reg) lda, s = in(reg) ROW,
                options(nostack, readonly)
            )
        };
    }
    if p.panels * p.depth * ROW <= FAR {
        steps!("tileloaddt1")
    } else {
        steps!("tileloadd")
    }
    asm!(
        "tilestored [{c} + {l}*1], tmm0",
        "tilestored [{c} + {l}*1 + 64], tmm1",
        "tilestored [{d} + {l}*1], tmm2",
        "tilestored [{d} + {l}*1 + 64], tmm3",
        c = in(reg) c, d = in(reg) c1, l = in(reg) ldc, options(nostack)
    );
}

#[inline(always)]
unsafe fn block_2x1(p: &Product, a: *const u32, b: *const u32, c: *mut f32) {
    let (lda, ldc) = (p.lda * 4, p.ldc * 4);
    let c1 = c.add(16 * p.ldc);
    if p.add {
        asm!(
            "tileloadd tmm0, [{c} + {l}*1]",
            "tileloadd tmm2, [{d} + {l}*1]",
            c = in(reg) c, d = in(reg) c1, l = in(reg) ldc, options(nostack, readonly)
        );
    } else {
        asm!("tilezero tmm0", "tilezero tmm2", options(nostack, nomem));
    }
    asm!(
        "2:",
        "tileloadd tmm6, [{b} + {s}*1]",
        "tileloadd tmm4, [{a} + {l}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{d} + {l}*1]",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "add {a}, 64",
        "add {d}, 64",
        "add {b}, 1024",
        "dec {k}",
        "jnz 2b",
        a = inout(reg) a => _, d = inout(reg) a.add(16 * p.lda) => _, b = inout(reg) b => _,
        k = inout(reg) p.depth / 16 => _, l = in(reg) lda, s = in(reg) ROW,
        options(nostack, readonly)
    );
    asm!(
        "tilestored [{c} + {l}*1], tmm0",
        "tilestored [{d} + {l}*1], tmm2",
        c = in(reg) c, d = in(reg) c1, l = in(reg) ldc, options(nostack)
    );
}
