//! Tensors of open safetensors or GGUF files: locations and parts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::area::{Area, matrix, parse_part};
use super::bitsandbytes::QuantisedTensors;
use super::gguf::Blocks;
use super::header::{Header, TensorEntry, header_bytes, parse_header};
use super::joined::PackedTensor;
use super::parts::{TensorPart, TensorParts};
use super::shards::whole_of;
use super::source::{INDEX, Source};
use crate::error::{Error, Result};

/// One or more open safetensors or GGUF files.
pub struct SafeTensors {
    /// The file, or the folder.
    pub(super) path: PathBuf,
    pub(super) files: Vec<(PathBuf, File)>,
    pub(super) tensors: BTreeMap<String, StoredTensor>,
    /// Tensors decoded from several others, which are not listed.
    pub(super) joined: BTreeMap<String, PackedTensor>,
    /// Tensors quantized by bitsandbytes.
    pub(super) quantised: QuantisedTensors,
    /// Tensors of GGUF files.
    pub(super) blocks: BTreeMap<String, Blocks>,
}

/// A tensor and its parts.
pub(super) struct StoredTensor {
    /// The whole tensor; `start` is that of the first part.
    pub stored: TensorEntry,
    pub parts: TensorParts,
}

impl SafeTensors {
    pub(super) fn nothing(path: &Path) -> SafeTensors {
        let path = path.to_path_buf();
        let (files, tensors, joined) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (quantised, blocks) = (QuantisedTensors::default(), BTreeMap::new());
        SafeTensors { path, files, tensors, joined, quantised, blocks }
    }

    /// A GGUF file, without its tensors yet.
    pub(super) fn of_gguf(path: &Path) -> Result<SafeTensors> {
        let mut opened = SafeTensors::nothing(path);
        opened.files.push((path.to_path_buf(), File::open(path).map_err(Error::io("read", path))?));
        Ok(opened)
    }

    pub(super) fn add(&mut self, path: &Path) -> Result<()> {
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

    /// Adds a part of a tensor.
    fn hold(&mut self, path: &Path, name: String, stored: TensorEntry, part: TensorPart) -> Result<()> {
        let Some(held) = self.tensors.get_mut(&name) else {
            let parts = TensorParts::new(&stored, part);
            self.tensors.insert(name, StoredTensor { stored, parts });
            return Ok(());
        };
        let StoredTensor { stored: known, parts } = held;
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

    /// Checks that parts cover each tensor exactly once.
    pub(super) fn check_parts(&mut self) -> Result<()> {
        for (name, held) in &mut self.tensors {
            held.parts.check().map_err(|what| Error::tensor(&self.path, name, what))?;
        }
        Ok(())
    }

    /// Renames tensors, dropping those for which `name` gives none. Returns the number of dropped ones.
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

    /// These tensors, with those of `base` as fallback.
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

    pub(super) fn source_has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
            || self.quantised.all.contains_key(name)
            || self.joined.contains_key(name)
            || self.blocks.contains_key(name)
    }

    /// XXH3 of the contents of all files in the order of opening, independent of names and folder.
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

    pub(super) fn check_index(&self, index: &Path, map: &BTreeMap<String, String>) -> Result<()> {
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

    pub(super) fn find(&self, name: &str) -> Result<&StoredTensor> {
        self.tensors.get(name).ok_or_else(|| Error::tensor(&self.path, name, "is missing"))
    }

    /// Location and type of a tensor.
    pub fn stored(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name).map(|held| &held.stored)
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        let blocks = self.blocks.values().map(|blocks| blocks.bytes() as u64);
        self.tensors.values().map(|held| held.stored.bytes).chain(blocks).sum()
    }

    /// Bytes `start..` of a tensor's elements, as areas.
    pub(super) fn stretch(&self, name: &str, start: u64, bytes: usize) -> Result<Vec<Area>> {
        let StoredTensor { stored, parts } = self.find(name)?;
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
