//! Blocking: cuts C into blocks, one task each, and loops over k within a task.
//!
//! A task packs its rows of A per block of k, then each panel of B right before its use (or takes it packed), and sums
//! into its own f32 tiles; each is written to C once, while it is in L1 for the last block of k.
#![allow(unsafe_code)]

use std::ops::Range;

use super::block::Tile;
use super::kernel::{ALIGN, Few, Kind, Lines, PackRange, Panels, Source};
use super::kind::kind;
use super::operands::{SyncOperands, source_a, source_b};
use super::plan::{Plan, depth, pack_first, packed_at, packed_of, round_up, slice_parts};
use super::prefetch::{self, Shares, prefetch};
use super::terms::{PackedTerms, TermPanels, Terms};
use super::{Elem, Gemm, Layout, Mat};
use crate::isa::Isa;
use crate::threads::Threads;

/// Products of operands stored as `elem` that are summed at a time: cuts of k at multiples of it leave the chain of
/// additions unchanged, provided that earlier parts are padded with zeros.
pub fn unit(isa: Isa, elem: Elem) -> usize {
    kind(isa, elem, elem).unit
}

/// Bytes that [`pack_b`] writes for a `[k,n]` B stored as `b`, to be multiplied by an A stored as `a`. Without a bf16
/// unit a bf16 B is widened, so this may be twice the size of B.
pub fn packed_bytes(isa: Isa, a: Elem, b: Elem, k: usize, n: usize) -> usize {
    packed_of(kind(isa, a, b), k, n)
}

/// Packs `b`, `[k,n]` or with `trans` `[n,k]`, for products with an A stored as `a`; the output can be used for every
/// m.
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
    unsafe { pack_of(threads, kind(isa, a, b.elem), &source_b(b, Layout::of(trans), k, n), dst) }
}

unsafe fn pack_of(threads: &Threads, kind: &'static Kind, b: &Source, dst: *mut u8) {
    const PANELS: usize = 8;
    let (k, n) = (b.k, b.outer);
    let (source, dst) = (SyncOperands(*b), SyncOperands(dst));
    let kc = depth(kind, k);
    let (blocks, panels) = (k.div_ceil(kc), n.div_ceil(kind.nr));
    threads.run(blocks * panels.div_ceil(PANELS), &|task, _| {
        let (k0, panel) = (task % blocks * kc, task / blocks * PANELS);
        let cut =
            PackRange { o0: panel * kind.nr, panels: PANELS.min(panels - panel), k0, k1: (k0 + kc).min(k) };
        // SAFETY: the panels of a task are its own; B panels end where their rows end, so packing them does not touch
        // the slack of the next.
        unsafe { (kind.pack_b)(&source.get(), cut, dst.get().add(packed_at(kind, k, n, k0, panel))) }
    });
}

/// Computes `g`. See the module for the order of addition.
///
/// # Safety
/// A and B are readable and C is writable for their extents and strides, and C overlaps neither; `workspace` is
/// writable for [`workspace_bytes`] of `g.shape()`, this `isa` and `threads.count()`, and used by nothing else. The
/// processor has `isa`.
///
/// # Panics
/// If a stride is shorter than a row.
pub unsafe fn gemm(threads: &Threads, isa: Isa, g: &Gemm, workspace: *mut u8) {
    // SAFETY: passed on.
    unsafe { gemm_of(threads, kind(isa, g.a.elem, g.b.elem), g, Terms::NONE, workspace) }
}

pub(super) unsafe fn gemm_of(
    threads: &Threads,
    kind: &'static Kind,
    g: &Gemm,
    terms: Terms<'_>,
    workspace: *mut u8,
) {
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
        if g.m <= rows
            && (as_stored || kind.few_widens)
            && !g.a_trans
            && matches!(g.b_layout, Layout::Columns | Layout::Octets)
        {
            // SAFETY: passed on.
            return unsafe { few_rows(threads, few, g) };
        }
    }
    if let Some((columns, slim)) = kind.slim {
        let rows_of_pairs = !g.a_trans && g.k.is_multiple_of(2);
        let as_given = matches!(g.b_layout, Layout::Columns | Layout::Rows);
        if g.n <= columns && rows_of_pairs && as_given && !g.accumulate && terms.list.is_empty() {
            // SAFETY: passed on.
            return unsafe { slim(threads, g, workspace) };
        }
    }
    let workspace = workspace.wrapping_add(workspace.align_offset(ALIGN));
    let Some((kc, nc)) = pack_first(kind, &g.shape(), g.c.elem) else {
        // SAFETY: passed on.
        return unsafe { tasks(threads, kind, g, (terms, 0), workspace) };
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
            let b = if g.b_layout == Layout::Rows { shift(&g.b, k0, n0) } else { shift(&g.b, n0, k0) };
            part.c.ptr = g.c.ptr.wrapping_add(n0 * g.c.elem.bytes());
            // SAFETY: the parts are inside the operands; the packed part comes first in the workspace.
            unsafe {
                pack_of(threads, kind, &source_b(&b, g.b_layout, k, n), workspace);
                part.b.ptr = workspace;
                part.b_layout = Layout::Panels;
                tasks(threads, kind, &part, (terms, n0), workspace.add(rest));
            }
        }
    }
}

fn check(g: &Gemm) {
    let a_cols = if g.a_trans { g.m } else { g.k };
    let b_fits = match g.b_layout {
        Layout::Rows => g.b.stride >= g.n,
        Layout::Columns => g.b.stride >= g.k,
        Layout::Panels => true,
        Layout::Octets => g.b.stride == g.k && g.k.is_multiple_of(2) && g.n.is_multiple_of(8),
    };
    assert!(
        g.a.stride >= a_cols && b_fits && g.c.stride >= g.n,
        "gemm m {} n {} k {}: strides a {} b {} c {} are shorter than the rows",
        g.m,
        g.n,
        g.k,
        g.a.stride,
        g.b.stride,
        g.c.stride
    );
}

/// Computes an empty sum: C becomes zero, or is unchanged.
unsafe fn clear(g: &Gemm) {
    if !g.accumulate {
        let size = g.c.elem.bytes();
        for row in 0..g.m {
            // SAFETY: row `row` of C.
            unsafe { g.c.ptr.add(row * g.c.stride * size).write_bytes(0, g.n * size) };
        }
    }
}

/// Runs one task per part of the columns.
unsafe fn few_rows(threads: &Threads, few: Few, g: &Gemm) {
    const COLUMNS: usize = 64;
    let most = threads.count() * 8;
    let part = g.n.div_ceil(most).next_multiple_of(COLUMNS);
    let shared = SyncOperands(*g);
    let n = g.n;
    threads.run(n.div_ceil(part), &|task, _| {
        // SAFETY: each task has its own columns.
        unsafe { few(&shared.get(), task * part..((task + 1) * part).min(n)) }
    });
}

/// Runs one pass of tasks with disjoint elements of C; C begins at the given column of the matrix that the terms are
/// added to.
unsafe fn tasks(
    threads: &Threads,
    kind: &'static Kind,
    g: &Gemm,
    terms: (Terms<'_>, usize),
    workspace: *mut u8,
) {
    let plan = Plan::new(kind, threads.count(), [g.m, g.n, g.k]);
    let parts = slice_parts(kind, plan, &g.shape());
    let shared = SyncOperands((*g, terms, workspace));
    let down = g.m.div_ceil(plan.mc);
    threads.run(down * g.n.div_ceil(plan.nc), &|task, thread| {
        let (g, (terms, left), workspace) = shared.get();
        let (row, col) = (task % down * plan.mc, task / down * plan.nc);
        // SAFETY: each thread has its own slice of the workspace, each task its own part of C.
        unsafe {
            let slice = workspace.add(thread * parts.iter().sum::<usize>());
            let memory =
                Memory { a: slice, b: slice.add(parts[0]), tiles: slice.add(parts[0] + parts[1]).cast() };
            let (rows, cols) = (row..(row + plan.mc).min(g.m), col..(col + plan.nc).min(g.n));
            let (a, b) = (source_a(&g), source_b(&g.b, g.b_layout, g.k, g.n));
            let part = [rows.clone(), left + cols.start..left + cols.end];
            let terms = PackedTerms::of(kind, terms, part, g.m, thread).map(|terms| (terms, left));
            Task { kind, g: &g, plan, a, b, rows, cols, memory, terms }.run();
        }
    });
}

/// A thread's workspace.
struct Memory {
    a: *mut u8,
    b: *mut u8,
    tiles: *mut f32,
}

/// Rows of C, column block after column block, by the thread that owns `memory`.
struct Task<'a> {
    kind: &'a Kind,
    g: &'a Gemm,
    plan: Plan,
    a: Source,
    b: Source,
    rows: Range<usize>,
    cols: Range<usize>,
    memory: Memory,
    /// The terms, and C's first column in the matrix that they are added to.
    terms: Option<(PackedTerms<'a>, usize)>,
}

/// A block of k, and the bytes of a panel's row.
struct Depth {
    k0: usize,
    k1: usize,
    last: bool,
    bytes: usize,
}

impl Depth {
    fn steps(&self, kind: &Kind) -> usize {
        (self.k1 - self.k0).div_ceil(kind.unit)
    }

    /// The next block of k; it may end past k.
    fn after(&self) -> Range<usize> {
        self.k1..2 * self.k1 - self.k0
    }
}

impl Task<'_> {
    /// # Safety
    /// The operands are readable, C is writable; the memory has the parts described by [`slice_parts`].
    unsafe fn run(&self) {
        let (kind, k, end) = (self.kind, self.g.k, self.cols.end);
        let kc = depth(kind, k);
        // SAFETY: the tile unit is entered and left by the same thread; the rest is passed on.
        unsafe {
            (kind.enter)();
            for n0 in self.cols.clone().step_by(self.plan.wide) {
                for k0 in (0..k).step_by(kc) {
                    let k1 = (k0 + kc).min(k);
                    let bytes = round_up(k1 - k0, kind.unit) * kind.size;
                    self.block(n0..(n0 + self.plan.wide).min(end), &Depth { k0, k1, last: k1 == k, bytes });
                }
            }
            (kind.leave)();
        }
    }

    /// Adds one block of k to one block of columns.
    unsafe fn block(&self, cols: Range<usize>, ks: &Depth) {
        let Task { kind, g, b, memory, .. } = self;
        let (high, wide) = (self.rows.len().div_ceil(kind.mr), cols.len().div_ceil(kind.nr));
        let (first, kept) = (cols.start == self.cols.start, self.plan.kept(kind, g.k));
        let a = memory.a.wrapping_add(if kept { ks.k0 * high * kind.mr * kind.size } else { 0 });
        let single = ks.k0 == 0 && ks.last;
        let stream = !g.accumulate && g.m * g.n * g.c.elem.bytes() >= kind.stream_bytes;
        let group = if b.k_contiguous && g.b_layout != Layout::Panels { 1 } else { kind.group };
        let after = if kept && !first { ks.k1..ks.k1 } else { ks.after() };
        let mut a_after = Shares::new(self.a, self.rows.clone(), after, wide * high);
        // SAFETY: panels, tiles and blocks are within the extents that `slice_parts` and `packed_at` are computed for.
        unsafe {
            if first || !kept {
                (kind.pack_a)(
                    &self.a,
                    PackRange { o0: self.rows.start, panels: high, k0: ks.k0, k1: ks.k1 },
                    a,
                );
            }
            for panel in (0..wide).step_by(group) {
                let panels = panel..(panel + group).min(wide);
                let (b, rows_after) = self.panels_of_b(&cols, panels.clone(), ks);
                for (j, panel) in panels.enumerate() {
                    let col = panel * kind.nr;
                    let tile = Tile {
                        ptr: if single { memory.tiles } else { memory.tiles.add(col * high * kind.mr) },
                        width: kind.nr,
                        row: self.rows.start,
                        col: cols.start + col,
                        rows: self.rows.len(),
                        cols: kind.nr.min(cols.len() - col),
                        stream,
                    };
                    let b = b.add(j * kind.nr * ks.bytes);
                    let panel_after =
                        || prefetch::lines(kind, b.wrapping_add(kind.nr * ks.bytes), ks.steps(kind));
                    let soon = rows_after.unwrap_or_else(panel_after);
                    let term = match &self.terms {
                        Some((terms, left)) if ks.last => terms.panel(left + tile.col),
                        _ => None,
                    };
                    column(kind, g, ks, (tile, term), Panels { a, b, soon }, &mut a_after);
                }
            }
        }
    }

    /// Panels of B, numbered from the first of `cols`, packed if necessary. If a row of B holds the products of a
    /// column, also returns the rows that are packed next, for the micro-kernels to prefetch; otherwise they prefetch
    /// the next panel.
    unsafe fn panels_of_b(
        &self,
        cols: &Range<usize>,
        panels: Range<usize>,
        ks: &Depth,
    ) -> (*const u8, Option<Lines>) {
        let Task { kind, g, b, memory, .. } = self;
        let (o0, width) = (cols.start + panels.start * kind.nr, panels.len() * kind.nr);
        // SAFETY: the panels are in a packed B, or in the thread's memory, which holds a group of them.
        unsafe {
            if g.b_layout == Layout::Panels {
                return (g.b.ptr.add(packed_at(kind, g.k, g.n, ks.k0, o0 / kind.nr)), None);
            }
            (kind.pack_b)(b, PackRange { o0, panels: panels.len(), k0: ks.k0, k1: ks.k1 }, memory.b);
        }
        let next = o0 + width;
        let (next, k) = if next < cols.end { (next, ks.k0..ks.k1) } else { (cols.start, ks.after()) };
        let rows_after = b.k_contiguous.then(|| prefetch::rows(kind, b, next, k.start));
        let asked = rows_after.map_or(0, |_| kind.prefetch_lines * self.rows.len().div_ceil(kind.mr));
        prefetch(b, next + asked.min(width)..next + width, k);
        (memory.b, rows_after)
    }
}

/// Computes the vertically adjacent tiles of a block of C, for one panel of B and one block of k. `all` has the rows of
/// all tiles and the memory of the first, `panels` the first panel of A.
unsafe fn column(
    kind: &Kind,
    g: &Gemm,
    ks: &Depth,
    (all, term): (Tile, Option<TermPanels>),
    mut panels: Panels,
    a_after: &mut Shares,
) {
    let (mr, nr) = (kind.mr, kind.nr);
    let single = ks.k0 == 0 && ks.last;
    let fresh = ks.k0 == 0 && !g.accumulate;
    let steps = ks.steps(kind);
    let c = Source {
        ptr: g.c.ptr,
        elem: g.c.elem,
        stride: g.c.stride,
        k_contiguous: true,
        octets: false,
        outer: g.m,
        k: g.n,
    };
    let mut tile = Tile { rows: 0, ..all };
    for first in (0..all.rows).step_by(mr) {
        tile.row = all.row + first;
        tile.rows = mr.min(all.rows - first);
        // SAFETY: panels and tiles are within the extents that `slice_parts` and `packed_at` are computed for.
        unsafe {
            if ks.k0 == 0 && g.accumulate {
                // Loaded tile by tile, interleaved with the arithmetic: a separate pass would wait for memory.
                (kind.load)(&tile, &g.c);
                prefetch(&c, tile.row + mr..tile.row + 2 * mr, tile.col..tile.col + nr);
            }
            a_after.prefetch();
            (kind.micro)(steps, panels, tile.ptr, tile.rows, fresh);
            panels.a = panels.a.wrapping_add(mr * ks.bytes);
            panels.soon.ptr = panels.soon.ptr.wrapping_add(panels.soon.tile);
            if let Some(term) = &term {
                term.add(kind, first / mr, tile.ptr, tile.rows);
            }
            if ks.last {
                (kind.store)(&tile, &g.c);
            }
            if !single {
                tile.ptr = tile.ptr.add(mr * nr);
            }
        }
    }
}
