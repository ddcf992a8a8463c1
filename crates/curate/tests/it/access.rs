//! Transient failures are not damage: disks that fail once, unreachable servers, partially missing results.

use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fathom_base::recipe::{Layers, Loaded};
use fathom_curate::pipeline::{OnRead, Outcome, Pipeline, Rank, Recipe, RunOptions, Stats};
use fathom_curate::{Error, InputFile, RawOptions, RemoteOptions};
use parquet::basic::Compression;

use crate::crawl::{DUMP, crawl, gzip, tarball};
use crate::pipeline::{bytes_of, options, run};
use crate::server::{Answer, serve};
use crate::{folder, parquet_files};

const EINTR: i32 = 4;
const EIO: i32 = 5;
const EMFILE: i32 = 24;

/// One file of every sequential kind.
fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let lines: String = (0..40).map(|n| format!("{{\"text\":\"line {n} of some text\"}}\n")).collect();
    let pages: Vec<u8> = crawl().iter().flat_map(|record| gzip(record.as_bytes())).collect();
    let mut dump = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    io::Write::write_all(&mut dump, DUMP.as_bytes()).unwrap();
    let papers = tarball(&[("1.gz", &gzip(b"\\section{One} A text.")), ("2.gz", &gzip(b"\\section{Two}"))]);
    vec![
        ("a.jsonl", lines.clone().into_bytes()),
        ("b.jsonl.gz", gzip(lines.as_bytes())),
        ("c.jsonl.zst", zstd::encode_all(lines.as_bytes(), 1).unwrap()),
        ("d.warc.gz", pages),
        ("e-pages-articles.xml.bz2", dump.finish().unwrap()),
        ("f.tar", papers),
        ("g.txt", b"A plain text of one line.".to_vec()),
        ("h.html", b"<html><p>A page of one paragraph.</p></html>".to_vec()),
    ]
}

/// All kinds of files, each forming its own part.
fn inputs() -> tempfile::TempDir {
    let rows: [Option<&[u8]>; 3] = [Some(b"The first row"), None, Some(b"The third row")];
    let mut files = streams();
    files.push(("i.parquet", parquet_files::write(&[&rows, &rows], Compression::SNAPPY)));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    folder(&files)
}

fn pipeline(paths: &[&str], out: &Path, recipe: &str) -> Pipeline {
    let paths: Vec<String> = paths.iter().map(|path| format!("{path:?}")).collect();
    let layers = Layers::new()
        .text("test", recipe)
        .set(&format!("input.paths=[{}]", paths.join(",")))
        .set("input.unit_bytes=1")
        .set(&format!("out={}", out.display()));
    let remote =
        RemoteOptions { allow_http: true, retries: 0, range_bytes: 1000, ..RemoteOptions::default() };
    Pipeline::with_remote(&Loaded::<Recipe>::load(layers).unwrap(), remote).unwrap()
}

const WRITTEN: &str = "[[stage]]\nuse = \"length\"\nmin_chars = 1\n[[stage]]\nuse = \"write\"\n";

fn curation(input: &Path, out: &Path) -> Pipeline {
    pipeline(&[&format!("in={}", input.display())], out, WRITTEN)
}

/// Makes one access to each file that ends with `name` fail: access 0 opens it, later ones read.
fn failing(name: &'static str, access: usize, number: i32) -> OnRead {
    let seen = AtomicUsize::new(0);
    Arc::new(move |location: &str, offset: Option<u64>| {
        if !location.ends_with(name) {
            return Ok(());
        }
        let turn = seen.fetch_add(1, Ordering::SeqCst);
        assert_eq!(turn == 0, offset.is_none(), "{location}: a file is opened before it is read");
        if turn == access { Err(io::Error::from_raw_os_error(number)) } else { Ok(()) }
    })
}

fn disturbed(threads: usize, on_read: OnRead) -> RunOptions {
    RunOptions { on_read: Some(on_read), ..options(threads) }
}

fn part(out: &Path, index: usize, end: &str) -> PathBuf {
    out.join(format!("00-length/part-{index:05}.{end}"))
}

#[test]
fn a_read_that_fails_leaves_its_part_to_the_next_run() {
    let (input, undisturbed) = (inputs(), tempfile::tempdir().unwrap());
    run(&curation(input.path(), undisturbed.path()), &options(2)).unwrap();
    let wanted = bytes_of(undisturbed.path());
    let names = streams().into_iter().map(|(name, _)| name).chain(["i.parquet"]);
    for (index, name) in names.enumerate() {
        for (access, number) in [(0, EMFILE), (1, EIO), (2, EIO)] {
            let out = tempfile::tempdir().unwrap();
            let pipeline = curation(input.path(), out.path());
            let ended = pipeline.run(&disturbed(1 + access, failing(name, access, number)));
            let error = ended.err().unwrap_or_else(|| panic!("access {access} of {name} was not missed"));
            assert!(matches!(error, Error::Unread { parts: 1, of: 9, .. }), "{error:?}");
            let (said, cause) = (error.to_string(), io::Error::from_raw_os_error(number).to_string());
            assert!(said.contains(name) && said.contains(&cause), "{said}");
            assert_eq!(said.contains(" at byte "), access > 0, "{said}");
            for other in 0..9 {
                for end in ["parquet", "json"] {
                    assert_eq!(part(out.path(), other, end).exists(), other != index, "{name}, part {other}");
                }
            }
            assert!(!out.path().join("01-write").exists(), "a stage ran on a part of the table");
            let hidden = format!(".part-{index:05}.parquet.tmp");
            assert!(!out.path().join("00-length").join(hidden).exists());
            run(&pipeline, &options(1)).unwrap();
            assert!(wanted == bytes_of(out.path()), "{name}, access {access}");
        }
    }
}

#[test]
fn several_parts_are_reported_in_one_message_and_no_other_is_made_again() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let pipeline = curation(input.path(), out.path());
    let (first, second) = (failing("c.jsonl.zst", 1, EIO), failing("f.tar", 0, EMFILE));
    let both: OnRead = Arc::new(move |location, offset| {
        first(location, offset)?;
        second(location, offset)
    });
    let said = pipeline.run(&disturbed(3, both)).err().unwrap().to_string();
    let expected =
        format!("2 of 9 parts are not made: cannot read {}/c.jsonl.zst at byte 0: ", input.path().display());
    assert!(said.starts_with(&expected), "{said}");
    let made = |index| std::fs::metadata(part(out.path(), index, "parquet")).unwrap().modified().unwrap();
    let before = [made(0), made(8)];
    run(&pipeline, &options(3)).unwrap();
    assert_eq!([made(0), made(8)], before);
}

/// Number of documents that the reader counted as unreadable.
fn unreadable(stats: &Stats) -> u64 {
    stats.stages[0].tally.dropped.get("unreadable").map_or(0, |dropped| dropped.documents)
}

#[test]
fn what_lasts_is_counted_and_an_interruption_is_nothing() {
    let input = inputs();
    // ENOENT and EACCES.
    for number in [2, 13] {
        let out = tempfile::tempdir().unwrap();
        let options = disturbed(1, failing("b.jsonl.gz", 0, number));
        let stats = run(&curation(input.path(), out.path()), &options).unwrap();
        let damage = &stats.stages[0].tally.damage;
        assert_eq!(unreadable(&stats), 1);
        assert!(damage.iter().any(|damage| damage.file.ends_with("b.jsonl.gz")), "{damage:?}");
    }
    let outs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    run(&curation(input.path(), outs[0].path()), &options(1)).unwrap();
    run(&curation(input.path(), outs[1].path()), &disturbed(1, failing("b.jsonl.gz", 1, EINTR))).unwrap();
    assert!(bytes_of(outs[0].path()) == bytes_of(outs[1].path()));
}

#[test]
fn a_cut_off_file_stays_damage_with_its_place() {
    let lines: String = (0..40).map(|n| format!("{{\"text\":\"line {n} of some text\"}}\n")).collect();
    let packed = gzip(lines.as_bytes());
    let input = folder(&[("a.jsonl.gz", &packed[..packed.len() / 2]), ("b.txt", b"A text.")]);
    let out = tempfile::tempdir().unwrap();
    let stats = run(&curation(input.path(), out.path()), &options(1)).unwrap();
    let tally = &stats.stages[0].tally;
    assert_eq!(tally.dropped["broken_archive"].documents, 1);
    assert!(tally.damage[0].file.ends_with("a.jsonl.gz") && tally.damage[0].place.contains(", byte "));
}

/// A disk that fails whenever it is read.
struct BrokenDisk;

impl Read for BrokenDisk {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(EIO))
    }
}

#[test]
fn no_decoder_makes_damage_of_a_failed_read() {
    for (name, bytes) in streams() {
        for cut in [0, bytes.len() / 2, bytes.len()] {
            let input = Cursor::new(bytes[..cut].to_vec()).chain(BrokenDisk);
            let mut records = InputFile::read_from(name, Box::new(input), &RawOptions::default()).unwrap();
            let last = records.by_ref().last();
            let Some(Err(Error::Unavailable { location, offset, .. })) = last else {
                panic!("{name} cut at {cut}: {last:?}")
            };
            assert_eq!((location.as_str(), offset), (name, Some(cut as u64)));
            assert!(records.next().is_none());
        }
    }
}

#[test]
fn a_server_that_is_unreachable_is_asked_again_by_the_next_run() {
    const WELL: usize = 0;
    let lines = |from: usize| -> Vec<u8> {
        (from..from + 80).map(|n| format!("{{\"text\":\"line {n} of a text\"}}\n")).collect::<String>().into()
    };
    // Outcome of requests for b.jsonl from an offset on: a status, or no answer at all.
    let (state, since) = (Arc::new(AtomicUsize::new(WELL)), Arc::new(AtomicUsize::new(0)));
    let (asked_state, asked_since) = (state.clone(), since.clone());
    let base = serve(&[("a.jsonl", lines(0)), ("b.jsonl", lines(50))], move |_, name, from| {
        let state = asked_state.load(Ordering::SeqCst);
        if state == WELL || name != "b.jsonl" || from < asked_since.load(Ordering::SeqCst) {
            return Answer::Whole;
        }
        u16::try_from(state).map_or(Answer::Nothing, Answer::Status)
    });
    let paths = ["a.jsonl", "b.jsonl"].map(|name| format!("{base}/{name}"));
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let run_in = |out: &Path, answer: usize, offset: usize| {
        state.store(answer, Ordering::SeqCst);
        since.store(offset, Ordering::SeqCst);
        run(&pipeline(&paths, out, WRITTEN), &options(2))
    };
    let out = || tempfile::tempdir().unwrap();
    let well = out();
    run_in(well.path(), WELL, 0).unwrap();
    let wanted = bytes_of(well.path());
    for (answer, offset, cause) in [
        (503, 0, "the server said 503 Service Unavailable"),
        (503, 1000, "the server said 503 Service Unavailable"),
        (500, 2000, "the server said 500 Internal Server Error"),
        (429, 0, "the server said 429 Too Many Requests"),
        (usize::MAX, 1000, "b.jsonl"),
    ] {
        let out = out();
        let error = run_in(out.path(), answer, offset).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Unread { parts: 1, of: 2, .. }), "{error:?}");
        assert!(said.contains("/b.jsonl") && said.contains(cause), "{said}");
        assert!(offset == 0 || said.contains(&format!(" at byte {offset}: ")), "{said}");
        assert!(part(out.path(), 0, "json").exists() && !part(out.path(), 1, "json").exists());
        run_in(out.path(), WELL, 0).unwrap();
        assert!(wanted == bytes_of(out.path()), "{answer} from {offset} on");
    }
    for (answer, offset) in [(404, 0), (404, 1000), (403, 0), (401, 0), (410, 1000), (416, 0)] {
        let outs = [out(), out()];
        for out in &outs {
            let stats = run_in(out.path(), answer, offset).unwrap();
            let damage = &stats.stages[0].tally.damage[0];
            let expected = format!("the server said {answer} ");
            assert!(unreadable(&stats) == 1 && damage.detail.contains(&expected), "{damage:?}");
        }
        assert!(bytes_of(outs[0].path()) == bytes_of(outs[1].path()), "{answer} from {offset} on");
    }
}

#[test]
fn results_that_are_half_gone_are_made_again() {
    const RECIPE: &str = "[[stage]]\nuse = \"length\"\nmin_chars = 1\n[[stage]]\nuse = \"exact\"\n\
        [[stage]]\nuse = \"write\"\n[[stage]]\nuse = \"tokenize\"\nvocab = 300\n";
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let pipeline = pipeline(&[&format!("in={}", input.path().display())], out.path(), RECIPE);
    run(&pipeline, &options(2)).unwrap();
    let wanted = bytes_of(out.path());
    let results = wanted.keys().filter(|name| !name.starts_with("00-") && !name.ends_with("table.json"));
    let results: Vec<PathBuf> = results.map(|name| out.path().join(name)).collect();
    assert!(results.len() > 30, "{results:?}");
    for (turn, path) in results.iter().enumerate() {
        let bytes = std::fs::read(path).unwrap();
        if turn % 2 == 0 || bytes.is_empty() {
            std::fs::remove_file(path).unwrap();
        } else {
            std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }
        run(&pipeline, &options(2)).unwrap();
        assert!(wanted == bytes_of(out.path()), "{}", path.display());
    }
}

#[test]
fn bits_that_flip_in_results_are_named_and_made_again() {
    const RECIPE: &str = "[[stage]]\nuse = \"length\"\nmin_chars = 1\n[[stage]]\nuse = \"exact\"\n\
        [[stage]]\nuse = \"write\"\n[[stage]]\nuse = \"tokenize\"\nvocab = 300\n";
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let plan = || pipeline(&[&format!("in={}", input.path().display())], out.path(), RECIPE);
    run(&plan(), &options(2)).unwrap();
    let wanted = bytes_of(out.path());
    let made = |name: &&String| {
        let manifest = name.ends_with("table.json") || (name.starts_with("00-") && name.ends_with(".json"));
        !manifest
    };
    let results: Vec<&String> = wanted.keys().filter(made).collect();
    for name in ["train.bin", "train.idx", "tokenizer.json", "part-00000.parquet", "part-00000.jsonl.zst"] {
        assert!(results.iter().any(|result| result.ends_with(name)), "{results:?}");
    }
    // Intact parts are not made again.
    let changed = || std::fs::metadata(out.path().join("03-tokenize/train.bin")).unwrap().modified().unwrap();
    let before = changed();
    run(&plan(), &options(2)).unwrap();
    assert_eq!(changed(), before);
    for (turn, name) in results.into_iter().enumerate() {
        let path = out.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let at = (turn * 131) % bytes.len();
        bytes[at] ^= 1 << (turn % 8);
        std::fs::write(&path, &bytes).unwrap();
        let said = Arc::new(std::sync::Mutex::new(Vec::new()));
        let lines = said.clone();
        let say: fathom_curate::pipeline::OnLine =
            Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()));
        run(&plan(), &RunOptions { say: Some(say), ..options(2) }).unwrap();
        let said = said.lock().unwrap().join("\n");
        assert!(
            said.contains(&format!("{} has changed since it was written", path.display())),
            "{name}: {said}"
        );
        assert!(wanted == bytes_of(out.path()), "{name}");
    }
}

#[test]
fn a_part_that_changed_is_left_to_the_rank_that_made_it() {
    let (input, out) = (inputs(), tempfile::tempdir().unwrap());
    let recipe = "[[stage]]\nuse = \"length\"\nmin_chars = 1\n[[stage]]\nuse = \"exact\"\n";
    let plan = || pipeline(&[&format!("in={}", input.path().display())], out.path(), recipe);
    let rank = |rank| RunOptions { rank: Rank { rank, world_size: 2 }, ..options(1) };
    // Rank 1 first, so that rank 0 finds its parts.
    assert!(matches!(plan().run(&rank(1)).unwrap(), Outcome::Waiting { .. }));
    let path = part(out.path(), 1, "parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    let whole = bytes.clone();
    bytes[whole.len() / 2] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let Outcome::Waiting { missing, .. } = plan().run(&rank(0)).unwrap() else { panic!("it was used") };
    assert!(missing.len() == 1 && missing[0].ends_with("part-00001.parquet (rank 1)"), "{missing:?}");
    assert!(matches!(plan().run(&rank(1)).unwrap(), Outcome::Waiting { .. }));
    assert!(std::fs::read(&path).unwrap() == whole);
    assert!(matches!(plan().run(&rank(0)).unwrap(), Outcome::Done(_)));
}
