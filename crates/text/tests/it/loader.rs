//! Packing from stores, and the loader: labels, blends, resuming.

use crate::store::write;
use fathom_text::lessons::Truncation;
use fathom_text::loader::{
    Cursor, LengthWeight, Loader, Shuffle, Source, SourceFilter, Spec, Split, choose, samples, shortened,
};
use fathom_text::pack::{Boundaries, IGNORE, PackedSample, Packing, Span, materialise};
use fathom_text::store::{DocMeta, Header, Store, StoreWriter};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Documents whose tokens identify their origin: document d is d*100, d*100+1, ..., then 1 (end of text).
fn store(dir: &std::path::Path, lengths: &[u32]) -> Arc<Store> {
    let docs: Vec<Vec<u32>> = lengths
        .iter()
        .zip(1u32..)
        .map(|(&length, doc)| (0..length - 1).map(|t| doc * 100 + t).chain([1]).collect())
        .collect();
    Arc::new(Store::open(write(dir, 100_000, &docs)).unwrap())
}

#[test]
fn labels_positions_and_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), &[4, 3, 5]);
    let span = |doc, start, len| Span { doc, start, len };
    let sample = [span(0, 1, 3), span(1, 0, 3), span(2, 0, 2)];
    let masked = materialise(&store, &sample, Boundaries::Masked).unwrap();
    assert_eq!(masked.tokens, [101, 102, 1, 200, 201, 1, 300, 301]);
    assert_eq!(masked.labels, [102, 1, IGNORE, 201, 1, IGNORE, 301, 302]);
    assert_eq!(masked.positions, [0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(masked.docs, [(0, 3), (3, 6), (6, 8)]);
    let open = materialise(&store, &sample, Boundaries::Unmasked).unwrap();
    assert_eq!(open.tokens, masked.tokens);
    assert_eq!(open.labels, [102, 1, 200, 201, 1, 300, 301, 302]);
    assert_eq!(open.positions, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(open.docs, [(0, 8)]);
    assert_eq!(materialise(&store, &[], Boundaries::Masked).unwrap(), PackedSample::default());
}

fn spec(packing: Packing) -> Spec {
    Spec { packing, seed: 5, ahead: 3, ..Spec::new(8) }
}

/// Tokens of one epoch, sorted.
fn epoch_tokens(store: &Store, spec: &Spec, epoch: u64) -> Vec<u32> {
    let docs = choose(store, &SourceFilter::Whole, spec).unwrap();
    let plan = samples(&docs, spec, 0, epoch);
    let mut ids: Vec<u32> =
        plan.iter().flat_map(|sample| materialise(store, sample, spec.boundaries).unwrap().tokens).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn an_epoch_gives_every_token_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), &[4, 30, 5, 9, 2, 14]);
    let mut all: Vec<u32> = (0..6).flat_map(|doc| store.doc(doc).unwrap()).collect();
    all.sort_unstable();
    assert_eq!(epoch_tokens(&store, &spec(Packing::BestFit), 3), all);
    // Concatenation drops the final partial sample.
    assert_eq!(epoch_tokens(&store, &spec(Packing::Concatenate), 3).len(), all.len() / 8 * 8);
}

#[test]
fn every_cursor_resumes_exactly() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let sources = || {
        vec![
            Source::whole(store(dirs[0].path(), &[4, 30, 5, 9, 2, 14]), 3.0),
            Source::whole(store(dirs[1].path(), &[7, 7, 20]), 1.0),
        ]
    };
    for packing in [Packing::Concatenate, Packing::BestFit] {
        let mut loader = Loader::new(sources(), spec(packing)).unwrap();
        let mut given: Vec<PackedSample> = Vec::new();
        let mut cursors: Vec<Cursor> = vec![loader.cursor().clone()];
        for _ in 0..60 {
            given.push(loader.next().unwrap());
            cursors.push(loader.cursor().clone());
        }
        assert!(loader.total_wait_s() >= loader.data_wait_s());
        let end = &cursors[60];
        assert_eq!((end.sample, end.sources[0].drawn, end.sources[1].drawn), (60, 45, 15));
        assert!(end.sources[0].epoch > 2, "{end:?}");
        for (at, cursor) in cursors.iter().enumerate() {
            let text = serde_json::to_string(cursor).unwrap();
            let cursor: Cursor = serde_json::from_str(&text).unwrap();
            // The number of samples prepared ahead does not affect the sequence.
            let spec = Spec { ahead: 1 + at % 5, ..spec(packing) };
            let mut resumed = Loader::resume(sources(), spec, &cursor).unwrap();
            for expected in given[at..].iter().take(5) {
                assert_eq!(&resumed.next().unwrap(), expected);
            }
        }
        let other = Loader::resume(sources(), Spec { seed: 6, ..spec(packing) }, &cursors[3]);
        assert!(other.unwrap_err().to_string().contains("fingerprint"));
        let damages: [fn(&mut Cursor); 4] = [
            |cursor| cursor.sample = u64::MAX,
            |cursor| cursor.sources[0].index = u64::MAX,
            |cursor| cursor.sources[0].epoch = u64::MAX,
            |cursor| cursor.sources[1].drawn += 1,
        ];
        for damage in damages {
            let mut cursor = cursors[3].clone();
            damage(&mut cursor);
            let refused = Loader::resume(sources(), spec(packing), &cursor).unwrap_err().to_string();
            assert!(refused.contains("cursor is damaged"), "{refused}");
        }
        let fewer = Loader::resume(sources()[..1].to_vec(), spec(packing), &cursors[3]);
        assert!(fewer.is_err());
    }
}

#[test]
fn splits_part_the_documents() {
    let dir = tempfile::tempdir().unwrap();
    let docs: Vec<Vec<u32>> = (0..400).map(|doc| vec![doc; 3]).collect();
    let prefix = write(dir.path(), 1000, &docs);
    // Without recorded metadata the hash is computed from the ids.
    std::fs::remove_file(format!("{}.docs", prefix.display())).unwrap();
    let store = Store::open(prefix).unwrap();
    let numbers = |split| -> BTreeSet<u64> {
        choose(&store, &SourceFilter::Whole, &Spec { split, ..Spec::new(8) })
            .unwrap()
            .iter()
            .map(|doc| doc.doc)
            .collect()
    };
    let (train, held) =
        (numbers(Split::Train { held_out: 0.1.into() }), numbers(Split::HeldOut { held_out: 0.1.into() }));
    assert!(train.is_disjoint(&held) && train.len() + held.len() == 400);
    assert!((20..70).contains(&held.len()), "{}", held.len());
    assert!(numbers(Split::HeldOut { held_out: 0.05.into() }).is_subset(&held));
}

#[test]
fn long_documents_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), &[4, 30, 5, 9, 2, 14]);
    let long = Spec { min_doc_tokens: 9, shuffle: Shuffle::None, ..Spec::new(8) };
    let docs: Vec<u64> =
        choose(&store, &SourceFilter::Whole, &long).unwrap().iter().map(|doc| doc.doc).collect();
    assert_eq!(docs, [1, 3, 5]);
    let error = choose(&store, &SourceFilter::Whole, &Spec { min_doc_tokens: 31, ..Spec::new(8) })
        .unwrap_err()
        .to_string();
    assert!(error.contains("the longest has 30 tokens") && error.contains("at least 31"), "{error}");
}

#[test]
fn parts_of_a_store_are_blended_by_weight() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("corpus");
    let mut writer = StoreWriter::create(&prefix, Header::new(100)).unwrap();
    let sources = ["prose", "verse"].map(|name| writer.add_source(name));
    for doc in 0..20u32 {
        let source = sources[usize::from(doc % 4 == 0)];
        writer.push_document(&[doc; 8], DocMeta { source, hash: u128::from(doc), text_bytes: 8 }).unwrap();
    }
    writer.finish().unwrap();
    let store = Arc::new(Store::open(&prefix).unwrap());
    let part = |part, weight| Source { store: store.clone(), part, weight };
    let (verse, rest) = (SourceFilter::Only("verse".into()), SourceFilter::Without(vec!["verse".into()]));
    let first = |sources| {
        let mut loader = Loader::new(sources, Spec::new(8)).unwrap();
        (0..40).map(|_| loader.next().unwrap().tokens[0]).collect::<Vec<u32>>()
    };
    let blended = first(vec![part(verse.clone(), 3.0), part(rest.clone(), 1.0)]);
    assert_eq!(blended.iter().filter(|doc| **doc % 4 == 0).count(), 30);
    assert!(first(vec![part(rest.clone(), 1.0)]).iter().all(|doc| doc % 4 != 0));
    let error = choose(&store, &SourceFilter::Only("epic".into()), &Spec::new(8)).unwrap_err().to_string();
    assert!(error.contains("epic"), "{error}");
    // A cursor of one part is rejected by the other.
    let cursor = Loader::new(vec![part(rest, 1.0)], Spec::new(8)).unwrap().cursor().clone();
    assert!(Loader::resume(vec![part(verse, 1.0)], Spec::new(8), &cursor).is_err());
}

#[test]
fn bad_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), &[4, 30]);
    let source = |weight| vec![Source::whole(store.clone(), weight)];
    assert!(Loader::new(Vec::new(), Spec::new(8)).is_err());
    assert!(Loader::new(source(1.0), Spec::new(0)).is_err());
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Loader::new(source(weight), Spec::new(8)).unwrap_err().to_string();
        assert!(error.contains("weight"), "{error}");
    }
    let rule = LengthWeight { min_tokens: 1, weight: f64::NAN };
    assert!(Loader::new(source(1.0), Spec { length_weights: vec![rule], ..Spec::new(8) }).is_err());
}

#[test]
fn lessons_are_cut_and_never_taken_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("rows");
    let mut writer = StoreWriter::create(&prefix, Header::new(100)).unwrap();
    // Targets: the tokens 4 and 5; 13 to 20; 31 and 32.
    for (ids, learned) in [(1..6, 4..6), (11..21, 13..21), (21..33, 31..33)] {
        let ids: Vec<u32> = ids.collect();
        let weights: Vec<f32> = ids.iter().map(|id| f32::from(u8::from(learned.contains(id)))).collect();
        writer.push_weighted(&ids, &weights, DocMeta::default()).unwrap();
    }
    writer.finish().unwrap();
    let store = Arc::new(Store::open(&prefix).unwrap());
    let spec =
        |kept| Spec { packing: Packing::Single, shuffle: Shuffle::None, kept: Some(kept), ..Spec::new(6) };
    let pass = |spec: Spec, samples: usize| {
        let mut loader = Loader::new(vec![Source::whole(store.clone(), 1.0)], spec).unwrap();
        (0..samples).map(|_| loader.next().unwrap()).collect::<Vec<_>>()
    };
    // The third row has no targets in its first tokens; what was cut is not a target.
    let given = pass(spec(Truncation::KeepStart), 3);
    assert_eq!([&given[0].tokens[..], &given[1].tokens], [vec![1, 2, 3, 4, 5], (11..17).collect()]);
    assert_eq!(given[1].labels, [IGNORE, 13, 14, 15, 16, IGNORE]);
    assert_eq!(given[2], given[0]);
    let given = pass(spec(Truncation::KeepEnd), 3);
    assert_eq!([&given[1].tokens[..], &given[2].tokens], [(15..21).collect::<Vec<_>>(), (27..33).collect()]);
    assert_eq!(given[2].labels, [IGNORE, IGNORE, IGNORE, 31, 32, IGNORE]);
    // Room for virtual tokens is taken into account.
    assert_eq!(pass(Spec { lead: 1, ..spec(Truncation::KeepEnd) }, 3)[2].tokens, [28, 29, 30, 31, 32]);
    let found =
        [Truncation::KeepStart, Truncation::KeepEnd].map(|kept| shortened(&store, &spec(kept)).unwrap());
    assert_eq!(found.map(|found| (found.cut, found.left_out)), [(1, 1), (2, 0)]);
    let refused = Loader::new(vec![Source::whole(store.clone(), 1.0)], spec(Truncation::Error));
    assert!(refused.unwrap_err().to_string().contains("has 10 tokens, a sample 6"));
    // Fingerprints of runs with sufficiently short rows stay unchanged; texts are used in pieces.
    let position = |spec| {
        let loader = Loader::new(vec![Source::whole(store.clone(), 1.0)], spec).unwrap();
        loader.cursor().fingerprint.clone()
    };
    let long = |kept| position(Spec { seq_len: 12, kept, ..spec(Truncation::KeepEnd) });
    assert_eq!(long(Some(Truncation::KeepEnd)), long(None));
    assert_ne!(position(spec(Truncation::KeepEnd)), position(spec(Truncation::KeepStart)));
    let folder = tempfile::tempdir().unwrap();
    let text = self::store(folder.path(), &[9]);
    assert_eq!(choose(&text, &SourceFilter::Whole, &spec(Truncation::Error)).unwrap()[0].tokens, 9);
}
