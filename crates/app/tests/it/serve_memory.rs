//! A server with exactly the planned memory answers requests as long as the context; with less, it reports at its start
//! what it needs.

use std::path::Path;

use fathom_app::serve::{Order, Sizes, settings, sizes};
use fathom_app::{Silent, in_full, train};
use fathom_base::human;
use fathom_tensor::PageFormat;
use fathom_train::recipe::Precision;
use serde_json::{Value, json};

use crate::serve_mesh::{asked, order};

const CONTEXT: usize = 700;

/// Returns the options of a server of a run with this memory and these keys.
fn served(run: &Path, keys: &[&str], memory_bytes: u64) -> Order {
    let keys = keys.iter().map(ToString::to_string);
    let keys: Vec<String> = keys.chain([format!("serve.context_tokens={CONTEXT}")]).collect();
    let settings = settings(None, &keys).unwrap();
    Order { settings, memory_bytes: Some(memory_bytes), ..order(run, 1, 1) }
}

fn planned(order: &Order) -> Sizes {
    sizes(order, &Silent).unwrap().remove(0).1
}

/// Requests of maximum length: as many prompts as are served at once, and one with log-probabilities of its prompt.
fn longest(sequences: usize) -> [Value; 2] {
    let prompt = |of: usize| (0..CONTEXT - 40).map(|at| (at * 7 + of) % 250).collect::<Vec<usize>>();
    let prompts: Vec<Vec<usize>> = (0..sequences).map(prompt).collect();
    let ask = |prompt: Value, more: &[(&str, Value)]| {
        let mut body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
        more.iter().for_each(|(key, value)| body[key] = value.clone());
        body
    };
    [ask(json!(prompts), &[]), ask(json!(prompts[0]), &[("echo", json!(true)), ("logprobs", json!(3))])]
}

#[test]
fn a_server_runs_in_the_memory_that_its_plan_says() {
    let folder = tempfile::tempdir().unwrap();
    // Sizes for which logits are a large part of a step's memory.
    let keys = [
        "eval.enabled=false",
        "model.precision=f32",
        "model.hidden=32",
        "model.heads=1",
        "model.ffn=32",
        "stage.2.seq_tokens=768",
    ];
    train(&crate::small(folder.path(), &keys), &train::Order::default(), &Silent).unwrap();
    let run = folder.path().join("run");
    let draft = format!("serve.draft={}", run.display());
    let (f32, bf16, plain) = (Precision::F32, Precision::Bf16, PageFormat::Plain);
    for (precision, kv, sequences, keys) in [
        (f32, plain, 1, &["serve.draft_tokens=0"][..]),
        (bf16, plain, 1, &["serve.draft_tokens=0"]),
        (f32, PageFormat::Int8, 1, &["serve.draft_tokens=0"]),
        (bf16, PageFormat::Int4, 3, &["serve.chunk_tokens=100"]),
        (f32, plain, 3, &["serve.draft_tokens=8"]),
        (f32, plain, 1, &[&draft]),
        (bf16, PageFormat::Int8, 4, &[&draft, "serve.chunk_tokens=64"]),
    ] {
        let sequences_key = format!("serve.sequences={sequences}");
        let keys = [keys, &[&sequences_key]].concat();
        let with =
            |memory_bytes: u64| Order { precision: Some(precision), kv, ..served(&run, &keys, memory_bytes) };
        let what = format!("{precision:?}, {kv:?}, {keys:?}");
        let much = with(64 << 20);
        let plan = planned(&much);
        assert_eq!(plan.limits.context_tokens, CONTEXT, "{what}");
        let exact = with(plan.bytes());
        assert_eq!(
            (planned(&exact).capacity, planned(&exact).bytes()),
            (plan.capacity.clone(), plan.bytes()),
            "{what}"
        );
        let bodies = longest(sequences);
        assert_eq!(asked(&exact, &bodies).0, asked(&much, &bodies).0, "{what}");

        // Less memory than the pages of one context; less than the weights.
        let refused = |memory_bytes: u64| in_full(&sizes(&with(memory_bytes), &Silent).unwrap_err());
        let said =
            refused(plan.bytes() - plan.pages_bytes * (2 * sequences as u64 - 1) / (2 * sequences as u64));
        assert!(said.contains("and not of 700"), "{what}: {said}");
        if sequences == 1 {
            assert!(
                said.contains(&format!("{} with all else", human::bytes(plan.bytes()))),
                "{what}: {said}"
            );
        }
        let said = refused(plan.weights_bytes / 2);
        assert!(said.contains("--memory"), "{what}: {said}");
    }
}
