//! Named tensors that are read row by row: one safetensors file, a folder of shards with an index, or a folder of files that
//! several ranks wrote their parts of tensors into.

mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fathom_tensor::{BlockFormat, DType};
use twox_hash::XxHash3_128;

use super::area::{Area, matrix, parse_part};
use super::bitsandbytes::{Quantised, QuantisedTensors, codes_name};
use super::gguf::Blocks;
use super::header::{Header, Stored, header_bytes, parse_header};
use super::joined::{Cache, Joined};
use super::parts::{TensorPart, TensorParts};
use super::shards::{ranks_of, weight_map, whole_of};
use super::{few_bits, gguf, joined};
use crate::error::{Error, Result};
use stream::FileStream;

/// Where weights come from. A row is one step of a tensor's first dimension.
pub trait Source: Sync {
    /// All names, in the order in which their data lies: reading in this order is sequential.
    fn names(&self) -> Vec<&str>;
    /// A tensor's sizes; `None` if there is no such tensor.
    fn shape(&self, name: &str) -> Option<&[usize]>;
    /// A tensor's element type; `None` if it is absent or of a type that has no [`DType`].
    fn dtype(&self, name: &str) -> Option<DType>;
    /// Replaces the contents of `out` with some rows, little-endian.
    ///
    /// # Errors
    /// If there is no such tensor or row, or the file cannot be read.
    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()>;
    /// A reader of its own for one thread.
    fn stream(&self) -> Box<dyn Stream + '_>;
    /// How a tensor is stored, if it is in few bits: what else is read of it is decoded.
    fn quantised(&self, _name: &str) -> Option<&Quantised> {
        None
    }
    /// The format of a tensor's rows that [`Source::read_blocks`] gives. Those of [experts, in, out] are the [experts x out, in] that it
    /// is stored as.
    fn blocks(&self, _name: &str) -> Option<BlockFormat> {
        None
    }
    /// Overwrites `out` with some rows of a tensor in the format of [`Source::blocks`].
    ///
    /// # Errors
    /// If it is not stored so, has no such rows, or the file cannot be read.
    fn read_blocks(&self, name: &str, _rows: Range<usize>, _out: &mut [u8]) -> Result<()> {
        Err(Error::tensor(self.place(name), name, "is not stored in blocks"))
    }
    /// The file or folder of a tensor (or of all, if there is none of this name), for messages.
    fn place(&self, name: &str) -> &Path;
}

/// Reads stretches of tensors. Fast if they follow each other as the data lies: the system reads ahead for each stream.
pub trait Stream {
    /// Overwrites `out` with bytes of a tensor, from byte `start` of its elements.
    ///
    /// # Errors
    /// If there is no such tensor, it has not the bytes, or the file cannot be read.
    fn read(&mut self, name: &str, start: u64, out: &mut [u8]) -> Result<()>;
    /// Overwrites `out` with the elements of some rows and columns, row by row.
    ///
    /// # Errors
    /// As [`Stream::read`].
    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()>;
}

/// One or more safetensors files, open.
pub struct SafeTensors {
    /// The file, or the folder.
    path: PathBuf,
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, Held>,
    /// Tensors that are read out of several others, which are not listed.
    joined: BTreeMap<String, Joined>,
    /// Tensors that bitsandbytes quantised.
    quantised: QuantisedTensors,
    /// Tensors of GGUF files.
    pub(super) blocks: BTreeMap<String, Blocks>,
}

/// A tensor and where its parts are.
struct Held {
    /// Of the whole; `start` is that of the first part.
    stored: Stored,
    parts: TensorParts,
}

/// Most bytes that are read of a tensor that says how another is quantised.
const MOST_STATE_BYTES: u64 = 1 << 22;
/// Name of the only weight file of a folder.
pub const SINGLE: &str = "model.safetensors";
/// Name of the index of a folder with several.
pub const INDEX: &str = "model.safetensors.index.json";

/// Name of the file that one of several ranks writes its parts of all tensors into.
pub fn rank_file(rank: usize, ranks: usize) -> String {
    match ranks {
        1 => SINGLE.to_string(),
        _ => format!("rank-{rank:05}-of-{ranks:05}.safetensors"),
    }
}

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

    fn nothing(path: &Path) -> SafeTensors {
        let path = path.to_path_buf();
        let (files, tensors, joined) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (quantised, blocks) = (QuantisedTensors::default(), BTreeMap::new());
        SafeTensors { path, files, tensors, joined, quantised, blocks }
    }

    /// A GGUF file, of which nothing is held yet.
    pub(super) fn of_gguf(path: &Path) -> Result<SafeTensors> {
        let mut opened = SafeTensors::nothing(path);
        opened.files.push((path.to_path_buf(), File::open(path).map_err(Error::io("read", path))?));
        Ok(opened)
    }

    /// Finds what bitsandbytes quantised, and moves its codes to names of their own.
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

    /// The beginning of a tensor that says how another is stored.
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.find(name)?.stored.bytes.min(MOST_STATE_BYTES) as usize];
        self.stream().read(name, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Finds what is read out of several tensors, and moves codes that have its name. `less`: what zeros of GPTQ are stored less.
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

    /// Opens `model.safetensors` of a folder, the shards that `model.safetensors.index.json` lists, or what several ranks
    /// wrote; or a GGUF file.
    ///
    /// # Errors
    /// If none is there, a file is missing or not sound, index and shards disagree, or parts are not a whole.
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

    fn add(&mut self, path: &Path) -> Result<()> {
        let mut file = File::open(path).map_err(Error::io("read", path))?;
        let length = file.metadata().map_err(Error::io("read", path))?.len();
        let mut first = Vec::with_capacity(8);
        file.by_ref().take(8).read_to_end(&mut first).map_err(Error::io("read", path))?;
        let mut header = vec![0; header_bytes(path, &first, length)?];
        file.read_exact(&mut header).map_err(Error::io("read", path))?;
        let index = self.files.len();
        let Header { tensors, metadata } = parse_header(path, &header, length)?;
        for (name, stored) in tensors {
            let part = parse_part(&name).and_then(|(name, area)| Some((name, area, metadata.get(name)?)));
            let (name, stored, part) = match part {
                None => {
                    let Some(size) = matrix(&stored.shape) else {
                        return Err(Error::tensor(path, &name, "has more rows than can be counted"));
                    };
                    let part = TensorPart { file: index, start: stored.start, area: Area::of(size) };
                    (name.clone(), stored, part)
                }
                Some((name, area, shape)) => {
                    let (whole, part) = whole_of(&stored, area, shape, index)
                        .map_err(|what| Error::tensor(path, name, what))?;
                    (name.to_string(), whole, part)
                }
            };
            self.hold(path, name, stored, part)?;
        }
        self.files.push((path.to_path_buf(), file));
        Ok(())
    }

    /// One more part of a tensor.
    fn hold(&mut self, path: &Path, name: String, stored: Stored, part: TensorPart) -> Result<()> {
        let Some(held) = self.tensors.get_mut(&name) else {
            let parts = TensorParts::new(&stored, part);
            self.tensors.insert(name, Held { stored, parts });
            return Ok(());
        };
        let Held { stored: known, parts } = held;
        if parts.is_whole() || part.area == Area::of(parts.size()) {
            let other = parts.files().next().unwrap_or_default();
            let what = format!("is also in {}", self.files[other].0.display());
            return Err(Error::tensor(path, &name, what));
        }
        if (&known.shape, &known.dtype_name) != (&stored.shape, &stored.dtype_name) {
            let what = format!(
                "is {} of shape {:?} here and {} of shape {:?} in another file",
                stored.dtype_name, stored.shape, known.dtype_name, known.shape
            );
            return Err(Error::tensor(path, &name, what));
        }
        parts.push(part);
        Ok(())
    }

    /// Parts of a tensor must be all of it, once.
    fn check_parts(&mut self) -> Result<()> {
        for (name, held) in &mut self.tensors {
            held.parts.check().map_err(|what| Error::tensor(&self.path, name, what))?;
        }
        Ok(())
    }

    /// Gives tensors other names, and drops those that get none; how many were dropped.
    ///
    /// # Errors
    /// If two tensors would have the same name.
    pub(crate) fn rename(&mut self, name: &dyn Fn(&str) -> Option<String>) -> Result<usize> {
        let mut dropped = 0;
        for (old, held) in std::mem::take(&mut self.tensors) {
            let Some(new) = name(&old) else {
                dropped += 1;
                continue;
            };
            if self.tensors.insert(new.clone(), held).is_some() {
                let what = format!("is the same weight as another, `{new}`; remove one of them");
                return Err(Error::tensor(&self.path, &old, what));
            }
        }
        self.quantised = std::mem::take(&mut self.quantised).rename(name);
        let joined = std::mem::take(&mut self.joined).into_iter();
        self.joined = joined.filter_map(|(old, joined)| Some((name(&old)?, joined.rename(name)?))).collect();
        Ok(dropped)
    }

    /// These tensors, and of `base` those that are not among them.
    pub fn over(mut self, base: SafeTensors) -> SafeTensors {
        let files = self.files.len();
        self.files.extend(base.files);
        let QuantisedTensors { all, parts } = base.quantised;
        let own = |name: &String| self.source_has(name);
        let all: Vec<_> = all.into_iter().filter(|(name, _)| !own(name)).collect();
        self.quantised.all.extend(all);
        self.quantised.parts.extend(parts);
        for (name, mut blocks) in base.blocks {
            blocks.file += files;
            if !self.source_has(&name) {
                self.blocks.insert(name, blocks);
            }
        }
        let joined: Vec<_> = base.joined.into_iter().filter(|(name, _)| !self.source_has(name)).collect();
        self.joined.extend(joined);
        for (name, mut held) in base.tensors {
            held.parts.shift_files(files);
            self.tensors.entry(name).or_insert(held);
        }
        self
    }

    fn source_has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
            || self.quantised.all.contains_key(name)
            || self.joined.contains_key(name)
            || self.blocks.contains_key(name)
    }

    /// XXH3 of the contents of all files, in the order in which they were opened; their names and folder do not matter.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn hash(&self) -> Result<u128> {
        let mut hasher = XxHash3_128::new();
        let mut block = vec![0; 4 << 20];
        for (path, file) in &self.files {
            let mut at = 0;
            loop {
                let read = file.read_at(&mut block, at).map_err(Error::io("read", path))?;
                if read == 0 {
                    break;
                }
                hasher.write(&block[..read]);
                at += read as u64;
            }
        }
        Ok(hasher.finish_128())
    }

    fn check_index(&self, index: &Path, map: &BTreeMap<String, String>) -> Result<()> {
        for (name, shard) in map {
            let found = self.tensors.get(name).map(|held| &self.files[held.parts.first().file].0);
            if found.and_then(|path| path.file_name()).is_none_or(|found| found != shard.as_str()) {
                return Err(Error::tensor(index, name, format!("is not in {shard}, where the index says")));
            }
        }
        match self.tensors.keys().find(|name| !map.contains_key(*name)) {
            Some(name) => Err(Error::tensor(self.place(name), name, format!("is not listed in {INDEX}"))),
            None => Ok(()),
        }
    }

    fn find(&self, name: &str) -> Result<&Held> {
        self.tensors.get(name).ok_or_else(|| Error::tensor(&self.path, name, "is missing"))
    }

    /// What is known of a tensor.
    pub fn stored(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name).map(|held| &held.stored)
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        let blocks = self.blocks.values().map(|blocks| blocks.bytes() as u64);
        self.tensors.values().map(|held| held.stored.bytes).chain(blocks).sum()
    }

    /// Bytes `start..` of a tensor's elements, as areas with their places in what is read.
    fn stretch(&self, name: &str, start: u64, bytes: usize) -> Result<Vec<Area>> {
        let Held { stored, parts } = self.find(name)?;
        let size = stored.element_bytes as u64;
        let end = start.checked_add(bytes as u64).filter(|end| *end <= stored.bytes);
        let whole = start.is_multiple_of(size) && (bytes as u64).is_multiple_of(size);
        match end {
            Some(end) if whole => {
                Ok(Area::of(parts.size()).stretch((start / size) as usize..(end / size) as usize))
            }
            _ => {
                let what = format!("has {} bytes, not {bytes} from {start}", stored.bytes);
                Err(Error::tensor(self.place(name), name, what))
            }
        }
    }
}

impl Source for SafeTensors {
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.tensors.iter().collect();
        names.sort_by_key(|(_, held)| (held.parts.first().file, held.stored.start, held.stored.bytes));
        // Of what is read out of several the first stands for all.
        let parts = self.joined.iter().flat_map(|(name, joined)| {
            let named = |(at, part): (usize, &'_ joined::JoinedPart)| {
                (part.name.clone(), (at == 0).then_some(name.as_str()))
            };
            joined.parts.iter().enumerate().map(named)
        });
        let parts: BTreeMap<String, Option<&str>> = parts.collect();
        let names = names.into_iter().map(|(name, _)| name.as_str());
        let names = names.filter_map(|name| parts.get(name).map_or(Some(name), |of| *of));
        // Of what is quantised the codes stand for all.
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
        let Held { stored, parts } = self.find(name)?;
        if rows.start > rows.end || rows.end > stored.rows() {
            let what = format!("has {} rows, not {rows:?}", stored.rows());
            return Err(Error::tensor(self.place(name), name, what));
        }
        let row_bytes = stored.row_bytes();
        // The header was held against the file's size, so this product is at most that.
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

    fn quantised(&self, name: &str) -> Option<&Quantised> {
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
