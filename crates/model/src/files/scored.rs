//! A model's weights with a randomly initialized tensor added: a reward model's score head, or a projection of hidden
//! states.

use std::ops::Range;
use std::path::Path;

use fathom_tensor::DType;

use super::area::Area;
use super::quantized::QuantizedTensor;
use super::source::{Source, Stream};
use crate::error::Result;

/// Transformers' `initializer_range`.
const DEVIATION: f64 = 0.02;

/// Name of a score head in files.
pub(crate) const SCORE: &str = "score.weight";

/// A source's tensors, and a random one.
pub struct WithRandomTensor<'a> {
    source: &'a dyn Source,
    name: &'static str,
    shape: [usize; 2],
    /// f32, little endian.
    bytes: Vec<u8>,
}

impl<'a> WithRandomTensor<'a> {
    /// Adds a score head of `shape`, scores x hidden size, to a source without one.
    pub fn new(source: &'a dyn Source, shape: [usize; 2], seed: u64) -> WithRandomTensor<'a> {
        WithRandomTensor::named(source, SCORE, shape, seed)
    }

    /// The same for a tensor of another name.
    pub fn named(
        source: &'a dyn Source,
        name: &'static str,
        shape: [usize; 2],
        seed: u64,
    ) -> WithRandomTensor<'a> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        for _ in 0..8 {
            uniform();
        }
        // The sum of twelve uniforms is nearly normal.
        let mut normal = || DEVIATION * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0);
        let bytes = (0..shape[0] * shape[1]).flat_map(|_| (normal() as f32).to_le_bytes()).collect();
        WithRandomTensor { source, name, shape, bytes }
    }

    /// Bytes of some elements.
    fn part(&self, from: usize, len: usize) -> &[u8] {
        &self.bytes[from..from + len]
    }
}

impl Source for WithRandomTensor<'_> {
    fn names(&self) -> Vec<&str> {
        let mut names = self.source.names();
        names.push(self.name);
        names
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        if name == self.name { Some(&self.shape) } else { self.source.shape(name) }
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        if name == self.name { Some(DType::F32) } else { self.source.dtype(name) }
    }

    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        if name != self.name {
            return self.source.read_rows(name, rows, out);
        }
        let row = 4 * self.shape[1];
        out.clear();
        out.extend(self.part(rows.start * row, rows.len() * row));
        Ok(())
    }

    fn stream(&self) -> Box<dyn Stream + '_> {
        Box::new(ScoredStream { of: self, others: self.source.stream() })
    }

    fn quantised(&self, name: &str) -> Option<&QuantizedTensor> {
        self.source.quantised(name)
    }

    fn place(&self, name: &str) -> &Path {
        self.source.place(name)
    }
}

struct ScoredStream<'a> {
    of: &'a WithRandomTensor<'a>,
    others: Box<dyn Stream + 'a>,
}

impl Stream for ScoredStream<'_> {
    fn read(&mut self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        if name != self.of.name {
            return self.others.read(name, start, out);
        }
        out.copy_from_slice(self.of.part(start as usize, out.len()));
        Ok(())
    }

    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()> {
        if name != self.of.name {
            return self.others.read_area(name, area, out);
        }
        let width = 4 * area.cols.len();
        for (row, out) in area.rows.clone().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(self.of.part(4 * (row * self.of.shape[1] + area.cols.start), width));
        }
        Ok(())
    }
}
