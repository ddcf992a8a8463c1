//! Comparison of two runs' checkpoints of one step, tensor by tensor.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fathom_model::{SafeTensors, Source, read_f32};
use fathom_report::diff::{CheckpointDiff, ElementParting, TensorParting};

use super::parts::PARTS;
use super::{STATE, step_name};
use crate::error::Result;

/// Number of elements compared at once.
const CHUNK_ELEMENTS: usize = 1 << 18;

/// Compares the newest checkpoint whose step both folders have; `None` if there is none.
///
/// # Errors
/// If a file cannot be read or is not a sound safetensors file.
pub fn compare_checkpoints(left: &Path, right: &Path) -> Result<Option<CheckpointDiff>> {
    let (left_steps, right_steps) = (steps(left), steps(right));
    let Some(&step) = left_steps.intersection(&right_steps).max() else { return Ok(None) };
    let [left, right] = [left, right].map(|folder| folder.join(step_name(step)));
    let mut diff = CheckpointDiff { step, tensors: 0, differing: 0, first: None };
    for (part, _) in PARTS {
        if !left.join(part).is_dir() {
            continue;
        }
        let of_left = SafeTensors::open_folder(&left.join(part))?;
        let of_right =
            if right.join(part).is_dir() { Some(SafeTensors::open_folder(&right.join(part))?) } else { None };
        for name in of_left.names() {
            diff.tensors += 1;
            let shape = of_left.shape(name).unwrap_or_default().to_vec();
            let same_shape = |source: &&SafeTensors| source.shape(name) == Some(&shape);
            let elements = match of_right.as_ref().filter(same_shape) {
                None => None,
                Some(of_right) => match compare(&of_left, of_right, name, &shape)? {
                    None => continue,
                    Some(elements) => Some(elements),
                },
            };
            diff.differing += 1;
            let parting = || TensorParting { part: part.into(), name: name.into(), shape, elements };
            diff.first.get_or_insert_with(parting);
        }
    }
    Ok(Some(diff))
}

/// Steps of the complete checkpoints in a folder.
fn steps(folder: &Path) -> BTreeSet<u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let whole = entries.filter(|entry| entry.path().join(STATE).is_file());
    whole.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()).collect()
}

/// Difference between two tensors of one shape; `None` if their bits are the same.
fn compare(
    left: &SafeTensors,
    right: &SafeTensors,
    name: &str,
    shape: &[usize],
) -> Result<Option<ElementParting>> {
    let rows = shape.first().copied().unwrap_or(1);
    let row_len: usize = shape.iter().skip(1).product();
    let step = (CHUNK_ELEMENTS / row_len.max(1)).max(1);
    let mut parting: Option<ElementParting> = None;
    for start in (0..rows).step_by(step) {
        let range = start..rows.min(start + step);
        let (of_left, of_right) = (read_f32(left, name, range.clone())?, read_f32(right, name, range)?);
        for (at, (l, r)) in of_left.into_iter().zip(of_right).enumerate() {
            if l.to_bits() == r.to_bits() {
                continue;
            }
            let found = parting.get_or_insert_with(|| ElementParting {
                index: index(start * row_len + at, shape),
                left: l,
                right: r,
                max_abs_difference: 0.0,
                count: 0,
            });
            let difference = (l - r).abs();
            found.count += 1;
            // In this order a NaN is greater than every number.
            if difference.total_cmp(&found.max_abs_difference).is_gt() {
                found.max_abs_difference = difference;
            }
        }
    }
    Ok(parting)
}

/// A flat position as one index per dimension.
fn index(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape.iter().rev().map(|size| (at % size, at /= size).0).collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::index;

    #[test]
    fn positions_become_indices() {
        assert_eq!(index(0, &[]), [0usize; 0]);
        assert_eq!(index(23, &[2, 3, 4]), [1, 2, 3]);
        assert_eq!(index(13, &[2, 3, 4]), [1, 0, 1]);
    }
}
