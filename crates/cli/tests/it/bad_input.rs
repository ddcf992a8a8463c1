//! Bad input is refused with a non-zero exit code and a message that names the file or key.

use std::fs;
use std::path::Path;

use crate::{arg, golden, refused};

/// A copy of a golden model that may be damaged.
fn copy(to: &Path) {
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden("llama2").join(name), to.join(name)).unwrap();
    }
}

#[test]
fn unknown_verbs_and_flags() {
    refused(["quikstart"], &["quikstart", "quickstart"]);
    refused(["bench", "gem"], &["gem", "gemm"]);
    refused(["plan", "quickstart", "--jsn"], &["--jsn"]);
    refused(["generate", "out/x", "a", "--machine", "gpu"], &["--machine", "cuda"]);
    refused(["generate", "out/x", "a", "--threads", "18446744073709551615"], &["--threads", "4096"]);
    for verb in ["quantize", "prune"] {
        for flag in ["--samples", "--sample-tokens"] {
            refused([verb, "out/x", "out/y", flag, "9223372036854775807"], &[flag, "1073741824"]);
        }
    }
}

#[test]
fn unknown_recipe_keys_and_values() {
    refused(["plan", "quickstart", "optimizer.lrr=3e-4"], &["optimizer.lrr", "optimizer.lr", "did you mean"]);
    refused(["plan", "quickstart", "optimizer.lr=fast"], &["optimizer.lr", "fast"]);
    refused(["plan", "quickstart", "stage.0.rope_type=longrope"], &["stage.0.rope_type"]);
    refused(["plan", "quickstart", "activations.tile_rows=100"], &["tile_rows", "128"]);
    refused(["plan", "llama3-8c"], &["llama3-8c", "llama3-8b"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    fs::write(&file, "[optimizer]\nlr = 1e-3\n[shedule]\n").unwrap();
    refused(["plan", arg(&file)], &["mine.toml", "shedule", "schedule"]);
    fs::write(&file, "[optimizer]\nlr = = 1\n").unwrap();
    refused(["plan", arg(&file)], &["mine.toml", "2"]);
}

#[test]
fn numbers_are_refused_before_anything_runs() {
    for (setting, key) in [
        ("model.kv_heads=3", "`model.kv_heads`"),
        ("model.head_dim=2", "`model.head_dim`"),
        ("model.head_dim=1000", "`model.head_dim`"),
        ("stage.0.seq_tokens=1000000000", "`stage.0.seq_tokens`"),
        ("stages=100000000000000", "`stages`"),
        ("stage.0.max_docs=0", "`stage.0.max_docs`"),
        ("mesh.cp=0", "`mesh.cp`"),
        ("moe.experts=4", "`moe.experts`: a granite model"),
        ("activations.places=[{ name = \"attn.outt\" }]", "attn.out"),
        ("activations.places=[{ name = \"embed\" }]", "rules may speak of attn.k, attn.lse"),
        ("activations.places=[{ name = \"block.out\" }]", "no backward pass of a block reads `block.out`"),
        ("activations.places=[{ name = \"final.*\" }]", "no backward pass of a block reads `final.*`"),
        ("activations.places=[{ name = \"block.in\", place = \"recompute\" }]", "places.0.place"),
        ("activations.places=[{ layers = [90, 91] }]", "no layer from 90 to before 91"),
    ] {
        refused(["plan", "quickstart", setting], &[key]);
    }
    for verb in ["plan", "train"] {
        refused([verb, "extend"], &["model.from=DIR"]);
    }
    refused(["train", "quickstart", "run.minutes=none"], &["stage.0.steps", "run.minutes"]);
    refused(["quickstart", "--steps", "0"], &["--steps", "`stage.0.steps`"]);
    refused(["plan", "common-crawl"], &["fathom curate common-crawl"]);
    refused(["plan", "qqqq"], &["fathom recipes ls"]);
}

#[test]
fn flags_without_use_are_refused() {
    for flag in ["--why", "--solve=mesh", "--trace=x.json", "--html=x.html"] {
        refused(["inspect", "activations", "quickstart", flag], &[flag.split('=').next().unwrap()]);
    }
    refused(["doctor", "--rank", "0"], &["--rank", "--dist"]);
    refused(["plan", "quickstart", "--trace", "no/such/x.json"], &["--trace", "mesh"]);
    refused(["curate", "stages", "fuzy"], &["fuzy", "did you mean"]);
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nosuch");
    refused(["curate", "sql", "select 1", "--out", arg(&nowhere)], &["nosuch"]);
    refused(["report", arg(&nowhere)], &["nosuch", "metrics.jsonl"]);
    assert!(!nowhere.exists());
}

#[test]
fn a_pod_has_to_know_how_many_there_are() {
    let mut command = crate::program();
    let pod = command.args(["curate", "books"]).env("JOB_COMPLETION_INDEX", "3").env_remove("WORLD_SIZE");
    let output = pod.output().unwrap();
    let err = crate::text(&output.stderr);
    assert!(!output.status.success() && err.contains("WORLD_SIZE"), "{err}");
}

#[test]
fn missing_files() {
    let nowhere = Path::new("no/such/model");
    refused(["inspect", "logits", arg(nowhere), "--ids", "1"], &["no/such/model", "config.json"]);
    refused(["generate", arg(nowhere), "hello"], &["no/such/model"]);
    refused(["eval", arg(nowhere)], &["no/such/model"]);
    refused(["export", arg(nowhere), "out"], &["no/such/model"]);
    refused(["import", arg(nowhere), "out"], &["no/such/model"]);
    refused(["diff", "no/such/a", "no/such/b"], &["no/such/a"]);
    refused(["plan", "no/such.toml"], &["no/such.toml"]);
    let folder = tempfile::tempdir().unwrap();
    refused(["quickstart", "--data", "no/such/text", "--out", arg(folder.path())], &["no/such/text"]);
}

/// Fathom downloads nothing: a hub name is answered with the command that does.
#[test]
fn names_of_the_hub_are_answered_by_its_own_client() {
    let (name, command) = ("no-such/model-7b", "hf download no-such/model-7b --local-dir no-such/model-7b");
    refused(["inspect", "logits", name, "--ids", "1"], &[command]);
    refused(["generate", name, "hello"], &[command]);
    refused(["eval", name], &[command]);
    refused(["export", name, "out"], &[command]);
    refused(["import", name, "out"], &[command]);
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "a little text\n".repeat(2000)).unwrap();
    let paths = format!("data.paths=[\"{}\"]", arg(&text));
    let out = format!("run.out={}", arg(folder.path()));
    refused(["train", "extend", &format!("model.from={name}"), &out, &paths], &[command]);
    let out = format!("run.out={}", arg(&folder.path().join("out")));
    let train = ["train", "quickstart", "stage.0.steps=1", &out, &paths];
    refused(train.into_iter().chain([format!("data.tokenizer={name}").as_str()]), &[command]);
}

/// A folder with only SentencePiece's file is answered with the command that converts it, before any text is read.
#[test]
fn a_model_without_a_tokenizer_json_is_refused_with_how_to_get_one() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path());
    fs::write(folder.path().join("tokenizer.model"), "pieces").unwrap();
    let wanted = ["tokenizer.model", "from transformers import AutoTokenizer", arg(folder.path())];
    refused(["generate", arg(folder.path()), "hello"], &wanted);
    let (from, out) =
        (format!("model.from={}", arg(folder.path())), format!("run.out={}/out", arg(folder.path())));
    refused(["train", "extend", &from, &out, "data.paths=[\"Cargo.toml\"]"], &wanted);
}

#[test]
fn damaged_weights() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path());
    let weights = folder.path().join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let look = |names: &[&str]| {
        refused(
            ["inspect", "logits", arg(folder.path()), "--ids", "1,2"],
            &[&["model.safetensors"], names].concat(),
        )
    };
    fs::write(&weights, &whole[..whole.len() - 100]).unwrap();
    look(&[]);
    fs::write(&weights, &whole[..5]).unwrap();
    look(&[]);
    // A header larger than the file.
    fs::write(&weights, [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat()).unwrap();
    look(&[]);
    fs::write(&weights, [&whole[..8], b"{not json", &whole[17..]].concat()).unwrap();
    look(&[]);
    fs::remove_file(&weights).unwrap();
    look(&[]);
}

#[test]
fn damaged_configurations() {
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path());
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let look = |text: String, names: &[&str]| {
        fs::write(&config, text).unwrap();
        refused(["inspect", "logits", arg(folder.path()), "--ids", "1,2"], names)
    };
    look(text[..text.len() / 2].to_string(), &["config.json"]);
    look(text.replace("\"llama\"", "\"lama\""), &["config.json", "lama"]);
    look(
        text.replace("\"hidden_act\": \"silu\"", "\"hidden_act\": \"swoosh\""),
        &["config.json", "hidden_act", "swoosh"],
    );
    look(
        text.replace("\"intermediate_size\": ", "\"intermediate_size\": 1"),
        &["model.safetensors", "shape"],
    );
}

#[test]
fn ids_outside_the_vocabulary() {
    let model = golden("llama2");
    refused(["inspect", "logits", arg(&model), "--ids", "5,96"], &["--ids", "96", "95"]);
    refused(["inspect", "gradients", arg(&model), "--ids", "4294967295,1"], &["4294967295"]);
    refused(["inspect", "logits", arg(&model), "--ids", "-1"], &["--ids"]);
    refused(["inspect", "gradients", arg(&model), "--ids", "5"], &["two ids"]);
    refused(["inspect", "logits", arg(&model), "--ids", "5", "--precision", "f8"], &["f8", "bf16"]);
    let many = vec!["1"; 600].join(",");
    refused(["inspect", "logits", arg(&golden("gpt2")), "--ids", &many], &["learned positions"]);
}

#[test]
fn an_empty_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    fs::create_dir(&data).unwrap();
    refused(["quickstart", "--data", arg(&data), "--out", arg(&out), "--steps", "1"], &[arg(&data)]);
}

#[test]
fn impossible_benchmarks() {
    refused(["bench", "gemm", "--shape", "5,6"], &["--shape"]);
    refused(["bench", "gemm", "--dtype", "f16"], &["--dtype", "f16", "bf16"]);
    refused(["bench", "gemm", "--prompt", "3"], &["--prompt"]);
    refused(["bench", "curate", "--stage", "none"], &["none", "fuzzy_dedup"]);
    refused(["bench", "attention", "--pass", "sideways"], &["sideways", "forward_backward"]);
    refused(["bench", "attention", "--heads", "3", "--kv-heads", "2"], &["--kv-heads"]);
    refused(["bench", "step", "activations.recompute_granularity=some"], &["some", "linear"]);
    refused(["bench", "step", "activations.tile_rows=100"], &["tile_rows", "multiple of 128"]);
    refused(["bench", "step", "machine.kind=gpu"], &["gpu", "meta"]);
    refused(["bench", "step", "machine.memory_bytes=1000000"], &["memory"]);
    refused(["bench", "step", "data.max_bytes=3"], &["data.max_bytes", "activations"]);
    refused(["bench", "decode", "mesh.tp=2"], &["mesh.tp", "model"]);
    refused(["bench", "decode", "machine.kind=meta"], &["machine.kind=meta", "bench step"]);
    refused(["bench", "save", "mesh-parity", "mesh.dp=2"], &["one rank"]);
}

/// A tiny quickstart with additional settings.
fn refused_run(settings: &[&str], names: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    crate::run::write_text(&at("text"));
    let fixed = ["quickstart", "--steps", "6", "--data", arg(&at("text")), "--out", arg(&at("run"))]
        .map(String::from);
    let all = fixed
        .into_iter()
        .chain(crate::run::TINY.map(String::from))
        .chain(settings.iter().map(|s| s.to_string()));
    refused(all, names)
}

#[test]
fn a_run_that_does_not_fit_is_reported_by_the_plan() {
    refused_run(
        &["machine.memory_bytes=100000"],
        &["stage `warm` needs", "of memory and the budget is 97.7 KiB; its memory peaks in "],
    );
}

#[test]
fn a_loss_that_is_not_a_number_ends_the_run() {
    let said = refused_run(
        &["optimizer.lr=1e30", "optimizer.clip=none"],
        &["not finite", "nothing was saved yet. Lower optimizer.lr, set optimizer.clip=1.0, or"],
    );
    assert!(!said.contains("unharmed"), "{said}");
}

/// Impossible numbers of ranks, and a plan's progress messages.
#[test]
fn plans_of_no_ranks_are_refused() {
    for gpus in ["0", "65537"] {
        refused(
            ["plan", "llama3-8b", "--solve", "mesh", "--gpus", gpus],
            &["--gpus", gpus, "from 1 to 65536"],
        );
    }
}

#[test]
fn plans_of_many_stages_alike_are_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.toml");
    let stage = |at: usize| format!("[[stage]]\nname = \"s{at}\"\nseq_tokens = 256\nsteps = {}\n", at + 1);
    let stages: String = (0..2000).map(stage).collect();
    let sizes = "hidden = 64\nlayers = 2\nheads = 2\nkv_heads = 1\nhead_dim = 32\nffn = 128\nvocab = 512";
    std::fs::write(&path, format!("[model]\n{sizes}\n{stages}")).unwrap();
    let started = std::time::Instant::now();
    let out = crate::good(["plan", arg(&path), "--json"]);
    assert_eq!(out.lines().count(), 2000);
    // Each of them takes hundreds of milliseconds.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}
