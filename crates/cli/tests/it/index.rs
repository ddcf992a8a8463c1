//! `fathom index`, `fathom search` and `fathom eval --retrieval` as a user calls them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{good, program, refused};

/// Number of kills outside of long tests.
const KILLS: u32 = 4;

/// All files below a folder with their bytes, by their paths.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { all.push((path.clone(), fs::read(path).unwrap())) }
        }
    }
    all.sort();
    all
}

fn documents(folder: &Path, count: usize) -> PathBuf {
    let docs = folder.join("docs");
    fs::create_dir_all(&docs).unwrap();
    for at in 0..count {
        let body: String = (0..120).map(|word| format!("word{} ", (at * 31 + word * word) % 997)).collect();
        fs::write(docs.join(format!("f{at}.md")), format!("# Page {at}\n\n{body}\n")).unwrap();
    }
    docs
}

#[test]
fn an_index_killed_anywhere_and_resumed_has_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let docs = documents(folder.path(), 200);
    let docs = docs.to_str().unwrap();
    let out = folder.path().join("index");
    let began = Instant::now();
    good(["index", docs, out.to_str().unwrap()]);
    let took = began.elapsed();
    let whole = contents(&out);
    let kills = std::env::var("FATHOM_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    for kill in 1..=kills {
        fs::remove_dir_all(&out).unwrap();
        let mut child = program().args(["index", docs, out.to_str().unwrap()]).spawn().unwrap();
        std::thread::sleep(took.mul_f64(f64::from(kill) / f64::from(kills + 1)).min(Duration::from_secs(5)));
        // The process may have ended.
        _ = child.kill();
        child.wait().unwrap();
        good(["index", docs, out.to_str().unwrap()]);
        assert!(contents(&out) == whole, "killed at {kill} of {}", kills + 1);
    }
}

#[test]
fn passages_are_found_as_lines_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let docs = documents(folder.path(), 3);
    fs::write(docs.join("animals.md"), "# Animals\n\n## Foxes\n\nThe fox is red.\n").unwrap();
    let out = folder.path().join("index");
    let out = out.to_str().unwrap();
    let account: Value =
        serde_json::from_str(&good(["index", docs.to_str().unwrap(), out, "--json"])).unwrap();
    assert_eq!((&account["files"], &account["read_files"]), (&4.into(), &4.into()));
    let lines = good(["search", out, "red fox", "--json"]);
    let hit: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(hit["path"].as_str().unwrap().ends_with("animals.md"), "{hit}");
    assert_eq!((&hit["rank"], &hit["lines"]), (&1.into(), &serde_json::json!([1, 5])));
    let none = good(["search", out, "fox", "--where", "path=*.txt"]);
    assert!(none.contains("nothing found"), "{none}");
    for (arguments, named) in [
        (&["search", "nowhere", "x"][..], "not an index"),
        (&["search", out, "x", "--where", "year"], "no condition"),
        (&["search", out, "x", "--mode", "dense"], "--encoder"),
        (&["search", out, "x", "--encoder", "y"], "no vectors"),
        (&["index", docs.to_str().unwrap(), docs.to_str().unwrap()], "not empty"),
        (&["index", "nowhere", out], "nowhere"),
    ] {
        refused(arguments, &[named]);
    }
}

#[test]
fn retrieval_is_measured_on_a_folder_in_the_layout_of_beir() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, body: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, body).unwrap();
    };
    put(
        "corpus.jsonl",
        "{\"_id\": \"d1\", \"title\": \"Foxes\", \"text\": \"A fox is red.\"}\n{\"_id\": \"d2\", \"title\": \"\", \"text\": \"A hen is brown.\"}\n{\"_id\": \"d3\", \"text\": \"A red hen.\"}\n",
    );
    put(
        "queries.jsonl",
        "{\"_id\": \"q1\", \"text\": \"red fox\"}\n{\"_id\": \"q2\", \"text\": \"brown\"}\n",
    );
    put("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td3\t1\nq2\td3\t1\n");
    let lines = good(["eval", "--retrieval", folder.path().to_str().unwrap(), "--json"]);
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ten = rows.iter().find(|row| row["k"] == 10).unwrap();
    // The first query has its ideal ranking; nothing relevant is found for the second.
    assert_eq!(
        (&ten["ndcg"], &ten["mrr"], &ten["recall"]),
        (&0.5.into(), &0.5.into(), &0.5.into()),
        "{lines}"
    );
    assert_eq!(ten["queries"], 2);
    fs::remove_file(folder.path().join("queries.jsonl")).unwrap();
    refused(["eval", "--retrieval", folder.path().to_str().unwrap()], &["queries.jsonl"]);
}

fn encoder(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders").join(name);
    folder.to_str().unwrap().to_string()
}

/// Vectors of an index of one file.
fn vectors(out: &Path, dimensions: usize) -> Vec<Vec<f32>> {
    let path = fs::read_dir(out.join("vectors")).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(path).unwrap();
    let numbers: Vec<f32> =
        bytes[64..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    numbers.chunks_exact(dimensions).map(<[f32]>::to_vec).collect()
}

#[test]
fn vectors_are_those_of_sentence_transformers_and_take_part_in_a_search() {
    let golden = fs::read_to_string(Path::new(&encoder("embed_bert")).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let expected = golden["texts"].as_array().unwrap();
    let texts: Vec<&str> = expected.iter().map(|of| of["text"].as_str().unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let rows: String =
        texts.iter().map(|text| serde_json::json!({"text": text}).to_string() + "\n").collect();
    let (source, out) = (folder.path().join("rows.jsonl"), folder.path().join("index"));
    fs::write(&source, rows).unwrap();
    let [source, index] = [&source, &out].map(|path| path.to_str().unwrap().to_string());
    good(["index", &source, &index, "--encoder", &encoder("embed_bert"), "--chunk-bytes", "100000"]);
    let found = vectors(&out, expected[0]["vector"].as_array().unwrap().len());
    let kept: Vec<usize> = (0..texts.len()).filter(|at| !texts[*at].trim().is_empty()).collect();
    assert_eq!(found.len(), kept.len());
    for (own, at) in found.iter().zip(kept) {
        let other: Vec<f64> =
            expected[at]["vector"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        let cosine: f64 = own.iter().zip(&other).map(|(a, b)| f64::from(*a) * b).sum();
        assert!((cosine - 1.0).abs() < 1e-5, "text {at}: {cosine}");
    }
    let asked = texts.iter().find(|text| text.len() > 10).unwrap();
    for mode in ["auto", "dense", "bm25"] {
        let lines = good(["search", &index, asked, "--mode", mode, "--json"]);
        let hit: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!(hit["text"], asked.trim(), "{mode}");
    }
    let reranked = good(["search", &index, asked, "--rerank", &encoder("rank_bert"), "--json"]);
    assert!(reranked.lines().count() > 1, "{reranked}");
    refused(
        ["search", &index, asked, "--encoder", &encoder("embed_deberta")],
        &["is another one", "embed_bert"],
    );
    refused(["search", &index, asked, "--rerank", &encoder("embed_bert")], &["a reranker has one score"]);
    refused(["index", &source, &index], &["--encoder"]);
}
