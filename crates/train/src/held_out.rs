//! Selection of the documents that are kept out of training.

use std::collections::BTreeMap;

use fathom_text::loader::{HeldOut, is_held_out};
use fathom_text::recall;
use fathom_text::store::Store;

use crate::error::Result;
use crate::recipe::Recipe;

/// A share of the documents' hashes is accepted if its tokens are within this factor of the requested share.
const NEAR: f64 = 2.0;
/// Maximum share of the text that is held out.
const MOST: f64 = 0.5;

/// The documents of some stores that a run does not train on: those selected by the recipe's share of hashes or, if
/// their tokens are far from that share of all tokens, the range of hashes that comes nearest to it. Named held-out
/// files take precedence.
///
/// # Errors
/// A store that cannot be read.
pub fn held_out(recipe: &Recipe, stores: &[&Store]) -> Result<HeldOut> {
    let share = recipe.data.held_out_share;
    if !recipe.data.held_out_paths.is_empty() {
        return Ok(share.into());
    }
    let mut documents = BTreeMap::new();
    for store in stores {
        for doc in recall::real_documents(store) {
            *documents.entry(store.doc_hash(doc)?).or_insert(0) += store.doc_len(doc) as u64;
        }
    }
    Ok(settled(documents, share))
}

/// Selects the documents from token counts by hash. A single document is never held out.
fn settled(documents: BTreeMap<u128, u64>, share: f64) -> HeldOut {
    let all: u64 = documents.values().sum();
    let wanted = share * all as f64;
    let by_hash = documents.iter().filter(|(hash, _)| is_held_out(**hash, share));
    let held = by_hash.map(|(_, tokens)| *tokens).sum::<u64>() as f64;
    if share <= 0.0 || (wanted / NEAR..=wanted * NEAR).contains(&held) {
        return share.into();
    }
    let documents: Vec<(u128, u64)> = documents.into_iter().collect();
    let (mut end, mut sum, mut nearest) = (0, 0, (f64::INFINITY, HeldOut::from(0.0)));
    for begin in 0..documents.len() {
        // At the point where the sum passes the target, the range is tried without and with its last document.
        while end < documents.len() && (sum as f64) < wanted {
            sum += documents[end].1;
            end += 1;
        }
        for (end, sum) in [(end - 1, sum - documents[end - 1].1), (end, sum)] {
            let distance = (sum as f64 - wanted).abs();
            if end > begin && sum as f64 <= MOST * all as f64 && distance < nearest.0 {
                nearest = (distance, between(documents[begin].0, documents[end - 1].0));
            }
        }
        sum -= documents[begin].1;
    }
    nearest.1
}

/// The range between two hashes, both included.
fn between(first: u128, last: u128) -> HeldOut {
    let [first, last] = [first, last].map(|hash| (hash >> 64) as u64 as f64);
    let scale = 2f64.powi(64);
    HeldOut { from: first / scale, to: (last * (1.0 + f64::EPSILON) + 1.0) / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Indices of the held-out documents, given the position of each hash in the range of all.
    fn held(documents: &[(f64, u64)], share: f64) -> Vec<u64> {
        let hash = |place: f64| ((place * 2f64.powi(64)) as u128) << 64;
        let all: Vec<_> = documents.iter().map(|(place, tokens)| (hash(*place), *tokens)).collect();
        let which = settled(all.iter().copied().collect(), share);
        all.into_iter().filter(|(hash, _)| is_held_out(*hash, which)).map(|(_, tokens)| tokens).collect()
    }

    #[test]
    fn what_is_held_out_is_near_the_share_of_the_tokens_and_never_most_of_them() {
        for (documents, expected) in [
            (&[(0.01, 950), (0.5, 50)][..], &[50][..]),
            (&[(0.5, 950), (0.6, 50)], &[50]),
            (&[(0.5, 50), (0.6, 950)], &[50]),
            (&[(0.01, 1000)], &[]),
            (&[(0.4, 900), (0.5, 40), (0.6, 30), (0.7, 20), (0.8, 10)], &[30, 20]),
            (&[(0.01, 60), (0.02, 400), (0.03, 100), (0.5, 440)], &[60]),
            (&[(0.01, 60), (0.5, 940)], &[60]),
            (&[(0.3, 500), (0.5, 500)], &[500]),
            (&[(0.3, 400), (0.5, 600)], &[400]),
        ] {
            assert_eq!(held(documents, 0.05), expected, "{documents:?}");
        }
        assert!(held(&[(0.01, 60), (0.5, 940)], 0.0).is_empty());
        assert!(held(&[], 0.05).is_empty());
    }
}
