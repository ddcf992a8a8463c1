//! Published figures of activation memory, from the program itself.

use fathom_grad::{OnDisk, Place, Places};
use fathom_model::{Caps, MODULES, Spec};
use fathom_tensor::{Category, DType, Profile, gpu};
use fathom_train::activations::activations;
use fathom_train::{InStep, Plan, plan};

use crate::plan::llama_8b;

const TOKENS: usize = 4096;

/// Bytes per token held from the forward to the backward pass, in one block and in all.
fn held(spec: &Spec, places: &Places) -> (f64, f64) {
    let segments = activations(&Profile::portable(1), spec, DType::Bf16, places, TOKENS);
    let blocks = segments.iter().filter(|segment| segment.layers[0] >= 0);
    let all: Vec<(u64, u64)> = blocks
        .map(|segment| (segment.layers.len() as u64, segment.sum(|activation| activation.held)))
        .collect();
    let sum: u64 = all.iter().map(|(layers, bytes)| layers * bytes).sum();
    (all[0].1 as f64 / TOKENS as f64, sum as f64 / TOKENS as f64)
}

fn close(found: f64, published: f64, share: f64) {
    assert!((found / published - 1.0).abs() <= share, "{found} is not {published} within {share}");
}

/// A block of RMSNorm, grouped queries, SwiGLU and flash attention in bf16 keeps `8h + 4q + 4k + 6f + 4a` bytes per
/// token: Korthikanti et al. (arXiv 2205.05198), section 4, counted for these operations. Llama 3 8B: 136.1 KiB.
#[test]
fn llama_3_8b_keeps_136_kib_per_token_and_layer() {
    let (block, _) = held(&llama_8b(32, 8192), &Places::none());
    // This program also keeps two f32 reciprocals of norms.
    close(block - 8.0, (8 * 4096 + 4 * 4096 + 4 * 1024 + 6 * 14336 + 4 * 32) as f64, 0.0);
    close(block / 1024.0, 136.1, 1e-3);
}

/// Full recompute keeps `2sbh` per layer (the same paper, table 2): 256 KiB per token in Llama 3 8B's 32 layers. ALST
/// (arXiv 2506.13996) has the same sum: 15 million tokens take 3.75 TiB of host memory.
#[test]
fn inputs_of_all_layers_take_256_kib_per_token() {
    let (_, all) = held(&llama_8b(32, 8192), &Places::full());
    close(all, 256.0 * 1024.0, 0.0);
    close(15.0 * (1 << 20) as f64 * all, 3.75 * 2f64.powi(40), 0.0);
}

/// Korthikanti et al., table 2, "selective": `34 sbh` with flash attention, of which `2 sbh` are dropout masks, absent
/// here. GELU, as many key heads as query heads, an MLP of 4h.
#[test]
fn a_gpt_block_keeps_34_sbh_less_its_dropout_masks() {
    let h = 4096;
    let mut spec = llama_8b(32, 8192);
    (spec.kv_heads, spec.ffn, spec.mlp.gated) = (32, 4 * h, false);
    let (block, _) = held(&spec, &Places::none());
    // This program also keeps the log-sum-exp of each head and the norms' reciprocals.
    close(block - 4.0 * 32.0 - 8.0, 32.0 * h as f64, 0.0);
    // Recompute drops attention's output and log-sum-exp, and keeps q, k and v for it.
    let selective = Places::selective(&["core_attn".to_string()], MODULES).unwrap();
    close(held(&spec, &selective).0 - 8.0, 30.0 * h as f64, 0.0);
}

/// ALST on one H200 (ArcticTraining, `projects/sequence-parallelism`): Llama 3.1 8B with parameters, gradients and
/// optimizer on the host. Here gradients stay on the device, so they and the weights being updated are subtracted from
/// the plan.
fn rung(tokens: usize, offload: bool, tile_rows: Option<usize>) -> Plan {
    let places = if offload { Places::full().offload_all(Place::Disk) } else { Places::full() };
    let places = places.with_tiles(tile_rows);
    let how = InStep {
        on_disk: OnDisk { weights: true, optimizer: true, ..OnDisk::default() },
        ..InStep::plain(places, Caps { docs: 1, seq_tokens: tokens })
    };
    plan(&gpu::named("h200").unwrap(), &llama_8b(32, tokens), DType::Bf16, &how, 1, tokens).unwrap()
}

fn without_state(plan: &Plan) -> f64 {
    let state = [Category::Params, Category::Grads].map(|category| plan.usage.peak_by_category[category]);
    (plan.usage.peak_live - state.iter().sum::<u64>()) as f64 * 1e-9
}

/// The first rung (65K, 137 GB) consists of the logits of a whole sequence, which this program never materialises.
#[test]
fn the_rungs_of_a_single_h200() {
    let fused_loss = rung(300_000, false, None);
    let inputs_offloaded = rung(650_000, true, None);
    close(without_state(&fused_loss), 135.0, 0.1);
    close(without_state(&inputs_offloaded), 126.8, 0.1);
    // Their last rung tiles only the MLP; here projections and norms are tiled too, and the gradients, which they
    // offload, fit as well.
    let tiled = rung(1_200_000, true, Some(4096));
    assert!(without_state(&tiled) < 136.2 && tiled.usage.peak_live as f64 * 1e-9 < 136.2);
}
