//! The map of places: layers by activations, coloured by where each value lives between forward and backward.

use fathom_base::human;
use fathom_base::metrics::events::{PlacedActivation, PlacedSegment, Placement};

use crate::plots::{KindMap, MapCell};

/// Class and words of a place, in the legend's order.
const KINDS: [(&str, &str); 5] = [
    ("keep", "kept in memory"),
    ("recompute", "computed again where needed"),
    ("host", "host memory"),
    ("disk", "disk"),
    ("none", "let go: no gradient needs it"),
];

/// Which of [`KINDS`] an activation is.
fn kind(activation: &PlacedActivation) -> usize {
    match activation.place.as_str() {
        "recompute" => 1,
        _ if !activation.held => 4,
        "host" => 2,
        "disk" => 3,
        _ => 0,
    }
}

/// A column of the map: its name and its segment.
fn columns(placement: &Placement) -> Vec<(String, &PlacedSegment)> {
    let mut columns = Vec::new();
    let mut blocks = false;
    for segment in &placement.segments {
        for layer in &segment.layers {
            blocks |= *layer >= 0;
            let name = match layer {
                0.. => layer.to_string(),
                _ if blocks => "end".to_string(),
                _ => "start".to_string(),
            };
            columns.push((name, segment));
        }
    }
    columns
}

/// The map of one stage.
pub fn map(placement: &Placement) -> KindMap {
    let columns = columns(placement);
    let mut rows: Vec<String> = Vec::new();
    for activation in placement.segments.iter().flat_map(|segment| &segment.activations) {
        if !rows.contains(&activation.name) {
            rows.push(activation.name.clone());
        }
    }
    let find = |segment: &PlacedSegment, name: &str| -> Option<PlacedActivation> {
        segment.activations.iter().find(|activation| activation.name == name).cloned()
    };
    let cell = |(column, segment): &(String, &PlacedSegment), name: &str| -> Option<MapCell> {
        let activation = find(segment, name)?;
        let (class, words) = KINDS[kind(&activation)];
        let place = if column.parse::<u32>().is_ok() { format!("layer {column}") } else { column.clone() };
        let shape =
            format!("[{}, {}] {}", human::grouped(placement.tokens), activation.cols, activation.dtype);
        let title = format!("{place}, {name} {shape}, {}: {words}", human::bytes(activation.bytes));
        Some(MapCell { class: class.into(), text: human::bytes(activation.bytes), title })
    };
    let cells: Vec<Vec<Option<MapCell>>> =
        rows.iter().map(|name| columns.iter().map(|column| cell(column, name)).collect()).collect();
    let sum = |name: Option<&str>, of: usize| -> u64 {
        let all = columns.iter().flat_map(|(_, segment)| &segment.activations);
        let which = |activation: &&PlacedActivation| {
            name.is_none_or(|name| activation.name == name) && kind(activation) == of
        };
        all.filter(which).map(|activation| activation.bytes).sum()
    };
    // Columns of sums: memory, and what else holds something.
    let homes: Vec<(&str, usize)> = [("in memory", 0), ("on the host", 2), ("on disk", 3)]
        .into_iter()
        .filter(|(_, kind)| *kind == 0 || sum(None, *kind) > 0)
        .collect();
    let figures = |name: Option<&str>| -> Vec<String> {
        let some = |bytes: u64| if bytes > 0 { human::bytes(bytes) } else { String::new() };
        homes.iter().map(|(_, kind)| some(sum(name, *kind))).collect()
    };
    let mut beside: Vec<Vec<String>> = rows.iter().map(|name| figures(Some(name))).collect();
    beside.push(figures(None));
    rows.push("sum".into());
    let present = |at: &usize| cells.iter().flatten().flatten().any(|cell| cell.class == KINDS[*at].0);
    let kinds = (0..KINDS.len()).filter(present).map(|at| (KINDS[at].0.into(), KINDS[at].1.into())).collect();
    let stage = if placement.stage.is_empty() { String::new() } else { format!(", {}", placement.stage) };
    KindMap {
        title: format!("Where activations live between forward and backward{stage}"),
        note: format!(
            "Of one micro batch of {} tokens. `start` is what comes before the first block, `end` what comes after the last; a block's output is the next one's input.",
            human::grouped(placement.tokens)
        ),
        x_label: "layer".into(),
        columns: columns.iter().map(|(name, _)| name.clone()).collect(),
        rows,
        cells,
        heads: homes.iter().map(|(name, _)| name.to_string()).collect(),
        figures: beside,
        kinds,
    }
}
