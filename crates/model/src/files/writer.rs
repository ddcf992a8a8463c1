//! Writes safetensors files as a stream of bytes: the header first, then tensors in its order.
//!
//! A file is written under a temporary name, flushed to disk and renamed, so a reader sees all of it or nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fathom_tensor::DType;
use serde_json::{Map, Value, json};
use twox_hash::XxHash3_128;

use super::sink::{Hurry, Sink};
use super::source::{INDEX, SINGLE};
use crate::error::{Error, Result};

/// Bytes that are hashed and copied in turn: the copy finds them in the L1 cache.
const PIECE_BYTES: usize = 16 << 10;

/// Modes of new files, before the process's umask.
const PUBLIC: u32 = 0o666;
const PRIVATE: u32 = 0o600;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type in the file.
    pub dtype: DType,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bytes() as u64
    }
}

/// Names and full shapes of the tensors that a file has parts of.
pub type Wholes = BTreeMap<String, Vec<usize>>;

/// The file's bytes before the data: length and JSON, padded so that the data starts at a multiple of eight.
fn header(tensors: &[TensorInfo], wholes: &Wholes) -> Vec<u8> {
    let mut map = Map::new();
    let mut metadata = Map::from_iter([("format".to_string(), json!("pt"))]);
    metadata.extend(wholes.iter().map(|(name, shape)| (name.clone(), json!(json!(shape).to_string()))));
    map.insert("__metadata__".into(), Value::Object(metadata));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let (dtype, shape) = (tensor.dtype.safetensors_name(), &tensor.shape);
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
        map.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut text = Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}

/// A file being written. Leaves nothing behind if dropped before [`FileWriter::finish`].
pub struct FileWriter {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<Sink>,
    left: u64,
    bytes: u64,
    hash: XxHash3_128,
}

impl FileWriter {
    /// Creates the temporary file and writes the header. Data follows in the order of `tensors`, without gaps.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path, tensors: &[TensorInfo]) -> Result<FileWriter> {
        FileWriter::create_as(PUBLIC, path, tensors, &Wholes::new())
    }

    /// Like [`FileWriter::create`], for a file that only its owner may read, with parts of tensors.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create_private(path: &Path, tensors: &[TensorInfo], wholes: &Wholes) -> Result<FileWriter> {
        FileWriter::create_as(PRIVATE, path, tensors, wholes)
    }

    fn create_as(mode: u32, path: &Path, tensors: &[TensorInfo], wholes: &Wholes) -> Result<FileWriter> {
        let mut writer = FileWriter::create_raw(path, mode)?;
        writer.left = u64::MAX;
        writer.write(&header(tensors, wholes))?;
        writer.left = tensors.iter().map(TensorInfo::bytes).sum();
        Ok(writer)
    }

    /// Like [`FileWriter::create`], with a given header and number of bytes after it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn create_with(path: &Path, header: &[u8], bytes: u64) -> Result<FileWriter> {
        let mut writer = FileWriter::create_raw(path, PUBLIC)?;
        writer.left = u64::MAX;
        writer.write(header)?;
        writer.left = bytes;
        Ok(writer)
    }

    fn create_raw(path: &Path, mode: u32) -> Result<FileWriter> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".tmp");
        let temporary = path.with_file_name(name);
        let file = Some(Sink::create(&temporary, mode).map_err(Error::io("create", &temporary))?);
        let (path, hash) = (path.to_path_buf(), XxHash3_128::new());
        Ok(FileWriter { path, temporary, file, left: 0, bytes: 0, hash })
    }

    /// Bypasses the page cache from here on, if the file system supports it, until `hurry` is set.
    pub fn past_cache(&mut self, hurry: Hurry) {
        if let Some(file) = &mut self.file {
            file.past_cache(&self.temporary, hurry);
        }
    }

    /// Number of bytes written so far, and their 128-bit XXH3.
    pub fn digest(&self) -> (u64, u128) {
        (self.bytes, self.hash.finish_128())
    }

    /// Number of bytes still to be written.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Appends data.
    ///
    /// # Errors
    /// If writing fails, for example because the disk is full.
    ///
    /// # Panics
    /// If more is written than the header announced.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() as u64 <= self.left, "{}: more data than announced", self.path.display());
        self.left -= bytes.len() as u64;
        self.bytes += bytes.len() as u64;
        for piece in bytes.chunks(PIECE_BYTES) {
            self.hash.write(piece);
            let file = self.file.as_mut();
            file.map_or(Ok(()), |file| file.write(piece)).map_err(Error::io("write", &self.temporary))?;
        }
        Ok(())
    }

    /// Flushes to disk, still under the temporary name.
    fn flush(&mut self) -> Result<()> {
        assert!(self.left == 0, "{}: {} bytes of data are missing", self.path.display(), self.left);
        if let Some(file) = &mut self.file {
            file.sync().map_err(Error::io("write", &self.temporary))?;
        }
        Ok(())
    }

    /// Publishes the file under its own name.
    ///
    /// # Errors
    /// If writing fails; the temporary file is removed.
    ///
    /// # Panics
    /// If less was written than the header announced.
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.publish()?;
        sync_folder(&self.path)
    }

    fn publish(&mut self) -> Result<()> {
        fs::rename(&self.temporary, &self.path).map_err(Error::io("rename", &self.temporary))?;
        self.file = None;
        Ok(())
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Makes a rename in the folder of `path` durable.
fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io("write", folder))
}

/// Writes a whole small file by temporary name, flush and rename.
///
/// # Errors
/// If writing fails.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_as(PUBLIC, path, &[bytes])
}

/// Like [`write_file`], for a file that only its owner may read, from several parts.
///
/// # Errors
/// If writing fails.
pub fn write_private(path: &Path, parts: &[&[u8]]) -> Result<()> {
    write_as(PRIVATE, path, parts)
}

fn write_as(mode: u32, path: &Path, parts: &[&[u8]]) -> Result<()> {
    let mut writer = FileWriter::create_raw(path, mode)?;
    writer.left = parts.iter().map(|part| part.len() as u64).sum();
    parts.iter().try_for_each(|part| writer.write(part))?;
    writer.finish()
}

/// The weight files of a folder being written: one, or shards with an index.
pub struct FolderWriter {
    folder: PathBuf,
    shards: Vec<(PathBuf, Vec<TensorInfo>)>,
    done: Vec<FileWriter>,
}

impl FolderWriter {
    /// Distributes `tensors` over files of at most `max_shard_bytes`; a larger tensor gets a file of its own.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn create(folder: &Path, tensors: Vec<TensorInfo>, max_shard_bytes: u64) -> Result<FolderWriter> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut shards: Vec<Vec<TensorInfo>> = Vec::new();
        let mut filled = u64::MAX;
        for tensor in tensors {
            match shards.last_mut() {
                Some(last) if filled.saturating_add(tensor.bytes()) <= max_shard_bytes => {
                    filled += tensor.bytes();
                    last.push(tensor);
                }
                _ => {
                    filled = tensor.bytes();
                    shards.push(vec![tensor]);
                }
            }
        }
        let count = shards.len();
        let name = |index: usize| match count {
            1 => folder.join(SINGLE),
            _ => folder.join(format!("model-{:05}-of-{count:05}.safetensors", index + 1)),
        };
        let shards = shards.into_iter().enumerate().map(|(index, shard)| (name(index), shard)).collect();
        Ok(FolderWriter { folder: folder.to_path_buf(), shards, done: Vec::new() })
    }

    /// Appends data in the order of the tensors; chunks may end anywhere.
    ///
    /// # Errors
    /// If writing fails.
    ///
    /// # Panics
    /// If more is written than was announced.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let writer = self.current()?;
            let now = bytes.len().min(usize::try_from(writer.left()).unwrap_or(usize::MAX));
            writer.write(&bytes[..now])?;
            bytes = &bytes[now..];
        }
        Ok(())
    }

    /// The file with room for the next byte.
    fn current(&mut self) -> Result<&mut FileWriter> {
        while self.done.last().is_none_or(|writer| writer.left() == 0) {
            let next = self.shards.get(self.done.len());
            let (path, tensors) =
                next.unwrap_or_else(|| panic!("{}: more data than announced", self.folder.display()));
            self.done.push(FileWriter::create(path, tensors)?);
        }
        let last = self.done.len() - 1;
        Ok(&mut self.done[last])
    }

    /// Publishes all files, then the index, and removes an earlier save's weight files that are not part of this one.
    ///
    /// # Errors
    /// If writing fails.
    ///
    /// # Panics
    /// If less was written than was announced.
    pub fn finish(mut self) -> Result<()> {
        for (path, tensors) in &self.shards[self.done.len()..] {
            self.done.push(FileWriter::create(path, tensors)?);
        }
        for writer in &mut self.done {
            writer.flush()?;
        }
        // An older configuration must never describe the new tensors, not even between two renames.
        let config = self.folder.join("config.json");
        match fs::remove_file(&config) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", &config)(error))?;
            }
            _ => {}
        }
        for writer in &mut self.done {
            writer.publish()?;
        }
        if self.shards.len() != 1 {
            write_file(&self.folder.join(INDEX), &self.index())?;
        }
        self.remove_stale()?;
        sync_folder(&self.folder.join(INDEX))
    }

    fn index(&self) -> Vec<u8> {
        let all = || self.shards.iter().flat_map(|(path, tensors)| tensors.iter().map(move |t| (path, t)));
        let total: u64 = all().map(|(_, tensor)| tensor.bytes()).sum();
        let file = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let map: Map<String, Value> =
            all().map(|(path, tensor)| (tensor.name.clone(), Value::String(file(path)))).collect();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        format!("{index:#}\n").into_bytes()
    }

    fn remove_stale(&self) -> Result<()> {
        for entry in fs::read_dir(&self.folder).map_err(Error::io("read", &self.folder))? {
            let path = entry.map_err(Error::io("read", &self.folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let ours = self.shards.iter().any(|(shard, _)| *shard == path);
            let index = name == INDEX && self.shards.len() == 1;
            if !ours && (index || name == SINGLE || is_shard(&name)) {
                fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// Returns whether a name is like `model-00001-of-00002.safetensors`.
fn is_shard(name: &str) -> bool {
    let numbers = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    numbers.and_then(|rest| rest.split_once("-of-")).is_some_and(|(a, b)| digits(a) && digits(b))
}
