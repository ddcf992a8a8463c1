//! Blocking: cuts C into blocks, one task each, and walks k inside a task.
//!
//! A task packs its rows of A per block of k, then each panel of B right before its use (or takes it packed),
//! and sums into f32 tiles of its own; each is written to C once, while the last block of k has it in L1.
#![allow(unsafe_code)]

use super::block::Tile;
use super::kind::{Cut, Few, Kind, SLACK, Source, kind};
use super::{Elem, Gemm, Mat, Shape};
use crate::isa::Isa;
use crate::threads::Threads;
use std::ops::Range;

/// Alignment of everything in the workspace.
const ALIGN: usize = 64;
/// With `Kind::pack_first_bytes`: columns of B below which it is not worth it.
const PACK_FIRST_COLUMNS: usize = 256;
/// With `Kind::pack_first_bytes`: the length of k in one pass over an f32 C; a multiple of every `Kind::kc`.
const PACK_FIRST_K: usize = 24576;

fn round_up(x: usize, to: usize) -> usize {
    x.div_ceil(to) * to
}

/// How C is cut: blocks of `mc x nc`, both multiples of the tile.
#[derive(Clone, Copy)]
struct Plan {
    mc: usize,
    nc: usize,
}

/// Balanced blocks within the kernel's limits: the cheapest of a few cuts by the time of the slowest thread,
/// a block costing its area plus packing its two edges (in units of one product of a 64-product cycle).
fn plan(kind: &Kind, threads: usize, m: usize, n: usize) -> Plan {
    const EDGE: usize = 14;
    let (high, wide) = (m.div_ceil(kind.mr), n.div_ceil(kind.nr));
    let (least_high, least_wide) =
        (high.div_ceil(kind.block.0 / kind.mr), wide.div_ceil(kind.block.1 / kind.nr));
    let mut best = (usize::MAX, Plan { mc: kind.mr, nc: kind.nr });
    for down in least_high..=high.min(least_high + 8) {
        for across in least_wide..=wide.min(least_wide + 8) {
            let (mc, nc) = (high.div_ceil(down) * kind.mr, wide.div_ceil(across) * kind.nr);
            let tasks = m.div_ceil(mc) * n.div_ceil(nc);
            let cost = tasks.div_ceil(threads) * (mc * nc + EDGE * (mc + nc)) + mc * nc / 8;
            if cost < best.0 {
                best = (cost, Plan { mc, nc });
            }
        }
    }
    best.1
}

/// The length of the blocks that k is cut into: equal ones, so that none is too short to pay for its tiles.
fn depth(kind: &Kind, k: usize) -> usize {
    const STEP: usize = 32;
    if k <= kind.kc + kind.kc / 3 {
        return round_up(k, STEP);
    }
    round_up(k.div_ceil(k.div_ceil(kind.kc)), STEP)
}

/// The parts of one thread's workspace, in bytes: panels of A, panels of B, tiles of C.
fn slice_parts(kind: &Kind, plan: Plan, shape: &Shape) -> [usize; 3] {
    let kc = depth(kind, shape.k);
    // A single block of k needs one tile at a time.
    let tiles = if shape.k <= kc { kind.mr * kind.nr } else { plan.mc * plan.nc };
    let b =
        if shape.b_packed { 0 } else { kind.group.min(plan.nc / kind.nr) * kind.nr * kc * kind.size + SLACK };
    [round_up(plan.mc * kc * kind.size + SLACK, ALIGN), round_up(b, ALIGN), round_up(tiles * 4, ALIGN)]
}

/// The part of B that is packed at a time before the product, `(k, n)`, if that is to be done.
fn pack_first(kind: &Kind, shape: &Shape, c: Elem) -> Option<(usize, usize)> {
    if kind.pack_first_bytes == 0 || shape.b_packed || shape.m <= kind.block.0 {
        return None;
    }
    let k = if c == Elem::F32 { shape.k.min(PACK_FIRST_K) } else { shape.k };
    let n = kind.pack_first_bytes / (round_up(k, kind.unit) * kind.size) / kind.nr * kind.nr;
    (n >= PACK_FIRST_COLUMNS).then_some((k, n.min(round_up(shape.n, kind.nr))))
}

/// Bytes of workspace that [`gemm`] needs for a product of this shape into a C stored as `c`.
pub fn workspace_bytes(isa: Isa, threads: usize, shape: &Shape, c: Elem) -> usize {
    workspace_of(kind(isa, shape.a, shape.b), threads, shape, c)
}

pub(super) fn workspace_of(kind: &Kind, threads: usize, shape: &Shape, c: Elem) -> usize {
    if shape.m == 0 || shape.n == 0 || shape.k == 0 {
        return 0;
    }
    let slices = |n: usize, k: usize, b_packed: bool| {
        let part = Shape { n, k, b_packed, ..*shape };
        slice_parts(kind, plan(kind, threads, shape.m, n), &part).iter().sum::<usize>() * threads
    };
    let bytes = match pack_first(kind, shape, c) {
        None => slices(shape.n, shape.k, shape.b_packed),
        Some((k, n)) => {
            let last = shape.n - (shape.n - 1) / n * n;
            round_up(packed_of(kind, k, n), ALIGN)
                + slices(n.min(shape.n), k, true).max(slices(last, k, true))
        }
    };
    bytes + ALIGN
}

/// Bytes of workspace that suffice for every product of operands stored as `elem` whose sums are not longer than `k`.
pub fn most_workspace_bytes(isa: Isa, threads: usize, elem: Elem, k: usize) -> usize {
    let kind = kind(isa, elem, elem);
    // No block of k is longer, see `depth`.
    let kc = round_up(k.min(kind.kc + kind.kc / 3), 32);
    let (high, wide) = kind.block;
    let a = round_up(high * kc * kind.size + SLACK, ALIGN);
    let b = round_up(kind.group * kind.nr * kc * kind.size + SLACK, ALIGN);
    let tiles = round_up(high * wide * 4, ALIGN);
    (a + b + tiles) * threads + round_up(kind.pack_first_bytes + SLACK, ALIGN) + ALIGN
}

/// Products of operands stored as `elem` that are summed at a time: cuts of k at multiples of it leave the chain of
/// additions unchanged, as long as what comes before is filled up with zeros.
pub fn unit(isa: Isa, elem: Elem) -> usize {
    kind(isa, elem, elem).unit
}

/// Bytes that [`pack_b`] writes for a B of `[k,n]` stored as `b` that will meet an A stored as `a`. Where there
/// is no bf16 unit a bf16 B is widened, so this may be twice the size of B.
pub fn packed_bytes(isa: Isa, a: Elem, b: Elem, k: usize, n: usize) -> usize {
    packed_of(kind(isa, a, b), k, n)
}

fn packed_of(kind: &Kind, k: usize, n: usize) -> usize {
    round_up(n, kind.nr) * round_up(k, kind.unit) * kind.size + SLACK
}

/// Where panel `panel` of the block of k that starts at `k0` lies in a packed B.
fn packed_at(kind: &Kind, k: usize, n: usize, k0: usize, panel: usize) -> usize {
    let steps = round_up((k - k0).min(depth(kind, k)), kind.unit);
    (k0 * n.div_ceil(kind.nr) + panel * steps) * kind.nr * kind.size
}

/// A pointer that tasks share; each writes a part of its own.
#[derive(Clone, Copy)]
struct Shared<T>(T);
// SAFETY: every task touches only its own part of what the pointers lead to.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(&self) -> T {
        self.0
    }
}

fn source_b(b: &Mat, trans: bool, k: usize, n: usize) -> Source {
    Source { ptr: b.ptr, elem: b.elem, stride: b.stride, k_contiguous: trans, outer: n, k }
}

/// Packs `b`, `[k,n]` or with `trans` `[n,k]`, for products with an A stored as `a`; the output serves every m.
///
/// # Safety
/// `b` is readable for its extents; `dst` is aligned to 64 bytes and writable for [`packed_bytes`].
pub unsafe fn pack_b(
    threads: &Threads,
    isa: Isa,
    a: Elem,
    b: &Mat,
    trans: bool,
    k: usize,
    n: usize,
    dst: *mut u8,
) {
    // SAFETY: passed on.
    unsafe { pack_of(threads, kind(isa, a, b.elem), &source_b(b, trans, k, n), dst) }
}

unsafe fn pack_of(threads: &Threads, kind: &'static Kind, b: &Source, dst: *mut u8) {
    const PANELS: usize = 8;
    let (k, n) = (b.k, b.outer);
    let (source, dst) = (Shared(*b), Shared(dst));
    let kc = depth(kind, k);
    let (blocks, panels) = (k.div_ceil(kc), n.div_ceil(kind.nr));
    threads.run(blocks * panels.div_ceil(PANELS), &|task, _| {
        let (k0, panel) = (task % blocks * kc, task / blocks * PANELS);
        let cut = Cut { o0: panel * kind.nr, panels: PANELS.min(panels - panel), k0, k1: (k0 + kc).min(k) };
        // SAFETY: the panels of a task are its own; B panels end where their rows end, so packing them does
        // not touch the slack of the next.
        unsafe { (kind.pack_b)(&source.get(), cut, dst.get().add(packed_at(kind, k, n, k0, panel))) }
    });
}

/// Computes `g`. See the module for the order of addition.
///
/// # Safety
/// A and B are readable and C is writable for their extents and strides, C overlaps neither; `workspace` is
/// writable for [`workspace_bytes`] of `g.shape()`, these `isa` and `threads.count()`, and used by nobody else.
/// The processor has `isa`.
///
/// # Panics
/// If a stride is shorter than a row.
pub unsafe fn gemm(threads: &Threads, isa: Isa, g: &Gemm, workspace: *mut u8) {
    // SAFETY: passed on.
    unsafe { gemm_of(threads, kind(isa, g.a.elem, g.b.elem), g, workspace) }
}

pub(super) unsafe fn gemm_of(threads: &Threads, kind: &'static Kind, g: &Gemm, workspace: *mut u8) {
    check(g);
    if g.m == 0 || g.n == 0 {
        return;
    }
    if g.k == 0 {
        // SAFETY: C is writable.
        return unsafe { clear(g) };
    }
    if let Some((rows, few)) = kind.few {
        let as_stored = kind.size == g.a.elem.bytes() && kind.size == g.b.elem.bytes();
        if g.m <= rows && as_stored && !g.a_trans && g.b_trans && !g.b_packed {
            // SAFETY: passed on.
            return unsafe { few_rows(threads, few, g) };
        }
    }
    let workspace = workspace.wrapping_add(workspace.align_offset(ALIGN));
    let Some((kc, nc)) = pack_first(kind, &g.shape(), g.c.elem) else {
        // SAFETY: passed on.
        return unsafe { blocks(threads, kind, g, workspace) };
    };
    let rest = round_up(packed_of(kind, kc, nc), ALIGN);
    for n0 in (0..g.n).step_by(nc) {
        for k0 in (0..g.k).step_by(kc) {
            let (n, k) = (nc.min(g.n - n0), kc.min(g.k - k0));
            let mut part = Gemm { n, k, accumulate: g.accumulate || k0 > 0, ..*g };
            let shift = |matrix: &Mat, row: usize, col: usize| Mat {
                ptr: matrix.ptr.wrapping_add((row * matrix.stride + col) * matrix.elem.bytes()),
                ..*matrix
            };
            part.a = if g.a_trans { shift(&g.a, k0, 0) } else { shift(&g.a, 0, k0) };
            let b = if g.b_trans { shift(&g.b, n0, k0) } else { shift(&g.b, k0, n0) };
            part.c.ptr = g.c.ptr.wrapping_add(n0 * g.c.elem.bytes());
            // SAFETY: the parts lie inside the operands; the workspace holds the packed part first.
            unsafe {
                pack_of(threads, kind, &source_b(&b, g.b_trans, k, n), workspace);
                part.b.ptr = workspace;
                part.b_packed = true;
                blocks(threads, kind, &part, workspace.add(rest));
            }
        }
    }
}

fn check(g: &Gemm) {
    let (a_cols, b_cols) = (if g.a_trans { g.m } else { g.k }, if g.b_trans { g.k } else { g.n });
    assert!(
        g.a.stride >= a_cols && (g.b_packed || g.b.stride >= b_cols) && g.c.stride >= g.n,
        "gemm m {} n {} k {}: strides a {} b {} c {} are shorter than the rows",
        g.m,
        g.n,
        g.k,
        g.a.stride,
        g.b.stride,
        g.c.stride
    );
}

/// An empty sum: C becomes zero, or stays.
unsafe fn clear(g: &Gemm) {
    if !g.accumulate {
        let size = g.c.elem.bytes();
        for row in 0..g.m {
            // SAFETY: row `row` of C.
            unsafe { g.c.ptr.add(row * g.c.stride * size).write_bytes(0, g.n * size) };
        }
    }
}

/// A task for each part of the columns.
unsafe fn few_rows(threads: &Threads, few: Few, g: &Gemm) {
    const COLUMNS: usize = 64;
    let most = threads.count() * 8;
    let part = g.n.div_ceil(most).next_multiple_of(COLUMNS);
    let shared = Shared(*g);
    let n = g.n;
    threads.run(n.div_ceil(part), &|task, _| {
        // SAFETY: each task has columns of its own.
        unsafe { few(&shared.get(), task * part..((task + 1) * part).min(n)) }
    });
}

/// One pass: a task for each block of C.
unsafe fn blocks(threads: &Threads, kind: &'static Kind, g: &Gemm, workspace: *mut u8) {
    let plan = plan(kind, threads.count(), g.m, g.n);
    let parts = slice_parts(kind, plan, &g.shape());
    let shared = Shared((*g, workspace));
    let down = g.m.div_ceil(plan.mc);
    threads.run(down * g.n.div_ceil(plan.nc), &|task, thread| {
        let (g, workspace) = shared.get();
        let (row, col) = (task % down * plan.mc, task / down * plan.nc);
        // SAFETY: each thread has a slice of the workspace, each task a block of C.
        unsafe {
            let slice = workspace.add(thread * parts.iter().sum::<usize>());
            let memory =
                Memory { a: slice, b: slice.add(parts[0]), tiles: slice.add(parts[0] + parts[1]).cast() };
            block(kind, &g, plan, (row, col), &memory);
        }
    });
}

/// Asks for the part of an operand that is packed next, into the second-level cache: it is read row by row
/// in short runs, which no prefetcher of the processor foresees.
fn prefetch(source: &Source, outer: Range<usize>, k: Range<usize>) {
    const LINE: usize = 64;
    let clip = |range: Range<usize>, end: usize| range.start.min(end)..range.end.min(end);
    let (outer, k) = (clip(outer, source.outer), clip(k, source.k));
    let (rows, run) = if source.k_contiguous { (outer, k) } else { (k, outer) };
    let size = source.elem.bytes();
    for row in rows {
        for byte in (run.start * size..run.end * size).step_by(LINE) {
            let line = source.ptr.wrapping_add(row * source.stride * size + byte);
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch reads nothing that the program sees and does not fault.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }
}

/// A thread's workspace.
struct Memory {
    a: *mut u8,
    b: *mut u8,
    tiles: *mut f32,
}

/// The block of C at `at`.
unsafe fn block(kind: &Kind, g: &Gemm, plan: Plan, at: (usize, usize), memory: &Memory) {
    let (rows, cols) = (plan.mc.min(g.m - at.0), plan.nc.min(g.n - at.1));
    let (mr, nr) = (kind.mr, kind.nr);
    let (high, wide) = (rows.div_ceil(mr), cols.div_ceil(nr));
    let a = Source {
        ptr: g.a.ptr,
        elem: g.a.elem,
        stride: g.a.stride,
        k_contiguous: !g.a_trans,
        outer: g.m,
        k: g.k,
    };
    let b = source_b(&g.b, g.b_trans, g.k, g.n);
    let kc = depth(kind, g.k);
    let single = g.k <= kc;
    let group = if g.b_trans && !g.b_packed { 1 } else { kind.group };
    // SAFETY: panels, tiles and blocks lie in the extents that `slice_parts` and `packed_at` are made for.
    unsafe {
        (kind.enter)();
        for k0 in (0..g.k).step_by(kc) {
            let k1 = (k0 + kc).min(g.k);
            let ks = Depth {
                k0,
                k1,
                last: k1 == g.k,
                bytes: (k1 - k0).div_ceil(kind.unit) * kind.unit * kind.size,
            };
            (kind.pack_a)(&a, Cut { o0: at.0, panels: high, k0, k1 }, memory.a);
            for j0 in (0..wide).step_by(group) {
                let panels = group.min(wide - j0);
                let b_panels = if g.b_packed {
                    g.b.ptr.add(packed_at(kind, g.k, g.n, k0, at.1 / nr + j0))
                } else {
                    (kind.pack_b)(&b, Cut { o0: at.1 + j0 * nr, panels, k0, k1 }, memory.b);
                    let next = at.1 + (j0 + panels) * nr;
                    if next < at.1 + cols {
                        prefetch(&b, next..next + panels * nr, k0..k1);
                    } else {
                        prefetch(&b, at.1..at.1 + panels * nr, k1..k1 + kc);
                    }
                    memory.b.cast_const()
                };
                let share = |part: usize| at.0 + rows * part / wide;
                prefetch(&a, share(j0)..share(j0 + panels), k1..k1 + kc);
                for j in 0..panels {
                    let col = (j0 + j) * nr;
                    let tile = Tile {
                        ptr: if single { memory.tiles } else { memory.tiles.add(col * high * mr) },
                        width: nr,
                        row: at.0,
                        col: at.1 + col,
                        rows,
                        cols: nr.min(cols - col),
                    };
                    column(kind, g, &ks, tile, [memory.a.cast_const(), b_panels.add(j * nr * ks.bytes)]);
                }
            }
        }
        (kind.leave)();
    }
}

/// A block of k, and the bytes of one row of a panel.
struct Depth {
    k0: usize,
    k1: usize,
    last: bool,
    bytes: usize,
}

/// The tiles of a block of C below each other, for one panel of B and one block of k. `all` has the rows of all of
/// them and the memory of the first.
unsafe fn column(kind: &Kind, g: &Gemm, ks: &Depth, all: Tile, [a, b]: [*const u8; 2]) {
    let (mr, nr) = (kind.mr, kind.nr);
    let single = ks.k0 == 0 && ks.last;
    let fresh = ks.k0 == 0 && !g.accumulate;
    let steps = (ks.k1 - ks.k0).div_ceil(kind.unit);
    let c =
        Source { ptr: g.c.ptr, elem: g.c.elem, stride: g.c.stride, k_contiguous: true, outer: g.m, k: g.n };
    let mut tile = Tile { rows: 0, ..all };
    for first in (0..all.rows).step_by(mr) {
        tile.row = all.row + first;
        tile.rows = mr.min(all.rows - first);
        // SAFETY: panels and tiles lie in the extents that `slice_parts` and `packed_at` are made for.
        unsafe {
            if ks.k0 == 0 && g.accumulate {
                // Tile by tile, beside the arithmetic: a pass of its own would wait for memory.
                (kind.load)(&tile, &g.c);
                prefetch(&c, tile.row + mr..tile.row + 2 * mr, tile.col..tile.col + nr);
            }
            (kind.micro)(steps, a.add(first * ks.bytes), b, tile.ptr, tile.rows, fresh);
            if ks.last {
                (kind.store)(&tile, &g.c);
            }
            if !single {
                tile.ptr = tile.ptr.add(mr * nr);
            }
        }
    }
}
