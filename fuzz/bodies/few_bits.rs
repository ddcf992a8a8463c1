//! Folders of models in few bits (GPTQ, AWQ, compressed-tensors, FP8, NVFP4): what `quantization_config` says, up to the first zero byte,
//! and a safetensors file behind it. Every tensor that is found is read, as elements and as rows of products.

use std::path::PathBuf;

use fathom_model::{SafeTensors, Source, open_config};

/// A model of which the configuration is.
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 96, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128, "hidden_act": "silu", "quantization_config": "#;
/// Bytes of a tensor that are read; a header may claim that one scale stands for gigabytes.
const READ: u64 = 1 << 20;

/// The folder of this process.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("fathom-fuzz-few-bits-{}", std::process::id()))
}

/// Opens what the bytes are, and reads all of it.
pub fn run(data: &[u8]) {
    let cut = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (said, file) = (&data[..cut], data.get(cut + 1..).unwrap_or_default());
    let folder = folder();
    let config = [CONFIG.as_bytes(), said, b"}"].concat();
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("config.json"), config))
        .and_then(|()| std::fs::write(folder.join("model.safetensors"), file));
    assert!(written.is_ok(), "{}: {written:?}", folder.display());
    let _ = open_config(&folder);
    if let Ok(source) = SafeTensors::open_folder(&folder) {
        let mut out = Vec::new();
        for name in source.names() {
            let Some(shape) = source.shape(name) else { continue };
            let bytes = shape.iter().fold(4u64, |bytes, size| bytes.saturating_mul(*size as u64));
            if bytes > READ {
                continue;
            }
            let rows = shape.first().copied().unwrap_or(1);
            let _ = source.read_rows(name, 0..rows, &mut out);
            if let (Some(format), [rows, cols]) = (source.blocks(name), shape) {
                out.resize(rows * format.row_bytes(*cols), 0);
                let _ = source.read_blocks(name, 0..*rows, &mut out);
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
}
