//! Tensors decoded from several stored ones: gpt-oss's experts in MXFP4, and linear layers quantized by GPTQ, AWQ,
//! compressed-tensors, DeepSeek's blockwise FP8 and ModelOpt. They are decoded row by row, each element to f32 and
//! then rounded once to the tensor's type, or read as rows that products take directly ([`PackedTensor::read_grouped`]).
//! Settings for rounding activations are ignored: products use the decoded weights as they are.

mod decode;
mod find;
mod layout;

use std::ops::Range;

use fathom_tensor::{DType, Grouped};

use super::area::Area;
use super::convert::convert_into;
use super::source::Stream;
use crate::error::Result;

pub(super) use decode::{to_eight, to_four};
pub(super) use find::find;
pub(super) use layout::{FourScales, JoinedPart, Layout, PackedTensor};

/// A contiguous range of bytes of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub start: u64,
    pub bytes: usize,
}

impl PackedTensor {
    fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or_default()
    }

    /// Number of rows of the tensor seen as a matrix.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    pub fn row_bytes(&self) -> usize {
        self.width() * self.dtype.bytes()
    }

    /// Renames its parts; `None` if one has no new name.
    pub fn rename(self, name: &dyn Fn(&str) -> Option<String>) -> Option<PackedTensor> {
        let part = |part: JoinedPart| Some(JoinedPart { name: name(&part.name)?, ..part });
        Some(PackedTensor { parts: self.parts.into_iter().map(part).collect::<Option<_>>()?, ..self })
    }

    /// Number of units in which parts are read: experts, or one.
    fn units(&self) -> usize {
        if self.layout == Layout::Experts { self.shape[0] } else { 1 }
    }

    /// Experts as one linear layer of all stored rows, [experts x out, in].
    fn below_each_other(&self) -> Option<PackedTensor> {
        let [experts, inner, out] = self.shape[..] else { return None };
        let layout = Layout::Fours { group: layout::GROUP, scales: FourScales::PowersOfTwo };
        let shape = vec![experts * out, inner];
        (self.layout == Layout::Experts).then(|| PackedTensor { shape, layout, ..self.clone() })
    }

    /// Format of rows that products take directly, for a linear layer with scales of neighbouring inputs, or for
    /// stacked experts.
    pub fn grouped(&self) -> Option<Grouped> {
        if let Some(all) = self.below_each_other() {
            return all.grouped();
        }
        let [rows, cols] = self.shape[..] else { return None };
        let inputs = |scales: &JoinedPart| cols.div_ceil(scales.bytes as usize / scales.dtype.bytes() / rows);
        let size = match self.layout {
            Layout::Gptq { ordered: false, .. } | Layout::Awq => inputs(&self.parts[2]),
            Layout::Integers { ordered: false, .. } => inputs(&self.parts[1]),
            Layout::Bytes { block: [_, wide], .. } => wide,
            Layout::Fours { group, .. } => group,
            Layout::Experts | Layout::Gptq { .. } | Layout::Integers { .. } => return None,
        };
        // The last group of a row may be shorter.
        let grouped = Grouped { codes: self.codes(), group: common(size, cols) };
        grouped.fits(cols).then_some(grouped)
    }

    /// Overwrites `out` with some rows in the format `how`.
    pub fn read_grouped(
        &self,
        (how, rows): (Grouped, Range<usize>),
        out: &mut [u8],
        stream: &mut dyn Stream,
    ) -> Result<()> {
        if let Some(all) = self.below_each_other() {
            return all.read_grouped((how, rows), out, stream);
        }
        // Row-major codes are read for these rows only, and so are the scales of four-bit formats.
        let fours = matches!(self.layout, Layout::Fours { .. });
        let by_rows = fours || matches!(self.layout, Layout::Integers { .. } | Layout::Bytes { .. });
        let (first, cols) = (if by_rows { rows.start } else { 0 }, self.width());
        let mut parts = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            let each = part.bytes / self.rows() as u64;
            let some = rows.start as u64 * each..rows.end as u64 * each;
            let of = if by_rows && index == 0 || fours && index == 1 { some } else { 0..part.bytes };
            parts.push(part.read(of, stream)?);
        }
        for (row, out) in rows.zip(out.chunks_exact_mut(how.row_bytes(cols))) {
            let (here, of_scale) = (row - first, if fours { row - first } else { row });
            let code = |input| self.code(&parts, here, input);
            how.write_row(cols, code, |input| self.scale(&parts, of_scale, input), out);
        }
        Ok(())
    }

    /// Byte ranges of an area of the tensor, seen as a matrix; whole rows are one range.
    pub fn stretches(&self, area: &Area) -> impl Iterator<Item = Stretch> + use<> {
        let (row_bytes, size) = (self.row_bytes(), self.dtype.bytes());
        let Area { rows, cols } = area.clone();
        let step = if cols.len() == self.width() { rows.len().max(1) } else { 1 };
        rows.step_by(step).map(move |row| Stretch {
            start: (row * row_bytes + cols.start * size) as u64,
            bytes: step * cols.len() * size,
        })
    }
}

/// Greatest common divisor.
fn common(x: usize, y: usize) -> usize {
    if y == 0 { x } else { common(y, x % y) }
}

impl JoinedPart {
    /// Reads a range of its bytes; f16 and bf16 are widened to f32.
    fn read(&self, of: Range<u64>, stream: &mut dyn Stream) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (of.end - of.start) as usize];
        stream.read(&self.name, of.start, &mut bytes)?;
        if !matches!(self.dtype, DType::Bf16 | DType::F16) {
            return Ok(bytes);
        }
        let mut wide = vec![0; 2 * bytes.len()];
        convert_into(self.dtype, &bytes, DType::F32, &mut wide);
        Ok(wide)
    }
}

/// One thread's last read: parts as stored, scales as f32, and a decoded row.
#[derive(Default)]
pub(super) struct Cache {
    of: Option<(String, usize)>,
    parts: Vec<Vec<u8>>,
    row: Option<usize>,
    bytes: Vec<u8>,
}

impl Cache {
    /// Overwrites `out` with bytes of a tensor's elements from byte `start`, which may be inside an element.
    pub fn read(
        &mut self,
        joined: &PackedTensor,
        start: u64,
        out: &mut [u8],
        stream: &mut dyn Stream,
    ) -> Result<()> {
        let wide = joined.row_bytes();
        let (mut at, mut rest) = (start as usize, out);
        while !rest.is_empty() {
            let (row, from) = (at / wide, at % wide);
            self.decode(joined, row, stream)?;
            let (now, later) = rest.split_at_mut(rest.len().min(wide - from));
            now.copy_from_slice(&self.bytes[from..][..now.len()]);
            at += now.len();
            rest = later;
        }
        Ok(())
    }

    fn decode(&mut self, joined: &PackedTensor, row: usize, stream: &mut dyn Stream) -> Result<()> {
        let each = joined.rows() / joined.units();
        self.fetch(joined, row / each, stream)?;
        if self.row != Some(row) {
            let mut values = vec![0.0; joined.width()];
            joined.decode_row(&self.parts, row % each, &mut values);
            let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.bytes.resize(joined.row_bytes(), 0);
            convert_into(DType::F32, &values, joined.dtype, &mut self.bytes);
            self.row = Some(row);
        }
        Ok(())
    }

    fn fetch(&mut self, joined: &PackedTensor, unit: usize, stream: &mut dyn Stream) -> Result<()> {
        let name = &joined.parts[0].name;
        if self.of.as_ref().is_some_and(|(of, at)| of == name && *at == unit) {
            return Ok(());
        }
        // Invalid until all parts are read.
        (self.of, self.row) = (None, None);
        self.parts.clear();
        for part in &joined.parts {
            let each = part.bytes / joined.units() as u64;
            self.parts.push(part.read(unit as u64 * each..(unit as u64 + 1) * each, stream)?);
        }
        self.of = Some((name.clone(), unit));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rows_are_one_stretch_and_parts_of_rows_are_not() {
        let (parts, layout) = (Vec::new(), Layout::Experts);
        let joined = PackedTensor { parts, shape: vec![2, 32, 5], dtype: DType::Bf16, layout };
        let stretches = |rows, cols| {
            let all = joined.stretches(&Area { rows, cols });
            all.map(|stretch| (stretch.start, stretch.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(stretches(3..5, 0..5), [(30, 20)]);
        assert_eq!(stretches(3..5, 1..3), [(32, 4), (42, 4)]);
        assert_eq!(stretches(3..3, 0..5), []);
    }
}
