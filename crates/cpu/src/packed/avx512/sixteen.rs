//! Sixteen columns whose blocks are interleaved by eight: a vector has the same four elements of two octets, the first
//! in its lower half.
//!
//! Codes are multiplied as bytes by the upper and by the lower bytes of integers with `vpdpbusd`, and 256 times the
//! former are added to the latter as integers, exactly.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use fathom_tensor::ggml::Kind;

use super::super::format::{Columns, Format, GROUP, Lies, OCTET};
use super::super::octets::{QUADS, groups, period, quads};
use super::super::panel::{COLS, Panel, Tile};
use super::super::rows::Rows;
use super::sums::added;

/// Distance in bytes at which an octet's block is prefetched.
const AHEAD: usize = 4096;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A block of each of two octets.
#[derive(Clone, Copy)]
struct Pair([*const u8; 2]);

impl Pair {
    fn of([left, right]: [Columns; 2], at: usize) -> Pair {
        Pair([left, right].map(|columns| columns.first.wrapping_add(at)))
    }

    /// The same pointers for a group of codes, recomputed here if the group shares bytes with more than one other: the
    /// compiler would otherwise keep loaded bytes for all of them, for which there are not enough registers.
    #[inline(always)]
    #[expect(
        clippy::pointers_in_nomem_asm_block,
        reason = "there is no instruction, so nothing is read by them"
    )]
    fn pinned<F: Format>(self) -> Pair {
        let Pair([mut left, mut right]) = self;
        if period::<F>() > 2 {
            // SAFETY: no instruction.
            unsafe {
                let (left, right) = (&mut left, &mut right);
                asm!(
                    "/* {0} {1} */",
                    inout(reg) * left,
                    inout(reg) * right,
                    options(nomem, nostack, preserves_flags)
                );
            }
        }
        Pair([left, right])
    }

    /// Thirty-two bytes of each, from the byte that is at `at` in a block without interleaving.
    ///
    /// # Safety
    /// They are there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(self, at: usize) -> __m512i {
        // SAFETY: the caller's promise.
        let [left, right] = self.0.map(|block| unsafe { _mm256_loadu_si256(block.add(OCTET * at).cast()) });
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(left), right)
    }

    /// Eight bytes of each.
    ///
    /// # Safety
    /// They are there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn eights(self, at: usize) -> __m128i {
        // SAFETY: the caller's promise.
        let [left, right] = self.0.map(|block| unsafe { _mm_loadl_epi64(block.add(OCTET * at).cast()) });
        _mm_unpacklo_epi64(left, right)
    }

    /// Eight f16 of each, widened.
    ///
    /// # Safety
    /// They are there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn halves(self, at: usize) -> __m512 {
        // SAFETY: the caller's promise.
        let [left, right] = self.0.map(|block| unsafe { _mm_loadu_si128(block.add(OCTET * at).cast()) });
        _mm512_cvtph_ps(_mm256_set_m128i(right, left))
    }
}

/// Prefetches lines `lines` of two adjacent octets ahead of byte `at`; past their end, those of the next two. An octet
/// has `all` bytes.
#[inline(always)]
fn fetch(columns: [Columns; 2], at: usize, lines: Range<usize>, all: usize) {
    let ahead = if at + AHEAD < all { at + AHEAD } else { at + AHEAD + all };
    for line in lines {
        for columns in columns {
            // SAFETY: a hint, for any address.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(
                    columns.first.wrapping_add(ahead).wrapping_add(LINE * line).cast(),
                )
            };
        }
    }
}

/// The lower or the upper nibbles of bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn nibbles(bytes: __m512i, upper: bool) -> __m512i {
    let bytes = if upper { _mm512_srli_epi16::<4>(bytes) } else { bytes };
    _mm512_and_si512(bytes, _mm512_set1_epi8(15))
}

/// Masks of the bits of a byte that are the fifth bits of four codes, for an even quad and for an odd one.
const FIFTHS: [i32; 2] = [0x0804_0201, 0x8040_2010u32.cast_signed()];

/// Five-bit codes, whose fifth bits are `bits` of byte `quad / 2` of words.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn fives(fours: __m512i, words: __m512i, quad: usize, bits: __m512i) -> __m512i {
    let bytes: [u8; 16] = std::array::from_fn(|at| (at / 4 * 4 + quad / 2) as u8);
    // SAFETY: sixteen bytes.
    let bytes = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) });
    let set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(words, bytes), bits);
    _mm512_mask_add_epi8(fours, set, fours, _mm512_set1_epi8(16))
}

/// Codes of elements `4 quad..4 quad + 4` of a group: four bytes of each column. `PART` is the group's position within
/// the [`period`].
///
/// # Safety
/// The blocks are of this type.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn codes<F: Format, const PART: usize>(pair: Pair, group: usize, quad: usize) -> __m512i {
    // SAFETY: the caller's promise.
    let load = |at: usize, word: usize| unsafe { pair.load(at + 4 * word) };
    let with = |fours, rest, mask| _mm512_or_si512(fours, _mm512_and_si512(rest, _mm512_set1_epi8(mask)));
    match F::LIES {
        Lies::Within(Kind::Q4K) => nibbles(load(16, group / 2 * QUADS + quad), PART % 2 == 1),
        Lies::Within(Kind::Q5K) => {
            let fifths = load(16, quad);
            let fifths = match PART {
                0 => _mm512_slli_epi16::<4>(fifths),
                1 => _mm512_slli_epi16::<3>(fifths),
                2 => _mm512_slli_epi16::<2>(fifths),
                3 => _mm512_slli_epi16::<1>(fifths),
                4 => fifths,
                5 => _mm512_srli_epi16::<1>(fifths),
                6 => _mm512_srli_epi16::<2>(fifths),
                _ => _mm512_srli_epi16::<3>(fifths),
            };
            with(nibbles(load(48, group / 2 * QUADS + quad), PART % 2 == 1), fifths, 16)
        }
        Lies::Within(Kind::Q6K) => {
            let upper = load(128, group / 4 * QUADS + quad);
            let upper = match PART {
                0 => _mm512_slli_epi16::<4>(upper),
                1 => _mm512_slli_epi16::<2>(upper),
                2 => upper,
                _ => _mm512_srli_epi16::<2>(upper),
            };
            with(nibbles(load(0, group / 4 * 16 + PART % 2 * QUADS + quad), PART >= 2), upper, 48)
        }
        Lies::Within(kind @ (Kind::Q5_0 | Kind::Q5_1)) => {
            let at = if kind == Kind::Q5_0 { 2 } else { 4 };
            let fours = nibbles(load(at, 1 + quad % 4), quad >= 4);
            fives(fours, load(at, 0), quad, _mm512_set1_epi32(FIFTHS[quad % 2]))
        }
        Lies::Within(Kind::Q4_1) => nibbles(load(4, quad % 4), quad >= 4),
        _ => nibbles(load(2, quad % 4), quad >= 4),
    }
}

/// Codes of elements `4 quad..4 quad + 8` of a group of eight columns: the first four of each, followed by the others.
/// `quad` is even.
///
/// # Safety
/// The block is of this type.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(in super::super) unsafe fn doubled<F: Format, const PART: usize>(
    block: *const u8,
    group: usize,
    quad: usize,
) -> __m512i {
    let pair = Pair([block, block.wrapping_add(4 * OCTET)]);
    if let Lies::Within(kind @ (Kind::Q5_0 | Kind::Q5_1)) = F::LIES {
        let at = if kind == Kind::Q5_0 { 2 } else { 4 };
        let [even, odd] = FIFTHS.map(|bits| _mm256_set1_epi32(bits));
        let bits = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(even), odd);
        // SAFETY: the caller's promise.
        let (fours, words) = unsafe { (pair.load(at + 4 + quad % 4 * 4), Pair([block; 2]).load(at)) };
        return fives(nibbles(fours, quad >= 4), words, quad, bits);
    }
    // SAFETY: the caller's promise.
    unsafe { codes::<F, PART>(pair, group, quad) }
}

/// Factors of blocks' groups.
struct Scales {
    /// Units of scales and of offsets.
    units: [__m512; 2],
    /// Scales, then offsets, of each group, for types that store them as packed bytes.
    bytes: [[u8; COLS]; 16],
}

impl Scales {
    /// # Safety
    /// The blocks are of this type.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn of<F: Format>(pair: Pair) -> Scales {
        let mut bytes = [[0; COLS]; 16];
        // SAFETY: the caller's promise.
        let half = |at: usize| unsafe { pair.halves(at) };
        let units = match F::LIES {
            Lies::Within(Kind::Q4K | Kind::Q5K) => {
                // SAFETY: the caller's promise.
                let [scales, mins, rest] = [4, 8, 12].map(|at| unsafe { pair.load(at) });
                let six = |x| _mm512_and_si512(x, _mm512_set1_epi8(63));
                // Moves the upper two bits of each byte to bits four and five.
                let upper = |x| _mm512_and_si512(_mm512_srli_epi16::<2>(x), _mm512_set1_epi8(48));
                let late = |x, up| _mm512_or_si512(nibbles(rest, up), upper(x));
                let all = [six(scales), late(scales, false), six(mins), late(mins, true)];
                // Makes both octets of a group adjacent.
                let order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
                for (to, all) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(all) {
                    let all = _mm512_permutexvar_epi64(order, all);
                    // SAFETY: 64 bytes.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), all) };
                }
                [half(0), half(2)]
            }
            Lies::Within(Kind::Q6K) => [half(208); 2],
            // In these types offsets are added.
            _ if F::OFFSET => [half(0), _mm512_mul_ps(half(2), _mm512_set1_ps(-1.0))],
            _ => [half(0); 2],
        };
        Scales { units, bytes }
    }

    /// The factors of a group's halves, or the first for all of it, and its offsets.
    ///
    /// # Safety
    /// The blocks are of this type, and these scales are of these blocks.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn at<F: Format>(&self, pair: Pair, group: usize) -> ([__m512; 2], __m512) {
        let [unit, least] = self.units;
        match F::LIES {
            Lies::Within(Kind::Q4K | Kind::Q5K) => {
                let of = |row: usize| {
                    // SAFETY: sixteen bytes.
                    let bytes = unsafe { _mm_loadu_si128(self.bytes[row].as_ptr().cast()) };
                    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
                };
                let factor = _mm512_mul_ps(unit, of(group));
                ([factor; 2], _mm512_mul_ps(least, of(8 + group)))
            }
            Lies::Within(Kind::Q6K) => {
                let of = |half: usize| {
                    // SAFETY: the caller's promise.
                    let bytes = unsafe { pair.eights(192 + 2 * group + half) };
                    _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
                };
                ([of(0), of(1)], _mm512_setzero_ps())
            }
            _ => ([unit; 2], least),
        }
    }
}

/// `256 upper - bias x integers`, to which the products of lower bytes are added.
#[target_feature(enable = "avx512f")]
#[inline]
fn raised<F: Format>(upper: __m512i, integers: i32) -> __m512i {
    match F::BIAS {
        0 => _mm512_slli_epi32::<8>(upper),
        8 => {
            let upper = _mm512_sub_epi32(_mm512_slli_epi32::<5>(upper), _mm512_set1_epi32(integers));
            _mm512_slli_epi32::<3>(upper)
        }
        16 => {
            let upper = _mm512_sub_epi32(_mm512_slli_epi32::<4>(upper), _mm512_set1_epi32(integers));
            _mm512_slli_epi32::<4>(upper)
        }
        32 => {
            let upper = _mm512_sub_epi32(_mm512_slli_epi32::<3>(upper), _mm512_set1_epi32(integers));
            _mm512_slli_epi32::<5>(upper)
        }
        _ => {
            let bias = _mm512_mullo_epi32(_mm512_set1_epi32(F::BIAS), _mm512_set1_epi32(integers));
            _mm512_sub_epi32(_mm512_slli_epi32::<8>(upper), bias)
        }
    }
}

/// `M` rows by sixteen columns, in two interleaved octets, read in packed form.
///
/// # Safety
/// The columns have the blocks of the rows' k, the rows exist and have their separate bytes, and the processor
/// [`has`](super::has) the products.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in super::super) unsafe fn pair<F: Format, const M: usize>(
    columns: [Columns; 2],
    rows: Rows,
) -> [[f32; COLS]; M] {
    let (groups, wide) = (rows.k / GROUP, OCTET * F::BYTES);
    let mut sums = [_mm512_setzero_ps(); M];
    for index in 0..groups / F::GROUPS {
        let pair = Pair::of(columns, index * wide);
        // SAFETY: the caller's promise.
        unsafe {
            let scales = Scales::of::<F>(pair);
            groups!(F, |group, PART| {
                let (pair, place) = (pair.pinned::<F>(), index * F::GROUPS + group);
                // A few lines per group: all lines of a block at once would delay its loads.
                let (lines, some) = (wide.div_ceil(LINE), wide.div_ceil(LINE * F::GROUPS));
                let from = (some * group).min(lines);
                fetch(columns, index * wide, from..(from + some).min(lines), groups / F::GROUPS * wide);
                let x: [*const i32; M] =
                    std::array::from_fn(|row| rows.bytes_of(row).add(place).cast_const().cast());
                // Sums with upper and with lower bytes, for each half.
                let mut found = [[[_mm512_setzero_si512(); 2]; 2]; M];
                quads!(|quad| {
                    let w = codes::<F, PART>(pair, group, quad);
                    let half = if F::FACTORS == 2 { quad / (QUADS / 2) } else { 0 };
                    for (found, x) in found.iter_mut().zip(x) {
                        for (which, sum) in found[half].iter_mut().enumerate() {
                            let x = x.add(QUADS * which + quad).read_unaligned();
                            *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(x));
                        }
                    }
                });
                let held = scales.at::<F>(pair, group);
                for (row, (sum, found)) in sums.iter_mut().zip(found).enumerate() {
                    let part = &*rows.parts.add(row * groups + place);
                    let whole = |half: usize, integers: i32| {
                        _mm512_add_epi32(raised::<F>(found[half][0], integers), found[half][1])
                    };
                    let parts = if F::FACTORS == 2 {
                        [whole(0, part.halves[0]), whole(1, part.halves[1])]
                    } else {
                        [whole(0, part.sum); 2]
                    };
                    *sum = added::<F>(*sum, parts, held, part);
                }
            });
        }
    }
    sums.map(|sum| {
        let mut out = [0.0; COLS];
        // SAFETY: sixteen f32.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        out
    })
}

/// Prefetching while a panel is used: as many lines of both octets as a panel has, a few for each group of a kernel's
/// rows. All at once would delay the loads of the panel's readers.
pub(in super::super) struct Ahead {
    from: [*const u8; 2],
    each: usize,
}

impl Ahead {
    /// Prefetching for columns whose groups `from..from + groups` are used for this many rows of `k` elements.
    pub fn of<F: Format>(
        columns: [Columns; 2],
        (from, groups): (usize, usize),
        (rows, k): (usize, usize),
    ) -> Ahead {
        let (wide, all) = (OCTET * F::BYTES, k / GROUP / F::GROUPS * OCTET * F::BYTES);
        let at = from / F::GROUPS * wide + AHEAD;
        // Two adjacent octets are followed by the next two.
        let at = if at < all { at } else { at + all };
        let (lines, times) = ((groups / F::GROUPS * wide).div_ceil(LINE), rows.div_ceil(8).max(1) * groups);
        let from = columns.map(|columns| columns.first.wrapping_add(at));
        Ahead { from, each: lines.div_ceil(times) }
    }

    /// Prefetches the next few lines.
    #[inline(always)]
    fn fetch(&mut self) {
        for _ in 0..self.each {
            for at in &mut self.from {
                // SAFETY: a hint, for any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
                *at = at.wrapping_add(LINE);
            }
        }
    }
}

/// Writes `groups` groups of sixteen columns from group `from` on into a panel, with their codes as biased bytes.
///
/// # Safety
/// The columns have this type and the groups, whole blocks, and the panel has room.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn fill<F: Format>(
    columns: [Columns; 2],
    (from, groups): (usize, usize),
    panel: &mut Panel,
) {
    let (first, wide) = (from / F::GROUPS, OCTET * F::BYTES);
    for index in 0..groups / F::GROUPS {
        let pair = Pair::of(columns, (first + index) * wide);
        // SAFETY: the caller's promise; codes of a group take half of the room for them.
        unsafe {
            let scales = Scales::of::<F>(pair);
            groups!(F, |group, PART| {
                let (pair, at) = (pair.pinned::<F>(), index * F::GROUPS + group);
                let to = panel.codes.as_mut_ptr().cast::<__m512i>().add(at * QUADS);
                quads!(|quad| _mm512_store_si512(to.add(quad), codes::<F, PART>(pair, group, quad)));
                let (factors, offset) = scales.at::<F>(pair, group);
                for (to, factor) in panel.factors[at][..F::FACTORS].iter_mut().zip(factors) {
                    _mm512_store_ps(to.as_mut_ptr(), factor);
                }
                if F::OFFSET {
                    _mm512_store_ps(panel.offsets[at].as_mut_ptr(), offset);
                }
            });
        }
    }
}

/// Adds to `$sum` the products of `$w` and four bytes, number `$at` of a row at `$x`.
macro_rules! dot {
    ($sum:ident, $w:ident, $x:ident $text:literal, $at:expr $(, $stride:ident)?) => {
        asm!(
            concat!("vpdpbusd {sum}, {w}, dword ptr [{x} ", $text, " + {at}]{{1to16}}"),
            sum = inout(zmm_reg) *$sum,
            w = in(zmm_reg) $w,
            x = in(reg) $x,
            $(stride = in(reg) $stride,)?
            at = const 4 * $at,
            options(pure, readonly, nostack, preserves_flags)
        )
    };
}

/// Like [`super::micro`], for a panel written by [`fill`].
///
/// # Safety
/// See there; in addition, the rows have their separate bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn micro<F: Format, const R: usize>(
    panel: &Panel,
    (from, groups): (usize, usize),
    (rows, tile): (Rows, *mut Tile),
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut tiles, groups_of_row) = ([_mm512_setzero_ps(); R], rows.k / GROUP);
        // The first of each four rows; the others follow at fixed distances in bytes.
        let mut x: [*const i32; R] = [std::ptr::null(); R];
        let stride = rows.bytes_stride();
        let thrice = 3 * stride;
        for row in 0..R {
            tiles[row] = _mm512_loadu_ps(tile.add(row).cast());
            let of = if R < 4 { row } else { 4 * row };
            x[row] = rows.bytes.cast::<i32>().wrapping_byte_add(of * stride + 2 * from * GROUP);
        }
        let parts = rows.parts.add(from).cast_const();
        let mut w = panel.codes.as_ptr().cast::<__m512i>();
        for group in 0..groups {
            let mut sums = [[_mm512_setzero_si512(); R]; 2];
            // Unrolled by hand, because the compiler keeps larger loops.
            macro_rules! step {
                ($half:expr, $which:literal: $($quad:literal),*) => {$(
                    let held = _mm512_load_si512(w.add($quad));
                    let (whole, rest) = sums[$half].as_chunks_mut::<4>();
                    for ([a, b, c, d], x) in whole.iter_mut().zip(x) {
                        dot!(a, held, x "", QUADS * $which + $quad);
                        dot!(b, held, x "+ {stride}", QUADS * $which + $quad, stride);
                        dot!(c, held, x "+ 2 * {stride}", QUADS * $which + $quad, stride);
                        dot!(d, held, x "+ {stride}", QUADS * $which + $quad, thrice);
                    }
                    for (sum, x) in rest.iter_mut().zip(x) {
                        dot!(sum, held, x "", QUADS * $which + $quad);
                    }
                )*};
            }
            ahead.fetch();
            let part = |row: usize| &*parts.add(row * groups_of_row + group);
            step!(0, 0: 0, 1, 2, 3);
            if F::FACTORS == 2 {
                for (row, sum) in sums[0].iter_mut().enumerate() {
                    *sum = raised::<F>(*sum, part(row).halves[0]);
                }
                step!(0, 1: 0, 1, 2, 3);
                step!(1, 0: 4, 5, 6, 7);
                for (row, sum) in sums[1].iter_mut().enumerate() {
                    *sum = raised::<F>(*sum, part(row).halves[1]);
                }
                step!(1, 1: 4, 5, 6, 7);
            } else {
                step!(0, 0: 4, 5, 6, 7);
                for (row, sum) in sums[0].iter_mut().enumerate() {
                    *sum = raised::<F>(*sum, part(row).sum);
                }
                step!(0, 1: 0, 1, 2, 3, 4, 5, 6, 7);
            }
            w = w.add(QUADS);
            for x in &mut x {
                *x = x.wrapping_add(2 * QUADS);
            }
            let load = |from: &Tile| _mm512_load_ps(from.as_ptr());
            let [first, second] = panel.factors.get_unchecked(group);
            let factors = [load(first), if F::FACTORS == 2 { load(second) } else { load(first) }];
            let offsets =
                if F::OFFSET { load(panel.offsets.get_unchecked(group)) } else { _mm512_setzero_ps() };
            for (row, tile) in tiles.iter_mut().enumerate() {
                *tile = added::<F>(*tile, [sums[0][row], sums[1][row]], (factors, offsets), part(row));
            }
        }
        for (row, sum) in tiles.into_iter().enumerate() {
            _mm512_storeu_ps(tile.add(row).cast(), sum);
        }
    }
}

/// Adds a panel written by [`fill`] to as many of the `left` rows as a kernel handles at a time, and returns how many
/// those are.
///
/// # Safety
/// See [`super::micro`]; in addition, the rows have their separate bytes.
pub(in super::super) unsafe fn some<F: Format>(
    left: usize,
    panel: &Panel,
    groups: (usize, usize),
    (rows, tile): (Rows, *mut Tile),
    ahead: &mut Ahead,
) -> usize {
    // SAFETY: passed on.
    unsafe {
        match left {
            // With a single factor the sums leave registers for more rows.
            16.. if F::FACTORS == 1 => (micro::<F, 8>(panel, groups, (rows, tile), ahead), 8).1,
            12.. if F::FACTORS == 1 => (micro::<F, 12>(panel, groups, (rows, tile), ahead), 12).1,
            8.. => (micro::<F, 8>(panel, groups, (rows, tile), ahead), 8).1,
            4.. => (micro::<F, 4>(panel, groups, (rows, tile), ahead), 4).1,
            2.. => (micro::<F, 2>(panel, groups, (rows, tile), ahead), 2).1,
            _ => (micro::<F, 1>(panel, groups, (rows, tile), ahead), 1).1,
        }
    }
}
