//! Experts from a recipe: the loss falls, and loads are balanced.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{AdamWSettings, Places};
use fathom_model::{Caps, Family, Init, Model, initialise};
use fathom_tensor::{DType, Device};
use fathom_train::recipe::{FamilyName, Recipe};
use fathom_train::{InStep, MicroBatch, Trainer, new_model, train_experts};

const TOKENS: usize = 512;
const STEPS: usize = 40;
const EXPERTS: usize = 8;

fn recipe(family: FamilyName) -> Recipe {
    let mut recipe = Recipe::default();
    let model = &mut recipe.model;
    (model.family, model.hidden, model.layers, model.heads, model.kv_heads) = (family, 48, 2, 4, 4);
    (model.head_dim, model.ffn, model.vocab, model.tied) = (16, 32, 64, false);
    (model.rope_dim, model.kv_latent) = (8, 24);
    (recipe.moe.experts, recipe.moe.top_k) = (EXPERTS, 2);
    recipe
}

/// Texts that follow a rule, with unequal token frequencies.
fn micro(step: usize) -> MicroBatch {
    let ids: Vec<i32> = (0..=TOKENS).map(|at| ((at + 3 * step) * (at % 7 + 1) % 61) as i32 / 2).collect();
    let (labels, positions) = (ids[1..].to_vec(), (0..TOKENS as i32).collect());
    MicroBatch {
        ids: ids[..TOKENS].to_vec(),
        labels,
        positions,
        docs: std::iter::once(0..TOKENS).collect(),
        ..MicroBatch::default()
    }
}

/// First and last loss, and the busiest expert's load relative to the mean, over the last ten steps.
fn train(recipe: &Recipe) -> (f32, f32, f32) {
    let mut spec = new_model(recipe).unwrap();
    train_experts(recipe, &mut spec).unwrap();
    Family::write(std::path::Path::new("config.json"), &spec).unwrap();
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 28);
    let (model, mut params) = Model::declare(&device, &spec, DType::F32);
    initialise(&device, &model, &mut params, Init { deviation: 0.1, seed: 3 });
    let mut trainer = Trainer::new(&device, model, params);
    let how = InStep {
        adamw: AdamWSettings { lr: 3e-3, ..AdamWSettings::default() },
        ..InStep::plain(Places::linear().with_tiles(Some(128)), Caps { docs: 1, seq_tokens: TOKENS })
    };
    let (mut losses, mut worst) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let result = trainer.step(&[micro(step)], &how).unwrap();
        losses.push(result.loss.wait_f32() / result.count.wait_f32());
        let bytes = result.loads.unwrap().wait();
        let loads: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        // Every token is routed once, regardless of recompute.
        for layer in loads.chunks(EXPERTS).skip(recipe.moe.dense_layers) {
            assert_eq!(layer.iter().sum::<f32>(), (2 * TOKENS) as f32);
            worst.push(layer.iter().copied().fold(0.0, f32::max) * EXPERTS as f32 / (2 * TOKENS) as f32);
        }
    }
    let last = &worst[worst.len() - 10..];
    (losses[0], losses[STEPS - 1], last.iter().sum::<f32>() / last.len() as f32)
}

#[test]
fn losses_fall_and_loads_get_even() {
    for family in [FamilyName::Mixtral, FamilyName::Qwen3Moe, FamilyName::DeepseekV3] {
        let plain = recipe(family);
        let (first, last, uneven) = train(&plain);
        assert!(first - last > 1.0, "{family:?}: {first} {last}");
        let mut balanced = plain;
        if family == FamilyName::DeepseekV3 {
            (balanced.moe.bias_update_rate, balanced.moe.shared, balanced.moe.dense_layers) = (0.02, 1, 1);
        } else {
            (balanced.moe.aux_loss, balanced.moe.z_loss) = (0.05, 1e-4);
        }
        let (first, last, even) = train(&balanced);
        assert!(first - last > 1.0, "{family:?}: {first} {last}");
        assert!(
            even < uneven && even < 1.7,
            "{family:?}: busiest expert {even} of the mean, {uneven} without"
        );
    }
}

#[test]
fn keys_that_do_nothing_are_refused() {
    let refuse = |recipe: &Recipe, key: &str| {
        let made = new_model(recipe).and_then(|mut spec| train_experts(recipe, &mut spec));
        let message = made.unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    };
    let with = |family, change: fn(&mut Recipe)| {
        let mut recipe = recipe(family);
        change(&mut recipe);
        recipe
    };
    refuse(&with(FamilyName::Llama, |recipe| recipe.moe.aux_loss = 0.1), "moe.aux_loss");
    refuse(&with(FamilyName::Mixtral, |recipe| recipe.moe.bias_update_rate = 1e-3), "moe.bias_update_rate");
    refuse(&with(FamilyName::Mixtral, |recipe| recipe.moe.top_k = 9), "moe.top_k");
    refuse(&with(FamilyName::Qwen3Moe, |recipe| recipe.moe.shared = 1), "moe.shared");
    refuse(
        &with(FamilyName::Mixtral, |recipe| recipe.moe.capacity_factor = Some(0.0)),
        "moe.capacity_factor",
    );
    refuse(&with(FamilyName::DeepseekV3, |recipe| recipe.model.rope_dim = 10), "model.rope_dim");
}
