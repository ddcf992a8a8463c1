//! Rankings and measures against `oracle/retrieval.py`, an independent implementation.

use std::collections::HashMap;

use fathom_retrieval::measure::{Judgements, measures};
use fathom_retrieval::ranking::RankedChunk;
use fathom_retrieval::{Encode, EncoderFacts, Error, Index, IndexOptions, Mode, Query, index as write};
use serde::Deserialize;

use crate::bed::{Bed, contents};

#[derive(Deserialize)]
struct Case {
    documents: Vec<String>,
    vectors: Vec<Vec<f32>>,
    queries: Vec<QueryCase>,
}

#[derive(Deserialize)]
struct QueryCase {
    text: String,
    vector: Vec<f32>,
    judged: Judgements,
    bm25: Vec<RankedChunk>,
    fused: Vec<RankedChunk>,
    measures: HashMap<String, ExpectedRanking>,
}

#[derive(Deserialize)]
struct ExpectedRanking {
    ndcg: f64,
    mrr: f64,
    recall: f64,
}

/// Looks vectors up by their texts.
struct LookupEmbedder(HashMap<String, Vec<f32>>, &'static str);

impl Encode for LookupEmbedder {
    fn facts(&self) -> EncoderFacts {
        let dimensions = self.0.values().next().map_or(0, Vec::len);
        EncoderFacts { name: self.1.into(), fingerprint: self.1.into(), dimensions }
    }

    fn encode(&self, texts: &[String]) -> fathom_base::Result<Vec<Vec<f32>>> {
        Ok(texts.iter().map(|text| self.0[text].clone()).collect())
    }
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../data/ranking.json")).unwrap()
}

/// An index of a case's documents, in their order.
fn indexed(case: &Case) -> (Bed, LookupEmbedder) {
    let row = |(at, text): (usize, &String)| {
        serde_json::json!({"_id": at.to_string(), "text": text}).to_string() + "\n"
    };
    let rows: String = case.documents.iter().enumerate().map(row).collect();
    let bed = Bed::new(&[("rows.jsonl", &rows)]);
    let known =
        LookupEmbedder(case.documents.iter().cloned().zip(case.vectors.iter().cloned()).collect(), "known");
    write(
        &[bed.docs()],
        &bed.out(),
        &IndexOptions { chunk_bytes: 1 << 20, ..IndexOptions::default() },
        Some(&known),
        &|_| {},
    )
    .unwrap();
    (bed, known)
}

fn check(found: &[RankedChunk], expected: &[RankedChunk], what: &str) {
    let order = |all: &[RankedChunk]| all.iter().map(|(at, _)| *at).collect::<Vec<u32>>();
    assert_eq!(order(found), order(expected), "{what}");
    for ((_, own), (_, other)) in found.iter().zip(expected) {
        assert!((own - other).abs() < 1e-9 * other.abs().max(1.0), "{what}: {own} and {other}");
    }
}

#[test]
fn bm25_and_fused_rankings_are_those_of_an_independent_implementation() {
    for case in cases() {
        let (bed, _) = indexed(&case);
        let index = Index::open(&bed.out()).unwrap();
        for asked in &case.queries {
            check(&index.sparse(&asked.text, 100, &[]), &asked.bm25, &asked.text);
            let query = Query {
                text: &asked.text,
                vector: Some(&asked.vector),
                k: 10,
                exact: true,
                ..Query::default()
            };
            check(&index.ranked(&query).unwrap(), &asked.fused, &asked.text);
        }
    }
}

#[test]
fn measures_are_those_of_an_independent_implementation() {
    for asked in cases().iter().flat_map(|case| &case.queries) {
        let ranking: Vec<String> = asked.bm25.iter().map(|(at, _)| at.to_string()).collect();
        for (k, expected) in &asked.measures {
            let found = measures(&ranking, &asked.judged, k.parse().unwrap()).unwrap();
            let pairs =
                [(found.ndcg, expected.ndcg), (found.mrr, expected.mrr), (found.recall, expected.recall)];
            assert!(pairs.iter().all(|(own, other)| (own - other).abs() < 1e-9), "{found:?}");
        }
    }
}

#[test]
fn vectors_are_ranked_kept_and_refused_by_their_encoder() {
    let case = cases().remove(1);
    let (bed, known) = indexed(&case);
    let index = Index::open(&bed.out()).unwrap();
    let asked = &case.queries[0];
    let exact = |vector: &[f32]| vector.iter().zip(&asked.vector).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let mut expected: Vec<RankedChunk> =
        (0u32..).zip(case.vectors.iter().map(|vector| exact(vector))).collect();
    expected.sort_by(fathom_retrieval::ranking::order);
    let found = index.dense(&asked.vector, 5, &[], true).unwrap();
    let order = |all: &[RankedChunk]| all.iter().take(5).map(|(at, _)| *at).collect::<Vec<u32>>();
    assert_eq!(order(&found), order(&expected));
    assert!(matches!(index.dense(&[1.0], 5, &[], true), Err(Error::Encoder { .. })));
    let dense = Query { text: "x", mode: Mode::Dense, k: 1, ..Query::default() };
    assert!(index.ranked(&dense).unwrap_err().to_string().contains("--encoder"));
    let options = IndexOptions { chunk_bytes: 1 << 20, ..IndexOptions::default() };
    let again = |encoder: Option<&dyn Encode>| write(&[bed.docs()], &bed.out(), &options, encoder, &|_| {});
    let other = LookupEmbedder(known.0.clone(), "another");
    for refused in [again(Some(&other)), again(None)] {
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("known"), "{said}");
    }
    // A further row: only its vector is computed.
    let more = "a new document".to_string();
    let grown =
        LookupEmbedder(known.0.into_iter().chain([(more.clone(), asked.vector.clone())]).collect(), "known");
    let path = bed.docs().join("rows.jsonl");
    let rows = std::fs::read_to_string(&path).unwrap()
        + &serde_json::json!({"_id": "new", "text": more}).to_string();
    std::fs::write(&path, rows).unwrap();
    let report = write(&[bed.docs()], &bed.out(), &options, Some(&grown), &|_| {}).unwrap();
    assert_eq!(report.encoded, 1);
    let index = Index::open(&bed.out()).unwrap();
    assert_eq!(index.hit(index.dense(&asked.vector, 1, &[], true).unwrap()[0].0, 0.0).unwrap().id, "new");
    let vectors = contents(&bed.out().join("vectors"));
    let (path, bytes) = &vectors[0];
    std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(Index::open(&bed.out()).err().unwrap().to_string().contains("damaged"));
}
