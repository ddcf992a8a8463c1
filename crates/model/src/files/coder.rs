//! Formats of projections for writing one tensor at a time.

use fathom_tensor::DType;
use serde_json::{Value, json};

use super::writer::TensorInfo;
use crate::error::Result;

/// A storage format of projections.
pub trait Coder {
    /// The `quantization_config` for `config.json`. `skipped` are modules that keep their format.
    fn config(&self, skipped: &[String]) -> Value;
    /// The tensors stored for a projection; `dtype` is that of unconverted tensors.
    fn tensors(&self, name: &str, shape: [usize; 2], dtype: DType) -> Vec<TensorInfo>;
    /// The contents of these tensors. Floats are converted to the tensor's type when written.
    ///
    /// # Errors
    /// Sizes that the format does not support.
    fn encode(&self, name: &str, shape: [usize; 2], values: Vec<f32>) -> Result<Vec<(DType, Vec<u8>)>>;
    /// Adjusts the values of a tensor that keeps its format.
    fn adjust(&self, _name: &str, _values: &mut [f32]) {}
}

/// compressed-tensors' configuration: format, skipped modules, and the formats of weights and inputs.
pub(crate) fn compressed_config(
    format: &str,
    skipped: &[String],
    (weights, inputs): (Value, Value),
) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "global_compression_ratio": null,
        "kv_cache_scheme": null,
        "ignore": skipped,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": null,
            },
        },
    })
}

/// e4m3 with a scale per row; the runtime quantizes inputs per token.
pub struct Fp8Save;

/// Largest finite e4m3 value.
const LARGEST: f32 = 448.0;

impl Coder for Fp8Save {
    fn config(&self, skipped: &[String]) -> Value {
        let weights = json!({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel", "dynamic": false});
        let inputs =
            json!({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "token", "dynamic": true});
        compressed_config("float-quantized", skipped, (weights, inputs))
    }

    fn tensors(&self, name: &str, shape: [usize; 2], dtype: DType) -> Vec<TensorInfo> {
        let scale = format!("{name}_scale");
        vec![
            TensorInfo { name: name.to_string(), dtype: DType::F8E4M3, shape: shape.to_vec() },
            TensorInfo { name: scale, dtype, shape: vec![shape[0], 1] },
        ]
    }

    fn encode(
        &self,
        _name: &str,
        [rows, cols]: [usize; 2],
        values: Vec<f32>,
    ) -> Result<Vec<(DType, Vec<u8>)>> {
        let (mut codes, mut scales) = (Vec::with_capacity(values.len()), Vec::with_capacity(4 * rows));
        for row in values.chunks_exact(cols) {
            let largest = row.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            // Rounded to the narrowest stored type, so that codes match the stored scale.
            let scale = half::bf16::from_f32(largest / LARGEST).to_f32();
            let scale = if scale > 0.0 { scale } else { 1.0 };
            codes.extend(row.iter().map(|x| super::joined::to_eight(x / scale)));
            scales.extend(scale.to_le_bytes());
        }
        Ok(vec![(DType::F8E4M3, codes), (DType::F32, scales)])
    }
}
