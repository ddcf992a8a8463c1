//! Greedy generation compared with Transformers' continuations.
#![allow(clippy::unwrap_used)]

mod adapters;
mod batch;
mod beams;
mod draft;
mod embed;
mod few_bits;
mod fuzz;
mod mixers;
mod packed;
mod packed_adapters;
mod packed_experts;
mod ranks;
#[path = "../../../model/tests/families/recurrent.rs"]
mod recurrent;
mod scarce;
mod service;
mod sources;
mod stored;
mod structure;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_base::{Flow, GenerateRequest, Sampling};
use fathom_cpu::Cpu;
use fathom_engine::{Engine, Limits};
use fathom_model::{Model, ModelView, load, open};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

/// Compares a continuation, with prompts in chunks of `chunk_tokens`; sequences in one batch must not affect each
/// other. Uses one thread, since tests run in parallel.
fn check(folder: &Path, golden: &serde_json::Value, chunk_tokens: usize) {
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(golden[key].clone()).unwrap() };
    let (prompt, expected) = (ids("prompt"), ids("new_tokens"));

    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let opened = open(folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    // Its ids are meaningless here, but it must have no end-of-text token, since the golden files were written without
    // one.
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let limits = Limits { context_tokens: 128, chunk_tokens, ..Limits::default() };
    let engine =
        Engine::new(ModelView { device: &device, model: &model, params: &params }, &tokenizer, limits);
    let other = [prompt.as_slice(), &expected[..20]].concat();
    let answers =
        engine.greedy(&[prompt.clone(), prompt[..4].to_vec(), prompt, other], expected.len()).unwrap();
    let what = format!("{} in chunks of {chunk_tokens}", folder.display());
    assert_eq!(answers[0], expected, "{what}");
    assert_eq!(answers[2], expected, "{what}, among others");
}

#[test]
fn greedy_is_that_of_transformers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let (mut short, mut long) = (0, 0);
    for entry in fs::read_dir(golden).unwrap() {
        let folder = entry.unwrap().path();
        let text = fs::read_to_string(folder.join("golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (key, count) in [("generate", &mut short), ("generate_long", &mut long)] {
            // The sharded case has another's weights and no continuation.
            let Some(golden) = golden.get(key) else { continue };
            *count += 1;
            [1024, 3, 1].into_iter().for_each(|chunk_tokens| check(&folder, golden, chunk_tokens));
        }
    }
    assert!(short >= 41 && long >= 3, "{short} short and {long} long prompts");
}

#[test]
fn a_learned_position_table_limits_the_length() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gpt2");
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let opened = open(&folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let limits = Limits { context_tokens: 128, chunk_tokens: 16, ..Limits::default() };
    let engine =
        Engine::new(ModelView { device: &device, model: &model, params: &params }, &tokenizer, limits);
    assert_eq!(engine.greedy(&[vec![1; 60]], 4).unwrap()[0].len(), 4);
    let error = engine.greedy(&[vec![1; 60]], 5).unwrap_err().to_string();
    assert!(error.contains("64"), "{error}");
    let error = engine.greedy(&[vec![1; 60]], usize::MAX).unwrap_err().to_string();
    assert!(error.contains("context holds 64"), "{error}");
}

/// Weights that are not finite: no token is chosen and no loss is returned, greedily or by sampling, on every path.
#[test]
fn a_model_without_numbers_is_an_error() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama2");
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let opened = open(&folder).unwrap();
    let (model, mut params) = Model::declare(&device, &opened.spec, DType::F32);
    load(&device, &model, &mut params, &opened.source).unwrap();
    for (_, param) in params.iter() {
        let value = param.value.tensor();
        device.machine.write(&value, &f32::NAN.to_le_bytes().repeat(value.len()));
    }
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    let limits = Limits { context_tokens: 128, chunk_tokens: 16, ..Limits::default() };
    let engine =
        Engine::new(ModelView { device: &device, model: &model, params: &params }, &tokenizer, limits);
    let error = engine.greedy(&[vec![1, 2, 3]], 4).unwrap_err().to_string();
    assert!(error.contains("gives no numbers (a logit is not finite)"), "{error}");
    for (temperature, repetition_penalty) in [(0.0, 1.0), (1.0, 1.0), (0.0, 1.5), (1.0, 1.5)] {
        let sampling = Sampling { temperature, repetition_penalty, max_tokens: 4, ..Sampling::default() };
        let request = GenerateRequest::new(vec![1, 2, 3], sampling);
        let error = engine.generate(&request, &mut |_| Flow::Continue).unwrap_err().to_string();
        assert!(error.contains("gives no numbers"), "{error}");
    }
    let error = engine.losses_of(&[vec![1, 2, 3]]).unwrap_err().to_string();
    assert!(error.contains("a loss is not finite"), "{error}");
}
