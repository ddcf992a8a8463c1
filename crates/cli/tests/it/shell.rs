//! Features common to all verbs: versions, colours, verbosity, completions, manual pages, and output files.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run::{TINY, write_text};
use crate::{arg, fathom, golden, good, refused, text};

/// The binary with a variable set.
fn with(variable: (&str, &str), args: &[&str]) -> (String, String) {
    let mut command = crate::program();
    let output = command.args(args).env(variable.0, variable.1).output().unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_version_says_what_it_was_built_from_and_for() {
    let long = good(["--version"]);
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines[0], format!("fathom {}", env!("CARGO_PKG_VERSION")));
    let commit = lines[1].strip_prefix("commit: ").unwrap();
    assert!(commit == "unknown" || commit.chars().all(|c| c.is_ascii_hexdigit()), "{long}");
    let has = lines[2].strip_prefix("features: ").unwrap();
    let curates = has.split(", ").any(|feature| feature == "curate");
    assert_eq!(curates, cfg!(feature = "curate"), "{long}");
    assert_eq!(
        has == "none",
        !cfg!(any(feature = "mpi", feature = "ballista", feature = "curate")),
        "{long}"
    );
    assert!(lines[3].starts_with("instruction set: "), "{long}");
    assert_eq!(good(["-V"]), format!("{}\n", lines[0]));
}

#[test]
fn colours_are_for_terminals_and_can_be_had_or_refused() {
    let escape = "\u{1b}[";
    let broken = ["train", "no-such-recipe"];
    for args in [&broken[..], &["recipes", "ls"], &["--help"], &["trein"]] {
        let (out, err) = with(("TERM", "xterm"), args);
        assert!(!out.contains(escape) && !err.contains(escape), "no terminal: {args:?}");
        let (out, err) = with(("CLICOLOR_FORCE", "1"), args);
        assert!(out.contains(escape) || err.contains(escape), "{args:?}: {out}{err}");
        let mut both = crate::program();
        let output = both.args(args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
        assert!(!text(&output.stdout).contains(escape) && !text(&output.stderr).contains(escape), "{args:?}");
    }
    let (_, err) = with(("CLICOLOR_FORCE", "1"), &broken);
    assert!(err.starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m "), "{err:?}");
}

#[test]
fn a_run_says_less_or_more() {
    let folder = tempfile::tempdir().unwrap();
    write_text(&folder.path().join("text"));
    let run = |name: &str, more: &str| {
        let (texts, out) = (folder.path().join("text"), folder.path().join(name));
        let words = [more, "quickstart", "--steps", "2", "--data", arg(&texts), "--out", arg(&out)];
        let output = fathom(words.iter().chain(&TINY).chain(&["eval.enabled=false"]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        [&output.stdout, &output.stderr].map(|bytes| text(bytes))
    };
    let [figures, err] = run("quiet", "--quiet");
    assert!(
        err.is_empty() && figures.contains("training loss") && !figures.contains("What next"),
        "{figures}{err}"
    );
    let [all, verbose] = run("verbose", "-v");
    assert!(all.contains("What next"), "{all}");
    let (from, to) = (folder.path().join("quiet"), folder.path().join("exported"));
    assert_eq!(good(["-q", "export", arg(&from), arg(&to)]), "");
    for line in ["fathom 0.", "commit: ", "stage.0.steps = 2 (--steps)", " 1/2  loss ", " 2/2  loss "] {
        assert!(verbose.contains(line), "`{line}` is not in:\n{verbose}");
    }
    refused(["-q", "-v", "recipes", "ls"], &["--quiet", "--verbose"]);
    let err = refused(["-v", "train", "/nowhere/at/all.toml"], &["error: "]);
    assert!(err.contains("commit: "), "{err}");
}

#[test]
fn shells_and_manuals_know_every_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let script = good(["completions", shell]);
        for word in ["quickstart", "dry-run", "train-quality"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    if Path::new("/bin/bash").exists() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fathom");
        fs::write(&file, good(["completions", "bash"])).unwrap();
        let ask = "source \"$1\"; COMP_WORDS=(fathom tra); COMP_CWORD=1; _fathom fathom tra fathom; echo \"${COMPREPLY[*]}\"";
        let output = Command::new("/bin/bash").args(["-c", ask, "ask", arg(&file)]).output().unwrap();
        assert_eq!(text(&output.stdout).trim(), "train", "{}", text(&output.stderr));
    }
    let page = good(["man", "bench", "step"]);
    assert!(page.contains(".TH fathom-bench-step 1") && page.contains("\\-\\-ops"), "{page}");
    assert!(good(["man"]).contains(".TH fathom 1"));
    refused(["man", "fly"], &["no page `fathom fly`", "fathom help"]);
    let folder = tempfile::tempdir().unwrap();
    good(["man", "--out", arg(folder.path())]);
    for page in ["fathom.1", "fathom-train.1", "fathom-curate-sql.1"] {
        assert!(folder.path().join(page).is_file(), "{page}");
    }
}

#[test]
fn a_dry_run_is_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    write_text(&folder.path().join("text"));
    let out = folder.path().join("out");
    let data = format!("data.paths=[{:?}]", folder.path().join("text"));
    let out_key = format!("run.out={}", out.display());
    let keys: Vec<&str> = ["llama3-1b", &data, &out_key, "model.layers=2", "machine.threads=2"].into();
    let dry = good(["train", "--dry-run", "--machine", "cpu"].iter().chain(&keys));
    assert_eq!(dry, good(["plan"].iter().chain(&keys).chain(&["machine.kind=cpu"])));
    assert!(!out.exists());
}

/// Anything but a regular file is left alone by every verb that writes one.
#[test]
fn only_a_regular_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let link = folder.path().join("link");
    let other = folder.path().join("other");
    fs::write(&other, "mine").unwrap();
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("metrics.jsonl"), "").unwrap();
    let model = golden("llama2");
    for (path, kind) in [(&pipe, "a pipe"), (&link, "a symbolic link"), (&run, "a folder")] {
        let path = arg(path);
        let model = arg(&model);
        for words in [
            vec!["report", arg(&run), "--out", path],
            vec!["plan", "llama3-1b", "--html", path],
            vec!["plan", "llama3-1b", "mesh.pp=2", "--trace", path],
            vec!["inspect", "logits", model, "--ids", "1,2", "--out", path],
            vec!["inspect", "gradients", model, "--ids", "1,2", "--out", path],
            vec!["bench", "profile", "--out", path],
            vec!["curate", "train-quality", "--good", model, "--other", model, "--out", path],
        ] {
            refused(&words, &[path, kind, "regular file"]);
        }
        refused(["recipes", "cp", "llama3-1b", path], &[path, "exists"]);
    }
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    let page = folder.path().join("page.html");
    fs::write(&page, "old").unwrap();
    good(["report", arg(&run), "--out", arg(&page)]);
    assert!(fs::read_to_string(&page).unwrap().contains("<!doctype html>"));
}
