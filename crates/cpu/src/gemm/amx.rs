//! The AMX kernel: 32 x 32 blocks of C as 2 x 2 tiles of bf16 products, in inline assembly because stable Rust has no
//! intrinsics for it. `Isa::detect` has requested the tile state from the kernel.
//!
//! A step is 32 of k: panels of A are `[k / 32][2][16 rows][32 k]`, panels of B `[k / 32][2][16 pairs][16 n][2]`.
//! A is read with the T1 hint so that the panel of B stays in L1.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::kernel::{Kind, PackRange, Panels, Source};
use super::pack512::{PAIR, first, load, load_transposed, pairs_across, transpose};
use super::{Elem, MatMut, avx512, block::Tile, few512};

const SIDE: usize = 32;
/// Elements of one tile.
const TILE: usize = 512;
/// Distance in bytes at which packing prefetches a row.
const AHEAD: usize = 320;

pub(super) static KIND: Kind = Kind {
    mr: SIDE,
    nr: SIDE,
    unit: 32,
    kc: 512,
    size: 2,
    block: (256, 1024),
    keep: 1 << 20,
    edges: (300, 50),
    group: 4,
    pack_first_bytes: 64 << 20,
    pack_a: pack::<true>,
    pack_b: pack::<false>,
    micro,
    prefetch_lines: 4,
    enter,
    leave,
    load: avx512::load,
    store,
    round: None,
    stream_bytes: 2 << 20,
    few: Some((few512::ROWS, few512::few_tiles)),
    slim: None,
    few_widens: false,
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

/// Without the release each context switch would save 8 KiB; the fence is for non-temporal stores.
unsafe fn leave() {
    // SAFETY: as `enter`.
    unsafe { asm!("tilerelease", "sfence", options(nostack)) }
}

/// See [`super::kind::Micro`]. The next tile of C follows this one; it and the next panel of B are prefetched a few
/// lines per step, as a burst would stall the tiles. The compiler does not use tile registers, so they hold their
/// values between the blocks.
unsafe fn micro(steps: usize, panels: Panels, c: *mut f32, rows: usize, fresh: bool) {
    let Panels { a, b, soon } = panels;
    let stride = SIDE * 4;
    // SAFETY: `steps` tile steps of both panels and a 32 x 32 block of C, in separate memory.
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
                "prefetcht0 [{d}]", "prefetcht0 [{d} + 64]",
                "tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht1 [{n}]", "prefetcht1 [{n} + {p}]",
                "tileloaddt1 tmm5, [{a} + {s}*1 + 1024]", "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht0 [{d} + 128]", "prefetcht0 [{d} + 192]", "add {d}, 256",
                "prefetcht1 [{n} + 2*{p}]", "prefetcht1 [{n} + {q}]", "add {n}, {u}",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048", "add {b}, 2048", "dec {k}", "jnz 2b",
                a = inout(reg) a => _, b = inout(reg) b => _, k = inout(reg) steps => _, s = in(reg) 64usize,
                d = inout(reg) c.wrapping_add(SIDE * SIDE) => _, n = inout(reg) soon.ptr => _,
                p = in(reg) soon.apart, q = in(reg) soon.apart.wrapping_mul(3), u = in(reg) soon.unit,
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

/// Panels for [`micro`]: a tile of A has outer indices as rows, one of B has pairs of k as rows.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack<const A: bool>(source: &Source, cut: PackRange, dst: *mut u8) {
    let steps = (cut.k1 - cut.k0).div_ceil(32);
    // SAFETY: the tiles of a half of a panel are `2 * TILE` apart in the destination.
    unsafe {
        if source.k_contiguous {
            for half in 0..2 * cut.panels {
                let (panel, o) = (half / 2, cut.o0 + half * 16);
                let to = dst.cast::<u16>().add((panel * steps * 2 + half % 2) * TILE);
                if A {
                    copy_along(source, o, cut.k0, steps, to);
                } else {
                    turn_along(source, o, cut.k0, steps, to);
                }
            }
            return;
        }
        // A few rows at a time for all panels, so that they are read in long runs.
        for step in 0..steps {
            for panel in 0..cut.panels {
                let mut halves = pairs_across(source, cut.o0 + panel * SIDE, cut.k0 + step * 32);
                let to = dst.cast::<u16>().add((panel * steps + step) * 2 * TILE);
                for (half, block) in halves.iter_mut().enumerate() {
                    if A {
                        transpose(block);
                    }
                    write(block, to.add(half * TILE));
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn write(block: &[__m512i; 16], to: *mut u16) {
    for i in 0..16 {
        // SAFETY: a tile of the destination.
        unsafe { _mm512_storeu_si512(to.add(i * 32).cast(), block[i]) };
    }
}

/// 16 rows of A from `o` on, each copied in one run.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn copy_along(source: &Source, o: usize, k0: usize, steps: usize, to: *mut u16) {
    for i in 0..16 {
        let row = source.ptr.wrapping_add((o + i) * source.stride * 2);
        for step in 0..steps {
            let k = k0 + step * 32;
            let valid = if o + i < source.outer { source.k.saturating_sub(k) } else { 0 };
            // SAFETY: masked to the operand.
            unsafe {
                let pairs = load::<PAIR>(row.wrapping_add(2 * k), valid);
                _mm512_storeu_si512(to.add(step * 2 * TILE + i * 32).cast(), pairs);
            }
        }
    }
}

/// Packs 16 columns of B from `o` on, transposing 16 pairs of k of each.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn turn_along(source: &Source, o: usize, k0: usize, steps: usize, to: *mut u16) {
    // Columns past the operand repeat its last one: their sums are never stored.
    let rows: [*const u8; 16] =
        std::array::from_fn(|i| source.ptr.wrapping_add((o + i).min(source.outer - 1) * source.stride * 2));
    for step in 0..steps {
        let k = k0 + step * 32;
        // SAFETY: the rows exist, and are read to their end at most.
        unsafe {
            for row in rows {
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(2 * k + AHEAD).cast());
            }
            let block = if k + 32 <= source.k {
                load_transposed(&rows, 2 * k)
            } else {
                let valid = source.k.saturating_sub(k);
                let mut block = [_mm512_setzero_si512(); 16];
                for i in 0..16 {
                    block[i] = load::<PAIR>(rows[i].wrapping_add(2 * k), valid);
                }
                transpose(&mut block);
                block
            };
            write(&block, to.add(step * 2 * TILE));
        }
    }
}

/// See [`super::block::store`]. No sum is denormal, which this conversion would flush: the tiles already did.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn store(tile: &Tile, c: &MatMut) {
    let whole = |to: *mut u8| tile.stream && tile.cols == SIDE && to.addr().is_multiple_of(64);
    let size = c.elem.bytes();
    if c.elem == Elem::F32 && !(whole(c.ptr) && c.stride.is_multiple_of(16)) {
        // SAFETY: passed on.
        return unsafe { avx512::store(tile, c) };
    }
    let lanes = first(tile.cols);
    for row in 0..tile.rows {
        // SAFETY: masked to the valid columns of C; a row of a tile holds SIDE values.
        unsafe {
            let from = tile.ptr.add(row * SIDE);
            let (low, high) = (_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16)));
            let to = c.ptr.add(((tile.row + row) * c.stride + tile.col) * size);
            if c.elem == Elem::F32 {
                _mm512_stream_ps(to.cast(), low);
                _mm512_stream_ps(to.add(64).cast(), high);
                continue;
            }
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            if whole(to) {
                _mm512_stream_si512(to.cast(), both);
            } else {
                _mm512_mask_storeu_epi16(to.cast(), lanes, both);
            }
        }
    }
}
