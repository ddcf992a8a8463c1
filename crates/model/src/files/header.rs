//! The header of a safetensors file, from untrusted files.
//!
//! Layout: u64 header length (little-endian), that many bytes of JSON, then the data. Tensors are contiguous, as the
//! format demands. No size from the file is used for an allocation before it is checked against the file's true size.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use fathom_tensor::DType;
use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};

use super::json::MAX_BYTES;
use crate::error::{Error, Result};

/// Location of a tensor in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Name of the element type in the file, e.g. `BF16`.
    pub dtype_name: String,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Sizes, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Offset of the first byte in the file.
    pub start: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl TensorEntry {
    /// The element type, if this crate supports it.
    pub fn dtype(&self) -> Option<DType> {
        DType::from_safetensors_name(&self.dtype_name)
    }

    /// Number of rows in [`crate::Source`]'s sense: the first size, or one.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.bytes.checked_div(self.rows() as u64).unwrap_or(0)
    }
}

/// A parsed header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors by name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The free-form `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[derive(Default)]
struct Entries {
    tensors: BTreeMap<String, Entry>,
    metadata: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Entries, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
        let mut entries = Entries::default();
        while let Some(name) = map.next_key::<String>()? {
            let repeated = if name == "__metadata__" {
                entries.metadata.replace(map.next_value()?).is_some()
            } else {
                entries.tensors.insert(name.clone(), map.next_value()?).is_some()
            };
            if repeated {
                return Err(A::Error::custom(format!("`{name}` appears twice")));
            }
        }
        Ok(entries)
    }
}

/// Size of an element of a safetensors type, including types that this crate does not compute with.
fn element_bytes(dtype: &str) -> Option<usize> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "F32" | "I32" | "U32" => Some(4),
        "F64" | "I64" | "U64" => Some(8),
        _ => None,
    }
}

/// Length of the JSON part from the first eight bytes, checked against the file's length.
///
/// # Errors
/// Names the file and the reason why it has no header.
pub fn header_bytes(file: &Path, first: &[u8], file_bytes: u64) -> Result<usize> {
    let Some(prefix) = first.first_chunk::<8>() else {
        let what =
            format!("{file_bytes} bytes are too few for a safetensors file; it was cut off or is empty");
        return Err(Error::file(file, what));
    };
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_BYTES {
        let what =
            format!("says that its header has {length} bytes (at most 100 MiB); not a safetensors file");
        return Err(Error::file(file, what));
    }
    if length > file_bytes.saturating_sub(8) {
        let what = format!("is cut off: a header of {length} bytes is announced, the file has {file_bytes}");
        return Err(Error::file(file, what));
    }
    usize::try_from(length).map_err(|_| Error::file(file, "header too large for this machine"))
}

/// Parses the JSON part. `file_bytes` is the length of the whole file.
///
/// # Errors
/// Names the file and the tensor whose entry is not consistent with the format or with the file's length.
pub fn parse_header(file: &Path, json: &[u8], file_bytes: u64) -> Result<Header> {
    let text = std::str::from_utf8(json)
        .map_err(|error| Error::file(file, format!("header: not UTF-8 at byte {}", error.valid_up_to())))?;
    let entries: Entries = serde_json::from_str(text)
        .map_err(|error| Error::file(file, format!("header: not valid: {error}")))?;
    let data_start = 8 + json.len() as u64;
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries.tensors {
        let stored = stored(&entry, data_start).map_err(|what| Error::tensor(file, &name, what))?;
        tensors.insert(name, stored);
    }
    check_layout(file, &tensors, data_start, file_bytes)?;
    Ok(Header { tensors, metadata: entries.metadata.unwrap_or_default() })
}

/// Checks one entry: known type, consistent shape and offsets.
fn stored(entry: &Entry, data_start: u64) -> std::result::Result<TensorEntry, String> {
    let dtype = &entry.dtype;
    let element_bytes = element_bytes(dtype).ok_or(format!("has the unknown element type {dtype:?}"))?;
    let [start, end] = entry.data_offsets;
    let bytes = end.checked_sub(start).ok_or(format!("ends at {end}, before its start at {start}"))?;
    let mut sizes = entry.shape.iter();
    let wanted = sizes.try_fold(element_bytes as u64, |product, size| product.checked_mul(*size));
    if wanted != Some(bytes) {
        let wanted = wanted.map_or("more than 2^64".to_string(), |bytes| bytes.to_string());
        let shape = &entry.shape;
        return Err(format!(
            "of shape {shape:?} and type {dtype} takes {wanted} bytes, its offsets hold {bytes}"
        ));
    }
    let start = data_start.checked_add(start).ok_or("starts beyond any file")?;
    let size = |size: &u64| usize::try_from(*size).map_err(|_| format!("has a size of {size}"));
    let shape = entry.shape.iter().map(size).collect::<std::result::Result<_, _>>()?;
    Ok(TensorEntry { dtype_name: dtype.clone(), element_bytes, shape, start, bytes })
}

/// Checks all entries: contiguous, without overlap, up to the end of the file.
fn check_layout(
    file: &Path,
    tensors: &BTreeMap<String, TensorEntry>,
    data_start: u64,
    file_bytes: u64,
) -> Result<()> {
    let mut in_order: Vec<(&String, &TensorEntry)> = tensors.iter().collect();
    in_order.sort_by_key(|(_, stored)| (stored.start, stored.bytes));
    let mut expected = data_start;
    for (name, stored) in in_order {
        if stored.start != expected {
            let what = format!(
                "starts at byte {}, {} the tensor before it ends (byte {expected})",
                stored.start,
                if stored.start < expected { "before" } else { "a gap after" }
            );
            return Err(Error::tensor(file, name, what));
        }
        expected = stored.start.saturating_add(stored.bytes);
        if expected > file_bytes {
            let what = format!("ends at byte {expected}, the file has {file_bytes}: it was cut off");
            return Err(Error::tensor(file, name, what));
        }
    }
    if expected != file_bytes {
        let what = format!("has {} bytes after its last tensor", file_bytes - expected);
        return Err(Error::file(file, what));
    }
    Ok(())
}

/// Fuzzing entry point: parses `data` as a whole safetensors file. Must neither panic nor allocate by sizes in it.
pub fn fuzz_safetensors(data: &[u8]) {
    let (file, length) = (Path::new("fuzz.safetensors"), data.len() as u64);
    if let Ok(header) = header_bytes(file, data, length) {
        let _ = parse_header(file, &data[8..8 + header], length);
    }
}
