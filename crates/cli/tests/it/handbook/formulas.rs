//! The handbook's formulas against the code.

use fathom_model::{LlamaSizes, RopeScaling, RopeSpec};
use fathom_train::RateSchedule;
use fathom_train::recipe::Decay;

use super::expression::{Values, evaluate};
use crate::{good, rows};

const THETA: f64 = 10_000.0;
const DIM: usize = 64;
const FIRST: usize = 2048;

/// Compares block `name` with the code in many cases.
pub fn check(at: &str, name: &str, body: &str) {
    match name {
        "frequency" | "linear" | "dynamic" | "yarn" | "llama3" | "longrope" => rope(at, name, body),
        "warmup" | "cosine" | "linear-decay" | "wsd" => rate(at, name, body),
        "flops" => flops(at, body),
        "memory" => memory(at, body),
        "kept" | "kept-linear" | "kept-full" => kept(at, name, body),
        "bits-per-byte" => bits(at, body),
        other => panic!("{at}: nothing to compare the formula {other:?} with"),
    }
}

fn values<const COUNT: usize>(given: [(&str, f64); COUNT]) -> Values {
    given.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Compares two values; `share` is the tolerance relative to the larger one.
#[track_caller]
fn close(at: &str, what: &str, [written, computed]: [f64; 2], share: f64) {
    let far = (written - computed).abs() > share * written.abs().max(computed.abs());
    assert!(!far, "{at}: {what}: the handbook's formula gives {written}, the code {computed}");
}

fn scaling(name: &str, factor: f64) -> RopeScaling {
    let original = Some(FIRST);
    match name {
        "linear" => RopeScaling::Linear { factor },
        "dynamic" => RopeScaling::Dynamic { factor },
        "yarn" => RopeScaling::yarn(factor, original),
        "llama3" => {
            RopeScaling::Llama3 { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original: FIRST }
        }
        "longrope" => RopeScaling::Longrope {
            short_factor: vec![1.0; DIM / 2],
            long_factor: (0..DIM / 2).map(|pair| 1.0 + pair as f64 / 3.0).collect(),
            original,
            attention_factor: None,
            factor: Some(factor),
        },
        _ => RopeScaling::Default,
    }
}

fn rope(at: &str, name: &str, body: &str) {
    for factor in [2.0, 8.0, 32.0] {
        for tokens in [FIRST + 1, 3 * FIRST, 32 * FIRST] {
            let (scaling, max_positions) = (scaling(name, factor), FIRST);
            let spec = RopeSpec { theta: THETA, rot_dim: DIM, interleaved: false, scaling, max_positions };
            let frequencies = spec.frequencies(tokens);
            for (pair, found) in frequencies.inv_freq.iter().enumerate() {
                let mut values = values([
                    ("theta", THETA),
                    ("d", DIM as f64),
                    ("i", pair as f64),
                    ("s", factor),
                    ("L", FIRST as f64),
                    ("n", tokens as f64),
                    ("divisor", 1.0 + pair as f64 / 3.0),
                ]);
                evaluate(body, &mut values);
                let frequency = values.get("g").or(values.get("f")).copied().unwrap();
                let what = format!("pair {pair}, factor {factor}, {tokens} tokens");
                close(at, &what, [frequency, f64::from(*found)], 1e-6);
                let m = values.get("m").copied().unwrap_or(1.0);
                close(at, &what, [m, f64::from(frequencies.factor)], 1e-6);
            }
        }
    }
}

fn rate(at: &str, name: &str, body: &str) {
    let decay = match name {
        "cosine" | "warmup" => Decay::Cosine,
        "linear-decay" => Decay::Linear,
        _ => Decay::Wsd,
    };
    let schedule = RateSchedule {
        decay,
        peak: 3e-4,
        final_share: 0.1,
        warmup_steps: 20,
        decay_share: 0.25,
        total_steps: 300,
    };
    let steps = if name == "warmup" { 0..20 } else { 20..300 };
    for step in steps {
        let mut values = values([
            ("step", step as f64),
            ("steps", 300.0),
            ("warmup", 20.0),
            ("peak", 3e-4),
            ("last", 0.1),
            ("decay", 0.25),
        ]);
        evaluate(body, &mut values);
        close(at, &format!("step {step}"), [values["rate"], schedule.rate(step)], 1e-12);
    }
}

const SIZES: LlamaSizes = LlamaSizes {
    hidden: 512,
    layers: 4,
    heads: 8,
    kv_heads: 4,
    head_dim: 64,
    ffn: 1408,
    vocab: 32_000,
    rope_theta: THETA,
    max_positions: FIRST,
    tied: false,
};

/// Elements of the matrices of one block.
fn block_matrices() -> usize {
    let (q, kv) = (SIZES.heads * SIZES.head_dim, SIZES.kv_heads * SIZES.head_dim);
    SIZES.hidden * (q + 2 * kv) + q * SIZES.hidden + 3 * SIZES.hidden * SIZES.ffn
}

/// JSON output of `verb` for a step with one sequence of these sizes.
fn ask<const COUNT: usize>(verb: [&str; COUNT], more: &[&str]) -> Vec<serde_json::Value> {
    let settings = [
        format!("model.hidden={}", SIZES.hidden),
        format!("model.layers={}", SIZES.layers),
        format!("model.heads={}", SIZES.heads),
        format!("model.kv_heads={}", SIZES.kv_heads),
        format!("model.head_dim={}", SIZES.head_dim),
        format!("model.ffn={}", SIZES.ffn),
        format!("model.vocab={}", SIZES.vocab),
        format!("stages={FIRST}"),
        "model.tied=false".to_string(),
        "stage.0.micro_batches=1".to_string(),
        "stage.0.samples_per_micro_batch=1".to_string(),
    ];
    let call = verb.iter().chain(&["llama3-1b", "--json"]).chain(more).map(|word| word.to_string());
    rows(&good(call.chain(settings)))
}

fn plan() -> serde_json::Value {
    ask(["plan"], &[]).swap_remove(0)
}

/// Bytes kept per token in a block.
fn kept(at: &str, name: &str, body: &str) {
    let preset = name.strip_prefix("kept-").unwrap_or("none");
    let setting = format!("activations.recompute_granularity={preset}");
    let held: u64 = ask(["inspect", "activations"], &[&setting])
        .iter()
        .filter(|row| row["layers"][0] == 0 && row["held"] == true)
        .map(|row| row["bytes"].as_u64().unwrap())
        .sum();
    let mut values = values([
        ("h", SIZES.hidden as f64),
        ("hq", (SIZES.heads * SIZES.head_dim) as f64),
        ("hkv", (SIZES.kv_heads * SIZES.head_dim) as f64),
        ("hf", SIZES.ffn as f64),
        ("a", SIZES.heads as f64),
    ]);
    evaluate(body, &mut values);
    close(at, preset, [values["A"] * FIRST as f64, held as f64], 0.0);
}

fn flops(at: &str, body: &str) {
    let matrices = SIZES.layers * block_matrices() + SIZES.vocab * SIZES.hidden;
    let columns = SIZES.layers * SIZES.heads * SIZES.head_dim;
    let mut values = values([("W", matrices as f64), ("n", FIRST as f64), ("q", columns as f64)]);
    evaluate(body, &mut values);
    close(at, "a step", [values["flops"], plan()["model_flops"].as_f64().unwrap()], 0.0);
}

fn memory(at: &str, body: &str) {
    let norms = (2 * SIZES.layers + 1) * SIZES.hidden;
    let embedding = SIZES.vocab * SIZES.hidden;
    let count = SIZES.layers * block_matrices() + 2 * embedding + norms;
    let mut values = values([("N", count as f64)]);
    evaluate(body, &mut values);
    let plan = plan();
    for category in ["params", "grads", "optimizer"] {
        // Norms are allocated in whole granules.
        let planned = plan["by_category"][category].as_f64().unwrap();
        close(at, category, [values[category], planned], 2e-3);
    }
}

fn bits(at: &str, body: &str) {
    // A loss of ln 2 per byte is one bit.
    let mut values = values([("losses", 64.0 * 2f64.ln()), ("bytes", 64.0)]);
    evaluate(body, &mut values);
    close(at, "64 bytes", [values["bits"], 1.0], 1e-12);
}
