//! End-to-end curation: its results, and their independence of how it was run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::Error;
use fathom_curate::pipeline::{Outcome, Pipeline, Rank, Recipe, RunOptions, Stats};

use super::folder;

/// Two files of JSON lines with a damaged line and repetitions, and a folder of small texts.
fn inputs() -> tempfile::TempDir {
    let line = |n: usize| {
        let words: Vec<String> = (0..n % 40).map(|w| format!("word{}", (w * n) % 97)).collect();
        format!("{{\"text\":\"{} {}\",\"n\":{n}}}\n", n % 150, words.join(" "))
    };
    let first: String = (0..3000).map(line).collect();
    let second: String = (2000..4500).map(line).chain(["{\"text\": broken\n".to_string()]).collect();
    folder(&[
        ("a.jsonl", first.as_bytes()),
        ("b.jsonl", second.as_bytes()),
        ("notes/one.txt", b"The first note."),
        ("notes/two.md", b"The second note."),
        ("notes/three.bin", b"\0\0"),
    ])
}

const RECIPE: &str = r#"
[[stage]]
use = "length"
min_chars = 12
max_chars = 180

[[stage]]
use = "exact"

[[stage]]
use = "slice"
chars = 60
"#;

fn pipeline(input: &Path, out: &Path, settings: &[&str]) -> Result<Pipeline, Error> {
    let paths = ["a.jsonl", "b.jsonl", "notes"].map(|name| format!("{:?}", input.join(name)));
    let layers = Layers::new()
        .text("test", RECIPE)
        .set(&format!("input.paths=[{}]", paths.join(",")))
        .set(&format!("out={}", out.display()))
        .sets(settings);
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

pub fn options(threads: usize) -> RunOptions {
    RunOptions { threads, ..RunOptions::default() }
}

pub fn run(pipeline: &Pipeline, options: &RunOptions) -> Result<Stats, Error> {
    match pipeline.run(options)? {
        Outcome::Done(stats) => Ok(*stats),
        Outcome::Waiting { stage, missing } => panic!("waits at {stage:?} for {missing:?}"),
    }
}

/// Contents of every file that must not depend on the course of the run.
pub fn bytes_of(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = walkdir::WalkDir::new(out).into_iter().map(|entry| entry.unwrap());
    let files = files.filter(|entry| entry.file_type().is_file()).map(|entry| entry.into_path());
    files
        .map(|path| (path.strip_prefix(out).unwrap().display().to_string(), path))
        .filter(|(name, _)| !name.starts_with("seconds") && name != "stats.json" && name != "recipe.toml")
        .filter(|(name, _)| !name.starts_with(".rank-"))
        .map(|(name, path)| (name, std::fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_recipe_counts_what_every_stage_did() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let pipeline = pipeline(input.path(), out.path(), &[]).unwrap();
    let stats = run(&pipeline, &options(2)).unwrap();
    let names: Vec<&str> = stats.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["read", "extract", "length", "exact", "slice"]);
    let [read, extract, length, exact, slice] = &stats.stages[..] else { panic!("five stages") };
    assert_eq!(extract.tally.groups["content"]["text"].documents, 5502);
    assert_eq!(read.tally.documents_out, 5502);
    assert_eq!(read.tally.dropped["bad_json"].documents, 1);
    assert_eq!(read.tally.dropped["no_reader"].documents, 1);
    assert!(read.tally.damage[0].place.contains("line 2501"), "{:?}", read.tally.damage);
    for stage in &stats.stages {
        let tally = &stage.tally;
        let all = tally.documents_out + tally.dropped_documents();
        assert_eq!(tally.documents_in, all, "{}: what comes in goes out or is dropped", stage.name);
    }
    assert!(
        length.tally.dropped["min_chars"].documents > 0 && length.tally.dropped["max_chars"].documents > 0
    );
    let chars = &length.tally.scores["chars"];
    assert_eq!(chars.histogram.total(), 5502);
    assert_eq!((chars.kept.len(), chars.dropped.len()), (4, 4));
    assert!(chars.dropped.windows(2).all(|pair| pair[0].distance <= pair[1].distance));
    assert!(chars.dropped[0].distance <= 2.0, "{:?}", chars.dropped);
    assert!(exact.tally.dropped["duplicate"].documents >= 500);
    assert_eq!(slice.tally.documents_out, exact.tally.documents_out);
    let tables: Vec<(&str, usize)> = stats.tables.iter().map(|t| (t.name.as_str(), t.parts)).collect();
    assert_eq!(tables, [("length", 3), ("exact", 3), ("slice", 3)]);
}

#[test]
fn threads_and_ranks_change_no_byte() {
    let input = inputs();
    let outs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let of = |i: usize| pipeline(input.path(), outs[i].path(), &[]).unwrap();
    run(&of(0), &options(1)).unwrap();
    let wanted = bytes_of(outs[0].path());
    assert!(wanted.len() >= 19, "{:?}", wanted.keys());
    run(&of(1), &options(3)).unwrap();
    assert!(wanted == bytes_of(outs[1].path()), "three threads");
    let rank = |rank| RunOptions { rank: Rank { rank, world_size: 2 }, ..options(1) };
    let waiting = |outcome| match outcome {
        Outcome::Waiting { stage, missing } => (stage, missing),
        Outcome::Done(_) => panic!("half of the parts cannot be all"),
    };
    // Rank 0 waits for rank 1's part, rank 1 for the whole table, then both are done with their share of the rest.
    let (stage, missing) = waiting(of(2).run(&rank(0)).unwrap());
    assert_eq!(stage.as_deref(), Some("exact"));
    assert!(
        missing.len() == 1 && missing[0].ends_with("00-length/part-00001.parquet (rank 1)"),
        "{missing:?}"
    );
    let (stage, missing) = waiting(of(2).run(&rank(1)).unwrap());
    assert_eq!((stage.as_deref(), missing.len()), (Some("exact"), 1));
    assert!(missing[0].ends_with("table.json (rank 0)"), "{missing:?}");
    assert_eq!(waiting(of(2).run(&rank(0)).unwrap()).0, None);
    assert!(matches!(of(2).run(&rank(1)).unwrap(), Outcome::Done(_)));
    assert!(wanted == bytes_of(outs[2].path()), "two ranks");
}

#[test]
fn stopped_anywhere_and_run_again_gives_the_same_bytes() {
    let input = inputs();
    let whole = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let stop_at = |n: usize, asked: &Arc<AtomicUsize>| {
        let asked = asked.clone();
        let stop = move |_: &str| asked.fetch_add(1, Ordering::SeqCst) + 1 == n;
        RunOptions { stop: Some(Arc::new(stop)), ..options(2) }
    };
    run(&pipeline(input.path(), whole.path(), &[]).unwrap(), &stop_at(usize::MAX, &asked)).unwrap();
    let wanted = bytes_of(whole.path());
    let points = asked.load(Ordering::SeqCst);
    assert!(points > 40, "{points} points");
    for n in (1..=points).step_by(3) {
        let out = tempfile::tempdir().unwrap();
        let pipeline = pipeline(input.path(), out.path(), &[]).unwrap();
        let stopped = pipeline.run(&stop_at(n, &Arc::new(AtomicUsize::new(0))));
        assert!(matches!(stopped, Err(Error::Interrupted { .. })), "point {n}: {stopped:?}");
        run(&pipeline, &options(2)).unwrap();
        assert!(wanted == bytes_of(out.path()), "stopped at point {n} of {points}");
    }
}

#[test]
fn only_what_changed_is_made_again() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let first = pipeline(input.path(), out.path(), &[]).unwrap();
    run(&first, &options(1)).unwrap();
    let changed = |name: &str| {
        let metadata = std::fs::metadata(out.path().join(name)).unwrap();
        metadata.modified().unwrap()
    };
    let before =
        ["00-length/part-00001.parquet", "01-exact/part-00000.parquet", "02-slice/part-00000.parquet"];
    let times = before.map(changed);
    run(&first, &options(1)).unwrap();
    assert_eq!(before.map(changed), times, "nothing was missing");
    let other = pipeline(input.path(), out.path(), &["stage.slice.chars=50"]).unwrap();
    run(&other, &options(1)).unwrap();
    let after = before.map(changed);
    assert_eq!(after[..2], times[..2]);
    assert_ne!(after[2], times[2]);
    // A torn or missing part is made again.
    std::fs::write(out.path().join(before[0]), b"torn").unwrap();
    std::fs::remove_file(out.path().join("00-length/part-00002.parquet")).unwrap();
    run(&other, &options(1)).unwrap();
    assert!(changed(before[0]) > times[0]);
}

#[test]
fn mistakes_are_reported_with_their_place() {
    let input = inputs();
    let out = tempfile::tempdir().unwrap();
    let refusal = |settings: &[&str]| pipeline(input.path(), out.path(), settings).err().unwrap().to_string();
    let said = refusal(&["stage.0.use=lenght"]);
    assert!(said.contains("no stage is called `lenght`; did you mean `length`?"), "{said}");
    let said = refusal(&["stage.length.min_char=3"]);
    assert!(said.contains("`stage.length.min_char`: unknown option; did you mean `min_chars`"), "{said}");
    assert!(said.starts_with("command line"), "{said}");
    let said = refusal(&["stage.length.min_chars=many"]);
    assert!(said.contains("`stage.length.min_chars`") && said.contains("whole number"), "{said}");
    let said = refusal(&["stage.0.min_chars=many"]);
    assert!(said.contains("`stage.0.min_chars`"), "as it was typed: {said}");
    let said = refusal(&[r#"stage=[{use="length", name="short", min_chars=9, max_chars=3}]"#]);
    assert!(said.contains("`stage.short.min_chars`") && said.contains("above `max_chars`"), "{said}");
    let said = refusal(&["stage.2.use=length"]);
    assert!(said.contains("two stages are called `length`"), "{said}");
    let said = refusal(&["input.paths=[\"/nowhere/at-all\"]"]);
    assert!(said.contains("/nowhere/at-all"), "{said}");
}

#[test]
fn the_resolved_recipe_loads_to_the_same() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let first = pipeline(input.path(), out.path(), &[]).unwrap();
    let again = Layers::new().text("again", first.resolved());
    let again = Pipeline::new(&Loaded::<Recipe>::load(again).unwrap()).unwrap();
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  # ").next().unwrap_or_default().to_string()).collect()
    };
    assert_eq!(values(first.resolved()), values(again.resolved()));
    run(&first, &options(1)).unwrap();
    let wanted = bytes_of(out.path());
    run(&again, &options(1)).unwrap();
    assert!(wanted == bytes_of(out.path()));
}

/// A secret is not saved with the recipe, and its placeholder is not accepted as a secret.
#[test]
fn a_saved_recipe_asks_for_its_secret() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let stage = r#"stage=[{use="pii", action="replace", salt="of mine"}]"#;
    let first = pipeline(input.path(), out.path(), &[stage]).unwrap();
    let text = first.resolved();
    assert!(!text.contains("of mine"), "{text}");
    let again = |sets: &[String]| {
        let loaded = Loaded::<Recipe>::load(Layers::new().text("again", text).sets(sets)).unwrap();
        Pipeline::new(&loaded)
    };
    let said = again(&[]).err().unwrap().to_string();
    assert!(said.contains("recipe again, line ") && said.contains("`stage.pii.salt`"), "{said}");
    assert!(said.contains("since it is secret; give the same text again"), "{said}");
    let given = again(&["stage.pii.salt=of mine".to_owned()]).unwrap();
    assert!(!given.resolved().contains("of mine"));
    run(&first, &options(1)).unwrap();
    let wanted = bytes_of(out.path());
    run(&given, &options(1)).unwrap();
    assert!(wanted == bytes_of(out.path()));
}

const WHOLE: &str = r#"
memory = "96MiB"

[input]
max_document_bytes = 1048576

[[stage]]
use = "clean"

[[stage]]
use = "language"
min_score = 0.0
max_bytes = 1000

[[stage]]
use = "heuristics"
word_count = [5, 1000]
without = ["common_english_words", "repeating_top_2grams", "repeating_top_3grams", "repeating_top_4grams"]

[[stage]]
use = "pii"

[[stage]]
use = "exact"

[[stage]]
use = "fuzzy"

[[stage]]
use = "paragraphs"
expected_ngrams = 100000

[[stage]]
use = "shuffle"

[[stage]]
use = "write"
format = "jsonl.gz"

[[stage]]
use = "tokenize"
vocab = 300
sample_bytes = 100000
"#;

/// Documents of made-up words, some of them near-duplicates.
fn prose() -> tempfile::TempDir {
    let word = |n: u64| {
        let syllables = ["ba", "den", "for", "il", "ka", "lum", "me", "no", "pra", "si", "tur", "ve"];
        (0..2 + n % 3).map(|s| syllables[((n * 7 + s * 5 + n / 11) % 12) as usize]).collect::<String>()
    };
    let sentence = |n: u64| {
        let words: Vec<String> = (0..9).map(|w| word((n * 31 + w * w * 17 + w) % 997)).collect();
        format!("The {}.", words.join(" "))
    };
    let text = |n: u64| {
        let sentences: Vec<String> = (0..6 + n % 9).map(|s| sentence(n * 13 + s)).collect();
        sentences.join(" ")
    };
    let file = |from: u64, to: u64| -> String {
        let line = |n: u64| {
            // Every fifth text differs from the one before in one word.
            let text = if n % 5 == 4 { text(n - 1).replacen("The", "Some", 1) } else { text(n) };
            format!("{{\"text\":\"{text} Write to ann{n}@example.org.\"}}\n")
        };
        (from..to).map(line).collect()
    };
    folder(&[("a.jsonl", file(0, 700).as_bytes()), ("b.jsonl", file(600, 1200).as_bytes())])
}

fn whole(input: &Path, out: &Path) -> Pipeline {
    let layers = Layers::new()
        .text("whole", WHOLE)
        .set(&format!("input.paths=[\"prose={}\"]", input.display()))
        .set("input.unit_bytes=100000")
        .set(&format!("out={}", out.display()));
    Pipeline::new(&Loaded::<Recipe>::load(layers).unwrap()).unwrap()
}

#[test]
fn all_stages_together_give_the_same_bytes_on_any_threads() {
    let input = prose();
    let [one, three] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let stats = run(&whole(input.path(), one.path()), &options(1)).unwrap();
    let dropped = |stage: &str, reason: &str| {
        let stage = stats.stages.iter().find(|s| s.name == stage).unwrap();
        stage.tally.dropped.get(reason).map_or(0, |d| d.documents)
    };
    assert!(dropped("fuzzy", "near_duplicate") > 50, "{stats:#?}");
    for stage in &stats.stages {
        let tally = &stage.tally;
        assert_eq!(tally.documents_in, tally.documents_out + tally.dropped_documents(), "{}", stage.name);
    }
    let last = stats.stages.last().unwrap();
    // About 600 remain after `fuzzy`, a hundred after `paragraphs`, plus or minus four depending on the hash seed.
    assert!(last.name == "tokenize" && last.tally.documents_in > 80);
    assert_eq!(last.tally.scores["tokens"].histogram.total(), last.tally.documents_in);
    let store = fathom_text::store::Store::open(one.path().join("06-tokenize/train")).unwrap();
    assert_eq!(store.num_documents() as u64, last.tally.documents_in);
    run(&whole(input.path(), three.path()), &options(3)).unwrap();
    let (a, b) = (bytes_of(one.path()), bytes_of(three.path()));
    let differ: Vec<&String> = a.keys().filter(|key| a.get(*key) != b.get(*key)).collect();
    assert!(differ.is_empty() && a.len() == b.len(), "{differ:?}");
    let page = fathom_curate::pipeline::report_page(&stats);
    for title in ["Funnel", "Reasons", "Lengths", "Scores", "Duplicates", "near_duplicate", "<svg"] {
        assert!(page.contains(title), "{title}");
    }
}

/// The values of a text column of a part, in order.
pub fn column(part: &Path, name: &str) -> Vec<String> {
    let file = std::fs::File::open(part).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let batches = reader.build().unwrap().map(Result::unwrap);
    let values = |batch: arrow_array::RecordBatch| -> Vec<String> {
        let column = batch.column_by_name(name).unwrap();
        let column = column.as_any().downcast_ref::<arrow_array::StringArray>().unwrap();
        column.iter().map(|value| value.unwrap().to_owned()).collect()
    };
    batches.flat_map(values).collect()
}

#[test]
fn queries_see_the_tables() {
    use fathom_curate::tables::{TableOptions, Tables, text_table};
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let stats = run(&pipeline(input.path(), out.path(), &[]).unwrap(), &options(1)).unwrap();
    let options = TableOptions { memory_bytes: 64 << 20, spill: out.path().join("spill") };
    let mut tables = Tables::new(&options).unwrap();
    for table in &stats.tables {
        tables.register(&table.name, &table.folder).unwrap();
    }
    let sql = "select count(*) as n, sum(character_length(text)) as chars from exact";
    let answer = tables.query(sql).unwrap();
    assert_eq!(answer.names, ["n", "chars"]);
    assert_eq!(answer.rows[0][0].as_u64(), Some(stats.tables[1].documents));
    let shown = text_table(&tables.query("select id, source from slice order by id limit 3").unwrap());
    assert!(shown.starts_with("id ") && shown.lines().count() == 5, "{shown}");
    let refused = tables.query("drop table exact").unwrap_err().to_string();
    assert!(refused.contains("DDL"), "{refused}");
    let unknown = tables.query("select nothing from exact").unwrap_err().to_string();
    assert!(unknown.contains("nothing"), "{unknown}");
}

#[test]
fn shipped_recipes_can_be_planned() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/curate");
    let mut count = 0;
    for entry in std::fs::read_dir(recipes).unwrap() {
        let path = entry.unwrap().path();
        let layers = Layers::new()
            .file(&path)
            .set(&format!("input.paths=[{:?}]", input.path()))
            .set(&format!("out={}", out.path().display()));
        let loaded = Loaded::<Recipe>::load(layers).unwrap();
        let planned = Pipeline::new(&loaded).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(planned.resolved().contains("tokenize"), "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn a_folder_keeps_only_what_its_recipe_makes() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    // Written by another program, in a folder without an earlier curation.
    std::fs::create_dir(out.path().join("06-spark")).unwrap();
    std::fs::write(out.path().join("06-spark/part-00000.parquet"), "kept").unwrap();
    run(&pipeline(input.path(), out.path(), &[]).unwrap(), &options(2)).unwrap();
    assert!(out.path().join("06-spark/part-00000.parquet").exists());
    std::fs::remove_dir_all(out.path().join("06-spark")).unwrap();
    std::fs::create_dir(out.path().join("07-notes")).unwrap();
    std::fs::write(out.path().join("07-notes/part-1.txt"), "kept").unwrap();
    // The same stages under another name: the table of the old name is removed, foreign files stay.
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let lines = said.clone();
    let run_options = RunOptions {
        say: Some(Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()))),
        ..options(2)
    };
    run(&pipeline(input.path(), out.path(), &["stage.exact.name=unique"]).unwrap(), &run_options).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(out.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('0'))
        .collect();
    names.sort();
    assert_eq!(names, ["00-length", "01-unique", "02-slice", "07-notes"]);
    assert!(said.lock().unwrap().iter().any(|line| line.contains("01-exact")), "{said:?}");

    // Other inputs are another curation.
    let other = inputs();
    let before = bytes_of(out.path());
    let refused = pipeline(other.path(), out.path(), &[]).unwrap().run(&options(2)).unwrap_err();
    assert!(matches!(refused, Error::OtherCuration { .. }), "{refused}");
    assert!(before == bytes_of(out.path()), "nothing was touched");
}

#[test]
fn a_folder_that_no_curation_made_is_not_emptied_because_of_its_name() {
    for name in ["00-length", "01-exact", "spill"] {
        let (input, out) = (inputs(), tempfile::tempdir().unwrap());
        std::fs::create_dir(out.path().join(name)).unwrap();
        std::fs::write(out.path().join(name).join("notes.txt"), "mine").unwrap();
        let before = bytes_of(out.path());
        let refused = pipeline(input.path(), out.path(), &[]).unwrap().run(&options(2)).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains(name) && said.contains("no curation made it"), "{said}");
        assert!(before == bytes_of(out.path()), "{name}: nothing was touched");
    }
}

#[test]
fn a_column_that_no_stage_adds_is_missed_before_anything_is_read() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let recipe = format!("{RECIPE}\n[[stage]]\nuse = \"write\"\ncolumns = [\"id\", \"txet\"]\n");
    let layers = Layers::new()
        .text("test", &recipe)
        .set(&format!("input.paths=[{:?}]", input.path()))
        .set(&format!("out={}", out.path().display()));
    let refused =
        Pipeline::new(&Loaded::<Recipe>::load(layers).unwrap()).unwrap().run(&options(2)).unwrap_err();
    assert!(refused.to_string().contains("`txet`, the table has id, "), "{refused}");
    assert!(!out.path().join("00-length").exists());
}
