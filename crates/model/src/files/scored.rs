//! A model's weights with a randomly initialized tensor added: a reward model's score head, or a projection of hidden
//! states.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use fathom_tensor::DType;

use super::area::Area;
use super::quantized::QuantizedTensor;
use super::source::{Source, Stream};
use crate::error::Result;
use crate::spec::Spec;
use crate::weight::{Kind, Module, NOWHERE};

/// Transformers' `initializer_range`.
const DEVIATION: f64 = 0.02;

/// Name of a score head in files.
pub(crate) const SCORE: &str = "score.weight";

/// A source's tensors, and others with first values: f32, little endian.
pub struct WithRandomTensor<'a> {
    source: &'a dyn Source,
    added: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
}

/// Normal numbers from a seed.
struct Normals(u64);

impl Normals {
    fn new(seed: u64) -> Normals {
        let mut normals = Normals(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1));
        for _ in 0..8 {
            normals.uniform();
        }
        normals
    }

    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Bytes of so many numbers.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        // The sum of twelve uniforms is nearly normal.
        let mut normal = || DEVIATION * ((0..12).map(|_| self.uniform()).sum::<f64>() - 6.0);
        (0..len).flat_map(|_| (normal() as f32).to_le_bytes()).collect()
    }
}

impl<'a> WithRandomTensor<'a> {
    /// Adds a score head of `shape`, scores x hidden size, to a source without one.
    pub fn new(source: &'a dyn Source, shape: [usize; 2], seed: u64) -> WithRandomTensor<'a> {
        WithRandomTensor::named(source, SCORE, shape, seed)
    }

    /// The same for a tensor of another name.
    pub fn named(source: &'a dyn Source, name: &str, shape: [usize; 2], seed: u64) -> WithRandomTensor<'a> {
        let bytes = Normals::new(seed).bytes(shape[0] * shape[1]);
        WithRandomTensor { source, added: BTreeMap::from([(name.into(), (shape.into(), bytes))]) }
    }

    /// Adds what a source lacks of an encoder's head: random projections, norms at the identity, and biases of zero.
    pub fn head(source: &'a dyn Source, spec: &Spec, seed: u64) -> WithRandomTensor<'a> {
        let (mut normals, mut added) = (Normals::new(seed), BTreeMap::new());
        spec.walk(&mut |layer, weight| {
            let of_head = weight.module == Module::Head && weight.kind != Kind::Adapter;
            let pieces = if of_head { spec.pieces(layer, weight) } else { Vec::new() };
            let short = |name: &str| name.strip_prefix(spec.family.names.base).map(str::to_string);
            let lacks = |name: &str| {
                let names = [Some(name.to_string()), short(name)];
                names.into_iter().flatten().all(|name| source.shape(&name).is_none())
            };
            for piece in pieces.into_iter().filter(|piece| lacks(&piece.name)) {
                let len = piece.shape.iter().product();
                let bytes = match weight.kind {
                    Kind::Norm => 1f32.to_le_bytes().repeat(len),
                    Kind::Bias => vec![0; 4 * len],
                    _ => normals.bytes(len),
                };
                added.insert(piece.name, (piece.shape, bytes));
            }
            NOWHERE
        });
        WithRandomTensor { source, added }
    }

    /// Names of the tensors that were added.
    pub fn added(&self) -> impl Iterator<Item = &str> {
        self.added.keys().map(String::as_str)
    }
}

impl Source for WithRandomTensor<'_> {
    fn names(&self) -> Vec<&str> {
        self.source.names().into_iter().chain(self.added.keys().map(String::as_str)).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        let own = self.added.get(name).map(|(shape, _)| shape.as_slice());
        own.or_else(|| self.source.shape(name))
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        if self.added.contains_key(name) { Some(DType::F32) } else { self.source.dtype(name) }
    }

    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let Some((shape, bytes)) = self.added.get(name) else {
            return self.source.read_rows(name, rows, out);
        };
        let row = 4 * shape[1..].iter().product::<usize>();
        out.clear();
        out.extend(&bytes[rows.start * row..rows.end * row]);
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
        let Some((_, bytes)) = self.of.added.get(name) else { return self.others.read(name, start, out) };
        out.copy_from_slice(&bytes[start as usize..][..out.len()]);
        Ok(())
    }

    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()> {
        let Some((shape, bytes)) = self.of.added.get(name) else {
            return self.others.read_area(name, area, out);
        };
        let all = if shape.len() == 1 { 1 } else { shape[shape.len() - 1] };
        let width = 4 * area.cols.len();
        for (row, out) in area.rows.clone().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&bytes[4 * (row * all + area.cols.start)..][..width]);
        }
        Ok(())
    }
}
