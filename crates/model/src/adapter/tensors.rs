//! Tensors of an adapter's folder under the model's names, alone and over the base's.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use fathom_tensor::{BlockFormat, DType};

use super::turned::Turn;
use crate::error::{Error, Result};
use crate::files::{Area, QuantizedTensor, SafeTensors, Source, Stream};
use crate::spec::Spec;

/// An adapter's tensors under the model's names.
pub struct PeftTensors {
    pub(super) tensors: SafeTensors,
    pub(super) alone: bool,
    pub(super) path: PathBuf,
    /// By the model's name: the name in the file, and the model's shape.
    pub(super) names: BTreeMap<String, (String, Vec<usize>)>,
    /// By the model's name: columns of the file's tensor, where it is only a part of that.
    pub(super) columns: BTreeMap<String, Range<usize>>,
    /// By the model's name: layout in the file, where it differs.
    pub(super) turned: BTreeMap<String, Turn>,
    /// Name of an untied head, and the names under which its base has the shared table.
    pub(super) head_from: Option<(String, [String; 2])>,
}

impl PeftTensors {
    /// Returns whether none of them replaces a tensor of the base.
    pub fn is_adapter_alone(&self) -> bool {
        self.alone
    }

    /// Names of those that replace tensors of the base.
    pub(super) fn in_place_of_base(&self, spec: &Spec) -> Vec<&str> {
        let added = spec.adapter_tensors();
        self.names.keys().filter(|name| !added.contains_key(*name)).map(String::as_str).collect()
    }
}

impl Source for PeftTensors {
    fn names(&self) -> Vec<&str> {
        self.names.keys().map(String::as_str).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.names.get(name).map(|(_, shape)| shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.names.get(name).and_then(|(stored, _)| self.tensors.dtype(stored))
    }

    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let Some((_, shape)) = self.names.get(name) else {
            return Err(Error::tensor(&self.path, name, "is missing"));
        };
        let width: usize =
            shape[1..].iter().product::<usize>() * self.dtype(name).map_or(0, |dtype| dtype.bytes());
        out.resize(rows.len() * width, 0);
        self.stream().read(name, (rows.start * width) as u64, out)
    }

    fn stream(&self) -> Box<dyn Stream + '_> {
        Box::new(RenamedTensors { of: self, stream: self.tensors.stream(), last: None })
    }

    fn place(&self, _: &str) -> &Path {
        &self.path
    }
}

/// Reads tensors under the model's names.
struct RenamedTensors<'a> {
    of: &'a PeftTensors,
    stream: Box<dyn Stream + 'a>,
    /// The last rearranged tensor, in the model's layout.
    last: Option<(String, Vec<u8>)>,
}

impl RenamedTensors<'_> {
    /// All bytes of a tensor with another layout in the file, in the model's layout.
    fn turned(&mut self, name: &str, turn: Turn) -> Result<&[u8]> {
        if self.last.as_ref().is_none_or(|(last, _)| last != name) {
            let Some((stored, shape)) = self.of.names.get(name) else {
                return Err(Error::tensor(&self.of.path, name, "is missing"));
            };
            let bytes = self.of.dtype(name).map_or(0, |dtype| dtype.bytes());
            let mut file = vec![0; turn.shape().iter().product::<usize>() * bytes];
            self.stream.read(stored, 0, &mut file)?;
            let mut own = vec![0; shape.iter().product::<usize>() * bytes];
            for (at, out) in own.chunks_exact_mut(bytes.max(1)).enumerate() {
                if let Some(place) = turn.place(at) {
                    out.copy_from_slice(&file[place * bytes..(place + 1) * bytes]);
                }
            }
            self.last = Some((name.to_string(), own));
        }
        Ok(self.last.as_ref().map_or(&[][..], |(_, own)| own.as_slice()))
    }
}

impl Stream for RenamedTensors<'_> {
    fn read(&mut self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        if let Some(turn) = self.of.turned.get(name).copied() {
            let (own, start) = (self.turned(name, turn)?, start as usize);
            out.copy_from_slice(&own[start..start + out.len()]);
            return Ok(());
        }
        let stored = self.of.names.get(name).map_or(name, |(stored, _)| stored.as_str());
        let shape = self.of.tensors.shape(stored).unwrap_or_default();
        let (Some(columns), [_, all]) = (self.of.columns.get(name), shape) else {
            return self.stream.read(stored, start, out);
        };
        // The matrix's bytes are runs, one in each row of a wider matrix.
        let bytes = self.of.dtype(name).map_or(0, |dtype| dtype.bytes()) as u64;
        let [width, all, first] = [columns.len(), *all, columns.start].map(|columns| columns as u64 * bytes);
        let mut done = 0;
        while done < out.len() {
            let at = start + done as u64;
            let (row, inside) = (at / width, at % width);
            let len = (out.len() - done).min((width - inside) as usize);
            self.stream.read(stored, row * all + first + inside, &mut out[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()> {
        let (width, bytes) = match self.of.names.get(name) {
            Some((_, shape)) if shape.len() > 1 => (shape[1], out.len() / area.len().max(1)),
            _ => (1, out.len() / area.len().max(1)),
        };
        let row_bytes = area.cols.len() * bytes;
        for (row, out) in area.rows.clone().zip(out.chunks_mut(row_bytes.max(1))) {
            self.read(name, ((row * width + area.cols.start) * bytes) as u64, out)?;
        }
        Ok(())
    }
}

/// An adapter's tensors over those of its base.
pub(super) struct Over<'a> {
    pub own: &'a PeftTensors,
    pub base: &'a dyn Source,
}

impl Over<'_> {
    fn of(&self, name: &str) -> &dyn Source {
        if self.own.names.contains_key(name) { self.own } else { self.base }
    }

    /// Name of a tensor in its source; a tied head has the name of the embedding.
    fn called<'n>(&'n self, name: &'n str) -> &'n str {
        match &self.own.head_from {
            Some((head, tables)) if head == name && !self.own.names.contains_key(name) => {
                tables.iter().find(|table| self.base.shape(table).is_some()).map_or(name, String::as_str)
            }
            _ => name,
        }
    }
}

impl Source for Over<'_> {
    fn names(&self) -> Vec<&str> {
        let base = self.base.names().into_iter().filter(|name| !self.own.names.contains_key(*name));
        let all: Vec<&str> = base.chain(self.own.names()).collect();
        let head =
            self.own.head_from.iter().map(|(head, _)| head.as_str()).filter(|head| !all.contains(head));
        [&all[..], &head.collect::<Vec<&str>>()].concat()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.of(name).shape(self.called(name))
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.of(name).dtype(self.called(name))
    }

    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        self.of(name).read_rows(self.called(name), rows, out)
    }

    fn stream(&self) -> Box<dyn Stream + '_> {
        Box::new(Both { of: self, own: self.own.stream(), base: self.base.stream() })
    }

    fn quantised(&self, name: &str) -> Option<&QuantizedTensor> {
        self.of(name).quantised(self.called(name))
    }

    fn blocks(&self, name: &str) -> Option<BlockFormat> {
        self.of(name).blocks(self.called(name))
    }

    fn read_blocks(&self, name: &str, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        self.of(name).read_blocks(self.called(name), rows, out)
    }

    fn place(&self, name: &str) -> &Path {
        self.of(name).place(self.called(name))
    }
}

/// Reads from both sources.
struct Both<'a> {
    of: &'a Over<'a>,
    own: Box<dyn Stream + 'a>,
    base: Box<dyn Stream + 'a>,
}

impl<'a> Both<'a> {
    fn stream(&mut self, name: &str) -> &mut Box<dyn Stream + 'a> {
        if self.of.own.names.contains_key(name) { &mut self.own } else { &mut self.base }
    }
}

impl<'a> Stream for Both<'a> {
    fn read(&mut self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        let called = self.of.called(name);
        self.stream(name).read(called, start, out)
    }

    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()> {
        let called = self.of.called(name);
        self.stream(name).read_area(called, area, out)
    }
}
