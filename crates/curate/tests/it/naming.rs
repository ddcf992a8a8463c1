//! Document names: a name and a path below it if the input has a name, otherwise the path as written; and never the
//! same for two documents.

use std::collections::BTreeMap;
use std::path::Path;

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::Error;
use fathom_curate::pipeline::{Pipeline, Recipe};

use super::folder;
use super::pipeline::{bytes_of, options, run};
use super::pipeline_corpus::query;

const RECIPE: &str = r#"
[[stage]]
use = "split"
validation = 0.3
test = 0.2

[[stage]]
use = "blend"
weights = { sea = 1, land = 2 }
target = 200

[[stage]]
use = "shuffle"

[[stage]]
use = "tokenize"
vocab = 260
sample_bytes = 3000
"#;

/// A folder of files in folders, a single file, and a broken line.
fn inputs() -> tempfile::TempDir {
    let line = |n: u64| format!("{{\"text\":\"text {n} of {}\"}}\n", n * n % 97);
    let lines = |from: u64, to: u64| (from..to).map(line).collect::<String>();
    let broken = lines(80, 120) + "{\"text\": broken\n";
    folder(&[
        ("data/sea/a.jsonl", lines(0, 80).as_bytes()),
        ("data/sea/deep/b.jsonl", broken.as_bytes()),
        ("data/sea/note.txt", b"A note of the sea."),
        ("data/land.jsonl", lines(200, 300).as_bytes()),
    ])
}

fn plan(recipe: &str, out: &Path, paths: &[String]) -> Result<Pipeline, Error> {
    let layers = Layers::new()
        .text("test", recipe)
        .set(&format!("input.paths={paths:?}"))
        .set("input.unit_bytes=1500")
        .set(&format!("out={}", out.display()));
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

fn named(input: &Path) -> Vec<String> {
    let at = |name: &str| input.join("data").join(name).display().to_string();
    vec![format!("sea={}", at("sea")), format!("land={}", at("land.jsonl"))]
}

/// Tables and stores of a run, without the manifests, which record the exact inputs.
fn data_of(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = bytes_of(out);
    files.retain(|name, _| !name.ends_with(".json"));
    files
}

#[test]
fn with_a_name_nothing_depends_on_where_the_text_lies() {
    let inputs = [inputs(), inputs()];
    let outs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (input, out) in inputs.iter().zip(&outs) {
        let stats = run(&plan(RECIPE, out.path(), &named(input.path())).unwrap(), &options(2)).unwrap();
        let ids = query(&stats, out.path(), "select id, source from split");
        let has = |id: &str, source: &str| ids.iter().any(|row| row["id"] == id && row["source"] == source);
        assert_eq!(ids.len(), 221);
        assert!(has("sea/a.jsonl#1", "sea") && has("sea/deep/b.jsonl#40", "sea"), "{ids:?}");
        assert!(has("sea/note.txt", "sea") && has("land/land.jsonl#100", "land"), "{ids:?}");
        // Damage is reported with the actual file.
        let damage = &stats.stages[0].tally.damage[0];
        assert_eq!(damage.file, input.path().join("data/sea/deep/b.jsonl").display().to_string());
        assert!(damage.place.contains("line 41"), "{damage}");
    }
    let (a, b) = (data_of(outs[0].path()), data_of(outs[1].path()));
    assert!(a.len() > 8, "{:?}", a.keys());
    let differ: Vec<&String> = a.keys().filter(|name| a.get(*name) != b.get(*name)).collect();
    assert!(differ.is_empty() && a.len() == b.len(), "{differ:?}");
}

#[test]
fn without_a_name_the_path_is_the_name_as_it_was_written() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let data = input.path().join("data").display().to_string();
    let stats = run(&plan("", out.path(), std::slice::from_ref(&data)).unwrap(), &options(1)).unwrap();
    let ids = query(&stats, out.path(), "select id, source from extract");
    let id = format!("{data}/sea/deep/b.jsonl#1");
    assert!(ids.iter().any(|row| row["id"] == id && row["source"] == data), "{ids:?}");
}

#[test]
fn two_files_of_one_name_are_refused_before_anything_is_read() {
    let (input, other, out) = (inputs(), inputs(), tempfile::tempdir().unwrap());
    let at = |dir: &tempfile::TempDir, name: &str| dir.path().join("data").join(name).display().to_string();
    let refusal = |paths: &[String]| plan("", out.path(), paths).err().unwrap().to_string();
    // One name for two folders with a file in common.
    let (first, second) = (at(&input, "sea"), at(&other, "sea"));
    let said = refusal(&[format!("sea={first}"), format!("sea={second}")]);
    assert!(said.contains(&format!("{first}/a.jsonl and {second}/a.jsonl")), "{said}");
    assert!(said.contains("`sea/a.jsonl`") && said.contains("different names"), "{said}");
    // A file and the folder that contains it, named and unnamed.
    let (folder, file) = (at(&input, "sea"), at(&input, "sea/note.txt"));
    for name in ["", "x="] {
        let said = refusal(&[format!("{name}{folder}"), format!("{name}{file}")]);
        assert!(said.contains(&format!("{file} and {file} would both be called")), "{said}");
    }
    assert!(plan("", out.path(), &[format!("a={folder}"), format!("b={file}")]).is_ok());
}
