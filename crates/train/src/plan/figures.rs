//! The figures of a planned step.

use std::sync::Arc;

use fathom_tensor::mesh::{Waits, Wires};
use fathom_tensor::{PoolUsage, Times};

use super::lane::Lane;

/// Needs of a step.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Peaks of the pool, to the byte.
    pub usage: PoolUsage,
    /// FLOPs of one step, attention counted once under its mask.
    pub model_flops: u128,
    /// FLOPs that are executed, including recompute.
    pub hardware_flops: u128,
    /// Operations that are recomputed in the backward pass.
    pub replayed: u128,
    /// Peak bytes on disk: the sizes of the files of activations, weights and optimizer state.
    pub disk_peak_bytes: u64,
    /// The part of the disk peak used for activations.
    pub spill_peak_bytes: u64,
    /// Bytes written to disk and read from it, in one step.
    pub disk_bytes: u64,
    /// Peak bytes on the host.
    pub host_peak_bytes: u64,
    /// The part of the host peak used for weights and optimizer state.
    pub host_state_bytes: u64,
    /// Bytes moved to the host and back, in one step.
    pub host_bytes: u64,
    /// Bytes that the rank sends in one step, by axis and collective.
    pub wires: Wires,
    /// Predicted seconds of a step that the rank waits for messages, by axis and collective, without waits for other
    /// pipeline stages.
    pub waits: Waits,
    /// Tokens of a step over all ranks.
    pub tokens: u64,
    /// Predicted seconds of a step; `None` if the profile has no rates.
    pub times: Option<Times>,
    /// Times of its parts, for the simulation of all stages.
    pub lane: Option<Arc<Lane>>,
}

impl Plan {
    /// Predicted seconds of a step.
    pub fn step_s(&self) -> Option<f64> {
        self.times.map(|times| times.elapsed_s())
    }

    /// Predicted tokens per second.
    pub fn tokens_per_s(&self) -> Option<f64> {
        Some(self.tokens as f64 / self.step_s()?)
    }
}

/// Memory events of a step to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// None.
    Nothing,
    /// Those needed to determine what is live at the peak.
    Peak,
    /// All of them.
    Timeline,
}
