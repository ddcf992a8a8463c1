//! Where a run's micro batches come from.

use fathom_text::loader::Loader;
use fathom_text::pack::Packed;

use crate::error::Result;
use crate::step::MicroBatch;

/// Gives micro batches without end, from a position that can be saved.
pub trait Source {
    /// The next micro batch.
    ///
    /// # Errors
    /// From the data's own edges.
    fn next(&mut self) -> Result<MicroBatch>;
    /// The position after the last micro batch given.
    fn cursor(&self) -> serde_json::Value;
    /// Seconds that all calls of [`Source::next`] waited for data.
    fn wait_s(&self) -> f64;
}

/// Samples of token stores, a fixed number in each micro batch.
pub struct Samples {
    loader: Loader,
    per_micro_batch: usize,
}

impl Samples {
    /// Micro batches of `per_micro_batch` samples, packed into one stream.
    pub fn new(loader: Loader, per_micro_batch: usize) -> Samples {
        Samples { loader, per_micro_batch: per_micro_batch.max(1) }
    }
}

impl Source for Samples {
    fn next(&mut self) -> Result<MicroBatch> {
        let mut micro = MicroBatch::default();
        for _ in 0..self.per_micro_batch {
            append(&mut micro, &self.loader.next());
        }
        Ok(micro)
    }

    fn cursor(&self) -> serde_json::Value {
        // A cursor is plain data; serialising it cannot fail.
        serde_json::to_value(self.loader.cursor()).unwrap_or_default()
    }

    fn wait_s(&self) -> f64 {
        self.loader.total_wait_s()
    }
}

/// Appends a sample to the stream.
pub fn append(micro: &mut MicroBatch, packed: &Packed) {
    let start = micro.ids.len();
    micro.ids.extend(packed.tokens.iter().map(|id| *id as i32));
    micro.labels.extend(&packed.labels);
    micro.positions.extend(&packed.positions);
    micro.docs.extend(packed.docs.iter().map(|(from, to)| start + *from as usize..start + *to as usize));
}
