//! Streams weights, or anything shaped like them, out under their Hugging Face names.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_grad::{ParamId, Params};
use fathom_tensor::{DType, Device, Tensor};

use super::convert::{convert, transpose};
use super::load::chunks;
use super::writer::{FolderWriter, TensorInfo};
use crate::error::Result;
use crate::model::Model;
use crate::pieces::Piece;

/// How tensors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// Element type in the file: f32, bf16 or f16.
    pub dtype: DType,
    /// Most bytes of one file; a larger tensor has a file of its own.
    pub max_shard_bytes: u64,
}

impl SaveOptions {
    /// Files of at most 5 GB, as Transformers writes them.
    pub fn new(dtype: DType) -> SaveOptions {
        SaveOptions { dtype, max_shard_bytes: 5_000_000_000 }
    }
}

/// Writes all weights of a model as `model.safetensors` (or shards with an index) into a folder.
///
/// # Errors
/// If the system refuses to write; what was there before stays.
///
/// # Panics
/// If the machine has no data, or `params` are not this model's.
pub fn save(
    device: &Device,
    model: &Model,
    params: &Params,
    folder: &Path,
    options: SaveOptions,
) -> Result<()> {
    export_tensors(device, model, |id| Some(params.tensor(id).clone()), folder, options)
}

/// Writes one tensor per weight, shaped like it, under the weight's Hugging Face names. Weights for which `tensor`
/// gives `None` are left out.
///
/// # Errors
/// If the system refuses to write; what was there before stays.
///
/// # Panics
/// If the machine has no data, or a tensor has not its weight's shape.
pub fn export_tensors(
    device: &Device,
    model: &Model,
    tensor: impl Fn(ParamId) -> Option<Tensor>,
    folder: &Path,
    options: SaveOptions,
) -> Result<()> {
    assert!(device.machine.has_data(), "export: the machine has no data");
    let mut parts: BTreeMap<String, Vec<(Tensor, Piece)>> = BTreeMap::new();
    let mut infos = Vec::new();
    for (index, pieces) in model.pieces().into_iter().enumerate() {
        let Some(weight) = tensor(ParamId(index as u32)) else { continue };
        for piece in pieces {
            let of_tensor = parts.entry(piece.name.clone()).or_default();
            if of_tensor.is_empty() {
                let (name, shape) = (piece.name.clone(), piece.shape.clone());
                infos.push(TensorInfo { name, dtype: options.dtype, shape });
            }
            of_tensor.push((weight.clone(), piece));
        }
    }
    let names: Vec<String> = infos.iter().map(|info| info.name.clone()).collect();
    let mut writer = FolderWriter::create(folder, infos, options.max_shard_bytes)?;
    for name in names {
        let mut of_tensor = parts.remove(&name).unwrap_or_default();
        of_tensor.sort_by_key(|(_, piece)| piece.rows.start);
        for (weight, piece) in of_tensor {
            write_piece(device, &weight, &piece, options.dtype, &mut writer)?;
        }
    }
    writer.finish()
}

fn write_piece(
    device: &Device,
    weight: &Tensor,
    piece: &Piece,
    dtype: DType,
    writer: &mut FolderWriter,
) -> Result<()> {
    let from = weight.dtype();
    let (mut turned, mut converted) = (Vec::new(), Vec::new());
    for rows in chunks(piece, from.bytes()) {
        let view = piece.view(weight, rows.clone());
        let bytes = device.machine.read(&view).wait();
        let mut elements = &bytes;
        if piece.transpose {
            transpose(elements, [piece.row_len(), rows.len()], from.bytes(), &mut turned);
            elements = &turned;
        }
        if from != dtype {
            convert(from, elements, dtype, &mut converted);
            elements = &converted;
        }
        writer.write(elements)?;
    }
    Ok(())
}
