//! Memory along one step as an event: for a real step, or for the same step on the machine without data.

use fathom_base::metrics::events::{LiveValue, MemoryTimeline, Phase};
use fathom_tensor::{Category, Mark, live_at_peak};

/// Maximum number of points in a memory timeline.
const POINTS: usize = 600;

/// Number of micro-batches shown: the second looks like every later one.
pub const SHOWN: usize = 2;

/// A recording as an event, without its stage and step.
pub fn of(mut marks: Vec<Mark>) -> MemoryTimeline {
    cut(&mut marks);
    let marks = marks.as_slice();
    let phases = phases(marks);
    let width = marks.len().div_ceil(POINTS).max(1);
    // The point with the most live bytes in each run of adjacent points is kept, so that peaks survive.
    let live = |i: &usize| marks[*i].by_category.sum();
    let kept: Vec<usize> = (0..marks.len())
        .step_by(width)
        .filter_map(|from| (from..marks.len().min(from + width)).max_by_key(live))
        .collect();
    let label = |i: usize| {
        let (mark, phase) = (&marks[i], phases.iter().rfind(|(_, from)| *from <= i));
        match (mark.layer, phase) {
            (-1, _) | (_, None) => mark.op.to_string(),
            (layer, Some((phase, _))) => format!("layer {layer} {} {phase}", mark.op),
        }
    };
    let line =
        |category: Category| -> Vec<u64> { kept.iter().map(|i| marks[*i].by_category[category]).collect() };
    MemoryTimeline {
        categories: Category::ALL.iter().map(|category| category.name().to_string()).collect(),
        labels: kept.iter().map(|i| label(*i)).collect(),
        phases: phases
            .iter()
            .map(|(name, from)| Phase { name: (*name).to_string(), from: (from / width) as u64 })
            .collect(),
        live_bytes: Category::ALL.into_iter().map(line).collect(),
        at_peak: at_peak(marks),
        ..MemoryTimeline::default()
    }
}

/// Removes the micro-batches that repeat the second.
fn cut(marks: &mut Vec<Mark>) {
    let phases = phases(marks);
    let third = phases.iter().filter(|(phase, _)| *phase == "forward").nth(SHOWN);
    let update = phases.iter().find(|(phase, _)| *phase == "update").map_or(marks.len(), |(_, from)| *from);
    if let Some((_, from)) = third {
        marks.drain(*from..update);
    }
}

/// Live buffers at the highest point, with layers of the same name merged.
fn at_peak(marks: &[Mark]) -> Vec<LiveValue> {
    let mut values: Vec<LiveValue> = Vec::new();
    for (label, bytes) in live_at_peak(marks) {
        let (gradient, category) = (label.gradient, label.category.name());
        let same = |value: &&mut LiveValue| {
            value.name == label.name && value.gradient == gradient && value.category == category
        };
        match values.iter_mut().find(same) {
            Some(value) => {
                value.layers += 1;
                value.bytes += bytes;
            }
            None => values.push(LiveValue {
                name: label.name.to_string(),
                gradient,
                category: category.to_string(),
                layers: 1,
                bytes,
            }),
        }
    }
    values.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    values
}

/// Beginnings of forward, backward and update, by the operations that start them.
fn phases(marks: &[Mark]) -> Vec<(&'static str, usize)> {
    let mut phases: Vec<(&'static str, usize)> = Vec::new();
    for (i, mark) in marks.iter().enumerate() {
        let phase = match mark.op {
            "batch" => "forward",
            "head" => "backward",
            "adamw" => "update",
            _ => continue,
        };
        if phases.last().is_none_or(|(last, _)| *last != phase) {
            phases.push((phase, i));
        }
    }
    phases
}
