//! Schedule and lengths of synthetic recall documents.

use fathom_text::Rng;
use fathom_text::recall::{DRILL, RECALL, RecallGenerator, Split};

use super::spec::CorpusSpec;

/// Length of the shortest recall documents.
const LEAST_BYTES: f64 = 1024.0;
/// Length of a drill.
const DRILL_BYTES: usize = 4096;
/// Key of the random stream of lengths, distinct from that of the documents.
const LENGTHS: u64 = 0x6C65_6E67;

/// Synthetic documents spread evenly over the corpus: half of the bytes are drills, half recall documents.
///
/// Lengths of recall documents range from 1 KiB to the longest document with density 1 / length^2, so every octave of
/// lengths has the same number of bytes: a model trained at any context length finds equally many documents that fit
/// it.
pub(super) struct Synthetic {
    generator: RecallGenerator,
    seed: u64,
    longest: f64,
    /// Synthetic bytes per real byte.
    ratio: f64,
    /// Bytes of drills and of recall documents generated so far.
    made_bytes: [f64; 2],
    /// Index of the next drill and of the next recall document.
    next: [u64; 2],
}

impl Synthetic {
    pub(super) fn new(spec: &CorpusSpec, filler: &[String]) -> Synthetic {
        Synthetic {
            generator: RecallGenerator::new(spec.seed, Split::Train).with_filler(filler.to_vec()),
            seed: spec.seed,
            longest: spec.document_bytes as f64,
            ratio: spec.recall_share / (1.0 - spec.recall_share),
            made_bytes: [0.0; 2],
            next: [0; 2],
        }
    }

    /// Texts of the documents due within the first `real_bytes` of real text.
    pub(super) fn up_to(mut self, real_bytes: u64) -> Vec<String> {
        std::iter::from_fn(|| self.due(real_bytes)).map(|(_, text)| text).collect()
    }

    /// Source and text of the next document, if the synthetic share is due after `real_bytes` of real text. A
    /// document that would exceed the share waits.
    pub(super) fn due(&mut self, real_bytes: u64) -> Option<(&'static str, String)> {
        let share = self.ratio * real_bytes as f64 / 2.0;
        let [drill, recall] = self.next;
        let length = self.length(recall);
        let (kind, source, text) = if self.made_bytes[0] + DRILL_BYTES as f64 <= share {
            (0, DRILL, self.generator.drill(drill, DRILL_BYTES))
        } else if self.made_bytes[1] + length <= share {
            (1, RECALL, self.generator.document(recall, length as usize))
        } else {
            return None;
        };
        self.made_bytes[kind] += text.len() as f64;
        self.next[kind] += 1;
        Some((source, text))
    }

    /// Inverse of the cumulative distribution: 1 / (1/a - u (1/a - 1/b)).
    fn length(&self, index: u64) -> f64 {
        let (a, b) = (1.0 / LEAST_BYTES, 1.0 / self.longest);
        1.0 / (a - Rng::keyed(&[self.seed, LENGTHS, index]).unit() * (a - b))
    }
}
