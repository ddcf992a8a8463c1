//! The benefit of quantization-aware training: a small decoder is trained, then training continues with weights as they
//! are and with rounded ones. Prints losses on unseen text, of the first as it is and rounded to nearest, and of the
//! second, which is rounded. `rounded [PRETRAINING_STEPS [STEPS [LEARNING_RATE]]]`.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{AdamWSettings, Places};
use fathom_model::{Caps, Init, LlamaSizes, Model, RoundTo, Spec, initialise};
use fathom_tensor::{DType, Device};
use fathom_text::recall::{RecallGenerator, Split};
use fathom_train::{InStep, MicroBatch, Trainer};

/// Tokens of a document, and documents of a step.
const DOCUMENT: usize = 512;
const DOCUMENTS: usize = 2;
/// Number of measured batches, and index of the first.
const MEASURED: usize = 32;
const UNSEEN: usize = 1 << 20;

/// The documents of a step; a token is a byte.
fn batch(text: &RecallGenerator, step: usize) -> MicroBatch {
    let tokens = DOCUMENTS * DOCUMENT;
    let document = |index: usize| {
        let text = text.document((step * DOCUMENTS + index) as u64, 2 * DOCUMENT).into_bytes();
        (0..DOCUMENT).map(move |at| i32::from(text[at % text.len()])).collect::<Vec<i32>>()
    };
    let ids: Vec<i32> = (0..DOCUMENTS).flat_map(document).collect();
    let label = |at: usize| if (at + 1).is_multiple_of(DOCUMENT) { -100 } else { ids[at + 1] };
    MicroBatch {
        labels: (0..tokens).map(label).collect(),
        positions: (0..tokens).map(|at| (at % DOCUMENT) as i32).collect(),
        ids,
        ..MicroBatch::shape(tokens, DOCUMENT)
    }
}

/// The shared setup of all runs.
struct Bed {
    text: RecallGenerator,
    how: InStep,
    spec: Spec,
    seed: u64,
}

impl Bed {
    fn new(seed: u64) -> Bed {
        let how = InStep {
            adamw: AdamWSettings { max_norm: 1.0, ..AdamWSettings::default() },
            ..InStep::plain(Places::none(), Caps { docs: DOCUMENTS, seq_tokens: DOCUMENT })
        };
        let spec = Spec::llama(LlamaSizes {
            hidden: 128,
            layers: 4,
            head_dim: 32,
            ffn: 384,
            vocab: 256,
            max_positions: DOCUMENT,
            ..LlamaSizes::TINY
        });
        Bed { text: RecallGenerator::new(seed, Split::Train), how, spec, seed }
    }

    /// A trainer with these weights in bf16, or with random ones.
    fn trainer(&self, weights: Option<&[Vec<u8>]>) -> Trainer {
        let device = Device::new(Arc::new(Cpu::new(0, None)), 4 << 30);
        let (model, mut params) = Model::declare(&device, &self.spec, DType::Bf16);
        initialise(&device, &model, &mut params, Init::new(self.seed));
        for ((_, param), bytes) in params.iter().zip(weights.unwrap_or_default()) {
            device.machine.write(&param.value.tensor(), bytes);
        }
        Trainer::new(&device, model, params)
    }

    /// Trains with a learning rate that falls to a hundredth along a cosine.
    fn train(&self, trainer: &mut Trainer, (first, steps): (usize, usize), lr: f64) {
        for step in 0..steps {
            let share = 0.5 + 0.5 * (std::f64::consts::PI * step as f64 / steps as f64).cos();
            let warm = ((step + 1) as f64 / 20.0).min(1.0);
            let mut how = self.how.clone();
            how.adamw.lr = (lr * warm * (0.01 + 0.99 * share)) as f32;
            if let Err(error) = trainer.step(&[batch(&self.text, first + step)], &how) {
                panic!("{error}");
            }
        }
    }

    /// Mean loss per token on unseen text.
    fn loss(&self, trainer: &mut Trainer) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for at in 0..MEASURED {
            count += trainer.accumulate(&[batch(&self.text, UNSEEN + at)], &self.how).1;
            sum += f64::from(trainer.loss_sum());
        }
        sum / count
    }
}

/// Makes a trainer round its weights.
fn round(trainer: &mut Trainer, to: RoundTo) {
    if let Err(error) = trainer.round_to(Some(to)) {
        panic!("{error}");
    }
    trainer.round();
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, other: f64| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(other);
    let (before, steps, lr) = (number(0, 1000.0) as usize, number(1, 300.0) as usize, number(2, 3e-4));
    println!("seed format   bf16     rounded  trained  left of what rounding costs");
    for seed in 1..=3 {
        let bed = Bed::new(seed);
        let mut first = bed.trainer(None);
        bed.train(&mut first, (0, before), 2e-3);
        let weights: Vec<Vec<u8>> =
            first.params.iter().map(|(_, param)| param.value.bytes(&first.device)).collect();
        let mut plain = bed.trainer(Some(&weights));
        bed.train(&mut plain, (before, steps), lr);
        let exact = bed.loss(&mut plain);
        for to in [RoundTo::Mxfp4, RoundTo::Nvfp4, RoundTo::Int4] {
            round(&mut plain, to);
            let rounded = bed.loss(&mut plain);
            let mut aware = bed.trainer(Some(&weights));
            round(&mut aware, to);
            bed.train(&mut aware, (before, steps), lr);
            let trained = bed.loss(&mut aware);
            let left = 100.0 * (trained - exact) / (rounded - exact);
            println!(
                "{seed:<4} {:<8} {exact:.5}  {rounded:.5}  {trained:.5}  {left:.0} %",
                format!("{to:?}")
            );
        }
    }
}
