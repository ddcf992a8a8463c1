//! GGUF files as models: the architecture, tensors in blocks, and the tokenizer in the file's keys.

use fathom_model::{Source, open};
use fathom_text::gguf::side_file;

/// Bytes of a tensor that are read.
const READ: u64 = 1 << 20;

/// Opens the bytes as a file, and reads all of it.
pub fn run(data: &[u8]) {
    let path = std::env::temp_dir().join(format!("fathom-fuzz-{}.gguf", std::process::id()));
    let written = std::fs::write(&path, data);
    assert!(written.is_ok(), "{}: {written:?}", path.display());
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        if let Ok(Some(bytes)) = side_file(&path, name) {
            fathom_text::fuzz::fuzz_tokenizer_config(&bytes);
        }
    }
    if let Ok(opened) = open(&path) {
        let mut out = Vec::new();
        for name in opened.source.names() {
            let Some(shape) = opened.source.shape(name) else { continue };
            let bytes = shape.iter().fold(4u64, |bytes, size| bytes.saturating_mul(*size as u64));
            if bytes <= READ {
                let _ = opened.source.read_rows(name, 0..shape.first().copied().unwrap_or(1), &mut out);
            }
        }
    }
    let _ = std::fs::remove_file(&path);
}
