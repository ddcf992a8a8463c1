//! Where a run's micro batches come from.

use fathom_text::loader::{Cursor, Loader};
use fathom_text::pack::{IGNORE, Packed};

use crate::error::{Error, Result};
use crate::step::MicroBatch;

/// What a stage's micro batches are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Index of the stage.
    pub stage: usize,
    /// Samples of each, packed into one stream.
    pub samples: usize,
    /// Tokens of a sample, at most.
    pub seq_tokens: usize,
    /// Documents of a micro batch, at most; what fills it up counts as one.
    pub docs: usize,
    /// All are filled up to the most tokens that there can be.
    pub one_length: bool,
}

/// Samples of token stores, a fixed number in each micro batch: without end, from a position that can be saved.
pub struct Samples {
    loader: Loader,
    shape: Shape,
}

impl Samples {
    /// Micro batches of this shape.
    pub fn new(loader: Loader, shape: Shape) -> Samples {
        Samples { loader, shape }
    }

    /// The next micro batch.
    ///
    /// # Errors
    /// More documents than masks have room for; a store that cannot be read any more.
    pub fn micro_batch(&mut self) -> Result<MicroBatch> {
        let mut micro = MicroBatch::default();
        for _ in 0..self.shape.samples {
            append(&mut micro, &self.loader.next()?);
        }
        if self.shape.one_length {
            fill(&mut micro, self.shape.samples * self.shape.seq_tokens, self.shape.seq_tokens);
        }
        self.shape.check(micro)
    }

    /// The position after the last micro batch given.
    pub fn cursor(&self) -> &Cursor {
        self.loader.cursor()
    }

    /// Seconds that all calls of [`Samples::micro_batch`] waited for data.
    pub fn wait_s(&self) -> f64 {
        self.loader.total_wait_s()
    }
}

impl Shape {
    /// Refuses a micro batch that masks have no room for.
    fn check(&self, micro: MicroBatch) -> Result<MicroBatch> {
        let (found, room) = (micro.docs.len(), self.docs);
        if found <= room {
            return Ok(micro);
        }
        let key = format!("stage.{}.max_docs", self.stage);
        let message = format!(
            "a micro batch has {found} documents and masks have room for {room}; take {} (it changes no number, so the run may \
             go on with it)",
            found.div_ceil(self.samples).next_power_of_two()
        );
        Err(Error::Recipe { key, message })
    }
}

/// Fills a micro batch up to `tokens` with a range of its own that no loss is computed for.
fn fill(micro: &mut MicroBatch, tokens: usize, seq_tokens: usize) {
    let from = micro.ids.len();
    if from < tokens {
        micro.ids.resize(tokens, 0);
        micro.labels.resize(tokens, IGNORE);
        micro.positions.extend((0..tokens - from).map(|at| (at % seq_tokens) as i32));
        micro.docs.push(from..tokens);
    }
}

/// Appends a sample to the stream.
fn append(micro: &mut MicroBatch, packed: &Packed) {
    let start = micro.ids.len();
    micro.ids.extend(packed.tokens.iter().map(|id| *id as i32));
    micro.labels.extend(&packed.labels);
    micro.positions.extend(&packed.positions);
    micro.docs.extend(packed.docs.iter().map(|(from, to)| start + *from as usize..start + *to as usize));
}
