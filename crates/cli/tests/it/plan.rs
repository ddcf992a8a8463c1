//! Output of `fathom plan`.

use std::fs;

use serde_json::{Value, json};

use crate::{arg, golden, good, refused, rows};

fn planned(args: &[&str]) -> Value {
    rows(&good(["plan", "--json"].iter().chain(args))).remove(0)
}

#[test]
fn a_folder_with_a_configuration_alone_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::copy(golden("llama2").join("config.json"), model.join("config.json")).unwrap();
    let from = format!("model.from={}", arg(&model));
    for recipe in ["sft", "lora", "dpo", "grpo", "extend"] {
        let more: &[&str] = match recipe {
            "extend" => &["stages=256"],
            "grpo" => &["stage.0.seq_tokens=64", "rl.max_answer_tokens=16"],
            _ => &["stage.0.seq_tokens=64"],
        };
        // With much memory, finding a tiny model's longest sequence takes long.
        let row = planned(&[&[recipe, from.as_str(), "--memory", "8MiB"][..], more].concat());
        assert!(row["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{recipe}: {row}");
    }
    let short = ["plan", "grpo", from.as_str(), "stage.0.seq_tokens=64", "rl.max_answer_tokens=64"];
    refused(short, &["stage.0.seq_tokens", "a prompt and its answer of rl.max_answer_tokens=64"]);
    // A missing file is named.
    refused(["plan", "sft", "model.from=org/model"], &["a plan needs its config.json alone"]);
}

#[test]
fn a_run_whose_checkpoints_the_disk_has_no_room_for_is_refused_before_its_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("text")).unwrap();
    fs::write(at("text/a.txt"), "a river carries the old light under every bridge slowly\n".repeat(99))
        .unwrap();
    let (out, paths) = (format!("run.out={}", arg(&at("run"))), format!("data.paths={}", arg(&at("text"))));
    let large = [
        "model.hidden=16384",
        "model.layers=256",
        "model.ffn=65536",
        "model.heads=128",
        "model.kv_heads=128",
        "model.head_dim=128",
        "machine.memory_bytes=52776558133248",
        "run.minutes=1",
        "eval.enabled=false",
    ];
    let args = ["train", "quickstart", out.as_str(), paths.as_str()];
    refused(args.iter().chain(&large).copied(), &["writes at least", "a checkpoint", "are free", "run.out"]);
    assert!(!at("run/data").exists(), "refused before text is read");
    let row = planned(&[&["quickstart"][..], &large].concat());
    let [checkpoint, stored] = ["checkpoint_bytes", "stored_bytes"].map(|key| row[key].as_u64().unwrap());
    assert!(checkpoint > 1 << 42 && stored > 4 * checkpoint, "{row}");
}

/// A billion parameters under AdamW in 23 GiB. The weights on the disk next to the optimizer leave less of its 32 GiB to activations.
#[test]
fn the_longest_sequence_is_found_under_other_places_too() {
    let row = planned(&[
        "llama3-1b",
        "stage.0.seq_tokens=2048",
        "stage.0.micro_batches=1",
        "machine.profile=h100",
        "machine.disk_bytes=32GiB",
        "--memory",
        "23GiB",
        "--solve",
        "max-tokens",
    ]);
    let [own, auto] = ["max_tokens", "max_tokens_auto"].map(|key| row[key].as_u64().unwrap());
    let [offloaded] = &row["max_tokens_offloaded"].as_array().unwrap()[..] else { panic!("{row}") };
    assert_eq!(offloaded["settings"], "machine.offload_optimizer=true");
    assert!(4 * own < auto && 4 * auto < offloaded["max_tokens"].as_u64().unwrap(), "{row}");
}

/// Two of the 32 layers of an 8B model in four bits at 16K, in a little less than they need.
#[test]
fn the_cheapest_change_that_fits_is_named_next_to_the_one_that_lowers_the_peak_most() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 131_072,
        "rope_theta": 5e5,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let row = planned(&[
        "qlora",
        &format!("model.from={}", arg(folder.path())),
        "stage.0.seq_tokens=16k",
        "stage.0.micro_batches=1",
        "machine.profile=h100",
        "machine.disk_bytes=64GiB",
        "--memory",
        "3.6GiB",
        "--why",
    ]);
    let why = &row["why"];
    assert_eq!(
        (&row["fits"], &why["fastest_edit"]),
        (&json!(false), &json!("activations.memory=auto")),
        "{row}"
    );
    assert_eq!(why["edit"], "activations.offload_modules=[\"all\"]");
    let [lowest, fastest] = ["edit_step_s", "fastest_edit_step_s"].map(|key| why[key].as_f64().unwrap());
    assert!(fastest < 0.7 * lowest, "{why}");
    assert!(why["fastest_edit_peak_bytes"].as_u64() < row["memory_bytes"].as_u64(), "{why}");
}

/// A billion parameters on two ranks of one node: the optimizer does not fit into their memory.
#[test]
fn a_mesh_is_not_proposed_for_a_node_that_lacks_memory_or_disk_for_it() {
    let args = |disk: &'static str, gpus: &'static str| {
        let model = ["llama3-1b", "stage.0.seq_tokens=4k", "stage.0.micro_batches=8", "--memory", "9GiB"];
        let node = ["machine.profile=dgx-h100", "machine.host_bytes=0", disk, "--solve", "mesh"];
        [&model[..], &node, &["--gpus", gpus]].concat()
    };
    let of_node = |disk: &'static str| -> Vec<u64> {
        let row = planned(&args(disk, "2"));
        let best = row["best"].as_array().unwrap();
        best.iter().map(|mesh| mesh["disk_bytes_per_node"].as_u64().unwrap()).collect()
    };
    // Context parallel ranks need 13.8 GiB of the node's disk, a pipeline 16.7 GiB.
    assert_eq!(of_node("machine.disk_bytes=20GiB").len(), 2);
    let narrow = of_node("machine.disk_bytes=15GiB");
    assert!(narrow.len() == 1 && narrow[0] > 13 << 30 && narrow[0] <= 15 << 30, "{narrow:?}");
    assert_eq!(of_node("machine.disk_bytes=0"), [0]);
    let none = args("machine.disk_bytes=0", "1");
    refused(["plan"].iter().chain(&none).copied(), &["none fits into 9.00 GiB a rank"]);
}
