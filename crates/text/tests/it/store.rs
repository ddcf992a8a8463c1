//! Stores: exact layout, round trips, rejected input and hostile files.

use crate::{corpus, tokenizer};
use fathom_text::Error;
use fathom_text::pack::{Boundaries, IGNORE, Span, materialise};
use fathom_text::store::{
    ChunkPlace, Chunks, Column, ColumnWriter, DocMeta, Header, IdType, Neighbours, Store, StoreWriter,
};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const SUFFIXES: [&str; 4] = [".idx", ".bin", ".docs", ".json"];

/// Writes a store with these documents and returns its prefix.
pub fn write(dir: &Path, vocab_size: u64, docs: &[Vec<u32>]) -> PathBuf {
    let prefix = dir.join("corpus");
    let mut writer = StoreWriter::create(&prefix, Header::new(vocab_size)).unwrap();
    for (number, ids) in docs.iter().enumerate() {
        let meta = DocMeta { source: 3, hash: (number as u128) << 100, text_bytes: 7 };
        writer.push_document(ids, meta).unwrap();
    }
    writer.finish().unwrap();
    prefix
}

fn with(prefix: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", prefix.display()))
}

/// Truncating a file of a store in use makes reads fail with an error, rather than killing the process with a signal.
#[test]
fn a_file_that_is_truncated_while_in_use_is_named() {
    for suffix in [".bin", ".idx", ".docs"] {
        let dir = tempfile::tempdir().unwrap();
        let docs: Vec<Vec<u32>> = (0..600).map(|doc| vec![doc % 300; 40]).collect();
        let prefix = write(dir.path(), 300, &docs);
        let store = Store::open(&prefix).unwrap();
        assert_eq!(store.doc(599).unwrap(), docs[599]);
        let path = with(&prefix, suffix);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(64).unwrap();
        let message = store.doc(599).unwrap_err().to_string();
        assert!(message.contains(&path.display().to_string()) && message.contains("truncated"), "{message}");
        assert!(store.check_ids(300).is_err());
    }
}

/// Bytes written by Megatron's builder for the documents [1,2,3] and [4,5], according to its layout table.
#[test]
fn layout_is_megatrons() {
    let dir = tempfile::tempdir().unwrap();
    for (vocab_size, code, width) in [(65_499, 8u8, 2u64), (65_500, 4, 4)] {
        let prefix = write(dir.path(), vocab_size, &[vec![1, 2, 3], vec![4, 5]]);
        let mut idx = b"MMIDIDX\x00\x00".to_vec();
        idx.extend(1u64.to_le_bytes());
        idx.push(code);
        idx.extend([2u64, 3].iter().flat_map(|n| n.to_le_bytes()));
        idx.extend([3i32, 2].iter().flat_map(|n| n.to_le_bytes()));
        idx.extend([0, 3 * width].iter().flat_map(|n| n.to_le_bytes()));
        idx.extend([0u64, 1, 2].iter().flat_map(|n| n.to_le_bytes()));
        assert_eq!(idx.len(), 42 + 20 * 2);
        assert_eq!(std::fs::read(with(&prefix, ".idx")).unwrap(), idx);
        let bin: Vec<u8> = (1..=5u64).flat_map(|id| id.to_le_bytes()[..width as usize].to_vec()).collect();
        assert_eq!(std::fs::read(with(&prefix, ".bin")).unwrap(), bin);
    }
}

#[test]
fn documents_and_facts_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let docs = [vec![1, 2, 3], vec![70_000], vec![9; 40]];
    let store = Store::open(write(dir.path(), 100_000, &docs)).unwrap();
    assert_eq!((store.num_documents(), store.num_tokens(), store.dtype()), (3, 44, IdType::I32));
    for (number, ids) in docs.iter().enumerate() {
        assert_eq!(&store.doc(number).unwrap(), ids);
        assert_eq!(store.doc_len(number), ids.len());
        let meta = DocMeta { source: 3, hash: (number as u128) << 100, text_bytes: 7 };
        assert_eq!(store.doc_meta(number), Some(meta));
    }
    let mut part = vec![0];
    store.token_range(0, 1, 2, &mut part).unwrap();
    assert_eq!(part, [0, 2, 3]);
    assert_eq!(store.header().unwrap().text_bytes, 21);
    assert!(store.check_ids(70_001).is_ok());
    match store.check_ids(70_000).unwrap_err() {
        Error::IdOutsideVocabulary { offset: 12, doc: 1, id: 70_000, .. } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn texts_become_documents_that_end() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("deep/er/corpus");
    let mut header = Header::for_tokenizer(tokenizer()).unwrap();
    header.sources.push("here".into());
    let mut writer = StoreWriter::create(&prefix, header).unwrap();
    assert_eq!(writer.add_source("there"), 1);
    let texts = corpus();
    for text in &texts {
        writer.push_text(tokenizer(), text, 1).unwrap();
    }
    let header = writer.finish().unwrap();
    assert_eq!(header.text_bytes, texts.iter().map(|t| t.len() as u64).sum::<u64>());
    let store = Store::open(&prefix).unwrap();
    assert_eq!(store.header(), Some(&header));
    for (doc, text) in texts.iter().enumerate() {
        let mut ids = store.doc(doc).unwrap();
        assert_eq!(ids.pop(), Some(0), "the end-of-text id");
        assert_eq!(&tokenizer().decode(&ids), text);
        assert_eq!(store.doc_meta(doc), Some(DocMeta::of_text(text, 1)));
    }
}

#[test]
fn nothing_appears_before_finish() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("corpus");
    let mut writer = StoreWriter::create(&prefix, Header::new(10)).unwrap();
    writer.push_document(&[1], DocMeta::default()).unwrap();
    assert!(Store::open(&prefix).is_err());
    let error = writer.push_document(&[1, 10], DocMeta::default()).unwrap_err().to_string();
    assert!(error.contains("token id 10 in document 1 is outside the vocabulary of 10 ids"), "{error}");
    assert!(writer.push_document(&[], DocMeta::default()).is_err());
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_empty_store_and_a_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(write(dir.path(), 10, &[])).unwrap();
    assert_eq!((store.num_documents(), store.num_tokens()), (0, 0));
    let error = Store::open(dir.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("cannot open") && error.contains("none.bin"), "{error}");
}

/// Megatron's own builder may put several sequences into one document, and does not write the side files.
#[test]
fn foreign_stores_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = write(dir.path(), 100, &[vec![1, 2, 3], vec![4, 5], vec![6]]);
    let path = with(&prefix, ".idx");
    let mut idx = std::fs::read(&path).unwrap();
    // Three sequences, two documents: bounds 0, 2, 3, and one mode byte per sequence.
    idx[26..34].copy_from_slice(&3u64.to_le_bytes());
    idx.truncate(34 + 12 * 3);
    idx.extend([0u64, 2, 3].iter().flat_map(|n| n.to_le_bytes()));
    idx.extend([0, 1, 0]);
    std::fs::write(&path, idx).unwrap();
    std::fs::remove_file(with(&prefix, ".json")).unwrap();
    std::fs::remove_file(with(&prefix, ".docs")).unwrap();
    let store = Store::open(&prefix).unwrap();
    assert_eq!((store.doc(0).unwrap(), store.doc(1).unwrap()), (vec![1, 2, 3, 4, 5], vec![6]));
    assert_eq!((store.header(), store.doc_meta(0)), (None, None));
    assert_ne!(store.doc_hash(0).unwrap(), store.doc_hash(1).unwrap());
    // Tokens after the last sequence are in no document, and would never be read.
    let bin = with(&prefix, ".bin");
    let bytes = std::fs::read(&bin).unwrap();
    std::fs::write(&bin, [&bytes[..], &[7, 0]].concat()).unwrap();
    let error = Store::open(&prefix).unwrap_err().to_string();
    assert!(error.contains("corpus.idx") && error.contains("12 bytes of the 14 in the .bin file"), "{error}");
}

#[test]
fn broken_indexes_are_reported_by_field() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = write(dir.path(), 100, &[vec![1, 2, 3], vec![4, 5]]);
    let path = with(&prefix, ".idx");
    let good = std::fs::read(&path).unwrap();
    let check = |edit: &dyn Fn(&mut Vec<u8>), field: &str, at: u64| {
        let mut bytes = good.clone();
        edit(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        match Store::open(&prefix).unwrap_err() {
            Error::Format { field: found, offset, path, .. } => {
                assert_eq!((found, offset), (field, at));
                assert!(path.ends_with("corpus.idx"));
            }
            other => panic!("{other}"),
        }
    };
    check(&|b| b.truncate(20), "header", 0);
    check(&|b| b[0] = b'X', "magic", 0);
    check(&|b| b[9] = 2, "version", 9);
    check(&|b| b[17] = 7, "dtype", 17);
    check(&|b| b[18] = 3, "counts", 18);
    check(&|b| b[18..26].fill(0xff), "counts", 18);
    check(&|b| b.truncate(b.len() - 1), "counts", 18);
    check(&|b| b[37] = 0xff, "sequence length", 34);
    check(&|b| b[38] = 9, "sequence offset", 50);
    check(&|b| b[38] = 1, "counts", 18);
    check(&|b| b[50] = 4, "sequence offset", 50);
    check(&|b| b[57] = 0xff, "sequence offset", 50);
    check(&|b| b[58] = 1, "document bound", 74);
    check(&|b| b[66] = 7, "document bound", 66);
    check(&|b| b[74] = 1, "document bound", 74);
    std::fs::write(&path, &good).unwrap();
    assert!(Store::open(&prefix).is_ok());
    let docs = with(&prefix, ".docs");
    let mut bytes = std::fs::read(&docs).unwrap();
    bytes[24 + 24] += 1;
    std::fs::write(&docs, &bytes).unwrap();
    let error = Store::open(&prefix).unwrap_err().to_string();
    assert!(error.contains("corpus.docs: byte 48, tokens: document 0: 4, but the index says 3"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Damaged bytes never cause a panic, and a store that opens can be read.
    #[test]
    fn damaged_files_never_panic(
        edits in prop::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of((0usize..4, any::<prop::sample::Index>())),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("corpus");
        // One valid store serves all cases, since writing one waits for the disk.
        static GOOD: OnceLock<[Vec<u8>; 4]> = OnceLock::new();
        let mut files = GOOD.get_or_init(|| {
            let good = write(dir.path(), 100, &[vec![1, 2, 3], vec![4], vec![5, 6, 7, 8]]);
            SUFFIXES.map(|suffix| std::fs::read(with(&good, suffix)).unwrap())
        }).clone();
        for (which, at, value) in edits {
            let at = at.index(files[which].len());
            files[which][at] = value;
        }
        if let Some((which, at)) = cut {
            let len = at.index(files[which].len());
            files[which].truncate(len);
        }
        for (suffix, bytes) in SUFFIXES.iter().zip(&files) {
            std::fs::write(with(&prefix, suffix), bytes).unwrap();
        }
        if let Ok(store) = Store::open(&prefix) {
            let total: usize = (0..store.num_documents()).map(|doc| store.doc(doc).unwrap().len()).sum();
            prop_assert!(total as u64 <= store.num_tokens());
            let _ = store.check_ids(100);
            (0..store.num_documents()).for_each(|doc| { store.doc_hash(doc).unwrap(); store.doc_meta(doc); });
        }
    }

    #[test]
    fn index_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fathom_text::fuzz::fuzz_idx(&data);
    }

    #[test]
    fn tokenizer_bytes_never_panic(text in r#"\{("(eos|bos)_token(_id)?": ?(null|-?[0-9]{1,12}|"[a-z]{0,20}"|\{"content": "x"\}|\[[0-9, ]*\]),?){0,3}\}?"#) {
        fathom_text::fuzz::fuzz_tokenizer_config(text.as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_documents_round_trip(docs in prop::collection::vec(prop::collection::vec(0u32..300, 1..50), 0..20), wide in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(write(dir.path(), if wide { 1 << 20 } else { 300 }, &docs)).unwrap();
        let back: Vec<Vec<u32>> = (0..store.num_documents()).map(|doc| store.doc(doc).unwrap()).collect();
        prop_assert_eq!(back, docs);
    }
}

/// Weights are stored next to the tokens and returned with their labels; labels of weight zero are not trained on.
#[test]
fn columns_come_with_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("corpus");
    let mut writer = StoreWriter::create(&prefix, Header::new(300)).unwrap();
    writer.push_document(&[1, 2, 3], DocMeta::default()).unwrap();
    writer.push_weighted(&[4, 5, 6, 7], &[9.0, 0.0, 0.5, 2.0], DocMeta::default()).unwrap();
    writer.push_document(&[8, 9], DocMeta::default()).unwrap();
    writer.finish().unwrap();
    let store = Store::open(&prefix).unwrap();
    assert!(store.has(Column::Weight) && !store.has(Column::Reference));

    let mut reference = ColumnWriter::create(&prefix, Column::Reference, [7; 32]).unwrap();
    reference.push(&[-1.0, -2.0, -3.0, -4.0, -5.0]).unwrap();
    assert!(reference.push(&[f32::NAN]).is_err());
    reference.push(&[-6.0, -7.0, -8.0, -9.0]).unwrap();
    reference.finish(&store).unwrap();
    let store = Store::open(&prefix).unwrap();

    let span = |doc, start, len| Span { doc, start, len };
    let sample = [span(0, 0, 3), span(1, 0, 2), span(1, 2, 2)];
    let packed = materialise(&store, &sample, Boundaries::Masked).unwrap();
    assert_eq!(packed.tokens, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(packed.labels, [2, 3, IGNORE, IGNORE, 6, 7, IGNORE]);
    assert_eq!(packed.weights, [1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 1.0]);
    assert_eq!(packed.reference, [-2.0, -3.0, 0.0, -5.0, -6.0, -7.0, 0.0]);
    let packed = materialise(&store, &sample[..2], Boundaries::Unmasked).unwrap();
    assert_eq!((packed.labels, packed.weights), (vec![2, 3, 4, IGNORE, 6], vec![1.0, 1.0, 9.0, 0.0, 0.5]));
}

#[test]
fn columns_of_another_store_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = write(dir.path(), 300, &[vec![1, 2, 3], vec![4, 5]]);
    let store = Store::open(&prefix).unwrap();
    let mut column = ColumnWriter::create(&prefix, Column::Reference, [0; 32]).unwrap();
    column.push(&[-1.0; 4]).unwrap();
    assert!(column.finish(&store).unwrap_err().to_string().contains("4 values where 5 belong"));
    assert!(!with(&prefix, ".ref").exists() && !with(&prefix, ".ref.tmp").exists());
    let mut column = ColumnWriter::create(&prefix, Column::Reference, [0; 32]).unwrap();
    column.push(&[-1.0; 5]).unwrap();
    column.finish(&store).unwrap();
    let made = std::fs::read(with(&prefix, ".ref")).unwrap();
    assert_eq!(made.len(), 120 + 4 * 5);

    // Documents of other lengths under the same name, and a truncated column.
    write(dir.path(), 300, &[vec![1, 2], vec![3, 4, 5]]);
    assert!(!with(&prefix, ".ref").exists(), "it goes with the store that it was of");
    std::fs::write(with(&prefix, ".ref"), &made).unwrap();
    let message = Store::open(&prefix).unwrap_err().to_string();
    assert!(message.contains(".ref") && message.contains("other documents"), "{message}");
    std::fs::write(with(&prefix, ".ref"), &made[..100]).unwrap();
    assert!(Store::open(&prefix).unwrap_err().to_string().contains("5 values need 140 bytes"));
}

#[test]
fn neighbours_are_numbers_of_chunks_and_belong_to_their_store() {
    let dir = tempfile::tempdir().unwrap();
    let docs = [(0..9).collect::<Vec<u32>>(), (20..24).collect()];
    let store = Store::open(write(dir.path(), 300, &docs)).unwrap();
    let chunks = Chunks::of(&store, 4);
    assert_eq!((chunks.count(), chunks.of_doc(0), chunks.of_doc(1)), (4, 0..3, 3..4));
    let place = |doc, start| ChunkPlace { doc, start };
    assert_eq!([0, 2, 3].map(|chunk| chunks.place(chunk)), [place(0, 0), place(0, 8), place(1, 0)]);
    // A chunk with its continuation ends with its document.
    assert_eq!(chunks.text(&store, 1, 8).unwrap(), [4, 5, 6, 7, 8]);
    assert_eq!(chunks.text(&store, 0, 4).unwrap(), [0, 1, 2, 3]);
    let both = [&store, &store];
    assert_eq!(Neighbours::open(both).unwrap(), None);
    let found = Neighbours::new(both, (4, 2), [7; 32], vec![3, -1, 3, -1, -1, -1, 1, 0]);
    found.write(store.prefix()).unwrap();
    assert_eq!(Neighbours::open(both).unwrap().as_ref(), Some(&found));
    let of = |chunk| found.of(chunk).collect::<Vec<usize>>();
    assert_eq!([of(0), of(2), of(3)], [vec![3], vec![], vec![1, 0]]);
    let path = with(store.prefix(), ".neighbours");
    let bytes = std::fs::read(&path).unwrap();
    for at in [3, 30, bytes.len() - 4] {
        let mut bad = bytes.clone();
        bad[at] ^= 0x40;
        std::fs::write(&path, &bad).unwrap();
        let message = Neighbours::open(both).unwrap_err().to_string();
        assert!(message.contains(&path.display().to_string()), "{message}");
    }
    std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
    assert!(Neighbours::open(both).unwrap_err().to_string().contains("not those that were written"));
    // The store of the same text under another tokenizer.
    std::fs::write(&path, &bytes).unwrap();
    let other = tempfile::tempdir().unwrap();
    let prefix = other.path().join("corpus");
    let header = Header { tokenizer_hash: Some("other".into()), ..Header::new(300) };
    let mut writer = StoreWriter::create(&prefix, header).unwrap();
    for (number, ids) in docs.iter().enumerate() {
        writer
            .push_document(ids, DocMeta { source: 3, hash: (number as u128) << 100, text_bytes: 7 })
            .unwrap();
    }
    writer.finish().unwrap();
    std::fs::copy(&path, with(&prefix, ".neighbours")).unwrap();
    let store = Store::open(&prefix).unwrap();
    let message = Neighbours::open([&store, &store]).unwrap_err().to_string();
    assert!(message.contains("of another tokenizer"), "{message}");
}
