//! A corpus whose texts pass through a curation first.

use std::fs;

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::pipeline::{Outcome, RunOptions};
use fathom_curate::*;
use fathom_text::store::Store;

use crate::folder;

const CODE: &str = r#"
[input]
format = "code"
[[stage]]
use = "code"
num_lines = [3, 1000]
comment_ratio = [0.0, 1.0]
generated = true
[[stage]]
use = "pii"
entities = ["email"]
[[stage]]
use = "exact"
[[stage]]
use = "shuffle"
[[stage]]
use = "tokenize"
"#;

fn program(number: usize) -> String {
    let mut text = format!("// Program {number}, by someone{number}@example.org\nfn main() {{\n");
    for line in 0..30 {
        text += &format!("    println!(\"line {line} of program {number}: {}\");\n", line * 7919 % 1013);
    }
    text + "}\n"
}

fn layers(text: &str) -> Layers<'static> {
    Layers::new().text("mine", text)
}

fn spec_of(input: Input, out: &std::path::Path, recipe: &str) -> CorpusSpec {
    let loaded = Loaded::load(layers(recipe)).unwrap();
    CorpusSpec {
        recall_share: 0.0,
        document_bytes: 64 << 10,
        tokenizer: TokenizerFrom::Train { vocab: 300, sample_bytes: 50_000, special: Vec::new() },
        curation: Some(Curation::of(loaded).unwrap()),
        ..CorpusSpec::new(input, out.join("corpus"))
    }
}

fn curate(spec: &CorpusSpec, recipe: &str) -> fathom_curate::pipeline::Stats {
    let pipeline = curation(spec, layers(recipe), None, RemoteOptions::default()).unwrap();
    match pipeline.run(&RunOptions::default()).unwrap() {
        Outcome::Done(stats) => *stats,
        Outcome::Waiting { .. } => panic!("no other process is there"),
    }
}

/// The whole text of a corpus, document by document.
fn texts(spec: &CorpusSpec) -> Vec<String> {
    let store = Store::open(store_prefix(&spec.out)).unwrap();
    let tokenizer = fathom_text::Tokenizer::from_dir(tokenizer_dir(&spec.out)).unwrap();
    let text = |doc| {
        let ids = store.doc(doc).unwrap();
        tokenizer.decode(&ids[..ids.len() - 1])
    };
    (0..store.num_documents()).map(text).collect()
}

#[test]
fn gathered_crates_pass_the_stages_and_stay_together() {
    let [a, b, c] = [1, 2, 3].map(program);
    let root = folder(&[
        ("alpha-1.0.0/src/a.rs", a.as_bytes()),
        ("alpha-1.0.0/src/b.rs", b.as_bytes()),
        ("alpha-1.0.0/src/bindings.rs", format!("// @generated\n{c}").as_bytes()),
        ("alpha-1.0.0/src/mod.rs", b"mod a;"),
        ("beta-2.0.0/src/a.rs", a.as_bytes()),
        ("beta-2.0.0/src/c.rs", c.as_bytes()),
    ]);
    let out = tempfile::tempdir().unwrap();
    let input = Input::Default { roots: vec![root.path().to_path_buf()], fallback: None };
    let spec = spec_of(input, out.path(), CODE);
    assert_eq!(built(&spec), None);
    let stats = curate(&spec, CODE);
    let stages: Vec<&str> = stats.stages.iter().map(|stage| stage.kind.as_str()).collect();
    assert_eq!(stages, ["read", "extract", "code", "pii", "exact"], "up to what the corpus does itself");
    assert_eq!((stats.stages[0].tally.documents_in, stats.stages[4].tally.documents_out), (6, 3));
    let report = build(&spec, &mut |_| ()).unwrap();
    let sources: Vec<&str> = report.sources.iter().map(|source| source.name.as_str()).collect();
    assert_eq!(sources, ["alpha-1.0.0", "beta-2.0.0"]);
    let found = texts(&spec);
    assert_eq!(found.len(), 2, "files of one crate are joined");
    assert!(found[0].starts_with("// Program 1") && found[0].contains("// Program 2"), "{}", found[0]);
    assert!(found[1].starts_with("// Program 3"), "{}", found[1]);
    assert!(found.iter().all(|text| !text.contains("@example.org") && !text.contains("generated")));
    assert_eq!(built(&spec), Some(report));

    // Another recipe is another corpus.
    let other = CODE.replace("[3, 1000]", "[3, 1001]");
    assert_eq!(built(&spec_of(spec.input.clone(), out.path(), &other)), None);
    // Output folder, threads and memory do not matter.
    let elsewhere = format!("threads = 1\nmemory = \"1GiB\"\n{CODE}");
    assert!(built(&spec_of(spec.input.clone(), out.path(), &elsewhere)).is_some());
}

#[test]
fn records_of_named_files_are_documents_of_their_own() {
    let lines: String =
        (0..6).map(|i| serde_json::json!({ "body": program(i % 4) }).to_string() + "\n").collect();
    let root = folder(&[("in/rows.jsonl", lines.as_bytes())]);
    let out = tempfile::tempdir().unwrap();
    let input = Input::Paths(vec![root.path().join("in")]);
    let spec = CorpusSpec { text_field: "body".into(), ..spec_of(input, out.path(), CODE) };
    let stats = curate(&spec, CODE);
    assert_eq!(stats.stages[4].tally.documents_out, 4, "two are there twice");
    let report = build(&spec, &mut |_| ()).unwrap();
    assert_eq!(report.sources.len(), 1);
    assert_eq!(texts(&spec).len(), 4);
}

#[test]
fn files_are_taken_up_to_the_budget() {
    let programs: Vec<(String, String)> = (0..8).map(|i| (format!("in/{i}.rs"), program(i))).collect();
    let files: Vec<(&str, &[u8])> =
        programs.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    let root = folder(&files);
    let out = tempfile::tempdir().unwrap();
    let input = Input::Paths(vec![root.path().join("in")]);
    let bytes = programs[0].1.len() as u64;
    let spec = CorpusSpec { max_bytes: Some(bytes * 5 / 2), ..spec_of(input, out.path(), CODE) };
    let stats = curate(&spec, CODE);
    assert_eq!(stats.stages[4].tally.documents_out, 3);
    let resolved = fs::read_to_string(spec.out.join("curated/recipe.toml"));
    assert!(resolved.is_ok_and(|text| text.contains("max_bytes = ")));
}

#[test]
fn nothing_kept_is_an_error_that_says_so() {
    let root = folder(&[("in/a.rs", b"mod a;\n")]);
    let out = tempfile::tempdir().unwrap();
    let spec = spec_of(Input::Paths(vec![root.path().join("in")]), out.path(), CODE);
    curate(&spec, CODE);
    let error = build(&spec, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("none kept by the curation"), "{error}");
}

#[test]
fn a_recipe_may_name_its_input_and_keeps_its_secrets() {
    let lines: String =
        (0..3).map(|i| serde_json::json!({ "body": program(i) }).to_string() + "\n").collect();
    let root = folder(&[("a/rows.jsonl", lines.as_bytes()), ("b/x.rs", program(7).as_bytes())]);
    let at = |name: &str| root.path().join(name).display().to_string();
    let input = format!("[input]\nfield = \"body\"\npaths = [\"rows={}\", \"{}\"]\n", at("a"), at("b"));
    let recipe = CODE
        .replace("[input]\n", &input)
        .replace("[\"email\"]", "[\"email\"]\naction = \"hash\"\nsalt = \"of mine\"");
    let out = tempfile::tempdir().unwrap();
    let spec = spec_of(Input::Default { roots: Vec::new(), fallback: None }, out.path(), &recipe);
    curate(&spec, &recipe);
    let report = build(&spec, &mut |_| ()).unwrap();
    let sources: Vec<String> = report.sources.iter().map(|source| source.name.clone()).collect();
    assert_eq!(sources, ["rows".to_owned(), at("b")]);
    assert!(!fs::read_to_string(spec.out.join("corpus.json")).unwrap().contains("of mine"));
    assert!(!made_otherwise(&spec));
    let other = recipe.replace("of mine", "of yours");
    assert!(made_otherwise(&spec_of(spec.input.clone(), out.path(), &other)));
}

#[test]
fn stages_that_a_corpus_has_no_use_for_are_refused() {
    let refused = |recipe: &str| Curation::of(Loaded::load(layers(recipe)).unwrap()).unwrap_err().to_string();
    let late = format!("{CODE}[[stage]]\nuse = \"fuzzy\"\n");
    assert!(refused(&late).contains("behind `shuffle`"), "{}", refused(&late));
    let blend = CODE.replace("use = \"exact\"", "use = \"blend\"");
    assert!(refused(&blend).contains("data.blend"), "{}", refused(&blend));
}

#[test]
fn nothing_to_gather_is_said_before_anything_runs() {
    let (root, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let spec = spec_of(Input::Default { roots: vec![root.path().into()], fallback: None }, out.path(), CODE);
    let error = curation(&spec, layers(CODE), None, RemoteOptions::default()).err().unwrap().to_string();
    assert!(error.contains(&root.path().display().to_string()), "{error}");
}
