//! Models whose weights stay as in their files, a GGUF file's blocks or a folder's quantized weights: their answers and
//! memory, and plans of them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::Params;
use fathom_model::{
    FolderOptions, GenerationConfig, GgufType, HfFolder, Init, Model, SaveOptions, initialise, load, open,
    save_gguf, save_hf,
};
use fathom_tensor::ggml::Kind;
use fathom_tensor::{BlockFormat, DType, Device, Machine, Meta};
use fathom_text::Tokenizer;

use crate::batch::{Bed, WAYS, steady};

pub const BUDGET: u64 = 1 << 30;

pub fn cpu() -> Device {
    Device::new(Arc::new(Cpu::new(1, None)), BUDGET)
}

/// A folder of a Llama model whose rows are whole blocks of every type, with random weights. The numbers of rows of the
/// embedding and the head are not multiples of eight.
pub fn folder(at: &Path, tied: bool) {
    folder_of(at, tied, 99, DType::F32);
}

/// The same with a vocabulary of `vocab` tokens, stored as `dtype`.
pub fn folder_of(at: &Path, tied: bool, vocab: usize, dtype: DType) {
    let sizes = [
        ("hidden_size", 256),
        ("intermediate_size", 512),
        ("head_dim", 64),
        ("num_hidden_layers", 3),
        ("vocab_size", vocab),
    ];
    let sizes = sizes.into_iter().map(|(key, value)| (key, value.into()));
    random(at, "llama31", sizes.chain([("tie_word_embeddings", tied.into())]), dtype);
}

/// A folder with a golden model's configuration, changed values, and random weights.
pub fn random(
    at: &Path,
    case: &str,
    values: impl Iterator<Item = (&'static str, serde_json::Value)>,
    dtype: DType,
) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let text = fs::read(golden.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    values.for_each(|(key, value)| config[key] = value);
    fs::write(at.join("config.json"), config.to_string()).unwrap();
    let spec = fathom_model::open_config(at).unwrap().0;
    let device = cpu();
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    initialise(&device, &model, &mut params, Init { deviation: 0.05, seed: 3 });
    let generation = GenerationConfig::default();
    let options = FolderOptions { weights: SaveOptions::new(dtype), generation: &generation, copy: &[] };
    save_hf(&device, &model, &params, at, options).unwrap();
}

/// A model with its weights, as blocks or unpacked.
pub fn held(opened: &HfFolder, dtype: DType, stored: bool) -> Bed {
    let device = cpu();
    let (model, mut params) = if stored {
        Model::declare_stored(&device, &opened.spec, dtype, &opened.source)
    } else {
        Model::declare(&device, &opened.spec, dtype)
    };
    load(&device, &model, &mut params, &opened.source).unwrap();
    bed(device, model, params)
}

/// A model with an unused tokenizer.
pub fn bed(device: Device, model: Model, params: Params) -> Bed {
    let tokenizer = Tokenizer::train_bpe(std::iter::once("a b".to_string()), 256, &[]).unwrap();
    Bed { device, model, params, tokenizer }
}

pub fn text(seed: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|at| ((at * at + 7 * seed * at + seed) % 96) as u32).collect()
}

/// Weights stored as bf16 are held as such in either precision, interleaved if the processor has no unit for them, with
/// the bits of weights that are not.
#[test]
fn numbers_answer_to_the_bit() {
    for (tied, vocab) in [(false, 104), (true, 104), (true, 99)] {
        let at = tempfile::tempdir().unwrap();
        folder_of(at.path(), tied, vocab, DType::Bf16);
        let opened = open(at.path()).unwrap();
        let documents: Vec<Vec<u32>> = (1..7).map(|seed| text(seed, 5 + 9 * seed)).collect();
        for dtype in [DType::Bf16, DType::F32] {
            let [stored, plain] = [true, false].map(|stored| held(&opened, dtype, stored));
            let interleaves = stored.device.machine.multiplies(BlockFormat::Octets(Kind::Bf16));
            let few = stored.params.iter().filter(|(_, param)| param.value.as_blocked().is_some()).count();
            let around = if vocab == 99 {
                0
            } else if tied {
                1
            } else {
                2
            };
            assert_eq!(few, if interleaves { 4 * 3 + around } else { 0 }, "tied {tied}, {vocab} tokens");
            let losses = |bed: &Bed| bed.engine(64).losses_of(&documents).unwrap();
            assert_eq!(losses(&stored), losses(&plain), "tied {tied}, {vocab} tokens, {dtype:?}");
            if !tied {
                steady(&stored, "numbers", &WAYS[1..2]);
            }
            let live = |bed: &Bed| bed.device.pool.usage().live;
            assert!(live(&stored) <= live(&plain), "tied {tied}, {vocab} tokens, {dtype:?}");
            let meta = Device::new(Arc::new(Meta::new(Cpu::new(2, None).profile().clone())), BUDGET);
            let declared = Model::declare_stored(&meta, &opened.spec, dtype, &opened.source);
            assert_eq!(meta.pool.usage().live, live(&held(&opened, dtype, true)), "{dtype:?}");
            drop(declared);
        }
    }
}

#[test]
fn blocks_answer_as_their_elements_do() {
    for (tied, how, name) in [
        (false, GgufType::Q4KM, "q4_k_m"),
        (true, GgufType::Q5KM, "q5_k_m"),
        (true, GgufType::Q4KM, "tied q4_k_m"),
        (false, GgufType::Plain(Kind::Q8_0), "q8_0"),
        (true, GgufType::Plain(Kind::Q4_0), "q4_0"),
        (false, GgufType::Plain(Kind::Q4_1), "q4_1"),
        (false, GgufType::Plain(Kind::Q5_0), "q5_0"),
        (true, GgufType::Plain(Kind::Q5_1), "q5_1"),
        (false, GgufType::Plain(Kind::Q6K), "q6_k"),
    ] {
        let at = tempfile::tempdir().unwrap();
        folder(at.path(), tied);
        let (plain, file) = (open(at.path()).unwrap(), at.path().join("model.gguf"));
        save_gguf((&plain.spec, &plain.source), &file, how, Vec::new()).unwrap();
        let opened = open(&file).unwrap();
        let documents: Vec<Vec<u32>> = (1..7).map(|seed| text(seed, 5 + 9 * seed)).collect();
        let losses = |bed: &Bed| bed.engine(64).losses_of(&documents).unwrap().concat();
        let [elements, rounded] = [DType::F32, DType::Bf16].map(|dtype| losses(&held(&opened, dtype, false)));
        let off = |x: &[f32]| x.iter().zip(&elements).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        let by_bf16 = off(&rounded);
        // 16-bit integers are closer to the elements in f32 than activations and weights in bf16 are.
        for (dtype, share) in [(DType::F32, 0.125), (DType::Bf16, 1.5)] {
            let blocks = held(&opened, dtype, true);
            let in_blocks =
                blocks.params.iter().filter(|(_, param)| param.value.as_blocked().is_some()).count();
            assert_eq!(in_blocks, 4 * 3 + if tied { 1 } else { 2 }, "{name}: weights in blocks");
            let most = off(&losses(&blocks));
            assert!(
                most < share * by_bf16,
                "{name}, {dtype:?}: losses are off by {most}, in bf16 by {by_bf16}"
            );
            println!("{name}, {dtype:?}: losses are off by {most}, unpacked in bf16 by {by_bf16}");
            // Chunks of many rows and steps of few, with blocks of two types.
            if name == "q4_k_m" && dtype == DType::F32 {
                steady(&blocks, name, &WAYS[1..2]);
            }
        }
    }
}

/// A plan charges the bytes of the file's blocks, like a run.
#[test]
fn a_plan_has_the_bytes_of_a_run() {
    let at = tempfile::tempdir().unwrap();
    folder(at.path(), false);
    let (plain, file) = (open(at.path()).unwrap(), at.path().join("model.gguf"));
    save_gguf((&plain.spec, &plain.source), &file, GgufType::Q4KM, Vec::new()).unwrap();
    let opened = open(&file).unwrap();
    let live = |stored: bool| held(&opened, DType::Bf16, stored).device.pool.usage().live;
    let (blocks, elements) = (live(true), live(false));
    assert!(3 * blocks < elements, "{blocks} bytes as blocks, {elements} unpacked");
    let meta = Device::new(Arc::new(Meta::new(Cpu::new(1, None).profile().clone())), BUDGET);
    let declared = Model::declare_stored(&meta, &opened.spec, DType::Bf16, &opened.source);
    assert_eq!(meta.pool.usage().live, blocks);
    drop(declared);
}
