//! A model initialised with an induction circuit copies before training, whatever the rotation and sharing of its
//! heads.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Grads, Labels, LossTerm, Places, Scope, Tape};
use fathom_model::{
    Caps, Init, LlamaSizes, Model, PackedTokens, Spec, initialise, initialise_induction, lacks_for_induction,
};
use fathom_tensor::{Category, DType, Device};

/// Number of distinct tokens that are repeated.
const LIST: usize = 60;

fn llama(kv_heads: usize) -> Spec {
    Spec::llama(LlamaSizes {
        hidden: 256,
        layers: 3,
        kv_heads,
        head_dim: 64,
        ffn: 512,
        vocab: 512,
        rope_theta: 500_000.0,
        ..LlamaSizes::TINY
    })
}

/// Mean losses of a list of tokens, on its first and second occurrence.
fn repeated(spec: &Spec, start: impl Fn(&Device, &Model, &mut fathom_grad::Params)) -> [f32; 2] {
    let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let (model, mut params) = Model::declare(device, spec, DType::F32);
    start(device, &model, &mut params);
    let ids: Vec<i32> = (0..2 * LIST as i32).map(|t| 3 + (t % LIST as i32) * 7).collect();
    let labels: Vec<i32> = ids.iter().cycle().skip(1).take(ids.len()).copied().collect();
    let positions: Vec<i32> = (0..ids.len() as i32).collect();
    let docs = Vec::from_iter(std::iter::once(0..ids.len()));
    let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
    let batch = model.batch(device, packed, Caps { docs: 1, seq_tokens: ids.len() });
    let labels = Labels::plain(device.from_i32(&labels, Category::Data));
    let (counters, mut grads) = (Counters::default(), Grads::zeros(device, &params));
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let places = Places::none();
    let mut tape = Tape::new(scope, &places);
    let losses = device.zeros(1, ids.len(), DType::F32, Category::Activations);
    let x = model.forward(&mut tape);
    drop(model.head(0.0).loss(tape.scope(), &x, &labels, &[LossTerm::cross_entropy(&losses)], &mut grads));
    let losses = device.to_f32(&losses);
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    [mean(&losses[..LIST - 1]), mean(&losses[LIST..])]
}

#[test]
fn what_was_read_is_copied() {
    let init = Init { deviation: 0.06, seed: 3 };
    for spec in [llama(2).into_granite(16.0), llama(1).into_granite(16.0), llama(4).into_granite(16.0)] {
        assert_eq!(lacks_for_induction(&spec), None);
        let [first, again] = repeated(&spec, |d, m, p| initialise_induction(d, m, p, init));
        assert!(again < first - 1.0, "{} key heads: {first} and {again} nats", spec.kv_heads);
        let [first, again] = repeated(&spec, |d, m, p| initialise(d, m, p, init));
        assert!(again > first - 0.5, "usual weights: {first} and {again} nats");
    }
}

#[test]
fn what_lacks_something_begins_as_usual() {
    let init = Init { deviation: 0.06, seed: 3 };
    for (spec, word) in [(llama(2), "biases"), (llama(2).into_qwen3(), "normalised")] {
        assert!(lacks_for_induction(&spec).unwrap().contains(word));
        let [usual, other] = [
            repeated(&spec, |d, m, p| initialise(d, m, p, init)),
            repeated(&spec, |d, m, p| initialise_induction(d, m, p, init)),
        ];
        assert_eq!(usual, other);
    }
}
