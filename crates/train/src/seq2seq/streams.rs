//! Two packed streams of documents that belong together.

use fathom_text::pack::IGNORE;

use crate::micro_batch::{MicroBatch, SourceTokens};

/// Builder of both streams.
#[derive(Default)]
pub(super) struct TwoStreams {
    source: SourceTokens,
    ids: Vec<i32>,
    labels: Vec<i32>,
    positions: Vec<i32>,
    docs: Vec<std::ops::Range<usize>>,
}

impl TwoStreams {
    /// Appends a source and its target, whose tokens are predicted one by one from the `start` on. Without a target there is no label.
    pub fn push(&mut self, source: &[i32], target: &[i32], start: i32) {
        let from = self.source.ids.len();
        self.source.ids.extend(source);
        self.source.positions.extend(0..source.len() as i32);
        self.source.docs.push(from..self.source.ids.len());
        let from = self.ids.len();
        self.ids.push(start);
        self.ids.extend(target.iter().take(target.len().saturating_sub(1)));
        self.labels.extend(target);
        self.labels.resize(self.ids.len(), IGNORE);
        self.positions.extend(0..(self.ids.len() - from) as i32);
        self.docs.push(from..self.ids.len());
    }

    /// The same in a micro-batch with `rooms` tokens of the source and the target: a last document without a loss fills up.
    ///
    /// # Panics
    /// If a stream leaves no token for it.
    #[track_caller]
    pub fn fill(mut self, micro: &mut MicroBatch, [source, target]: [usize; 2], seq_tokens: usize) {
        let found = [self.source.ids.len(), self.ids.len()];
        assert!(found[0] < source && found[1] < target, "streams: {found:?} tokens in {source} and {target}");
        let (source_rest, target_rest) = (found[0]..source, found[1]..target);
        let places =
            |rest: &std::ops::Range<usize>| (0..rest.len()).map(|at| (at % seq_tokens.max(1)) as i32);
        self.source.positions.extend(places(&source_rest));
        self.positions.extend(places(&target_rest));
        self.source.ids.resize(source, 0);
        self.ids.resize(target, 0);
        self.labels.resize(target, IGNORE);
        self.source.docs.push(source_rest);
        self.docs.push(target_rest);
        let TwoStreams { source, ids, labels, positions, docs } = self;
        (micro.ids, micro.labels, micro.positions, micro.docs) = (ids, labels, positions, docs);
        micro.source = Some(source);
    }
}
