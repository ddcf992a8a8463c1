//! Inputs that a recipe may name: kinds by name and by key, charsets, missing columns, crawls by listing.

use std::path::Path;

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::pipeline::{Pipeline, Recipe, RunOptions, Stats};
use fathom_curate::{
    Counters, Error, RawOptions, RawRecord, Reason, RemoteOptions, fetch, input_files, remote_files,
};
use fathom_prose::extract::Content;
use parquet::basic::Compression;

use crate::crawl::{crawl, gzip, raw, tarball};
use crate::pipeline::{options, run};
use crate::pipeline_corpus::query;
use crate::server::{Answer, serve};
use crate::{dropped, folder, parquet_files};

fn plan(out: &Path, settings: &[&str]) -> Result<Pipeline, Error> {
    let layers = Layers::new().text("test", "").set(&format!("out={}", out.display())).sets(settings);
    Pipeline::new(&Loaded::<Recipe>::load(layers)?)
}

/// Reads the folder with these settings; returns the ids without the folder, and the statistics.
fn ids(files: &[(&str, &[u8])], settings: &[&str]) -> (Vec<String>, Stats) {
    let (input, out) = (folder(files), tempfile::tempdir().unwrap());
    let paths = format!("input.paths=in={}", input.path().display());
    let settings: Vec<&str> = settings.iter().copied().chain([paths.as_str()]).collect();
    let stats = run(&plan(out.path(), &settings).unwrap(), &options(2)).unwrap();
    let rows = query(&stats, &out.path().join("spill"), "select id from extract order by id");
    (rows.iter().map(|row| row["id"].as_str().unwrap()["in/".len()..].to_owned()).collect(), stats)
}

/// All records of one file as texts, with the counters.
fn texts(name: &str, bytes: &[u8]) -> (Vec<String>, Counters) {
    let (records, counters) = raw(name, bytes, 1 << 20);
    let text = |record: &RawRecord| match &record.content {
        Content::Text(text) | Content::Wikitext(text) => text.clone(),
        Content::Page { bytes, .. } => String::from_utf8_lossy(bytes).into_owned(),
        Content::Latex(files) => files.iter().map(|file| file.text.as_str()).collect(),
    };
    (records.iter().map(text).collect(), counters)
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

#[test]
fn json_without_an_l_is_lines_too() {
    let lines = b"{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
    for (name, bytes) in [
        ("c4-train.00000-of-01024.json.gz", gzip(lines)),
        ("v1_5r2-0000.json.zst", zstd(lines)),
        ("a.json", lines.to_vec()),
        ("a.ndjson", lines.to_vec()),
    ] {
        assert_eq!(texts(name, &bytes).0, ["one", "two"], "{name}");
    }
    // A single JSON value is not JSON lines, and is reported once.
    for (name, bytes, what) in [
        ("a.json", &b"\xef\xbb\xbf [\n{\"text\":\"one\"},\n{\"text\":\"two\"}\n]\n"[..], "an array"),
        ("a.json", b"[{\"text\":\"one\"}]", "an array"),
        ("a.jsonl", b"{\n  \"text\": \"one\"\n}\n", "an object over several lines"),
    ] {
        let (found, counters) = texts(name, bytes);
        assert!(found.is_empty() && counters.dropped_documents() == 1, "{}", counters.summary());
        assert!(counters.damage[0].detail.contains(what), "{}", counters.damage[0]);
    }
    // In the middle of a file an array is one broken line.
    assert_eq!(texts("a.json", b"{\"text\":\"one\"}\n[1]\n{\"text\":\"two\"}\n").0, ["one", "two"]);
}

#[test]
fn texts_and_pages_may_be_compressed() {
    for (name, bytes) in
        [("a.txt.gz", gzip(b"a text")), ("a.md.zst", zstd(b"a text")), ("a.htm", b"a text".into())]
    {
        assert_eq!(texts(name, &bytes).0, ["a text"], "{name}");
    }
    assert_eq!(texts("a.html.gz", &gzip(b"<p>page")).0, ["<p>page"]);
    let cut = gzip(&b"a longer text with many words ".repeat(200));
    for name in ["a.txt.gz", "a.html.gz"] {
        let (found, counters) = texts(name, &cut[..cut.len() / 2]);
        assert_eq!(
            (found.len(), dropped(&counters, Reason::BrokenArchive)),
            (0, 1),
            "{}",
            counters.summary()
        );
    }
}

#[test]
fn pieces_of_dumps_are_read_and_their_index_is_not() {
    let page =
        "<page><title>One</title><ns>0</ns><id>7</id><revision><text>One text</text></revision></page>";
    for name in [
        "enwiki-20240101-pages-articles-multistream1.xml-p1p41242.gz",
        "dewiki-latest-pages-articles3.xml-p1p41242",
    ] {
        let bytes = if name.ends_with("gz") { gzip(page.as_bytes()) } else { page.as_bytes().to_vec() };
        assert_eq!(texts(name, &bytes).0, ["One text"], "{name}");
    }
    let index = "enwiki-20240101-pages-articles-multistream-index1.txt-p1p41242.bz2";
    let (found, stats) = ids(&[("a.txt", b"a"), (index, b"BZh"), ("x-multistream-index.txt.gz", b"")], &[]);
    assert_eq!(found, ["a.txt"]);
    assert_eq!(stats.stages[0].tally.dropped["no_reader"].documents, 2);
}

const PROGRAMS: [(&str, &[u8]); 9] = [
    ("Dockerfile", b"FROM scratch\n"),
    ("Makefile", b"all:\n\ttrue\n"),
    ("a.parquet.zip", b"PK"),
    ("app/index.html", b"<!doctype html>\n<p class=\"x\">Hello</p>\n"),
    ("app/main.py", b"print(1)\n"),
    ("app/package.json", b"{\n  \"name\": \"app\"\n}\n"),
    ("app/pom.xml", b"<project/>\n"),
    ("app/table.csv", b"a,b\n1,2\n"),
    ("photo.png", b"\x89PNG"),
];

#[test]
fn a_folder_of_programs_is_read_as_written() {
    let (found, stats) = ids(&PROGRAMS, &["input.format=code"]);
    let wanted: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).filter(|n| !n.ends_with("zip")).collect();
    assert_eq!(found, wanted[..7]);
    let unread = &stats.stages[0].tally.groups["no_reader"];
    assert_eq!(unread.keys().collect::<Vec<_>>(), [".png", ".zip"]);
    let (input, out) = (folder(&PROGRAMS), tempfile::tempdir().unwrap());
    let paths = format!("input.paths={}", input.path().display());
    let stats = run(&plan(out.path(), &["input.format=code", &paths]).unwrap(), &options(1)).unwrap();
    let page = "select text from extract where id like '%index.html'";
    let rows = query(&stats, &out.path().join("spill"), page);
    assert_eq!(rows[0]["text"], "<!doctype html>\n<p class=\"x\">Hello</p>\n");
}

#[test]
fn what_has_no_reader_is_reported_by_extension() {
    let (found, stats) = ids(&PROGRAMS, &[]);
    // Pages and JSON have readers of their own here; the multi-line object is a loss.
    assert_eq!(found, ["Dockerfile", "Makefile", "app/index.html", "app/main.py"]);
    let tally = &stats.stages[0].tally;
    assert_eq!(tally.dropped["bad_json"].documents, 1);
    assert_eq!(tally.groups["no_reader"].keys().collect::<Vec<_>>(), [".csv", ".png", ".xml", ".zip"]);
    let (input, out) = (folder(&PROGRAMS), tempfile::tempdir().unwrap());
    let paths = format!("input.paths={}", input.path().display());
    let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = said.clone();
    let say = std::sync::Arc::new(move |line: &str| heard.lock().unwrap().push(line.to_owned()));
    let settings = ["input.columns=[\"url\",\"nope\"]", &paths];
    run(&plan(out.path(), &settings).unwrap(), &RunOptions { say: Some(say), ..options(1) }).unwrap();
    let said = said.lock().unwrap().join("\n");
    assert!(said.contains("without a reader: 1 .csv, 1 .png, 1 .xml, 1 .zip"), "{said}");
    assert!(said.contains("package.json: not JSON: an object over several lines"), "{said}");
    assert!(said.contains("no document has a column `url`, `nope`"), "{said}");
    let alone = folder(&[("a.pdf", b"x"), ("b.PDF", b"x"), ("LICENCE", b"x")]);
    let paths = format!("input.paths={}", alone.path().display());
    let refused = plan(out.path(), &[&paths]).err().unwrap().to_string();
    assert!(refused.contains("3 without a reader (2 .pdf, 1 without extension)"), "{refused}");
}

#[test]
fn a_format_holds_for_files_of_any_name() {
    let lines = b"{\"text\":\"one\"}\n";
    let packed = gzip(lines);
    let files: [(&str, &[u8]); 3] = [("part-0000", lines), ("part-0001.gz", &packed), ("b.txt", lines)];
    assert_eq!(ids(&files, &["input.format=jsonl"]).0, ["b.txt#1", "part-0000#1", "part-0001.gz#1"]);
    let (found, _) = ids(&[("a.log", b"a line"), ("b.json", b"[]")], &["input.format=text"]);
    assert_eq!(found, ["a.log", "b.json"]);
}

#[test]
fn charsets_of_texts_are_detected() {
    let cyrillic = "Съешь же ещё этих мягких французских булок, да выпей чаю. ".repeat(4);
    let (windows, _, _) = encoding_rs::WINDOWS_1251.encode(&cyrillic);
    let utf16 = |big: bool| -> Vec<u8> {
        let units = "\u{feff}Grüße, 😀\n".repeat(3000).encode_utf16().collect::<Vec<_>>();
        units.iter().flat_map(|u| if big { u.to_be_bytes() } else { u.to_le_bytes() }).collect()
    };
    let grey = "Grüße, 😀\n".to_owned() + &"\u{feff}Grüße, 😀\n".repeat(2999);
    let cases: [(&str, &[u8], &str, Option<&str>); 5] = [
        ("a.py", b"# caf\xe9 cr\xe8me\nprint('x')\n", "# café crème\nprint('x')\n", Some("windows-1252")),
        ("a.txt", &windows, &cyrillic, Some("windows-1251")),
        ("b.txt", &utf16(false), &grey, Some("UTF-16LE")),
        ("c.txt", &utf16(true), &grey, Some("UTF-16BE")),
        ("d.txt", "naïve \0".as_bytes(), "naïve \0", None),
    ];
    for (name, bytes, text, charset) in cases {
        let (records, counters) = raw(name, bytes, 1 << 20);
        assert!(records[0].content == Content::Text(text.to_owned()), "{name}: {}", counters.summary());
        let column = records[0].columns.iter().find(|(name, _)| name == "charset");
        assert_eq!(column.map(|(_, name)| name.as_str()), charset, "{name}");
    }
    // UTF-16 beyond the limit is split between characters, at line ends.
    let (records, counters) = raw("b.txt", &utf16(false), 1000);
    let joined: String =
        records.iter().map(|r| if let Content::Text(t) = &r.content { t } else { "" }).collect();
    assert!(joined == grey && records.len() > 10 && counters.dropped.is_empty(), "{}", counters.summary());
    // UTF-8 with a broken byte is not taken for another charset, and binary data has none.
    let broken = ["Grüße ".repeat(20).as_bytes(), b"\xff", "über".as_bytes()].concat();
    let (_, counters) = raw("a.txt", &broken, 1 << 20);
    assert_eq!(dropped(&counters, Reason::InvalidUtf8), 1, "{}", counters.summary());
    assert_eq!(counters.damage[0].place, format!("byte {}", 20 * "Grüße ".len()));
    let (_, counters) = raw("a.txt", &[0, 1, 2, 0xff].repeat(100), 1 << 20);
    assert_eq!(dropped(&counters, Reason::Binary), 1, "{}", counters.summary());
}

#[test]
fn charsets_are_counted_or_refused() {
    let files: [(&str, &[u8]); 2] = [("a.txt", b"caf\xe9 cr\xe8me"), ("b.txt", b"plain")];
    let (found, stats) = ids(&files, &[]);
    assert_eq!(found, ["a.txt", "b.txt"]);
    assert_eq!(stats.stages[1].tally.groups["charset"]["windows-1252"].documents, 1);
    let (found, stats) = ids(&files, &["input.charset=utf-8"]);
    assert_eq!(found, ["b.txt"]);
    assert_eq!(stats.stages[0].tally.dropped["invalid_utf8"].documents, 1);
}

#[test]
fn a_column_that_is_in_no_record_ends_the_run() {
    let rows: [Option<&[u8]>; 2] = [Some(b"one"), Some(b"two")];
    let table = parquet_files::write(&[&rows], Compression::UNCOMPRESSED);
    let lines = b"{\"body\":\"one\",\"id\":1}\n{\"body\":\"two\",\"id\":2}\n";
    for (name, bytes, field, wanted) in [
        (
            "a.jsonl",
            &lines[..],
            "text",
            "none of its 2 records has the field `text`; choose one of its text columns (body, id)",
        ),
        (
            "a.parquet",
            &table,
            "txet",
            "no column `txet`; choose one of its text columns (text, title, meta.url)",
        ),
    ] {
        let (input, out) = (folder(&[(name, bytes)]), tempfile::tempdir().unwrap());
        let paths = format!("input.paths={}", input.path().display());
        let pipeline = plan(out.path(), &[&paths, &format!("input.field={field}")]).unwrap();
        let error = run(&pipeline, &options(2)).unwrap_err();
        assert!(matches!(error, Error::NoTextColumn { .. }), "{error}");
        assert!(error.to_string().contains(wanted) && error.to_string().contains(name), "{error}");
    }
    // One record with the field is enough, and a file of a single record proves nothing.
    let (found, stats) = ids(
        &[("a.jsonl", b"{\"x\":1}\n{\"x\":2}\n{\"text\":\"t\"}\n{\"x\":3}\n"), ("meta.json", b"{\"x\":1}")],
        &[],
    );
    assert_eq!(found, ["a.jsonl#3"]);
    assert_eq!(stats.stages[0].tally.dropped["no_text_field"].documents, 4);
}

#[test]
fn a_crawl_is_chosen_by_its_listing() {
    let bytes: Vec<u8> = crawl().iter().flat_map(|record| gzip(record.as_bytes())).collect();
    let at = |i: usize| format!("crawl-data/CC-MAIN-2024-10/segments/{i}/warc/{i}.warc.gz");
    let listing: String = (0..6).map(|i| at(i) + "\n").collect();
    let listing = gzip(listing.as_bytes());
    let mut files = vec![("crawl-data/CC-MAIN-2024-10/warc.paths.gz".to_owned(), listing)];
    files.extend((0..6).map(|i| (at(i), bytes.clone())));
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let (base, out) = (folder(&files), tempfile::tempdir().unwrap());
    let settings = [
        &format!("input.snapshot.base={}", base.path().display()),
        "input.snapshot.name=2024-10",
        "input.snapshot.skip=1",
        "input.snapshot.stride=3",
    ];
    let stats = run(&plan(out.path(), &settings).unwrap(), &options(2)).unwrap();
    let rows = query(
        &stats,
        &out.path().join("spill"),
        "select distinct source, split_part(id, '#', 1) as file from extract order by file",
    );
    let names: Vec<&str> = rows.iter().map(|row| row["file"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["CC-MAIN-2024-10/segments/1/warc/1.warc.gz", "CC-MAIN-2024-10/segments/4/warc/4.warc.gz"]
    );
    assert!(rows.iter().all(|row| row["source"] == "CC-MAIN-2024-10"), "{rows:?}");
    for (setting, wanted) in [
        ("input.snapshot.name=CC-2024", "CC-MAIN-2024-10 (year and week)"),
        ("input.snapshot.stride=0", "1 takes every file"),
        ("input.snapshot.skip=6", "2024-10; nothing was dropped"),
    ] {
        let settings: Vec<&str> = settings.iter().map(|s| &**s).chain([setting]).collect();
        let refused = plan(out.path(), &settings).err().unwrap().to_string();
        assert!(refused.contains(wanted), "{refused}");
    }
    assert!(plan(out.path(), &[]).err().unwrap().to_string().contains("input.snapshot.name"));
}

#[test]
fn figures_of_papers_are_passed_over() {
    // Larger than the limit, compressed and uncompressed.
    let noise: Vec<u8> = (0..400_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let paper = gzip(&tarball(&[("fig/a.eps", &noise), ("main.tex", b"\\section{A}"), ("z.png", &noise)]));
    assert!(paper.len() > 200_000);
    let many = gzip(&tarball(&[("a.tex", &[b'a'; 60_000]), ("b.tex", &[b'b'; 60_000])]));
    let cut = &paper[..paper.len() / 2];
    let archive = tarball(&[
        ("1/1.gz", &paper),
        ("1/2.gz", &many),
        ("1/3.gz", cut),
        ("1/4.gz", &gzip(b"\\section{D}")),
    ]);
    let (records, counters) = raw("arXiv_src.tar", &archive, 100_000);
    let named: Vec<&str> = records.iter().map(|record| record.columns[0].1.as_str()).collect();
    assert_eq!(named, ["1", "4"], "{}", counters.summary());
    assert_eq!((dropped(&counters, Reason::TooLarge), dropped(&counters, Reason::BrokenArchive)), (1, 1));
    assert!(
        counters.damage[0].detail.contains("sources of more than 100000 bytes"),
        "{}",
        counters.damage[0]
    );
    // The archive itself is truncated inside a paper.
    let (records, counters) = raw("arXiv_src.tar", &archive[..paper.len() / 2], 100_000);
    assert_eq!((records.len(), dropped(&counters, Reason::BrokenArchive)), (0, 1), "{}", counters.summary());
    // A compressed archive with damage inside a paper continues after it.
    let members: Vec<u8> = archive.chunks(300_000).flat_map(gzip).collect();
    let (records, _) = raw("arXiv_src.tar.gz", &members, 100_000);
    assert_eq!(records.len(), 2);
    let bomb = gzip(&tarball(&[("a.png", &vec![0; 300 << 20]), ("a.tex", b"a")]));
    let (records, counters) = raw("a.tar", &tarball(&[("1.gz", &bomb), ("2.gz", &gzip(b"b"))]), 100_000);
    assert_eq!((records.len(), dropped(&counters, Reason::TooLarge)), (1, 1), "{}", counters.summary());
}

#[test]
fn tables_behind_addresses_are_read_in_blocks() {
    let rows: Vec<String> =
        (0..300).map(|n| format!("The text of row {n}, long enough for some pages.")).collect();
    let rows: Vec<Option<&[u8]>> = rows.iter().map(|row| Some(row.as_bytes())).collect();
    let bytes = parquet_files::write(&[&rows[..100], &rows[100..]], Compression::SNAPPY);
    let columns = ["title", "meta.url", "id", "tags.list.element"].map(String::from).to_vec();
    let local = folder(&[("a.parquet", &bytes)]);
    let read = |location: String, range_bytes: u64| -> Result<Vec<RawRecord>, Error> {
        let remote = RemoteOptions { allow_http: true, range_bytes, ..RemoteOptions::default() };
        let options = RawOptions { remote, columns: columns.clone(), ..RawOptions::default() };
        let (files, _) = input_files(&[location], &options)?;
        files[0].open(&options)?.collect()
    };
    let wanted = read(local.path().join("a.parquet").display().to_string(), 1).unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(wanted[7].columns, [pair("title", "title 7"), pair("meta.url", "url 7"), pair("id", "7")]);
    assert_eq!(wanted.len(), 300);
    // Blocks much smaller than the file, and one larger; some answers are truncated.
    for range_bytes in [700, 1 << 20] {
        let base =
            serve(
                &[("a.parquet", bytes.clone())],
                |turn, _, _| {
                    if turn == 3 { Answer::Half } else { Answer::Whole }
                },
            );
        let found = read(format!("{base}/a.parquet"), range_bytes).unwrap();
        let pairs = |records: &[RawRecord]| -> Vec<(Content, Vec<(String, String)>)> {
            records.iter().map(|r| (r.content.clone(), r.columns.clone())).collect()
        };
        assert!(pairs(&found) == pairs(&wanted), "{range_bytes}");
    }
    let base = serve(&[("a.parquet", bytes)], |_, _, _| Answer::Status(404));
    let refused = read(format!("{base}/a.parquet"), 700).err().unwrap();
    assert!(matches!(refused, Error::Remote { .. }), "{refused}");
}

#[test]
fn files_behind_addresses_are_copied_whole_or_not_at_all() {
    let bytes: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
    let remote =
        RemoteOptions { allow_http: true, range_bytes: 3000, retries: 1, ..RemoteOptions::default() };
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("rows.jsonl.zst");
    let base =
        serve(&[("rows", bytes.clone())], |turn, _, _| if turn == 2 { Answer::Half } else { Answer::Whole });
    assert_eq!(remote_files(&format!("{base}/rows"), &remote).unwrap(), [format!("{base}/rows")]);
    assert_eq!(fetch(&format!("{base}/rows"), &remote, &to).unwrap(), bytes.len() as u64);
    assert!(std::fs::read(&to).unwrap() == bytes);
    assert_eq!(std::fs::read_dir(to.parent().unwrap()).unwrap().count(), 1);
    let remote = RemoteOptions { retries: 0, ..remote };
    let base =
        serve(&[("rows", bytes)], |turn, _, _| if turn == 1 { Answer::Status(403) } else { Answer::Whole });
    let other = to.with_file_name("other");
    fetch(&format!("{base}/rows"), &remote, &other).unwrap_err();
    assert!(!other.exists());
}

#[test]
fn buckets_are_listed_and_read() {
    let object = |key: &str, size: usize| {
        format!(
            "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        )
    };
    let rows: [Option<&[u8]>; 1] = [Some(b"two")];
    let (lines, table) =
        (b"{\"text\":\"one\"}\n".to_vec(), parquet_files::write(&[&rows], Compression::SNAPPY));
    let listing = [
        object("data/a.jsonl", lines.len()),
        object("data/deep/b.parquet", table.len()),
        object("data/c.pdf", 7),
    ];
    let listing = format!("<?xml version=\"1.0\"?><ListBucketResult>{}</ListBucketResult>", listing.concat());
    let files = [
        ("bucket", listing.into_bytes()),
        ("bucket/data/a.jsonl", lines),
        ("bucket/data/deep/b.parquet", table),
    ];
    let base = serve(&files, |_, _, _| Answer::Whole);
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let s3 =
        vec![set("AWS_ENDPOINT", &base), set("AWS_SKIP_SIGNATURE", "true"), set("AWS_ALLOW_HTTP", "true")];
    let options =
        RawOptions { remote: RemoteOptions { s3, ..RemoteOptions::default() }, ..RawOptions::default() };
    let (files, counters) = input_files(&["s3://bucket/data/".to_owned()], &options).unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.name()).collect();
    assert_eq!(names, ["s3://bucket/data/a.jsonl", "s3://bucket/data/deep/b.parquet"]);
    assert_eq!((files[0].bytes(), counters.unread[".pdf"].bytes), (Some(15), 7));
    let read =
        |file: &fathom_curate::InputFile| file.open(&options).unwrap().next().unwrap().unwrap().content;
    let texts: Vec<Content> = files.iter().map(read).collect();
    assert_eq!(texts, [Content::Text("one".into()), Content::Text("two".into())]);
}

#[test]
fn long_windows_of_zstd_need_memory() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(28).unwrap();
    std::io::Write::write_all(&mut encoder, b"{\"text\":\"one\"}\n").unwrap();
    let dir = folder(&[("a.jsonl.zst", &encoder.finish().unwrap())]);
    let read = |window_log: u32| -> Result<Vec<RawRecord>, Error> {
        let options = RawOptions { window_log, ..RawOptions::default() };
        let (files, _) = input_files(&[dir.path().display().to_string()], &options)?;
        files[0].open(&options)?.collect()
    };
    assert_eq!((read(27).unwrap().len(), read(28).unwrap().len()), (0, 1));
}

/// Header of a frame that requires a window of 2 GiB, as written by `zstd --long=31`, followed by the data.
fn wide(text: &[u8]) -> Vec<u8> {
    let block = u32::try_from(text.len()).unwrap() << 3 | 1;
    [&b"\x28\xb5\x2f\xfd\x00\xa8"[..], &block.to_le_bytes()[..3], text].concat()
}

#[test]
fn a_window_that_is_too_large_costs_its_frame_and_no_run() {
    let line = b"{\"text\":\"one\"}\n";
    let frames = [wide(line), zstd(b"{\"text\":\"two\"}\n")].concat();
    let page = b"<html><p>A page.</p></html>";
    let files: [(&str, &[u8]); 6] = [
        ("a.jsonl.zst", &wide(line)),
        ("b.jsonl.zst", &frames),
        ("c.txt.zst", &wide(b"A text.")),
        ("d.html.zst", &wide(page)),
        ("e.warc.zst", &wide(crawl()[2].as_bytes())),
        ("f.txt", b"Another text."),
    ];
    let (found, stats) = ids(&files, &[]);
    let read = &stats.stages[0].tally;
    assert_eq!(found, ["b.jsonl.zst#2", "f.txt"], "{:?}", read.damage);
    assert_eq!(read.dropped["too_large"].documents, 5, "{:?}", read.damage);
    assert!(!read.dropped.contains_key("broken_archive"), "{:?}", read.damage);
    let said = &read.damage[0].detail;
    assert!(said.contains("larger than 512 MiB") && said.contains("input.max_window_bytes"), "{said}");
    // With more memory allowed, the part is made again.
    let (found, stats) = ids(&files, &["input.max_window_bytes=2GiB"]);
    assert_eq!((found.len(), stats.stages[0].tally.dropped_documents()), (7, 0), "{found:?}");
    let (input, out) = (folder(&files[..2]), tempfile::tempdir().unwrap());
    let paths = format!("input.paths={}", input.path().display());
    let documents = |window: &str| {
        run(&plan(out.path(), &[&paths, window]).unwrap(), &options(1)).unwrap().tables[0].documents
    };
    assert_eq!([documents("input.max_window_bytes=1GiB"), documents("input.max_window_bytes=2GiB")], [1, 3]);
}

#[test]
fn what_only_python_takes_for_json_is_read() {
    let lines = br#"{"text":"one","loss":NaN,"url":"u"}
{"loss":[Infinity,-Infinity],"text":"half of a pair: \ud83d."}
{"text":"pair \ud83d\ude00","\udc00":"\ud83d"}
{"text":NaN}
{"text":"a","loss":nan}
"#;
    let (found, counters) = texts("a.jsonl", lines);
    assert_eq!(found, ["one", "half of a pair: \u{fffd}.", "pair \u{1f600}"]);
    assert_eq!(dropped(&counters, Reason::NoTextField), 1, "{:?}", counters.damage);
    assert_eq!(dropped(&counters, Reason::BadJson), 1, "{:?}", counters.damage);
}

#[test]
fn a_nested_field_holds_the_text() {
    let lines = br#"{"doc":{"text":"one","meta":{"lang":"en"},"n":1},"text":"no"}
{"doc.text":"whole name","doc":{"text":"nested"}}
{"doc":{"text":7}}
{"doc":"text"}
{"doc":{"x":{"text":"no"}}}
"#;
    let input = folder(&[("a.jsonl", lines)]);
    let options = RawOptions {
        field: "doc.text".to_owned(),
        columns: ["doc.meta.lang", "doc.n", "doc.meta", "text"].map(String::from).to_vec(),
        ..RawOptions::default()
    };
    let (files, _) = input_files(&[input.path().display().to_string()], &options).unwrap();
    let mut records = files[0].open(&options).unwrap();
    let found: Vec<RawRecord> = records.by_ref().collect::<Result<_, _>>().unwrap();
    let of = |record: &RawRecord| record.content.clone();
    assert_eq!(
        found.iter().map(of).collect::<Vec<_>>(),
        ["one", "whole name"].map(|t| Content::Text(t.into()))
    );
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let columns = [
        pair("doc.meta.lang", "en"),
        pair("doc.n", "1"),
        pair("doc.meta", r#"{"lang":"en"}"#),
        pair("text", "no"),
    ];
    assert_eq!(found[0].columns, columns);
    assert_eq!(dropped(records.counters(), Reason::NoTextField), 3);
    // The names in the message are valid values.
    let out = tempfile::tempdir().unwrap();
    let body = folder(&[("a.jsonl", b"{\"doc\":{\"body\":\"x\"}}\n{\"doc\":{\"body\":\"y\"}}\n")]);
    let paths = format!("input.paths={}", body.path().display());
    let said =
        run(&plan(out.path(), &[&paths]).unwrap(), &crate::pipeline::options(1)).unwrap_err().to_string();
    assert!(said.contains("(doc, doc.body)"), "{said}");
}

#[test]
fn an_input_of_which_every_record_is_lost_is_refused() {
    for (name, bytes, said) in [
        ("a.jsonl", &b"{\"body\":\"one\",\"x\":{\"y\":\"z\"}}\n"[..], "no field `text`; it has body, x, x.y"),
        ("a.jsonl", b"{\"text\":null}\n", "`text` is null"),
        ("a.jsonl", b"not json\n", "line 1, byte 0: not JSON"),
        ("a.jsonl.gz", b"no gzip", "broken archive"),
    ] {
        let (input, out) = (folder(&[(name, bytes)]), tempfile::tempdir().unwrap());
        let paths = format!("input.paths={}", input.path().display());
        // A second run, which has nothing to read, reports the same.
        for _ in 0..2 {
            let error = run(&plan(out.path(), &[&paths]).unwrap(), &options(1)).unwrap_err();
            assert!(matches!(error, Error::EmptyCorpus { .. }), "{error}");
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
    }
}

#[test]
fn the_listing_of_an_input_needs_no_format_key() {
    let dir = folder(&[("a.txt", b"a"), ("b.bin", b"b")]);
    let (files, counters) = input_files(&[dir.path().display().to_string()], &RawOptions::default()).unwrap();
    assert_eq!((files.len(), counters.unread[".bin"].documents), (1, 1));
}
