//! Reads a tensor in a GGUF file in Hugging Face's layout.

use std::ops::Range;

use fathom_tensor::DType;
use fathom_tensor::ggml::{Kind, dequantise};

use crate::error::Result;
use crate::files::area::{Area, matrix};
use crate::files::convert::convert_into;
use crate::files::parts::ReadAt;

/// Bytes that are read and decoded at a time.
const TOGETHER_BYTES: usize = 1 << 18;

/// Location of a tensor, and its differences from Hugging Face's.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::files) struct Blocks {
    /// Index of the file.
    pub file: usize,
    /// Offset of its first byte in the file.
    pub start: u64,
    pub kind: Kind,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
    /// Number of heads if rows are permuted for ggml's rotation of neighbours: each head's two halves are
    /// interleaved.
    pub heads: Option<usize>,
    /// Offset of elements from Hugging Face's: 1 for Gemma's norms.
    pub more: f32,
}

impl Blocks {
    /// Element type after reading; blocks become f32, which is exact.
    pub fn dtype(&self) -> DType {
        match self.kind {
            Kind::F16 => DType::F16,
            Kind::Bf16 => DType::Bf16,
            _ => DType::F32,
        }
    }

    fn size(&self) -> [usize; 2] {
        matrix(&self.shape).unwrap_or_default()
    }

    /// Size in bytes after reading.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype().bytes()
    }

    /// Index of a row in the file.
    fn row(&self, row: usize) -> usize {
        let Some(heads) = self.heads else { return row };
        let head = self.size()[0] / heads;
        let (first, at, half) = (row / head * head, row % head, head / 2);
        first + 2 * (at % half) + at / half
    }

    /// Returns whether rows are quantized blocks with the same values as Hugging Face's elements.
    pub fn has_rows(&self) -> bool {
        self.kind.block() > 1 && self.shape.len() == 2 && self.more == 0.0
    }

    /// Overwrites `out` with the raw blocks of some rows.
    ///
    /// # Errors
    /// If the file cannot be read.
    ///
    /// # Panics
    /// If there are no such rows, or `out` has another size.
    pub fn read_rows(&self, rows: Range<usize>, out: &mut [u8], read_at: ReadAt<'_>) -> Result<()> {
        let [all, width] = self.size();
        let row_bytes = self.kind.bytes(width);
        assert!(rows.end <= all && out.len() == rows.len() * row_bytes, "rows {rows:?} of {self:?}");
        if self.heads.is_none() {
            return read_at(self.file, self.start + (rows.start * row_bytes) as u64, out);
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            read_at(self.file, self.start + (self.row(row) * row_bytes) as u64, out)?;
        }
        Ok(())
    }

    /// Overwrites `out` with the elements of an area, row by row.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, area: &Area, out: &mut [u8], read_at: ReadAt<'_>) -> Result<()> {
        let [_, width] = self.size();
        let (block, row_bytes) = (self.kind.block(), self.kind.bytes(width));
        let (cols, size) = (area.cols.clone(), self.dtype().bytes());
        let whole = cols.len() == width && self.heads.is_none();
        let together = if whole { (TOGETHER_BYTES / row_bytes.max(1)).max(1) } else { 1 };
        let (first, end) = (cols.start / block, cols.end.div_ceil(block));
        let (mut raw, mut rest) = (Vec::new(), out);
        for row in area.rows.clone().step_by(together) {
            let rows = together.min(area.rows.end - row);
            let bytes = self.kind.bytes((end - first) * block);
            raw.resize(rows * bytes, 0);
            let at = self.row(row) * row_bytes + self.kind.bytes(first * block);
            read_at(self.file, self.start + at as u64, &mut raw)?;
            let (now, later) = rest.split_at_mut(rows * cols.len() * size);
            self.decode(&raw, cols.start - first * block, now);
            rest = later;
        }
        Ok(())
    }

    /// Decodes blocks, skipping the first `skip` elements.
    fn decode(&self, raw: &[u8], skip: usize, out: &mut [u8]) {
        if self.kind.block() == 1 && self.more == 0.0 {
            return out.copy_from_slice(raw);
        }
        let mut plain = vec![0.0; raw.len() / self.kind.block_bytes() * self.kind.block()];
        dequantise(self.kind, raw, &mut plain);
        let count = out.len() / self.dtype().bytes();
        let wide: Vec<u8> =
            plain[skip..skip + count].iter().flat_map(|value| (value - self.more).to_le_bytes()).collect();
        convert_into(DType::F32, &wide, self.dtype(), out);
    }
}
