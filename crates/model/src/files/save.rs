//! Streams weights, or anything shaped like them, out under their Hugging Face names.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_grad::{ParamId, Params, Value};
use fathom_tensor::{DType, Device, Reader, Share};

use super::convert::{convert, transpose};
use super::load::chunks;
use super::writer::{FolderWriter, TensorInfo};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::pieces::Piece;

/// How tensors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// Element type in the file: f32, bf16 or f16. Weights that are f32 in every model stay so.
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
    export_tensors(device, model, |id| Some(params.get(id).value.clone()), folder, options)
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
    tensor: impl Fn(ParamId) -> Option<Value>,
    folder: &Path,
    options: SaveOptions,
) -> Result<()> {
    // The shares wait for the export's readers when they end, so they must outlive it: declared first, dropped last.
    let (_shares, export) = Export::begin(device, model, tensor, options);
    export.write(folder)
}

/// Values that any thread may write to files while the issuing thread reads them too.
pub struct Export {
    readers: Vec<Reader>,
    /// In the order of the files: each tensor with its pieces and whose rows they are.
    tensors: Vec<(TensorInfo, Vec<(usize, Piece)>)>,
    options: SaveOptions,
}

impl Export {
    /// Takes hold of the tensors as they are now, one per weight and shaped like it; weights for which `tensor` gives
    /// `None` are left out. Nothing can be written to them before the shares are dropped, and dropping those waits until
    /// the export is written or dropped.
    ///
    /// # Panics
    /// If the machine has no data.
    pub fn begin(
        device: &Device,
        model: &Model,
        tensor: impl Fn(ParamId) -> Option<Value>,
        options: SaveOptions,
    ) -> (Vec<Share>, Export) {
        assert!(device.machine.has_data(), "export: the machine has no data");
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let wide = model.wide();
        let mut shares = Vec::new();
        let mut export = Export { readers: Vec::new(), tensors: Vec::new(), options };
        for (index, pieces) in model.pieces().into_iter().enumerate() {
            let Some(weight) = tensor(ParamId(index as u32)) else { continue };
            let (share, reader) = weight.share(device);
            shares.push(share);
            let reader_index = export.readers.len();
            export.readers.push(reader);
            for piece in pieces {
                let (name, shape) = (piece.name.clone(), piece.shape.clone());
                let place = *places.entry(name.clone()).or_insert_with(|| {
                    let dtype =
                        if wide.contains(&ParamId(index as u32)) { DType::F32 } else { options.dtype };
                    let info = TensorInfo { name, dtype, shape };
                    export.tensors.push((info, Vec::new()));
                    export.tensors.len() - 1
                });
                export.tensors[place].1.push((reader_index, piece));
            }
        }
        for (_, parts) in &mut export.tensors {
            parts.sort_by_key(|(_, piece)| piece.rows.start);
        }
        (shares, export)
    }

    /// Writes `model.safetensors` (or shards with an index) into a folder.
    ///
    /// # Errors
    /// If the system refuses to write; what was there before stays.
    ///
    /// # Panics
    /// If a tensor has not its weight's shape.
    pub fn write(self, folder: &Path) -> Result<()> {
        self.stream(folder)?.finish()
    }

    /// As [`Export::write`] without publishing anything: from here on the tensors may be changed.
    ///
    /// # Errors
    /// As [`Export::write`].
    ///
    /// # Panics
    /// As [`Export::write`].
    pub fn stream(self, folder: &Path) -> Result<FolderWriter> {
        let Export { readers, tensors, options } = self;
        let infos = tensors.iter().map(|(info, _)| info.clone()).collect();
        let mut writer = FolderWriter::create(folder, infos, options.max_shard_bytes)?;
        for (info, parts) in &tensors {
            for (reader, piece) in parts {
                write_piece(&readers[*reader], piece, info.dtype, &mut writer)?;
            }
        }
        Ok(writer)
    }
}

fn write_piece(reader: &Reader, piece: &Piece, dtype: DType, writer: &mut FolderWriter) -> Result<()> {
    let from = reader.dtype();
    let (mut bytes, mut turned, mut converted) = (Vec::new(), Vec::new(), Vec::new());
    for rows in chunks(piece, from.bytes()) {
        let [weight_rows, cols] = piece.part(reader.shape(), rows.clone());
        reader.read(weight_rows, cols, &mut bytes).map_err(Error::Spill)?;
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
