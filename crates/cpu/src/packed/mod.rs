//! Products with quantized weights [n, k] as files store them (GGUF's blocks, and codes with group scales; for QLoRA's
//! base, NF4 and int8): `C = A W^T`, without unpacking W.
//!
//! A row of A is converted to integers of 16 bits, 32 at a time under an f32 scale ([`rows`]): the error is below that
//! of bf16, and tests check the bound. A group's products are summed as integers, exactly; times the weight's factor
//! and the scale they are added to the element of C in f32, group after group, ascending, each operation rounded
//! separately:
//!
//! ```text
//! c = c + scale_x (factor_w sum(w x) - offset_w sum(x))
//! ```
//!
//! The bits of a row therefore depend only on its own elements and the weight, whichever kernel computes it, and are
//! the same on every instruction set. For a few rows the blocks are read directly, eight columns at a time
//! ([`avx2::octet`]); blocks of four to six bits are interleaved in memory for that ([`octets`]). For many rows,
//! sixteen columns at a time are unpacked to 16 bits in the first-level cache and used for all rows ([`panel`]), by
//! matrix units if there are any ([`amx`]). If the processor has integer products (AVX-512 VNNI), both use them
//! ([`avx512`]): a few rows process sixteen columns at a time, and up to [`APART`] rows multiply bytes, which take half
//! of the work to unpack. Weights of experts are multiplied in the same way, a few experts' rows at a time
//! ([`experts`]).
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod embed;
mod experts;
mod format;
mod octets;
#[cfg(target_arch = "x86_64")]
mod panel;
mod portable;
mod rows;
#[cfg(test)]
mod tests;
mod turns;

pub use embed::{Embed, embed};
pub use experts::{Experts, experts, experts_workspace_bytes};

use std::ops::Range;

use fathom_tensor::BlockFormat;
use fathom_tensor::ggml::Kind;
use fathom_tensor::grouped::Codes;
use half::bf16;

use crate::elementwise::Place;
use crate::isa::Isa;
use crate::mat::{Elem, Mat, MatMut};
use format::{Behind, Columns, Format, GROUP, MOST_GROUPS, OCTET, by_format};
use rows::{APART, Rows};
use turns::Turns;

/// Rows of A that are quantized at a time.
const ROWS: usize = 256;
/// Columns per task for many rows.
const COLUMNS: usize = 64;
/// Largest number of rows for which blocks are read directly.
const FEW: usize = 4;
/// Elements of A for which waking another thread pays off.
const SERIAL: usize = if cfg!(test) { 64 } else { 1 << 15 };
/// Tasks per thread, so that a disturbed thread does not hold up the others.
const TASKS: usize = 8;
/// Alignment of the scratch memory.
const ALIGN: usize = 64;

/// Contiguous rows of a weight in one format.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Format of the rows.
    pub format: BlockFormat,
    /// Number of rows.
    pub rows: usize,
    /// Address of the rows.
    pub bytes: *const u8,
}

// SAFETY: an address; functions that dereference it state their requirements.
unsafe impl Sync for Run {}

/// A product.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// Rows of A.
    pub m: usize,
    /// Columns of A: whole blocks.
    pub k: usize,
    /// f32 or bf16 [m, k].
    pub a: Mat,
    /// The weight's rows.
    pub runs: &'a [Run],
    /// f32 or bf16 [m, n].
    pub c: MatMut,
}

/// Bytes of scratch memory of a product.
pub fn workspace_bytes(isa: Isa, threads: usize, m: usize, k: usize) -> usize {
    // Fewer rows may take more memory, and a plan for them has room only for fewer rows.
    let rows = m.min(ROWS);
    let bytes = Rows::bytes(isa, rows, k).max(Rows::bytes(isa, rows.min(APART), k));
    bytes + threads * tile_bytes(isa, rows) + 2 * ALIGN
}

/// Bytes of a thread's sums.
fn tile_bytes(isa: Isa, rows: usize) -> usize {
    Rows::held(isa, rows) * COLUMNS * size_of::<f32>()
}

/// Computes a product.
///
/// # Safety
/// Operands are as [`Product`] describes, `scratch` is writable for [`workspace_bytes`] and used by nothing else, and
/// the processor has `place.isa`.
pub unsafe fn product(place: Place<'_>, op: &Product<'_>, scratch: *mut u8) {
    let scratch = scratch.wrapping_add(scratch.align_offset(ALIGN));
    for first in (0..op.m).step_by(ROWS) {
        let count = ROWS.min(op.m - first);
        let rows = Rows::at(scratch, place.isa, count, op.k);
        let tiles = scratch.wrapping_add(Rows::bytes(place.isa, count, op.k).next_multiple_of(ALIGN));
        // SAFETY: the caller's promise; rows and tiles are consecutive in the scratch memory.
        unsafe {
            quantise(place, op, first..first + count, rows);
            multiply(place, op, (first, count, rows), tiles);
        }
    }
}

/// # Safety
/// See [`product`].
unsafe fn quantise(place: Place<'_>, op: &Product<'_>, of: Range<usize>, rows: Rows) {
    let part = (SERIAL / op.k.max(1)).max(1).min(of.len());
    let (a, first, count) = (op.a, of.start, of.len());
    place.threads.run(count.div_ceil(part), &|task, _| {
        for row in task * part..count.min((task + 1) * part) {
            // SAFETY: the caller's promise; each row belongs to one task.
            unsafe { quantise_row(place.isa, (&a, first + row), rows, row) };
        }
    });
}

/// Quantizes row `from` of a matrix as row `to`.
///
/// # Safety
/// Both rows exist, nothing else uses the latter, and the processor has `isa`.
unsafe fn quantise_row(isa: Isa, (a, from): (&Mat, usize), rows: Rows, to: usize) {
    // SAFETY: passed on.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx2::quantise_row(a, from, rows, to),
            _ => rows::quantise(a, from, rows, to),
        }
        #[cfg(target_arch = "x86_64")]
        if !rows.tiles.is_null() {
            amx::spread(rows, to);
        }
    }
}

/// Columns computed by a task, all of one run.
struct Task {
    run: Run,
    cols: Range<usize>,
    /// First column of the run in C.
    at: usize,
}

/// The task number `task` when all columns are cut into tasks of at most `part`.
fn cut(runs: &[Run], part: usize, mut task: usize) -> Task {
    let mut at = 0;
    for run in runs {
        let tasks = run.rows.div_ceil(part);
        if task < tasks {
            return Task { run: *run, cols: task * part..run.rows.min((task + 1) * part), at };
        }
        (task, at) = (task - tasks, at + run.rows);
    }
    panic!("no task {task} of {runs:?}");
}

/// Computes rows of C from `first` on, from as many quantized rows.
///
/// # Safety
/// See [`product`]; `tiles` has a tile for each thread.
unsafe fn multiply(
    place: Place<'_>,
    op: &Product<'_>,
    (first, count, rows): (usize, usize, Rows),
    tiles: *mut u8,
) {
    let few = count <= FEW || place.isa == Isa::Portable;
    let all: usize = op.runs.iter().map(|run| run.rows).sum();
    let even = all.div_ceil(place.threads.count() * TASKS).next_multiple_of(2 * OCTET);
    let part = if few { even } else { COLUMNS };
    let tasks = op.runs.iter().map(|run| run.rows.div_ceil(part)).sum();
    let bytes = tile_bytes(place.isa, count);
    let (lines, runs) = (Lines { c: op.c, first, slots: None }, Runs(op.runs));
    let (tiles, turns) = (Tiles(tiles), Turns::new(tasks, place.threads.count()));
    place.threads.run(tasks, &|_, thread| {
        let task = cut(runs.get(), part, turns.take(thread));
        let tile = tiles.get().wrapping_add(thread * bytes);
        // SAFETY: the caller's promise; each task has its own columns, each thread its own tile.
        unsafe {
            let tile = std::slice::from_raw_parts_mut(tile.cast::<f32>(), bytes / size_of::<f32>());
            by_format!(task.run.format, F => columns::<F>(place.isa, &task, (count, rows), tile, &lines));
        }
    });
}

/// Runs shared by threads.
struct Runs<'a>(&'a [Run]);

impl Runs<'_> {
    fn get(&self) -> &[Run] {
        self.0
    }
}

/// Memory with a part for each thread.
struct Tiles(*mut u8);
// SAFETY: threads access only their own parts.
unsafe impl Sync for Tiles {}

impl Tiles {
    fn get(&self) -> *mut u8 {
        self.0
    }
}

/// Location of rows of C.
#[derive(Clone, Copy)]
struct Lines<'a> {
    c: MatMut,
    /// First of these rows.
    first: usize,
    /// Present if rows are slots of tokens.
    slots: Option<Slots<'a>>,
}

/// Slots of tokens, adjacent in a token's row.
#[derive(Clone, Copy)]
struct Slots<'a> {
    /// The slot of each row.
    order: &'a [i32],
    /// Slots per token.
    each: usize,
    /// Columns per slot.
    cols: usize,
}

impl Slots<'_> {
    /// Token and slot of a row.
    fn at(&self, row: usize) -> (usize, usize) {
        let slot = self.order[row] as usize;
        (slot / self.each, slot % self.each)
    }
}

impl Lines<'_> {
    /// Address of an element.
    fn at(&self, row: usize, col: usize) -> *mut u8 {
        let (row, col) = match &self.slots {
            None => (self.first + row, col),
            Some(slots) => {
                let (token, slot) = slots.at(self.first + row);
                (token, slot * slots.cols + col)
            }
        };
        self.c.ptr.wrapping_add((row * self.c.stride + col) * self.c.elem.bytes())
    }
}

/// The columns of a task from `col` on.
fn columns_at(task: &Task, col: usize, k: usize) -> Columns {
    let format = task.run.format;
    let apart = format.row_bytes(k);
    let behind = match format {
        BlockFormat::Grouped(of) => {
            Behind { scales: of.scales_at(k), zeros: of.zeros_at(k), span: of.group / GROUP }
        }
        BlockFormat::Nf4 | BlockFormat::Int8 => {
            Behind { scales: format.scales_at(k), zeros: 0, span: format.block(k) / GROUP }
        }
        _ => Behind::default(),
    };
    Columns { first: task.run.bytes.wrapping_add(col * apart), apart, behind }
}

/// Computes a task.
///
/// # Safety
/// See [`multiply`].
unsafe fn columns<F: Format>(
    isa: Isa,
    task: &Task,
    (count, rows): (usize, Rows),
    tile: &mut [f32],
    lines: &Lines<'_>,
) {
    let mut cols = task.cols.clone();
    #[cfg(target_arch = "x86_64")]
    if F::OCTETS && count <= APART && avx512::has(isa) && (count > FEW || avx512::pairs::<F>(count)) {
        let whole = cols.start + cols.len() / panel::COLS * panel::COLS;
        let whole = cols.start..if count > FEW { cols.end } else { whole };
        cols.start = whole.end;
        // SAFETY: passed on.
        unsafe {
            match count {
                2 => pairs::<F, 2>(isa, task, whole, rows, lines),
                3 => pairs::<F, 3>(isa, task, whole, rows, lines),
                4 => pairs::<F, 4>(isa, task, whole, rows, lines),
                _ => filled::<F>(isa, task, whole, (count, rows), tile, lines),
            }
        }
    } else if isa != Isa::Portable && count > FEW {
        let whole = cols.start + cols.len() / OCTET * OCTET;
        // SAFETY: passed on.
        unsafe { panels::<F>(isa, task, cols.start..whole, (count, rows), tile, lines) };
        cols.start = whole;
    }
    for col in cols.clone().step_by(OCTET) {
        let at = columns_at(task, col, rows.k);
        let wide = OCTET.min(cols.end - col);
        let sums = &mut tile.as_chunks_mut::<OCTET>().0[..count];
        // SAFETY: passed on.
        unsafe {
            match (isa, wide, count) {
                #[cfg(target_arch = "x86_64")]
                (_, OCTET, 1..=FEW) if F::OCTETS && avx512::has(isa) => match count {
                    1 => sums.copy_from_slice(&avx512::octet::<F, 1>(at, rows)),
                    2 => sums.copy_from_slice(&avx512::octet::<F, 2>(at, rows)),
                    3 => sums.copy_from_slice(&avx512::octet::<F, 3>(at, rows)),
                    _ => sums.copy_from_slice(&avx512::octet::<F, 4>(at, rows)),
                },
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, OCTET, 1..=FEW) => match count {
                    1 => sums.copy_from_slice(&avx2::octet::<F, 1>(at, rows)),
                    2 => sums.copy_from_slice(&avx2::octet::<F, 2>(at, rows)),
                    3 => sums.copy_from_slice(&avx2::octet::<F, 3>(at, rows)),
                    _ => sums.copy_from_slice(&avx2::octet::<F, 4>(at, rows)),
                },
                _ => portable::octet::<F>(at, wide, rows, sums),
            }
            for (row, sums) in sums.iter().enumerate() {
                store(isa, lines, row, task.at + col, &sums[..wide]);
            }
        }
    }
}

/// Computes whole pairs of octets of a task's columns, for a few rows.
///
/// # Safety
/// See [`multiply`]; there are `M` rows, and the processor has AVX-512's integer products.
#[cfg(target_arch = "x86_64")]
unsafe fn pairs<F: Format, const M: usize>(
    isa: Isa,
    task: &Task,
    cols: Range<usize>,
    rows: Rows,
    lines: &Lines<'_>,
) {
    for col in cols.step_by(panel::COLS) {
        let both = [0, OCTET].map(|octet| columns_at(task, col + octet, rows.k));
        // SAFETY: passed on.
        unsafe {
            for (row, sums) in avx512::pair::<F, M>(both, rows).iter().enumerate() {
                store(isa, lines, row, task.at + col, sums);
            }
        }
    }
}

/// Computes a task's columns in whole octets, for several rows: sixteen columns at a time, a few groups of which are
/// unpacked to bytes and used for all rows.
///
/// # Safety
/// See [`pairs`], for any number of rows that have their separate bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn filled<F: Format>(
    isa: Isa,
    task: &Task,
    cols: Range<usize>,
    (count, rows): (usize, Rows),
    tile: &mut [f32],
    lines: &Lines<'_>,
) {
    use panel::{COLS, Panel};
    let (mut panel, groups) = (Panel::new(), rows.k / GROUP);
    let tile = &mut tile.as_chunks_mut::<COLS>().0[..count];
    for col in cols.clone().step_by(COLS) {
        let wide = COLS.min(cols.end - col);
        // For a single octet both halves refer to the same columns.
        let both = [col, col + wide - OCTET].map(|col| columns_at(task, col, rows.k));
        tile.fill([0.0; COLS]);
        for from in (0..groups).step_by(MOST_GROUPS) {
            let part = (from, MOST_GROUPS.min(groups - from));
            // SAFETY: passed on.
            unsafe {
                avx512::fill::<F>(both, part, &mut panel);
                let mut ahead = avx512::Ahead::of::<F>(both, part, (count, rows.k));
                let mut row = 0;
                while row < count {
                    let (rows, tile) = (rows.from(row), tile.as_mut_ptr().add(row));
                    row += avx512::some::<F>(count - row, &panel, part, (rows, tile), &mut ahead);
                }
            }
        }
        for (row, sums) in tile.iter().enumerate() {
            // SAFETY: passed on.
            unsafe { store(isa, lines, row, task.at + col, &sums[..wide]) };
        }
    }
}

/// Computes whole octets of a task's columns, for many rows.
///
/// # Safety
/// See [`multiply`].
#[cfg(target_arch = "x86_64")]
unsafe fn panels<F: Format>(
    isa: Isa,
    task: &Task,
    cols: Range<usize>,
    (count, rows): (usize, Rows),
    tile: &mut [f32],
    lines: &Lines<'_>,
) {
    use panel::{COLS, DEPTH, Panel};
    tile.fill(0.0);
    let wide = avx512::has(isa);
    let mut panel = Panel::new();
    let groups = rows.k / GROUP;
    let most = DEPTH / F::PLANES;
    // SAFETY: rows have tiles only if the processor supports them.
    let tiles = (!rows.tiles.is_null() && amx::takes::<F>()).then(|| unsafe { amx::Tiles::of::<F>() });
    // Number of rows in a panel's tiles.
    let held = Rows::held(isa, count);
    for from in (0..groups).step_by(most) {
        let depth = most.min(groups - from);
        for (col, tile) in cols.clone().step_by(COLS).zip(tile.as_chunks_mut::<COLS>().0.chunks_mut(held)) {
            // SAFETY: passed on; a tile has sixteen columns of all rows. If there is no second octet, stale values of
            // the panel are used but not stored.
            unsafe {
                let next = if col + COLS < cols.end { (col + COLS, from) } else { (cols.start, from + most) };
                for octet in (0..COLS.min(cols.end - col)).step_by(OCTET) {
                    let columns = columns_at(task, col + octet, rows.k);
                    let ahead = columns_at(task, next.0 + octet, rows.k);
                    avx2::fetch::<F>(ahead, next.1 / F::GROUPS..(next.1 + depth) / F::GROUPS);
                    for at in (0..depth).step_by(F::GROUPS) {
                        avx2::fill::<F>(columns, (from + at) / F::GROUPS, (&mut panel, octet, at));
                    }
                }
                if tiles.is_some() {
                    amx::as_bf16::<F>(&mut panel, depth);
                    for row in (0..held).step_by(rows::TILE_ROWS) {
                        amx::micro::<F>(&panel, (from, depth), rows.from(row), tile.as_mut_ptr().add(row));
                    }
                    continue;
                }
                let mut row = 0;
                while row < count {
                    let (rows, tile) = (rows.from(row), tile.as_mut_ptr().add(row));
                    row += micro::<F>(wide, count - row, &panel, (from, depth), rows, tile);
                }
            }
        }
    }
    for (col, tile) in cols.clone().step_by(COLS).zip(tile.as_chunks::<COLS>().0.chunks(held)) {
        let wide = COLS.min(cols.end - col);
        for (row, sums) in tile.iter().enumerate().take(count) {
            // SAFETY: passed on.
            unsafe { store(isa, lines, row, task.at + col, &sums[..wide]) };
        }
    }
}

/// Adds a panel to as many of the `left` rows as a kernel handles at a time, and returns how many those are.
///
/// # Safety
/// See [`avx2::micro`]; the processor supports the kernel selected by `wide`.
#[cfg(target_arch = "x86_64")]
unsafe fn micro<F: Format>(
    wide: bool,
    left: usize,
    panel: &panel::Panel,
    groups: (usize, usize),
    rows: Rows,
    tile: *mut panel::Tile,
) -> usize {
    // SAFETY: passed on.
    unsafe {
        match (wide, left) {
            // With a single factor the sums leave registers for more rows.
            (true, 12..) if F::FACTORS == 1 => (avx512::micro::<F, 12>(panel, groups, rows, tile), 12).1,
            (true, 8..) => (avx512::micro::<F, 8>(panel, groups, rows, tile), 8).1,
            (true, 4..8) => (avx512::micro::<F, 4>(panel, groups, rows, tile), 4).1,
            (true, 2..4) => (avx512::micro::<F, 2>(panel, groups, rows, tile), 2).1,
            (true, _) => (avx512::micro::<F, 1>(panel, groups, rows, tile), 1).1,
            (false, 4..) => (avx2::micro::<F, 4>(panel, groups, rows, tile), 4).1,
            (false, 3) => (avx2::micro::<F, 3>(panel, groups, rows, tile), 3).1,
            (false, 2) => (avx2::micro::<F, 2>(panel, groups, rows, tile), 2).1,
            (false, _) => (avx2::micro::<F, 1>(panel, groups, rows, tile), 1).1,
        }
    }
}

/// Writes elements of a row of C.
///
/// # Safety
/// They exist; the processor has `isa`.
unsafe fn store(isa: Isa, lines: &Lines<'_>, row: usize, col: usize, values: &[f32]) {
    let to = lines.at(row, col);
    // SAFETY: the caller's promise.
    unsafe {
        match (isa, lines.c.elem) {
            (_, Elem::F32) => std::ptr::copy_nonoverlapping(values.as_ptr(), to.cast(), values.len()),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, Elem::Bf16) => {
                avx2::store_bf16(values, to.cast());
            }
            (_, Elem::Bf16) => {
                for (at, value) in values.iter().enumerate() {
                    to.cast::<bf16>().add(at).write(bf16::from_f32(*value));
                }
            }
        }
    }
}
