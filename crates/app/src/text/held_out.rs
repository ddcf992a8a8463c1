//! Adjusts the counts of a text whose held-out documents are not those of the recipe's share of hashes.

use std::collections::BTreeSet;

use fathom_base::metrics::events::Data;
use fathom_text::loader::{HeldOut, is_held_out};
use fathom_text::recall::real_documents;
use fathom_text::store::{Column, Store};
use fathom_train::held_out;
use fathom_train::recipe::Recipe;

use crate::error::Result;

/// Corrects an event that was counted with the recipe's share to the documents that the run really trains on and holds
/// out.
///
/// # Errors
/// A store that cannot be read.
pub(super) fn counted(recipe: &Recipe, store: &Store, mut data: Data) -> Result<Data> {
    let (share, held) = (HeldOut::from(recipe.data.held_out_share), held_out(recipe, &[store])?);
    if share == held {
        return Ok(data);
    }
    let mut synthetic_tokens = data.synthetic_share * data.tokens as f64;
    let real: BTreeSet<usize> = real_documents(store).collect();
    for doc in 0..store.num_documents() {
        let hash = store.doc_hash(doc)?;
        let sign = match [share, held].map(|which| is_held_out(hash, which)) {
            [false, true] => -1,
            [true, false] => 1,
            _ => continue,
        };
        let (tokens, mut weights) = (store.doc_len(doc), Vec::new());
        if store.has(Column::Weight) {
            store.column_range(Column::Weight, doc, 0..tokens, &mut weights)?;
        }
        let learned = weights.iter().skip(1).filter(|weight| **weight > 0.0).count();
        let move_by = |count: &mut u64, by: u64| *count = count.saturating_add_signed(sign * by as i64);
        move_by(&mut data.documents, 1);
        move_by(&mut data.tokens, tokens as u64);
        move_by(&mut data.bytes, store.doc_meta(doc).map_or(0, |meta| meta.text_bytes));
        move_by(&mut data.supervised_tokens, learned as u64);
        if real.contains(&doc) {
            data.held_out_documents = data.held_out_documents.saturating_add_signed(-sign);
        } else {
            synthetic_tokens += (sign * tokens as i64) as f64;
        }
    }
    data.synthetic_share = synthetic_tokens / data.tokens.max(1) as f64;
    Ok(data)
}
