//! Plans on the machine without data.

use std::time::Instant;

use fathom_grad::{AdamWSettings, Places};
use fathom_model::{Caps, LlamaSizes, Spec};
use fathom_tensor::{DType, Profile};
use fathom_train::{InStep, Plan, plan};

fn spec(layers: usize) -> Spec {
    Spec::llama(LlamaSizes {
        hidden: 4096,
        layers,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 14336,
        vocab: 128_256,
        rope_theta: 5e5,
        max_positions: 8192,
        tied: false,
    })
}

fn planned(places: Places, layers: usize, tokens: usize) -> Plan {
    let how = InStep {
        on_disk: fathom_grad::OnDisk::default(),
        places,
        caps: Caps { docs: 16, seq_tokens: tokens },
        z_loss: 0.0,
        adamw: AdamWSettings::default(),
    };
    plan(&Profile::portable(2), &spec(layers), DType::Bf16, &how, 1, tokens)
}

#[test]
fn recompute_and_tiles_lower_the_peak_and_leave_the_model_flops() {
    let activations = |plan: &Plan| plan.usage.peak_live;
    let none = planned(Places::none(), 8, 16 << 10);
    let linear = planned(Places::linear(), 8, 16 << 10);
    let full = planned(Places::full(), 8, 16 << 10);
    let tiled = planned(Places::linear().with_tiles(Some(1024)), 8, 16 << 10);
    assert!(activations(&none) > activations(&linear));
    assert!(activations(&linear) > activations(&full));
    assert!(activations(&linear) > activations(&tiled));
    for plan in [&linear, &full, &tiled] {
        assert_eq!(plan.model_flops, none.model_flops);
        assert!(plan.hardware_flops > none.hardware_flops);
    }
    assert!(none.replayed == 0 && linear.replayed < full.replayed);
    // With attention's results kept, its forward pass is not among the replays.
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
