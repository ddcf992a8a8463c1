//! Measures of rankings against judgements of relevance, by the formulas of trec_eval (and so of pytrec_eval and BEIR).
//!
//! - nDCG@k: the gain of a document is its judgement, its discount `log2(rank + 1)`; the ideal ranking is that of all
//!   judged documents. Judgements below 0 count as 0.
//! - MRR@k: the mean of the reciprocal rank of the first document with a judgement above 0 among the first `k`.
//! - recall@k: the share of the documents with a judgement above 0 that are among the first `k`.
//!
//! The mean is over queries that have a document with a judgement above 0; a query without a ranking counts as 0.

use std::collections::HashMap;

/// Judgements of a query: documents with their relevance.
pub type Judgements = HashMap<String, i64>;

/// Measures of a ranking at a depth, or their means.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measures {
    /// Normalised discounted cumulative gain.
    pub ndcg: f64,
    /// Reciprocal rank of the first relevant document.
    pub mrr: f64,
    /// Share of the relevant documents.
    pub recall: f64,
}

/// Measures of one ranking at depth `k`; `None` if no document is relevant.
pub fn measures(ranking: &[String], judged: &Judgements, k: usize) -> Option<Measures> {
    let relevant = judged.values().filter(|gain| **gain > 0).count();
    if relevant == 0 {
        return None;
    }
    let gain = |document: &String| judged.get(document).copied().unwrap_or(0).max(0) as f64;
    let discounted = |gains: &mut dyn Iterator<Item = f64>| {
        (1u32..).zip(gains.take(k)).map(|(rank, gain)| gain / f64::from(rank + 1).log2()).sum::<f64>()
    };
    let mut ideal: Vec<f64> = judged.values().map(|gain| (*gain).max(0) as f64).collect();
    ideal.sort_by(|a, b| b.total_cmp(a));
    let shown = &ranking[..ranking.len().min(k)];
    let found = shown.iter().filter(|document| gain(document) > 0.0).count();
    let first = shown.iter().position(|document| gain(document) > 0.0);
    Some(Measures {
        ndcg: discounted(&mut shown.iter().map(gain)) / discounted(&mut ideal.into_iter()),
        mrr: first.map_or(0.0, |at| 1.0 / (at + 1) as f64),
        recall: found as f64 / relevant as f64,
    })
}

/// Means over queries; `None` stands for a query without relevant documents, which is left out.
pub fn mean(all: impl IntoIterator<Item = Option<Measures>>) -> (Measures, usize) {
    let (mut sum, mut count) = (Measures::default(), 0usize);
    for of in all.into_iter().flatten() {
        sum.ndcg += of.ndcg;
        sum.mrr += of.mrr;
        sum.recall += of.recall;
        count += 1;
    }
    let n = count.max(1) as f64;
    (Measures { ndcg: sum.ndcg / n, mrr: sum.mrr / n, recall: sum.recall / n }, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_of_a_ranking_by_hand() {
        let judged: Judgements = [("a".into(), 2), ("b".into(), 1), ("c".into(), 0), ("d".into(), -1)].into();
        let ranking: Vec<String> = ["c", "a", "x", "b"].map(str::to_string).to_vec();
        let found = measures(&ranking, &judged, 3).unwrap();
        let ideal = 2.0 + 1.0 / 3f64.log2();
        assert!((found.ndcg - 2.0 / 3f64.log2() / ideal).abs() < 1e-12);
        assert_eq!((found.mrr, found.recall), (0.5, 0.5));
        assert_eq!(measures(&ranking, &Judgements::from([("c".into(), 0)]), 3), None);
        assert_eq!(measures(&[], &judged, 3), Some(Measures::default()));
        assert_eq!(mean([Some(found), None, Some(Measures::default())]).1, 2);
    }
}
