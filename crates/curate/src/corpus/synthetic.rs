//! When a synthetic recall document is due, and how long it is.

use fathom_text::Rng;
use fathom_text::recall::{RecallGenerator, Split};

use super::spec::CorpusSpec;

/// The shortest documents.
const LEAST_BYTES: f64 = 1024.0;
/// Keys the stream of lengths, so that it shares no numbers with the documents.
const LENGTHS: u64 = 0x6C65_6E67;

/// Synthetic documents, spread evenly over the corpus.
///
/// Lengths run from 1 KiB to the longest document with a density of 1 / length^2, so every octave of lengths has the
/// same number of bytes: a model trained at any length finds as many documents that fit it.
pub(super) struct Synthetic {
    generator: RecallGenerator,
    seed: u64,
    longest: f64,
    /// Synthetic bytes per real byte.
    ratio: f64,
    made_bytes: f64,
    next: u64,
}

impl Synthetic {
    pub(super) fn new(spec: &CorpusSpec, filler: &[String]) -> Synthetic {
        Synthetic {
            generator: RecallGenerator::new(spec.seed, Split::Train).with_filler(filler.to_vec()),
            seed: spec.seed,
            longest: spec.document_bytes as f64,
            ratio: spec.recall_share / (1.0 - spec.recall_share),
            made_bytes: 0.0,
            next: 0,
        }
    }

    /// The next document if, after `real_bytes` of real text, the share asks for it. A document that would
    /// overshoot the share waits.
    pub(super) fn due(&mut self, real_bytes: u64) -> Option<String> {
        let length = self.length(self.next);
        if self.made_bytes + length > self.ratio * real_bytes as f64 {
            return None;
        }
        let text = self.generator.document(self.next, length as usize);
        self.made_bytes += text.len() as f64;
        self.next += 1;
        Some(text)
    }

    /// Inverse of the distribution's integral: 1 / (1/a - u (1/a - 1/b)).
    fn length(&self, index: u64) -> f64 {
        let (a, b) = (1.0 / LEAST_BYTES, 1.0 / self.longest);
        1.0 / (a - Rng::keyed(&[self.seed, LENGTHS, index]).unit() * (a - b))
    }
}
