//! GGUF files (llama.cpp): weights, architecture and tokenizer in one file. Opened like a Hugging Face folder: keys
//! become the configuration that the family reads, tensors get Hugging Face's names and row order.

mod blocks;
mod config;
mod keys;
mod names;
mod write;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fathom_base::gguf::{Fault, Gguf, Tensor};
use fathom_tensor::ggml::{Kind, dequantise};

pub(super) use blocks::Blocks;
pub use write::{GgufType, save_gguf};

use super::generation::{GenerationConfig, context};
use super::table::SafeTensors;
use crate::error::{Error, Result};
use crate::spec::{Family, Spec};
use crate::weight::Names;

/// Size limit of a tensor of frequency factors, in bytes.
const MOST_FACTORS: u64 = 1 << 16;

/// Adds the file to an error, for `map_err`.
fn at(file: &Path) -> impl Fn(Fault) -> Error {
    move |fault| match fault.key.as_str() {
        "" => Error::file(file, fault.what),
        key => Error::config(file, key, fault.what),
    }
}

/// Opens a file: architecture, generation settings and weights.
///
/// # Errors
/// Names the file and the key or tensor that is missing, malformed or not supported.
pub(super) fn open(path: &Path) -> Result<(Spec, GenerationConfig, SafeTensors)> {
    let gguf = Gguf::open(path).map_err(at(path))?;
    let (spec, generation) = read(path, &gguf)?;
    let source = source(path, &gguf, &spec)?;
    Ok((spec, generation, source))
}

/// Reads the architecture and the generation settings.
pub(super) fn open_config(path: &Path) -> Result<(Spec, GenerationConfig)> {
    read(path, &Gguf::open(path).map_err(at(path))?)
}

/// Opens only the weights.
pub(super) fn open_weights(path: &Path) -> Result<SafeTensors> {
    open(path).map(|(.., source)| source)
}

fn read(path: &Path, gguf: &Gguf) -> Result<(Spec, GenerationConfig)> {
    read_with(path, gguf, &|name| gguf.tensors.get(name).and_then(|tensor| numbers(path, tensor)))
}

/// Like [`read`], with small tensors from `factors`.
fn read_with(path: &Path, gguf: &Gguf, factors: config::Factors<'_>) -> Result<(Spec, GenerationConfig)> {
    if let Some(parts) = gguf.count("split.count").map_err(at(path))?.filter(|parts| *parts > 1) {
        let what = format!(
            "is {parts}: the model lies in so many files; merge them with llama.cpp's `gguf-split --merge`"
        );
        return Err(Error::config(path, "split.count", what));
    }
    let config = config::config(gguf, factors).map_err(at(path))?;
    let spec = Family::read(path, &config)?;
    let id = |key: &str| -> Result<Option<u32>> {
        let id = gguf.count(&format!("tokenizer.ggml.{key}_token_id")).map_err(at(path))?;
        Ok(id.and_then(|id| u32::try_from(id).ok()))
    };
    let mut eos = Vec::new();
    for key in ["eos", "eot", "eom"] {
        eos.extend(id(key)?.filter(|id| !eos.contains(id)));
    }
    let positions = Some(context(&spec));
    let generation = GenerationConfig {
        bos: id("bos")?,
        eos,
        pad: id("padding")?,
        positions,
        ..GenerationConfig::default()
    };
    Ok((spec, generation))
}

/// Values of a small tensor.
fn numbers(path: &Path, tensor: &Tensor) -> Option<Vec<f32>> {
    if tensor.kind.block() != 1 || tensor.bytes > MOST_FACTORS {
        return None;
    }
    let mut bytes = vec![0; tensor.bytes as usize];
    File::open(path).ok()?.read_exact_at(&mut bytes, tensor.start).ok()?;
    let mut out = vec![0.0; tensor.shape.iter().product()];
    dequantise(tensor.kind, &bytes, &mut out);
    Some(out)
}

/// Tensors that are not weights.
const NO_WEIGHTS: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

fn source(path: &Path, gguf: &Gguf, spec: &Spec) -> Result<SafeTensors> {
    let mut source = SafeTensors::of_gguf(path)?;
    let tables = Tables {
        outer: names::outer(&spec.family.names),
        block: names::block(&spec.family.names),
        experts: names::experts(&spec.family.names),
        permutes: matches!(gguf.text("general.architecture").map_err(at(path))?, Some("llama" | "granite")),
        spec,
    };
    for (name, tensor) in &gguf.tensors {
        if NO_WEIGHTS.contains(&name.as_str()) {
            continue;
        }
        for (name, blocks) in tables.weights(name, tensor).map_err(|what| Error::tensor(path, name, what))? {
            if source.blocks.insert(name.clone(), blocks).is_some() {
                return Err(Error::tensor(path, &name, "is there twice"));
            }
        }
    }
    Ok(source)
}

/// Tables of one family's names.
struct Tables<'a> {
    outer: [names::Pair; 3],
    block: Vec<names::Pair>,
    experts: Vec<(&'static str, [&'static str; 2])>,
    /// Whether rows of q and k are permuted.
    permutes: bool,
    spec: &'a Spec,
}

impl Tables<'_> {
    /// The weights in a tensor, by Hugging Face's names; unknown tensors keep their own.
    fn weights(&self, name: &str, tensor: &Tensor) -> std::result::Result<Vec<(String, Blocks)>, String> {
        let (layer, rest) = names::split(name);
        let (stem, end) = rest.rsplit_once('.').unwrap_or((rest, ""));
        let Names { base, layers, .. } = self.spec.family.names;
        let at = layer.map_or(String::new(), |layer| format!("{base}{layers}.{layer}."));
        let Tensor { kind, shape, start, bytes } = tensor;
        if shape.len() == 1 && kind.block() > 1 {
            return Err(format!("is a vector of {}; vectors are stored as numbers", kind.name()));
        }
        let blocks = |start: u64, shape: &[usize]| Blocks {
            file: 0,
            start,
            kind: *kind,
            shape: shape.to_vec(),
            heads: None,
            more: 0.0,
        };
        if let Some((_, [list, part])) =
            self.experts.iter().find(|(ours, _)| layer.is_some() && *ours == stem)
        {
            let [count, rows, cols] = shape[..] else {
                return Err(format!("has shape {shape:?}; experts, rows and columns are needed"));
            };
            let expert = |index: usize| {
                let start = start + bytes / count as u64 * index as u64;
                (format!("{at}{list}.{index}.{part}.{end}"), blocks(start, &[rows, cols]))
            };
            return Ok((0..count).map(expert).collect());
        }
        let table = if layer.is_some() { &self.block[..] } else { &self.outer[..] };
        let Some((_, theirs)) = table.iter().find(|(ours, _)| *ours == stem) else {
            return Ok(vec![(name.to_string(), blocks(*start, shape))]);
        };
        let mut held = blocks(*start, shape);
        held.heads = match stem {
            "attn_q" if self.permutes => Some(self.spec.heads),
            "attn_k" if self.permutes => Some(self.spec.kv_heads),
            _ => None,
        };
        if held.heads.is_some_and(|heads| !shape[0].is_multiple_of(2 * heads)) {
            return Err(format!("has {} rows, which are no pairs of so many heads", shape[0]));
        }
        if self.spec.norm.plus_one && stem.ends_with("norm") {
            held.more = 1.0;
        }
        if stem == "ffn_gate_inp_shexp" && shape.len() == 1 {
            held.shape = vec![1, shape[0]];
        }
        Ok(vec![(format!("{at}{theirs}.{end}"), held)])
    }
}

impl SafeTensors {
    /// Storage type of a tensor of a GGUF file; `None` for other files.
    pub fn kind(&self, name: &str) -> Option<Kind> {
        self.blocks.get(name).map(|blocks| blocks.kind)
    }
}
