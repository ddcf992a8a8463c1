//! Text files, folders, JSON lines in their three packings, and the errors of named paths.

use std::io::Write;

use fathom_curate::{Error, ReadOptions, Reason, open};

use crate::{drain, dropped, folder, path, read, read_file, sources, texts};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

#[test]
fn a_folder_is_read_in_name_order_as_one_group() {
    let dir = folder(&[
        ("b.txt", b"b"),
        ("a/z.rs", b"z"),
        ("a/k.md", b"k"),
        (".hidden/x.txt", b"x"),
        (".x.txt", b"x"),
        ("a/photo.png", b"\x89PNG"),
        ("c.HTML", b"<p>c"),
    ]);
    let (documents, counters) = read(dir.path(), &ReadOptions::default()).unwrap();
    assert_eq!(sources(&documents, dir.path()), ["a/k.md", "a/z.rs", "b.txt", "c.HTML"]);
    assert_eq!(texts(&documents), ["k", "z", "b", "c"]);
    assert!(documents.iter().all(|d| d.group == documents[0].group));
    assert_eq!((counters.read_documents, counters.read_bytes), (4, 4));
    assert_eq!(dropped(&counters, Reason::NoReader), 1, "the photo is counted");
}

#[test]
fn named_files_come_in_the_given_order() {
    let dir = folder(&[("b.txt", b"b"), ("a.txt", b"a")]);
    let documents = open(&[path(&dir, "b.txt"), path(&dir, "a.txt")], &ReadOptions::default()).unwrap();
    assert_eq!(documents.num_files(), 2);
    assert_eq!(documents.remaining_bytes(), 2);
    let (documents, _) = drain(documents).unwrap();
    assert_eq!(texts(&documents), ["b", "a"]);
    assert_ne!(documents[0].group, documents[1].group);
}

#[test]
fn json_lines_in_every_packing_give_the_same_records() {
    let lines =
        b"{\"text\":\"one\\n\",\"id\":1}\n\n{\"id\":[{\"text\":\"inner\"}],\"text\":\"two \\u00e9\"}\r\n";
    let mut members = gzip(&lines[..30]);
    members.extend(gzip(&lines[30..]));
    let mut frames = zstd(&lines[..10]);
    frames.extend(zstd(&lines[10..]));
    for (name, bytes) in [("d.jsonl", lines.to_vec()), ("d.jsonl.gz", members), ("d.jsonl.zst", frames)] {
        let (documents, counters) = read_file(name, &bytes).unwrap();
        assert_eq!(texts(&documents), ["one\n", "two é"], "{name}");
        assert!(documents[0].source.ends_with("#1") && documents[1].source.ends_with("#3"));
        assert_ne!(documents[0].group, documents[1].group, "records are groups of their own");
        assert!(counters.dropped.is_empty(), "{name}: {counters:?}");
    }
}

#[test]
fn damaged_lines_are_counted_with_their_place() {
    let lines =
        b"{\"text\":\"good\"}\n{\"text\":\n{\"body\":\"b\"}\n{\"text\":7}\n[1]\n{\"text\":\"\\ud800\"}\n\
        {\"text\":\"\xff\"}\n{\"text\":\" \"}\n{\"text\":\"last\"} x\n{\"text\":\"end\"}";
    let (documents, counters) = read_file("d.jsonl", lines).unwrap();
    assert_eq!(texts(&documents), ["good", "\u{fffd}", "end"]);
    assert_eq!(dropped(&counters, Reason::BadJson), 4, "{counters:?}");
    assert_eq!(dropped(&counters, Reason::NoTextField), 2);
    assert_eq!(dropped(&counters, Reason::Blank), 1);
    assert_eq!(counters.damage.len(), 6);
    let first = counters.damage[0].to_string();
    assert!(first.contains("d.jsonl: line 2, byte 16: not JSON"), "{first}");
    let json = serde_json::to_value(&counters).unwrap();
    assert_eq!(json["dropped"]["bad_json"]["documents"], 4);
    assert_eq!(json["damage"][1]["detail"], "no field `text`");
}

#[test]
fn another_field_can_hold_the_text() {
    let dir = folder(&[("d.jsonl", b"{\"text\":1,\"content\":\"yes\"}\n{\"content\":null}")]);
    let options = ReadOptions { field: "content".into(), ..ReadOptions::default() };
    let (documents, counters) = read(dir.path(), &options).unwrap();
    assert_eq!(texts(&documents), ["yes"]);
    assert!(counters.damage[0].detail.contains("`content` is null"));
}

#[test]
fn a_line_over_the_limit_is_skipped_without_being_held() {
    let mut lines = b"{\"text\":\"a\"}\n{\"text\":\"".to_vec();
    lines.extend(vec![b'x'; 1 << 20]);
    lines.extend(b"\"}\n{\"text\":\"b\"}\n");
    let dir = folder(&[("d.jsonl", &lines)]);
    let options = ReadOptions { max_document_bytes: 1000, ..ReadOptions::default() };
    let (documents, counters) = read(dir.path(), &options).unwrap();
    assert_eq!(texts(&documents), ["a", "b"]);
    assert_eq!(counters.dropped[&Reason::TooLarge].documents, 1);
    assert_eq!(counters.dropped[&Reason::TooLarge].bytes, (1 << 20) + 12);
}

#[test]
fn a_cut_archive_gives_what_came_before_the_cut() {
    let lines: String = (0..20_000).map(|i| format!("{{\"text\":\"line {}\"}}\n", i * 7919)).collect();
    for (name, bytes) in [("d.jsonl.gz", gzip(lines.as_bytes())), ("d.jsonl.zst", zstd(lines.as_bytes()))] {
        let (documents, counters) = read_file(name, &bytes[..bytes.len() / 2]).unwrap();
        assert!(!documents.is_empty(), "{name}");
        assert_eq!(documents[1].text, "line 7919");
        assert_eq!(dropped(&counters, Reason::BrokenArchive), 1, "{name}");
        assert!(counters.damage[0].place.starts_with("line "), "{:?}", counters.damage);
    }
}

#[test]
fn a_long_text_is_cut_at_line_ends_and_nothing_is_lost() {
    let text: String = (0..100).map(|i| format!("line {i} é\n")).collect();
    let unbroken = "é".repeat(333);
    let dir = folder(&[("a.txt", text.as_bytes()), ("b.txt", unbroken.as_bytes()), ("c.txt", b"exactly 64")]);
    let options = ReadOptions { max_document_bytes: 64, ..ReadOptions::default() };
    let (documents, counters) = read(dir.path(), &options).unwrap();
    assert!(counters.dropped.is_empty());
    assert!(documents.iter().all(|d| d.text.len() <= 64));
    let of = |name: &str| documents.iter().filter(|d| d.source.contains(name)).collect::<Vec<_>>();
    let (a, b, c) = (of("a.txt"), of("b.txt"), of("c.txt"));
    assert_eq!(a.iter().map(|d| d.text.as_str()).collect::<String>(), text);
    assert!(a.iter().all(|d| d.text.ends_with('\n')));
    assert!(a[1].source.ends_with("a.txt#2"));
    assert_eq!(b.iter().map(|d| d.text.as_str()).collect::<String>(), unbroken);
    assert!(c.len() == 1 && c[0].source.ends_with("c.txt"));
}

#[test]
fn bytes_that_are_not_utf8_are_counted_with_their_offset() {
    let dir = folder(&[
        ("bad.txt", b"\xef\xbb\xbfabc\xffdef"),
        ("bom.txt", b"\xef\xbb\xbftext"),
        ("nul.txt", b"a\0b"),
    ]);
    let (documents, counters) = read(dir.path(), &ReadOptions::default()).unwrap();
    assert_eq!(texts(&documents), ["text", "a\0b"], "a mark is removed; the user's own NULs stay");
    assert_eq!(counters.damage[0].reason, Reason::InvalidUtf8);
    assert_eq!(counters.damage[0].place, "byte 6");
}

#[test]
fn named_paths_that_cannot_be_read_are_errors() {
    let dir = folder(&[("a.pdf", b"x"), ("ok.txt", b"x"), ("noextension", b"x")]);
    for (name, wanted) in [
        ("missing.txt", "cannot read"),
        ("missing", "cannot read"),
        ("a.pdf", "no reader"),
        ("noextension", "no reader"),
    ] {
        let paths = [path(&dir, "ok.txt"), path(&dir, name)];
        let Err(error) = open(&paths, &ReadOptions::default()) else { panic!("{name} was accepted") };
        let message = error.to_string();
        assert!(message.contains(wanted) && message.contains(name), "{message}");
    }
}

#[test]
fn a_file_that_disappears_stops_the_run_only_if_it_was_named() {
    let dir = folder(&[("in/a.txt", b"a"), ("in/b.txt", b"b")]);
    let below = open(&[path(&dir, "in")], &ReadOptions::default()).unwrap();
    let named = open(&[path(&dir, "in/a.txt")], &ReadOptions::default()).unwrap();
    std::fs::remove_file(path(&dir, "in/a.txt")).unwrap();
    let (documents, counters) = drain(below).unwrap();
    assert_eq!(texts(&documents), ["b"]);
    assert_eq!(dropped(&counters, Reason::Unreadable), 1);
    assert!(matches!(drain(named), Err(Error::Read { .. })));
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_their_loops_counted() {
    let dir = folder(&[("blobs/1", b"linked"), ("data/a.txt", b"a")]);
    std::os::unix::fs::symlink(path(&dir, "blobs/1"), path(&dir, "data/b.txt")).unwrap();
    std::os::unix::fs::symlink(path(&dir, "data"), path(&dir, "data/loop")).unwrap();
    std::os::unix::fs::symlink(path(&dir, "nothing"), path(&dir, "data/c.txt")).unwrap();
    let (documents, counters) = read(dir.path(), &ReadOptions::default()).unwrap();
    assert_eq!(texts(&documents), ["a", "linked"]);
    assert_eq!(dropped(&counters, Reason::Unreadable), 2, "{counters:?}");
    let (documents, counters) = read(&path(&dir, "data"), &ReadOptions::default()).unwrap();
    assert_eq!((texts(&documents), dropped(&counters, Reason::UnsafePath)), (vec!["a"], 1), "{counters:?}");
}

#[test]
fn an_empty_corpus_says_what_was_looked_at() {
    let dir = folder(&[("a.txt", b" \n"), ("b.txt", b"\xff"), ("c.exe", b"x")]);
    let error = read(dir.path(), &ReadOptions::default()).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::EmptyCorpus { .. }));
    assert!(message.contains(&dir.path().display().to_string()), "{message}");
    assert!(message.contains("2 readable files") && message.contains("1 blank"), "{message}");
    assert!(message.contains("1 without a reader") && message.contains("1 invalid UTF-8"), "{message}");
    let message = drain(open(&[], &ReadOptions::default()).unwrap()).unwrap_err().to_string();
    assert!(message.contains("no path at all"), "{message}");
}
