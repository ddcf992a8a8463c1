//! The files of a folder's weights, and parts of tensors in them.

use std::collections::BTreeMap;
use std::path::Path;

use super::area::{Area, matrix};
use super::header::TensorEntry;
use super::json;
use super::parts::TensorPart;
use crate::error::{Error, Result};

/// Number of ranks that wrote a folder; `None` if it has no ranks' files.
pub(super) fn ranks_of(folder: &Path) -> Result<Option<usize>> {
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

/// The whole tensor of a stored part; `shape` is its shape as a JSON list.
pub(super) fn whole_of(
    stored: &TensorEntry,
    area: Area,
    shape: &str,
    file: usize,
) -> std::result::Result<(TensorEntry, TensorPart), String> {
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
    Ok((TensorEntry { shape, bytes, ..stored.clone() }, TensorPart { file, start, area }))
}

/// The index's map from tensor to file. File names may not leave the folder.
pub(super) fn weight_map(index: &Path) -> Result<BTreeMap<String, String>> {
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
