//! Greedy generation against the continuations that Transformers wrote.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_engine::{Engine, Limits};
use fathom_model::{Model, load, open};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

/// Prompts in chunks of `chunk_tokens`; two sequences beside each other must not change each other.
fn check(case: &str, chunk_tokens: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let text = fs::read_to_string(folder.join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(golden["generate"][key].clone()).unwrap() };
    let (prompt, expected) = (ids("prompt"), ids("new_tokens"));

    let device = Device::new(Arc::new(Cpu::new(2, None)), 1 << 30);
    let opened = open(&folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    // Its ids mean nothing here; what counts is that it has no end-of-text token, as the goldens ran without one.
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let limits = Limits { context_tokens: 64, chunk_tokens };
    let engine = Engine::new(&device, &model, &params, &tokenizer, limits);
    let answers = engine.greedy(&[prompt.clone(), prompt[..4].to_vec(), prompt], expected.len()).unwrap();
    assert_eq!(answers[0], expected, "{case} in chunks of {chunk_tokens}");
    assert_eq!(answers[2], expected, "{case} beside others");
}

#[test]
fn greedy_is_that_of_transformers() {
    for case in ["llama2", "qwen3", "gemma2", "gpt2"] {
        for chunk_tokens in [1024, 3, 1] {
            check(case, chunk_tokens);
        }
    }
}
