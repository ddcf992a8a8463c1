//! Writing and updating an index.

use std::fs;
use std::path::PathBuf;

use fathom_retrieval::{Condition, Error, Index, IndexOptions, Query};

use crate::bed::{Bed, contents};

fn numbered(count: usize) -> Vec<(String, String)> {
    let text = |at: usize| {
        format!("# Part {at}\n\nThe number {at} is about subject{} and thing{}.\n", at % 17, at % 5)
    };
    (0..count).map(|at| (format!("d{}/f{at}.md", at % 7), text(at))).collect()
}

fn bed(count: usize) -> Bed {
    let files = numbered(count);
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    Bed::new(&files)
}

#[test]
fn a_hit_names_its_file_lines_bytes_and_headings() {
    let text = "# Animals\n\nNothing here.\n\n## Foxes\n\nThe fox is red.\n";
    let bed = Bed::new(&[("a.md", text), ("b.txt", "hens are brown\n")]);
    assert_eq!(bed.index().unwrap().chunks, 3);
    let hit = bed.search("red fox").remove(0);
    assert!(hit.path.ends_with("docs/a.md"));
    assert_eq!((hit.lines, hit.headings.join(" > ").as_str()), (Some([5, 7]), "Animals > Foxes"));
    assert_eq!(&text[hit.bytes[0] as usize..hit.bytes[1] as usize], hit.text);
    assert!(bed.search("unicorn").is_empty() && bed.search("").is_empty());
}

#[test]
fn an_update_reads_what_changed_and_gives_the_bytes_of_a_new_index() {
    let bed = bed(600);
    assert_eq!(bed.index().unwrap().read_files, 600);
    let before = contents(&bed.out());
    let same = bed.index().unwrap();
    assert_eq!((same.read_files, same.chunks), (0, 600));
    assert!(contents(&bed.out()) == before, "an index of unchanged files is not written again");
    bed.put("d3/f3.md", b"# Other\n\nA wombat.\n");
    fs::remove_file(bed.docs().join("d4/f4.md")).unwrap();
    bed.put("d9/new.md", b"An okapi.\n");
    let report = bed.index().unwrap();
    assert!((2..40).contains(&report.read_files), "{report:?}");
    assert_eq!((bed.search("wombat").len(), bed.search("okapi").len()), (1, 1));
    assert!(bed.search("number 4").iter().all(|hit| !hit.path.ends_with("/f4.md")));
    let updated = contents(&bed.out());
    fs::remove_dir_all(bed.out()).unwrap();
    bed.index().unwrap();
    assert!(contents(&bed.out()) == updated, "updated and new indexes differ");
}

#[test]
fn what_an_interrupted_run_left_is_used_and_repaired() {
    let bed = bed(60);
    bed.index().unwrap();
    let whole = contents(&bed.out());
    // The remains of a kill: no manifest, some segments, one of them torn by a crash of the machine, one being written.
    fs::remove_file(bed.out().join("manifest")).unwrap();
    let mut segments: Vec<_> =
        fs::read_dir(bed.out().join("segments")).unwrap().map(|it| it.unwrap().path()).collect();
    segments.sort();
    segments[..20].iter().for_each(|path| fs::remove_file(path).unwrap());
    let torn = fs::read(&segments[30]).unwrap();
    fs::write(&segments[30], &torn[..torn.len() / 2]).unwrap();
    fs::write(segments[0].with_extension("tmp"), "half").unwrap();
    bed.index().unwrap();
    assert!(contents(&bed.out()) == whole, "resumed and whole runs differ");
}

#[test]
fn damage_anywhere_is_refused_by_name() {
    let bed = bed(12);
    bed.index().unwrap();
    let is_read = |(path, bytes): &(PathBuf, Vec<u8>)| {
        !bytes.is_empty() && path.extension().is_none_or(|it| it != "keys")
    };
    for (path, bytes) in contents(&bed.out()).into_iter().filter(is_read) {
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            fs::write(&path, &damaged).unwrap();
            let said = Index::open(&bed.out()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains("damaged"), "{}, byte {at}: {said}", path.display());
        }
        fs::remove_file(&path).unwrap();
        assert!(Index::open(&bed.out()).is_err(), "{}", path.display());
        fs::write(&path, &bytes).unwrap();
    }
    assert!(Index::open(&bed.out()).is_ok());
}

#[test]
fn an_update_without_its_file_of_keys_or_with_a_damaged_one_gives_the_same_bytes() {
    let bed = bed(40);
    bed.index().unwrap();
    let keys = || {
        let mut all = contents(&bed.out()).into_iter().map(|(path, _)| path);
        all.find(|path| path.extension().is_some_and(|it| it == "keys")).unwrap()
    };
    for (at, spoil) in [fs::remove_file as fn(PathBuf) -> _, |path| fs::write(path, "FATHOMK1 and so on")]
        .into_iter()
        .enumerate()
    {
        spoil(keys()).unwrap();
        // A copy of another file.
        let copied = fs::read(bed.docs().join(format!("d{at}/f{at}.md"))).unwrap();
        bed.put("d9/copy.md", &copied);
        assert!(bed.index().unwrap().duplicates > 0);
        let updated = contents(&bed.out());
        fs::remove_dir_all(bed.out()).unwrap();
        bed.index().unwrap();
        assert!(contents(&bed.out()) == updated, "updated and new indexes differ");
    }
}

#[test]
fn folders_that_are_no_index_are_refused_and_left_alone() {
    let bed = Bed::new(&[("a.md", "text")]);
    assert!(matches!(Index::open(&bed.docs()), Err(Error::NotAnIndex { .. })));
    assert!(matches!(Index::open(&bed.folder.path().join("none")), Err(Error::NotAnIndex { .. })));
    let said = fathom_retrieval::index(&[bed.docs()], &bed.docs(), &IndexOptions::default(), None, &|_| ())
        .unwrap_err();
    assert!(said.to_string().contains("not empty"), "{said}");
    assert_eq!(contents(&bed.docs()).len(), 1);
    let none = fathom_retrieval::index(
        &[bed.folder.path().join("x")],
        &bed.out(),
        &IndexOptions::default(),
        None,
        &|_| (),
    );
    assert!(none.unwrap_err().to_string().contains("cannot read"));
}

#[test]
fn files_without_text_are_skipped_by_name() {
    let bed =
        Bed::new(&[("a.md", "text"), ("empty.txt", " \n"), ("p.pdf", "%PDF-1.4 broken"), ("x.png", "?")]);
    bed.put("r.jsonl", b"{\"text\": \"row\"}\n{]\n");
    bed.put("bad.txt", b"a\xff");
    for _ in 0..2 {
        let report = bed.index().unwrap();
        let skipped: Vec<&str> =
            report.skipped.iter().map(|(path, _)| path.rsplit('/').next().unwrap()).collect();
        assert_eq!(skipped, ["bad.txt", "empty.txt", "p.pdf"]);
        assert_eq!((report.files, report.skipped_rows[0].1, report.ignored[".png"]), (2, 1, 1));
    }
}

#[test]
fn near_duplicates_are_found_and_listed_with_the_better_hit() {
    let long: String = (0..60).map(|at| format!("word{} ", at * 7 % 61)).collect();
    let bed = Bed::new(&[("a.txt", &long), ("b.txt", &format!("{long}again")), ("c.txt", "word7 alone")]);
    assert_eq!(bed.index().unwrap().duplicates, 1);
    let hits = bed.search("word7 word14");
    assert_eq!(hits.len(), 2);
    let whole = hits.iter().find(|hit| !hit.path.ends_with("c.txt")).unwrap();
    assert_eq!(whole.also.len(), 1);
}

#[test]
fn conditions_hold_for_every_hit() {
    let rows: String = (0..50)
        .map(|at| format!("{{\"_id\": \"r{at}\", \"text\": \"common words\", \"year\": {}}}\n", 1990 + at))
        .collect();
    let bed = Bed::new(&[("r.jsonl", &rows), ("a.md", "common words")]);
    bed.index().unwrap();
    let index = Index::open(&bed.out()).unwrap();
    let found = |condition: &str| {
        let conditions: Vec<Condition> = vec![condition.parse().unwrap()];
        index.sparse("common", 100, &conditions).len()
    };
    assert_eq!(
        [found("year>=2030"), found("kind=markdown"), found("id=r7"), found("path=*.jsonl")],
        [10, 1, 1, 50]
    );
    let query = Query { text: "common", k: 3, ..Query::default() };
    assert_eq!(index.search(&query).unwrap().len(), 1, "equal passages are near-duplicates");
}
