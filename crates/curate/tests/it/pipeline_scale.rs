//! Runs larger than memory, and correct reports: shuffles that must not depend on `memory`, refused memory limits,
//! seeds of stages, contents of the statistics.

use std::collections::BTreeSet;
use std::path::Path;

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::Error;
use fathom_curate::pipeline::{Outcome, Pipeline, Rank, Recipe, RunOptions, Stats};

use super::folder;
use super::pipeline::{bytes_of, column, options, run};

fn load(recipe: &str, input: &Path, out: &Path, settings: &[&str]) -> Result<Pipeline, Error> {
    let layers = Layers::new()
        .text("test", recipe)
        .set(&format!("input.paths=[\"lines={}\"]", input.display()))
        .set(&format!("out={}", out.display()))
        .sets(settings);
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

fn lines(count: u64, longest: u64) -> tempfile::TempDir {
    let line = |n: u64| format!("{{\"text\":\"{n} {}\"}}\n", "text ".repeat((n * 7 % longest) as usize));
    folder(&[("a.jsonl", (0..count).map(line).collect::<String>().as_bytes())])
}

const SHUFFLE: &str = "seed = 5\n[[stage]]\nuse = \"shuffle\"\n";

#[test]
fn a_shuffle_gives_the_same_bytes_whatever_the_memory_and_the_threads() {
    let input = lines(9000, 2400);
    let small = ["memory=40MiB", "input.max_document_bytes=1048576"];
    let spill = tempfile::tempdir().unwrap();
    let elsewhere = format!("spill={}", spill.path().display());
    // 55 MB of text; with 40 MiB a range is partitioned several times, on one thread and on eight.
    let runs =
        [(&[][..], 2), (&small[..], 1), (&small[..], 8), (&["memory=60MiB", small[1], &elsewhere][..], 3)];
    let outs = runs.map(|(settings, threads)| {
        let out = tempfile::tempdir().unwrap();
        let stats =
            run(&load(SHUFFLE, input.path(), out.path(), settings).unwrap(), &options(threads)).unwrap();
        assert!(stats.tables[1].documents == 9000 && stats.tables[1].text_bytes > 50_000_000, "{stats:#?}");
        let files = |folder: &Path| {
            walkdir::WalkDir::new(folder)
                .into_iter()
                .filter(|e| e.as_ref().unwrap().file_type().is_file())
                .count()
        };
        let left = [out.path().join("spill"), spill.path().to_owned()]
            .iter()
            .filter(|f| f.exists())
            .map(|f| files(f))
            .sum::<usize>();
        assert_eq!(left, 0, "files are left");
        out
    });
    // Another `out` would have another subfolder there.
    assert_eq!(std::fs::read_dir(spill.path()).unwrap().count(), 1);
    let shuffled = |out: &Path| {
        let mut files = bytes_of(out);
        files.retain(|name, _| name.starts_with("01-shuffle/part-") && name.ends_with("parquet"));
        files
    };
    let wanted = shuffled(outs[0].path());
    for (out, (settings, threads)) in outs.iter().zip(runs) {
        assert!(wanted == shuffled(out.path()), "{settings:?} on {threads} threads");
    }
    let ids = column(&outs[1].path().join("01-shuffle/part-00000.parquet"), "id");
    assert!(ids.len() == 9000 && ids.is_sorted_by_key(|id| fathom_curate::blend::shuffle_key(5, id)));
}

#[test]
fn too_little_memory_for_the_documents_is_refused_with_what_is_enough() {
    let (input, out) = (lines(10, 5), tempfile::tempdir().unwrap());
    let refusal =
        |settings: &[&str]| load(SHUFFLE, input.path(), out.path(), settings).err().map(|e| e.to_string());
    let said = refusal(&["memory=100MiB"]).unwrap();
    assert!(
        said.contains("`memory`") && said.contains("max_document_bytes") && said.contains("160"),
        "{said}"
    );
    assert!(refusal(&["memory=160MiB"]).is_none());
    assert!(refusal(&["memory=40MiB", "input.max_document_bytes=2000000"]).is_none());
}

#[test]
fn a_stage_has_the_seed_of_the_recipe_unless_it_has_its_own() {
    let input = lines(400, 5);
    let stages = "[[stage]]\nuse = \"split\"\nvalidation = 0.5\ntest = 0.0\n";
    let parts = |settings: &[&str]| {
        let out = tempfile::tempdir().unwrap();
        let pipeline = load(stages, input.path(), out.path(), settings).unwrap();
        run(&pipeline, &options(1)).unwrap();
        column(&out.path().join("00-split/part-00000.parquet"), "split")
    };
    let (one, two) = (parts(&["seed=1"]), parts(&["seed=2"]));
    assert_ne!(one, two);
    assert_eq!(one, parts(&["seed=1"]));
    assert_eq!(one, parts(&["seed=2", "stage.split.seed=1"]));
    assert_eq!(parts(&[]), parts(&["seed=9", "stage.split.seed=0"]));
}

#[test]
fn a_preset_fills_what_is_not_written() {
    let (input, out) = (lines(10, 5), tempfile::tempdir().unwrap());
    let resolved = |stage: &str| {
        let recipe = format!("[[stage]]\nuse = \"fuzzy\"\n{stage}");
        let pipeline = load(&recipe, input.path(), out.path(), &[]);
        pipeline.map(|pipeline| {
            let lines = pipeline.resolved().lines().map(|line| line.split("  # ").next().unwrap().to_owned());
            lines.collect::<BTreeSet<String>>()
        })
    };
    let datatrove = resolved("preset = \"datatrove\"\ncheck = 0.7\n").unwrap();
    for line in ["preset = \"datatrove\"", "bands = 14", "rows = 8", "seed = 1", "check = 0.7"] {
        assert!(datatrove.contains(line), "{line} of {datatrove:?}");
    }
    assert!(datatrove.contains("scheme = \"permutations\""), "{datatrove:?}");
    let narrower = resolved("preset = \"datatrove\"\nrows = 4\nshingles = { words = 3 }\n").unwrap();
    assert!(narrower.contains("rows = 4") && narrower.contains("bands = 14"), "{narrower:?}");
    assert!(narrower.contains("shingles = { words = 3 }"), "{narrower:?}");
    assert!(resolved("").unwrap().contains("bands = 20"));
    let said = resolved("preset = \"nemo\"\n").unwrap_err().to_string();
    assert!(said.contains("stage.fuzzy.preset") && said.contains("datatrove"), "{said}");
}

fn tally<'s>(stats: &'s Stats, name: &str) -> &'s fathom_curate::pipeline::Tally {
    &stats.stages.iter().find(|stage| stage.name == name).unwrap().tally
}

#[test]
fn every_stage_that_writes_a_table_tells_its_lengths() {
    let (input, out) = (lines(300, 60), tempfile::tempdir().unwrap());
    let stages = "[[stage]]\nuse = \"pii\"\n[[stage]]\nuse = \"exact\"\n[[stage]]\nuse = \"paragraphs\"\n\
                  expected_ngrams = 100000\n[[stage]]\nuse = \"substrings\"\nchunk_bytes = 1000000\n[[stage]]\nuse = \"shuffle\"\n";
    let stats = run(&load(stages, input.path(), out.path(), &[]).unwrap(), &options(2)).unwrap();
    for name in ["pii", "exact", "paragraphs", "substrings", "shuffle"] {
        let tally = tally(&stats, name);
        assert_eq!(tally.lengths.total(), tally.documents_out, "{name}");
    }
}

#[test]
fn personal_data_is_counted_by_kind() {
    let text = "Write to ann@example.org or bob@example.org, or call +1 212-555-2368 tomorrow.";
    let line = serde_json::json!({ "text": text }).to_string();
    let (input, out) = (folder(&[("a.jsonl", line.as_bytes())]), tempfile::tempdir().unwrap());
    let pipeline = load("[[stage]]\nuse = \"pii\"\n", input.path(), out.path(), &[]).unwrap();
    let stats = run(&pipeline, &options(1)).unwrap();
    let found = &tally(&stats, "pii").groups["detections"];
    let mails: Vec<u64> =
        found.iter().filter(|(kind, _)| kind.contains("EMAIL")).map(|(_, n)| n.documents).collect();
    assert_eq!(mails, [2], "{found:?}");
    assert!(found.keys().any(|kind| kind.contains("PHONE")), "{found:?}");
}

#[test]
fn ranks_share_signatures_and_files_and_leave_the_same_bytes() {
    let line = |n: u64| {
        let words: String = (0..30).map(|w| format!("word{} ", (n / 2 * 31 + w * w * 7) % 5003)).collect();
        format!("{{\"text\":\"{words}{}\"}}\n", if n.is_multiple_of(2) { "" } else { "again" })
    };
    let file = |from: u64| (from..from + 60).map(line).collect::<String>();
    let input = folder(&[
        ("a.jsonl", file(0).as_bytes()),
        ("b.jsonl", file(40).as_bytes()),
        ("c.jsonl", file(200).as_bytes()),
        // Too short for a shingle.
        ("d.jsonl", b"{\"text\":\"no\"}\n{\"text\":\"yes\"}\n"),
    ]);
    let recipe = "[[stage]]\nuse = \"fuzzy\"\n[[stage]]\nuse = \"write\"\nformat = \"jsonl.gz\"\n";
    let one = tempfile::tempdir().unwrap();
    let of = |out: &Path| load(recipe, input.path(), out, &["input.unit_bytes=100"]).unwrap();
    let stats = run(&of(one.path()), &options(2)).unwrap();
    assert!(tally(&stats, "fuzzy").dropped["near_duplicate"].documents > 80, "{stats:#?}");
    let three = tempfile::tempdir().unwrap();
    let mut done = [false; 3];
    for round in 0..6 {
        for rank in 0..3 {
            let options = RunOptions { rank: Rank { rank, world_size: 3 }, ..options(1) };
            done[rank] = matches!(of(three.path()).run(&options).unwrap(), Outcome::Done(_));
        }
        if round == 0 {
            let shared = |part: usize| three.path().join(format!("01-fuzzy/.shares/part-{part:05}"));
            assert!((0..4).all(|part| shared(part).exists()), "each rank has made its signatures");
        }
    }
    assert_eq!(done, [true; 3]);
    let (wanted, found) = (bytes_of(one.path()), bytes_of(three.path()));
    assert!(wanted.keys().eq(found.keys()), "{:?} and {:?}", wanted.keys(), found.keys());
    assert!(wanted == found);
}
