//! Writes folders in Transformers' layout for bitsandbytes: projections in NF4 or int8, everything else unchanged.
//! Works from files to files, one tensor at a time.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use fathom_grad::ParamId;
use fathom_tensor::blocks::NF4_VALUES;
use fathom_tensor::{BlockFormat, Category, DType, Device, Meta, Pack, Profile};

use super::area::Area;
use super::bitsandbytes::{STATE, config};
use super::coder::Coder;
use super::convert::{convert_into, is_convertible};
use super::folder::{FolderOptions, write_folder};
use super::nested::{NESTED_BLOCK, NestedScales, dynamic_map};
use super::source::Source;
use super::values::read_f32;
use super::writer::{FolderWriter, TensorInfo};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::pieces::Piece;
use crate::spec::Spec;
use crate::weight::{Kind, WeightSpec};

/// Approximate number of elements quantized at a time.
const CHUNK: usize = 1 << 20;
/// Width reserved for a number in a tensor's quantization state.
const NUMBER: usize = 32;

/// Storage format of projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedSave {
    /// The format.
    pub format: BlockFormat,
    /// Whether NF4's scales are quantized too.
    pub double: bool,
}

/// A tensor to write.
pub(super) struct Out {
    pub name: String,
    /// Name in the source.
    pub from: String,
    pub shape: Vec<usize>,
    dtype: DType,
    pub quantised: bool,
    /// Whether it is a gate, such as a router, whose results select.
    is_gate: bool,
    /// The weight in memory that contains it, and its expert.
    pub weight: (ParamId, Option<usize>),
}

/// Returns whether a tensor is a projection of a block or of one of its experts, which low-bit formats apply to.
/// Experts stacked in one tensor are not: no such format has a layout for them.
pub(crate) fn is_projection(layer: Option<usize>, weight: &WeightSpec<'_>, shape: &[usize]) -> bool {
    layer.is_some() && matches!(weight.kind, Kind::Linear | Kind::Experts(_)) && shape.len() == 2
}

/// Index of a tensor's expert.
fn expert_of(weight: &WeightSpec<'_>, piece: &Piece) -> Option<usize> {
    let Kind::Experts(experts) = weight.kind else { return None };
    (piece.shape.len() == 2).then(|| piece.param_row / (weight.shape[0] / experts.max(1)).max(1))
}

/// Name of the module with all experts of a layer, from a tensor's name.
fn experts_module(name: &str) -> Option<&str> {
    const END: &str = ".experts";
    name.find(&format!("{END}.")).map(|at| &name[..at + END.len()])
}

/// Writes a folder that Transformers loads with bitsandbytes, from a source's weights. Experts are not quantized:
/// Transformers has all experts of a layer in one tensor, which bitsandbytes does not quantize.
///
/// # Errors
/// If a tensor is missing or not of floats, the family stores projections transposed, or writing fails.
///
/// # Panics
/// If the machine has no data.
pub fn save_hf_quantised(
    device: &Device,
    (spec, source): (&Spec, &dyn Source),
    folder: &Path,
    (how, options): (QuantisedSave, FolderOptions<'_>),
) -> Result<()> {
    let (mut all, mut skipped) = outs(spec, source, options.weights.dtype)?;
    for out in all.iter_mut().filter(|out| out.weight.1.is_some()) {
        out.quantised = false;
        skip(&mut skipped, experts_module(&out.name));
    }
    let compute = super::folder::torch_name(options.weights.dtype);
    let said = config(how.format, how.double, compute, &skipped);
    write_folder(spec, folder, (options, Some(said)), || {
        let infos = all.iter().flat_map(|out| out.infos(how)).collect();
        let mut writer = FolderWriter::create(folder, infos, options.weights.max_shard_bytes)?;
        for out in &all {
            if out.quantised {
                out.write_quantised(device, source, how, &mut writer)?;
            } else {
                out.write(source, &mut writer, &|_| ())?;
            }
        }
        writer.finish()
    })
}

/// Writes a folder with projections in the format of `coder`, from a source's weights; projections come from the
/// second source, which may be the same.
///
/// # Errors
/// Those of [`save_hf_quantised`], and sizes that the format does not support.
pub fn save_hf_coded(
    (spec, [source, projections]): (&Spec, [&dyn Source; 2]),
    folder: &Path,
    (coder, options): (&dyn Coder, FolderOptions<'_>),
) -> Result<()> {
    let (all, skipped) = outs(spec, source, options.weights.dtype)?;
    write_folder(spec, folder, (options, Some(coder.config(&skipped))), || {
        let infos = all.iter().flat_map(|out| {
            if out.quantised {
                return coder.tensors(&out.name, [out.shape[0], out.shape[1]], out.dtype);
            }
            vec![TensorInfo { name: out.name.clone(), dtype: out.dtype, shape: out.shape.clone() }]
        });
        let mut writer = FolderWriter::create(folder, infos.collect(), options.weights.max_shard_bytes)?;
        for out in &all {
            if !out.quantised {
                out.write(source, &mut writer, &|values| coder.adjust(&out.name, values))?;
                continue;
            }
            let (shape, values) =
                ([out.shape[0], out.shape[1]], read_f32(projections, &out.from, 0..out.shape[0])?);
            let infos = coder.tensors(&out.name, shape, out.dtype);
            for (info, (dtype, bytes)) in infos.iter().zip(coder.encode(&out.name, shape, values)?) {
                if info.dtype == dtype {
                    writer.write(&bytes)?;
                } else {
                    writer.write(&converted(dtype, &bytes, info.dtype))?;
                }
            }
        }
        writer.finish()
    })
}

fn converted(from: DType, bytes: &[u8], to: DType) -> Vec<u8> {
    let mut out = vec![0; bytes.len() / from.bytes() * to.bytes()];
    convert_into(from, bytes, to, &mut out);
    out
}

/// A tensor of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTensor {
    /// Name in files.
    pub name: String,
    /// Index of the block.
    pub layer: usize,
    /// Role in the block: `qkv`, `attn_out`, `up`, `down`, `attn_norm`, `mlp_norm`; with experts `router`,
    /// `experts.up`, `experts.down`, `shared.up`, `shared.down`, `shared.gate`.
    pub role: &'static str,
    /// Its expert, if each expert is a tensor of its own.
    pub expert: Option<usize>,
    /// Sizes in files.
    pub shape: Vec<usize>,
}

/// The tensors of all blocks.
pub fn block_tensors(spec: &Spec) -> Vec<BlockTensor> {
    let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
    let (model, _) = Model::declare(&nowhere, spec, DType::F32);
    let (pieces, mut all) = (model.pieces(), Vec::new());
    model.visit(&mut |id, layer, weight| {
        let Some(layer) = layer else { return };
        let tensor = |piece: &Piece| BlockTensor {
            name: piece.name.clone(),
            layer,
            role: weight.role,
            expert: expert_of(weight, piece),
            shape: piece.shape.clone(),
        };
        all.extend(pieces[id.index()].iter().map(tensor));
    });
    all
}

/// All tensors of a model, and the modules that are not quantized.
pub(super) fn outs(spec: &Spec, source: &dyn Source, dtype: DType) -> Result<(Vec<Out>, Vec<String>)> {
    let names = &spec.family.names;
    if names.transposed {
        let what =
            format!("stores projections of {} as [in, out], which no folder in few bits does", spec.family);
        return Err(Error::file(source.place(""), what));
    }
    let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
    let (model, _) = Model::declare(&nowhere, spec, DType::F32);
    let (mut all, mut skipped, mut seen) = (Vec::new(), vec![names.head.to_string()], BTreeSet::new());
    // Transformers 5 gives every head this name, regardless of files.
    skip(&mut skipped, Some("lm_head"));
    let pieces = model.pieces();
    let mut failed = Ok(());
    model.visit(&mut |id, layer, weight| {
        for piece in &pieces[id.index()] {
            if !seen.insert(piece.name.clone()) {
                continue;
            }
            let quantised = is_projection(layer, weight, &piece.shape);
            if weight.kind == Kind::Gate {
                skip(&mut skipped, piece.name.strip_suffix(".weight"));
            } else if matches!(weight.kind, Kind::Experts(_)) && !quantised {
                skip(&mut skipped, experts_module(&piece.name));
            }
            let short = piece.name.strip_prefix(names.base).filter(|name| source.shape(name).is_some());
            let from = if source.shape(&piece.name).is_some() { Some(piece.name.as_str()) } else { short };
            let Some(from) = from.filter(|from| source.dtype(from).is_some_and(is_convertible)) else {
                let what = "is missing, or is not stored as F32, BF16 or F16";
                failed = Err(Error::tensor(source.place(&piece.name), &piece.name, what));
                return;
            };
            let dtype = if weight.kind == Kind::Wide { DType::F32 } else { dtype };
            let (name, shape) = (piece.name.clone(), piece.shape.clone());
            let (is_gate, weight) = (weight.kind == Kind::Gate, (id, expert_of(weight, piece)));
            all.push(Out { name, from: from.to_string(), shape, dtype, quantised, is_gate, weight });
        }
    });
    failed.map(|()| (all, skipped))
}

/// Adds a module to those not quantized.
fn skip(skipped: &mut Vec<String>, module: Option<&str>) {
    let new = module.filter(|module| !skipped.iter().any(|known| known == module));
    skipped.extend(new.map(str::to_string));
}

impl Out {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The tensors stored for it.
    fn infos(&self, how: QuantisedSave) -> Vec<TensorInfo> {
        let info =
            |name: String, dtype: DType, shape: &[usize]| TensorInfo { name, dtype, shape: shape.to_vec() };
        let part = |end: &str| format!("{}.{end}", self.name);
        if !self.quantised {
            return vec![info(self.name.clone(), self.dtype, &self.shape)];
        }
        if how.format == BlockFormat::Int8 {
            let base = self.name.strip_suffix(".weight").unwrap_or(&self.name);
            return vec![
                info(self.name.clone(), DType::I8, &self.shape),
                info(format!("{base}.SCB"), DType::F32, &self.shape[..1]),
                info(format!("{base}.weight_format"), DType::U8, &[]),
            ];
        }
        let blocks = how.format.scales(self.elements());
        let mut infos = vec![
            info(self.name.clone(), DType::U8, &[how.format.code_bytes(self.elements()), 1]),
            info(part("absmax"), if how.double { DType::U8 } else { DType::F32 }, &[blocks]),
            info(part("quant_map"), DType::F32, &[NF4_VALUES.len()]),
        ];
        if how.double {
            infos.push(info(part("nested_absmax"), DType::F32, &[blocks.div_ceil(NESTED_BLOCK)]));
            infos.push(info(part("nested_quant_map"), DType::F32, &[dynamic_map().len()]));
        }
        let said = self.said(how.double.then_some(0.0));
        infos.push(info(format!("{}{STATE}nf4", self.name), DType::U8, &[said.len()]));
        infos
    }

    /// Its quantization state as JSON, padded to a fixed length.
    fn said(&self, offset: Option<f32>) -> Vec<u8> {
        let dtype = super::folder::torch_name(self.dtype);
        let [rows, cols] = [self.shape[0], self.shape[1]];
        let mut text = format!(
            "{{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"{dtype}\", \"shape\": [{rows}, {cols}]"
        );
        if let Some(offset) = offset {
            let number = serde_json::Value::from(f64::from(offset)).to_string();
            text += &format!(
                ", \"nested_blocksize\": {NESTED_BLOCK}, \"nested_dtype\": \"float32\", \"nested_offset\": {number:<NUMBER$}"
            );
        }
        (text + "}").into_bytes()
    }

    /// Writes it unquantized in the file's type; vectors and gates pass through `adjust`.
    fn write(
        &self,
        source: &dyn Source,
        writer: &mut FolderWriter,
        adjust: &dyn Fn(&mut [f32]),
    ) -> Result<()> {
        if self.shape.len() == 1 || self.is_gate {
            let mut values = read_f32(source, &self.from, 0..self.shape[0])?;
            adjust(&mut values);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            return writer.write(&converted(DType::F32, &bytes, self.dtype));
        }
        let from = source.dtype(&self.from).unwrap_or(self.dtype);
        let rows = self.shape.first().copied().unwrap_or(1);
        let step = (CHUNK / (self.elements() / rows.max(1)).max(1)).max(1);
        let (mut bytes, mut converted) = (Vec::new(), Vec::new());
        for first in (0..rows).step_by(step) {
            source.read_rows(&self.from, first..rows.min(first + step), &mut bytes)?;
            converted.resize(bytes.len() / from.bytes() * self.dtype.bytes(), 0);
            convert_into(from, &bytes, self.dtype, &mut converted);
            writer.write(&converted)?;
        }
        Ok(())
    }

    fn write_quantised(
        &self,
        device: &Device,
        source: &dyn Source,
        how: QuantisedSave,
        writer: &mut FolderWriter,
    ) -> Result<()> {
        let stored = source.quantised(&self.from).filter(|stored| stored.format == how.format);
        let (codes, scales) = match stored {
            Some(stored) => {
                let (mut stream, all) = (source.stream(), 0..self.elements());
                let mut codes = vec![0; how.format.code_bytes(all.end)];
                stored.read_codes(stream.as_mut(), all.clone(), &mut codes)?;
                (codes, stored.read_scales(stream.as_mut(), all)?)
            }
            None => self.quantise(device, source, how.format)?,
        };
        writer.write(&codes)?;
        let words =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
        if how.format == BlockFormat::Int8 {
            writer.write(&words(&scales))?;
            return writer.write(&[0]);
        }
        if !how.double {
            writer.write(&words(&scales))?;
            writer.write(&words(&NF4_VALUES))?;
            return writer.write(&self.said(None));
        }
        let nested = NestedScales::of(&scales);
        writer.write(&nested.codes)?;
        writer.write(&words(&NF4_VALUES))?;
        writer.write(&words(&nested.scales))?;
        writer.write(&words(&dynamic_map()))?;
        writer.write(&self.said(Some(nested.offset)))
    }

    /// Codes and scales of the whole tensor.
    fn quantise(
        &self,
        device: &Device,
        source: &dyn Source,
        format: BlockFormat,
    ) -> Result<(Vec<u8>, Vec<f32>)> {
        let [lines, width] = format.lines([self.shape[0], self.shape[1]]);
        let (row_bytes, scales_at, used) =
            (format.row_bytes(width), format.scales_at(width), format.code_bytes(width));
        let from = source.dtype(&self.from).unwrap_or(DType::F32);
        let (mut codes, mut scales, mut stream) = (Vec::new(), Vec::new(), source.stream());
        let step = (CHUNK / width.max(1)).max(1);
        for first in (0..lines).step_by(step) {
            let count = step.min(lines - first);
            let (mut raw, mut wide) = (vec![0; count * width * from.bytes()], vec![0; 4 * count * width]);
            let rows = first * width / self.shape[1]..(first + count) * width / self.shape[1];
            stream.read_area(&self.from, &Area { rows, cols: 0..self.shape[1] }, &mut raw)?;
            convert_into(from, &raw, DType::F32, &mut wide);
            let x = device.empty(count, width, DType::F32, Category::Staging);
            device.machine.write(&x, &wide);
            let packed = device.empty(count, row_bytes, DType::U8, Category::Staging);
            device.machine.pack(&Pack { format, x: &x, out: &packed });
            for row in device.machine.read(&packed).wait().chunks_exact(row_bytes) {
                codes.extend_from_slice(&row[..used]);
                let words = row[scales_at..].as_chunks::<4>().0;
                scales.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
            }
        }
        Ok((codes, scales))
    }
}
