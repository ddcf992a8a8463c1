//! Named tensors that are read row by row: one safetensors file, a folder of shards with an index, or a folder with
//! one file per rank, each with that rank's parts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fathom_tensor::{BlockFormat, DType};

use super::bitsandbytes::{QuantisedTensors, codes_name};
use super::joined::Cache;
use super::quantized::QuantizedTensor;
use super::shards::{ranks_of, weight_map};
use super::source::{INDEX, SINGLE, Source, Stream, rank_file};
use super::stream::FileStream;
use super::table::{SafeTensors, StoredTensor};
use super::{few_bits, gguf, joined};
use crate::error::{Error, Result};

/// Most bytes read of a tensor that describes another's quantization.
const MOST_STATE_BYTES: u64 = 1 << 22;
impl SafeTensors {
    /// Opens one file and checks its header.
    ///
    /// # Errors
    /// If it cannot be read or is not a sound safetensors file.
    pub fn open_file(path: &Path) -> Result<SafeTensors> {
        SafeTensors::open_one(path, 1)
    }

    fn open_one(path: &Path, less: u32) -> Result<SafeTensors> {
        let mut opened = SafeTensors::nothing(path);
        opened.add(path)?;
        opened.check_parts()?;
        opened.find_quantised()?;
        opened.find_joined(less)?;
        Ok(opened)
    }

    /// Finds tensors quantized by bitsandbytes, and moves their codes to separate names.
    fn find_quantised(&mut self) -> Result<()> {
        let names: BTreeSet<String> = self.tensors.keys().cloned().collect();
        let shape = |name: &str| self.stored(name).map_or_else(Vec::new, |stored| stored.shape.clone());
        let read = |name: &str| self.read_small(name);
        let found = QuantisedTensors::find(&self.path, &names, &shape, &read)?;
        for name in found.all.keys() {
            if let Some(held) = self.tensors.remove(name) {
                self.tensors.insert(codes_name(name), held);
            }
        }
        self.quantised = found;
        Ok(())
    }

    /// Reads the beginning of a tensor that describes another.
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.find(name)?.stored.bytes.min(MOST_STATE_BYTES) as usize];
        self.stream().read(name, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Finds tensors stored as several, and moves codes that have the tensor's own name. `less` is the offset by
    /// which GPTQ zeros are stored too low.
    fn find_joined(&mut self, less: u32) -> Result<()> {
        let all = self.tensors.iter().map(|(name, held)| (name.as_str(), &held.stored)).collect();
        let found = joined::find(&all, less, &|name| self.read_small(name));
        let found = found.map_err(|(name, what)| Error::tensor(self.place(&name), &name, what))?;
        for name in &found.moved {
            if let Some(held) = self.tensors.remove(name) {
                self.tensors.insert(codes_name(name), held);
            }
        }
        for name in &found.left_out {
            self.tensors.remove(name);
        }
        self.joined = found.joined;
        Ok(())
    }

    /// Opens a folder's `model.safetensors`, the shards listed in `model.safetensors.index.json`, or the files of
    /// several ranks; or a GGUF file.
    ///
    /// # Errors
    /// If none exists, a file is missing or malformed, index and shards disagree, or parts do not cover a tensor.
    pub fn open_folder(folder: &Path) -> Result<SafeTensors> {
        if fathom_base::gguf::is_file(folder) {
            return gguf::open_weights(folder);
        }
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if single.is_file() {
            return SafeTensors::open_one(&single, few_bits::zeros_less(folder)?);
        }
        if let Some(ranks) = ranks_of(folder)? {
            let mut opened = SafeTensors::nothing(folder);
            (0..ranks).try_for_each(|rank| opened.add(&folder.join(rank_file(rank, ranks))))?;
            opened.check_parts()?;
            return Ok(opened);
        }
        if !index.is_file() {
            let what = format!("has neither {SINGLE} nor {INDEX}; pickled weights (.bin) are never read");
            return Err(Error::file(folder, what));
        }
        let map = weight_map(&index)?;
        let mut opened = SafeTensors::nothing(folder);
        let shards: std::collections::BTreeSet<&String> = map.values().collect();
        for shard in shards {
            opened.add(&folder.join(shard))?;
        }
        opened.check_index(&index, &map)?;
        opened.check_parts()?;
        opened.find_quantised()?;
        opened.find_joined(few_bits::zeros_less(folder)?)?;
        Ok(opened)
    }
}

impl Source for SafeTensors {
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.tensors.iter().collect();
        names.sort_by_key(|(_, held)| (held.parts.first().file, held.stored.start, held.stored.bytes));
        // A tensor stored as several takes the place of the first.
        let parts = self.joined.iter().flat_map(|(name, joined)| {
            let named = |(at, part): (usize, &'_ joined::JoinedPart)| {
                (part.name.clone(), (at == 0).then_some(name.as_str()))
            };
            joined.parts.iter().enumerate().map(named)
        });
        let parts: BTreeMap<String, Option<&str>> = parts.collect();
        let names = names.into_iter().map(|(name, _)| name.as_str());
        let names = names.filter_map(|name| parts.get(name).map_or(Some(name), |of| *of));
        // A quantized tensor takes the place of its codes.
        let parts = &self.quantised.parts;
        let names = names.filter_map(|name| parts.get(name).map_or(Some(name), |of| of.as_deref()));
        let mut blocks: Vec<_> = self.blocks.iter().collect();
        blocks.sort_by_key(|(_, blocks)| (blocks.file, blocks.start));
        names.chain(blocks.into_iter().map(|(name, _)| name.as_str())).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        if let Some(joined) = self.joined.get(name) {
            return Some(&joined.shape);
        }
        if let Some(quantised) = self.quantised.all.get(name) {
            return Some(&quantised.shape);
        }
        if let Some(blocks) = self.blocks.get(name) {
            return Some(&blocks.shape);
        }
        self.stored(name).map(|stored| stored.shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        if let Some(joined) = self.joined.get(name) {
            return Some(joined.dtype);
        }
        if let Some(quantised) = self.quantised.all.get(name) {
            return Some(quantised.dtype);
        }
        if let Some(blocks) = self.blocks.get(name) {
            return Some(blocks.dtype());
        }
        self.stored(name)?.dtype()
    }

    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let decoded = self.quantised.all.get(name).map(|quantised| (&quantised.shape, quantised.dtype));
        let decoded = decoded.or_else(|| self.joined.get(name).map(|joined| (&joined.shape, joined.dtype)));
        let decoded = decoded.or_else(|| self.blocks.get(name).map(|blocks| (&blocks.shape, blocks.dtype())));
        if let Some((shape, dtype)) = decoded {
            let row = dtype.bytes() * shape[1..].iter().product::<usize>();
            if rows.start > rows.end || rows.end > shape[0] {
                let what = format!("has {} rows, not {rows:?}", shape[0]);
                return Err(Error::tensor(self.place(name), name, what));
            }
            out.resize(rows.len() * row, 0);
            return self.stream().read(name, (rows.start * row) as u64, out);
        }
        let StoredTensor { stored, parts } = self.find(name)?;
        if rows.start > rows.end || rows.end > stored.rows() {
            let what = format!("has {} rows, not {rows:?}", stored.rows());
            return Err(Error::tensor(self.place(name), name, what));
        }
        let row_bytes = stored.row_bytes();
        // The header was checked against the file's size, which bounds this product.
        out.resize((rows.len() as u64 * row_bytes) as usize, 0);
        let mut rest = out.as_mut_slice();
        for area in self.stretch(name, rows.start as u64 * row_bytes, rest.len())? {
            let (now, later) = rest.split_at_mut(area.len() * stored.element_bytes);
            parts.read(&area, now, &mut |file, at, out| {
                let (path, file) = &self.files[file];
                file.read_exact_at(out, at).map_err(Error::io("read", path))
            })?;
            rest = later;
        }
        Ok(())
    }

    fn stream(&self) -> Box<dyn Stream + '_> {
        Box::new(FileStream { source: self, open: BTreeMap::new(), cache: Cache::default() })
    }

    fn quantised(&self, name: &str) -> Option<&QuantizedTensor> {
        self.quantised.all.get(name)
    }

    fn blocks(&self, name: &str) -> Option<BlockFormat> {
        if let Some(joined) = self.joined.get(name) {
            return joined.grouped().map(BlockFormat::Grouped);
        }
        let blocks = self.blocks.get(name).filter(|blocks| blocks.has_rows());
        blocks.map(|blocks| BlockFormat::Ggml(blocks.kind))
    }

    fn read_blocks(&self, name: &str, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        if let Some((joined, how)) =
            self.joined.get(name).and_then(|joined| Some((joined, joined.grouped()?)))
        {
            return joined.read_grouped((how, rows), out, self.stream().as_mut());
        }
        let Some(blocks) = self.blocks.get(name).filter(|blocks| blocks.has_rows()) else {
            return Err(Error::tensor(self.place(name), name, "is not stored in blocks"));
        };
        blocks.read_rows(rows, out, &mut |file, at, out| {
            let (path, file) = &self.files[file];
            file.read_exact_at(out, at).map_err(Error::io("read", path))
        })
    }

    fn place(&self, name: &str) -> &Path {
        if let Some(blocks) = self.blocks.get(name) {
            return &self.files[blocks.file].0;
        }
        let codes = codes_name(name);
        let name = if self.quantised.all.contains_key(name) { codes.as_str() } else { name };
        let name = self.joined.get(name).map_or(name, |joined| joined.parts[0].name.as_str());
        self.tensors.get(name).map_or(&self.path, |held| &self.files[held.parts.first().file].0)
    }
}
