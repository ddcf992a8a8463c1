//! Vectors of texts: their values, and independence of neighbours and threads.

use std::sync::Arc;

use fathom_base::Embed;
use fathom_cpu::Cpu;
use fathom_engine::{Engine, Limits};
use fathom_grad::{Counters, Eval, Params, Scope};
use fathom_model::{Caps, Init, LlamaSizes, Model, ModelView, PackedTokens, Spec, initialise};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

const TEXTS: [&str; 5] = [
    "The harbour master wrote the report of the winter.",
    "a",
    "Ships came late, the ice was thick, and the lamps burnt all night; nobody had seen such a month.",
    "<|endoftext|> is a spelling here",
    "",
];

fn tiny() -> Spec {
    Spec::llama(LlamaSizes { hidden: 48, ffn: 64, vocab: 300, ..LlamaSizes::TINY })
}

/// Vectors of `texts`, all in one call, from a model with random weights.
fn vectors(threads: usize, texts: &[&str], limits: Limits) -> Vec<Vec<f32>> {
    with_model(threads, |device, model, params, tokenizer| {
        Engine::new(ModelView { device, model, params }, tokenizer, limits).embed(texts).unwrap()
    })
}

fn with_model<T>(threads: usize, work: impl FnOnce(&Device, &Model, &Params, &Tokenizer) -> T) -> T {
    let device = Device::new(Arc::new(Cpu::new(threads, None)), 1 << 30);
    let (model, mut params) = Model::declare(&device, &tiny(), DType::F32);
    initialise(&device, &model, &mut params, Init::new(7));
    let corpus = TEXTS.iter().map(ToString::to_string);
    let tokenizer = Tokenizer::train_bpe(corpus, 300, &["<|endoftext|>"]).unwrap();
    work(&device, &model, &params, &tokenizer)
}

#[test]
fn a_vector_is_the_direction_of_the_mean_hidden_state() {
    let wanted = with_model(2, |device, model, params, tokenizer| {
        let host: Vec<i32> = tokenizer.encode(TEXTS[0]).unwrap().into_iter().map(|id| id as i32).collect();
        let positions: Vec<i32> = (0..host.len() as i32).collect();
        let whole = 0..host.len();
        let packed = PackedTokens { ids: &host, positions: &positions, docs: std::slice::from_ref(&whole) };
        let batch = model.batch(device, packed, Caps { docs: 1, seq_tokens: host.len() });
        let scope = Scope { device, params, batch: (&batch).into(), counters: &Counters::default() };
        let hidden = device.to_f32(&model.forward(&mut Eval::new(scope, None, None)));
        let mut sum = vec![0f64; model.spec.hidden];
        for row in hidden.chunks_exact(48) {
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        sum.iter().map(|value| value / length).collect::<Vec<f64>>()
    });
    let found = vectors(2, &TEXTS[..1], Limits::default());
    let difference = found[0].iter().zip(&wanted).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn neighbours_chunks_and_threads_change_no_bit() {
    let limits = Limits { context_tokens: 64, chunk_tokens: 1024, ..Limits::default() };
    let together = vectors(1, &TEXTS, limits);
    assert_eq!(together.len(), 5);
    for vector in &together {
        let length: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!(vector.len() == 48 && (length - 1.0).abs() < 1e-6, "{length}");
    }
    assert!(together[0] != together[2]);
    assert_eq!(vectors(3, &TEXTS, limits), together);
    assert_eq!(vectors(2, &TEXTS, Limits { chunk_tokens: 1, ..limits }), together);
    let alone: Vec<Vec<f32>> = TEXTS.iter().flat_map(|text| vectors(1, &[text], limits)).collect();
    assert_eq!(alone, together);
    assert!(vectors(1, &[], limits).is_empty());
}

#[test]
fn of_a_long_text_the_beginning_counts() {
    let limits = Limits { context_tokens: 6, chunk_tokens: 128, ..Limits::default() };
    let long = format!("{} {}", TEXTS[2], "word ".repeat(100_000));
    let found = vectors(2, &[&long, TEXTS[2], TEXTS[0]], limits);
    assert_eq!(found[0], found[1]);
    assert!(found[1] != found[2]);
}
