//! Events about memory: what a plan foretells, what a step took, where activations live.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::nullable;

events! {
    /// What the plan says a stage needs.
    struct Plan {
        /// Name of the stage.
        stage: String,
        /// The machine it is planned for.
        profile: String,
        /// The most bytes alive at one moment of a step.
        peak_live_bytes: u64,
        /// The most bytes reserved.
        peak_reserved_bytes: u64,
        /// Bytes by category at the moment of `peak_live_bytes`.
        by_category: BTreeMap<String, u64>,
        /// The operation that runs at that moment.
        peak_op: String,
        /// Causal-model floating-point operations of one step.
        #[serde(with = "nullable")]
        step_flops: f64,
        /// Those that run, recompute included; 0 in old logs.
        #[serde(with = "nullable")]
        hardware_flops: f64,
        /// Most bytes on disk at once.
        disk_peak_bytes: u64,
        /// Bytes written to disk and read from it in one step.
        disk_bytes: u64,
        /// Predicted time of a step; absent without a profile of the machine.
        step_s: Option<f64>,
    }

    /// A step of all ranks: which passes ran when.
    struct Pipeline {
        /// Name of the stage of the run.
        stage: String,
        /// The mesh, in words.
        mesh: String,
        /// The step that was measured; none is a plan.
        step: Option<u64>,
        /// Time of the step.
        step_s: f64,
        /// Share of the time of all passes in which ranks stand still.
        bubble_share: f64,
        /// By rank: of a plan one for each stage of the pipeline.
        lanes: Vec<PipelineLane>,
    }

    /// What one rank does.
    struct PipelineLane {
        /// Where it is in the mesh.
        name: String,
        /// In the order of time; the beginning of a long step.
        passes: Vec<PipelinePass>,
    }

    /// A forward or backward pass of one micro batch through one stage.
    struct PipelinePass {
        /// `forward`, `backward`, `weights` (gradients of weights that a backward pass left), or `update` (gradients are completed,
        /// weights updated and handed out).
        kind: String,
        /// Micro batch.
        micro: u64,
        /// Which of the rank's stages.
        chunk: u64,
        /// Begin.
        start_s: f64,
        /// End.
        end_s: f64,
        /// Of that time, seconds that it waited for messages. What it waits for another stage is not in any pass.
        wait_s: f64,
    }

    /// Live bytes by category along one step. `live_bytes[c][i]` belongs to `categories[c]` and point `i`.
    struct MemoryTimeline {
        /// The step it was taken in; for a plan the update after which its stage began.
        step: u64,
        /// Name of the stage.
        stage: String,
        /// Micro batches of the step. The points are of the first two and of the update; the others are like the second.
        micro_batches: u64,
        /// Category names, from the bottom of the picture to its top.
        categories: Vec<String>,
        /// What ran at each point, e.g. `layer 3 attention backward`.
        labels: Vec<String>,
        /// Where the parts of the step begin: forward, backward, update.
        phases: Vec<Phase>,
        /// Live bytes per category per point.
        live_bytes: Vec<Vec<u64>>,
        /// What was live at the highest point and made in this step, the largest first; layers that are alike are one.
        at_peak: Vec<LiveValue>,
        /// Peak that the plan foretold, 0 when not planned.
        planned_peak_bytes: u64,
    }

    /// Buffers of one kind.
    struct LiveValue {
        /// The activation, or the operation that asked for the buffer.
        name: String,
        /// It is the gradient of what is named.
        gradient: bool,
        /// Category name.
        category: String,
        /// Layers that have one.
        layers: u64,
        /// Bytes of all of them.
        bytes: u64,
    }

    /// A part of a step.
    struct Phase {
        /// `forward`, `backward` or `update`.
        name: String,
        /// Its first point of the timeline.
        from: u64,
    }

    /// Where a stage's activations live between forward and backward.
    struct Placement {
        /// Name of the stage.
        stage: String,
        /// Tokens of a micro batch.
        tokens: u64,
        /// Share of the tokens, the last ones, of which activations are offloaded; those of the rest stay in memory.
        #[serde(rename = "away_share")]
        offloaded_share: Option<f64>,
        /// The format that offloaded activations are written in, where it is not their own.
        codec: String,
        /// Segments in program order; neighbouring layers that are alike are one.
        segments: Vec<PlacedSegment>,
    }

    /// Layers that are alike, or what stands before or after them.
    struct PlacedSegment {
        /// The layers; -1 stands for what is outside the blocks.
        layers: Vec<i64>,
        /// In the order in which the block makes them.
        activations: Vec<PlacedActivation>,
    }

    /// One activation of one layer.
    struct PlacedActivation {
        /// Its name, e.g. `attn.out`.
        name: String,
        /// Its columns.
        cols: u64,
        /// Its type, e.g. `bf16`.
        dtype: String,
        /// Bytes for all tokens.
        bytes: u64,
        /// `keep`, `recompute`, `host` or `disk`.
        place: String,
        /// True if it is there from forward to backward; a value kept by the table that no gradient needs is not.
        held: bool,
    }

    /// Sequence length against memory and time, for a stage and for other places of its activations.
    struct Lengths {
        /// Name of the stage.
        stage: String,
        /// Tokens of a sample of that stage.
        tokens: u64,
        /// Bytes that the machine may use; 0 when not known.
        budget_bytes: u64,
        /// The alternatives, this stage's own places first.
        lines: Vec<LengthLine>,
    }

    /// One alternative.
    struct LengthLine {
        /// Its name.
        name: String,
        /// By ascending length.
        points: Vec<LengthPoint>,
    }

    /// What a step of one length needs.
    struct LengthPoint {
        /// Tokens of a sample.
        tokens: u64,
        /// Tokens of a step.
        step_tokens: u64,
        /// The most bytes reserved.
        peak_bytes: u64,
        /// Most bytes on disk at once.
        disk_bytes: u64,
        /// Predicted time of a step; absent without a profile of the machine.
        step_s: Option<f64>,
    }
}
