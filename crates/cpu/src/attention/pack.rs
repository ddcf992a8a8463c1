//! Conversion of tensor rows to the operands of `product`, and of f32 blocks back to tensor rows.
//!
//! Everything past a row's end or past the last row becomes zero, so that it adds nothing.
#![allow(unsafe_op_in_unsafe_fn)] // pointer walks over caller-checked extents, see each `# Safety`

use super::Elem;
use super::simd::portable::round_bf16;
use super::simd::{LANES, Simd};

/// Rows of a tensor in which `group` heads of one token are `group` consecutive rows.
#[derive(Clone, Copy)]
pub struct View {
    pub data: *mut u8,
    /// Bytes between tokens.
    pub stride: usize,
    /// Heads per token that are treated as rows.
    pub group: usize,
    /// Bytes between heads.
    pub head: usize,
    pub elem: Elem,
}

impl View {
    /// The first byte of `row`.
    ///
    /// # Safety
    /// The tensor has the row.
    #[inline(always)]
    pub unsafe fn row(&self, row: usize) -> *mut u8 {
        if self.group == 1 {
            return self.data.add(row * self.stride);
        }
        self.data.add((row / self.group) * self.stride + (row % self.group) * self.head)
    }
}

/// Rows to pack, and their destination.
#[derive(Clone, Copy)]
pub struct Pack {
    pub from: View,
    /// First row, and number of existing rows.
    pub first: usize,
    pub rows: usize,
    /// Rows of the operand; the rest is zero.
    pub padded: usize,
    /// Elements per row.
    pub cols: usize,
    pub to: *mut u32,
    /// `across`, `rows`: padded words per row. `along`: words between panels.
    pub depth: usize,
}

/// Prefetches rows that will be packed soon; rows past `end` are skipped.
///
/// # Safety
/// The view has the rows below `end`.
#[inline(always)]
pub unsafe fn prefetch(view: &View, first: usize, rows: usize, end: usize, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for row in first..(first + rows).min(end) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let start = view.row(row).cast_const();
        for line in (0..bytes + start.addr() % 64).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (view, first, rows, end, bytes);
}

/// Reads one word of every cache line of some rows in memory order, so that the hardware streams them in: packing one
/// head of many afterwards finds its short runs in the cache.
///
/// # Safety
/// The view has the rows, and `bytes` after the first byte of each.
#[inline(always)]
pub unsafe fn touch(view: &View, first: usize, rows: usize, bytes: usize) {
    let mut sum = 0u32;
    for row in first..first + rows {
        let start = view.row(row).cast_const();
        for line in (0..bytes).step_by(64) {
            sum = sum.wrapping_add(u32::from(*start.add(line)));
        }
    }
    std::hint::black_box(sum);
}

/// Sixteen f32 of a row from element `at` on; zeros past `cols`.
#[inline(always)]
pub unsafe fn row_f32<S: Simd>(row: *const u8, elem: Elem, at: usize, cols: usize) -> S::V {
    if at + LANES <= cols {
        return match elem {
            Elem::F32 => S::load(row.cast::<f32>().add(at)),
            Elem::Bf16 => S::widen(row.cast::<u16>().add(at)),
        };
    }
    let mut part = [0.0f32; LANES];
    for i in at..cols {
        part[i - at] = match elem {
            Elem::F32 => *row.cast::<f32>().add(i),
            Elem::Bf16 => f32::from_bits(u32::from(*row.cast::<u16>().add(i)) << 16),
        };
    }
    S::load(part.as_ptr())
}

/// Sixteen words of a row from word `at` on; zeros past `cols` elements.
#[inline(always)]
unsafe fn row_words<S: Simd>(row: *const u8, elem: Elem, at: usize, cols: usize) -> S::V {
    if !S::PAIRS {
        return row_f32::<S>(row, elem, at, cols);
    }
    let row = row.cast::<u16>();
    if 2 * at + 2 * LANES <= cols {
        return S::load(row.add(2 * at).cast());
    }
    let mut part = [0u16; 2 * LANES];
    for i in 2 * at..cols {
        part[i - 2 * at] = *row.add(i);
    }
    S::load(part.as_ptr().cast())
}

/// Stores up to sixteen f32 at element `at` of a row of `cols`.
#[inline(always)]
pub unsafe fn put<S: Simd>(row: *mut u8, elem: Elem, at: usize, cols: usize, v: S::V) {
    if at + LANES <= cols {
        match elem {
            Elem::F32 => S::store(row.cast::<f32>().add(at), v),
            Elem::Bf16 => S::narrow(row.cast::<u16>().add(at), v),
        }
        return;
    }
    let mut part = [0.0f32; LANES];
    S::store(part.as_mut_ptr(), v);
    for i in at..cols {
        match elem {
            Elem::F32 => *row.cast::<f32>().add(i) = part[i - at],
            Elem::Bf16 => *row.cast::<u16>().add(i) = round_bf16(part[i - at]),
        }
    }
}

/// A operand: rows of words.
///
/// # Safety
/// `from` has the rows, `to` has room for `padded * depth` words.
#[inline(always)]
pub unsafe fn rows<S: Simd>(p: &Pack) {
    for r in 0..p.padded {
        if r % LANES == 0 {
            soon::<S>(p, r + LANES);
        }
        let to = p.to.add(r * p.depth);
        let mut w = 0;
        while w < p.depth {
            let v = if r < p.rows {
                row_words::<S>(p.from.row(p.first + r), p.from.elem, w, p.cols)
            } else {
                S::splat(0.0)
            };
            store_words::<S>(to.add(w), v, p.depth - w);
            w += LANES;
        }
    }
}

#[inline(always)]
unsafe fn store_words<S: Simd>(to: *mut u32, v: S::V, room: usize) {
    if room >= LANES {
        return S::store(to.cast(), v);
    }
    let mut part = [0.0f32; LANES];
    S::store(part.as_mut_ptr(), v);
    std::ptr::copy_nonoverlapping(part.as_ptr().cast(), to, room);
}

/// B operand whose columns are the tensor's rows: `[padded / 16][depth][16]`.
///
/// # Safety
/// `from` has the rows, `to` has room for `padded * depth` words.
#[inline(always)]
pub unsafe fn across<S: Simd>(p: &Pack) {
    for panel in 0..p.padded / LANES {
        let base = panel * LANES;
        let mut rows = [std::ptr::null::<u8>(); LANES];
        for i in 0..LANES.min(p.rows.saturating_sub(base)) {
            rows[i] = p.from.row(p.first + base + i);
        }
        soon::<S>(p, base + LANES);
        let is_whole = !rows[LANES - 1].is_null();
        let mut to = p.to.add(base * p.depth);
        let mut w = 0;
        while w < p.depth {
            let block = if !S::PAIRS && p.from.elem == Elem::Bf16 && is_whole && w + LANES <= p.cols {
                S::columns(&rows, 2 * w)
            } else {
                let mut block = block_of::<S>(&rows, p, w);
                S::transpose(&mut block);
                block
            };
            for v in block.iter().take(p.depth - w) {
                S::store(to.cast(), *v);
                to = to.add(LANES);
            }
            w += LANES;
        }
    }
}

/// Operands of [`across`] and [`along`] for the same rows.
pub struct Both {
    /// Arguments of `across`.
    pub across: Pack,
    /// Destination of `along`, and words between its panels.
    pub along: *mut u32,
    pub depth: usize,
}

/// [`across`] and [`along`] from one reading of the rows.
///
/// # Safety
/// See [`across`] and [`along`].
#[inline(always)]
pub unsafe fn both<S: Simd>(b: &Both) {
    let p = &b.across;
    let (panels, step) = (p.cols.div_ceil(LANES), if S::PAIRS { 2 } else { 1 });
    for base in (0..p.padded).step_by(LANES) {
        let mut rows = [std::ptr::null::<u8>(); LANES];
        for i in 0..LANES.min(p.rows.saturating_sub(base)) {
            rows[i] = p.from.row(p.first + base + i);
        }
        soon::<S>(p, base + LANES);
        let (to, along) = (p.to.add(base * p.depth), b.along.add(base / step * LANES));
        let mut w = 0;
        while w < p.depth {
            let mut block = block_of::<S>(&rows, p, w);
            let panel = w * step / LANES;
            for i in (0..LANES).step_by(step) {
                let at = along.add(panel * b.depth + i / step * LANES);
                if !S::PAIRS {
                    S::store(at.cast(), block[i]);
                    continue;
                }
                let (low, high) = S::zip(block[i], block[i + 1]);
                S::store(at.cast(), low);
                if panel + 1 < panels {
                    S::store(at.add(b.depth).cast(), high);
                }
            }
            S::transpose(&mut block);
            for (i, v) in block.iter().enumerate().take(p.depth - w) {
                S::store(to.add((w + i) * LANES).cast(), *v);
            }
            w += LANES;
        }
    }
}

/// Sixteen words of sixteen rows from word `w` on.
#[inline(always)]
unsafe fn block_of<S: Simd>(rows: &[*const u8; LANES], p: &Pack, w: usize) -> [S::V; LANES] {
    let mut block = [S::splat(0.0); LANES];
    let (step, as_they_are) = if S::PAIRS { (2, true) } else { (1, p.from.elem == Elem::F32) };
    if as_they_are && !rows[LANES - 1].is_null() && step * (w + LANES) <= p.cols {
        // A loop without conditions keeps the block in registers.
        for i in 0..LANES {
            block[i] = S::load(rows[i].add(4 * w).cast());
        }
        return block;
    }
    for i in 0..LANES {
        if !rows[i].is_null() {
            block[i] = row_words::<S>(rows[i], p.from.elem, w, p.cols);
        }
    }
    block
}

/// Prefetches the sixteen rows of a pack from `base` on.
#[inline(always)]
unsafe fn soon<S: Simd>(p: &Pack, base: usize) {
    let bytes = p.cols * p.from.elem.bytes();
    ask::<S>(&p.from, p.first + base, p.first + p.rows, bytes);
}

/// Prefetches sixteen rows before `end`: short runs, which hardware prefetchers do not predict.
///
/// # Safety
/// The view has the rows below `end`.
#[inline(always)]
pub unsafe fn ask<S: Simd>(view: &View, first: usize, end: usize, bytes: usize) {
    for row in first..(first + LANES).min(end) {
        let start = view.row(row).cast_const();
        for line in (0..bytes).step_by(64) {
            S::prefetch(start.wrapping_add(line));
        }
    }
}

/// B operand whose inner dimension is the tensor's rows: panels of 16 columns, `depth` words apart.
///
/// # Safety
/// `from` has the rows, `to` has room for `ceil(cols / 16) * depth` words.
#[inline(always)]
pub unsafe fn along<S: Simd>(p: &Pack) {
    if !S::PAIRS && p.cols.is_multiple_of(LANES) {
        return widened::<S>(p);
    }
    let panels = p.cols.div_ceil(LANES);
    let step = if S::PAIRS { 2 } else { 1 };
    let mut to = p.to;
    let mut r = 0;
    while r < p.padded {
        if r % LANES == 0 {
            soon::<S>(p, r + LANES);
        }
        let mut pair = [std::ptr::null::<u8>(); 2];
        for i in 0..step.min(p.rows.saturating_sub(r)) {
            pair[i] = p.from.row(p.first + r + i);
        }
        let mut panel = 0;
        while panel < panels {
            let mut words = [S::splat(0.0); 2];
            for i in 0..step {
                if !pair[i].is_null() {
                    words[i] = row_words::<S>(pair[i], p.from.elem, panel * LANES / step, p.cols);
                }
            }
            let at = to.add(panel * p.depth);
            if S::PAIRS {
                let (low, high) = S::zip(words[0], words[1]);
                S::store(at.cast(), low);
                if panel + 1 < panels {
                    S::store(at.add(p.depth).cast(), high);
                }
            } else {
                S::store(at.cast(), words[0]);
            }
            panel += step;
        }
        to = to.add(LANES);
        r += step;
    }
}

/// [`along`] where a word is an element and rows are whole vectors.
#[inline(always)]
unsafe fn widened<S: Simd>(p: &Pack) {
    for r in 0..p.padded {
        if r % LANES == 0 {
            soon::<S>(p, r + LANES);
        }
        let to = p.to.add(r * LANES);
        if r >= p.rows {
            for panel in 0..p.cols / LANES {
                S::store(to.add(panel * p.depth).cast(), S::splat(0.0));
            }
            continue;
        }
        let row = p.from.row(p.first + r).cast_const();
        for panel in 0..p.cols / LANES {
            let v = match p.from.elem {
                Elem::F32 => S::load(row.cast::<f32>().add(panel * LANES)),
                Elem::Bf16 => S::widen(row.cast::<u16>().add(panel * LANES)),
            };
            S::store(to.add(panel * p.depth).cast(), v);
        }
    }
}

/// Sixteen rows of sixteen, `ld` apart.
#[inline(always)]
unsafe fn load_block<S: Simd>(mut from: *const f32, ld: usize) -> [S::V; LANES] {
    let mut block = [S::splat(0.0); LANES];
    for row in &mut block {
        *row = S::load(from);
        from = from.add(ld);
    }
    block
}

/// Transposes the result of `along` into an A operand: `to[column][depth / 16 words]`.
pub struct Turn {
    /// `[panels][depth]`, each panel `depth / 16` words deep.
    pub from: *const u32,
    pub panels: usize,
    /// Words between panels.
    pub depth: usize,
    pub to: *mut u32,
}

/// See [`Turn`].
///
/// # Safety
/// Both operands have `panels * depth` words; `depth` is a multiple of 256.
#[inline(always)]
pub unsafe fn turn<S: Simd>(p: &Turn) {
    let words = p.depth / LANES;
    for panel in 0..p.panels {
        let mut w = 0;
        while w < words {
            let from = p.from.add(panel * p.depth + w * LANES);
            let mut block = load_block::<S>(from.cast(), LANES);
            S::transpose(&mut block);
            for (i, v) in block.iter().enumerate() {
                S::store(p.to.add((panel * LANES + i) * words + w).cast(), *v);
            }
            w += LANES;
        }
    }
}

/// An f32 block on its way to tensor rows, times `scale`.
pub struct Unpack {
    pub from: *const f32,
    /// f32 between the block's rows.
    pub ld: usize,
    pub to: View,
    pub first: usize,
    pub rows: usize,
    pub cols: usize,
    pub scale: f32,
    /// Adds to existing values.
    pub add: bool,
}

/// Writes a block whose rows are the tensor's.
///
/// # Safety
/// The block covers `rows x cols` rounded up to 16 columns; the tensor has the rows.
#[inline(always)]
pub unsafe fn unpack<S: Simd>(p: &Unpack) {
    for r in 0..p.rows {
        let to = p.to.row(p.first + r);
        let mut c = 0;
        while c < p.cols {
            let v = S::load(p.from.add(r * p.ld + c));
            put::<S>(to, p.to.elem, c, p.cols, scaled::<S>(p, to, c, v));
            c += LANES;
        }
    }
}

/// New values of sixteen elements of a row from element `at` on.
#[inline(always)]
unsafe fn scaled<S: Simd>(p: &Unpack, row: *const u8, at: usize, v: S::V) -> S::V {
    let v = S::mul(v, S::splat(p.scale));
    if p.add { S::add(row_f32::<S>(row, p.to.elem, at, p.cols), v) } else { v }
}

/// Writes a block whose columns are the tensor's rows.
///
/// # Safety
/// The block covers `cols x rows`, both rounded up to 16; the tensor has the rows.
#[inline(always)]
pub unsafe fn unpack_turned<S: Simd>(p: &Unpack) {
    let mut r = 0;
    while r < p.rows {
        let mut c = 0;
        while c < p.cols {
            let from = p.from.add(c * p.ld + r);
            let mut block = load_block::<S>(from, p.ld);
            S::transpose(&mut block);
            for (i, v) in block.iter().enumerate().take(p.rows - r) {
                let to = p.to.row(p.first + r + i);
                put::<S>(to, p.to.elem, c, p.cols, scaled::<S>(p, to, c, *v));
            }
            c += LANES;
        }
        r += LANES;
    }
}
