//! The section on a pipeline: which rank runs which micro batch when.

use fathom_base::human;
use fathom_base::metrics::events::{Pipeline, PipelinePass};

use crate::log::RunLog;
use crate::plots::{Gantt, GanttBar};

/// The section; empty without a pipeline.
pub fn section(log: &RunLog) -> String {
    log.pipelines.iter().map(|pipeline| chart(pipeline).draw().html()).collect()
}

fn chart(pipeline: &Pipeline) -> Gantt {
    let last = pipeline.lanes.iter().flat_map(|lane| &lane.passes).map(|pass| pass.end_s).fold(0.0, f64::max);
    let all = pipeline.lanes.iter().all(|lane| lane.passes.last().is_none_or(|pass| pass.kind != "forward"));
    let shown = if all { "" } else { " The beginning of it is shown." };
    Gantt {
        title: format!("A step of the pipeline in stage {}", pipeline.stage),
        note: format!(
            "{}: {} a step, of the time of all passes ranks stand still for {}. Numbers are micro batches; lighter bars are a \
             rank's later stages.{shown}",
            pipeline.mesh,
            human::seconds(pipeline.step_s),
            human::percent(pipeline.bubble_share)
        ),
        lanes: (0..pipeline.lanes.len()).map(|rank| format!("pp {rank}")).collect(),
        bars: pipeline.lanes.iter().map(|lane| lane.passes.iter().map(bar).collect()).collect(),
        ends: ["begin".into(), human::seconds(last)],
        kinds: ["forward", "backward", "weights"]
            .map(|kind| (format!("pass {kind}"), kind.to_string()))
            .to_vec(),
    }
}

fn bar(pass: &PipelinePass) -> GanttBar {
    let PipelinePass { kind, micro, chunk, start_s, end_s } = pass;
    GanttBar {
        class: format!("{kind} c{}", chunk.min(&3)),
        text: micro.to_string(),
        title: format!(
            "{kind} of micro batch {micro}, stage {chunk} of the rank: {}",
            human::seconds(end_s - start_s)
        ),
        start: *start_s,
        end: *end_s,
    }
}
