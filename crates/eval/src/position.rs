//! Loss by position: whether predictions improve as more of a document precedes the token.
//!
//! A document is fed from its beginning, in one sequence; the position of a token is its index there. Positions are
//! grouped into buckets of doubling width: 0..256, 256..512, 512..1024 and so on. A document counts in a bucket only if
//! it reaches the bucket's end, so all positions of a bucket have equal weight.
//!
//! Long documents differ from short ones, so buckets over different documents are not comparable;
//! [`loss_by_position_same_documents`] measures every bucket on the same long documents. Even then the buckets contain
//! different tokens; to measure the benefit of context, use [`crate::worth_of_context`].

use fathom_base::LanguageModel;
use fathom_base::metrics::events::{EvalPosition, PositionBucket};
use serde::Serialize;

use crate::error::{Error, Result, losses};
use crate::limits::Pace;
use crate::{Limits, Moment};

/// End of the first bucket; each further bucket ends at twice the previous end.
const FIRST_BUCKET: usize = 256;

/// Loss by position, with the counts behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ByPosition {
    /// Buckets in ascending order, without those that no document fills. Position 0 has no loss.
    pub buckets: Vec<PositionBucket>,
    /// Number of documents, or of sequences of concatenated documents, that were measured.
    pub documents: usize,
    /// Number of documents skipped as too short.
    pub too_short: usize,
    /// True if the sequences were made of concatenated documents.
    pub joined: bool,
}

impl ByPosition {
    /// The event for the metrics log.
    pub fn to_event(&self, moment: &Moment) -> EvalPosition {
        EvalPosition {
            when: moment.when.clone(),
            step: moment.step,
            trained_tokens: moment.trained_tokens,
            buckets: self.buckets.clone(),
        }
    }

    /// The mean loss of the bucket `from..to`, if it was measured.
    pub fn loss(&self, from: usize, to: usize) -> Option<f64> {
        let found = self.buckets.iter().find(|b| (b.from, b.to) == (from as u64, to as u64));
        found.map(|bucket| bucket.loss)
    }
}

/// The bounds of the buckets up to `full_tokens`: `[(0, 256), (256, 512), ...]`, the last one ending at `full_tokens`.
pub fn bucket_bounds(full_tokens: usize) -> Vec<(usize, usize)> {
    let (mut bounds, mut from) = (Vec::new(), 0);
    while from < full_tokens {
        let to = if from == 0 { FIRST_BUCKET } else { 2 * from };
        bounds.push((from, to.min(full_tokens)));
        from = to;
    }
    bounds
}

/// Documents in an order that does not depend on length, so that a small limit still measures a mixture.
pub fn mixed(documents: &[Vec<u32>]) -> Vec<&Vec<u32>> {
    let mut order: Vec<&Vec<u32>> = documents.iter().collect();
    order.sort_by_key(|ids| ids.iter().fold(0u32, |hash, id| hash.wrapping_mul(31).wrapping_add(*id)));
    order
}

/// If fewer documents than this fill the length, sequences are made by concatenating documents; otherwise single
/// documents would dominate the result.
const FEW: usize = 8;

/// Loss by position over sequences of exactly `full_tokens`: documents of at least that length or, if there are few of
/// them, documents concatenated in the order of [`mixed`] with `separator` between them. For concatenated documents
/// every bucket is measured over all of the text, which is cut into pieces ending at the bucket's end, so the result
/// does not depend on which documents happen to lie in the bucket. Text that does not fill one sequence is measured
/// like in [`loss_by_position`]; `None` if there is no text.
///
/// # Errors
/// Those of [`loss_by_position`].
pub fn loss_of_sequences(
    model: &dyn LanguageModel,
    documents: &[Vec<u32>],
    (full_tokens, separator): (usize, Option<u32>),
    limits: &Limits,
) -> Result<Option<ByPosition>> {
    if documents.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let long = || documents.iter().filter(|ids| ids.len() >= full_tokens);
    if long().count() >= FEW {
        return loss_by_position_same_documents(model, long().cloned(), full_tokens, limits).map(Some);
    }
    let (mut sequences, mut joined) = (Vec::new(), Vec::new());
    for ids in mixed(documents) {
        joined.extend(separator.filter(|_| !joined.is_empty()));
        joined.extend(ids);
        if joined.len() >= full_tokens {
            sequences.push(std::mem::take(&mut joined));
        }
    }
    if sequences.is_empty() {
        let mut by_length: Vec<&Vec<u32>> = documents.iter().collect();
        // Longest first: they fill the most buckets.
        by_length.sort_by_key(|ids| std::cmp::Reverse(ids.len()));
        let found = loss_by_position(model, by_length.into_iter().cloned(), full_tokens, limits)?;
        // No document fills the first bucket.
        return Ok(Some(found).filter(|found| found.documents > 0));
    }
    let found =
        measure(model, sequences, &Lengths { least: full_tokens, full: full_tokens, pieces: true }, limits)?;
    Ok(Some(ByPosition { joined: true, ..found }))
}

/// Mean loss by position up to `full_tokens`; every document counts in the buckets it fills. `documents` are token ids;
/// longer ones are truncated.
///
/// # Errors
/// The model cannot score `full_tokens`, or fails.
pub fn loss_by_position(
    model: &dyn LanguageModel,
    documents: impl IntoIterator<Item = Vec<u32>>,
    full_tokens: usize,
    limits: &Limits,
) -> Result<ByPosition> {
    let least = bucket_bounds(full_tokens).first().map_or(full_tokens, |&(_, to)| to);
    measure(model, documents, &Lengths { least, full: full_tokens, pieces: false }, limits)
}

/// Like [`loss_by_position`], but only over documents of at least `full_tokens`: every bucket is a mean over the same
/// documents, so buckets can be compared.
///
/// # Errors
/// Those of [`loss_by_position`].
pub fn loss_by_position_same_documents(
    model: &dyn LanguageModel,
    documents: impl IntoIterator<Item = Vec<u32>>,
    full_tokens: usize,
    limits: &Limits,
) -> Result<ByPosition> {
    measure(model, documents, &Lengths { least: full_tokens, full: full_tokens, pieces: false }, limits)
}

/// Which documents are measured, and how; in tokens.
struct Lengths {
    /// Minimum length; shorter documents are skipped.
    least: usize,
    /// Maximum length; longer documents are truncated.
    full: usize,
    /// If true, a document is cut into pieces for each bucket, and all pieces are measured.
    pieces: bool,
}

/// The largest bucket end up to which there is time to score a document.
fn in_time(
    model: &dyn LanguageModel,
    document: Option<&Vec<u32>>,
    full: usize,
    pace: &mut Pace<'_>,
) -> Result<usize> {
    let ends: Vec<usize> = bucket_bounds(full).iter().map(|&(_, to)| to).collect();
    let Some(ids) = document else { return Ok(full) };
    // Two lengths are enough to estimate the time of longer ones: 1/32 and 1/8 of the longest.
    let probes = [6, 4].map(|below| ends.len().saturating_sub(below));
    for tokens in probes.map(|at| &ends[at]).into_iter().filter(|tokens| **tokens < full.min(ids.len())) {
        pace.time(*tokens, || losses(model, &ids[..*tokens]))?;
    }
    let longest = ends.iter().rev().find(|tokens| pace.allows(&[(1, **tokens)], 1.0));
    Ok(longest.or(ends.first()).copied().unwrap_or(full))
}

fn measure(
    model: &dyn LanguageModel,
    documents: impl IntoIterator<Item = Vec<u32>>,
    &Lengths { least, full, pieces }: &Lengths,
    limits: &Limits,
) -> Result<ByPosition> {
    if full < 2 || full > model.max_tokens() {
        return Err(Error::Impossible(format!(
            "loss by position up to {full} tokens cannot be measured: the model scores 2 to {} tokens",
            model.max_tokens()
        )));
    }
    let mut pace = Pace::new(limits.deadline.as_ref());
    let mut documents = documents.into_iter().peekable();
    let judged = pace.is_timed() && !pieces;
    let full = if judged { in_time(model, documents.peek(), full, &mut pace)? } else { full };
    let bounds = bucket_bounds(full);
    let mut sums = vec![(0.0, 0u64); bounds.len()];
    let (mut done, mut too_short) = (0, 0);
    while let Some(ids) =
        documents.next_if(|_| done == 0 || (done < limits.documents && pace.allows(&[(1, full)], 1.0)))
    {
        if ids.len() < least {
            too_short += 1;
            continue;
        }
        // Tokens after the last bucket that the document fills would not be used.
        let filled = bounds.iter().rev().find(|&&(_, to)| to <= ids.len()).map_or(0, |&(_, to)| to);
        let ids = &ids[..filled];
        let mut whole = Vec::new();
        for (&(from, to), (sum, tokens)) in bounds.iter().zip(&mut sums) {
            let cut = if pieces { to } else { filled };
            if pieces && from > 0 && !pace.allows(&[(filled / to, to)], 1.0) {
                break;
            }
            for piece in ids.chunks_exact(cut.max(1)).filter(|piece| to <= piece.len()) {
                if whole.is_empty() || pieces {
                    whole = pace.time(piece.len(), || losses(model, piece))?;
                }
                // The loss of position p is at p - 1.
                let bucket = &whole[from.max(1) - 1..to - 1];
                *sum += bucket.iter().sum::<f64>();
                *tokens += bucket.len() as u64;
            }
        }
        done += 1;
    }
    let measured = bounds.iter().zip(sums).filter(|&(_, (_, tokens))| tokens > 0);
    let buckets = measured.map(|(&(from, to), (sum, tokens))| PositionBucket {
        from: from as u64,
        to: to as u64,
        loss: sum / tokens as f64,
        tokens,
    });
    Ok(ByPosition { buckets: buckets.collect(), documents: done, too_short, joined: false })
}
