//! Plans on the machine without data.

use std::time::Instant;

use fathom_cpu::isa::Isa;
use fathom_grad::{Place, Places};
use fathom_model::{Caps, LlamaSizes, Spec};
use fathom_tensor::{Category, DType, Profile, gpu};
use fathom_train::{InStep, Plan, plan};

/// Llama 3 8B with some of its layers.
pub fn llama_8b(layers: usize, max_positions: usize) -> Spec {
    Spec::llama(LlamaSizes {
        hidden: 4096,
        layers,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 14336,
        vocab: 128_256,
        rope_theta: 5e5,
        max_positions,
        tied: false,
    })
}

fn planned(places: Places, layers: usize, tokens: usize) -> Plan {
    planned_on(&Profile::portable(2), places, layers, tokens)
}

/// All machines with data sheets, whatever this test runs on.
fn profiles() -> Vec<Profile> {
    let processors = Isa::ALL.map(|isa| fathom_cpu::profile(2, isa));
    let graphics = gpu::NAMES.map(|name| gpu::named(name).unwrap());
    std::iter::once(Profile::portable(2)).chain(processors).chain(graphics).collect()
}

fn planned_on(profile: &Profile, places: Places, layers: usize, tokens: usize) -> Plan {
    let how = InStep {
        on_disk: fathom_grad::OnDisk::default(),
        ..InStep::plain(places, Caps { docs: 16, seq_tokens: tokens })
    };
    plan(profile, &llama_8b(layers, 8192), DType::Bf16, &how, 1, tokens).unwrap()
}

#[test]
fn recompute_and_tiles_lower_the_peak_and_leave_the_model_flops() {
    for profile in profiles() {
        lowers_the_peak(&profile);
    }
}

fn lowers_the_peak(profile: &Profile) {
    let activations = |plan: &Plan| plan.usage.peak_live;
    let planned = |places| planned_on(profile, places, 8, 16 << 10);
    let [none, linear, full] = [Places::none(), Places::linear(), Places::full()].map(planned);
    let tiled = planned(Places::linear().with_tiles(Some(1024)));
    assert!(activations(&none) > activations(&linear));
    assert!(activations(&linear) > activations(&full));
    assert!(activations(&linear) > activations(&tiled));
    for plan in [&linear, &full, &tiled] {
        assert_eq!(plan.model_flops, none.model_flops);
        assert!(plan.hardware_flops > none.hardware_flops);
    }
    assert!(none.replayed == 0 && linear.replayed < full.replayed);
    // With attention outputs kept, its forward pass is not replayed.
    let attention = 4 * (16u128 << 10) * ((16 << 10) + 1) / 2 * 4096 * 8;
    assert!(full.hardware_flops - linear.hardware_flops >= attention);
}

#[test]
fn an_80_layer_model_plans_quickly() {
    let start = Instant::now();
    let plan = planned(Places::linear().with_tiles(Some(4096)), 80, 1 << 20);
    println!("{:?} {:?}", start.elapsed(), plan);
    assert!(plan.usage.peak_live > 0);
}

/// Bytes at the peak in addition to weights, gradients and optimizer state, with everything on disk and tiles.
fn beyond_state(layers: usize, tokens: usize) -> u64 {
    let places = Places::linear().offload_all(Place::Disk);
    let plan = planned(places.with_tiles(Some(2048)).with_head_groups(8), layers, tokens);
    let state = [Category::Params, Category::Grads, Category::Optimizer];
    plan.usage.peak_live - state.map(|category| plan.usage.peak_by_category[category]).iter().sum::<u64>()
}

#[test]
fn a_spilled_step_is_as_large_as_one_block_s_attention() {
    let (two, eight) = (beyond_state(2, 1 << 20), beyond_state(8, 1 << 20));
    assert!(two.abs_diff(eight) * 100 < two, "2 layers {two}, 8 layers {eight}");
    assert_eq!(eight, beyond_state(80, 1 << 20));
    // q, k, v, o and their gradients, and the residual stream's: 2 (4096 + 2 x 1024 + 4096) x 2 + 2 x 4096 bytes per
    // token. In addition there are the statistics of attention, ids, labels, positions, losses, and f32 gradients of
    // one group of heads.
    let attention = 2 * 2 * (4096 + 2 * 1024 + 4096) + 2 * 4096;
    let growth = (beyond_state(8, 1 << 20) - beyond_state(8, 128 << 10)) as f64 / (7 << 17) as f64;
    assert!(
        growth >= attention as f64 && growth < 1.1 * attention as f64,
        "{growth} bytes a token, {attention}"
    );
}
