//! The AMX kernel: 32 x 32 blocks of C as 2 x 2 tiles of bf16 products, by inline assembly because stable
//! Rust has no intrinsics for it. `Isa::detect` has asked the kernel for the tile state.
//!
//! A step is 32 of k: panels of A are `[k / 32][2][16 rows][32 k]`, panels of B `[k / 32][2][16 pairs][16 n][2]`.
//! A is read with the T1 hint so that the panel of B stays in L1.
#![allow(unsafe_code)]

use super::avx512::{load, store};
use super::kind::{Cut, Kind, Source};
use super::pack512::{pairs_across, pairs_along, transpose};
use std::arch::asm;
use std::arch::x86_64::*;

const SIDE: usize = 32;
/// Elements and bytes of one tile.
const TILE: usize = 512;

pub(super) static KIND: Kind = Kind {
    mr: SIDE,
    nr: SIDE,
    unit: 32,
    kc: 512,
    size: 2,
    block: (256, 256),
    group: 4,
    pack_first_bytes: 64 << 20,
    pack_a: pack::<true>,
    pack_b: pack::<false>,
    micro,
    enter,
    leave,
    load,
    store,
    few: None,
};

#[repr(C, align(64))]
struct Config([u8; 64]);

/// Palette 1, eight tiles of 16 rows of 64 bytes. (Intel SDM vol. 1, 18.2.)
static CONFIG: Config = {
    let mut bytes = [0u8; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    Config(bytes)
};

unsafe fn enter() {
    // SAFETY: the processor has AMX and the process may use it, or this kind is not chosen.
    unsafe { asm!("ldtilecfg [{}]", in(reg) CONFIG.0.as_ptr(), options(nostack, readonly)) }
}

/// Without it each context switch would save 8 KiB.
unsafe fn leave() {
    // SAFETY: as `enter`.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// See [`super::kind::Micro`]. The compiler does not use tile registers, so they hold between the blocks.
unsafe fn micro(steps: usize, a: *const u8, b: *const u8, c: *mut f32, rows: usize, fresh: bool) {
    let stride = SIDE * 4;
    // SAFETY: `steps` tile steps of both panels and a 32 x 32 block of C, in memory of their own.
    unsafe {
        let below = c.add(16 * SIDE);
        if fresh {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        } else {
            asm!(
                "tileloadd tmm0, [{c} + {s}*1]", "tileloadd tmm1, [{c} + {s}*1 + 64]",
                "tileloadd tmm2, [{d} + {s}*1]", "tileloadd tmm3, [{d} + {s}*1 + 64]",
                c = in(reg) c, d = in(reg) below, s = in(reg) stride, options(nostack, readonly)
            );
        }
        if rows > 16 {
            asm!(
                "2:",
                "tileloadd tmm6, [{b} + {s}*1]", "tileloaddt1 tmm4, [{a} + {s}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloaddt1 tmm5, [{a} + {s}*1 + 1024]", "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048", "add {b}, 2048", "dec {k}", "jnz 2b",
                a = inout(reg) a => _, b = inout(reg) b => _, k = inout(reg) steps => _, s = in(reg) 64usize,
                options(nostack, readonly)
            );
        } else {
            asm!(
                "2:",
                "tileloadd tmm6, [{b} + {s}*1]", "tileloaddt1 tmm4, [{a} + {s}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
                "add {a}, 2048", "add {b}, 2048", "dec {k}", "jnz 2b",
                a = inout(reg) a => _, b = inout(reg) b => _, k = inout(reg) steps => _, s = in(reg) 64usize,
                options(nostack, readonly)
            );
        }
        asm!(
            "tilestored [{c} + {s}*1], tmm0", "tilestored [{c} + {s}*1 + 64], tmm1",
            "tilestored [{d} + {s}*1], tmm2", "tilestored [{d} + {s}*1 + 64], tmm3",
            c = in(reg) c, d = in(reg) below, s = in(reg) stride, options(nostack)
        );
    }
}

/// Panels for [`micro`]: a tile of A has outer indices as rows, one of B has pairs of k as rows. Whichever
/// way the operand is stored, 16 x 16 pairs are read along its contiguous direction and turned if needed.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack<const A: bool>(source: &Source, cut: Cut, dst: *mut u8) {
    let steps = (cut.k1 - cut.k0).div_ceil(32);
    for step in 0..steps {
        let k = cut.k0 + step * 32;
        for half in 0..2 * cut.panels {
            let (panel, o) = (half / 2, cut.o0 + half * 16);
            // SAFETY: the pairs are masked to the operand; the tile lies in this panel of the destination.
            unsafe {
                let mut block =
                    if source.k_contiguous { pairs_along(source, o, k) } else { pairs_across(source, o, k) };
                if source.k_contiguous != A {
                    transpose(&mut block);
                }
                let to = dst.cast::<u16>().add(((panel * steps + step) * 2 + half % 2) * TILE);
                for (i, row) in block.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add(i * 32).cast(), row);
                }
            }
        }
    }
}
