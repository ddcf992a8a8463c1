//! Writes GGUF files from other files, one tensor at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use fathom_base::gguf::{Gguf, Layout, Tensor, Value as Key, header};
use fathom_tensor::ggml::{Kind, quantise};
use fathom_tensor::{DType, Device, Meta, Profile};
use rayon::prelude::*;

use super::config::{short, yarn_attention, yarn_scale};
use super::keys::keys;
use super::{names, read_with};
use crate::error::{Error, Result};
use crate::files::convert::{convert_into, is_convertible};
use crate::files::source::Source;
use crate::files::writer::FileWriter;
use crate::model::Model;
use crate::rope::RopeScaling;
use crate::spec::{Family, Moe, Spec};

/// Approximate number of elements quantized at a time.
const CHUNK: usize = 1 << 21;

/// Storage types of a file's matrices; norms and biases are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    /// All of one type.
    Plain(Kind),
    /// llama.cpp's mixture Q4_K_M: Q4_K, with Q6_K for the head and for half of the value and MLP output projections.
    Q4KM,
    /// The same with Q5_K.
    Q5KM,
}

impl GgufType {
    /// All types with their names.
    pub const ALL: [(&'static str, GgufType); 12] = [
        ("f32", GgufType::Plain(Kind::F32)),
        ("f16", GgufType::Plain(Kind::F16)),
        ("bf16", GgufType::Plain(Kind::Bf16)),
        ("q8_0", GgufType::Plain(Kind::Q8_0)),
        ("q4_0", GgufType::Plain(Kind::Q4_0)),
        ("q4_1", GgufType::Plain(Kind::Q4_1)),
        ("q5_0", GgufType::Plain(Kind::Q5_0)),
        ("q5_1", GgufType::Plain(Kind::Q5_1)),
        ("q4_k_m", GgufType::Q4KM),
        ("q5_k_m", GgufType::Q5KM),
        ("q6_k", GgufType::Plain(Kind::Q6K)),
        ("q4_k", GgufType::Plain(Kind::Q4K)),
    ];

    /// llama.cpp's id of the mixture (`general.file_type`).
    fn code(self) -> u64 {
        match self {
            GgufType::Plain(Kind::F32) => 0,
            GgufType::Plain(Kind::F16) => 1,
            GgufType::Plain(Kind::Q4_0) => 2,
            GgufType::Plain(Kind::Q4_1) => 3,
            GgufType::Plain(Kind::Q8_0) => 7,
            GgufType::Plain(Kind::Q5_0) => 8,
            GgufType::Plain(Kind::Q5_1) => 9,
            GgufType::Plain(Kind::Q4K) => 14,
            GgufType::Q4KM => 15,
            GgufType::Plain(Kind::Q5K) => 16,
            GgufType::Q5KM => 17,
            GgufType::Plain(Kind::Q6K) => 18,
            GgufType::Plain(Kind::Bf16) => 32,
        }
    }

    fn blocks(self) -> bool {
        !matches!(self, GgufType::Plain(kind) if kind.block() == 1)
    }

    /// Type of a tensor, following llama.cpp's `llama_tensor_get_type`.
    fn of(self, (layer, stem): (Option<usize>, &str), shape: &[usize], spec: &Spec) -> Kind {
        let cols = shape.last().copied().unwrap_or(1);
        if shape.len() == 1 || stem.ends_with("_norm") || stem.starts_with("ffn_gate_inp") {
            return Kind::F32;
        }
        let head = stem == "output" || (stem == "token_embd" && spec.tied);
        let (base, six) = match self {
            GgufType::Plain(kind) if kind.block() == 1 => return kind,
            GgufType::Plain(kind) => (kind, false),
            GgufType::Q4KM => (Kind::Q4K, true),
            GgufType::Q5KM => (Kind::Q5K, true),
        };
        let layers = spec.layers.len();
        let more = layer.is_some_and(|layer| {
            layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
        });
        let eight = spec.moe.as_ref().is_some_and(|moe| moe.experts == 8);
        let kind = match stem {
            _ if head && base != Kind::Q8_0 => Kind::Q6K,
            "attn_k" | "attn_v" if six && eight => Kind::Q8_0,
            "attn_v" | "ffn_down" | "ffn_down_exps" if six && more => Kind::Q6K,
            "attn_qkv" if six => {
                if base == Kind::Q4K {
                    Kind::Q5K
                } else {
                    Kind::Q6K
                }
            }
            "attn_output" if six && eight => Kind::Q5K,
            _ => base,
        };
        // Same fallbacks as llama.cpp's `tensor_type_fallback`.
        let narrower = match kind {
            Kind::Q4K => Kind::Q5_0,
            Kind::Q5K => Kind::Q5_1,
            _ => Kind::Q8_0,
        };
        [kind, narrower, Kind::F16]
            .into_iter()
            .find(|kind| cols.is_multiple_of(kind.block()))
            .unwrap_or(Kind::F16)
    }
}

/// A tensor to write.
struct Out {
    name: String,
    kind: Kind,
    shape: Vec<usize>,
    /// Source tensors, stacked by rows; empty if computed here.
    from: Vec<String>,
    made: Vec<f32>,
    /// Number of heads whose halves' rows are interleaved.
    heads: Option<usize>,
    more: f32,
}

/// Writes a model's weights, with `further` keys such as the tokenizer's. Returns the number of weights.
///
/// # Errors
/// If llama.cpp does not support the family, a setting or a weight; if a tensor is missing or not of floats; if
/// writing fails.
pub fn save_gguf(
    (spec, source): (&Spec, &dyn Source),
    path: &Path,
    how: GgufType,
    further: Vec<(String, Key)>,
) -> Result<u64> {
    let (outs, weights) = outs(spec, source, path, how)?;
    let (arch, architecture) = keys(spec).map_err(|what| Error::file(path, what))?;
    let mut values = vec![
        ("general.architecture".to_string(), Key::Text(arch.to_string())),
        ("general.file_type".to_string(), Key::Unsigned(how.code())),
    ];
    if how.blocks() {
        values.push(("general.quantization_version".to_string(), Key::Unsigned(2)));
    }
    values.extend(architecture);
    values.extend(further);
    check(spec, path, &values, &outs)?;
    let layouts: Vec<Layout> =
        outs.iter().map(|out| (out.name.clone(), out.kind, out.shape.clone())).collect();
    let room = |out: &Out| (out.kind.bytes(out.shape.iter().product()) as u64).next_multiple_of(32);
    let mut writer = FileWriter::create_with(path, &header(&values, &layouts), outs.iter().map(room).sum())?;
    for out in &outs {
        out.write(spec, source, &mut writer)?;
    }
    writer.finish()?;
    Ok(weights)
}

/// Checks that the file would be read as the same architecture.
fn check(spec: &Spec, path: &Path, values: &[(String, Key)], outs: &[Out]) -> Result<()> {
    let tensor = |out: &Out| {
        (out.name.clone(), Tensor { kind: out.kind, shape: out.shape.clone(), start: 0, bytes: 0 })
    };
    let gguf = Gguf { values: values.iter().cloned().collect(), tensors: outs.iter().map(tensor).collect() };
    let made: BTreeMap<&str, &Vec<f32>> = outs.iter().map(|out| (out.name.as_str(), &out.made)).collect();
    let factors = |name: &str| made.get(name).map(|made| made.to_vec());
    let (read, _) = read_with(path, &gguf, &factors)?;
    let family = spec.family;
    let wanted = narrowed(Spec { moe: spec.moe.clone().map(Moe::untrained), ..spec.clone() });
    let read = Spec { family, ..read };
    if read == wanted {
        return Ok(());
    }
    let [ours, theirs] = [Family::write(path, &wanted)?, Family::write(path, &read)?];
    let differs = ours.iter().find(|(key, value)| theirs.get(key.as_str()) != Some(value));
    Err(match differs {
        Some((key, value)) => {
            let other = theirs.get(key).unwrap_or(&serde_json::Value::Null);
            Error::config(
                path,
                key,
                format!("is {value}, which a file cannot tell llama.cpp: it would be read as {other}"),
            )
        }
        None => {
            Error::file(path, format!("a GGUF file cannot express {wanted:?}; it would be read as {read:?}"))
        }
    })
}

/// The specification after rounding its frequency factors to f32, as in a file.
fn narrowed(mut spec: Spec) -> Spec {
    for rope in &mut spec.ropes {
        match &mut rope.scaling {
            RopeScaling::Longrope { short_factor, long_factor, .. } => {
                short_factor.iter_mut().chain(long_factor).for_each(|factor| *factor = short(*factor));
            }
            RopeScaling::Yarn { factor, attention_factor: Some(whole), .. } => {
                *whole = yarn_attention(*whole / yarn_scale(*factor), *factor);
            }
            _ => {}
        }
    }
    spec
}

/// All tensors in llama.cpp's order, and the number of weights.
fn outs(spec: &Spec, source: &dyn Source, path: &Path, how: GgufType) -> Result<(Vec<Out>, u64)> {
    let names = &spec.family.names;
    let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
    let (model, params) = Model::declare(&nowhere, spec, DType::F32);
    let pieces = model.pieces().into_iter().flatten().map(|piece| (piece.name.clone(), piece.shape.clone()));
    let mut wanted: BTreeMap<String, Vec<usize>> = pieces.collect();
    if names.transposed {
        return Err(Error::file(path, format!("llama.cpp has no name for weights of {}", spec.family)));
    }
    let mut outs = made(spec);
    let permutes = matches!(spec.family.model_type, "llama" | "mistral" | "mixtral" | "granite");
    let mut take =
        |name: String, (layer, stem): (Option<usize>, &str), from: Vec<String>, shape: Vec<usize>| {
            let shape = if stem == "ffn_gate_inp_shexp" { vec![shape[1]] } else { shape };
            let heads = match stem {
                "attn_q" if permutes => Some(spec.heads),
                "attn_k" if permutes => Some(spec.kv_heads),
                _ => None,
            };
            let more = if spec.norm.plus_one && stem.ends_with("norm") { 1.0 } else { 0.0 };
            let kind = how.of((layer, stem), &shape, spec);
            outs.push(Out { name, kind, shape, from, made: Vec::new(), heads, more });
        };
    let ([embed, last, head], table) = (names::outer(names), names::block(names));
    let layers = (0..spec.layers.len()).flat_map(|layer| table.iter().map(move |pair| (Some(layer), pair)));
    let all = [(None, &embed)].into_iter().chain(layers).chain([(None, &last), (None, &head)]);
    for (layer, (ours, theirs)) in all {
        let (at, blk) = prefixes(spec, layer);
        for end in ["weight", "bias"] {
            let from = format!("{at}{theirs}.{end}");
            if let Some(shape) = wanted.remove(&from) {
                take(format!("{blk}{ours}.{end}"), (layer, ours), vec![from], shape);
            }
        }
    }
    for layer in 0..spec.layers.len() {
        let (at, blk) = prefixes(spec, Some(layer));
        for (ours, [list, part]) in names::experts(names) {
            let each = (0..).map(|expert| format!("{at}{list}.{expert}.{part}.weight"));
            let found: Vec<_> =
                each.map_while(|name| wanted.remove(&name).map(|shape| (name, shape))).collect();
            let Some((_, shape)) = found.first() else { continue };
            let shape = [&[found.len()], shape.as_slice()].concat();
            let from = found.into_iter().map(|(name, _)| name).collect();
            take(format!("{blk}{ours}.weight"), (Some(layer), ours), from, shape);
        }
    }
    if let Some(name) = wanted.keys().next() {
        return Err(Error::tensor(
            path,
            name,
            format!("of {} is nothing that llama.cpp has a name for", spec.family),
        ));
    }
    let there: BTreeSet<&str> = source.names().into_iter().collect();
    for from in outs.iter_mut().flat_map(|out| &mut out.from) {
        let short = from.strip_prefix(names.base).filter(|short| there.contains(short)).map(str::to_string);
        if !there.contains(from.as_str()) {
            *from = short.ok_or_else(|| Error::tensor(source.place(from), from, "is missing"))?;
        }
        if !source.dtype(from).is_some_and(is_convertible) {
            return Err(Error::tensor(source.place(from), from, "is not stored as F32, BF16 or F16"));
        }
    }
    Ok((outs, params.num_elements()))
}

/// Prefixes of a layer's names in Hugging Face's files and in llama.cpp's.
fn prefixes(spec: &Spec, layer: Option<usize>) -> (String, String) {
    let names = &spec.family.names;
    match layer {
        Some(layer) => (format!("{}{}.{layer}.", names.base, names.layers), format!("blk.{layer}.")),
        None => (String::new(), String::new()),
    }
}

/// Tensors computed from settings: frequency factors.
fn made(spec: &Spec) -> Vec<Out> {
    let out = |(name, made): (&str, Vec<f32>)| Out {
        name: format!("{name}.weight"),
        kind: Kind::F32,
        shape: vec![made.len()],
        from: Vec::new(),
        made,
        heads: None,
        more: 0.0,
    };
    super::keys::factors(spec).into_iter().map(out).collect()
}

impl Out {
    fn write(&self, spec: &Spec, source: &dyn Source, writer: &mut FileWriter) -> Result<()> {
        let mut written = 0;
        let mut put = |values: &[f32]| {
            let bytes = quantised(self.kind, values);
            written += bytes.len();
            writer.write(&bytes)
        };
        if !self.made.is_empty() {
            put(&self.made)?;
        }
        for from in &self.from {
            let shape = source.shape(from).unwrap_or_default();
            let rows = shape.first().copied().unwrap_or(1);
            let cols = shape[1..].iter().product::<usize>();
            let head = self.heads.map_or(1, |heads| rows / heads);
            let step = (CHUNK / cols.max(1)).max(1).next_multiple_of(head);
            let dtype = source.dtype(from).unwrap_or(DType::F32);
            let wanted: usize = self.shape.iter().product::<usize>() / self.from.len();
            if rows * cols != wanted || !rows.is_multiple_of(head) {
                let what = format!("has shape {shape:?}, a {} model needs {:?}", spec.family, self.shape);
                return Err(Error::tensor(source.place(from), from, what));
            }
            let (mut raw, mut wide) = (Vec::new(), Vec::new());
            for first in (0..rows).step_by(step) {
                source.read_rows(from, first..rows.min(first + step), &mut raw)?;
                wide.resize(raw.len() / dtype.bytes() * 4, 0);
                convert_into(dtype, &raw, DType::F32, &mut wide);
                let read = |word: &[u8; 4]| f32::from_le_bytes(*word) + self.more;
                let mut values: Vec<f32> = wide.as_chunks::<4>().0.iter().map(read).collect();
                if self.heads.is_some() {
                    values = values.chunks(head * cols).flat_map(|head| in_turns(head, cols)).collect();
                }
                put(&values)?;
            }
        }
        writer.write(&vec![0; written.next_multiple_of(32) - written])
    }
}

/// Interleaves the rows of a head's two halves.
fn in_turns(head: &[f32], cols: usize) -> Vec<f32> {
    let (first, second) = head.split_at(head.len() / 2);
    first.chunks(cols).zip(second.chunks(cols)).flat_map(|(one, other)| [one, other].concat()).collect()
}

/// Quantizes elements to whole blocks, on all threads.
fn quantised(kind: Kind, values: &[f32]) -> Vec<u8> {
    const PART: usize = 1 << 14;
    let mut out = vec![0; kind.bytes(values.len())];
    let parts = values.par_chunks(PART).zip(out.par_chunks_mut(kind.bytes(PART)));
    parts.for_each(|(values, out)| quantise(kind, values, out));
    out
}
