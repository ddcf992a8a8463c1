//! Memory events: planned memory, memory along a step, placement of activations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::nullable;

events! {
    /// Planned resources of a stage.
    struct Plan {
        /// Name of the stage.
        stage: String,
        /// Machine profile of the plan.
        profile: String,
        /// Peak live bytes during a step.
        peak_live_bytes: u64,
        /// Peak reserved bytes.
        peak_reserved_bytes: u64,
        /// Bytes by category at the moment of `peak_live_bytes`.
        by_category: BTreeMap<String, u64>,
        /// Operation running at that moment.
        peak_op: String,
        /// Causal-model floating-point operations of one step.
        #[serde(with = "nullable")]
        step_flops: f64,
        /// Executed floating-point operations including recomputation; 0 in old logs.
        #[serde(with = "nullable")]
        hardware_flops: f64,
        /// Peak bytes on disk.
        disk_peak_bytes: u64,
        /// Bytes written to and read from disk in one step.
        disk_bytes: u64,
        /// Predicted step time; absent without a machine profile.
        step_s: Option<f64>,
    }

    /// Timeline of one step on all ranks.
    struct Pipeline {
        /// Name of the stage of the run.
        stage: String,
        /// Description of the mesh.
        mesh: String,
        /// Measured step; none for a plan.
        step: Option<u64>,
        /// Duration of the step.
        step_s: f64,
        /// Idle share of the ranks' time during all passes.
        bubble_share: f64,
        /// Timelines by rank; in a plan one per pipeline stage.
        lanes: Vec<PipelineLane>,
    }

    /// Timeline of one rank.
    struct PipelineLane {
        /// Position in the mesh.
        name: String,
        /// Passes in order of time; only the beginning of a long step.
        passes: Vec<PipelinePass>,
    }

    /// A forward or backward pass of one micro-batch through one stage.
    struct PipelinePass {
        /// `forward`, `backward`, `weights` (weight gradients deferred by a backward pass), or `update` (gradients
        /// are completed, weights updated and distributed).
        kind: String,
        /// Index of the micro-batch.
        micro: u64,
        /// Index among the rank's stages.
        chunk: u64,
        /// Start time.
        start_s: f64,
        /// End time.
        end_s: f64,
        /// Seconds within the pass spent waiting for messages. Waiting for another stage is not part of any pass.
        wait_s: f64,
    }

    /// Live bytes by category along one step. `live_bytes[c][i]` belongs to `categories[c]` and point `i`.
    struct MemoryTimeline {
        /// Step of the measurement; for a plan the update at which its stage began.
        step: u64,
        /// Name of the stage.
        stage: String,
        /// Micro-batches per step. The points cover the first two and the update; the others resemble the second.
        micro_batches: u64,
        /// Category names, from the bottom of the chart to its top.
        categories: Vec<String>,
        /// Operation at each point, e.g. `layer 3 attention backward`.
        labels: Vec<String>,
        /// Starts of the phases of the step: forward, backward, update.
        phases: Vec<Phase>,
        /// Live bytes per category per point.
        live_bytes: Vec<Vec<u64>>,
        /// Values live at the peak and created in this step, largest first; equal layers are merged.
        at_peak: Vec<LiveValue>,
        /// Planned peak, 0 if not planned.
        planned_peak_bytes: u64,
    }

    /// Buffers of one kind.
    struct LiveValue {
        /// Name of the activation, or of the operation that allocated the buffer.
        name: String,
        /// True for the gradient of the named value.
        gradient: bool,
        /// Category name.
        category: String,
        /// Number of layers with this buffer.
        layers: u64,
        /// Total bytes.
        bytes: u64,
    }

    /// A phase of a step.
    struct Phase {
        /// `forward`, `backward` or `update`.
        name: String,
        /// Index of its first point in the timeline.
        from: u64,
    }

    /// Placement of a stage's activations between forward and backward.
    struct Placement {
        /// Name of the stage.
        stage: String,
        /// Tokens per micro-batch.
        tokens: u64,
        /// Share of tokens, from the end, whose activations are offloaded; those of the others stay in memory.
        #[serde(rename = "away_share")]
        offloaded_share: Option<f64>,
        /// Storage format of offloaded activations, if it differs from their own.
        codec: String,
        /// Segments in program order; adjacent equal layers are merged.
        segments: Vec<PlacedSegment>,
    }

    /// A group of equal layers, or the part before or after them.
    struct PlacedSegment {
        /// Layer indices; -1 denotes the part outside the blocks.
        layers: Vec<i64>,
        /// Activations in the order of their creation.
        activations: Vec<PlacedActivation>,
    }

    /// One activation of a layer.
    struct PlacedActivation {
        /// Name, e.g. `attn.out`.
        name: String,
        /// Number of columns.
        cols: u64,
        /// Data type, e.g. `bf16`.
        dtype: String,
        /// Bytes for all tokens.
        bytes: u64,
        /// `keep`, `recompute`, `host` or `disk`.
        place: String,
        /// True if it exists from forward to backward; false for a kept value that no gradient needs.
        held: bool,
    }

    /// Memory and time by sequence length, for a stage and for alternative placements of its activations.
    struct Lengths {
        /// Name of the stage.
        stage: String,
        /// Tokens per sample of that stage.
        tokens: u64,
        /// Memory budget of the machine in bytes; 0 if unknown.
        budget_bytes: u64,
        /// Alternatives, beginning with the stage's own placement.
        lines: Vec<LengthLine>,
    }

    /// One alternative placement.
    struct LengthLine {
        /// Name of the alternative.
        name: String,
        /// Points by ascending length.
        points: Vec<LengthPoint>,
    }

    /// Resources of a step at one length.
    struct LengthPoint {
        /// Tokens per sample.
        tokens: u64,
        /// Tokens per step.
        step_tokens: u64,
        /// Peak reserved bytes.
        peak_bytes: u64,
        /// Peak bytes on disk.
        disk_bytes: u64,
        /// Predicted step time; absent without a machine profile.
        step_s: Option<f64>,
    }
}
