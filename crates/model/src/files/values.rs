//! Stored elements as f32.

use std::ops::Range;

use fathom_tensor::DType;

use super::convert::{convert, is_convertible};
use super::source::Source;
use crate::error::{Error, Result};

/// Some rows of a stored tensor as f32, row by row.
///
/// # Errors
/// If there is no such tensor or row, its type is not F32, BF16 or F16, or the file cannot be read.
pub fn read_f32(source: &dyn Source, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
    let (mut bytes, mut wide) = (Vec::new(), Vec::new());
    source.read_rows(name, rows, &mut bytes)?;
    let Some(dtype) = source.dtype(name).filter(|dtype| is_convertible(*dtype)) else {
        return Err(Error::tensor(source.place(name), name, "is not stored as F32, BF16 or F16"));
    };
    convert(dtype, &bytes, DType::F32, &mut wide);
    Ok(wide.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}
