//! `fathom curate` from outside: a run, its page, its tables, and kills.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fathom_cpu::Cpu;
use fathom_model::{
    FolderOptions, GenerationConfig, Init, LlamaSizes, Model, SaveOptions, Spec, initialise, save_hf,
};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;

use crate::{arg, good, refused, rows};

const RECIPE: &str = r#"
[[stage]]
use = "length"
min_chars = 40

[[stage]]
use = "exact"

[[stage]]
use = "write"
format = "jsonl"
columns = ["text"]
"#;

/// A folder with a recipe and some files of JSON lines.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("recipe.toml"), RECIPE).unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    for file in 0..6u64 {
        let line = |n: u64| {
            let words: Vec<String> = (0..n % 300).map(|w| format!("w{}", (w * n) % 1009)).collect();
            format!("{{\"text\":\"{}\"}}\n", words.join(" "))
        };
        let text: String = (file * 500..file * 500 + 900).map(line).collect();
        fs::write(folder.path().join(format!("data/{file}.jsonl")), text).unwrap();
    }
    folder
}

fn args(folder: &Path, out: &Path) -> Vec<String> {
    let recipe = folder.join("recipe.toml").display().to_string();
    let paths = format!("input.paths={}", folder.join("data").display());
    // Small units, so that there is more than one.
    let rest = ["input.unit_bytes=200000".to_string(), "threads=2".to_string()];
    [vec!["curate".into(), recipe, paths, format!("out={}", out.display())], rest.to_vec()].concat()
}

/// All files that must not depend on how the run went.
pub(crate) fn bytes_of(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for table in fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let name = table.file_name().unwrap().to_string_lossy().into_owned();
        if name == "seconds" || name == "spill" {
            continue;
        }
        for file in fs::read_dir(&table).unwrap().map(|entry| entry.unwrap().path()) {
            let file_name = file.file_name().unwrap().to_string_lossy().into_owned();
            all.insert(format!("{name}/{file_name}"), fs::read(&file).unwrap());
        }
    }
    all
}

#[test]
fn a_run_leaves_its_account_and_answers_queries() {
    let (folder, out) = (folder(), tempfile::tempdir().unwrap());
    let said = good(args(folder.path(), out.path()));
    assert!(said.contains("min_chars") && said.contains("duplicate"), "{said}");
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(out.path().join("stats.json")).unwrap()).unwrap();
    let last = stats["tables"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["name"], "exact");
    let page = fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("Funnel") && page.contains("min_chars") && !page.contains("http://"));
    let query = "select count(*) as n, max(length(text)) as longest from exact";
    let answer = rows(&good(["curate", "sql", query, "--out", arg(out.path()), "--json"]));
    assert_eq!(answer.len(), 1);
    assert_eq!(answer[0]["n"], last["documents"]);
    let table =
        good(["curate", "sql", "select id from length order by id limit 2", "--out", arg(out.path())]);
    assert!(table.starts_with("id") && table.lines().count() == 4, "{table}");
    refused(["curate", "sql", "drop table exact", "--out", arg(out.path())], &["DDL"]);
    refused(["curate", "sql", "select x from exact", "--out", arg(out.path())], &["x"]);
    let written: usize = fs::read_dir(out.path().join("02-write"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .map(|path| rows(&fs::read_to_string(path).unwrap()).len())
        .sum();
    assert_eq!(written as u64, last["documents"].as_u64().unwrap());
}

#[test]
fn a_killed_run_is_finished_by_the_next() {
    let folder = folder();
    let whole = tempfile::tempdir().unwrap();
    good(args(folder.path(), whole.path()));
    let wanted = bytes_of(whole.path());
    let out = tempfile::tempdir().unwrap();
    let mut killed = 0;
    for milliseconds in [2, 5, 9, 14, 20, 27, 35, 44] {
        let mut child = crate::program()
            .args(args(folder.path(), out.path()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        // SIGKILL on every system that has signals.
        killed += usize::from(child.kill().is_ok() && !child.wait().unwrap().success());
    }
    assert!(killed > 0, "every run was over before it was killed");
    good(args(folder.path(), out.path()));
    assert!(wanted == bytes_of(out.path()), "killed {killed} times");
}

#[test]
fn mistakes_and_lists() {
    let (folder, out) = (folder(), tempfile::tempdir().unwrap());
    let with = |more: &str| [args(folder.path(), out.path()), vec![more.to_string()]].concat();
    refused(with("stage.length.mim_chars=3"), &["`stage.length.mim_chars`", "did you mean `min_chars`"]);
    refused(with("stage.length.min_chars=x"), &["`stage.length.min_chars`", "whole number"]);
    refused(with("stge=3"), &["did you mean", "stage"]);
    refused(["curate", "comon-crawl"], &["common-crawl"]);
    refused(
        [with("seed=1"), vec!["--rank".into(), "2".into(), "--world-size".into(), "2".into()]].concat(),
        &["rank 2 of 2"],
    );
    let listed = good(["curate", "stages"]);
    assert!(listed.contains("exact") && listed.contains("length"), "{listed}");
    assert!(good(["curate", "stages", "length"]).contains("min_chars = 1"));
    for kind in ["semantic", "perplexity", "classify"] {
        assert!(listed.contains(kind), "{listed}");
        assert!(good(["curate", "stages", kind]).contains("model = \"\""));
    }
}

#[test]
fn the_help_names_the_recipes() {
    let help = good(["curate", "--help"]);
    for name in ["common-crawl", "code", "books", "wikipedia", "arxiv"] {
        let listed = |line: &str| line.trim_start().starts_with(name) && line.trim().len() > name.len() + 20;
        assert!(help.lines().any(listed), "{name} is not listed: {help}");
    }
}

#[test]
fn what_was_typed_is_shown_without_its_secrets() {
    let (folder, out) = (folder(), tempfile::tempdir().unwrap());
    let signed = "https://host/a.jsonl?X-Amz-Signature=hunter2";
    let recipe = folder.path().join("recipe.toml").display().to_string();
    for (words, key) in [
        (vec!["curate".to_string(), recipe, format!("input.paths={signed}")], "input.paths"),
        (vec!["train".to_string(), "quickstart".into(), format!("data.paths={signed}")], "data.paths"),
        (
            vec!["recipes".into(), "show".into(), "books".into(), format!("input.paths={signed}")],
            "input.paths",
        ),
    ] {
        let out = format!("{}={}", if words[0] == "train" { "run.out" } else { "out" }, out.path().display());
        let said = refused([words, vec![out]].concat(), &[key, "https://host/a.jsonl?***"]);
        assert!(!said.contains("hunter2"), "{said}");
    }
    assert!(fs::read_dir(out.path()).unwrap().next().is_none(), "something was written");
}

#[test]
fn a_result_that_changed_is_named_on_the_console() {
    let (folder, out) = (folder(), tempfile::tempdir().unwrap());
    good(args(folder.path(), out.path()));
    let wanted = bytes_of(out.path());
    let part = out.path().join("01-exact/part-00000.parquet");
    let mut bytes = fs::read(&part).unwrap();
    bytes[100] ^= 1;
    fs::write(&part, bytes).unwrap();
    let output = crate::fathom(args(folder.path(), out.path()));
    let said = crate::text(&output.stderr);
    assert!(output.status.success() && said.contains("01-exact/part-00000.parquet has changed"), "{said}");
    assert!(wanted == bytes_of(out.path()));
}

/// One process per rank in a folder; tasks of a Slurm array with gaps in their numbers are ranks without gaps.
#[test]
fn a_rank_has_its_parts_to_itself() {
    let (folder, out) = (folder(), tempfile::tempdir().unwrap());
    let lock = fs::File::create(out.path().join(".rank-0-of-1.lock")).unwrap();
    fs::write(out.path().join(".rank-0-of-1.lock"), "process 7 on elsewhere\n").unwrap();
    lock.lock().unwrap();
    let args = args(folder.path(), out.path());
    refused(args.clone(), &["in use by process 7 on elsewhere", "rank 0 of 1", "out="]);
    let rank = [("MIN", "10"), ("MAX", "14"), ("STEP", "2"), ("COUNT", "3"), ("ID", "14")];
    let of_an_array = || {
        let mut command = crate::program();
        command.args(&args).envs(rank.map(|(name, value)| (format!("SLURM_ARRAY_TASK_{name}"), value)));
        let output = command.output().unwrap();
        (output.status.code(), crate::text(&output.stderr))
    };
    let (code, said) = of_an_array();
    assert!(code != Some(75) && said.contains("rank 0 of 1"), "another world: {code:?}, {said}");
    drop(lock);
    let (code, said) = of_an_array();
    assert!(code == Some(75) && said.contains("rank 2 of 3"), "{code:?}, {said}");
    good(args);
}

/// A randomly initialised model with its tokenizer.
fn random_model(folder: &Path) {
    let device = Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
    let sizes =
        LlamaSizes { hidden: 32, head_dim: 8, ffn: 48, vocab: 300, max_positions: 64, ..LlamaSizes::TINY };
    let (model, mut params) = Model::declare(&device, &Spec::llama(sizes), DType::F32);
    initialise(&device, &model, &mut params, Init { deviation: 0.3, seed: 5 });
    let weights = SaveOptions::new(DType::F32);
    let options = FolderOptions { weights, generation: &GenerationConfig::default(), copy: &[] };
    save_hf(&device, &model, &params, folder, options).unwrap();
    let texts = (0..200).map(|n| format!("w{n} w{} w{}", n * 7, n * 13));
    Tokenizer::train_bpe(texts, 300, &["<|endoftext|>"]).unwrap().save_dir(folder).unwrap();
}

#[test]
fn a_model_embeds_and_scores() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    random_model(&folder.path().join("model"));
    let recipe = format!(
        "[[stage]]\nuse = \"perplexity\"\nmodel = {0:?}\ncontext_tokens = 48\n\n\
         [[stage]]\nuse = \"semantic\"\nmodel = {0:?}\nmax_tokens = 64\nclusters = 4\neps = 1e-6\n",
        at("model")
    );
    fs::write(at("recipe.toml"), recipe).unwrap();
    // Every text occurs twice in two files: the same vector, and the same perplexity.
    fs::create_dir(at("data")).unwrap();
    let text = |n: u64| {
        (0..4 + n % 90).map(|w| format!("w{}", (w * w + n * 37) % 251)).collect::<Vec<_>>().join(" ")
    };
    let lines: String = (0..60).map(|n| serde_json::json!({ "text": text(n) }).to_string() + "\n").collect();
    for name in ["data/a.jsonl", "data/b.jsonl"] {
        fs::write(at(name), &lines).unwrap();
    }
    let run = |out: &str, threads: usize| {
        let settings = [format!("out={}", at(out)), format!("threads={threads}")];
        let rest = [format!("input.paths={}", at("data")), "input.unit_bytes=3000".to_string()];
        good([vec!["curate".to_string(), at("recipe.toml")], settings.to_vec(), rest.to_vec()].concat());
        bytes_of(&folder.path().join(out))
    };
    let one = run("one", 1);
    assert!(one == run("three", 3), "threads");
    let ask = |query: &str| rows(&good(["curate", "sql", query, "--out", &at("one"), "--json"]));
    let all = ask(
        "select text, count(*) as n, min(perplexity) as low, max(perplexity) as high from perplexity group by text",
    );
    assert_eq!(all.len(), 60);
    for row in &all {
        let (low, high) = (row["low"].as_f64().unwrap(), row["high"].as_f64().unwrap());
        assert!(row["n"] == 2 && low == high && low > 1.0, "{row}");
    }
    let left = ask("select count(*) as n, count(distinct text) as texts from semantic");
    assert!(left[0]["n"] == 60 && left[0]["texts"] == 60, "{left:?}");

    fs::write(at("model/config.json"), r#"{"model_type": "roberta", "architectures": ["RobertaModel"]}"#)
        .unwrap();
    let other = [format!("out={}", at("other")), format!("input.paths={}", at("data"))];
    refused(
        [vec!["curate".to_string(), at("recipe.toml")], other.to_vec()].concat(),
        &["encoder", &at("model")],
    );
}

#[test]
fn a_quality_model_is_trained_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(at("in")).unwrap();
    for (name, texts) in [
        ("good.jsonl", ["the theorem follows from the lemma", "we measure the effect in two samples"]),
        ("other.jsonl", ["click here to win a prize", "cheap pills buy now"]),
    ] {
        let line = |i: usize| serde_json::json!({ "text": texts[i % 2] }).to_string() + "\n";
        fs::write(at(&format!("in/{name}")), (0..200).map(line).collect::<String>()).unwrap();
    }
    let train = |out: &str, more: &[&str]| {
        let base =
            ["curate", "train-quality", "--good", &at("in/good.jsonl"), "--other", &at("in/other.jsonl")];
        let small = ["--dim", "8", "--buckets", "1000", "--learning-rate", "0.5", "--out", out];
        [&base[..], &small[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let said = rows(&good(train(&at("a.bin"), &["--json"])));
    assert!(said[0]["report"]["examples"] == 380 && said[0]["report"]["accuracy"] == 1.0, "{said:?}");
    let said = good(train(&at("b.bin"), &[]));
    assert!(said.contains("learnt 380 examples, 100.0 % of 20 held-out ones"), "{said}");
    assert!(fs::read(at("a.bin")).unwrap() == fs::read(at("b.bin")).unwrap(), "the same model");
    refused(train(&at("c.bin"), &["--label", "good"]), &["`label`", "__label__"]);
    refused(train(&at("c.bin"), &["--field", "body"]), &["no text found", "good.jsonl"]);

    let recipe = format!("[[stage]]\nuse = \"quality\"\nmodel = {:?}\npareto = \"none\"\n", at("a.bin"));
    fs::write(at("recipe.toml"), recipe).unwrap();
    let run = [at("recipe.toml"), format!("input.paths={}", at("in")), format!("out={}", at("out"))];
    good([vec!["curate".to_string()], run.to_vec()].concat());
    let query = "select count(*) as n, count(distinct text) as texts from quality";
    let left = rows(&good(["curate", "sql", query, "--out", &at("out"), "--json"]));
    assert!(left[0]["n"] == 200 && left[0]["texts"] == 2, "{left:?}");
}

/// An encoder from Transformers: its labels, and refusals by other verbs.
#[test]
fn an_encoder_classifies() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders/deberta_custom");
    let golden: serde_json::Value =
        serde_json::from_slice(&fs::read(encoder.join("golden.json")).unwrap()).unwrap();
    let recipe =
        format!("[[stage]]\nuse = \"classify\"\nmodel = {encoder:?}\nmax_tokens = 40\ncolumn = \"domain\"\n");
    fs::write(at("recipe.toml"), recipe).unwrap();
    let texts = golden["texts"].as_array().unwrap().iter().filter(|row| row["text"] != "");
    let lines: String =
        texts.clone().map(|row| serde_json::json!({ "text": row["text"] }).to_string() + "\n").collect();
    fs::create_dir(at("data")).unwrap();
    fs::write(at("data/a.jsonl"), lines).unwrap();
    let settings = [format!("out={}", at("out")), format!("input.paths={}", at("data"))];
    good([vec!["curate".to_string(), at("recipe.toml")], settings.to_vec()].concat());
    let found = good([
        "curate",
        "sql",
        "select text, domain, domain_score from classify",
        "--out",
        &at("out"),
        "--json",
    ]);
    let found = rows(&found);
    assert_eq!(found.len(), texts.clone().count());
    for row in texts {
        let logits: Vec<f64> =
            row["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        let sum: f64 = logits.iter().map(|logit| (logit - logits[best]).exp()).sum();
        let said = found.iter().find(|said| said["text"] == row["text"]).unwrap();
        assert_eq!(said["domain"], ["Arts", "Science", "Games", "Law", "News"][best], "{row}");
        assert!((said["domain_score"].as_f64().unwrap() - 1.0 / sum).abs() < 1e-5, "{said} {row}");
    }
    refused(["generate", &encoder.display().to_string(), "x"], &["encoder", "classify"]);
}

/// An encoder's vectors find texts of the same meaning; a classifier has no vectors.
#[test]
fn an_encoder_embeds() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let words = ["sand", "salt", "wind", "the plan", "water", "steps"];
    let row = |word: &str| {
        serde_json::json!({ "text": format!("Rivers carry {word} to the sea") }).to_string() + "\n"
    };
    let lines: String = words.iter().chain(&words).map(|word| row(word)).collect();
    fs::create_dir(at("data")).unwrap();
    fs::write(at("data/a.jsonl"), lines).unwrap();
    let recipe = |name: &str| {
        let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders").join(name);
        let stage = format!(
            "[[stage]]\nuse = \"semantic\"\nmodel = {encoder:?}\nmax_tokens = 40\nclusters = 1\neps = 1e-6\n"
        );
        fs::write(at("recipe.toml"), stage).unwrap();
        let settings = [format!("out={}", at(name)), format!("input.paths={}", at("data"))];
        [vec!["curate".to_string(), at("recipe.toml")], settings.to_vec()].concat()
    };
    good(recipe("embed_xlm_roberta"));
    let found =
        good(["curate", "sql", "select text from semantic", "--out", &at("embed_xlm_roberta"), "--json"]);
    let mut texts: Vec<String> = rows(&found).iter().map(|row| row["text"].to_string()).collect();
    texts.sort();
    texts.dedup();
    assert_eq!((texts.len(), rows(&found).len()), (6, 6), "{found}");
    refused(recipe("bert"), &["labels and no vectors"]);
}

#[test]
#[cfg(not(feature = "ballista"))]
fn without_ballista_it_says_how_to_build_it() {
    let folder = folder();
    let run = [args(folder.path(), folder.path()), vec!["--engine".into(), "ballista".into()]].concat();
    refused(run, &["built without Ballista", "--features ballista"]);
    refused(["curate", "scheduler"], &["built without Ballista"]);
    refused(["curate", "executor"], &["built without Ballista"]);
}
