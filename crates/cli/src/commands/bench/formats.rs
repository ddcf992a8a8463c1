//! Loss of a small model for each number format of `precision.gemm`, with equal initial weights, text and steps.
//!
//! A token is a byte of generated text (`fathom_text::recall`). No text repeats, so the mean over the last steps is a
//! loss on unseen text. Every format starts from several initial weights; its differences from bf16 on the same ones
//! have a standard error. A run in f32 throughout shows the effect of rounding to bf16.

use anyhow::{Result, bail};
use fathom_base::recipe::{Layers, Loaded};
use fathom_grad::{AdamWSettings, Places};
use fathom_model::{Caps, Init, LlamaSizes, Model, Spec, initialise};
use fathom_tensor::DType;
use fathom_text::recall::{RecallGenerator, Split};
use fathom_train::recipe::{GemmName, Precision, Recipe, Stage};
use fathom_train::{InStep, MicroBatch, RateSchedule, Trainer, stage};

use super::bed::Bed;
use super::row::Row;
use super::watch::Watch;
use crate::args::bench::Formats;

/// Tokens of a document, and documents of a step.
const DOCUMENT: usize = 512;
const DOCUMENTS: usize = 4;
/// Final steps whose mean loss counts.
const LAST: usize = 20;
/// Seed of the text.
const SEED: u64 = 1;
/// Seeds of the initial weights.
const STARTS: [u64; 3] = [1, 2, 3];

/// A configuration to run.
struct Run {
    gemm: GemmName,
    dtype: DType,
    /// Name of the row.
    name: String,
}

/// A decoder of 0.77 million weights.
fn spec() -> Spec {
    Spec::llama(LlamaSizes {
        hidden: 128,
        layers: 4,
        head_dim: 32,
        ffn: 352,
        vocab: 256,
        max_positions: DOCUMENT,
        ..LlamaSizes::TINY
    })
}

/// The documents of a step.
fn batch(text: &RecallGenerator, step: usize) -> MicroBatch {
    let tokens = DOCUMENTS * DOCUMENT;
    let mut batch = MicroBatch::shape(tokens, DOCUMENT);
    batch.positions = (0..tokens).map(|at| (at % DOCUMENT) as i32).collect();
    let document = |index: usize| {
        let text = text.document((step * DOCUMENTS + index) as u64, 2 * DOCUMENT).into_bytes();
        (0..DOCUMENT).map(move |at| i32::from(text[at % text.len()])).collect::<Vec<i32>>()
    };
    batch.ids = (0..DOCUMENTS).flat_map(document).collect();
    let ids = &batch.ids;
    batch.labels = (0..tokens).map(|at| if (at + 1) % DOCUMENT == 0 { -100 } else { ids[at + 1] }).collect();
    batch
}

/// The recipe of a run.
fn recipe(gemm: GemmName) -> Result<Recipe> {
    let mut recipe: Recipe = Loaded::load(Layers::new())?.value;
    recipe.precision.gemm = gemm;
    recipe.optimizer.lr = 2e-3;
    recipe.stage = vec![Stage::default()];
    Ok(recipe)
}

/// Mean loss of the last steps from one initialization.
fn train(args: &Formats, run: &Run, start: u64) -> Result<f64> {
    let device = Bed::new(args.threads, Precision::Bf16)?.device;
    let (model, mut params) = Model::declare(&device, &spec(), run.dtype);
    initialise(&device, &model, &mut params, Init::new(start));
    let recipe = recipe(run.gemm)?;
    let mut how = InStep {
        on_disk: Default::default(),
        narrow: stage::narrow(&recipe, 0)?,
        adamw: AdamWSettings { max_norm: 1.0, ..AdamWSettings::default() },
        ..InStep::plain(Places::none(), Caps { docs: DOCUMENTS, seq_tokens: DOCUMENT })
    };
    let mut trainer = Trainer::new(&device, model, params);
    trainer.narrow(how.narrow.as_ref())?;
    let text = RecallGenerator::new(SEED, Split::Train);
    let rates = RateSchedule::new(&recipe, 0, args.steps as u64);
    let mut losses = Vec::new();
    for step in 0..args.steps {
        how.adamw.lr = rates.rate(step as u64) as f32;
        let result = trainer.step(&[batch(&text, step)], &how)?;
        losses.push(f64::from(result.loss.wait_f32()) / f64::from(result.count.wait_f32()));
        if result.skipped.wait_f32() != 0.0 {
            bail!("{}: step {step} was skipped: loss or gradient were not finite", run.name);
        }
    }
    let last = &losses[losses.len() - LAST..];
    Ok(last.iter().sum::<f64>() / LAST as f64)
}

/// Runs the benchmark.
pub fn run(args: &Formats) -> Result<()> {
    if args.steps < LAST {
        bail!("--steps {}: the loss is the mean of the last {LAST} steps", args.steps);
    }
    let bf16 = |name: &str| Run { gemm: GemmName::Bf16, dtype: DType::Bf16, name: name.into() };
    let mut runs = vec![bf16("bf16"), Run { dtype: DType::F32, ..bf16("f32") }];
    let narrow = GemmName::ALL.iter().filter(|gemm| **gemm != GemmName::Bf16);
    runs.extend(narrow.map(|gemm| Run { gemm: *gemm, ..bf16(gemm.name()) }));
    let mut reference: Option<Vec<f64>> = None;
    for run in runs {
        let watch = Watch::begin();
        let losses = STARTS.iter().map(|start| train(args, &run, *start)).collect::<Result<Vec<f64>>>()?;
        let seconds = watch.seconds();
        let reference = reference.get_or_insert_with(|| losses.clone());
        let differences: Vec<f64> = losses.iter().zip(&*reference).map(|(loss, of)| loss - of).collect();
        let (loss, _) = mean(&losses);
        let (difference, error) = mean(&differences);
        let tokens = (STARTS.len() * args.steps * DOCUMENTS * DOCUMENT) as f64;
        let rounded = |x: f64| (x * 1e4).round() / 1e4;
        Row::new("formats")
            .with("gemm", run.name)
            .with("steps", args.steps)
            .with("loss", rounded(loss))
            .with("difference", rounded(difference))
            .with("standard_error", rounded(error))
            .figure("percent", 100.0 * difference / mean(reference).0)
            .figure("tokens_per_s", tokens / seconds)
            .print(watch.loaded());
    }
    Ok(())
}

/// The mean, and its standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) / count).sqrt())
}
