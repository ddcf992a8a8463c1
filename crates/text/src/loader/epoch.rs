//! One pass over one store: its documents, their order, and their distribution over samples.

use super::{HeldOut, LengthWeight, Shuffle, SourceFilter, Spec, Split};
use crate::error::{Error, Result};
use crate::lessons::Truncation;
use crate::pack::{Doc, Packing, Sample, pack_led};
use crate::rng::Rng;
use crate::store::{Column, Store};

/// Purpose of a random stream; part of its key, so that different uses share no numbers.
#[derive(Clone, Copy)]
enum Use {
    Documents = 1,
    Samples = 2,
    Copies = 3,
}

/// Returns true if a document is held out. For a share this depends only on its content, not on the rest of the
/// store.
pub fn is_held_out(hash: u128, held_out: impl Into<HeldOut>) -> bool {
    let HeldOut { from, to } = held_out.into();
    // The upper half is as random as the lower; multiplying by 2^64 is exact.
    let place = (hash >> 64) as u64 as f64;
    (from * 2f64.powi(64)..to * 2f64.powi(64)).contains(&place)
}

/// Documents of a part of a store that the settings admit, in store order; a group of documents that stay together
/// counts as one, identified by its first.
///
/// # Errors
/// No document is left; the message gives the reason.
pub fn choose(store: &Store, part: &SourceFilter, spec: &Spec) -> Result<Vec<Doc>> {
    let number = |name: &String| store.header()?.sources.iter().position(|source| source == name);
    let is_of = |doc: usize, name: &String| {
        number(name)
            .is_some_and(|number| store.doc_meta(doc).is_some_and(|meta| meta.source as usize == number))
    };
    let belongs = |doc: usize| match part {
        SourceFilter::Whole => true,
        SourceFilter::Only(name) => is_of(doc, name),
        SourceFilter::Without(names) => !names.iter().any(|name| is_of(doc, name)),
    };
    let admits = |doc: usize| -> Result<bool> {
        Ok(match spec.split {
            Split::All => true,
            Split::Train { held_out } => !is_held_out(store.doc_hash(doc)?, held_out),
            Split::HeldOut { held_out } => is_held_out(store.doc_hash(doc)?, held_out),
        })
    };
    let mut docs: Vec<Doc> = Vec::new();
    let (group, own) = (store.group(), spec.of(store));
    if group > 1 && spec.packing == Packing::Concatenate {
        let reason = "its documents belong together in groups, which cuts at the samples' length part: take another packing";
        return Err(Error::Documents(format!("{}: {reason}", store.prefix().display())));
    }
    for doc in (0..store.num_documents()).step_by(group) {
        let tokens: u64 = (doc..doc + group).map(|doc| store.doc_len(doc) as u64).sum();
        if group > 1 && tokens > u64::from(spec.seq_len) {
            return Err(Error::Documents(format!(
                "{}: the documents {doc} to {} belong together and have {tokens} tokens, a sample {}; raise stage.*.seq_tokens",
                store.prefix().display(),
                doc + group - 1,
                spec.seq_len
            )));
        }
        let is_long = tokens >= spec.min_doc_tokens.max(1);
        if is_long && belongs(doc) && admits(doc)? && (group > 1 || teaches(store, doc, &own)?) {
            docs.push(Doc { doc: doc as u64, tokens });
        }
    }
    if docs.is_empty() {
        let longest = (0..store.num_documents()).map(|doc| store.doc_len(doc)).max().unwrap_or(0);
        return Err(Error::Documents(format!(
            "{}: none of its {} documents (the longest has {longest} tokens) is {} and {} with at least {} tokens; lower \
             the minimum, change the held-out share or add text",
            store.prefix().display(),
            store.num_documents(),
            match part {
                SourceFilter::Whole => "of the store".to_string(),
                SourceFilter::Only(name) => format!("of the source `{name}`"),
                SourceFilter::Without(names) => format!("of a source other than {}", names.join(", ")),
            },
            match spec.split {
                Split::All => "in it".to_string(),
                Split::Train { held_out } => format!("outside the held-out share of {held_out:?}"),
                Split::HeldOut { held_out } => format!("in the held-out share of {held_out:?}"),
            },
            spec.min_doc_tokens.max(1)
        )));
    }
    Ok(docs)
}

/// Returns true if the part of a document that fits a sample contains a target token; always true for texts.
fn teaches(store: &Store, doc: usize, spec: &Spec) -> Result<bool> {
    let (tokens, room) = (store.doc_len(doc), spec.room());
    let Some(kept) = spec.kept.filter(|_| tokens > room) else { return Ok(true) };
    if kept == Truncation::Error {
        return Err(Error::Documents(format!(
            "{}: the document {doc} has {tokens} tokens, a sample {room}; raise stage.*.seq_tokens",
            store.prefix().display()
        )));
    }
    let (kept, mut weights) = (kept.kept(tokens, room), Vec::new());
    // The first token is never a target.
    store.column_range(Column::Weight, doc, kept.start + 1..kept.end, &mut weights)?;
    Ok(weights.iter().any(|weight| *weight > 0.0))
}

/// Counts of lessons longer than a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LengthCounts {
    /// Lessons of which a part is used.
    pub cut: u64,
    /// Lessons left out because that part contains no target.
    pub left_out: u64,
}

impl LengthCounts {
    /// Counts one lesson.
    pub fn count(&mut self, teaches: bool) {
        *(if teaches { &mut self.cut } else { &mut self.left_out }) += 1;
    }
}

/// Counts the lessons of a store that are longer than samples of these settings.
///
/// # Errors
/// Weights cannot be read, or a lesson is too long although none may be cut.
pub fn shortened(store: &Store, spec: &Spec) -> Result<LengthCounts> {
    let (spec, mut found) = (spec.of(store), LengthCounts::default());
    if spec.kept.is_some() && store.group() == 1 {
        for doc in (0..store.num_documents()).filter(|doc| store.doc_len(*doc) > spec.room()) {
            found.count(teaches(store, doc, &spec)?);
        }
    }
    Ok(found)
}

/// Samples of one epoch over the selected documents: documents are drawn by length weight and shuffled, packed, and
/// then the samples (and the documents within each) are shuffled. A function of (seed, lane, epoch) and the
/// documents. `spec` must be the store's own ([`Spec::of`]).
pub fn samples(docs: &[Doc], spec: &Spec, lane: u64, epoch: u64) -> Vec<Sample> {
    let rng = |purpose: Use| Rng::keyed(&[spec.seed, lane, epoch, purpose as u64]);
    let mut drawn = copies(docs, &spec.length_weights, rng(Use::Copies));
    if spec.shuffle == Shuffle::Documents {
        rng(Use::Documents).shuffle(&mut drawn);
    }
    if spec.kept.is_some() {
        drawn.iter_mut().for_each(|doc| doc.tokens = doc.tokens.min(spec.room() as u64));
    }
    let mut samples = pack_led(&drawn, (spec.seq_len, spec.lead), spec.packing);
    if spec.kept == Some(Truncation::KeepEnd) {
        // A span contains all that is kept of its document. `docs` is in store order.
        for span in samples.iter_mut().flatten() {
            let at = docs.partition_point(|doc| doc.doc < span.doc);
            span.start = docs[at].tokens - u64::from(span.len);
        }
    }
    match spec.shuffle {
        Shuffle::Documents => {
            let mut rng = rng(Use::Samples);
            rng.shuffle(&mut samples);
            if spec.packing == Packing::BestFit {
                // The packer puts the longest document first.
                samples.iter_mut().for_each(|sample| rng.shuffle(sample));
            }
        }
        Shuffle::None => {
            if spec.packing == Packing::BestFit {
                samples.iter_mut().for_each(|sample| sample.sort_by_key(|span| (span.doc, span.start)));
                samples.sort_by_key(|sample| sample.first().map(|span| (span.doc, span.start)));
            }
        }
    }
    samples
}

/// Repeats each document according to its weight: the integer part always, one more with the fraction's probability.
fn copies(docs: &[Doc], weights: &[LengthWeight], mut rng: Rng) -> Vec<Doc> {
    if weights.is_empty() {
        return docs.to_vec();
    }
    let weight = |tokens: u64| {
        let applies = weights.iter().filter(|rule| tokens >= rule.min_tokens);
        applies.max_by_key(|rule| rule.min_tokens).map_or(1.0, |rule| rule.weight)
    };
    let mut drawn: Vec<Doc> = Vec::with_capacity(docs.len());
    for doc in docs {
        let weight = weight(doc.tokens);
        // One draw per document, needed or not, so that the weight of one document does not affect the draws of
        // others.
        let extra = rng.unit() < weight.fract();
        drawn.extend(std::iter::repeat_n(*doc, weight as usize + usize::from(extra)));
    }
    if drawn.is_empty() {
        // Weights below one over few documents may draw none, but an epoch must not be empty.
        drawn.push(docs[rng.index(docs.len())]);
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docs(count: u64) -> Vec<Doc> {
        (0..count).map(|doc| Doc { doc, tokens: 3 + doc % 7 }).collect()
    }

    #[test]
    fn epochs_differ_and_repeat() {
        let spec = Spec { packing: Packing::BestFit, ..Spec::new(16) };
        let first = samples(&docs(100), &spec, 0, 0);
        assert_eq!(first, samples(&docs(100), &spec, 0, 0));
        assert_ne!(first, samples(&docs(100), &spec, 0, 1));
        assert_ne!(first, samples(&docs(100), &spec, 1, 0));
        assert_ne!(first, samples(&docs(100), &Spec { seed: 9, ..spec }, 0, 0));
    }

    #[test]
    fn unshuffled_documents_follow_each_other() {
        for packing in [Packing::Concatenate, Packing::BestFit] {
            let spec = Spec { packing, shuffle: Shuffle::None, ..Spec::new(16) };
            let first: Vec<u64> = samples(&docs(50), &spec, 0, 0).iter().map(|s| s[0].doc).collect();
            assert!(first.is_sorted(), "{first:?}");
        }
    }

    #[test]
    fn held_out_share_is_close_to_its_fraction() {
        let held = (0..10_000u64)
            .filter(|doc| is_held_out(crate::store::content_hash(&doc.to_le_bytes()), 0.05))
            .count();
        assert!((400..600).contains(&held), "{held}");
        assert!(!is_held_out(0, 0.0) && is_held_out(u128::MAX >> 12, 1.0));
    }

    #[test]
    fn long_documents_are_drawn_more_often() {
        let rules =
            [LengthWeight { min_tokens: 9, weight: 2.5 }, LengthWeight { min_tokens: 5, weight: 0.0 }];
        let mut counts = [0u32; 10];
        for epoch in 0..200 {
            for doc in copies(&docs(7), &rules, Rng::keyed(&[epoch])) {
                counts[doc.tokens as usize] += 1;
            }
        }
        assert_eq!(counts[..9], [0, 0, 0, 200, 200, 0, 0, 0, 0]);
        assert!((450..550).contains(&counts[9]), "{counts:?}");
    }
}
