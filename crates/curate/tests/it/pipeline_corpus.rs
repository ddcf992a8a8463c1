//! Whole-table stages in a recipe: decontamination, repeated substrings, blending, splitting into stores.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::Error;
use fathom_curate::pipeline::{Pipeline, Recipe, RunOptions, Stats, Tally};
use fathom_curate::tables::{TableOptions, Tables};
use fathom_text::store::Store;
use fathom_text::tokenizer::Tokenizer;
use serde_json::Value;

use super::folder;
use super::pipeline::{bytes_of, options, run};

const QUESTION: &str =
    "Which of the nine captains that left the harbour of Brindle told the truth about the storm";

const NOTICE: &str = "This text may be copied by anybody for any purpose, as long as this notice is copied with it, and \
                      nobody who wrote a part of it answers for what others do with it, on land or at sea. ";

const RECIPE: &str = r#"
[[stage]]
use = "decontaminate"

[[stage]]
use = "substrings"
min_bytes = 120
chunk_bytes = 30000

[[stage]]
use = "split"
validation = 0.2
test = 0.1

[[stage]]
use = "blend"
weights = { wiki = 2, web = 1 }
unit = "bytes"
target = 300000

[[stage]]
use = "tokenize"
vocab = 300
sample_bytes = 30000
"#;

/// A unique sentence per number.
fn sentence(n: u64) -> String {
    let syllables = ["ba", "den", "for", "il", "ka", "lum", "me", "no", "pra", "si", "tur", "ve"];
    let word = |w: u64| {
        let mut state = (n * 16 + w + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut text = String::new();
        for _ in 0..3 {
            state ^= state >> 29;
            state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            text.push_str(syllables[(state >> 40) as usize % 12]);
        }
        text
    };
    format!("The {}. ", (0..10).map(word).collect::<Vec<_>>().join(" "))
}

/// Two sources. Every tenth document of `wiki` contains the question, every seventh of `web` the notice.
fn inputs() -> tempfile::TempDir {
    let text = |n: u64| (0..8).map(|s| sentence(n * 8 + s)).collect::<String>();
    let line = |text: String| serde_json::json!({ "text": text }).to_string() + "\n";
    let wiki = |n: u64| match n % 10 {
        3 => line(format!("{}{QUESTION}? {}", text(n), text(n + 10_000))),
        _ => line(text(n)),
    };
    let web = |n: u64| match n % 7 {
        2 => line(format!("{}{NOTICE}{}", text(n + 20_000), sentence(n + 900_000))),
        _ => line(text(n + 20_000)),
    };
    let question = serde_json::json!({ "question": QUESTION, "answer": "None." }).to_string();
    folder(&[
        ("wiki/a.jsonl", (0..60).map(wiki).collect::<String>().as_bytes()),
        ("wiki/b.jsonl", (60..90).map(wiki).collect::<String>().as_bytes()),
        ("web/a.jsonl", (0..210).map(web).collect::<String>().as_bytes()),
        ("quiz.jsonl", question.as_bytes()),
    ])
}

fn pipeline(input: &Path, out: &Path, settings: &[&str]) -> Pipeline {
    let at = |name: &str| input.join(name).display().to_string();
    let set = format!("{{ name = \"quiz\", path = {:?}, fields = [\"question\"] }}", at("quiz.jsonl"));
    let recipe =
        RECIPE.replacen("use = \"decontaminate\"", &format!("use = \"decontaminate\"\nsets = [{set}]"), 1);
    let layers = Layers::new()
        .text("test", &recipe)
        .set(&format!("input.paths=[\"wiki={}\", \"web={}\"]", at("wiki"), at("web")))
        .set("input.unit_bytes=40000")
        .set(&format!("out={}", out.display()))
        .sets(settings);
    Pipeline::new(&Loaded::<Recipe>::load(layers).unwrap()).unwrap()
}

fn tally<'s>(stats: &'s Stats, name: &str) -> &'s Tally {
    &stats.stages.iter().find(|stage| stage.name == name).unwrap().tally
}

/// A database without tables.
fn tables(spill: &Path) -> Tables {
    Tables::new(&TableOptions { memory_bytes: 64 << 20, spill: spill.to_owned() }).unwrap()
}

/// The rows of a query over the tables of a run.
pub fn query(stats: &Stats, spill: &Path, sql: &str) -> Vec<BTreeMap<String, Value>> {
    let mut tables = tables(spill);
    stats.tables.iter().for_each(|table| tables.register(&table.name, &table.folder).unwrap());
    rows(&tables, sql)
}

fn rows(tables: &Tables, sql: &str) -> Vec<BTreeMap<String, Value>> {
    let answer = tables.query(sql).unwrap();
    answer.rows.into_iter().map(|row| answer.names.iter().cloned().zip(row).collect()).collect()
}

fn texts(stats: &Stats, out: &Path, table: &str) -> Vec<(String, String)> {
    let rows = query(stats, &out.join("spill"), &format!("select id, text from {table} order by id"));
    let of = |row: &BTreeMap<String, Value>, name: &str| row[name].as_str().unwrap().to_owned();
    rows.iter().map(|row| (of(row, "id"), of(row, "text"))).collect()
}

#[test]
fn leaks_and_repeats_are_cut_and_sources_weighed() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let stats = run(&pipeline(input.path(), out.path(), &[]), &options(2)).unwrap();

    // Nine documents contain the question; each is split into the text before and after it.
    let cut = &tally(&stats, "decontaminate").groups["cut"]["documents cut"];
    assert_eq!(cut.documents, 9);
    assert_eq!(
        (tally(&stats, "decontaminate").documents_in, tally(&stats, "decontaminate").documents_out),
        (300, 309)
    );
    assert_eq!(tally(&stats, "decontaminate").groups["found in documents"]["quiz"].documents, 9);
    let clean = texts(&stats, out.path(), "decontaminate");
    assert!(clean.iter().all(|(_, text)| !text.contains("captains") && text.len() > 200));
    assert_eq!(clean.iter().filter(|(id, _)| id.contains("wiki") && id.ends_with("/2")).count(), 9);
    let report = std::fs::read(out.path().join("01-decontaminate/report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert!(
        report["tasks"][0]["task"] == "quiz" && report["tasks"][0]["matches"].as_u64() > Some(8),
        "{report}"
    );

    // Lengths are measured after every stage that writes a table.
    for name in ["decontaminate", "substrings", "blend"] {
        assert_eq!(tally(&stats, name).lengths.total(), tally(&stats, name).documents_out, "{name}");
    }

    // One of thirty notices is left, and nothing else has become shorter.
    assert_eq!(clean.iter().filter(|(_, text)| text.contains(NOTICE)).count(), 30);
    let distinct = texts(&stats, out.path(), "substrings");
    assert_eq!(distinct.len(), clean.len());
    assert_eq!(distinct.iter().filter(|(_, text)| text.contains(NOTICE)).count(), 1);
    let shorter: Vec<usize> =
        clean.iter().zip(&distinct).map(|(a, b)| a.1.len() - b.1.len()).filter(|cut| *cut > 0).collect();
    assert_eq!(shorter.len(), 29);
    assert!(shorter.iter().all(|cut| (NOTICE.len()..NOTICE.len() + 40).contains(cut)), "{shorter:?}");

    // Two bytes of `wiki`, which must be repeated, for each byte of `web`.
    let drawn = &tally(&stats, "blend").groups["source"];
    let (wiki, web) = (drawn["wiki"].bytes as f64, drawn["web"].bytes as f64);
    assert!((wiki / web - 2.0).abs() < 0.03 && (300_000.0..302_000.0).contains(&(wiki + web)), "{drawn:?}");
    let blended = query(&stats, out.path(), "select count(*) as n, count(distinct id) as ids from blend");
    assert!(blended[0]["n"] == blended[0]["ids"], "copies have ids of their own: {blended:?}");
    let blend = tally(&stats, "blend");
    let copies: u64 = blend.groups["copies"].values().map(|d| d.documents).sum();
    assert_eq!(blend.documents_in + copies, blend.documents_out + blend.dropped["not_drawn"].documents);
}

#[test]
fn what_a_blend_cannot_do_is_said() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let made = |settings: &[&str]| {
        let layers = Layers::new()
            .text("test", "[[stage]]\nuse = \"blend\"\n\n[[stage]]\nuse = \"split\"\nvalidation = 0.3")
            .set(&format!("input.paths=[\"wiki={0}/wiki\", \"web={0}/web\"]", input.path().display()))
            .set(&format!("out={}", out.path().display()))
            .sets(settings);
        Pipeline::new(&Loaded::<Recipe>::load(layers).unwrap())
    };
    let refused = |settings: &[&str]| match made(settings) {
        Err(error) => error.to_string(),
        Ok(pipeline) => pipeline.run(&options(2)).unwrap_err().to_string(),
    };
    let no_size = refused(&["stage.blend.weights={ wiki = 2, web = 1 }"]);
    assert!(no_size.contains("give `target`"), "{no_size}");
    let one_source = refused(&["stage.blend.weights={ wiki = 2 }"]);
    assert!(one_source.contains("nothing for `web`"), "{one_source}");

    let said = Arc::new(std::sync::Mutex::new(String::new()));
    let lines = said.clone();
    let run_options = RunOptions {
        say: Some(Arc::new(move |line: &str| lines.lock().unwrap().push_str(line))),
        ..options(2)
    };
    let weights = "stage.blend.weights={ wiki = 2, web = 1 }";
    run(&made(&[weights, "stage.blend.target=1000", "stage.blend.once=true"]).unwrap(), &run_options)
        .unwrap();
    assert!(said.lock().unwrap().contains("300 documents of 1\u{202f}000"), "{said:?}");

    // Copies are in the same split as their original.
    let stats = run(&made(&[weights, "stage.blend.target=600"]).unwrap(), &options(2)).unwrap();
    let rows = query(&stats, out.path(), "select id, split from split");
    let sides: BTreeMap<&str, &Value> =
        rows.iter().map(|row| (row["id"].as_str().unwrap(), &row["split"])).collect();
    let copied: Vec<_> =
        sides.iter().filter_map(|(id, side)| Some((id.split_once("~copy")?.0, side))).collect();
    assert!(copied.len() > 200 && copied.iter().all(|(id, side)| sides[id] == **side), "{copied:?}");
}

#[test]
fn sets_of_a_recipe_may_be_paths() {
    let input = inputs();
    let (out, quiz) = (tempfile::tempdir().unwrap(), input.path().join("quiz.jsonl"));
    let recipe = |sets: &str| {
        let layers = Layers::new()
            .text("test", "[[stage]]\nuse = \"decontaminate\"\n")
            .set(&format!("input.paths={}", input.path().join("wiki").display()))
            .set(&format!("out={}", out.path().display()))
            .set(&format!("stage.decontaminate.sets={sets}"));
        Pipeline::new(&Loaded::<Recipe>::load(layers).unwrap()).map(|_| ()).map_err(|e| e.to_string())
    };
    let error = recipe(&format!("[{:?}]", quiz.display().to_string())).unwrap_err();
    assert!(error.contains("text is in answer, question"), "{error}");
    let error = recipe("[]").unwrap_err();
    assert!(error.contains("name the evaluation sets"), "{error}");
    let error = recipe("5").unwrap_err();
    assert!(error.contains("expected a list, each text or { name"), "{error}");
    recipe(&format!("[{{ path = {:?}, fields = [\"question\"] }}]", quiz.display().to_string())).unwrap();
}

#[test]
fn every_split_has_its_own_store() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let stats =
        run(&pipeline(input.path(), out.path(), &["stage.tokenize.prefix=sea"]), &options(2)).unwrap();
    let folder = out.path().join("05-tokenize");
    let tokenizer = Tokenizer::from_dir(folder.join("tokenizer")).unwrap();
    let table = query(&stats, out.path(), "select id, text, source, split from blend");
    let mut tables = tables(out.path());
    tables.register("documents", &folder).unwrap();
    let documents = rows(&tables, "select * from documents");
    assert_eq!(documents.len(), table.len());
    let mut stored = 0;
    for name in ["train", "validation", "test"] {
        let store = Store::open(folder.join(format!("sea-{name}"))).unwrap();
        assert_eq!(tally(&stats, "tokenize").groups["store"][name].documents, store.num_documents() as u64);
        let own: Vec<_> = table.iter().filter(|row| row["split"] == name).collect();
        let listed: Vec<_> = documents.iter().filter(|row| row["split"] == name).collect();
        assert!(own.len() == store.num_documents() && own.len() > 15, "{name}: {}", own.len());
        assert_eq!(listed.last().unwrap()["end"].as_u64(), Some(store.num_tokens()));
        for (number, (row, line)) in own.iter().zip(listed).enumerate() {
            let ids = store.doc(number).unwrap();
            assert_eq!(tokenizer.decode_text(&ids[..ids.len() - 1]), row["text"].as_str().unwrap());
            assert_eq!((&line["id"], line["tokens"].as_u64()), (&row["id"], Some(ids.len() as u64)));
            let source = store.doc_meta(number).unwrap().source as usize;
            assert_eq!(store.header().unwrap().sources[source], row["source"].as_str().unwrap());
        }
        stored += own.len();
    }
    assert_eq!(stored, table.len());

    // Without a prefix the splits name the stores; without splits there is one.
    let other = |settings: &[&str]| {
        let out = tempfile::tempdir().unwrap();
        run(&pipeline(input.path(), out.path(), settings), &options(2)).unwrap();
        let names = std::fs::read_dir(out.path().join("05-tokenize")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".idx")).collect();
        names.sort();
        names
    };
    assert_eq!(other(&[]), ["test.idx", "train.idx", "validation.idx"]);
    assert_eq!(other(&["stage.tokenize.split=none"]), ["train.idx"]);
    let refused = |settings: &[&str]| {
        let out = tempfile::tempdir().unwrap();
        run(&pipeline(input.path(), out.path(), settings), &options(2)).unwrap_err().to_string()
    };
    let said = refused(&["stage.tokenize.split=shard"]);
    assert!(said.contains("divides by `shard`"), "{said}");
    let said = refused(&["stage.tokenize.split=id"]);
    assert!(said.contains("letters, digits") && said.contains("wiki"), "{said}");
}

#[test]
fn stopped_in_any_stage_and_run_again_gives_the_same_bytes() {
    let input = inputs();
    let whole = tempfile::tempdir().unwrap();
    let stop_at = |n: usize, asked: &Arc<AtomicUsize>| {
        let asked = asked.clone();
        let stop = move |_: &str| asked.fetch_add(1, Ordering::SeqCst) + 1 == n;
        RunOptions { stop: Some(Arc::new(stop)), ..options(2) }
    };
    let asked = Arc::new(AtomicUsize::new(0));
    run(&pipeline(input.path(), whole.path(), &[]), &stop_at(usize::MAX, &asked)).unwrap();
    let wanted = bytes_of(whole.path());
    let one = tempfile::tempdir().unwrap();
    run(&pipeline(input.path(), one.path(), &[]), &options(1)).unwrap();
    assert!(wanted == bytes_of(one.path()), "one thread");
    let points = asked.load(Ordering::SeqCst);
    let mut stopped_in = BTreeMap::new();
    for n in (1..=points).step_by(points / 10) {
        let out = tempfile::tempdir().unwrap();
        let pipeline = pipeline(input.path(), out.path(), &[]);
        let stopped = pipeline.run(&stop_at(n, &Arc::new(AtomicUsize::new(0))));
        assert!(matches!(stopped, Err(Error::Interrupted { .. })), "point {n}: {stopped:?}");
        let folders = std::fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let last = folders.filter(|name| name.to_string_lossy().starts_with('0')).max().unwrap();
        *stopped_in.entry(last).or_insert(0) += 1;
        run(&pipeline, &options(2)).unwrap();
        assert!(wanted == bytes_of(out.path()), "stopped at point {n} of {points}");
    }
    for stage in ["01-decontaminate", "02-substrings", "04-blend"] {
        assert!(stopped_in.contains_key(std::ffi::OsStr::new(stage)), "{stage}: {stopped_in:?}");
    }
}
