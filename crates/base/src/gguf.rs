//! The GGUF container, versions 2 and 3 (ggml's `docs/gguf.md`): keys with values, and locations of tensors. The
//! meaning of keys and tensor bytes is not interpreted here.
//!
//! Files are untrusted: every number is checked against the file's length before anything is allocated by it,
//! products are checked for overflow, and nothing may lie outside the file or overlap something else. Other readers
//! trusted alignments of zero, sizes whose product wraps, and counts beyond the file (CVE-2024-23605 and its
//! siblings, CVE-2025-53630).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

mod kinds;
mod write;

pub use kinds::Kind;
pub use write::{Layout, header};

/// Key of the alignment of tensors, in bytes.
const ALIGNMENT: &str = "general.alignment";
/// Alignment if the key is missing.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Maximum alignment: that of huge pages.
const MOST_ALIGNMENT: u64 = 1 << 21;
/// Maximum bytes of a text.
const MOST_TEXT: u64 = 64 << 20;
/// Maximum items of a list.
const MOST_ITEMS: u64 = 1 << 24;
/// Maximum bytes of a header: keys, values and tensor names.
const MOST_HEADER: u64 = 1 << 30;
/// Maximum number of dimensions of a tensor.
const MOST_DIMS: u32 = 4;

/// Reason for rejecting a file: a problem with a key or a tensor, or, if `key` is empty, with the file.
#[derive(Debug)]
pub struct Fault {
    /// Name of the key or tensor.
    pub key: String,
    /// Problem and remedy.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            f.write_str(&self.what)
        } else {
            write!(f, "key `{}` {}", self.key, self.what)
        }
    }
}

/// Result type of this module.
pub type Result<T> = std::result::Result<T, Fault>;

fn fault<T>(key: &str, what: impl Into<String>) -> Result<T> {
    Err(Fault { key: key.to_string(), what: what.into() })
}

/// Value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned integer of 8 to 64 bits.
    Unsigned(u64),
    /// Signed integer of 8 to 64 bits.
    Signed(i64),
    /// Floating-point number of 32 or 64 bits.
    Float(f64),
    /// Boolean.
    Bool(bool),
    /// UTF-8 string.
    Text(String),
    /// List of strings.
    Texts(Vec<String>),
    /// List of integers or booleans.
    Integers(Vec<i64>),
    /// List of numbers.
    Floats(Vec<f32>),
}

/// Location of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Storage type.
    pub kind: Kind,
    /// Dimensions, slowest first (the reverse of the file's order).
    pub shape: Vec<usize>,
    /// Offset of its first byte in the file.
    pub start: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Header of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct Gguf {
    /// Values by key.
    pub values: BTreeMap<String, Value>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// Returns true if a path is a file with the extension `.gguf`.
pub fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) && path.is_file()
}

impl Gguf {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// Describes the problem with a key or tensor, or contains the system's message if the file cannot be read.
    pub fn open(path: &Path) -> Result<Gguf> {
        let read = || {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        let (file, length) =
            read().or_else(|error: std::io::Error| fault("", format!("cannot be read: {error}")))?;
        Gguf::read(BufReader::with_capacity(1 << 18, file), length)
    }

    /// Reads the header of a file of `length` bytes.
    ///
    /// # Errors
    /// Same as [`Gguf::open`].
    pub fn read(from: impl Read, length: u64) -> Result<Gguf> {
        let mut bytes = Bytes { from, at: 0, length: length.min(MOST_HEADER) };
        if &bytes.array::<4>("")? != b"GGUF" {
            return fault("", "does not begin with GGUF; not a GGUF file");
        }
        match u32::from_le_bytes(bytes.array("")?) {
            2 | 3 => {}
            version if version.swap_bytes() <= 3 => {
                return fault("", "is a big-endian GGUF file; convert it to a little-endian one");
            }
            version => return fault("", format!("is GGUF of version {version}; 2 and 3 are supported")),
        }
        let num_tensors = bytes.u64("")?;
        let num_values = bytes.u64("")?;
        // A key takes at least its length, a type and a byte; a tensor its name's length, dimensions, type and
        // offset.
        bytes.affords("", "keys", num_values, 13)?;
        bytes.affords("", "tensors", num_tensors, 32)?;
        let mut values = BTreeMap::new();
        for _ in 0..num_values {
            let key = bytes.text("")?;
            let kind = bytes.u32(&key)?;
            let value = bytes.value(&key, kind)?;
            if values.insert(key.clone(), value).is_some() {
                return fault(&key, "is there twice");
            }
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..num_tensors {
            let name = bytes.text("")?;
            let tensor = bytes.tensor(&name)?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return fault(&name, "is there twice");
            }
        }
        let mut read = Gguf { values, tensors };
        let alignment = read.alignment()?;
        let data = bytes.at.next_multiple_of(alignment);
        read.place(data, alignment, length)?;
        Ok(read)
    }

    fn alignment(&self) -> Result<u64> {
        let alignment = match self.values.get(ALIGNMENT) {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Unsigned(alignment)) => *alignment,
            Some(other) => return fault(ALIGNMENT, format!("is {other:?}; a number is needed")),
        };
        if !alignment.is_power_of_two() || !(8..=MOST_ALIGNMENT).contains(&alignment) {
            return fault(
                ALIGNMENT,
                format!("is {alignment}; a power of two from 8 to {MOST_ALIGNMENT} is needed"),
            );
        }
        Ok(alignment)
    }

    /// Converts tensor offsets from the data section to the file, and checks that the tensors are contiguous.
    fn place(&mut self, data: u64, alignment: u64, length: u64) -> Result<()> {
        let mut in_order: Vec<(&String, &mut Tensor)> = self.tensors.iter_mut().collect();
        in_order.sort_by_key(|(_, tensor)| (tensor.start, tensor.bytes));
        let mut end = data;
        for (name, tensor) in in_order {
            if !tensor.start.is_multiple_of(alignment) {
                let what = format!("begins at byte {} of the data, no multiple of {alignment}", tensor.start);
                return fault(name, what);
            }
            let start = data.checked_add(tensor.start).filter(|start| *start >= end);
            let Some(start) = start else { return fault(name, "lies over the tensor before it") };
            let Some(after) = start.checked_add(tensor.bytes).filter(|after| *after <= length) else {
                return fault(name, format!("ends after the file's {length} bytes: it was cut off"));
            };
            (tensor.start, end) = (start, after);
        }
        Ok(())
    }

    /// A non-negative integer.
    ///
    /// # Errors
    /// The value has another type, or is negative.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(number)) => Ok(Some(*number)),
            Some(Value::Signed(number)) if *number >= 0 => Ok(Some(number.unsigned_abs())),
            // One number per layer, all equal.
            Some(Value::Integers(list))
                if list.first().is_some_and(|first| list.iter().all(|n| n == first && *n >= 0)) =>
            {
                Ok(Some(list[0].unsigned_abs()))
            }
            Some(_) => fault(key, "is no number that is the same for all layers"),
        }
    }

    /// A floating-point number.
    ///
    /// # Errors
    /// The value has another type.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Unsigned(number)) => Ok(Some(*number as f64)),
            Some(_) => fault(key, "is no finite number"),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// The value has another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => fault(key, "is neither true nor false"),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// The value has another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => fault(key, "is no text"),
        }
    }

    /// A list of strings.
    ///
    /// # Errors
    /// The value has another type.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Texts(list)) => Ok(Some(list)),
            Some(_) => fault(key, "is no list of texts"),
        }
    }

    /// A list of integers; empty if the key is missing.
    ///
    /// # Errors
    /// The value has another type.
    pub fn integers(&self, key: &str) -> Result<&[i64]> {
        match self.values.get(key) {
            None => Ok(&[]),
            Some(Value::Integers(list)) => Ok(list),
            Some(_) => fault(key, "is no list of integers"),
        }
    }

    /// A list of numbers; empty if the key is missing.
    ///
    /// # Errors
    /// The value has another type.
    pub fn floats(&self, key: &str) -> Result<&[f32]> {
        match self.values.get(key) {
            None => Ok(&[]),
            Some(Value::Floats(list)) => Ok(list),
            Some(_) => fault(key, "is no list of numbers"),
        }
    }
}

/// Entry point for fuzzing, with the bytes as a whole file. Must neither panic nor allocate by numbers in it.
pub fn fuzz(data: &[u8]) {
    let _ = Gguf::read(data, data.len() as u64);
}

/// Reader of a header.
struct Bytes<R> {
    from: R,
    at: u64,
    length: u64,
}

impl<R: Read> Bytes<R> {
    /// Checks that `count` items of at least `each` bytes can follow.
    fn affords(&self, key: &str, what: &str, count: u64, each: u64) -> Result<()> {
        let left = self.length - self.at;
        if count.checked_mul(each).is_none_or(|bytes| bytes > left) {
            return fault(
                key,
                format!("announces {count} {what}, and {left} bytes of the header can follow"),
            );
        }
        Ok(())
    }

    fn fill(&mut self, key: &str, out: &mut [u8]) -> Result<()> {
        self.affords(key, "bytes", out.len() as u64, 1)?;
        self.at += out.len() as u64;
        self.from.read_exact(out).or_else(|error| fault(key, format!("cannot be read: {error}")))
    }

    fn array<const N: usize>(&mut self, key: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        self.fill(key, &mut out)?;
        Ok(out)
    }

    fn u32(&mut self, key: &str) -> Result<u32> {
        self.array(key).map(u32::from_le_bytes)
    }

    fn u64(&mut self, key: &str) -> Result<u64> {
        self.array(key).map(u64::from_le_bytes)
    }

    fn text(&mut self, key: &str) -> Result<String> {
        let length = self.u64(key)?;
        if length > MOST_TEXT {
            return fault(key, format!("has a text of {length} bytes; {MOST_TEXT} are the most"));
        }
        self.affords(key, "bytes of text", length, 1)?;
        let mut text = vec![0; length as usize];
        self.fill(key, &mut text)?;
        // Some vocabularies contain tokens that are not UTF-8; in practice no two of those collide.
        Ok(String::from_utf8(text).unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned()))
    }

    fn scalar(&mut self, key: &str, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>(key)?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(key)?).into()),
            7 => match self.array::<1>(key)? {
                [flag @ (0 | 1)] => Value::Bool(flag == 1),
                [other] => return fault(key, format!("is a truth value {other}; 0 or 1 is needed")),
            },
            8 => Value::Text(self.text(key)?),
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(key)?)),
            other => return fault(key, format!("has the unknown type {other}")),
        })
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value> {
        const LIST: u32 = 9;
        if kind != LIST {
            return self.scalar(key, kind);
        }
        let (of, count) = (self.u32(key)?, self.u64(key)?);
        let each = match of {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            LIST => return fault(key, "is a list of lists, which no model needs"),
            other => return fault(key, format!("is a list of the unknown type {other}")),
        };
        if count > MOST_ITEMS {
            return fault(key, format!("is a list of {count}; {MOST_ITEMS} are the most"));
        }
        self.affords(key, "items", count, each)?;
        let count = count as usize;
        match of {
            8 => (0..count).map(|_| self.text(key)).collect::<Result<_>>().map(Value::Texts),
            6 | 12 => {
                let number = |value| if let Value::Float(number) = value { number as f32 } else { 0.0 };
                (0..count).map(|_| self.scalar(key, of).map(number)).collect::<Result<_>>().map(Value::Floats)
            }
            _ => {
                let list = (0..count).map(|_| {
                    Ok(match self.scalar(key, of)? {
                        Value::Signed(number) => number,
                        Value::Unsigned(number) => i64::try_from(number).unwrap_or(i64::MAX),
                        other => i64::from(other == Value::Bool(true)),
                    })
                });
                list.collect::<Result<_>>().map(Value::Integers)
            }
        }
    }

    /// Reads a tensor entry, with its offset within the data section.
    fn tensor(&mut self, name: &str) -> Result<Tensor> {
        let dims = self.u32(name)?;
        if dims == 0 || dims > MOST_DIMS {
            return fault(name, format!("has {dims} sizes; 1 to {MOST_DIMS} are supported"));
        }
        let mut sizes = (0..dims).map(|_| self.u64(name)).collect::<Result<Vec<u64>>>()?;
        let code = self.u32(name)?;
        let start = self.u64(name)?;
        let kind = Kind::of(code).or_else(|what| fault(name, what))?;
        let elements = sizes.iter().try_fold(1u64, |all, size| all.checked_mul(*size).filter(|all| *all > 0));
        let whole = elements.filter(|_| sizes[0].is_multiple_of(kind.block() as u64));
        let bytes = whole.and_then(|all| (all / kind.block() as u64).checked_mul(kind.block_bytes() as u64));
        let Some(bytes) = bytes.filter(|bytes| i64::try_from(*bytes).is_ok()) else {
            let what = format!(
                "has the sizes {sizes:?}, which are no whole blocks of {} elements of {} in any file",
                kind.block(),
                kind.name()
            );
            return fault(name, what);
        };
        sizes.reverse();
        let shape = sizes.iter().map(|size| *size as usize).collect();
        Ok(Tensor { kind, shape, start, bytes })
    }
}

#[cfg(test)]
mod tests;
