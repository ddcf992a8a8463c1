//! Conversion between Hugging Face folders, and the self-test.

use std::fs;
use std::path::Path;

use crate::run::{TINY, write_text};
use crate::{arg, fathom, golden, good, refused, text};

#[test]
fn import_and_export_keep_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let ids = "5,17,3,99,42,7";
    for case in ["llama2_sharded", "gpt2", "gemma3", "phi3"] {
        let (one, two) = (folder.path().join(format!("{case}-1")), folder.path().join(format!("{case}-2")));
        good(["import", arg(&golden(case)), arg(&one)]);
        good(["export", arg(&one), arg(&two), "--max-shard-bytes", "30000"]);
        assert!(two.join("model.safetensors.index.json").is_file(), "{case}");
        let ids = if case == "llama2_sharded" { "5,17,3,9" } else { ids };
        let ids: Vec<String> =
            ids.split(',').map(|id| (id.parse::<u32>().unwrap() % 90).to_string()).collect();
        let [a, b, c] = [&golden(case), &one, &two]
            .map(|model| good(["inspect", "logits", arg(model), "--ids", &ids.join(",")]));
        assert_eq!(a, b, "{case}");
        assert_eq!(a, c, "{case}");
    }
}

#[test]
fn the_text_part_of_a_multimodal_model_is_read_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("text");
    let said = text(&fathom(["import", arg(&golden("gemma3_multimodal")), arg(&out)]).stderr);
    assert!(
        said.contains("text part (gemma3_text) of a gemma3 model") && said.contains("not read"),
        "{said}"
    );
    let logits = |model: &Path| good(["inspect", "logits", arg(model), "--ids", "5,17,3,9"]);
    assert_eq!(logits(&out), logits(&golden("gemma3")));
    assert_eq!(logits(&golden("gemma3_multimodal_v5")), logits(&golden("gemma3")));
}

#[test]
fn nothing_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("letter.txt"), "dear reader").unwrap();
    let model = golden("llama2");
    refused(["export", arg(&model), arg(folder.path())], &[arg(folder.path()), "not empty"]);
    refused(["import", arg(&model), arg(&folder.path().join("letter.txt"))], &["letter.txt", "file"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Arguments of a run of one step into `out`, and its text.
fn quickstart(folder: &Path) -> Vec<String> {
    let (text, out) = (folder.join("text"), folder.join("out"));
    write_text(&text);
    let run = ["quickstart", "--steps", "1", "--data", arg(&text), "--out", arg(&out)];
    run.into_iter().chain(TINY).chain(["eval.enabled=false"]).map(String::from).collect()
}

/// Only one process at a time works in a run's folder; a restart may change settings that affect no number.
#[test]
fn a_run_has_its_folder_to_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (quickstart(folder.path()), folder.path().join("out"));
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    fs::create_dir(&out).unwrap();
    let lock = fs::File::create(out.join(".lock")).unwrap();
    fs::write(out.join(".lock"), "process 7 on elsewhere\n").unwrap();
    lock.lock().unwrap();
    refused(run.iter().copied(), &[arg(&out), "in use by process 7 on elsewhere"]);
    drop(lock);
    // An error before there was any text: the folder accepts the next recipe.
    refused(run.iter().copied().chain(["data.paths=[\"nowhere\"]"]), &["nowhere"]);
    good(run.iter().copied());
    let written = fs::read_to_string(out.join("recipe.toml")).unwrap();
    let free = [
        "eval.tokens=1k",
        "stage.1.max_docs=32",
        "stage.0.tile_rows=128",
        "activations.head_groups=1",
        "data.ahead=2",
    ];
    good(run.iter().copied().chain(free));
    assert_ne!(fs::read_to_string(out.join("recipe.toml")).unwrap(), written);
    refused(run.iter().copied().chain(["stage.1.masked=true"]), &["another recipe", "stage.1.masked"]);
    let lossy = ["activations.offload_codec=fp8"];
    refused(run.iter().copied().chain(lossy), &["another recipe", "activations.offload_codec"]);
}

/// Detected before the first stage, and fixed in the same folder.
#[test]
fn a_stage_without_documents_is_refused_before_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (quickstart(folder.path()), folder.path().join("out"));
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    let err = refused(
        run.iter().copied().chain(["stage.2.min_doc_tokens=100000"]),
        &["stage.2", "at least 100000 tokens"],
    );
    assert!(!err.contains("loss"), "{err}");
    let store = || fs::metadata(out.join("data/store/train.bin")).unwrap().modified().unwrap();
    let made = store();
    good(run.iter().copied());
    assert_eq!(store(), made, "the text is not read again");
    refused(run.iter().copied().chain(["stage.2.min_doc_tokens=1"]), &["another recipe"]);
    refused(
        run.iter().copied().chain(["stage.0.blend=[{source=\"text\",weight=0}]"]),
        &["stage.0.blend.0.weight"],
    );
}

#[test]
fn bf16_halves_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("narrow");
    good(["export", arg(&golden("llama2")), arg(&out), "--precision", "bf16"]);
    let [wide, narrow] =
        [golden("llama2"), out].map(|folder| folder.join("model.safetensors").metadata().unwrap().len());
    assert!(narrow < wide * 6 / 10, "{narrow} of {wide}");
}

#[test]
fn the_doctor_finds_this_machine_sound() {
    let folder = tempfile::tempdir().unwrap();
    let measured = folder.path().join("machine.json");
    let output = fathom(["doctor", "--out", arg(&measured)]);
    let out = text(&output.stdout);
    assert!(output.status.success() && !out.contains("FAIL"), "{out}");
    for word in [
        "processor",
        "instruction sets",
        "memory budget",
        "disk",
        "self test portable",
        "FLOP/s measured in bf16",
        "expected by plans",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    // Plans use measured rates.
    let sheet: serde_json::Value = serde_json::from_slice(&fs::read(&measured).unwrap()).unwrap();
    let profile = format!("machine.profile={}", arg(&measured));
    let plan = |more: &[&str]| {
        let row: serde_json::Value = serde_json::from_str(
            good(
                ["plan", "sft", "--json", "--memory", "8MiB", "stage.0.seq_tokens=64"]
                    .iter()
                    .chain(more)
                    .copied(),
            )
            .trim(),
        )
        .unwrap();
        row["step_s"].as_f64().unwrap()
    };
    let from = format!("model.from={}", arg(&golden("llama2")));
    assert!(sheet["rates"]["matmul_bf16_flops_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{sheet}");
    assert_ne!(plan(&[&from, &profile]), plan(&[&from]));
}
