//! Quantized weights: rows of codes with a scale for each block of elements, as bitsandbytes computes them. These are
//! the formats' reference definitions, slow and in f32; machines have kernels with the same bits
//! ([`crate::Machine::pack`], [`crate::Machine::unpack`]).
//!
//! NF4 (Dettmers et al., 2023, appendix E): blocks of 64 elements; the scale is the largest magnitude, and a code names one of sixteen
//! values from -1 to 1. int8: one block is a row, codes are `round(127 x / largest)`.
//!
//! A packed row is its codes, padded to four bytes, then its scales in f32. If a matrix has rows of whole blocks, each
//! row is packed on its own; bitsandbytes counts blocks through the whole matrix, which gives the same blocks. Other
//! matrices are packed as one long row. A block of denormal numbers is packed as zeros.
//!
//! ggml's block types ([`crate::ggml`]) keep their scales inside their blocks; their rows are whole blocks. Rows of
//! [`crate::grouped`] have scales behind their codes and are only read from files.

use std::ops::Range;

use half::f16;

use crate::ggml::octets::{OCTET, interleaves};
use crate::ggml::{self, Kind};
use crate::grouped::{Grouped, TOGETHER};

/// Elements of a block of NF4.
pub const NF4_BLOCK: usize = 64;

/// Values of NF4's codes, ascending: bitsandbytes' table.
#[allow(clippy::excessive_precision)]
pub const NF4_VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// Bounds between adjacent [`NF4_VALUES`]: an element above a bound takes the upper value's code.
pub const NF4_BOUNDS: [f32; 15] = {
    let mut bounds = [0.0; 15];
    let mut code = 0;
    while code < 15 {
        bounds[code] = (NF4_VALUES[code] + NF4_VALUES[code + 1]) / 2.0;
        code += 1;
    }
    bounds
};

/// Lower bound of the scale that a block is divided by.
pub const NF4_LEAST: f32 = 1e-38;

/// Factor of int8's product of code and scale: bitsandbytes' constant, 1/127 in f32.
pub const INT8_STEP: f32 = 0.007_874_016;

/// Format of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// Four bits, two codes per byte, the first in the upper half; one scale per 64 elements.
    Nf4,
    /// Eight bits; one scale per row.
    Int8,
    /// A block type of ggml that is not plain numbers.
    Ggml(Kind),
    /// Such a block type, or bf16, with its rows interleaved in groups of eight ([`crate::ggml::octets`]). Rows cannot
    /// be packed in this format or read alone.
    Octets(Kind),
    /// Codes with per-group scales and zeros, as other tools write them: read from files, never made.
    Grouped(Grouped),
}

impl BlockFormat {
    /// The name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            BlockFormat::Nf4 => "nf4",
            BlockFormat::Int8 => "int8",
            BlockFormat::Ggml(kind) | BlockFormat::Octets(kind) => kind.name(),
            BlockFormat::Grouped(grouped) => grouped.name(),
        }
    }

    /// Elements under one scale in a row of `cols`.
    pub fn block(self, cols: usize) -> usize {
        match self {
            BlockFormat::Nf4 => NF4_BLOCK,
            BlockFormat::Int8 => cols.max(1),
            BlockFormat::Ggml(kind) | BlockFormat::Octets(kind) => kind.block(),
            BlockFormat::Grouped(grouped) => grouped.group,
        }
    }

    /// True if a row's scales lie among its codes, as far as code other than the format's own kernels can tell.
    fn has_scales_within(self) -> bool {
        matches!(self, BlockFormat::Ggml(_) | BlockFormat::Octets(_) | BlockFormat::Grouped(_))
    }

    /// Number of scales behind a row's codes.
    pub fn scales(self, cols: usize) -> usize {
        if self.has_scales_within() { 0 } else { cols.div_ceil(self.block(cols)) }
    }

    /// Bytes of a row's codes, without padding.
    pub fn code_bytes(self, cols: usize) -> usize {
        match self {
            BlockFormat::Nf4 => cols.div_ceil(2),
            BlockFormat::Int8 => cols,
            BlockFormat::Ggml(kind) | BlockFormat::Octets(kind) => kind.bytes(cols),
            BlockFormat::Grouped(grouped) => grouped.row_bytes(cols),
        }
    }

    /// Byte offset of a row's scales.
    pub fn scales_at(self, cols: usize) -> usize {
        let bytes = self.code_bytes(cols);
        if self.has_scales_within() { bytes } else { bytes.next_multiple_of(4) }
    }

    /// Bytes of a packed row.
    pub fn row_bytes(self, cols: usize) -> usize {
        self.scales_at(cols) + 4 * self.scales(cols)
    }

    /// The packed shape of a matrix: row by row if rows are whole blocks, else one row.
    pub fn packed_shape(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        let [lines, width] = self.lines([rows, cols]);
        [lines, self.row_bytes(width)]
    }

    /// The matrix's shape as rows that are packed individually.
    pub fn lines(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        if cols.is_multiple_of(self.block(cols)) { [rows, cols] } else { [1, rows * cols] }
    }

    /// True if these columns, of rows of `cols`, are whole blocks and form a packed row of their own without new
    /// scales.
    pub fn has_columns(self, cols: usize, part: &Range<usize>) -> bool {
        let whole = |block: usize| part.start.is_multiple_of(block) && part.len().is_multiple_of(block);
        match self {
            _ if *part == (0..cols) => true,
            BlockFormat::Ggml(kind) | BlockFormat::Octets(kind) => whole(kind.block()),
            BlockFormat::Grouped(grouped) => {
                whole(grouped.group) && part.start.is_multiple_of(TOGETHER) && grouped.fits(part.len())
            }
            BlockFormat::Nf4 | BlockFormat::Int8 => false,
        }
    }

    /// Copies such columns of a packed row of `cols`, not interleaved, to `out`.
    ///
    /// # Panics
    /// If [`BlockFormat::has_columns`] is false for them, or the sizes of `row` or `out` do not fit.
    #[track_caller]
    pub fn take_columns(self, row: &[u8], (cols, part): (usize, Range<usize>), out: &mut [u8]) {
        assert!(self.has_columns(cols, &part), "columns {part:?} of {cols} in {}", self.name());
        match self {
            BlockFormat::Ggml(kind) | BlockFormat::Octets(kind) => {
                out.copy_from_slice(&row[kind.bytes(part.start)..kind.bytes(part.end)]);
            }
            BlockFormat::Grouped(grouped) => grouped.take_columns(row, (cols, part), out),
            BlockFormat::Nf4 | BlockFormat::Int8 => out.copy_from_slice(row),
        }
    }

    /// Packs a row (reference definition). `out` has [`BlockFormat::row_bytes`].
    ///
    /// # Panics
    /// If the format is only read, never made.
    #[track_caller]
    pub fn pack_row(self, x: &[f32], out: &mut [u8]) {
        if let BlockFormat::Ggml(kind) = self {
            return ggml::quantise(kind, x, out);
        }
        let (codes, scales) = out.split_at_mut(self.scales_at(x.len()));
        codes.fill(0);
        match self {
            BlockFormat::Nf4 => {
                let blocks = x.chunks(NF4_BLOCK).zip(codes.chunks_mut(NF4_BLOCK / 2));
                for ((x, codes), scale) in blocks.zip(scales.as_chunks_mut::<4>().0) {
                    *scale = pack_nf4(x, codes).to_le_bytes();
                }
            }
            BlockFormat::Int8 => {
                let scale = int8_scale(x.iter().copied());
                for (code, x) in codes.iter_mut().zip(x) {
                    *code = int8_code(*x, scale).cast_unsigned();
                }
                scales.copy_from_slice(&scale.to_le_bytes());
            }
            BlockFormat::Ggml(_) => {}
            BlockFormat::Grouped(_) | BlockFormat::Octets(_) => {
                panic!("pack: rows of {} are read and never made", self.name())
            }
        }
    }

    /// Values of a packed row (reference definition).
    ///
    /// # Panics
    /// If rows of this format are interleaved with others.
    #[track_caller]
    pub fn unpack_row(self, packed: &[u8], out: &mut [f32]) {
        if let BlockFormat::Ggml(kind) = self {
            return ggml::dequantise(kind, packed, out);
        }
        if let BlockFormat::Grouped(grouped) = self {
            return grouped.unpack(packed, (out.len(), 0), out);
        }
        let (codes, scales) = packed.split_at(self.scales_at(out.len()));
        let block = self.block(out.len());
        for (index, out) in out.iter_mut().enumerate() {
            let at = 4 * (index / block);
            let scale = f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]]);
            *out = match self {
                BlockFormat::Nf4 => {
                    let pair = codes[index / 2];
                    NF4_VALUES[usize::from(if index % 2 == 0 { pair >> 4 } else { pair & 15 })] * scale
                }
                BlockFormat::Int8 => int8_value(codes[index].cast_signed(), scale),
                BlockFormat::Octets(_) => panic!("unpack: a row of {} alone is interleaved", self.name()),
                BlockFormat::Ggml(_) | BlockFormat::Grouped(_) => 0.0,
            };
        }
    }
}

/// Layout of a packed matrix: runs of rows, each in one format and packed row by row, one run after another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Columns of the matrix.
    pub cols: usize,
    /// Each run's format and number of rows.
    pub runs: Vec<(BlockFormat, usize)>,
    /// Weights of experts, [experts x out, in], that count as [experts x in, out]; only for products grouped by expert.
    pub turned: bool,
}

impl Packing {
    /// Number of rows as packed.
    pub fn rows(&self) -> usize {
        self.runs.iter().map(|(_, rows)| rows).sum()
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(|(format, rows)| rows * format.row_bytes(self.cols)).sum()
    }

    /// The same rows in as many bytes, with every whole group of eight in a run interleaved if the kind allows it. bf16
    /// is interleaved as a whole or not at all.
    pub fn interleaved(self) -> Packing {
        let mut runs = Vec::new();
        for (format, rows) in self.runs.iter().copied() {
            match format {
                BlockFormat::Ggml(Kind::Bf16) if !self.is_pairs_of_eights(rows) => runs.push((format, rows)),
                BlockFormat::Ggml(kind) if interleaves(kind) => {
                    let whole = rows / OCTET * OCTET;
                    runs.push((BlockFormat::Octets(kind), whole));
                    runs.push((format, rows - whole));
                }
                _ => runs.push((format, rows)),
            }
        }
        runs.retain(|(_, rows)| *rows > 0);
        Packing { runs, ..self }
    }

    /// True if the row count is a multiple of eight and the column count of two.
    fn is_pairs_of_eights(&self, rows: usize) -> bool {
        rows.is_multiple_of(OCTET) && self.cols.is_multiple_of(2)
    }

    /// True if the matrix is plain numbers: one run of interleaved bf16.
    pub fn is_numbers(&self) -> bool {
        matches!(self.runs[..], [(BlockFormat::Octets(Kind::Bf16), _)])
    }

    /// Byte offset and format of a row, before interleaving.
    ///
    /// # Panics
    /// If there is no such row.
    #[track_caller]
    pub fn row(&self, row: usize) -> (usize, BlockFormat) {
        let (mut left, mut at) = (row, 0);
        for (format, rows) in &self.runs {
            let bytes = format.row_bytes(self.cols);
            if left < *rows {
                return (at + left * bytes, *format);
            }
            (left, at) = (left - rows, at + rows * bytes);
        }
        panic!("row {row} of {self:?}");
    }
}

/// Packs a block of NF4 and returns its scale. Like bitsandbytes, multiplies a whole block by the reciprocal and
/// divides a short one, whose scale is never zero.
fn pack_nf4(x: &[f32], codes: &mut [u8]) -> f32 {
    let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let most = if most < f32::MIN_POSITIVE { 0.0 } else { most };
    let whole = x.len() == NF4_BLOCK;
    let floor = most.max(NF4_LEAST);
    let code = |x: &f32| {
        let x = if whole { x * (1.0 / floor) } else { x / floor }.clamp(-1.0, 1.0);
        NF4_BOUNDS.iter().map(|bound| u8::from(x > *bound)).sum::<u8>()
    };
    for (pair, x) in codes.iter_mut().zip(x.chunks(2)) {
        // The padding of the last byte is zero before it becomes a code.
        *pair = code(&x[0]) << 4 | x.get(1).map_or_else(|| code(&0.0), code);
    }
    if whole { most } else { floor }
}

/// An element as bitsandbytes quantizes it to int8: rounded to f16.
pub fn int8_input(x: f32) -> f32 {
    f16::from_f32(x.clamp(-65504.0, 65504.0)).to_f32()
}

/// The scale of an int8 row: its largest magnitude.
pub fn int8_scale(x: impl Iterator<Item = f32>) -> f32 {
    x.fold(0.0, |most: f32, x| most.max(int8_input(x).abs()))
}

/// The code of an element in a row with this scale.
pub fn int8_code(x: f32, scale: f32) -> i8 {
    // The order in which PyTorch divides a number by a tensor.
    if scale == 0.0 { 0 } else { (int8_input(x) * (1.0 / scale * 127.0)).round_ties_even() as i8 }
}

/// The value of a code.
#[inline(always)]
pub fn int8_value(code: i8, scale: f32) -> f32 {
    f32::from(code) * scale * INT8_STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_bytes() {
        use BlockFormat::{Int8, Nf4};
        assert_eq!([[3, 128], [3, 35]].map(|shape| Nf4.packed_shape(shape)), [[3, 64 + 8], [1, 56 + 8]]);
        assert_eq!(Int8.packed_shape([3, 35]), [3, 36 + 4]);
    }

    #[test]
    fn interleaved_rows_have_the_bytes_of_the_others() {
        let [q4, q8] = [Kind::Q4K, Kind::Q8_0].map(BlockFormat::Ggml);
        let plain = Packing { cols: 512, runs: vec![(q4, 21), (q8, 9), (q4, 3), (q4, 8)], turned: false };
        let (together, octets) = (plain.clone().interleaved(), BlockFormat::Octets(Kind::Q4K));
        assert_eq!(together.runs, [(octets, 16), (q4, 5), (q8, 9), (q4, 3), (octets, 8)]);
        assert_eq!((together.rows(), together.bytes()), (plain.rows(), plain.bytes()));
        assert!((0..41).all(|row| together.row(row).0 == plain.row(row).0));
    }

    #[test]
    fn blocks_come_back_within_their_steps() {
        let x: Vec<f32> = (0..130).map(|at| (at as f32 * 0.37).sin() * 0.1).collect();
        for (format, step) in [(BlockFormat::Nf4, 0.153), (BlockFormat::Int8, 0.004_5)] {
            let mut packed = vec![0; format.row_bytes(x.len())];
            format.pack_row(&x, &mut packed);
            let mut back = vec![0.0; x.len()];
            format.unpack_row(&packed, &mut back);
            assert!(x.iter().zip(&back).all(|(x, y)| (x - y).abs() <= 0.1 * step), "{format:?}");
        }
        let mut packed = vec![1; BlockFormat::Nf4.row_bytes(64)];
        BlockFormat::Nf4.pack_row(&[0.0; 64], &mut packed);
        assert!(packed[..32].iter().all(|pair| *pair == 0x77) && packed[32..] == [0; 4]);
    }
}
