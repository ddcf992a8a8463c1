//! Suggestions of a finished run: every command is run and every line of Python compiled, as printed.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::run::TINY;
use crate::sft::{args_of, base};
use crate::{arg, good, on_one_thread, text};

/// Lines printed after "What next:", by purpose.
fn hints(out: &str) -> BTreeMap<String, String> {
    let (_, next) = out.split_once("What next:\n").unwrap_or_else(|| panic!("suggests nothing: {out}"));
    // The purpose has a fixed width, as printed by `closing`.
    let of = |line: &str| (line[2..21].trim().to_string(), line[22..].to_string());
    next.lines().take_while(|line| line.starts_with("  ")).map(of).collect()
}

/// Runs a line in a shell, in a folder.
fn shell(folder: &Path, line: &str) -> Output {
    let mut command = on_one_thread("sh");
    command.current_dir(folder).args(["-c", line]).stdin(Stdio::null());
    command.output().unwrap()
}

/// Returns whether Python compiles a line; true without a Python.
fn compiles(line: &str) -> bool {
    let Ok(mut python) = Command::new("python3")
        .args(["-c", "import sys; compile(sys.stdin.read(), 'hint', 'exec')"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
    else {
        return true;
    };
    python.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    python.wait().unwrap().success()
}

/// The folder that a line of Python loads, and the class that loads it.
fn loaded(line: &str) -> (PathBuf, &str) {
    let (name, rest) = line.split_once("model = ").unwrap().1.split_once(".from_pretrained(").unwrap();
    (rest.split('"').nth(1).unwrap().into(), name)
}

/// Follows a run's suggestions. `serve` is only awaited to listen, and another long run is only planned.
fn follow(folder: &Path, out: &str) -> BTreeMap<String, String> {
    let hints = hints(out);
    for (what, line) in &hints {
        match what.as_str() {
            "read the report" => assert!(folder.join(line).is_file(), "{line}"),
            "load it in Python" => {
                assert!(compiles(line), "{line}");
                let (path, kind) = loaded(line);
                let path = folder.join(path);
                let config = if kind.starts_with("AutoPeft") { "adapter_config.json" } else { "config.json" };
                let config: serde_json::Value =
                    serde_json::from_slice(&fs::read(path.join(config)).unwrap()).unwrap();
                let of_base = config["base_model_name_or_path"].as_str();
                assert!(
                    of_base.is_none_or(|base| folder.join(base).join("config.json").is_file()),
                    "{config}"
                );
                assert_eq!(of_base.is_some(), kind.starts_with("AutoPeft"), "{line}");
            }
            "the same in a page" => serves(folder, line),
            "train longer" => {
                let planned =
                    line.replace("quickstart --minutes 60 --out out/longer", "plan quickstart-128k");
                assert!(shell(folder, &planned).status.success(), "{line}");
            }
            _ => {
                let done = shell(folder, line);
                assert!(done.status.success(), "{line}\n{}", text(&done.stderr));
            }
        }
    }
    hints
}

/// Starts a server and stops it once it listens.
fn serves(folder: &Path, line: &str) {
    let mut command = on_one_thread("sh");
    let line = format!("exec {line} --port 0");
    let mut server = command.current_dir(folder).args(["-c", &line]).stdout(Stdio::piped()).spawn().unwrap();
    let (sent, heard) = std::sync::mpsc::channel();
    let out = server.stdout.take().unwrap();
    std::thread::spawn(move || {
        use std::io::BufRead;
        let first = std::io::BufReader::new(out).lines().next();
        sent.send(first.and_then(Result::ok).unwrap_or_default())
    });
    let first = heard.recv_timeout(Duration::from_secs(60)).unwrap_or_default();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(first.contains("http://"), "{line}: {first}");
}

/// Documented functions in enough crates for a lesson.
fn write_crates(folder: &Path) {
    for number in 0..24 {
        let source = folder.join(format!("crate-{}", char::from(b'a' + number))).join("src");
        fs::create_dir_all(&source).unwrap();
        let function = |at: usize| {
            format!(
                "/// Returns the river number {at} of the stone {number}, as long as the light is old.\npub fn river_{number}_{at}(stone: u32, bridge: &str) -> u32 {{\n    stone + {at}\n}}\n\n"
            )
        };
        fs::write(source.join("lib.rs"), (0..8).map(function).collect::<String>()).unwrap();
    }
}

#[test]
fn what_a_quickstart_suggests_works_and_its_prompt_was_tried() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_crates(&at("crates"));
    let (data, run) = (at("crates"), at("a run's"));
    let args = ["quickstart", "--steps", "2", "--data", arg(&data), "--out", arg(&run)];
    let more = ["data.curate=none", "stage.0.max_docs=8"];
    let hints = follow(folder.path(), &good(args.into_iter().chain(TINY).chain(more)));
    for what in ["ask what it learned", "the same in a page", "talk to the model", "train longer"] {
        assert!(hints.contains_key(what), "{what}: {hints:?}");
    }
    // The log has the sampled prompt and answer; the command repeats the answer.
    let log = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut samples = events.filter(|event| event["event"] == "sample");
    let sample = samples.next().unwrap();
    let (prompt, said) = (sample["prompt"].as_str().unwrap(), sample["text"].as_str().unwrap());
    let line = format!("{} --max-tokens 48", hints["talk to the model"]);
    assert!(line.contains(prompt), "{line}");
    let again = text(&shell(folder.path(), &line).stdout);
    assert_eq!(again.trim_end_matches('\n'), said.trim_end_matches('\n'), "{line}");
}

#[test]
fn what_runs_of_lessons_and_adapters_suggest_works() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let common = ["eval.enabled=false", "data.held_out_share=0", "stage.0.epochs=1"];
    for (recipe, more, python) in [
        ("sft", &[][..], "from transformers import AutoModelForCausalLM;"),
        ("lora", &["adapter.rank=4"], "from peft import AutoPeftModelForCausalLM;"),
        ("qlora", &["adapter.rank=4"], "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\")"),
    ] {
        let out = good(args_of(recipe, folder.path(), recipe, &[&common[..], more].concat()));
        let hints = follow(folder.path(), &out);
        assert!(hints["load it in Python"].contains(python), "{hints:?}");
        assert_eq!(hints.contains_key("merge it"), recipe != "sft", "{hints:?}");
    }
    let card = fs::read_to_string(folder.path().join("lora/adapter/README.md")).unwrap();
    let python = card.split("```").nth(1).unwrap().strip_prefix("python").unwrap();
    assert!(python.contains("AutoPeftModelForCausalLM.from_pretrained") && compiles(python), "{card}");
}

#[test]
fn what_a_run_of_rewards_suggests_works() {
    let folder = tempfile::tempdir().unwrap();
    base(folder.path());
    let at = |name: &str| folder.path().join(name);
    let row = |n: usize| {
        format!("{{\"prompt\": \"Is {n} one?\", \"chosen\": \" Yes.\", \"rejected\": \" No.\"}}\n")
    };
    fs::write(at("PAIRS.jsonl"), (0..12).map(row).collect::<String>()).unwrap();
    let small = ["eval.enabled=false", "data.held_out_share=0", "stage.0.seq_tokens=128", "stage.0.steps=1"];
    let keys =
        ["model.from", "data.paths", "run.out"].into_iter().zip(["base/model", "PAIRS.jsonl", "reward"]);
    let named: Vec<String> = keys.map(|(key, name)| format!("{key}={}", arg(&at(name)))).collect();
    let args = ["train", "reward"].map(String::from).into_iter().chain(named);
    let hints = follow(folder.path(), &good(args.chain(small.map(String::from))));
    assert!(hints["load it in Python"].contains("AutoModelForSequenceClassification"), "{hints:?}");
    assert!(hints.contains_key("ask for rewards") && at("scored.jsonl").is_file(), "{hints:?}");
}

#[test]
fn what_pruning_suggests_is_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let model = base(folder.path());
    let (small, data) = (folder.path().join("small"), folder.path().join("text/00.txt"));
    let sizes = ["--ffn", "32", "--samples", "8", "--sample-tokens", "64", "--precision", "f32"];
    let out = good(["prune", arg(&model), arg(&small), "--data", arg(&data)].into_iter().chain(sizes));
    let line = out.split('`').nth(1).unwrap().replacen("fathom", env!("CARGO_BIN_EXE_fathom"), 1);
    let text_of = format!("data.paths={}", arg(&folder.path().join("lessons.jsonl")));
    let planned = shell(folder.path(), &format!("{line} {text_of} --dry-run"));
    assert!(planned.status.success(), "{line}\n{}", text(&planned.stderr));
}
