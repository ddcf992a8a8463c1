//! Named tensors that are read row by row: one safetensors file, a folder of shards with an index, or a folder of files that
//! several ranks wrote their parts of tensors into.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fathom_tensor::DType;

use super::area::{Area, matrix, parse_part};
use super::header::{Header, Stored, header_bytes, parse_header};
use super::json;
use super::mxfp4::{self, Cache, Packed, Run};
use super::parts::{Part, Parts};
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
    /// Tensors that are read out of two others, which are not told of.
    packed: BTreeMap<String, Packed>,
}

/// A tensor and where its parts are.
struct Held {
    /// Of the whole; `start` is that of the first part.
    stored: Stored,
    parts: Parts,
}

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
        let mut opened = SafeTensors::nothing(path);
        opened.add(path)?;
        opened.check_parts()?;
        opened.find_packed();
        Ok(opened)
    }

    fn nothing(path: &Path) -> SafeTensors {
        let path = path.to_path_buf();
        SafeTensors { path, files: Vec::new(), tensors: BTreeMap::new(), packed: BTreeMap::new() }
    }

    fn find_packed(&mut self) {
        self.packed = mxfp4::find(self.tensors.iter().map(|(name, held)| (name, &held.stored)));
    }

    /// Opens `model.safetensors` of a folder, the shards that `model.safetensors.index.json` lists, or what several ranks
    /// wrote.
    ///
    /// # Errors
    /// If none is there, a file is missing or not sound, index and shards disagree, or parts are not a whole.
    pub fn open_folder(folder: &Path) -> Result<SafeTensors> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        if single.is_file() {
            return SafeTensors::open_file(&single);
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
        let Header { tensors, metadata } = parse_header(path, &header, length)?;
        for (name, stored) in tensors {
            let part = parse_part(&name).and_then(|(name, area)| Some((name, area, metadata.get(name)?)));
            let (name, stored, part) = match part {
                None => {
                    let Some(size) = matrix(&stored.shape) else {
                        return Err(Error::tensor(path, &name, "has more rows than can be counted"));
                    };
                    let part = Part { file: index, start: stored.start, area: Area::of(size) };
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
    fn hold(&mut self, path: &Path, name: String, stored: Stored, part: Part) -> Result<()> {
        let Some(held) = self.tensors.get_mut(&name) else {
            let parts = Parts::new(&stored, part);
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
        self.find_packed();
        Ok(dropped)
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
        self.tensors.values().map(|held| held.stored.bytes).sum()
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

/// How many ranks wrote a folder; `None` if none did.
fn ranks_of(folder: &Path) -> Result<Option<usize>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(None) };
    let count = |entry: std::fs::DirEntry| -> Option<usize> {
        let name = entry.file_name().into_string().ok()?;
        let numbers = name.strip_prefix("rank-")?.strip_suffix(".safetensors")?;
        let (rank, ranks) = numbers.split_once("-of-")?;
        let ranks = ranks.parse().ok()?;
        (rank.parse::<usize>().ok()? < ranks).then_some(ranks)
    };
    let counts: std::collections::BTreeSet<usize> = entries.flatten().filter_map(count).collect();
    match counts.len() {
        0 => Ok(None),
        1 => Ok(counts.first().copied()),
        _ => Err(Error::file(
            folder,
            format!("has files of meshes of {counts:?} ranks; those of one are wanted"),
        )),
    }
}

/// The whole tensor that a stored part is of, whose shape is a JSON list.
fn whole_of(
    stored: &Stored,
    area: Area,
    shape: &str,
    file: usize,
) -> std::result::Result<(Stored, Part), String> {
    let shape: Vec<usize> =
        serde_json::from_str(shape).map_err(|_| format!("has the shape {shape} in the file's metadata"))?;
    let elements = shape.iter().try_fold(stored.element_bytes as u64, |n, size| n.checked_mul(*size as u64));
    let (Some(bytes), Some(size)) = (elements, matrix(&shape)) else {
        return Err(format!("has the shape {shape:?}, which is larger than any file"));
    };
    if area.meet(&Area::of(size)).as_ref() != Some(&area)
        || stored.shape.iter().product::<usize>() != area.len()
    {
        return Err(format!("of shape {shape:?} has a part {area:?} stored with shape {:?}", stored.shape));
    }
    let start = stored.start;
    Ok((Stored { shape, bytes, ..stored.clone() }, Part { file, start, area }))
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
        names.sort_by_key(|(_, held)| (held.parts.first().file, held.stored.start, held.stored.bytes));
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

    fn place(&self, name: &str) -> &Path {
        let name = self.packed.get(name).map_or(name, |packed| packed.blocks.as_str());
        self.tensors.get(name).map_or(&self.path, |held| &self.files[held.parts.first().file].0)
    }
}

/// Bytes asked for at once: less than the system reads ahead, so that the next ones are on their way meanwhile.
const READ_BYTES: usize = 512 << 10;
/// Files that one stream holds open at most.
const MOST_OPEN: usize = 16;

/// A stream over files. It opens them anew: read-ahead follows each open file, and streams would disturb each other's.
struct FileStream<'a> {
    source: &'a SafeTensors,
    open: BTreeMap<usize, File>,
    /// Of packed tensors.
    cache: Cache,
}

impl FileStream<'_> {
    fn read_packed(&mut self, packed: &Packed, start: u64, out: &mut [u8]) -> Result<()> {
        let mut cache = std::mem::take(&mut self.cache);
        let read = cache.read(packed, start, out, self);
        self.cache = cache;
        read
    }

    fn read_packed_area(&mut self, packed: &Packed, area: &Area, mut out: &mut [u8]) -> Result<()> {
        for Run { start, bytes } in packed.runs(area) {
            let (now, later) = out.split_at_mut(bytes);
            self.read_packed(packed, start, now)?;
            out = later;
        }
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
        if let Some(packed) = source.packed.get(name) {
            return self.read_packed(packed, start, out);
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
        if let Some(packed) = source.packed.get(name) {
            return self.read_packed_area(packed, area, out);
        }
        let Held { stored, parts } = source.find(name)?;
        let inside = area.is_empty() || area.meet(&Area::of(parts.size())).as_ref() == Some(area);
        if !inside || out.len() != area.len() * stored.element_bytes {
            let what = format!("of shape {:?} has no {area:?} of {} bytes", stored.shape, out.len());
            return Err(Error::tensor(source.place(name), name, what));
        }
        parts.read(area, out, &mut |file, at, out| self.read_at(file, at, out))
    }
}
