//! One thread's reader of a folder's tensors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fathom_tensor::DType;

use super::area::{Area, matrix};
use super::convert::convert_into;
use super::joined::{Cache, PackedTensor, Stretch};
use super::quantized::QuantizedTensor;
use super::source::{Source, Stream};
use super::table::{SafeTensors, StoredTensor};
use crate::error::{Error, Result};

/// Bytes per read: below the system's read-ahead, so that the next ones are already on their way.
const READ_BYTES: usize = 512 << 10;
/// Most files that a stream keeps open.
const MOST_OPEN: usize = 16;

/// A stream over files. It reopens them: read-ahead is per open file, and streams would disturb each other's.
pub(super) struct FileStream<'a> {
    pub(super) source: &'a SafeTensors,
    pub(super) open: BTreeMap<usize, File>,
    /// Cache for tensors stored as several.
    pub(super) cache: Cache,
}

impl FileStream<'_> {
    fn read_joined(
        &mut self,
        (name, joined): (&str, &PackedTensor),
        start: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let all = (joined.rows() * joined.row_bytes()) as u64;
        if start.checked_add(out.len() as u64).is_none_or(|end| end > all) {
            let what = format!("has {all} bytes, not {} from {start}", out.len());
            return Err(Error::tensor(self.source.place(name), name, what));
        }
        let mut cache = std::mem::take(&mut self.cache);
        let read = cache.read(joined, start, out, self);
        self.cache = cache;
        read
    }

    fn read_joined_area(&mut self, of: (&str, &PackedTensor), area: &Area, mut out: &mut [u8]) -> Result<()> {
        for Stretch { start, bytes } in of.1.stretches(area) {
            let (now, later) = out.split_at_mut(bytes);
            self.read_joined(of, start, now)?;
            out = later;
        }
        Ok(())
    }

    /// Reads dequantized elements, in the type before quantization.
    fn read_quantised(
        &mut self,
        (name, quantised): (&str, &QuantizedTensor),
        elements: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let all: usize = quantised.shape.iter().product();
        if elements.end > all || out.len() != elements.len() * quantised.dtype.bytes() {
            let what = format!("of shape {:?} has no {} bytes of {elements:?}", quantised.shape, out.len());
            return Err(Error::tensor(self.source.place(name), name, what));
        }
        let values = quantised.read(self, elements)?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        convert_into(DType::F32, &bytes, quantised.dtype, out);
        Ok(())
    }

    fn read_at(&mut self, file: usize, mut at: u64, out: &mut [u8]) -> Result<()> {
        let path = &self.source.files[file].0;
        if self.open.len() >= MOST_OPEN && !self.open.contains_key(&file) {
            self.open.clear();
        }
        let file = match self.open.entry(file) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => place.insert(File::open(path).map_err(Error::io("read", path))?),
        };
        for part in out.chunks_mut(READ_BYTES) {
            file.read_exact_at(part, at).map_err(Error::io("read", path))?;
            at += part.len() as u64;
        }
        Ok(())
    }
}

impl Stream for FileStream<'_> {
    fn read(&mut self, name: &str, start: u64, mut out: &mut [u8]) -> Result<()> {
        let source = self.source;
        if let Some(joined) = source.joined.get(name) {
            return self.read_joined((name, joined), start, out);
        }
        if let Some(quantised) = source.quantised.all.get(name) {
            let size = quantised.dtype.bytes();
            let (from, to) = (start as usize / size, (start as usize + out.len()).div_ceil(size));
            return self.read_quantised((name, quantised), from..to, out);
        }
        if let Some(blocks) = source.blocks.get(name) {
            let size = blocks.dtype().bytes();
            let (from, to) = (start as usize / size, (start as usize + out.len()) / size);
            let all = Area::of(matrix(&blocks.shape).unwrap_or_default());
            if to > all.len() {
                return Err(Error::tensor(source.place(name), name, format!("has no elements up to {to}")));
            }
            for area in all.stretch(from..to) {
                let (now, later) = out.split_at_mut(area.len() * size);
                blocks.read(&area, now, &mut |file, at, out| self.read_at(file, at, out))?;
                out = later;
            }
            return Ok(());
        }
        let size = self.source.find(name)?.stored.element_bytes;
        for area in self.source.stretch(name, start, out.len())? {
            let (now, later) = out.split_at_mut(area.len() * size);
            self.read_area(name, &area, now)?;
            out = later;
        }
        Ok(())
    }

    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()> {
        let source = self.source;
        if let Some(joined) = source.joined.get(name) {
            return self.read_joined_area((name, joined), area, out);
        }
        if let Some(quantised) = source.quantised.all.get(name) {
            let (wide, mut out) = (quantised.width(), out);
            let step = if area.cols.len() == wide { area.rows.len().max(1) } else { 1 };
            for row in area.rows.clone().step_by(step) {
                let from = row * wide + area.cols.start;
                let count = step * area.cols.len();
                let (now, later) = out.split_at_mut(count * quantised.dtype.bytes());
                self.read_quantised((name, quantised), from..from + count, now)?;
                out = later;
            }
            return Ok(());
        }
        if let Some(blocks) = source.blocks.get(name) {
            let all = Area::of(matrix(&blocks.shape).unwrap_or_default());
            let inside = area.is_empty() || area.meet(&all).as_ref() == Some(area);
            if !inside || out.len() != area.len() * blocks.dtype().bytes() {
                let what = format!("of shape {:?} has no {area:?} of {} bytes", blocks.shape, out.len());
                return Err(Error::tensor(source.place(name), name, what));
            }
            return blocks.read(area, out, &mut |file, at, out| self.read_at(file, at, out));
        }
        let StoredTensor { stored, parts } = source.find(name)?;
        let inside = area.is_empty() || area.meet(&Area::of(parts.size())).as_ref() == Some(area);
        if !inside || out.len() != area.len() * stored.element_bytes {
            let what = format!("of shape {:?} has no {area:?} of {} bytes", stored.shape, out.len());
            return Err(Error::tensor(source.place(name), name, what));
        }
        parts.read(area, out, &mut |file, at, out| self.read_at(file, at, out))
    }
}
