//! Random and damaged bytes: whatever a file contains, reading ends in documents, counts or a named error.

use fathom_curate::{Error, ReadOptions, html_to_text};
use parquet::basic::Compression;
use proptest::prelude::*;

use crate::{folder, parquet_files, read};

/// Reads one file below a folder: the only error allowed there is that no document was found.
fn survives(name: &str, bytes: &[u8]) {
    let dir = folder(&[(name, bytes)]);
    let options = ReadOptions { max_document_bytes: 100, ..ReadOptions::default() };
    match read(dir.path(), &options) {
        Ok((documents, counters)) => {
            assert_eq!(documents.len() as u64, counters.read_documents);
            assert!(documents.iter().all(|d| !d.text.trim().is_empty()));
        }
        Err(error) => assert!(matches!(error, Error::EmptyCorpus { .. }), "{error}"),
    }
}

/// Replaces bytes of a valid file.
fn damage(mut bytes: Vec<u8>, edits: &[(prop::sample::Index, u8)], cut: prop::sample::Index) -> Vec<u8> {
    for (at, value) in edits {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    let keep = bytes.len() - cut.index(bytes.len()) / 4;
    bytes.truncate(keep);
    bytes
}

const LINES: &str = "{\"text\":\"one\"}\n{\"text\":\"two\",\"x\":[1,{\"y\":null}]}\n";

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for name in ["a.txt", "a.html", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"] {
            survives(name, &bytes);
        }
        html_to_text(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn tag_soup_never_panics(
        pieces in prop::collection::vec(prop::sample::select(&[
            "<", ">", "</", "<p", "<pre>", "</pre>", "<script>", "</script>", "<!--", "-->", "&", "&#x", ";", "\"",
            "'", "=", "\n", " ", "é", "\0", "<![CDATA[", "]]>", "<li>", "<br/>", "<title>", "<textarea>", "<svg/>",
        ][..]), 0..60)
    ) {
        let text = html_to_text(&pieces.concat());
        prop_assert!(text.len() <= 4 * pieces.concat().len() + 4);
    }

    #[test]
    fn damaged_lines_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let lines = LINES.repeat(20);
        survives("a.jsonl", &damage(lines.clone().into_bytes(), &edits, cut));
        survives("a.jsonl.zst", &damage(zstd::encode_all(lines.as_bytes(), 1).unwrap(), &edits, cut));
    }

    #[test]
    fn damaged_parquet_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let rows: [Option<&[u8]>; 5] = [Some(b"one"), None, Some(b"three"), Some(b"four"), Some(b"five")];
        let mut bytes = parquet_files::write(&[&rows, &rows], Compression::SNAPPY);
        for (at, value) in &edits {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        survives("a.parquet", &bytes);
    }
}

#[test]
fn nested_json_ends_in_a_count() {
    let deep =
        format!("{{\"text\":{}\n{{\"x\":{}\n{{\"text\":\"ok\"}}\n", "[".repeat(90_000), "[".repeat(90_000));
    let dir = folder(&[("a.jsonl", deep.as_bytes())]);
    let (documents, counters) = read(dir.path(), &ReadOptions::default()).unwrap();
    assert_eq!((documents.len(), counters.dropped_documents()), (1, 2));
}
