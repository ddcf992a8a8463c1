//! Compares blocks with ggml's.

use std::path::Path;

use super::*;

fn golden(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden_gguf");
    std::fs::read(folder.join(name)).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// ggml's C library made the golden files (`oracle/gguf_blocks.py`).
#[test]
fn blocks_are_those_of_ggml() {
    let x = floats(&golden("x.f32"));
    for kind in Kind::ALL.into_iter().filter(|kind| kind.block() > 1) {
        let name = kind.name().to_lowercase();
        let (blocks, back) = (golden(&format!("{name}.blocks")), floats(&golden(&format!("{name}.f32"))));
        let mut out = vec![0.0; x.len()];
        dequantise(kind, &blocks, &mut out);
        let differs = out.iter().zip(&back).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{name}: elements");
        let mut packed = vec![1; blocks.len()];
        quantise(kind, &x, &mut packed);
        let differs = packed.iter().zip(&blocks).position(|(a, b)| a != b);
        assert_eq!(
            differs.map(|at| (at / kind.block_bytes(), at % kind.block_bytes())),
            None,
            "{name}: block and byte"
        );
    }
}

#[test]
fn numbers_are_numbers() {
    let x = [1.5f32, -0.25, 65504.0, 0.0];
    for kind in [Kind::F32, Kind::F16, Kind::Bf16] {
        let (mut bytes, mut back) = (vec![0; kind.bytes(4)], [0.0; 4]);
        quantise(kind, &x, &mut bytes);
        dequantise(kind, &bytes, &mut back);
        assert!((back[2] - x[2]).abs() <= 256.0 && back[..2] == x[..2], "{kind:?}");
    }
}
