//! Reads the `quantization_config` of weights for [`super::joined`]. The tensors give their own layout; this adds
//! what they do not tell, and refuses settings under which the decoded weights would not give the model.

use std::path::Path;

use serde_json::{Map, Value};

use super::bitsandbytes::KEY;
use super::json::read_object;
use crate::error::{Error, Result};

/// Supported methods.
const METHODS: [&str; 6] = ["gptq", "awq", "fp8", "fbgemm_fp8", "compressed-tensors", "modelopt"];
/// Key instead of [`KEY`] in older versions of compressed-tensors.
const OLD_KEY: &str = "compression_config";

/// Takes the setting of quantized weights out of a configuration if they are supported.
///
/// # Errors
/// A variant whose weights would be decoded wrongly.
pub(super) fn take_config(file: &Path, config: &mut Map<String, Value>) -> Result<()> {
    let key = if config.contains_key(OLD_KEY) { OLD_KEY } else { KEY };
    let Some(table) = config.get(key).and_then(Value::as_object) else { return Ok(()) };
    let word = |key: &str| table.get(key).and_then(Value::as_str);
    let method = if key == OLD_KEY { Some("compressed-tensors") } else { word("quant_method") };
    let Some(method) = method.filter(|method| METHODS.contains(method)) else { return Ok(()) };
    let refuse = |name: &str, what: String| Err(Error::config(file, format!("{key}.{name}"), what));
    match (method, word("version"), word("checkpoint_format")) {
        ("awq", Some(version), _) if !version.eq_ignore_ascii_case("gemm") => {
            return refuse("version", format!("is {version}; gemm can be read"));
        }
        ("gptq", _, Some(format)) if !["gptq", "gptq_v2"].contains(&format) => {
            return refuse("checkpoint_format", format!("is {format}; gptq and gptq_v2 can be read"));
        }
        _ => {}
    }
    let filled = |value: &&Value| value.as_object().is_some_and(|table| !table.is_empty());
    if table.get("transform_config").filter(filled).is_some() {
        return refuse("transform_config", "has rotations, which are not read".into());
    }
    let sparse = table.get("sparsity_config").and_then(|table| table.get("format")).and_then(Value::as_str);
    if let Some(format) = sparse.filter(|format| *format != "dense") {
        return refuse("sparsity_config.format", format!("is {format}; dense can be read"));
    }
    config.remove(key);
    Ok(())
}

/// Offset by which a folder's GPTQ zeros are stored too low: one, but none in format v2.
///
/// # Errors
/// A `config.json` that is not JSON.
pub(super) fn zeros_less(folder: &Path) -> Result<u32> {
    let file = folder.join("config.json");
    if !file.is_file() {
        return Ok(1);
    }
    let config = read_object(&file)?;
    let format = config.get(KEY).and_then(|table| table.get("checkpoint_format"));
    Ok(u32::from(format.and_then(Value::as_str) != Some("gptq_v2")))
}
