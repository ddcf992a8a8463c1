//! From files to a token store: text round-trips, shares hold, and a killed build ends with the same bytes.

use std::fs;
use std::path::Path;

use fathom_curate::*;
use fathom_text::loader::is_held_out;
use fathom_text::recall::{DRILL, RECALL, is_synthetic};
use fathom_text::store::Store;
use fathom_text::tokenizer::Tokenizer;
use tempfile::TempDir;

use crate::folder;

/// Text with everything that a tokenizer might lose.
fn chapter(number: usize) -> String {
    let mut text = format!("# Chapter {number}\r\n\tTabs,  spaces   and <|endoftext|> in the text.\n\n");
    for line in 0..40 {
        let (a, b) = (line * 7919 % 1013 + number, line * line % 97);
        text +=
            &format!("Line {line} of chapter {number}: {a} häuser, {b} 🦅 over the hills and far away.\n");
    }
    text
}

/// A folder of `count` chapters, one of them twice, and one file that is not text.
fn library(count: usize) -> TempDir {
    let chapters: Vec<(String, String)> =
        (0..count).map(|i| (format!("part{}/{i:03}.md", i / 10), chapter(i))).collect();
    let mut files: Vec<(&str, &[u8])> =
        chapters.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    let copy = chapter(3);
    files.push(("copy.txt", copy.as_bytes()));
    files.push(("broken.txt", b"\xff\xfe\xfd"));
    folder(&files)
}

fn spec_of(library: &TempDir, out: &TempDir) -> CorpusSpec {
    let input = Input::Paths(vec![library.path().to_path_buf()]);
    CorpusSpec {
        document_bytes: 8 << 10,
        tokenizer: TokenizerFrom::Train { vocab: 400, sample_bytes: 60_000, special: Vec::new() },
        held_out: 0.2,
        ..CorpusSpec::new(input, out.path().join("corpus"))
    }
}

fn make(spec: &CorpusSpec) -> CorpusReport {
    build(spec, &mut |_| ()).unwrap()
}

/// All files but the manifest, by name.
fn bytes_of(out: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for part in ["tokenizer", "store"] {
        for entry in fs::read_dir(out.join(part)).unwrap() {
            let path = entry.unwrap().path();
            all.push((path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn every_document_comes_back_byte_for_byte_and_is_accounted_for() {
    let (library, out) = (library(60), tempfile::tempdir().unwrap());
    let spec = spec_of(&library, &out);
    let mut phases = Vec::new();
    let report = build(&spec, &mut |progress| {
        assert!(progress.done_bytes <= progress.total_bytes, "{progress:?}");
        phases.push(progress.phase);
    })
    .unwrap();
    phases.dedup();
    assert_eq!(phases, [Phase::Read, Phase::Tokenizer, Phase::Encode]);

    let store = Store::open(store_prefix(&spec.out)).unwrap();
    let tokenizer = Tokenizer::from_dir(tokenizer_dir(&spec.out)).unwrap();
    let expected: Vec<Document> = {
        let documents = open(&[library.path().to_path_buf()], &ReadOptions::default()).unwrap();
        let unique = Unique::new(documents, Sameness::Bytes);
        group_documents(unique, spec.document_bytes).collect::<Result<_, _>>().unwrap()
    };
    let sources = &store.header().unwrap().sources;
    let mut real = Vec::new();
    for doc in 0..store.num_documents() {
        let mut ids = store.doc(doc).unwrap();
        assert_eq!(ids.pop(), tokenizer.eos());
        let text = tokenizer.decode(&ids);
        let meta = store.doc_meta(doc).unwrap();
        assert_eq!(meta, fathom_text::store::DocMeta::of_text(&text, meta.source));
        if !is_synthetic(&sources[meta.source as usize]) {
            real.push(text);
        }
    }
    assert_eq!(real, expected.iter().map(|d| d.text.clone()).collect::<Vec<_>>());

    assert_eq!(report.train.documents + report.held_out.documents, store.num_documents() as u64);
    assert_eq!(report.train.tokens + report.held_out.tokens, store.num_tokens());
    assert_eq!(report.dropped.dropped[&Reason::Duplicate].documents, 1);
    assert_eq!(report.dropped.dropped[&Reason::InvalidUtf8].documents, 1);
    assert_eq!(report.dropped.read_documents, 60);
    assert_eq!(
        report.sources.iter().map(|source| source.totals.documents).sum::<u64>(),
        store.num_documents() as u64
    );
    assert_eq!(report.sources[0].name, library.path().display().to_string());
    let held_out = held_out_documents(&store, spec.held_out).unwrap();
    assert_eq!(held_out.len() as u64, report.held_out_real.documents);
    assert!(held_out.iter().all(|&doc| is_held_out(store.doc_hash(doc).unwrap(), 0.2)));
    let event = report.to_event();
    assert_eq!((event.tokens, event.duplicate_documents), (report.train.tokens, 1));
    assert_eq!(event.vocabulary, tokenizer.vocab_size() as u64);
}

#[test]
fn recall_has_its_share_of_bytes_and_all_lengths() {
    let (library, out) = (library(150), tempfile::tempdir().unwrap());
    let spec = CorpusSpec { recall_share: 0.3, ..spec_of(&library, &out) };
    let report = make(&spec);
    let all = report.train.bytes + report.held_out.bytes;
    for name in [DRILL, RECALL] {
        let synthetic = report.sources.iter().find(|source| source.name == name).unwrap().totals;
        let share = synthetic.bytes as f64 / all as f64;
        assert!((0.13..0.17).contains(&share), "{name}: {share}");
    }
    let store = Store::open(store_prefix(&spec.out)).unwrap();
    let name = |doc| &store.header().unwrap().sources[store.doc_meta(doc).unwrap().source as usize];
    let lengths: Vec<u64> = (0..store.num_documents())
        .filter(|&doc| name(doc) == RECALL)
        .map(|doc| store.doc_meta(doc).unwrap().text_bytes)
        .collect();
    assert!(lengths.iter().all(|&bytes| (1000..9000).contains(&bytes)), "{lengths:?}");
    assert!(lengths.iter().any(|&bytes| bytes < 2000) && lengths.iter().any(|&bytes| bytes > 4000));

    let none = make(&CorpusSpec { recall_share: 0.0, out: out.path().join("none"), ..spec });
    assert!(none.synthetic == CorpusTotals::default() && none.sources.len() == 1);
}

#[test]
fn a_killed_build_ends_with_the_same_bytes() {
    let (library, out) = (library(40), tempfile::tempdir().unwrap());
    let spec = spec_of(&library, &out);
    let first = make(&spec);
    let bytes = bytes_of(&spec.out);
    assert_eq!(bytes.len(), 6);
    let manifest = spec.out.join("corpus.json");
    let written = fs::read(&manifest).unwrap();

    // Finished: nothing is read again.
    let mut calls = 0;
    let again = build(&spec, &mut |_| calls += 1).unwrap();
    assert_eq!((again, calls), (first.clone(), 0));

    let store = |suffix: &str| spec.out.join("store").join(format!("train{suffix}"));
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(path, bytes).unwrap();
        assert_eq!(fathom_curate::altered(&spec.out).as_deref(), Some(path));
    };
    assert_eq!(fathom_curate::altered(&spec.out), None);
    let damages: [&dyn Fn(); 10] = [
        &|| flip(&store(".bin")),
        &|| flip(&store(".idx")),
        &|| flip(&store(".docs")),
        &|| flip(&spec.out.join("tokenizer/tokenizer.json")),
        &|| fs::remove_file(&manifest).unwrap(),
        &|| fs::write(&manifest, &written[..written.len() / 2]).unwrap(),
        &|| fs::remove_file(store(".idx")).unwrap(),
        &|| fs::OpenOptions::new().write(true).open(store(".bin")).unwrap().set_len(1000).unwrap(),
        &|| {
            // Killed while writing: temporary files of a store, no manifest, no tokenizer.
            fs::remove_file(&manifest).unwrap();
            fs::remove_dir_all(spec.out.join("tokenizer")).unwrap();
            fs::rename(store(".bin"), store(".bin.tmp")).unwrap();
            fs::write(store(".docs.tmp"), "torn").unwrap();
        },
        &|| fs::remove_file(spec.out.join("tokenizer/tokenizer.json")).unwrap(),
    ];
    for (number, damage) in damages.iter().enumerate() {
        damage();
        let mut calls = 0;
        build(&spec, &mut |_| calls += 1).unwrap();
        assert!(calls > 0, "damage {number} was not seen");
        assert_eq!(bytes_of(&spec.out), bytes, "damage {number}");
    }

    let other = CorpusSpec { seed: 1, ..spec.clone() };
    make(&other);
    assert_ne!(bytes_of(&spec.out), bytes);
}

#[test]
fn the_default_corpus_names_its_crates_and_keeps_the_budget() {
    let root = folder(&[
        ("alpha-1.0.0/src/lib.rs", chapter(1).as_bytes()),
        ("alpha-1.0.0/README.md", chapter(2).as_bytes()),
        ("beta-2.0.0/src/lib.rs", chapter(3).as_bytes()),
    ]);
    let out = tempfile::tempdir().unwrap();
    let input = Input::Default { roots: vec![root.path().to_path_buf()], fallback: None };
    let spec = CorpusSpec {
        recall_share: 0.0,
        tokenizer: TokenizerFrom::Train { vocab: 300, sample_bytes: 5000, special: Vec::new() },
        ..CorpusSpec::new(input, out.path().join("corpus"))
    };
    let report = make(&spec);
    let sources: Vec<_> = report.sources.iter().map(|s| (s.name.as_str(), s.totals.documents)).collect();
    assert_eq!(sources, [("alpha-1.0.0", 1), ("beta-2.0.0", 1)], "files of one crate are joined");

    let paths = Input::Paths(vec![root.path().to_path_buf()]);
    let small = CorpusSpec { max_bytes: Some(chapter(1).len() as u64 * 3 / 2), input: paths, ..spec };
    let report = make(&small);
    assert_eq!(
        (report.dropped.read_documents, report.dropped.dropped[&Reason::OverBudget].documents),
        (1, 2)
    );
}

/// One file of many lines, some of them broken, some without the field, and some beyond the budget.
#[test]
fn what_is_not_read_is_reported() {
    let line = |n: usize| format!("{{\"text\": {:?}}}\n", chapter(n));
    let mut text: String = (1..200).map(line).collect();
    text.insert_str(0, "{\"text\": \n{\"body\": \"x\"}\n");
    let (folder, out) = (folder(&[("a.jsonl", text.as_bytes())]), tempfile::tempdir().unwrap());
    let spec = CorpusSpec {
        recall_share: 0.0,
        max_bytes: None,
        tokenizer: TokenizerFrom::Train { vocab: 300, sample_bytes: 5000, special: Vec::new() },
        ..CorpusSpec::new(Input::Paths(vec![folder.path().to_path_buf()]), out.path().join("all"))
    };
    let mut read = Vec::new();
    let whole = build(&spec, &mut |progress| {
        if progress.phase == Phase::Read {
            read.push(progress);
        }
    });
    let whole = whole.unwrap().to_event();
    let dropped =
        |reason: &str| whole.dropped.iter().find(|dropped| dropped.reason == reason).unwrap().documents;
    assert_eq!((dropped("not JSON"), dropped("no text field"), whole.dropped.len()), (1, 1, 2));
    assert_eq!(whole.damage.len(), 2, "{:?}", whole.damage);
    assert!(whole.damage[0].contains("a.jsonl: line 1"), "{:?}", whole.damage);
    // The total is the size of the whole file, including bytes already read.
    let first = read.first().unwrap();
    assert!(
        first.total_bytes > text.len() as u64 / 2 && first.done_bytes < first.total_bytes / 4,
        "{first:?}"
    );

    let most = text.len() as u64 / 4;
    let part = make(&CorpusSpec { max_bytes: Some(most), out: out.path().join("part"), ..spec });
    let beyond = part.dropped.dropped[&Reason::OverBudget];
    assert!(beyond.bytes > text.len() as u64 / 2, "{beyond:?}");
    assert!(part.to_event().dropped.iter().any(|dropped| dropped.reason == "over the byte budget"));
}

#[test]
fn a_given_tokenizer_is_used_and_its_change_is_noticed() {
    let (library, out) = (library(12), tempfile::tempdir().unwrap());
    fs::create_dir(out.path().join("t")).unwrap();
    let train = |vocab| {
        Tokenizer::train_bpe((0..12).map(chapter), vocab, &["<unk>", "</s>"])
            .unwrap()
            .save_dir(out.path().join("t"))
    };
    train(300).unwrap();
    let tokenizer = TokenizerFrom::File(out.path().join("t"));
    let spec = CorpusSpec { tokenizer, ..spec_of(&library, &out) };
    assert_eq!(make(&spec).vocabulary, 300);
    assert_eq!(Store::open(store_prefix(&spec.out)).unwrap().header().unwrap().eos, Some(1));
    train(310).unwrap();
    assert_eq!(make(&spec).vocabulary, 310);
    fs::write(out.path().join("t/tokenizer.json"), "{}").unwrap();
    let error = build(&spec, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("t/tokenizer.json"), "{error}");
}

#[test]
fn impossible_corpora_are_refused_with_the_reason() {
    let (empty, out) = (folder(&[("blank.txt", b" \n")]), tempfile::tempdir().unwrap());
    let refusal = |spec: CorpusSpec| build(&spec, &mut |_| ()).unwrap_err().to_string();
    let spec = spec_of(&empty, &out);
    let error = refusal(spec.clone());
    assert!(error.contains("no text found") && error.contains("1 blank"), "{error}");
    assert!(refusal(CorpusSpec { recall_share: 1.0, ..spec.clone() }).contains("`recall_share` is 1"));
    assert!(refusal(CorpusSpec { held_out: f64::NAN, ..spec.clone() }).contains("`held_out` is NaN"));
    assert!(refusal(CorpusSpec { max_bytes: Some(0), ..spec.clone() }).contains("`max_bytes`"));
    let tokenizer = TokenizerFrom::Train { vocab: 100, sample_bytes: 1000, special: Vec::new() };
    assert!(refusal(CorpusSpec { tokenizer, ..spec.clone() }).contains("257"));
    let missing = Input::Paths(vec![out.path().join("nowhere.txt")]);
    assert!(refusal(CorpusSpec { input: missing, ..spec.clone() }).contains("nowhere.txt"));
    let (library, blocked) = (library(2), tempfile::tempdir().unwrap());
    fs::write(blocked.path().join("corpus"), "in the way").unwrap();
    assert!(refusal(spec_of(&library, &blocked)).contains("cannot create"));
}
