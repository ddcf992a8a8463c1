//! Streams weights, or anything shaped like them, out under their Hugging Face names.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_grad::{ParamId, Params, Value};
use fathom_tensor::moments::{BLOCK, decode_block};
use fathom_tensor::{BlockFormat, DType, Device, Reader, Share};

use super::area::{Area, part_name};
use super::convert::{convert, transpose};
use super::sink::Hurry;
use super::slot::{Slot, split};
use super::writer::{FileWriter, FolderWriter, TensorInfo};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::patch::{Patch, patches};

/// Bytes written at a time: few enough to stay in a core's own cache from reading to hashing.
const CHUNK_BYTES: usize = 256 << 10;

/// Options of writing tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// Element type in the file: f32, bf16 or f16. Weights that are always f32 stay so.
    pub dtype: DType,
    /// Most bytes per file; a larger tensor gets a file of its own.
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
/// If writing fails; existing files are kept.
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

/// Writes one tensor per weight, of its shape, under the weight's Hugging Face names. Weights for which `tensor`
/// returns `None` are omitted.
///
/// # Errors
/// If writing fails; existing files are kept.
///
/// # Panics
/// If the machine has no data, or a tensor's shape differs from its weight's.
pub fn export_tensors(
    device: &Device,
    model: &Model,
    tensor: impl Fn(ParamId) -> Option<Value>,
    folder: &Path,
    options: SaveOptions,
) -> Result<()> {
    // Dropping the shares waits for the export's readers, so they must outlive it: declared first, dropped last.
    let (_shares, export) = Export::begin(device, model, tensor, options);
    export.write(folder)
}

/// Values that any thread can write to files, while the issuing thread may read them.
pub struct Export {
    held: Vec<ExportedValue>,
    tensors: Vec<Tensor>,
    max_shard_bytes: u64,
}

/// A value being read.
struct ExportedValue {
    reader: Reader,
    /// Rows x columns of the rank's part of the weight.
    shape: [usize; 2],
    /// Index of the value's first element.
    first: usize,
    /// Scales of coded elements, and whether codes are of square roots.
    scales: Option<(Reader, bool)>,
    /// Format of the reader's bytes, if packed.
    packed: Option<BlockFormat>,
}

/// A tensor in a file, or a part of one.
struct Tensor {
    info: TensorInfo,
    /// For a part: the tensor's name and full shape.
    part_of: Option<(String, Vec<usize>)>,
    /// Its elements in order, as patches, each with the index of its value.
    patches: Vec<(usize, Patch)>,
}

impl Export {
    /// Captures one tensor per weight, of its shape; weights for which `tensor` returns `None` are omitted. The
    /// tensors cannot be written before the shares are dropped, and dropping those blocks until the export is written
    /// or dropped.
    ///
    /// # Panics
    /// If the machine has no data.
    pub fn begin(
        device: &Device,
        model: &Model,
        tensor: impl Fn(ParamId) -> Option<Value>,
        options: SaveOptions,
    ) -> (Vec<Share>, Export) {
        let given = model.pieces().into_iter().zip(model.shapes()).enumerate();
        let given = given.filter_map(|(index, (pieces, shape))| {
            let id = ParamId(index as u32);
            let value = tensor(id)?;
            let range = 0..value.len();
            Some((Slot { id, value, range: range.clone(), coded: None }, patches(&pieces, shape, range)))
        });
        let (shares, export) = Export::of(device, model, given.collect(), options.dtype);
        (shares, Export { max_shard_bytes: options.max_shard_bytes, ..export })
    }

    /// Like [`Export::begin`], for some patches of some values, written as `dtype`; adjacent patches become one part.
    ///
    /// # Panics
    /// If the machine has no data.
    pub fn of(
        device: &Device,
        model: &Model,
        given: Vec<(Slot, Vec<Patch>)>,
        dtype: DType,
    ) -> (Vec<Share>, Export) {
        assert!(device.machine.has_data(), "export: the machine has no data");
        let (wide, shapes) = (model.wide(), model.shapes());
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut named: Vec<(DType, Vec<(usize, Patch)>)> = Vec::new();
        let (mut shares, mut held) = (Vec::new(), Vec::new());
        for (Slot { id, value, range, coded }, patches) in given {
            if patches.is_empty() {
                continue;
            }
            let (share, reader) = value.share(device);
            shares.push(share);
            let dtype = if wide.contains(&id) { DType::F32 } else { dtype };
            for patch in patches {
                let place = *places.entry(patch.name.clone()).or_insert(named.len());
                if place == named.len() {
                    named.push((dtype, Vec::new()));
                }
                named[place].1.push((held.len(), patch));
            }
            let scales = coded.map(|coded| {
                let (share, reader) = coded.scales.share(device);
                shares.push(share);
                (reader, coded.root)
            });
            let packed = value.as_packed().map(|(format, _)| format);
            held.push(ExportedValue {
                reader,
                shape: shapes[id.index()],
                first: range.start,
                scales,
                packed,
            });
        }
        let tensors = named.into_iter().flat_map(|(dtype, patches)| joined(dtype, patches)).collect();
        (shares, Export { held, tensors, max_shard_bytes: u64::MAX })
    }

    /// Writes `model.safetensors` (or shards with an index) into a folder.
    ///
    /// # Errors
    /// If writing fails; existing files are kept.
    ///
    /// # Panics
    /// If a tensor's shape differs from its weight's.
    pub fn write(self, folder: &Path) -> Result<()> {
        let Export { held, tensors, max_shard_bytes } = self;
        let infos = tensors.iter().map(|tensor| tensor.info.clone()).collect();
        let mut writer = FolderWriter::create(folder, infos, max_shard_bytes)?;
        tensors.iter().try_for_each(|tensor| tensor.write(&held, &mut |bytes| writer.write(bytes)))?;
        drop(held);
        writer.finish()
    }

    /// Writes one file without publishing it; afterwards the tensors may be changed. Bypasses the page cache until
    /// `hurry` is set.
    ///
    /// # Errors
    /// If writing fails.
    ///
    /// # Panics
    /// Those of [`Export::write`].
    pub fn stream(self, path: &Path, hurry: &Hurry) -> Result<FileWriter> {
        let Export { held, tensors, .. } = self;
        let infos: Vec<TensorInfo> = tensors.iter().map(|tensor| tensor.info.clone()).collect();
        let wholes = tensors.iter().filter_map(|tensor| tensor.part_of.clone()).collect();
        let mut writer = FileWriter::create_private(path, &infos, &wholes)?;
        writer.past_cache(hurry.clone());
        tensors.iter().try_for_each(|tensor| tensor.write(&held, &mut |bytes| writer.write(bytes)))?;
        Ok(writer)
    }
}

/// Joins one tensor's patches to whole tensors or parts, each as high as possible.
fn joined(dtype: DType, mut patches: Vec<(usize, Patch)>) -> Vec<Tensor> {
    patches.sort_by_key(|(_, patch)| {
        let Area { rows, cols } = &patch.area;
        (cols.start, cols.end, rows.start)
    });
    let mut runs: Vec<(Area, Vec<(usize, Patch)>)> = Vec::new();
    for (of, patch) in patches {
        match runs.last_mut() {
            Some((area, run)) if area.cols == patch.area.cols && area.rows.end == patch.area.rows.start => {
                area.rows.end = patch.area.rows.end;
                run.push((of, patch));
            }
            _ => runs.push((patch.area.clone(), vec![(of, patch)])),
        }
    }
    let tensor = |(area, patches): (Area, Vec<(usize, Patch)>)| {
        let (name, shape) = (&patches[0].1.name, &patches[0].1.shape);
        let whole = area.len() == shape.iter().product::<usize>();
        let (name, shape, part_of) = match (whole, patches[0].1.vector) {
            (true, _) => (name.clone(), shape.clone(), None),
            (_, true) => (part_name(name, &area), vec![area.len()], Some((name.clone(), shape.clone()))),
            _ => {
                let part = vec![area.rows.len(), area.cols.len()];
                (part_name(name, &area), part, Some((name.clone(), shape.clone())))
            }
        };
        Tensor { info: TensorInfo { name, dtype, shape }, part_of, patches }
    };
    runs.into_iter().map(tensor).collect()
}

impl Tensor {
    fn write(&self, held: &[ExportedValue], write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut bytes, mut turned, mut converted) = (Vec::new(), Vec::new(), Vec::new());
        for (of, patch) in &self.patches {
            let held = &held[*of];
            let from = held.dtype();
            for rows in split(&patch.area, from.bytes(), CHUNK_BYTES) {
                let part = patch.rows(rows);
                held.read(&part.local, &mut bytes)?;
                let mut elements = &bytes;
                if part.transpose {
                    let Area { rows, cols } = &part.local;
                    transpose(elements, [rows.len(), cols.len()], from.bytes(), &mut turned);
                    elements = &turned;
                }
                if from != self.info.dtype {
                    convert(from, elements, self.info.dtype, &mut converted);
                    elements = &converted;
                }
                write(elements)?;
            }
        }
        Ok(())
    }
}

impl ExportedValue {
    /// Element type that [`ExportedValue::read`] returns.
    fn dtype(&self) -> DType {
        match (&self.packed, &self.scales) {
            (Some(_), _) => DType::F32,
            (None, Some(_)) => DType::Bf16,
            (None, None) => self.reader.dtype(),
        }
    }

    /// Replaces the contents of `out` with an area of the rank's part of the weight.
    fn read(&self, local: &Area, out: &mut Vec<u8>) -> Result<()> {
        if let Some(format) = self.packed {
            return self.read_packed(format, local, out);
        }
        let Some((scales, root)) = &self.scales else { return self.read_stored(local, out) };
        let (mut codes, mut factors) = (Vec::new(), Vec::new());
        self.read_stored(local, &mut codes)?;
        out.clear();
        let width = local.cols.len();
        for (row, codes) in local.rows.clone().zip(codes.chunks(width.max(1))) {
            let first = row * self.shape[1] + local.cols.start - self.first;
            let blocks = first / BLOCK..(first + width).div_ceil(BLOCK);
            scales.read(0..1, blocks.clone(), &mut factors).map_err(Error::Spill)?;
            for (block, factor) in blocks.zip(factors.as_chunks::<4>().0) {
                let at = |element: usize| element.clamp(first, first + width) - first;
                let codes = &codes[at(block * BLOCK)..at((block + 1) * BLOCK)];
                let mut values = [0.0; BLOCK];
                let values = &mut values[..codes.len()];
                decode_block(codes, f32::from_le_bytes(*factor), *root, values);
                // The values' lower halves are zero.
                out.extend(values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()));
            }
        }
        Ok(())
    }

    /// Dequantizes the rows of an area.
    fn read_packed(&self, format: BlockFormat, local: &Area, out: &mut Vec<u8>) -> Result<()> {
        let [lines, width] = format.lines(self.shape);
        let row_bytes = format.row_bytes(width);
        let rows = if lines == self.shape[0] { local.rows.clone() } else { 0..lines };
        let (mut bytes, mut values) = (Vec::new(), vec![0.0; width]);
        self.reader.read(rows.clone(), 0..row_bytes, &mut bytes).map_err(Error::Spill)?;
        out.clear();
        for (line, packed) in rows.zip(bytes.chunks_exact(row_bytes)) {
            format.unpack_row(packed, &mut values);
            let cols = self.shape[1];
            let inside = |row: usize| row * cols / width == line && local.rows.contains(&row);
            for row in (line * width / cols..(line + 1) * width / cols).filter(|row| inside(*row)) {
                let from = row * cols - line * width;
                let part = &values[from + local.cols.start..from + local.cols.end];
                out.extend(part.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
        Ok(())
    }

    fn read_stored(&self, local: &Area, out: &mut Vec<u8>) -> Result<()> {
        let Area { rows, cols } = local;
        let width = self.shape[1];
        if self.first == 0 && self.reader.shape() == self.shape {
            return self.reader.read(rows.clone(), cols.clone(), out).map_err(Error::Spill);
        }
        // A range of elements is stored as one row.
        let at = |row: usize| row * width + cols.start - self.first;
        if rows.len() == 1 || cols.len() == width {
            let first = at(rows.start);
            return self.reader.read(0..1, first..first + local.len(), out).map_err(Error::Spill);
        }
        let mut row_bytes = Vec::new();
        out.clear();
        for row in rows.clone() {
            self.reader.read(0..1, at(row)..at(row) + cols.len(), &mut row_bytes).map_err(Error::Spill)?;
            out.extend_from_slice(&row_bytes);
        }
        Ok(())
    }
}
