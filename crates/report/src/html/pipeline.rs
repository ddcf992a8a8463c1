//! Section on ranks: measured and planned timelines of micro-batches on each rank, and the speed of each rank.

use fathom_base::human;
use fathom_base::metrics::events::{Pipeline, PipelineLane, PipelinePass, Ranks};

use super::table::table;
use crate::log::RunLog;
use crate::plots::{Gantt, GanttBar};

/// Draws the section; empty for a single rank.
pub fn section(log: &RunLog) -> String {
    let charts: String = log.pipelines.iter().map(|pipeline| chart(pipeline).draw().html()).collect();
    charts + &log.ranks.last().map_or(String::new(), speeds)
}

/// Table of the speed of each rank.
fn speeds(ranks: &Ranks) -> String {
    let score = |scores: &[f64], rank: usize| scores.get(rank).map_or("-".into(), |x| format!("{x:.2}"));
    let rows: Vec<Vec<String>> = (ranks.busy_s.iter().enumerate())
        .map(|(rank, busy_s)| {
            let [relative, individual] = [&ranks.relative, &ranks.individual].map(|all| score(all, rank));
            vec![format!("rank {rank}"), human::seconds(*busy_s), relative, individual]
        })
        .collect();
    let head = ["", "own time of a step", "against the fastest", "against its own best"];
    format!(
        "<details><summary>How fast each rank is, after step {}</summary>{}<p class=\"note\">Means of a few steps without the \
         time that a rank waits for others. 1 is as fast as the fastest rank of the same stage of the pipeline, or as the rank \
         was at its best; 0.5 is half of that.</p></details>\n",
        ranks.step,
        table(&head, &rows)
    )
}

/// Kinds of bars: name in the log and in the legend.
const KINDS: [(&str, &str); 6] = [
    ("forward", "forward"),
    ("backward", "backward"),
    ("weights", "gradients of weights"),
    ("update", "sums and update"),
    ("idle", "stands still"),
    ("waits", "share of a pass that waits for messages"),
];

fn chart(pipeline: &Pipeline) -> Gantt {
    let passes = || pipeline.lanes.iter().flat_map(|lane| &lane.passes);
    let begin = passes().map(|pass| pass.start_s).fold(f64::INFINITY, f64::min);
    let last = passes().map(|pass| pass.end_s).fold(0.0, f64::max);
    let whole = pipeline.lanes.iter().all(|lane| lane.passes.last().is_none_or(|pass| pass.kind == "update"));
    // If only part of a step is shown, all ranks end at the earliest end of any rank.
    let ends = pipeline.lanes.iter().filter_map(|lane| Some(lane.passes.last()?.end_s));
    let until = if whole { last } else { ends.fold(f64::INFINITY, f64::min) };
    let bars: Vec<Vec<GanttBar>> = pipeline.lanes.iter().map(|lane| bars(lane, begin, until)).collect();
    let has = |class: &str| match class {
        "waits" => bars.iter().flatten().any(|bar| bar.stripe > 0.0),
        _ => bars.iter().flatten().any(|bar| bar.class.starts_with(class)),
    };
    let kinds = KINDS.iter().filter(|(class, _)| has(class));
    let kinds = kinds.map(|(class, name)| (format!("pass {class}"), (*name).to_string())).collect();
    let shown = if whole { "" } else { " The beginning of the step is shown." };
    let how = match pipeline.step {
        Some(step) => format!("measured in step {step}"),
        None => "as planned".to_string(),
    };
    let stages = passes().any(|pass| pass.chunk > 0);
    let lighter = if stages { " Lighter bars are a rank's later stages." } else { "" };
    Gantt {
        title: format!("A step of the ranks in stage {}, {how}", pipeline.stage),
        note: format!(
            "{}: {} a step; ranks stand still for {} of the time of all passes. Numbers are micro batches.{lighter}{shown}",
            pipeline.mesh,
            human::seconds(pipeline.step_s),
            human::percent(pipeline.bubble_share)
        ),
        lanes: pipeline
            .lanes
            .iter()
            .enumerate()
            .map(|(rank, lane)| if lane.name.is_empty() { format!("pp {rank}") } else { lane.name.clone() })
            .collect(),
        bars,
        ends: ["begin".into(), human::seconds(until - begin)],
        kinds,
    }
}

/// Passes of a lane, with bars for the idle time between them.
fn bars(lane: &PipelineLane, begin: f64, until: f64) -> Vec<GanttBar> {
    let mut bars = Vec::new();
    let mut now = begin;
    for pass in lane.passes.iter().filter(|pass| pass.start_s < until) {
        bars.extend(idle(now, pass.start_s));
        bars.push(bar(pass, until));
        now = pass.end_s;
    }
    bars.extend(idle(now, until));
    bars
}

/// Idle time between two passes; `None` if there is none.
fn idle(start: f64, end: f64) -> Option<GanttBar> {
    (end > start).then(|| GanttBar {
        class: "idle".into(),
        text: String::new(),
        title: format!("stands still: {}", human::seconds(end - start)),
        stripe: 0.0,
        start,
        end,
    })
}

fn bar(pass: &PipelinePass, until: f64) -> GanttBar {
    let PipelinePass { kind, micro, chunk, start_s, end_s, wait_s } = pass;
    let seconds = end_s - start_s;
    let what = match kind.as_str() {
        "update" => "gradients are completed, weights updated and handed out".to_string(),
        "weights" => format!("gradients of weights of micro batch {micro}"),
        _ => format!("{kind} of micro batch {micro}, stage {chunk} of the rank"),
    };
    let waits = if *wait_s > 0.0 {
        format!(", {} of it waiting for messages", human::seconds(*wait_s))
    } else {
        String::new()
    };
    GanttBar {
        class: format!("{kind} c{}", chunk.min(&3)),
        text: if kind == "update" { String::new() } else { micro.to_string() },
        title: format!("{what}: {}{waits}", human::seconds(seconds)),
        stripe: if seconds > 0.0 { (wait_s / seconds).clamp(0.0, 1.0) } else { 0.0 },
        start: *start_s,
        end: end_s.min(until),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(kind: &str, micro: u64, [start_s, end_s, wait_s]: [f64; 3]) -> PipelinePass {
        PipelinePass { kind: kind.into(), micro, chunk: 0, start_s, end_s, wait_s }
    }

    #[test]
    fn what_is_between_passes_is_shown_as_standing_still() {
        let lane =
            |name: &str, passes: &[PipelinePass]| PipelineLane { name: name.into(), passes: passes.to_vec() };
        let first = [
            pass("forward", 0, [0.0, 1.0, 0.25]),
            pass("backward", 0, [3.0, 5.0, 0.0]),
            pass("update", 0, [5.0, 6.0, 0.0]),
        ];
        let second = [pass("forward", 0, [1.0, 2.0, 0.0]), pass("update", 0, [5.0, 6.0, 0.0])];
        let pipeline = Pipeline {
            stage: "2k".into(),
            mesh: "pp=2".into(),
            step: Some(2),
            step_s: 6.0,
            bubble_share: 0.25,
            lanes: vec![lane("pp 0", &first), lane("", &second)],
        };
        let chart = chart(&pipeline);
        let classes: Vec<Vec<&str>> =
            chart.bars.iter().map(|bars| bars.iter().map(|bar| bar.class.as_str()).collect()).collect();
        assert_eq!(classes[0], ["forward c0", "idle", "backward c0", "update c0"]);
        assert_eq!(classes[1], ["idle", "forward c0", "idle", "update c0"]);
        assert_eq!((chart.lanes, chart.bars[0][0].stripe), (vec!["pp 0".to_string(), "pp 1".into()], 0.25));
        assert!(chart.title.contains("measured in step 2") && chart.kinds.len() == 5, "{:?}", chart.kinds);
    }
}
