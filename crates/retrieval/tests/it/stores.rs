//! Vectors in a store outside: the answers are those of the folder.

use std::fs;
use std::path::Path;

use fathom_retrieval::{
    Condition, Encode, EncoderFacts, Hit, Index, IndexOptions, IndexReport, Mode, Query, StoreAddress, index,
};

use crate::bed::Bed;
use crate::servers::{postgres, qdrant};

/// Unit vectors that depend on a text's letters.
pub struct Letters {
    name: &'static str,
    dimensions: usize,
}

pub const LETTERS: Letters = Letters { name: "letters", dimensions: 24 };

impl Encode for Letters {
    fn facts(&self) -> EncoderFacts {
        EncoderFacts { name: self.name.into(), fingerprint: self.name.into(), dimensions: self.dimensions }
    }

    fn encode(&self, texts: &[String]) -> fathom_base::Result<Vec<Vec<f32>>> {
        let one = |text: &String| {
            let mut vector = vec![0.01f32; self.dimensions];
            text.bytes().enumerate().for_each(|(at, byte)| {
                vector[(usize::from(byte) * 7 + at % 3) % self.dimensions] += 1.0;
            });
            let norm = vector.iter().map(|it| it * it).sum::<f32>().sqrt();
            vector.iter().map(|it| it / norm).collect()
        };
        Ok(texts.iter().map(one).collect())
    }
}

pub fn write(
    bed: &Bed,
    out: &Path,
    store: Option<&str>,
    encoder: &Letters,
) -> fathom_retrieval::Result<IndexReport> {
    write_in(&bed.docs(), out, store, encoder)
}

pub fn write_in(
    docs: &Path,
    out: &Path,
    store: Option<&str>,
    encoder: &Letters,
) -> fathom_retrieval::Result<IndexReport> {
    let store = store.map(|it| it.parse::<StoreAddress>().unwrap());
    let options = IndexOptions { store, ..IndexOptions::default() };
    index(&[docs.to_path_buf()], out, &options, Some(encoder), &|_| ())
}

pub fn hits(out: &Path, text: &str, mode: Mode, conditions: &[&str]) -> fathom_retrieval::Result<Vec<Hit>> {
    let index = Index::open(out)?;
    let vector = LETTERS.encode(&[text.to_string()]).unwrap().remove(0);
    let conditions: Vec<Condition> = conditions.iter().map(|it| it.parse().unwrap()).collect();
    let query = Query { text, vector: Some(&vector), k: 7, conditions: &conditions, mode, exact: false };
    index.search(&query)
}

/// Documents of all kinds of fields: numbers, texts, numbers as texts, lists, nothing.
pub fn documents() -> Bed {
    let rows: String = (0..300)
        .map(|at| {
            let year = match at % 5 {
                0 => format!("\"{}\"", 1900 + at),
                1 => "null".into(),
                2 => "[1, 2]".into(),
                _ => (1900 + at).to_string(),
            };
            let word = format!("word{} thing{} {}", at, at * 31 % 97, "x".repeat(at % 13));
            format!("{{\"_id\": \"r{at}\", \"text\": \"{word}\", \"year\": {year}, \"a_b%\": \"it's 100%\", \"odd key.\": {at}}}\n")
        })
        .collect();
    let bed = Bed::new(&[
        ("a.md", "# Foxes\n\nThe fox is red.\n\n# Hens\n\nHens are brown.\n"),
        ("b/r.jsonl", &rows),
    ]);
    (0..30).for_each(|at| {
        bed.put(&format!("c/f{at}.txt"), format!("file number {at} says {}", at * 17).as_bytes())
    });
    bed
}

const FILTERS: [&[&str]; 16] = [
    &[],
    &["kind=markdown"],
    &["path=*.txt"],
    &["year=1903"],
    &["year>=2100"],
    &["year<1950", "id!=r3"],
    &["year!=1903"],
    &["year=19*"],
    &["year>a"],
    &["year=null"],
    &["missing=1"],
    &["missing!=1"],
    &["a_b%=it's*%"],
    &["odd key.>=290"],
    &["id=r7"],
    &["year=nan"],
];

fn same_as_the_folder(address: &str) {
    let bed = documents();
    let [folder, stored] = ["folder", "stored"].map(|name| bed.folder.path().join(name));
    let chunks = write(&bed, &folder, None, &LETTERS).unwrap().chunks;
    let report = write(&bed, &stored, Some(address), &LETTERS).unwrap();
    assert_eq!((report.stored, report.chunks), (chunks, chunks));
    let compare = || {
        for (filter, mode) in FILTERS.iter().flat_map(|it| [(it, Mode::Dense), (it, Mode::Auto)]) {
            let [own, there] =
                [&folder, &stored].map(|out| hits(out, "the red thing 31", mode, filter).unwrap());
            let places = |hits: &[Hit]| hits.iter().map(|it| (it.place(), it.id.clone())).collect::<Vec<_>>();
            assert_eq!(places(&own), places(&there), "{filter:?} {mode:?}");
            own.iter()
                .zip(&there)
                .for_each(|(own, there)| assert!((own.score - there.score).abs() < 1e-6, "{filter:?}"));
        }
    };
    compare();
    // An update writes what changed and removes what is gone; a run without changes writes nothing.
    assert_eq!(write(&bed, &stored, None, &LETTERS).unwrap().stored, 0);
    bed.put("c/f3.txt", b"a wombat");
    fs::remove_file(bed.docs().join("c/f4.txt")).unwrap();
    write(&bed, &folder, None, &LETTERS).unwrap();
    let written = write(&bed, &stored, None, &LETTERS).unwrap().stored;
    assert!((1..60).contains(&written), "{written}");
    compare();
    assert!(
        hits(&stored, "file number 4 says 68", Mode::Dense, &[])
            .unwrap()
            .iter()
            .all(|it| !it.path.ends_with("f4.txt"))
    );
    refusals(&bed, &stored, address);
}

/// Errors name the store and the difference.
fn refusals(bed: &Bed, stored: &Path, address: &str) {
    let said = |found: fathom_retrieval::Result<IndexReport>| found.unwrap_err().to_string();
    let other = bed.folder.path().join("other");
    assert!(said(write(bed, &other, Some(address), &LETTERS)).contains("the vectors of another index"));
    let small = Letters { name: "small", dimensions: 8 };
    let found = said(write(bed, &bed.folder.path().join("third"), Some(address), &small));
    assert!(found.contains("have 24 numbers") && found.contains(address), "{found}");
    // The same place, written again by another encoder of the same size.
    let aside = bed.folder.path().join("aside");
    fs::rename(stored, &aside).unwrap();
    let words = Letters { name: "words", ..LETTERS };
    assert!(said(write(bed, stored, Some(address), &words)).contains("of another encoder than words"));
    // A copy of an index finds its vectors.
    assert_eq!(hits(&aside, "wombat", Mode::Dense, &[]).unwrap().len(), 7);
}

#[test]
fn pgvector_answers_as_the_folder_does() {
    let Some(server) = postgres() else { return };
    let address = format!("{}?table=docs-1", server.address);
    same_as_the_folder(&address);
    let mut client = ::postgres::Client::connect(&server.address, ::postgres::NoTls).unwrap();
    client
        .batch_execute(
            "CREATE TABLE others (id int); CREATE TABLE \"half\" AS SELECT * FROM \"docs-1\" LIMIT 3",
        )
        .unwrap();
    let bed = documents();
    let said =
        write(&bed, &bed.out(), Some(&format!("{}?table=others", server.address)), &LETTERS).unwrap_err();
    assert!(said.to_string().contains("not of an index"), "{said}");
    // A store that lost its points says so, and the next run writes them again.
    let address = format!("{}?table=lost", server.address);
    write(&bed, &bed.out(), Some(&address), &LETTERS).unwrap();
    client.batch_execute("DELETE FROM lost WHERE chunk = 0").unwrap();
    let said = hits(&bed.out(), "fox", Mode::Dense, &[]).unwrap_err().to_string();
    assert!(said.contains("it lacks the vectors of"), "{said}");
    write(&bed, &bed.out(), None, &LETTERS).unwrap();
    assert_eq!(hits(&bed.out(), "fox", Mode::Dense, &[]).unwrap().len(), 7);
    client.batch_execute("DROP TABLE lost").unwrap();
    let said = hits(&bed.out(), "fox", Mode::Dense, &[]).unwrap_err().to_string();
    assert!(said.contains("does not exist"), "{said}");
}

#[test]
fn qdrant_answers_as_the_folder_does() {
    let Some(server) = qdrant() else { return };
    same_as_the_folder(&format!("{}/docs-1", server.address));
}

#[test]
fn a_store_that_cannot_be_reached_is_named_and_bm25_works_without_it() {
    let bed = documents();
    for address in ["qdrant://127.0.0.1:1/docs", "postgres://fathom@127.0.0.1:1/docs"] {
        let said = write(&bed, &bed.out(), Some(address), &LETTERS).unwrap_err().to_string();
        assert!(said.contains(address) && said.contains("cannot be reached"), "{said}");
    }
    if let Some(server) = postgres() {
        write(&bed, &bed.out(), Some(&server.address), &LETTERS).unwrap();
        drop(server);
        let said = hits(&bed.out(), "fox", Mode::Auto, &[]).unwrap_err().to_string();
        assert!(said.contains("cannot be reached"), "{said}");
        assert_eq!(hits(&bed.out(), "fox", Mode::Sparse, &[]).unwrap().len(), 1);
    }
}

#[test]
fn addresses_with_passwords_other_schemes_and_odd_names_are_refused() {
    for (address, why) in [
        ("postgres://me:secret@h/db", "must not have a password"),
        ("mysql://h/db", "another scheme"),
        ("qdrant://h:1/", "1 to 48 letters"),
        ("postgres://h/db?table=a\"b", "1 to 48 letters"),
        ("here", "no address of a store"),
    ] {
        let said = address.parse::<StoreAddress>().unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
}
