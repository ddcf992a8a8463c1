//! Tensors quantized by bitsandbytes, in safetensors files as Transformers writes them.
//!
//! NF4: `NAME` is U8 [ceil(n / 2), 1], two codes per byte; `NAME.absmax` has the scales of blocks of 64 elements, f32
//! or, with double quantization, U8 with `NAME.nested_absmax`, `NAME.nested_quant_map`;
//! `NAME.quant_state.bitsandbytes__nf4` is JSON, as bytes. int8: `NAME` is I8 [out, in], and `SCB` instead of
//! `weight` has a scale per row. `quantization_config` tells which of them a folder has.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use fathom_tensor::blocks::NF4_VALUES;
use fathom_tensor::{BlockFormat, DType};
use serde_json::{Map, Value, json};

use super::json::parse_object;
use super::nested::{NESTED_BLOCK, decode};
use super::quantized::{QuantizedTensor, Scales};
use super::source::Stream;
use crate::error::{Error, Result};

/// Name suffix of the state that describes a four-bit packing.
pub(super) const STATE: &str = ".quant_state.bitsandbytes__";
/// Replaces `weight` in the name of int8's row scales.
const SCALES: &str = ".SCB";
/// Key in `config.json`.
pub(super) const KEY: &str = "quantization_config";

/// The quantized tensors of some files.
#[derive(Clone, Debug, Default)]
pub(super) struct QuantisedTensors {
    /// By name.
    pub all: BTreeMap<String, QuantizedTensor>,
    /// Stored tensors that are parts of them; codes map to the name of the quantized tensor.
    pub parts: BTreeMap<String, Option<String>>,
}

/// Reads all bytes of a tensor.
pub(super) type ReadAll<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>>;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Internal name of a tensor's codes, distinct from the tensor's own.
pub(super) fn codes_name(name: &str) -> String {
    format!("{name}.codes")
}

impl QuantisedTensors {
    /// Finds the quantized tensors among these names and shapes.
    ///
    /// # Errors
    /// Unsupported code books or block sizes.
    pub fn find(
        path: &Path,
        names: &BTreeSet<String>,
        shape: &dyn Fn(&str) -> Vec<usize>,
        read: ReadAll<'_>,
    ) -> Result<QuantisedTensors> {
        let mut found = QuantisedTensors::default();
        for state in names.iter().filter(|name| name.contains(STATE)) {
            let (name, kind) = state.split_once(STATE).unwrap_or_default();
            let refuse = |what: String| Error::tensor(path, name, what);
            if kind != "nf4" {
                return Err(refuse(format!("is quantised as {kind}; nf4 and int8 can be read")));
            }
            let json = parse_object(path, &read(state)?)?;
            let parts = ["absmax", "quant_map", "nested_absmax", "nested_quant_map"]
                .map(|part| format!("{name}.{part}"));
            if let Some(missing) = parts[..2].iter().find(|part| !names.contains(*part)) {
                return Err(refuse(format!("is quantised, and {missing} is missing")));
            }
            if floats(&read(&parts[1])?) != NF4_VALUES {
                return Err(refuse("is quantised with a code book that is not NF4's".into()));
            }
            let [absmax, _, nested, map] = parts.clone();
            let scales = if names.contains(&nested) {
                if json.get("nested_blocksize").and_then(Value::as_u64) != Some(NESTED_BLOCK as u64) {
                    return Err(refuse(format!("has other nested blocks than of {NESTED_BLOCK} scales")));
                }
                let offset = json.get("nested_offset").and_then(Value::as_f64);
                let offset = offset.ok_or_else(|| refuse("lacks nested_offset".into()))? as f32;
                let map = floats(&read(&map)?);
                if map.len() != 256 {
                    return Err(refuse(format!("has a nested map of {} values, not 256", map.len())));
                }
                Scales::Nested { codes: absmax, scales: nested, offset, map }
            } else {
                Scales::Plain(absmax)
            };
            let quantised = QuantizedTensor {
                format: BlockFormat::Nf4,
                shape: sizes(&json).map_err(refuse)?,
                dtype: dtype(&json),
                codes: codes_name(name),
                scales,
            };
            let elements: usize = quantised.shape.iter().product();
            let there: usize = shape(name).iter().product();
            if there != BlockFormat::Nf4.code_bytes(elements) {
                return Err(refuse(format!("has {there} bytes of codes for shape {:?}", quantised.shape)));
            }
            found.parts.extend(parts.into_iter().chain([state.clone()]).map(|part| (part, None)));
            found.add(name, quantised);
        }
        for scales in names.iter().filter(|name| name.ends_with(SCALES)) {
            let base = scales.strip_suffix(SCALES).unwrap_or_default();
            let name = format!("{base}.weight");
            if !names.contains(&name) {
                return Err(Error::tensor(path, scales, format!("is of {name}, which is missing")));
            }
            found.parts.extend([scales.clone(), format!("{base}.weight_format")].map(|part| (part, None)));
            let quantised = QuantizedTensor {
                format: BlockFormat::Int8,
                shape: shape(&name),
                dtype: DType::F16,
                codes: codes_name(&name),
                scales: Scales::Plain(scales.clone()),
            };
            found.add(&name, quantised);
        }
        Ok(found)
    }

    fn add(&mut self, name: &str, quantised: QuantizedTensor) {
        self.parts.insert(quantised.codes.clone(), Some(name.to_string()));
        self.all.insert(name.to_string(), quantised);
    }

    /// Renames the tensors, dropping those for which `name` gives none.
    pub fn rename(self, name: &dyn Fn(&str) -> Option<String>) -> QuantisedTensors {
        let part = |(part, of): (String, Option<String>)| Some((name(&part)?, of.and_then(|of| name(&of))));
        let one = |(old, q): (String, QuantizedTensor)| {
            let scales = match q.scales {
                Scales::Plain(scales) => Scales::Plain(name(&scales)?),
                Scales::Nested { codes, scales, offset, map } => {
                    Scales::Nested { codes: name(&codes)?, scales: name(&scales)?, offset, map }
                }
            };
            Some((name(&old)?, QuantizedTensor { codes: name(&q.codes)?, scales, ..q }))
        };
        QuantisedTensors {
            all: self.all.into_iter().filter_map(one).collect(),
            parts: self.parts.into_iter().filter_map(part).collect(),
        }
    }
}

fn sizes(json: &Map<String, Value>) -> std::result::Result<Vec<usize>, String> {
    if json.get("blocksize").and_then(Value::as_u64) != Some(64) {
        return Err(format!(
            "has blocks of {} elements; those of 64 can be read",
            json.get("blocksize").unwrap_or(&Value::Null)
        ));
    }
    let shape = json.get("shape").and_then(|shape| serde_json::from_value::<Vec<usize>>(shape.clone()).ok());
    let fits = |shape: &Vec<usize>| shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size)).is_some();
    shape.filter(fits).ok_or_else(|| format!("has the shape {}", json.get("shape").unwrap_or(&Value::Null)))
}

fn dtype(json: &Map<String, Value>) -> DType {
    match json.get("dtype").and_then(Value::as_str) {
        Some("bfloat16") => DType::Bf16,
        Some("float16") => DType::F16,
        _ => DType::F32,
    }
}

impl QuantizedTensor {
    /// Elements per row.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    fn block(&self) -> usize {
        self.format.block(self.width())
    }

    /// Reads the codes of elements from the start of a block.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn read_codes(
        &self,
        stream: &mut dyn Stream,
        elements: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        stream.read(&self.codes, self.format.code_bytes(elements.start) as u64, out)
    }

    /// Reads the scales of elements from the start of a block.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn read_scales(&self, stream: &mut dyn Stream, elements: Range<usize>) -> Result<Vec<f32>> {
        let blocks = elements.start / self.block()..elements.end.div_ceil(self.block());
        match &self.scales {
            Scales::Plain(name) => {
                let mut bytes = vec![0; 4 * blocks.len()];
                stream.read(name, 4 * blocks.start as u64, &mut bytes)?;
                Ok(floats(&bytes))
            }
            Scales::Nested { codes, scales, offset, map } => {
                let mut found = vec![0; blocks.len()];
                stream.read(codes, blocks.start as u64, &mut found)?;
                let outer = blocks.start / NESTED_BLOCK..blocks.end.div_ceil(NESTED_BLOCK);
                let mut bytes = vec![0; 4 * outer.len()];
                stream.read(scales, 4 * outer.start as u64, &mut bytes)?;
                let scales = floats(&bytes);
                let one = |(block, code): (usize, u8)| {
                    decode(map, code, scales[block / NESTED_BLOCK - outer.start], *offset)
                };
                Ok(blocks.zip(found).map(one).collect())
            }
        }
    }

    /// Reads and dequantizes elements.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn read(&self, stream: &mut dyn Stream, elements: Range<usize>) -> Result<Vec<f32>> {
        let (block, all) = (self.block(), self.shape.iter().product::<usize>());
        let mut out = Vec::with_capacity(elements.len());
        // In memory order, a convenient number of blocks at a time.
        let step = block * (1usize << 16).div_ceil(block);
        for start in (elements.start / block * block..elements.end).step_by(step) {
            let end = all.min(start + step);
            let (count, scales_at) = (end - start, self.format.code_bytes(end - start));
            let mut codes = vec![0; scales_at];
            self.read_codes(stream, start..end, &mut codes)?;
            let scales = self.read_scales(stream, start..end)?;
            for (index, scale) in scales.iter().enumerate() {
                let part = index * block..count.min((index + 1) * block);
                let mut row =
                    codes[self.format.code_bytes(part.start)..self.format.code_bytes(part.end)].to_vec();
                row.resize(self.format.scales_at(part.len()), 0);
                row.extend(scale.to_le_bytes());
                let mut values = vec![0.0; part.len()];
                self.format.unpack_row(&row, &mut values);
                let wanted = |(at, _): &(usize, f32)| elements.contains(&(start + part.start + at));
                out.extend(values.into_iter().enumerate().filter(wanted).map(|(_, value)| value));
            }
        }
        Ok(out)
    }
}

/// Takes the setting of quantized weights out of `config.json`; `None` if absent or of another method.
pub(super) fn take_config(file: &Path, config: &mut Map<String, Value>) -> Result<Option<BlockFormat>> {
    let Some(table) = config.get(KEY).and_then(Value::as_object) else { return Ok(None) };
    if table.get("quant_method").and_then(Value::as_str) != Some("bitsandbytes") {
        return Ok(None);
    }
    let is = |key: &str| table.get(key).and_then(Value::as_bool) == Some(true);
    let kind = table.get("bnb_4bit_quant_type").and_then(Value::as_str).unwrap_or("fp4");
    let format = match (is("load_in_4bit") || is("_load_in_4bit"), kind) {
        (true, "nf4") => BlockFormat::Nf4,
        (true, kind) => {
            let what = format!("is {kind}; weights in nf4 and int8 can be read");
            return Err(Error::config(file, format!("{KEY}.bnb_4bit_quant_type"), what));
        }
        (false, _) => BlockFormat::Int8,
    };
    config.remove(KEY);
    Ok(Some(format))
}

/// The `quantization_config` of weights written in this format.
pub(super) fn config(format: BlockFormat, double: bool, compute: &str, skipped: &[String]) -> Value {
    let four = format == BlockFormat::Nf4;
    json!({
        "_load_in_4bit": four,
        "_load_in_8bit": !four,
        "bnb_4bit_compute_dtype": compute,
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": if four { "nf4" } else { "fp4" },
        "bnb_4bit_use_double_quant": four && double,
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_skip_modules": skipped,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": four,
        "load_in_8bit": !four,
        "quant_method": "bitsandbytes",
    })
}
