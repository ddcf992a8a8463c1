//! Shipped recipes: listed, shown, copied, planned.

use crate::{arg, good, refused, rows};

const SIZES: [&str; 3] = ["llama3-1b", "llama3-8b", "llama3-70b"];
const STAGES: [&str; 4] = ["16k", "64k", "128k", "1m"];

/// All names that the issue promises.
fn names() -> Vec<String> {
    let stages = |size: &str| STAGES.map(|stage| format!("{size}-{stage}")).to_vec();
    let sizes = SIZES.into_iter().flat_map(|size| [vec![size.to_string()], stages(size)].concat());
    ["quickstart".to_string()].into_iter().chain(sizes).collect()
}

#[test]
fn all_are_listed_with_a_line_about_them() {
    let out = good(["recipes", "ls"]);
    for name in names() {
        let line = out.lines().find(|line| line.split_whitespace().next() == Some(&name));
        assert!(line.is_some_and(|line| line.len() > name.len() + 10), "{name}: {out}");
    }
}

#[test]
fn those_to_start_with_come_first() {
    let out = good(["recipes", "ls"]);
    assert!(out.starts_with("Start here\n  quickstart "), "{out}");
}

#[test]
fn shown_with_settings_over_them() {
    let out = good(["recipes", "show", "quickstart", "optimizer.lr=0.125"]);
    assert!(out.contains("lr = 0.125"), "{out}");
    refused(["recipes", "show", "quickstrat"], &["quickstart"]);
}

#[test]
fn a_copy_is_a_recipe_and_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    good(["recipes", "cp", "llama3-1b", arg(&file)]);
    let [named, copied] = ["llama3-1b", arg(&file)].map(|recipe| good(["plan", recipe, "--json"]));
    assert_eq!(named, copied);
    refused(["recipes", "cp", "llama3-1b", arg(&file)], &["mine.toml", "exists"]);
}

#[test]
fn every_one_is_planned() {
    let all = good(["recipes", "ls"]);
    let (trained, _) = all.split_once("\nCuration ").unwrap();
    let names = trained.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    // These need a model to start from.
    let started = [
        "extend",
        "sft",
        "lora",
        "qlora",
        "distill",
        "dora",
        "continue",
        "dpo",
        "kto",
        "orpo",
        "simpo",
        "steerlm2",
        "rpo",
        "spin",
        "rlaif",
        "steerlm",
        "reward",
        "grpo",
        "dapo",
        "rloo",
        "reinforce",
        "ppo",
        "rejection",
        "mlm",
        "embed",
        "rerank",
        "classify",
        "t5",
    ];
    for name in names.filter(|name| !started.contains(name)) {
        let stages = rows(&good(["plan", name, "--json"]));
        assert!(!stages.is_empty(), "{name}");
        for stage in stages {
            let bytes = |key: &str| stage[key].as_u64().unwrap_or_else(|| panic!("{name}: {key} of {stage}"));
            let sum: u64 =
                stage["by_category"].as_object().unwrap().values().filter_map(|v| v.as_u64()).sum();
            assert_eq!(bytes("peak_bytes"), sum, "{name}");
            assert!(bytes("peak_reserved_bytes") >= bytes("peak_bytes"), "{name}");
            // The largest exceed 64 bits.
            let flops = |key: &str| stage[key].as_f64().unwrap_or_else(|| panic!("{name}: {key} of {stage}"));
            assert!(flops("hardware_flops") >= flops("model_flops") && flops("model_flops") > 0.0, "{name}");
        }
    }
}

#[test]
fn a_plan_for_people_names_the_categories() {
    let out = good(["plan", "quickstart"]);
    for word in ["pretrain", "extend", "params", "grads", "optimizer", "activations", "peak", "reserved"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    refused(["train", "quickstart", "--machine", "meta"], &["--machine", "auto, cpu, cuda"]);
    refused(["train", "quickstart", "machine.kind=meta"], &["`machine.kind`", "`fathom plan`"]);
}

#[test]
fn activations_have_names_and_places() {
    let list = rows(&good(["inspect", "activations", "llama3-8b-128k", "--json"]));
    let find =
        |name: &str| list.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    let out = find("attn.out");
    assert_eq!(out["shape"], serde_json::json!([131_072, 4096]));
    assert_eq!(out["bytes"], 131_072u64 * 4096 * 2);
    assert_eq!((out["place"].as_str(), out["held"].as_bool()), (Some("keep"), Some(true)));
    assert_eq!(out["layers"].as_array().map(Vec::len), Some(32));
    assert_eq!(find("mlp.act")["place"], "recompute");
    let table = good(["inspect", "activations", "llama3-8b-128k"]);
    assert!(table.contains("layers 0 to 31") && table.contains("attn.lse"), "{table}");
    // A rank of a mesh has a part of the tokens, the heads and the rows between sub-layers.
    let mesh = ["inspect", "activations", "llama3-8b-128k", "mesh.tp=8", "mesh.cp=4", "mesh.pp=2"];
    let list = rows(&good([&mesh[..], &["--json"]].concat()));
    let shape = |name: &str| list.iter().find(|row| row["name"] == name).unwrap()["shape"].clone();
    assert_eq!(shape("attn.out"), serde_json::json!([131_072 / 4, 4096 / 8]));
    assert_eq!(shape("block.in"), serde_json::json!([131_072 / 4 / 8, 4096]));
    let table = good(mesh);
    assert!(table.contains("what one of 64 ranks has of each layer (pp=2 dp=1 cp=4 tp=8)"), "{table}");
    assert!(table.contains("layers 0 to 31"), "{table}");
}

#[test]
fn a_reader_may_leave() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = crate::program();
    let output = command.args(["recipes", "ls"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), crate::text(&output.stderr)), (Some(141), String::new()));
}
