//! Which documents of a run are kept out of training.

use std::collections::BTreeMap;

use fathom_text::loader::{HeldOut, is_held_out};
use fathom_text::recall;
use fathom_text::store::Store;

use crate::error::Result;
use crate::recipe::Recipe;

/// Within this factor of the tokens that were asked for, a share of the documents' hashes is what is held out.
const NEAR: f64 = 2.0;
/// No more of the text than this is held out.
const MOST: f64 = 0.5;

/// The documents of some stores that a run does not train on: the recipe's share of them, or, where that is far from the same share of
/// their tokens, those between two hashes that come nearest to it. Where files are named that are held out, they decide.
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

/// Of documents' tokens by hash. The only document is trained on.
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
        // Where the sum passes what is wanted, the last document with and without.
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

/// From one hash to another, both included.
fn between(first: u128, last: u128) -> HeldOut {
    let [first, last] = [first, last].map(|hash| (hash >> 64) as u64 as f64);
    let scale = 2f64.powi(64);
    HeldOut { from: first / scale, to: (last * (1.0 + f64::EPSILON) + 1.0) / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these documents are held out, by their hashes' place in the range of all.
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
