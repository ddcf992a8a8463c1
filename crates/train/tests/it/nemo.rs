//! Published throughput over lengths and meshes, from plans.

use fathom_model::{LlamaSizes, Spec};
use fathom_tensor::{Profile, gpu};
use fathom_train::recipe::{MeshTable, Recipe, Stage};
use fathom_train::{Budgets, Draft, MeshPlan};

/// Llama 2 7B: every head has its own keys.
fn llama2_7b(max_positions: usize) -> Spec {
    Spec::llama(LlamaSizes {
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        ffn: 11008,
        vocab: 32_000,
        rope_theta: 1e4,
        max_positions,
        tied: false,
    })
}

/// A row of NVIDIA's table: thousands of tokens, sequences per step, TFLOP/s per GPU with context parallelism, and tp,
/// pp, dp, cp.
type PublishedRow = (usize, usize, f64, [usize; 4]);

/// NeMo 2, docs/source/performance/performance_long_sequence.md: Llama 2 7B in FP8 on H100, with as many GPUs as
/// thousands of tokens.
const TABLE: [PublishedRow; 8] = [
    (8, 512, 730.0, [1, 2, 4, 1]),
    (16, 256, 660.0, [2, 1, 8, 1]),
    (32, 128, 610.0, [2, 1, 8, 2]),
    (64, 64, 574.0, [4, 1, 8, 2]),
    (128, 32, 555.0, [4, 1, 8, 4]),
    (256, 16, 549.0, [4, 1, 8, 8]),
    (512, 8, 549.0, [8, 1, 4, 16]),
    (1024, 4, 536.0, [8, 1, 4, 32]),
];

fn planned(profile: &Profile, (thousands, sequences, _, [tp, pp, dp, cp]): PublishedRow) -> MeshPlan {
    let seq_tokens = thousands << 10;
    let spec = llama2_7b(seq_tokens);
    let stage = Stage { seq_tokens, micro_batches: sequences, ..Stage::default() };
    let mesh = MeshTable { tp, pp, dp, cp, ..MeshTable::default() };
    let recipe = Recipe { stage: vec![stage], mesh, ..Recipe::default() };
    let budgets = Budgets { memory: 80 << 30, host: 0, disk: 0 };
    Draft { profile, spec: &spec, recipe, index: 0, budgets, rank: 0 }.mesh().unwrap()
}

/// One profile, with two rates fitted to the first two rows, predicts the others.
#[test]
fn nemo_s_context_parallel_table_is_predicted() {
    let profile = gpu::named("dgx-h100-fp8").unwrap();
    for row in TABLE {
        let (thousands, _, published, [tp, pp, dp, cp]) = row;
        let plan = planned(&profile, row);
        let found = plan.flops_per_s().unwrap() / 1e12;
        let waits: f64 = plan.kinds[0].plan.waits.values().sum();
        let peak = plan.most().unwrap().plan.usage.peak_reserved;
        println!(
            "{thousands}K tp={tp} pp={pp} dp={dp} cp={cp}: {found:.0} of {published} ({:+.1} %), waits {:.1} %, {:.1} GiB",
            (found / published - 1.0) * 100.0,
            waits / plan.step_s().unwrap() * 100.0,
            peak as f64 / (1u64 << 30) as f64
        );
        let bound = if thousands <= 16 { 0.02 } else { 0.2 };
        assert!(
            (found / published - 1.0).abs() <= bound,
            "{thousands}K: {found} TFLOP/s, {published} published"
        );
        assert!(peak <= 80 << 30, "{thousands}K: {peak} bytes");
    }
}
