//! Named tensors that are read row by row, independent of storage.

use std::ops::Range;
use std::path::Path;

use fathom_tensor::{BlockFormat, DType};

use super::area::Area;
use super::quantized::QuantizedTensor;
use crate::error::{Error, Result};

/// A source of weights. A row is one step of a tensor's first dimension.
pub trait Source: Sync {
    /// All names in storage order: reading in this order is sequential.
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
    /// A tensor's quantized storage, if any; other reads of it are dequantized.
    fn quantised(&self, _name: &str) -> Option<&QuantizedTensor> {
        None
    }
    /// Format of a tensor's rows in [`Source::read_blocks`]. For [experts, in, out], rows are those of the stored
    /// [experts x out, in].
    fn blocks(&self, _name: &str) -> Option<BlockFormat> {
        None
    }
    /// Overwrites `out` with some rows of a tensor in the format of [`Source::blocks`].
    ///
    /// # Errors
    /// If it is not stored in blocks, has no such rows, or the file cannot be read.
    fn read_blocks(&self, name: &str, _rows: Range<usize>, _out: &mut [u8]) -> Result<()> {
        Err(Error::tensor(self.place(name), name, "is not stored in blocks"))
    }
    /// The file or folder of a tensor (or of all, if there is none of this name), for messages.
    fn place(&self, name: &str) -> &Path;
}

/// Reads ranges of tensors. Fast in storage order: the system reads ahead per stream.
pub trait Stream {
    /// Overwrites `out` with bytes of a tensor, from byte `start` of its elements.
    ///
    /// # Errors
    /// If there is no such tensor, the bytes are out of range, or the file cannot be read.
    fn read(&mut self, name: &str, start: u64, out: &mut [u8]) -> Result<()>;
    /// Overwrites `out` with the elements of some rows and columns, row by row.
    fn read_area(&mut self, name: &str, area: &Area, out: &mut [u8]) -> Result<()>;
}

/// Name of the only weight file of a folder.
pub const SINGLE: &str = "model.safetensors";

/// Name of the index of a folder with several.
pub const INDEX: &str = "model.safetensors.index.json";

/// Name of the file with one rank's parts of all tensors.
pub fn rank_file(rank: usize, ranks: usize) -> String {
    match ranks {
        1 => SINGLE.to_string(),
        _ => format!("rank-{rank:05}-of-{ranks:05}.safetensors"),
    }
}
