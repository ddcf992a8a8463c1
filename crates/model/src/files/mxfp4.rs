//! Weights of experts in MXFP4 (OCP Microscaling, 1.0), as gpt-oss has them: what is stored as `NAME_blocks` and `NAME_scales`
//! is read as the bf16 tensor `NAME`. Reading is all: Fathom computes with bf16 and writes it.
//!
//! Blocks are U8 [experts, out, groups, 16]: 32 e2m1 numbers along the input, two a byte, the first in the low bits. Scales are
//! U8 [experts, out, groups]: powers of two, e8m0, 127 for one. The tensor is [experts, in, out], in = 32 x groups. Every product
//! but those beyond bf16's own range is exact.

use std::collections::BTreeMap;

use half::bf16;

use super::area::Area;
use super::header::Stored;
use super::source::Stream;
use crate::error::Result;

/// What the sixteen codes mean, by their low three bits; the highest is the sign.
const CODES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// Numbers under one scale.
const GROUP: usize = 32;
/// Bytes of a number that is read.
const WIDE: usize = 2;

/// One tensor that is stored packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    /// Names of its parts.
    pub blocks: String,
    pub scales: String,
    /// [experts, in, out].
    pub shape: Vec<usize>,
}

/// Bytes of a packed tensor's bf16 elements that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub start: u64,
    pub bytes: usize,
}

impl Packed {
    /// What an area of the tensor is, seen as [experts x in, out]: whole rows are one run.
    pub fn runs(&self, area: &Area) -> impl Iterator<Item = Run> + use<> {
        let width = self.shape.last().copied().unwrap_or_default();
        let Area { rows, cols } = area.clone();
        let step = if cols.len() == width { rows.len().max(1) } else { 1 };
        rows.step_by(step).map(move |row| Run {
            start: ((row * width + cols.start) * WIDE) as u64,
            bytes: step * cols.len() * WIDE,
        })
    }
}

/// All tensors whose two parts are among those stored, by name.
pub(super) fn find<'a>(stored: impl Iterator<Item = (&'a String, &'a Stored)>) -> BTreeMap<String, Packed> {
    let all: BTreeMap<&String, &Stored> = stored.collect();
    let packed = |(name, blocks): (&&String, &&Stored)| {
        let base = name.strip_suffix("_blocks")?;
        let name_of_scales = format!("{base}_scales");
        let scales = all.get(&name_of_scales)?;
        let bytes = blocks.dtype_name == "U8" && scales.dtype_name == "U8";
        let [experts, out, groups, half] = blocks.shape[..] else { return None };
        let fits = bytes && 2 * half == GROUP && scales.shape == [experts, out, groups];
        let shape = vec![experts, groups.checked_mul(GROUP)?, out];
        let parts = Packed { blocks: name.to_string(), scales: name_of_scales, shape };
        fits.then(|| (base.to_string(), parts))
    };
    all.iter().filter_map(packed).collect()
}

/// The expert that was read last, for one thread.
#[derive(Default)]
pub(super) struct Cache {
    name: String,
    expert: usize,
    blocks: Vec<u8>,
    scales: Vec<u8>,
}

impl Cache {
    /// Overwrites `out` with bytes of a packed tensor's bf16 elements, from byte `start`.
    pub fn read(
        &mut self,
        packed: &Packed,
        start: u64,
        out: &mut [u8],
        stream: &mut dyn Stream,
    ) -> Result<()> {
        let [_, inner, cols] = packed.shape[..] else { return Ok(()) };
        let each = inner * cols * WIDE;
        let mut at = start as usize;
        let mut rest = out;
        while !rest.is_empty() {
            let (expert, from) = (at / each, at % each);
            self.fetch(packed, expert, stream)?;
            let (part, after) = rest.split_at_mut(rest.len().min(each - from));
            self.unpack([inner, cols], from, part);
            at += part.len();
            rest = after;
        }
        Ok(())
    }

    fn fetch(&mut self, packed: &Packed, expert: usize, stream: &mut dyn Stream) -> Result<()> {
        if self.name == packed.blocks && self.expert == expert {
            return Ok(());
        }
        let [_, inner, cols] = packed.shape[..] else { return Ok(()) };
        let groups = cols * inner / GROUP;
        // Until both are there nothing is.
        self.name.clear();
        self.scales.resize(groups, 0);
        self.blocks.resize(groups * GROUP / 2, 0);
        stream.read(&packed.scales, (expert * groups) as u64, &mut self.scales)?;
        stream.read(&packed.blocks, (expert * groups * GROUP / 2) as u64, &mut self.blocks)?;
        (self.name, self.expert) = (packed.blocks.clone(), expert);
        Ok(())
    }

    /// Bytes of the expert's [in, out] elements from byte `from`: a caller may begin and end inside an element.
    fn unpack(&self, [inner, cols]: [usize; 2], from: usize, out: &mut [u8]) {
        let element = |index: usize| {
            let (row, col) = (index / cols, index % cols);
            let at = col * inner + row;
            let byte = self.blocks[at / 2];
            value(if at % 2 == 0 { byte & 15 } else { byte >> 4 }, self.scales[at / GROUP])
        };
        let mut done = 0;
        while done < out.len() {
            let (index, within) = ((from + done) / WIDE, (from + done) % WIDE);
            let bytes = &element(index).to_le_bytes()[within..];
            let len = bytes.len().min(out.len() - done);
            out[done..done + len].copy_from_slice(&bytes[..len]);
            done += len;
        }
    }
}

/// `code x 2^(scale - 127)`; the scale is the exponent of an f32, but at both ends.
fn value(code: u8, scale: u8) -> bf16 {
    let size = CODES[usize::from(code & 7)];
    let factor = match scale {
        0 => f32::from_bits(1 << 22),
        255 => f32::INFINITY,
        scale => f32::from_bits(u32::from(scale) << 23),
    };
    bf16::from_f32(if code & 8 == 0 { size } else { -size } * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rows_are_one_run_and_parts_of_rows_are_not() {
        let packed = Packed { blocks: String::new(), scales: String::new(), shape: vec![2, 32, 5] };
        let runs = |rows, cols| {
            packed.runs(&Area { rows, cols }).map(|run| (run.start, run.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(runs(3..5, 0..5), [(30, 20)]);
        assert_eq!(runs(3..5, 1..3), [(32, 4), (42, 4)]);
        assert_eq!(runs(3..3, 0..5), []);
    }

    #[test]
    fn codes_are_e2m1_and_scales_powers_of_two() {
        let values: Vec<f32> = (0..16).map(|code| value(code, 127).to_f32()).collect();
        let positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(values[..8], positive);
        assert!(values[8..].iter().zip(positive).all(|(x, y)| *x == -y && x.is_sign_negative()));
        assert_eq!([value(7, 120), value(9, 130)].map(|x| x.to_f32()), [6.0 / 128.0, -4.0]);
    }
}
