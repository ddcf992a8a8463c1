//! Input that a program must not trust: altered checkpoints and stores, links in a run's folder, limits of the
//! process, unwritable output; and continuing a run with more to do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resume::losses;
use crate::run::{TINY, write_text};
use crate::{arg, fathom, good, on_one_thread, refused, text};

/// A small run of one stage without schedules, so that added steps equal steps planned from the start.
fn run(text: &Path, out: &Path, steps: u64, more: &[&str]) -> Vec<String> {
    let recipe = text.with_extension("toml");
    let table = "[[stage]]\nname = \"one\"\nseq_tokens = 64\n";
    let keys = format!("[data]\npaths = [{:?}]\n\n{table}", arg(text));
    fs::write(&recipe, keys).unwrap();
    let own = [
        format!("stage.0.steps={steps}"),
        "schedule.decay=constant".into(),
        "checkpoint.every_steps=2".into(),
        "checkpoint.every_s=none".into(),
        "eval.enabled=false".into(),
    ];
    let words = ["train".to_string(), arg(&recipe).into(), "--out".into(), arg(out).into()];
    let tiny = TINY.iter().filter(|key| !key.starts_with("stage.")).map(ToString::to_string);
    words.into_iter().chain(tiny).chain(own).chain(more.iter().map(ToString::to_string)).collect()
}

/// Changes the last byte of a file.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn an_altered_checkpoint_is_never_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let (out, train) = (at("out"), run(&at("text"), &at("out"), 4, &[]));
    good(&train);
    let step = out.join("checkpoints/step-00000004");
    let (weights, state, to) = (step.join("model/model.safetensors"), step.join("state.json"), at("to"));
    good(["export", arg(&step), arg(&at("sound"))]);
    flip(&weights);
    refused(["export", arg(&step), arg(&to)], &["model.safetensors", "was altered"]);
    flip(&weights);

    // The exported model has hashes of its own.
    flip(&out.join("model/model.safetensors"));
    refused(["generate", arg(&out), "the"], &["model/model.safetensors", "was altered"]);
    refused(["eval", arg(&out)], &["model/model.safetensors", "was altered"]);
    refused(["export", arg(&out), arg(&to)], &["model/model.safetensors", "was altered"]);
    fs::remove_dir_all(out.join("model")).unwrap();

    let sound = fs::read_to_string(&state).unwrap();
    let (body, _) = sound.rsplit_once(",\n  \"hash\"").unwrap();
    let old = format!("{body}\n}}").replace("\"version\": 3", "\"version\": 2");
    assert!(old.contains("\"stage\": 1"), "{old}");
    fs::remove_file(out.join("metrics.jsonl")).unwrap();
    for stage in ["99", "18446744073709551615"] {
        fs::write(&state, sound.replace("\"stage\": 1", &format!("\"stage\": {stage}"))).unwrap();
        refused(["export", arg(&step), arg(&to)], &["state.json", "was altered"]);
        refused(&train, &["state.json", "was altered"]);
        fs::write(&state, old.replace("\"stage\": 1", &format!("\"stage\": {stage}"))).unwrap();
        refused(["export", arg(&step), arg(&to)], &["progress.stage"]);
        refused(&train, &["progress.stage"]);
    }
    fs::write(&state, &sound).unwrap();

    let latest = out.join("checkpoints/LATEST");
    fs::write(&latest, "../../elsewhere").unwrap();
    refused(["export", arg(&out), arg(&to)], &["LATEST", "should name a checkpoint"]);
    fs::remove_file(&latest).unwrap();
    refused(["export", arg(&out), arg(&to)], &["LATEST", "is missing next to", "step-00000004"]);
    refused(&train, &["LATEST", "echo step-00000004"]);
    assert!(state.is_file());
    fs::write(&latest, "step-00000004").unwrap();
    good(["export", arg(&out), arg(&to)]);
}

#[test]
fn altered_text_is_rebuilt_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let (out, train) = (at("out"), run(&at("text"), &at("out"), 4, &[]));
    good(&train);
    let stored = ["store/train.bin", "store/train.idx", "tokenizer/tokenizer.json"];
    for file in stored.map(|name| out.join("data").join(name)) {
        let sound = fs::read(&file).unwrap();
        flip(&file);
        fs::remove_file(out.join("metrics.jsonl")).unwrap();
        refused(&train, &[arg(&file), "was altered", "corpus.json"]);
        fs::rename(out.join("checkpoints"), at("aside")).unwrap();
        let output = fathom(&train);
        let err = text(&output.stderr);
        assert!(output.status.success() && err.contains("warning:") && err.contains(arg(&file)), "{err}");
        assert_eq!(fs::read(&file).unwrap(), sound);
        fs::remove_dir_all(at("aside")).unwrap();
    }
    flip(&out.join("data/store/train.bin"));
    refused(["eval", arg(&out)], &["store/train.bin", "was altered"]);
}

#[test]
fn links_in_a_runs_folder_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let (out, precious, train) = (at("out"), at("precious"), run(&at("text"), &at("out"), 2, &[]));
    fs::write(&precious, "mine").unwrap();
    fs::create_dir(&out).unwrap();
    for (name, followed) in
        [("metrics.jsonl", false), (".lock", false), ("machine.json", false), ("recipe.toml.tmp", true)]
    {
        // Rewritten each time.
        let _ = (fs::remove_file(out.join("recipe.toml")), fs::remove_file(out.join(name)));
        symlink(&precious, out.join(name)).unwrap();
        if followed {
            good(&train);
        } else {
            refused(&train, &[name, "symbolic link"]);
            fs::remove_file(out.join(name)).unwrap();
        }
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine", "{name}");
    }
}

#[test]
fn a_finished_run_goes_on_when_it_has_more_steps() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let train = |out: &str, steps: u64| run(&at("text"), &at(out), steps, &[]);
    good(train("whole", 9));
    good(train("grown", 4));
    good(train("grown", 7));
    // Killed during the added steps, it also continues, and further.
    assert_eq!(losses(&at("grown")).len(), 7);
    good(train("grown", 9));
    assert_eq!(losses(&at("grown")), losses(&at("whole")));
    let model = |out: &str| fs::read(at(out).join("model/model.safetensors")).unwrap();
    assert!(model("grown") == model("whole"));
    let before = fs::metadata(at("grown/model/model.safetensors")).unwrap().modified().unwrap();
    good(train("grown", 9));
    assert_eq!(fs::metadata(at("grown/model/model.safetensors")).unwrap().modified().unwrap(), before);
    refused(train("grown", 8), &["another recipe", "run.out=FOLDER", "stage.0.steps: 9"]);
}

#[test]
fn a_finished_run_goes_on_when_it_has_more_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let (text, out) = (at("text"), at("out"));
    let timed = |minutes: &str| {
        let fixed =
            ["quickstart", "--minutes", minutes, "--data", arg(&text), "--out", arg(&out)].map(String::from);
        fixed.into_iter().chain(TINY.map(String::from)).chain(["eval.enabled=false".into()])
    };
    good(timed("0.03"));
    let before = losses(&out);
    good(timed("0.1"));
    let after = losses(&out);
    assert!(
        after.len() > before.len() && after[..before.len()] == before,
        "{} {}",
        before.len(),
        after.len()
    );
}

/// On a hang-up the trained state is saved, and unread output is no error.
#[test]
fn a_hang_up_saves() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    let start = |out: &str, before: &str| {
        // The test runner may ignore the signal, and children inherit that.
        let mut command = on_one_thread("env");
        command.args([
            "--default-signal=HUP",
            "sh",
            "-c",
            &format!("{before} exec \"$0\" \"$@\" 2>/dev/full"),
            env!("CARGO_BIN_EXE_fathom"),
        ]);
        command.args(run(&at("text"), &at(out), 100_000, &[])).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let started = Instant::now();
        while losses(&at(out)).len() < 3 && child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < Duration::from_secs(120), "no step");
            sleep(Duration::from_millis(5));
        }
        let kill =
            |signal: &str, id: u32| Command::new("kill").args([signal, &id.to_string()]).status().unwrap();
        assert!(kill("-HUP", child.id()).success() && kill("-HUP", child.id()).success());
        (child, kill)
    };
    let (mut child, _) = start("heard", "");
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert!(at("heard/checkpoints/LATEST").is_file());
    // Started like nohup does.
    let (mut child, kill) = start("unheard", "trap '' HUP;");
    sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    assert!(kill("-TERM", child.id()).success());
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

/// Exit code and standard error of a call with standard output on a full disk, or under a shell's limit.
fn shell(script: &str, args: &[&str]) -> (Option<i32>, String) {
    let output =
        on_one_thread("sh").args(["-c", script, env!("CARGO_BIN_EXE_fathom")]).args(args).output().unwrap();
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_full_disk_behind_the_output_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    good(run(&at("text"), &at("out"), 2, &[]));
    let out = at("out");
    for args in [
        &["recipes", "ls"][..],
        &["--help"],
        &["doctor"],
        &["generate", arg(&out), "the", "--max-tokens", "3"],
        &["generate", arg(&out), "the", "--max-tokens", "3", "--ids"],
    ] {
        let (code, err) = shell("exec \"$0\" \"$@\" >/dev/full", args);
        assert_eq!(code, Some(1), "{args:?}: {err}");
        assert!(err.contains("cannot write to standard output: No space left"), "{err}");
        let (code, err) = shell("(sleep 0.2; \"$0\" \"$@\"; echo $? >&2) | true", args);
        assert!(code == Some(0) && err.trim().lines().last() == Some("141"), "{args:?}: {err}");
    }
}

#[test]
fn what_finds_no_memory_ends_with_1_and_advice() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    good(run(&at("text"), &at("out"), 2, &[]));
    let out = at("out");
    // Less than the machine has: the rest is the budget.
    let generate = ["generate", arg(&out), "the", "--max-tokens", "3"];
    let (code, err) = shell("ulimit -v 2000000; exec \"$0\" \"$@\"", &generate);
    assert_eq!(code, Some(0), "{err}");
    let (code, err) = shell("ulimit -v 2000000; exec \"$0\" doctor 2>&1 | grep memory >&2", &[]);
    assert!(code == Some(0) && err.contains("the limit of /proc/self/limits"), "{err}");
    let long = ["bench", "attention", "--tokens", "400000000", "--repeat", "1"];
    let (code, err) = shell("exec \"$0\" \"$@\"", &long);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("out of memory") && err.contains("`fathom doctor` names a limit"), "{err}");
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn a_prompt_beyond_the_context_is_refused_before_it_is_encoded() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_text(&at("text"));
    good(run(&at("text"), &at("out"), 2, &[]));
    let (out, prompt) = (at("out"), at("prompt"));
    fs::write(&prompt, "the old light under every bridge slowly\n".repeat(750_000)).unwrap();
    let script = format!("ulimit -v 2000000; exec \"$0\" \"$@\" <{}", arg(&prompt));
    let (code, err) = shell(&script, &["generate", arg(&out)]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("the prompt has 28.6") && err.contains("fills the context"), "{err}");
}
