//! WARC, WET, wiki dumps and arXiv archives, intact and damaged.

use std::io::{Read, Write};

use fathom_curate::{Counters, InputFile, RawOptions, RawRecord, Reason, input_files};
use fathom_prose::extract::Content;

use crate::server::{Answer, serve};
use crate::{dropped, folder};

/// All records of one file, with the counters.
pub fn raw(name: &str, bytes: &[u8], limit: usize) -> (Vec<RawRecord>, Counters) {
    let dir = folder(&[(name, bytes)]);
    let options = RawOptions { max_document_bytes: limit, ..RawOptions::default() };
    let location = dir.path().join(name).display().to_string();
    let (files, _) = input_files(&[location], &options).unwrap();
    let mut records = files[0].open(&options).unwrap();
    let all = records.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    (all, records.counters().clone())
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn record(kind: &str, url: &str, block: &str) -> String {
    format!(
        "WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nWARC-Record-ID: <urn:uuid:{url}>\r\n\
         Content-Length: {}\r\n\r\n{block}\r\n\r\n",
        block.len()
    )
}

fn response(url: &str, body: &str) -> String {
    record(
        "response",
        url,
        &format!("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{body}"),
    )
}

fn url_of(record: &RawRecord) -> &str {
    record.columns.iter().find(|(name, _)| name == "url").map_or("", |(_, value)| value)
}

fn urls(records: &[RawRecord]) -> Vec<&str> {
    records.iter().map(url_of).collect()
}

/// A crawl with every kind of record.
pub fn crawl() -> Vec<String> {
    vec![
        record("warcinfo", "info", "software: x\r\n"),
        record("request", "a", "GET / HTTP/1.1\r\n\r\n"),
        response("a", "<p>A"),
        record("response", "gone", "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\nno"),
        record("response", "pic", "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\u{1}"),
        response("b", "<p>B"),
        record("conversion", "c", "plain text"),
        record("metadata", "c", "x: y"),
    ]
}

#[test]
fn a_crawl_gives_its_pages() {
    let plain = crawl().concat().into_bytes();
    let members: Vec<u8> = crawl().iter().flat_map(|r| gzip(r.as_bytes())).collect();
    let frames: Vec<u8> = crawl().iter().flat_map(|r| zstd::encode_all(r.as_bytes(), 1).unwrap()).collect();
    let files = [
        ("a.warc", plain.clone()),
        ("a.warc.gz", members),
        ("b.warc.gz", gzip(&plain)),
        ("a.warc.zst", frames),
    ];
    for (name, bytes) in files {
        let (records, counters) = raw(name, &bytes, 1000);
        assert_eq!(urls(&records), ["a", "b", "c"], "{name}");
        let page =
            Content::Page { bytes: b"<p>A".to_vec(), content_type: Some("text/html; charset=utf-8".into()) };
        assert_eq!(records[0].content, page);
        assert!(records[0].id.ends_with(&format!("{name}#3")), "{}", records[0].id);
        assert_eq!(records[2].content, Content::Text("plain text".into()));
        assert_eq!((dropped(&counters, Reason::OtherStatus), dropped(&counters, Reason::OtherType)), (1, 1));
        assert!(counters.damage.is_empty(), "{:?}", counters.damage);
    }
}

/// A record with a binary block.
fn bytes_record(kind: &str, head: &str, block: &[u8]) -> Vec<u8> {
    let head = format!(
        "WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {kind}\r\n{head}Content-Length: {}\r\n\r\n",
        block.len()
    );
    [head.as_bytes(), block, b"\r\n\r\n"].concat()
}

#[test]
fn bodies_are_decoded_or_counted() {
    let page = format!("<html><p>{}</html>", "A page of some words. ".repeat(9));
    let mut raw_deflate = Vec::new();
    flate2::read::DeflateEncoder::new(page.as_bytes(), flate2::Compression::default())
        .read_to_end(&mut raw_deflate)
        .unwrap();
    let sent = |coding: &str, kind: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Encoding: {coding}\r\n\r\n");
        bytes_record("response", "", &[head.as_bytes(), body].concat())
    };
    let noise: Vec<u8> = (0..300u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let records = [
        sent("deflate", "text/html", &raw_deflate),
        sent("deflate", "text/html", &noise),
        sent("compress", "text/html", &noise),
        sent("gzip", "image/png", &noise),
    ];
    let (records, counters) = raw("a.warc", &records.concat(), 10_000);
    assert_eq!(records.len(), 1, "{:?}", counters.damage);
    let Content::Page { bytes, .. } = &records[0].content else { panic!("no page") };
    assert_eq!(bytes, page.as_bytes());
    assert_eq!(dropped(&counters, Reason::BrokenRecord), 2, "{:?}", counters.damage);
    assert!(counters.damage.iter().all(|damage| damage.detail.contains("cannot be unpacked")));
    // Damage in a record that is not a page is not counted as damage.
    assert_eq!(dropped(&counters, Reason::OtherType), 1);
}

#[test]
fn resources_that_are_pages_are_read() {
    let records = [
        bytes_record("resource", "Content-Type: text/html; charset=latin1\r\n", b"<p>caf\xe9"),
        bytes_record("resource", "", b"<html><p>no type"),
        bytes_record("resource", "Content-Type: text/plain\r\n", b"a log"),
        bytes_record("resource", "Content-Type: text/dns\r\n", b"20240101"),
    ];
    let (records, counters) = raw("a.warc", &records.concat(), 1000);
    let types: Vec<Option<&str>> = records
        .iter()
        .map(|record| match &record.content {
            Content::Page { content_type, .. } => content_type.as_deref(),
            _ => panic!("no page"),
        })
        .collect();
    assert_eq!(types, [Some("text/html; charset=latin1"), None]);
    assert_eq!(dropped(&counters, Reason::OtherType), 2);
}

#[test]
fn a_broken_member_costs_its_record() {
    let mut members: Vec<Vec<u8>> =
        ["a", "b", "c", "d"].map(|u| gzip(response(u, &u.repeat(300)).as_bytes())).into();
    // A wrong byte in the middle, then a truncated member.
    let middle = members[1].len() / 2;
    members[1][middle] ^= 0xff;
    let half = members[2].len() / 2;
    members[2].truncate(half);
    let start = members[0].len();
    let (records, counters) = raw("a.warc.gz", &members.concat(), 1000);
    assert_eq!(urls(&records), ["a", "d"]);
    assert!(dropped(&counters, Reason::BrokenArchive) >= 1, "{}", counters.summary());
    assert!(counters.damage[0].place.contains(&format!("byte {start}")), "{}", counters.damage[0]);
}

#[test]
fn a_broken_head_costs_its_record() {
    let (a, b) = (response("a", "<p>A"), response("b", "<p>B"));
    let cases = [
        format!("{a}garbage\r\nmore\r\n\r\n{b}"),
        format!("{a}WARC/1.0\r\nWARC-Type: response\r\n\r\nno length\r\n\r\n{b}"),
        format!("{a}WARC/1.0\r\nContent-Length: many\r\n\r\n{b}"),
    ];
    for case in cases {
        let (records, counters) = raw("a.warc", case.as_bytes(), 1000);
        assert_eq!(urls(&records), ["a", "b"], "{case}");
        assert_eq!(dropped(&counters, Reason::BrokenRecord), 1, "{}", counters.summary());
    }
    // A length beyond its member is detected at the member's end.
    let long = gzip(b.replace("Content-Length: ", "Content-Length: 9").as_bytes());
    let bytes = [gzip(a.as_bytes()), long, gzip(response("c", "<p>C").as_bytes())].concat();
    let (records, counters) = raw("a.warc.gz", &bytes, 100_000);
    assert_eq!(urls(&records), ["a", "c"]);
    assert_eq!(dropped(&counters, Reason::BrokenRecord), 1);
    // Too large: skipped without being kept in memory.
    let (records, counters) =
        raw("a.warc", [response("a", &"x".repeat(300_000)), b].concat().as_bytes(), 1000);
    assert_eq!(urls(&records), ["b"]);
    assert_eq!(dropped(&counters, Reason::TooLarge), 1);
}

#[test]
fn bombs_are_given_up() {
    let mut bomb = Vec::new();
    let zeros = || std::io::repeat(b'x').take(300 << 20);
    flate2::read::GzEncoder::new(zeros(), flate2::Compression::fast()).read_to_end(&mut bomb).unwrap();
    let bytes =
        [gzip(response("a", "<p>A").as_bytes()), bomb, gzip(response("b", "<p>B").as_bytes())].concat();
    let (records, counters) = raw("a.warc.gz", &bytes, 1000);
    assert_eq!(urls(&records), ["a", "b"]);
    assert!(counters.damage.iter().any(|d| d.detail.contains("expand")), "{:?}", counters.damage);
    let bomb = zstd::encode_all(zeros(), 1).unwrap();
    let (records, counters) =
        raw("a.jsonl.zst", &[bomb, zstd::encode_all(&b"{\"text\":\"b\"}\n"[..], 1).unwrap()].concat(), 1000);
    assert_eq!(records.len(), 1, "{}", counters.summary());
    assert!(counters.damage.iter().any(|d| d.detail.contains("expand")), "{:?}", counters.damage);
}

/// A dump with intact and broken pages.
pub const DUMP: &str = "<mediawiki><siteinfo><sitename>W</sitename></siteinfo>\n\
  <page><title>One</title><ns>0</ns><id>7</id><revision><id>70</id><timestamp>2024</timestamp>\
  <text bytes=\"5\" xml:space=\"preserve\">A &lt;b&gt; &amp;amp; &quot;c&quot;</text></revision></page>\n\
  <page><title>Two</title><ns>0</ns><id>8</id><redirect title=\"One\" /><revision><text>#REDIRECT [[One]]</text></revision></page>\n\
  <page><title>Talk:One</title><ns>1</ns><id>9</id><revision><text>talk</text></revision></page>\n\
  <page><title>Bad</title><ns>0</ns><!-- never closed </page>\n\
  <page><title>Three</title><ns>0</ns><id>10</id><revision><text>old</text></revision><revision><text>new</text></revision></page>\n\
  </mediawiki>";

#[test]
fn dumps_give_articles() {
    let bz2 = |bytes: &[u8]| {
        let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    };
    let (head, tail) = DUMP.split_at(DUMP.find("<page><title>Talk").unwrap());
    let multistream = [bz2(head.as_bytes()), bz2(tail.as_bytes())].concat();
    for (name, bytes) in [
        ("w-pages-articles.xml", DUMP.as_bytes().to_vec()),
        ("w-pages-articles.xml.gz", gzip(DUMP.as_bytes())),
        ("w-pages-articles-multistream.xml.bz2", multistream),
    ] {
        let (records, counters) = raw(name, &bytes, 1000);
        let texts: Vec<&Content> = records.iter().map(|r| &r.content).collect();
        assert_eq!(
            texts,
            [&Content::Wikitext("A <b> &amp; \"c\"".into()), &Content::Wikitext("new".into())],
            "{name}: {}",
            counters.summary()
        );
        assert_eq!(records[0].columns[0], ("title".to_string(), "One".to_string()));
        for reason in [Reason::Redirect, Reason::OtherNamespace, Reason::BrokenRecord] {
            assert_eq!(dropped(&counters, reason), 1, "{name} {reason}");
        }
    }
    let (records, counters) = raw("w-pages-x.xml", format!("{DUMP}<page><title>cut").as_bytes(), 1000);
    assert_eq!((records.len(), dropped(&counters, Reason::BrokenRecord)), (2, 2));
}

/// A tar with arbitrary entry names, including those that a careful writer refuses.
pub fn tarball(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, data) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(data);
        out.resize(out.len().div_ceil(512) * 512, 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn paths(record: &RawRecord) -> Vec<&str> {
    match &record.content {
        Content::Latex(files) => files.iter().map(|f| f.path.as_str()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn papers_come_out_of_archives() {
    let many =
        gzip(&tarball(&[("main.tex", b"\\section{A}"), ("fig/a.png", b"\x89"), ("sub/b.tex", b"b\xe9")]));
    let climbing = gzip(&tarball(&[("../../etc/x.tex", b"evil")]));
    let archive = tarball(&[
        ("2401/2401.00001.gz", &gzip(b"\\section{One}")),
        ("2401/2401.00002.gz", &many),
        ("2401/2401.00003.pdf", b"%PDF-"),
        ("2401/2401.00004.gz", b"\x1f\x8b\x08 broken"),
        ("2401/2401.00005.gz", &climbing),
        ("/etc/2401.gz", &gzip(b"x")),
        ("2401/2401.00006.gz", &gzip(&vec![b'a'; 200_000])),
        ("2401/2401.00007.gz", &gzip(b"\\section{Seven}")),
    ]);
    let (records, counters) = raw("arXiv_src.tar", &archive, 100_000);
    assert_eq!(records.len(), 3, "{}", counters.summary());
    assert_eq!(records[0].columns[0].1, "2401.00001");
    assert_eq!(paths(&records[1]), ["main.tex", "sub/b.tex"]);
    assert_eq!(dropped(&counters, Reason::UnsafePath), 2);
    assert_eq!(dropped(&counters, Reason::OtherType), 1);
    assert_eq!(dropped(&counters, Reason::BrokenArchive), 1);
    assert_eq!(dropped(&counters, Reason::TooLarge), 1);
    // A broken header costs its entry.
    let mut damaged = archive.clone();
    damaged[100] ^= 1;
    let (records, counters) = raw("arXiv_src.tar", &damaged, 100_000);
    assert_eq!((records.len(), dropped(&counters, Reason::BrokenArchive)), (2, 2));
    // A truncated archive.
    let (records, counters) = raw("arXiv_src.tar", &archive[..520], 100_000);
    assert_eq!((records.len(), dropped(&counters, Reason::BrokenArchive)), (0, 1));
}

#[test]
fn tables_hand_out_columns() {
    let lines = b"{\"text\":\"a\",\"url\":\"u\",\"score\":0.5,\"none\":null}\n{\"text\":\"b\"}\n";
    let dir = folder(&[("a.jsonl.gz", &gzip(lines))]);
    let columns = ["url", "score", "none"].map(String::from).to_vec();
    let options = RawOptions { columns, ..RawOptions::default() };
    let location = dir.path().join("a.jsonl.gz").display().to_string();
    let (files, _) = input_files(&[location], &options).unwrap();
    let records: Vec<RawRecord> = files[0].open(&options).unwrap().collect::<Result<_, _>>().unwrap();
    let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
    assert_eq!(records[0].columns, [pair("url", "u"), pair("score", "0.5")]);
    assert!(records[1].columns.is_empty());
}

#[test]
fn a_line_of_a_gigabyte_is_passed_over() {
    let long = std::io::Cursor::new(b"{\"text\":\"a\"}\n{\"text\":\"".to_vec())
        .chain(std::io::repeat(b'x').take(1 << 30))
        .chain(std::io::Cursor::new(b"\"}\n{\"text\":\"b\"}\n".to_vec()));
    let options = RawOptions { max_document_bytes: 1 << 20, ..RawOptions::default() };
    let mut records = InputFile::read_from("x.jsonl", Box::new(long), &options).unwrap();
    let texts: Vec<Content> = records.by_ref().map(|r| r.unwrap().content).collect();
    assert_eq!(texts, [Content::Text("a".into()), Content::Text("b".into())]);
    assert_eq!(dropped(records.counters(), Reason::TooLarge), 1);
    assert!(InputFile::read_from("x.parquet", Box::new(std::io::empty()), &options).is_err());
    let lines = std::io::repeat(b'x').take(300 << 20);
    let mut records = InputFile::read_from("x.warc", Box::new(lines), &options).unwrap();
    assert_eq!((records.by_ref().count(), dropped(records.counters(), Reason::BrokenRecord)), (0, 1));
}

#[test]
fn crawls_are_listed_by_snapshot() {
    use fathom_curate::{CrawlFiles, RemoteOptions, Snapshot};
    let paths: String =
        (0..10).map(|i| format!("crawl-data/CC-MAIN-2024-10/segments/{i}.warc.gz\n")).collect();
    let dir = folder(&[("crawl-data/CC-MAIN-2024-10/warc.paths.gz", &gzip(paths.as_bytes()))]);
    let base = dir.path().display().to_string();
    let snapshot = Snapshot { name: "2024-10".into(), base: base.clone(), ..Snapshot::default() };
    let found = |snapshot: &Snapshot| snapshot.locations(&RemoteOptions::default());
    assert_eq!(found(&snapshot).unwrap().len(), 10);
    let some = Snapshot { skip: 1, stride: 4, first: Some(2), ..snapshot.clone() };
    let names: Vec<String> = found(&some).unwrap();
    assert!(
        names[0].ends_with("/1.warc.gz") && names[1].ends_with("/5.warc.gz") && names.len() == 2,
        "{names:?}"
    );
    for (name, files) in
        [("2024-1", CrawlFiles::Warc), ("CC-NEWS-2024-03", CrawlFiles::Wet), ("", CrawlFiles::Warc)]
    {
        let wrong = Snapshot { name: name.into(), files, ..snapshot.clone() };
        assert!(found(&wrong).unwrap_err().to_string().contains("CC") || name.contains("NEWS"), "{name}");
    }
}

#[test]
fn remote_files_need_what_they_need() {
    let refused = |location: &str| {
        let options = RawOptions::default();
        let files = match input_files(&[location.to_string()], &options) {
            Ok((files, _)) => files,
            Err(error) => return error.to_string(),
        };
        files[0].open(&options).err().unwrap().to_string()
    };
    assert!(refused("s3://commoncrawl/a.warc.gz").contains("AWS_ACCESS_KEY_ID"));
    assert!(refused("gopher://x/a.warc.gz").contains("gopher"));
    assert!(refused("https://example.org/get?file=a.warc.gz").contains("query"));
}

#[test]
fn remote_files_are_read_by_ranges_with_retries() {
    use fathom_curate::RemoteOptions;
    let bytes: Vec<u8> = crawl().iter().flat_map(|r| gzip(r.as_bytes())).collect();
    let range_bytes = bytes.len() as u64 / 2 + 1;
    let remote = RemoteOptions { range_bytes, allow_http: true, ..RemoteOptions::default() };
    let options = RawOptions { remote, ..RawOptions::default() };
    // Every other answer is truncated.
    let base =
        serve(&[("a.warc.gz", bytes)], |turn, _, _| if turn % 2 == 1 { Answer::Half } else { Answer::Whole });
    let (files, _) = input_files(&[format!("{base}/a.warc.gz")], &options).unwrap();
    let records: Vec<RawRecord> = files[0].open(&options).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(urls(&records), ["a", "b", "c"]);
}
