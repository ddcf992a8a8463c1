//! Packing: places documents side by side in samples of at most `seq_len` tokens, and defines a sample's form in a
//! training step.
//!
//! There are two main methods. [`Packing::Concatenate`] joins the documents end to end and cuts every `seq_len`
//! tokens: all samples are full, documents are cut wherever a sample ends. [`Packing::BestFit`] keeps documents whole
//! (those longer than a sample are first split into full pieces and a rest) and places each into the fullest sample
//! with enough room (Ding et al. 2024, arXiv:2404.10830): samples are nearly full, and no document is cut for lack of
//! room.
//!
//! There is no padding: a sample is as long as its spans. A trainer with fixed shapes pads it with
//! [`PackedSample::pad_to`].

mod best_fit;
mod pieces;

use std::borrow::Cow;
use std::ops::Range;

use pieces::pieces_of;
pub use pieces::{Doc, Sample, Span};

use crate::error::Result;
use crate::store::{Column, Store};

/// Label of a token without a loss (PyTorch's `ignore_index`).
pub const IGNORE: i32 = -100;

/// First id of virtual tokens, which belong to an adapter and precede each document.
pub const VIRTUAL: u32 = 1 << 30;

/// Packing of documents into samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    /// Joins end to end and cuts every `seq_len` tokens.
    Concatenate,
    /// Keeps documents whole and places each into the fullest sample with room for it.
    BestFit,
    /// One document per sample; one longer than `seq_len` is split into one sample per piece.
    Single,
}

/// Attention across the documents of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boundaries {
    /// Each document has its own range and positions; its last token has no label.
    Masked,
    /// The sample is a single range with continuous positions; a document's last token predicts the next document's
    /// first.
    Unmasked,
}

/// End of a document's part in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Ends with the document: if the sample cuts it, the last token's label is the following token of the document.
    Document,
    /// Ends with the span: the document is truncated there.
    Span,
}

/// A sample in the form that a training step uses: rows of equal length, and the document ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedSample {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Id to predict after each token, or [`IGNORE`].
    pub labels: Vec<i32>,
    /// Position of each token, from 0 at the start of its range.
    pub positions: Vec<i32>,
    /// `(start, end)` of each range of tokens that may attend to each other, in order, without gaps.
    pub docs: Vec<(u32, u32)>,
    /// Parts of documents that it is made of, in order; with masked boundaries one for each range.
    pub spans: Vec<Span>,
    /// Loss weight of each label; empty if the store has none.
    pub weights: Vec<f32>,
    /// Log-probability of each label under a reference model; empty if the store has none.
    pub reference: Vec<f32>,
    /// A teacher's best tokens for each label, as alternating ids and log-probabilities; empty if the store has none.
    pub best: Vec<f32>,
    /// Values of each document.
    pub facts: Facts,
}

/// Values of documents, equally many per document, in document order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Number of values per document; 0 if there are none.
    pub width: usize,
    /// Values of consecutive documents; NaN where unknown.
    pub values: Vec<f32>,
}

impl Facts {
    /// Number of documents with values, which are the first ones.
    pub fn documents(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Values of a document.
    ///
    /// # Panics
    /// If it has no values.
    #[track_caller]
    pub fn of(&self, doc: usize) -> &[f32] {
        &self.values[doc * self.width..][..self.width]
    }

    /// Appends the values of further documents.
    ///
    /// # Panics
    /// If their number per document differs.
    #[track_caller]
    pub fn extend(&mut self, more: &Facts) {
        assert!(self.values.is_empty() || self.width == more.width, "facts of one kind");
        self.width = more.width.max(self.width);
        self.values.extend(&more.values);
    }
}

impl PackedSample {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Inserts `lead` virtual tokens without a loss before each document: ids from [`VIRTUAL`] on, at its first
    /// positions.
    pub fn led(self, lead: usize) -> PackedSample {
        if lead == 0 {
            return self;
        }
        let (facts, spans) = (self.facts.clone(), self.spans.clone());
        let mut led = PackedSample { facts, spans, ..PackedSample::default() };
        for (from, to) in self.docs.iter().map(|(from, to)| (*from as usize, *to as usize)) {
            let start = led.len() as u32;
            led.tokens.extend(VIRTUAL..VIRTUAL + lead as u32);
            led.tokens.extend(&self.tokens[from..to]);
            led.labels.extend(std::iter::repeat_n(IGNORE, lead));
            led.labels.extend(&self.labels[from..to]);
            led.positions.extend(0..lead as i32);
            led.positions.extend(self.positions[from..to].iter().map(|at| at + lead as i32));
            led.docs.push((start, led.len() as u32));
            for (of, to_column, absent) in [
                (&self.weights, &mut led.weights, 1.0),
                (&self.reference, &mut led.reference, 0.0),
                (&self.best, &mut led.best, 0.0),
            ] {
                let width = of.len() / self.tokens.len();
                to_column.extend(std::iter::repeat_n(absent, width * lead));
                to_column.extend(&of[width * from..width * to]);
            }
        }
        led
    }

    fn column(&mut self, column: Column) -> &mut Vec<f32> {
        match column {
            Column::Weight => &mut self.weights,
            Column::Reference => &mut self.reference,
            Column::Best => &mut self.best,
            Column::Values => &mut self.facts.values,
        }
    }
}

/// Packs documents in the given order. Panics when `seq_len` is zero.
///
/// With [`Packing::Concatenate`], a final partial sample is dropped unless it is the only one.
pub fn pack(docs: &[Doc], seq_len: u32, packing: Packing) -> Vec<Sample> {
    pack_led(docs, (seq_len, 0), packing)
}

/// Like [`pack`], leaving room for `lead` tokens before each document or piece of one. Panics unless that leaves room
/// for a token.
pub fn pack_led(docs: &[Doc], (seq_len, lead): (u32, u32), packing: Packing) -> Vec<Sample> {
    assert!(seq_len > lead, "pack needs samples of at least one token");
    match packing {
        Packing::Concatenate => concatenate(docs, seq_len, lead),
        Packing::BestFit => best_fit::pack(docs, seq_len, lead),
        Packing::Single => {
            docs.iter().flat_map(|&doc| pieces_of(doc, seq_len - lead)).map(|piece| vec![piece]).collect()
        }
    }
}

fn concatenate(docs: &[Doc], seq_len: u32, lead: u32) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut sample = Sample::new();
    let mut room = seq_len;
    for &Doc { doc, tokens } in docs {
        let mut start = 0;
        while start < tokens {
            // At most `room`, so it fits u32.
            let len = (tokens - start).min(u64::from(room - lead)) as u32;
            sample.push(Span { doc, start, len });
            start += u64::from(len);
            room -= len + lead;
            if room <= lead {
                samples.push(std::mem::take(&mut sample));
                room = seq_len;
            }
        }
    }
    if samples.is_empty() && !sample.is_empty() {
        samples.push(sample);
    }
    samples
}

/// Expands the groups of a store that a sample contains, each a single span, into their documents.
fn members<'a>(store: &Store, sample: &'a [Span]) -> Cow<'a, [Span]> {
    let group = store.group() as u64;
    if group == 1 {
        return Cow::Borrowed(sample);
    }
    let document = |doc: u64| Span { doc, start: 0, len: store.doc_len(doc as usize) as u32 };
    sample.iter().flat_map(|span| (span.doc..span.doc + group).map(document)).collect()
}

/// Reads the tokens of a sample and derives labels, positions and ranges. In a store with groups, a span is a whole
/// group.
///
/// A token's label is the following token of its document, even if the sample cuts the document. At a document's end
/// it is the first token of the next document in this sample if boundaries are unmasked, otherwise [`IGNORE`].
///
/// # Errors
/// Same as [`Store::token_range`].
pub fn materialise(store: &Store, sample: &[Span], boundaries: Boundaries) -> Result<PackedSample> {
    materialise_to(Ends::Document, store, sample, boundaries)
}

/// Like [`materialise`], with the given end of documents.
///
/// # Errors
/// Same as [`materialise`].
pub fn materialise_to(
    ends: Ends,
    store: &Store,
    sample: &[Span],
    boundaries: Boundaries,
) -> Result<PackedSample> {
    let sample = &*members(store, sample);
    let total: usize = sample.iter().map(|span| span.len as usize).sum();
    let mut packed = PackedSample {
        tokens: Vec::with_capacity(total + 1),
        labels: Vec::with_capacity(total),
        positions: Vec::with_capacity(total),
        spans: sample.to_vec(),
        ..PackedSample::default()
    };
    for (at, span) in sample.iter().enumerate() {
        let (doc, start, len) = (span.doc as usize, span.start as usize, span.len as usize);
        let begin = packed.tokens.len();
        store.token_range(doc, start, len, &mut packed.tokens)?;
        packed.labels.extend(packed.tokens[begin..].iter().skip(1).map(|&id| label(id)));
        let follower = if ends == Ends::Document && start + len < store.doc_len(doc) {
            Some((doc, start + len))
        } else if boundaries == Boundaries::Unmasked {
            sample.get(at + 1).map(|next| (next.doc as usize, next.start as usize))
        } else {
            None
        };
        if len > 0 {
            let id = follower.map(|(doc, at)| first_token(store, doc, at)).transpose()?;
            packed.labels.push(id.map_or(IGNORE, label));
            for column in Column::OF_TOKENS {
                targets(store, column, (doc, start + 1..start + len), follower, packed.column(column))?;
            }
        }
        if store.has(Column::Values) {
            let values = store.values(doc)?;
            packed.facts.extend(&Facts { width: values.len(), values });
        }
        if boundaries == Boundaries::Masked {
            packed.positions.extend(0..len as i32);
            packed.docs.push((begin as u32, (begin + len) as u32));
        }
    }
    if boundaries == Boundaries::Unmasked {
        packed.positions.extend(0..total as i32);
        packed.docs.push((0, total as u32));
    }
    // Labels of weight zero are not computed either.
    let without = packed.labels.iter_mut().zip(&packed.weights).filter(|(_, weight)| **weight == 0.0);
    without.for_each(|(label, _)| *label = IGNORE);
    Ok(packed)
}

/// Values of a column for the tokens that follow those of a span: within the document, then of the follower.
fn targets(
    store: &Store,
    column: Column,
    (doc, tokens): (usize, Range<usize>),
    follower: Option<(usize, usize)>,
    out: &mut Vec<f32>,
) -> Result<()> {
    if !store.has(column) {
        return Ok(());
    }
    store.column_range(column, doc, tokens, out)?;
    match follower {
        Some((doc, at)) => store.column_range(column, doc, at..at + 1, out)?,
        None => out.extend(std::iter::repeat_n(column.absent(), store.width(column))),
    }
    Ok(())
}

/// Converts an id to a label. One that does not fit i32 is outside every vocabulary, and remains so (negative, not
/// [`IGNORE`]).
fn label(id: u32) -> i32 {
    i32::try_from(id).unwrap_or(i32::MIN)
}

fn first_token(store: &Store, doc: usize, start: usize) -> Result<u32> {
    let mut one = Vec::with_capacity(1);
    store.token_range(doc, start, 1, &mut one)?;
    Ok(one[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn docs(lengths: &[u64]) -> Vec<Doc> {
        lengths.iter().enumerate().map(|(doc, &tokens)| Doc { doc: doc as u64, tokens }).collect()
    }

    fn filled(sample: &Sample) -> u32 {
        sample.iter().map(|span| span.len).sum()
    }

    #[test]
    fn concatenate_cuts_every_seq_len() {
        let samples = pack(&docs(&[3, 6, 2]), 4, Packing::Concatenate);
        let span = |doc, start, len| Span { doc, start, len };
        assert_eq!(samples, [vec![span(0, 0, 3), span(1, 0, 1)], vec![span(1, 1, 4)]]);
        assert_eq!(pack(&docs(&[3]), 4, Packing::Concatenate), [vec![span(0, 0, 3)]]);
        assert!(pack(&[], 4, Packing::Concatenate).is_empty());
    }

    #[test]
    fn a_single_row_is_a_sample_of_its_own() {
        let span = |doc, start, len| vec![Span { doc, start, len }];
        let samples = pack(&docs(&[3, 6, 0, 4]), 4, Packing::Single);
        assert_eq!(samples, [span(0, 0, 3), span(1, 0, 4), span(1, 4, 2), span(3, 0, 4)]);
    }

    #[test]
    fn what_leads_documents_has_room() {
        let span = |doc, start, len| Span { doc, start, len };
        let led = |packing| pack_led(&docs(&[3, 6, 2]), (6, 2), packing);
        // A sample ends when the room left after the leading tokens is used up.
        let concatenated =
            [vec![span(0, 0, 3)], vec![span(1, 0, 4)], vec![span(1, 4, 2)], vec![span(2, 0, 2)]];
        assert_eq!(led(Packing::Concatenate), concatenated);
        assert_eq!(
            pack_led(&docs(&[1, 4]), (6, 2), Packing::Concatenate),
            [vec![span(0, 0, 1), span(1, 0, 1)], vec![span(1, 1, 3)]]
        );
        assert_eq!(pack_led(&docs(&[1, 1, 4]), (6, 2), Packing::BestFit).len(), 2);
        assert_eq!(led(Packing::Single)[1..3], concatenated[1..3]);
    }

    proptest! {
        #[test]
        fn best_fit_keeps_every_token_and_cuts_nothing(lengths in prop::collection::vec(0u64..40, 0..60), seq_len in 1u32..20) {
            let samples = pack(&docs(&lengths), seq_len, Packing::BestFit);
            let mut seen = vec![0; lengths.len()];
            let mut spans: Vec<Span> = samples.concat();
            spans.sort_by_key(|span| (span.doc, span.start));
            for span in &spans {
                let (doc, length) = (span.doc as usize, lengths[span.doc as usize]);
                prop_assert_eq!(span.start, seen[doc]);
                // Only pieces of documents longer than a sample are cut, and these at full samples.
                let full = span.len == seq_len;
                prop_assert!(full || span.start + u64::from(span.len) == length);
                seen[doc] += u64::from(span.len);
            }
            prop_assert_eq!(&seen, &lengths);
            for sample in &samples {
                prop_assert!((1..=seq_len).contains(&filled(sample)));
            }
            // Best fit never leaves two samples that could be merged.
            let mut fills: Vec<u32> = samples.iter().map(filled).collect();
            fills.sort_unstable();
            if let [first, second, ..] = fills[..] {
                prop_assert!(first + second > seq_len);
            }
        }

        #[test]
        fn concatenate_keeps_the_order(lengths in prop::collection::vec(0u64..40, 0..60), seq_len in 1u32..20) {
            let samples = pack(&docs(&lengths), seq_len, Packing::Concatenate);
            let total: u64 = lengths.iter().sum();
            let whole = total / u64::from(seq_len);
            prop_assert_eq!(samples.len() as u64, if whole == 0 { u64::from(total > 0) } else { whole });
            let packed: Vec<(u64, u64)> = samples.concat().iter()
                .flat_map(|s| (0..u64::from(s.len)).map(move |t| (s.doc, s.start + t))).collect();
            let stream: Vec<(u64, u64)> = lengths.iter().enumerate()
                .flat_map(|(doc, &n)| (0..n).map(move |t| (doc as u64, t))).take(packed.len()).collect();
            prop_assert_eq!(packed, stream);
        }
    }
}
