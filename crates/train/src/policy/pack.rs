//! Prompts with their answers as documents of packed streams.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use fathom_tensor::{SUM_CHUNK, SUM_UNIT};

use crate::micro_batch::{MicroBatch, RolloutColumns};

/// Label of a token that is not trained on.
const IGNORE: i32 = fathom_text::pack::IGNORE;

/// A prompt and an answer, possibly of several turns, with columns of one number per token of the answer; empty:
/// unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doc {
    /// Token ids of both.
    pub ids: Vec<u32>,
    /// Number of tokens of the prompt.
    pub prompt: usize,
    /// Ranges of tokens after the prompt that the policy did not write: context, like the prompt.
    #[serde(default)]
    pub heard: Vec<Range<usize>>,
    /// True if the answer is not trained on at all.
    pub left_out: bool,
    /// Log-probabilities at sampling time, or under the weights before the rollout's first step.
    pub logps: Vec<f32>,
    /// Bit masks of the tokens that each was sampled from, concatenated.
    #[serde(default, with = "super::kept::text", skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<u8>,
    /// Log-probabilities under the reference.
    pub reference: Vec<f32>,
    /// Advantages.
    pub advantages: Vec<f32>,
    /// Predictions of the value head before each token.
    pub values: Vec<f32>,
    /// Targets of the value head.
    pub returns: Vec<f32>,
}

impl Doc {
    /// Number of tokens that the policy wrote.
    pub fn answer(&self) -> usize {
        self.ids.len() - self.prompt - self.heard.iter().map(Range::len).sum::<usize>()
    }

    /// Positions of its labels among its tokens; each predicts the next token.
    pub fn labels(&self) -> impl Iterator<Item = usize> {
        let wrote = |at: &usize| !self.heard.iter().any(|heard| heard.contains(&(at + 1)));
        (self.prompt - 1..self.ids.len() - 1).filter(wrote)
    }
}

/// Capacity of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Maximum number of tokens.
    pub tokens: usize,
    /// Maximum number of documents.
    pub docs: usize,
}

/// Start of a document of `tokens` tokens after `held` tokens. Attention adds up keys in blocks that start at multiples
/// of 128 tokens of the stream, and within these in units of at most 32. A document therefore has the same bits as
/// alone if it starts at a block, or at a unit without reaching into the next block.
fn begins(held: usize, tokens: usize) -> usize {
    let held = held.next_multiple_of(SUM_UNIT);
    if held % SUM_CHUNK + tokens > SUM_CHUNK { held.next_multiple_of(SUM_CHUNK) } else { held }
}

/// Distributes documents over micro-batches: each goes into the first with room, longest first, ties in order. A
/// document longer than the room is alone.
pub fn bins(docs: &[&Doc], room: Room) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..docs.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(docs[*at].ids.len()));
    let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
    for at in order {
        let tokens = docs[at].ids.len();
        let fits = |(held, of): &&mut (usize, Vec<usize>)| {
            begins(*held, tokens) + tokens <= room.tokens && of.len() < room.docs
        };
        match bins.iter_mut().find(fits) {
            Some((held, of)) => {
                *held = begins(*held, tokens) + tokens;
                of.push(at);
            }
            None => bins.push((tokens, vec![at])),
        }
    }
    bins.into_iter().map(|(_, of)| of).collect()
}

/// Packs documents into a stream. Padding between two documents belongs to the first, at the position of its last
/// token, and no trained token attends to it.
pub fn stream(docs: &[&Doc], fresh: bool) -> MicroBatch {
    let mut micro = MicroBatch {
        rolled: RolloutColumns { answers: docs.len(), fresh, ..RolloutColumns::default() },
        ..MicroBatch::default()
    };
    let mut ends: Vec<usize> = Vec::with_capacity(docs.len());
    for (at, doc) in docs.iter().enumerate() {
        let held = ends.last().copied().unwrap_or(0) + doc.ids.len();
        ends.push(docs.get(at + 1).map_or(held, |next| begins(held, next.ids.len())));
    }
    for (doc, end) in docs.iter().zip(&ends) {
        let start = micro.ids.len();
        micro.ids.extend(doc.ids.iter().map(|id| *id as i32));
        micro.positions.extend(0..doc.ids.len() as i32);
        micro.ids.resize(*end, 0);
        micro.positions.resize(*end, doc.ids.len() as i32 - 1);
        micro.labels.resize(*end, IGNORE);
        for at in doc.labels().filter(|_| !doc.left_out) {
            micro.labels[start + at] = doc.ids[at + 1] as i32;
        }
        micro.docs.push(start..*end);
    }
    let column = |of: fn(&Doc) -> &[f32]| {
        if docs.iter().all(|doc| of(doc).is_empty()) {
            return Vec::new();
        }
        let mut column = vec![0.0; micro.ids.len()];
        for (doc, place) in docs.iter().zip(&micro.docs) {
            doc.labels().zip(of(doc)).for_each(|(at, value)| column[place.start + at] = *value);
        }
        column
    };
    micro.reference = column(|doc| &doc.reference);
    micro.rolled.logps = column(|doc| &doc.logps);
    micro.rolled.kept = kept(docs, &micro);
    micro.rolled.advantages = column(|doc| &doc.advantages);
    micro.rolled.values = column(|doc| &doc.values);
    micro.rolled.returns = column(|doc| &doc.returns);
    micro
}

/// Masks of the tokens that each label of the stream was sampled from; all ones if unknown.
fn kept(docs: &[&Doc], micro: &MicroBatch) -> Vec<u8> {
    let width = docs.iter().filter_map(|doc| doc.kept.len().checked_div(doc.answer())).max().unwrap_or(0);
    let mut all = vec![0xff; width * micro.ids.len()];
    for (doc, place) in docs.iter().zip(&micro.docs).filter(|_| width > 0) {
        for (at, bits) in doc.labels().zip(doc.kept.chunks_exact(width)) {
            all[(place.start + at) * width..][..width].copy_from_slice(bits);
        }
    }
    all
}

/// A stream without anything to learn, for a step without answers.
pub fn nothing() -> MicroBatch {
    let whole = 0..2;
    let rest = MicroBatch::default();
    MicroBatch { ids: vec![0; 2], labels: vec![IGNORE; 2], positions: vec![0, 1], docs: vec![whole], ..rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(prompt: usize, answer: usize, first: u32) -> Doc {
        let tokens = prompt + answer;
        Doc {
            ids: (first..first + tokens as u32).collect(),
            prompt,
            logps: (0..answer).map(|at| -(at as f32)).collect(),
            advantages: vec![first as f32; answer],
            ..Doc::default()
        }
    }

    #[test]
    fn columns_stand_where_the_labels_are() {
        let (one, two) = (doc(2, 3, 10), Doc { left_out: true, ..doc(1, 2, 20) });
        let micro = stream(&[&one, &two], true);
        assert_eq!(micro.docs, [0..32, 32..35]);
        assert_eq!((&micro.ids[..5], &micro.ids[32..]), (&[10, 11, 12, 13, 14][..], &[20, 21, 22][..]));
        assert_eq!((&micro.labels[..3], micro.labels[3]), (&[IGNORE, 12, 13][..], 14));
        assert_eq!(micro.labels[4..], [IGNORE; 31]);
        assert_eq!(
            (&micro.positions[..6], &micro.positions[31..]),
            (&[0, 1, 2, 3, 4, 4][..], &[4, 0, 1, 2][..])
        );
        let rolled = |column: &[f32]| [&column[..5], &column[32..]].concat();
        assert_eq!(rolled(&micro.rolled.logps), [0.0, 0.0, -1.0, -2.0, 0.0, 0.0, -1.0, 0.0]);
        assert_eq!(rolled(&micro.rolled.advantages), [0.0, 10.0, 10.0, 10.0, 0.0, 20.0, 20.0, 0.0]);
        assert!(micro.reference.is_empty() && micro.rolled.answers == 2 && micro.rolled.fresh);
        assert_eq!(nothing().valid(), 0);
    }

    #[test]
    fn what_the_policy_did_not_write_has_no_labels_and_no_numbers() {
        // A prompt of two tokens, then two written, three of the environment, one written, one of the environment.
        let doc = Doc {
            ids: (10..19).collect(),
            prompt: 2,
            heard: vec![4..7, 8..9],
            logps: vec![-1.0, -2.0, -3.0],
            ..Doc::default()
        };
        assert_eq!((doc.answer(), doc.labels().collect::<Vec<_>>()), (3, vec![1, 2, 6]));
        let doc = Doc { kept: vec![1, 2, 3, 4, 5, 6], ..doc };
        let micro = stream(&[&doc, &Doc { ids: vec![1, 2], prompt: 1, ..Doc::default() }], true);
        // Two bytes per label; all tokens if unknown.
        let row = |at: usize| [micro.rolled.kept[2 * at], micro.rolled.kept[2 * at + 1]];
        assert_eq!(([1, 2, 6].map(row), row(32)), ([[1, 2], [3, 4], [5, 6]], [255; 2]));
        let micro = stream(&[&doc], true);
        assert_eq!(micro.labels, [IGNORE, 12, 13, IGNORE, IGNORE, IGNORE, 17, IGNORE, IGNORE]);
        assert_eq!(micro.rolled.logps, [0.0, -1.0, -2.0, 0.0, 0.0, 0.0, -3.0, 0.0, 0.0]);
        // A rollout saved before turns existed.
        let mut kept = serde_json::to_value(&doc).unwrap();
        kept.as_object_mut().unwrap().remove("heard");
        assert!(serde_json::from_value::<Doc>(kept).unwrap().heard.is_empty());
    }

    #[test]
    fn documents_begin_where_their_bits_are_those_that_they_have_alone() {
        let (one, two, three) = (doc(60, 60, 1), doc(4, 20, 200), doc(3, 5, 300));
        let micro = stream(&[&one, &two, &three], true);
        assert_eq!(micro.docs, [0..128, 128..160, 160..168]);
        assert_eq!((micro.positions[119], micro.positions[120], micro.positions[127]), (119, 119, 119));
        assert_eq!((micro.ids[127], micro.ids[128], micro.labels[127]), (0, 200, IGNORE));
        let columns = [&micro.rolled.logps, &micro.rolled.advantages];
        assert!(columns.iter().all(|column| column.len() == micro.ids.len()));
        assert_eq!((micro.rolled.logps[131], micro.rolled.logps[132]), (0.0, -1.0));
        assert_eq!(bins(&[&one, &two, &three], Room { tokens: 150, docs: 9 }), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn documents_go_where_there_is_room() {
        let docs: Vec<Doc> = [3, 6, 2, 5, 4].into_iter().map(|answer| doc(1, answer, 0)).collect();
        let docs: Vec<&Doc> = docs.iter().collect();
        // Documents of seven, six, five, four and three tokens.
        assert_eq!(bins(&docs, Room { tokens: 70, docs: 9 }), [vec![1, 3, 4], vec![0, 2]]);
        assert_eq!(bins(&docs, Room { tokens: 99, docs: 2 }), [vec![1, 3], vec![4, 0], vec![2]]);
        assert_eq!(bins(&docs, Room { tokens: 1, docs: 9 }).len(), 5);
    }
}
