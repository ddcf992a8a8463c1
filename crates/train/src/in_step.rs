//! Settings of a step.

use fathom_grad::{AdamWSettings, OnDisk, Places};
use fathom_model::{Caps, NarrowLayers, RoundTo};

use crate::micro_batch::MicroBatch;
use crate::objective::Goal;
use crate::parallel::Ranks;

/// Settings of a step.
#[derive(Clone, Debug)]
pub struct InStep {
    /// Places of activations.
    pub places: Places,
    /// Offloaded weights and optimizer state, for plans. In a trainer it depends on where its weights were declared.
    pub on_disk: OnDisk,
    /// Maximum sizes with which shapes are charged.
    pub caps: Caps,
    /// The ranks, for plans. A trainer uses its device's.
    pub ranks: Ranks,
    /// Low-precision GEMMs, for plans. A trainer uses those given to [`Trainer::narrow`](crate::Trainer::narrow).
    pub narrow: Option<NarrowLayers>,
    /// Format to which projections are rounded, for plans. A trainer uses the one given to [`Trainer::round_to`](crate::Trainer::round_to).
    pub round_to: Option<RoundTo>,
    /// Weight of the z-loss.
    pub z_loss: f32,
    /// The objective.
    pub goal: Goal,
    /// The update.
    pub adamw: AdamWSettings,
}

impl InStep {
    /// Cross-entropy with default updates on one rank.
    pub fn plain(places: Places, caps: Caps) -> InStep {
        InStep {
            places,
            on_disk: OnDisk::default(),
            caps,
            ranks: Ranks::default(),
            narrow: None,
            round_to: None,
            z_loss: 0.0,
            goal: Goal::default(),
            adamw: AdamWSettings::default(),
        }
    }

    /// A micro-batch without contents of texts with `tokens` tokens, for a machine without data.
    pub fn shape(&self, tokens: usize) -> MicroBatch {
        let document = self.caps.seq_tokens;
        let objective = &self.goal.objective;
        match (objective.streams(tokens, self.caps.docs), objective.retrieval()) {
            (None, _) => MicroBatch::shape(tokens, document),
            (Some([source, main]), Some(sizes)) => MicroBatch::shape_of_chunks(source, main, document, sizes),
            (Some(streams), None) => MicroBatch::shape_of_two(streams, tokens.div_ceil(document.max(1))),
        }
    }
}
