//! Named tensors that are read row by row: one safetensors file, or a folder of shards with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fathom_tensor::DType;

use super::header::{Stored, header_bytes, parse_header};
use super::json;
use super::mxfp4::{self, Cache, Packed};
use crate::error::{Error, Result};

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
}

/// One or more safetensors files, open.
pub struct SafeTensors {
    /// The file, or the folder.
    path: PathBuf,
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, (usize, Stored)>,
    /// Tensors that are read out of two others, which are not told of.
    packed: BTreeMap<String, Packed>,
}

/// Name of the only weight file of a folder.
pub const SINGLE: &str = "model.safetensors";
/// Name of the index of a folder with several.
pub const INDEX: &str = "model.safetensors.index.json";

impl SafeTensors {
    /// Opens one file and checks its header.
    ///
    /// # Errors
    /// If it cannot be read or is not a sound safetensors file.
    pub fn open_file(path: &Path) -> Result<SafeTensors> {
        let mut opened = SafeTensors::nothing(path);
        opened.add(path)?;
        opened.find_packed();
        Ok(opened)
    }

    fn nothing(path: &Path) -> SafeTensors {
        let path = path.to_path_buf();
        SafeTensors { path, files: Vec::new(), tensors: BTreeMap::new(), packed: BTreeMap::new() }
    }

    fn find_packed(&mut self) {
        self.packed = mxfp4::find(self.tensors.iter().map(|(name, (_, stored))| (name, stored)));
    }

    /// Opens `model.safetensors` of a folder, or the shards that `model.safetensors.index.json` lists.
    ///
    /// # Errors
    /// If neither is there, a file is not sound, or index and shards disagree.
    pub fn open_folder(folder: &Path) -> Result<SafeTensors> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if single.is_file() {
            return SafeTensors::open_file(&single);
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
        opened.find_packed();
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
        for (name, stored) in parse_header(path, &header, length)?.tensors {
            if let Some((other, _)) = self.tensors.get(&name) {
                let what = format!("is also in {}", self.files[*other].0.display());
                return Err(Error::tensor(path, &name, what));
            }
            self.tensors.insert(name, (index, stored));
        }
        self.files.push((path.to_path_buf(), file));
        Ok(())
    }

    fn check_index(&self, index: &Path, map: &BTreeMap<String, String>) -> Result<()> {
        for (name, shard) in map {
            let found = self.tensors.get(name).map(|(file, _)| &self.files[*file].0);
            if found.and_then(|path| path.file_name()).is_none_or(|found| found != shard.as_str()) {
                return Err(Error::tensor(index, name, format!("is not in {shard}, where the index says")));
            }
        }
        match self.tensors.keys().find(|name| !map.contains_key(*name)) {
            Some(name) => Err(Error::tensor(self.place(name), name, format!("is not listed in {INDEX}"))),
            None => Ok(()),
        }
    }

    /// A tensor with the index of its file.
    fn find(&self, name: &str) -> Result<(usize, &Stored)> {
        let found = self.tensors.get(name).map(|(file, stored)| (*file, stored));
        found.ok_or_else(|| Error::tensor(&self.path, name, "is missing"))
    }

    /// What is known of a tensor.
    pub fn stored(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name).map(|(_, stored)| stored)
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|(_, stored)| stored.bytes).sum()
    }
}

/// The index's tensor-to-file map. File names may not leave the folder.
fn weight_map(index: &Path) -> Result<BTreeMap<String, String>> {
    let object = json::read_object(index)?;
    let map = object.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| Error::file(index, "has no object `weight_map`"))?;
    let mut result = BTreeMap::new();
    for (name, shard) in map {
        let Some(shard) = shard.as_str().filter(|shard| is_plain_name(shard)) else {
            return Err(Error::tensor(index, name, format!("is in {shard}, which is not a plain file name")));
        };
        result.insert(name.clone(), shard.to_string());
    }
    Ok(result)
}

fn is_plain_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| file == name) && !name.contains('\0')
}

impl Source for SafeTensors {
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.tensors.iter().collect();
        names.sort_by_key(|(_, (file, stored))| (*file, stored.start, stored.bytes));
        let blocks: BTreeMap<&str, &str> =
            self.packed.iter().map(|(name, packed)| (packed.blocks.as_str(), name.as_str())).collect();
        let scales: BTreeSet<&str> = self.packed.values().map(|packed| packed.scales.as_str()).collect();
        let names = names.into_iter().map(|(name, _)| name.as_str()).filter(|name| !scales.contains(name));
        names.map(|name| blocks.get(name).copied().unwrap_or(name)).collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        if let Some(packed) = self.packed.get(name) {
            return Some(&packed.shape);
        }
        self.stored(name).map(|stored| stored.shape.as_slice())
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        if self.packed.contains_key(name) {
            return Some(DType::Bf16);
        }
        self.stored(name)?.dtype()
    }

    fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        if let Some(packed) = self.packed.get(name) {
            let row: usize = 2 * packed.shape[1..].iter().product::<usize>();
            out.resize(rows.len() * row, 0);
            return self.stream().read(name, (rows.start * row) as u64, out);
        }
        let (index, stored) = self.find(name)?;
        let (path, file) = &self.files[index];
        if rows.start > rows.end || rows.end > stored.rows() {
            return Err(Error::tensor(path, name, format!("has {} rows, not {rows:?}", stored.rows())));
        }
        let row_bytes = stored.row_bytes();
        // The header was held against the file's size, so this product is at most that.
        out.resize((rows.len() as u64 * row_bytes) as usize, 0);
        file.read_exact_at(out, stored.start + rows.start as u64 * row_bytes).map_err(Error::io("read", path))
    }

    fn stream(&self) -> Box<dyn Stream + '_> {
        Box::new(FileStream { source: self, open: None, cache: Cache::default() })
    }

    fn place(&self, name: &str) -> &Path {
        let name = self.packed.get(name).map_or(name, |packed| packed.blocks.as_str());
        self.tensors.get(name).map_or(&self.path, |(file, _)| &self.files[*file].0)
    }
}

/// Bytes asked for at once: less than the system reads ahead, so that the next ones are on their way meanwhile.
const READ_BYTES: usize = 512 << 10;

/// A stream over files. It opens them anew: read-ahead follows each open file, and streams would disturb each other's.
struct FileStream<'a> {
    source: &'a SafeTensors,
    open: Option<(usize, File)>,
    /// Of packed tensors.
    cache: Cache,
}

impl Stream for FileStream<'_> {
    fn read(&mut self, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        if let Some(packed) = self.source.packed.get(name) {
            let mut cache = std::mem::take(&mut self.cache);
            let read = cache.read(packed, start, out, self);
            self.cache = cache;
            return read;
        }
        let (index, stored) = self.source.find(name)?;
        let path = &self.source.files[index].0;
        if start.checked_add(out.len() as u64).is_none_or(|end| end > stored.bytes) {
            let what = format!("has {} bytes, not {} from {start}", stored.bytes, out.len());
            return Err(Error::tensor(path, name, what));
        }
        let file = match self.open.take() {
            Some((open, file)) if open == index => file,
            _ => File::open(path).map_err(Error::io("read", path))?,
        };
        let mut at = stored.start + start;
        for part in out.chunks_mut(READ_BYTES) {
            file.read_exact_at(part, at).map_err(Error::io("read", path))?;
            at += part.len() as u64;
        }
        self.open = Some((index, file));
        Ok(())
    }
}
