//! Losses of held-out text with its neighbours and without them.

use fathom_grad::{Counters, CrossEntropyLoss};
use fathom_model::ModelView;
use fathom_text::loader::{Loader, Shuffle, Split, choose, samples};
use fathom_text::{loader, pack};

use crate::blend::Stores;
use crate::error::Result;
use crate::in_step::InStep;
use crate::micro_batch::MicroBatch;
use crate::pass::Pass;
use crate::recipe::Recipe;
use crate::source::{Shape, append, loader_spec};

/// Losses of the same tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeldOutLosses {
    /// Sum of the losses with neighbours and without, in nats.
    pub sums: [f64; 2],
    /// Number of tokens.
    pub tokens: u64,
}

impl HeldOutLosses {
    /// Perplexities with neighbours and without.
    pub fn perplexities(&self) -> [f64; 2] {
        self.sums.map(|sum| (sum / self.tokens.max(1) as f64).exp())
    }
}

/// Losses of a run's held-out documents, each cut into pieces of a stage's length; `None` if nothing is held out.
///
/// # Errors
/// A store that cannot be read.
pub fn held_out_losses(
    of: ModelView<'_>,
    stores: &Stores,
    recipe: &Recipe,
    (index, how): (usize, &InStep),
) -> Result<Option<HeldOutLosses>> {
    let split = Split::HeldOut { held_out: stores.held_out() };
    let packing = pack::Packing::Single;
    let spec = loader::Spec {
        split,
        packing,
        shuffle: Shuffle::None,
        min_doc_tokens: 0,
        length_weights: Vec::new(),
        ..loader_spec(recipe, index, stores.held_out())
    };
    let sources = stores.sources(recipe, index, &spec)?;
    let [source] = &sources[..] else { return Ok(None) };
    let Ok(docs) = choose(&source.store, &source.part, &spec) else { return Ok(None) };
    let pieces = samples(&docs, &spec, 0, 0).len();
    let (mut loader, shape) = (Loader::new(sources, spec)?, Shape::new(recipe, index));
    let counters = Counters::default();
    let pass = Pass { of, counters: &counters, how };
    let mut all = HeldOutLosses::default();
    for first in (0..pieces).step_by(shape.samples) {
        let micro = micro_batch(&mut loader, shape.samples.min(pieces - first), stores, &shape)?;
        let alone = MicroBatch { chunks: Vec::new(), ..micro.clone() };
        for (sum, micro) in all.sums.iter_mut().zip([&micro, &alone]) {
            let losses = pass.losses(micro, &CrossEntropyLoss::PLAIN);
            *sum += losses.iter().map(|loss| f64::from(*loss)).sum::<f64>();
        }
        all.tokens += micro.valid();
    }
    Ok(Some(all))
}

/// The next pieces, with their neighbours.
fn micro_batch(loader: &mut Loader, pieces: usize, stores: &Stores, shape: &Shape) -> Result<MicroBatch> {
    let mut micro = MicroBatch::default();
    for _ in 0..pieces {
        append(&mut micro, &loader.next()?);
    }
    if let Some(rule) = stores.rule() {
        rule.apply(&mut micro, shape)?;
    }
    Ok(micro)
}
