//! `fathom curate` from outside: a run, its page, its tables, and what a kill leaves behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

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

/// Every file that must not depend on how the run went.
fn bytes_of(out: &Path) -> BTreeMap<String, Vec<u8>> {
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
    assert!(said.contains("too_short") && said.contains("duplicate"), "{said}");
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(out.path().join("stats.json")).unwrap()).unwrap();
    let last = stats["tables"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["name"], "exact");
    let page = fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("Funnel") && page.contains("too_short") && !page.contains("http://"));
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
        let mut child = Command::new(env!("CARGO_BIN_EXE_fathom"))
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
    refused(with("stage.length.mim_chars=3"), &["mim_chars", "did you mean `min_chars`"]);
    refused(with("stge=3"), &["did you mean", "stage"]);
    refused(["curate", "comon-crawl"], &["common-crawl"]);
    refused(
        [with("seed=1"), vec!["--rank".into(), "2".into(), "--world-size".into(), "2".into()]].concat(),
        &["rank 2 of 2"],
    );
    let listed = good(["curate", "stages"]);
    assert!(listed.contains("exact") && listed.contains("length"), "{listed}");
    assert!(good(["curate", "stages", "length"]).contains("min_chars = 1"));
}
