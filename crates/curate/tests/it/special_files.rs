//! Links inside inputs, and links, devices and pipes in place of output files.
#![cfg(unix)]

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::decontaminate::{DecontaminateOptions, Decontaminator, EvaluationSet};
use fathom_curate::pipeline::{Pipeline, Recipe, save_page};
use fathom_curate::{Error, QualityExamples, QualityTraining, ReadOptions, Reason, train_quality};

use crate::pipeline::{options, run};
use crate::pipeline_corpus::query;
use crate::{dropped, folder, read};

fn plan(input: &Path, out: &Path, settings: &[&str]) -> Result<Pipeline, Error> {
    let layers = Layers::new()
        .text("test", "[[stage]]\nuse = \"exact\"\n")
        .set(&format!("input.paths=in={}", input.display()))
        .set(&format!("out={}", out.display()))
        .sets(settings);
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

/// A folder with links to itself and to another folder, and that other folder.
fn linked() -> (tempfile::TempDir, tempfile::TempDir) {
    let input = folder(&[("a.txt", b"A text."), ("deep/b.txt", b"B text.")]);
    let other = folder(&[("secret.txt", b"Not for training."), ("more/key.txt", b"Nor this.")]);
    let at = |name: &str| input.path().join(name);
    symlink(other.path().join("secret.txt"), at("c.txt")).unwrap();
    symlink(other.path().join("more"), at("d")).unwrap();
    symlink("deep", at("e")).unwrap();
    symlink(at("a.txt"), at("f.txt")).unwrap();
    symlink("../../..", at("deep/g")).unwrap();
    (input, other)
}

#[test]
fn links_lead_no_further_than_their_folder() {
    let (input, _other) = linked();
    let ids = |input: &Path, settings: &[&str]| {
        let out = tempfile::tempdir().unwrap();
        let stats = run(&plan(input, out.path(), settings).unwrap(), &options(1)).unwrap();
        let rows = query(&stats, &out.path().join("spill"), "select id from extract order by id");
        let ids: Vec<String> = rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
        (ids, stats)
    };
    let (found, stats) = ids(input.path(), &[]);
    assert_eq!(found, ["in/a.txt", "in/deep/b.txt", "in/e/b.txt", "in/f.txt"]);
    let tally = &stats.stages[0].tally;
    // `c.txt`, `d`, and `g` below `deep` and below `e`.
    assert_eq!(tally.dropped["unsafe_path"].documents, 4, "{:?}", tally.damage);
    let damage = tally.damage.iter().find(|damage| damage.file.ends_with("/c.txt")).unwrap();
    assert!(damage.detail.contains("secret.txt") && damage.detail.contains("input.follow_links"), "{damage}");
    // Links named by the user are followed, and with the option all links except cycles.
    let named = folder(&[]);
    symlink(input.path(), named.path().join("data")).unwrap();
    assert_eq!(ids(&named.path().join("data"), &[]).0.len(), 4);
    std::fs::remove_file(input.path().join("deep/g")).unwrap();
    let (found, _) = ids(input.path(), &["input.follow_links=true"]);
    assert!(
        found.contains(&"in/c.txt".to_owned()) && found.contains(&"in/d/key.txt".to_owned()),
        "{found:?}"
    );
}

#[test]
fn a_folder_of_links_to_elsewhere_says_what_to_do() {
    let other = folder(&[("blob", b"A text.")]);
    let input = folder(&[]);
    symlink(other.path().join("blob"), input.path().join("a.txt")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let said = plan(input.path(), out.path(), &[]).err().unwrap().to_string();
    assert!(said.contains("1 unsafe path") && said.contains("input.follow_links"), "{said}");
    assert!(run(&plan(input.path(), out.path(), &["input.follow_links=true"]).unwrap(), &options(1)).is_ok());
}

#[test]
fn text_that_is_not_curated_stays_in_its_folder_too() {
    let (input, _other) = linked();
    let (documents, counters) = read(input.path(), &ReadOptions::default()).unwrap();
    assert_eq!((documents.len(), dropped(&counters, Reason::UnsafePath)), (4, 4));
    let refused = Decontaminator::new(&DecontaminateOptions {
        sets: vec![EvaluationSet {
            name: "quiz".into(),
            path: input.path().into(),
            fields: vec!["text".into()],
        }],
        ..DecontaminateOptions::default()
    })
    .err();
    let said = refused.unwrap().to_string();
    assert!(said.contains("a link out of its folder"), "part of a set would be learnt: {said}");
}

#[test]
fn results_replace_files_and_nothing_else() {
    let input = folder(&[("a.txt", b"A text."), ("b.txt", b"B text.")]);
    let outside = folder(&[("precious", b"mine")]);
    let precious = outside.path().join("precious");
    // A link is replaced or refused, and its target is unchanged.
    let whole = tempfile::tempdir().unwrap();
    let stats = run(&plan(input.path(), whole.path(), &[]).unwrap(), &options(1)).unwrap();
    for (name, refused) in [
        ("recipe.toml", false),
        (".recipe.toml.tmp", false),
        ("stats.json", false),
        (".stats.json.tmp", false),
        ("00-extract/.part-00000.parquet.tmp", false),
        ("00-extract/part-00000.json", false),
        (".rank-0-of-1.lock", true),
        ("seconds/rank-0.jsonl", true),
    ] {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(&precious, &path).unwrap();
        let ran = run(&plan(input.path(), out.path(), &[]).unwrap(), &options(1));
        assert_eq!(ran.is_err(), refused, "{name}: {ran:?}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"mine", "{name}");
    }
    // A socket represents all special files; creating devices needs privileges that tests lack.
    for name in ["recipe.toml", "stats.json", "00-extract/part-00000.parquet", "seconds/rank-0.jsonl"] {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _socket = UnixListener::bind(&path).unwrap();
        let said = run(&plan(input.path(), out.path(), &[]).unwrap(), &options(1)).unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("not a file"), "{name}: {said}");
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_file(), "{name} was replaced");
    }
    let out = tempfile::tempdir().unwrap();
    let _socket = UnixListener::bind(out.path().join("report.html")).unwrap();
    assert!(save_page(out.path(), &stats).unwrap_err().to_string().contains("not a file"));
    let model = out.path().join("model.bin");
    let _socket = UnixListener::bind(&model).unwrap();
    let examples = QualityExamples {
        good: vec![input.path().into()],
        other: vec![input.path().into()],
        ..Default::default()
    };
    let refused = train_quality(&examples, &QualityTraining::default(), &model).err().unwrap();
    assert!(refused.to_string().contains("not a file"), "{refused}");
}
