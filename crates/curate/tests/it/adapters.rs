//! Deduplication and joining.

use fathom_curate::{Document, Error, Reason, SEPARATOR, Sameness, Unique, group_documents};

use crate::{dropped, texts};

fn document(text: &str, group: u64) -> Result<Document, Error> {
    Ok(Document { text: text.to_string(), source: format!("s{text}"), group })
}

fn failure() -> Result<Document, Error> {
    Err(Error::UnknownExtension { path: "x".into() })
}

#[track_caller]
fn check_unique(sameness: Sameness, input: &[&str], kept: &[&str]) {
    let mut unique = Unique::new(input.iter().map(|text| document(text, 0)), sameness);
    let documents: Vec<Document> = unique.by_ref().map(Result::unwrap).collect();
    assert_eq!(texts(&documents), kept);
    let counters = unique.counters();
    assert_eq!(counters.read_documents as usize, kept.len());
    assert_eq!(dropped(counters, Reason::Duplicate) as usize, input.len() - kept.len());
}

#[test]
fn the_first_of_equal_texts_stays() {
    check_unique(Sameness::Bytes, &["a", "b", "a", "c", "b", "a"], &["a", "b", "c"]);
    check_unique(Sameness::Bytes, &["a\n", "a\r\n", "a \n", "a"], &["a\n", "a\r\n", "a \n", "a"]);
    check_unique(
        Sameness::Lines,
        &["a\nb", "a \r\nb\n\n", "a\nb\t", "ab", " a\nb"],
        &["a\nb", "ab", " a\nb"],
    );
    check_unique(Sameness::Lines, &["a\n\nb", "a\nb"], &["a\n\nb", "a\nb"]);
}

#[test]
fn the_account_of_two_stages_adds_up() {
    let dir = crate::folder(&[("a.txt", b"a"), ("b.txt", b"a"), ("c.txt", b" "), ("d.txt", b"d")]);
    let mut documents = fathom_curate::open(&[dir.path().to_path_buf()], &Default::default()).unwrap();
    let mut unique = Unique::new(&mut documents, Sameness::Bytes);
    assert_eq!(group_documents(&mut unique, 100).count(), 1);
    let second = unique.counters().clone();
    let total = documents.counters().clone().then(&second);
    assert_eq!((total.read_documents, total.read_bytes), (2, 2));
    assert_eq!(total.dropped_documents(), 2);
    assert_eq!(total.summary(), "1 blank, 1 duplicate");
}

#[test]
fn neighbours_of_a_group_are_joined_up_to_the_target() {
    let input =
        [("aa", 1), ("bb", 1), ("cc", 1), ("d", 2), ("e", 1), ("longer than all", 1), ("f", 1), ("g", 1)];
    let documents: Vec<Document> =
        group_documents(input.iter().map(|(t, g)| document(t, *g)), 6).map(Result::unwrap).collect();
    assert_eq!(texts(&documents), ["aa\n\nbb", "cc", "d", "e", "longer than all", "f\n\ng"]);
    assert_eq!(documents[0].source, "saa..sbb");
    assert_eq!(documents[1].source, "scc");
    assert_eq!(documents.iter().map(|d| d.group).collect::<Vec<_>>(), [1, 1, 2, 1, 1, 1]);
}

#[test]
fn an_error_comes_behind_what_was_read_before_it() {
    let input = vec![document("a", 1), document("b", 1), failure(), document("c", 1)];
    let results: Vec<_> = group_documents(input.into_iter(), 100).collect();
    assert_eq!(results.len(), 3);
    assert_eq!(results[0].as_ref().unwrap().text, "a\n\nb");
    assert!(results[1].is_err());
    assert_eq!(results[2].as_ref().unwrap().text, "c");
    assert_eq!(group_documents(std::iter::empty(), 5).count(), 0);
}

#[test]
fn joining_loses_nothing() {
    let pieces: Vec<String> = (0..500u64).map(|i| "x".repeat((i * 37 % 91) as usize + 1)).collect();
    let input = pieces.iter().enumerate().map(|(i, text)| document(text, i as u64 / 50));
    let joined: Vec<Document> = group_documents(input, 300).map(Result::unwrap).collect();
    assert!(joined.iter().all(|d| d.text.len() <= 300));
    let parts: Vec<&str> = joined.iter().flat_map(|d| d.text.split(SEPARATOR)).collect();
    assert_eq!(parts, pieces);
}
