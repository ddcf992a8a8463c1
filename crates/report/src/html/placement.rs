//! Map of placements: layers by activations, coloured by the place of each value between forward and backward.

use fathom_base::human;
use fathom_base::metrics::events::{PlacedActivation, PlacedSegment, Placement};

use crate::plots::{KindMap, MapCell};

/// Class and description of each place, in legend order.
const KINDS: [(&str, &str); 5] = [
    ("keep", "kept in memory"),
    ("recompute", "computed again where needed"),
    ("host", "host memory"),
    ("disk", "disk"),
    ("none", "let go: no gradient needs it"),
];

/// Index of an activation's place in [`KINDS`].
fn kind(activation: &PlacedActivation) -> usize {
    match activation.place.as_str() {
        "recompute" => 1,
        _ if !activation.held => 4,
        "host" => 2,
        "disk" => 3,
        _ => 0,
    }
}

/// Columns of the map: name and segment.
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

/// Content of a column for one name, combined over the blocks of a segment, which repeat the name.
struct Cell {
    kind: usize,
    bytes: u64,
    cols: u64,
    dtype: String,
}

fn cell(segment: &PlacedSegment, name: &str) -> Option<Cell> {
    let all: Vec<&PlacedActivation> =
        segment.activations.iter().filter(|activation| activation.name == name).collect();
    let first = all.iter().find(|activation| activation.held).or(all.first())?;
    Some(Cell {
        kind: kind(first),
        bytes: all.iter().map(|activation| activation.bytes).sum(),
        cols: first.cols,
        dtype: first.dtype.clone(),
    })
}

/// Names in order of first appearance.
fn names(placement: &Placement) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for activation in placement.segments.iter().flat_map(|segment| &segment.activations) {
        if !names.contains(&activation.name) {
            names.push(activation.name.clone());
        }
    }
    names
}

/// Bytes by name and kind. Only a share of the offloaded activations is actually offloaded; the rest stays in memory.
fn sum(placement: &Placement, name: Option<&str>, of: usize) -> u64 {
    let share = placement.offloaded_share.unwrap_or(1.0);
    let here = |activation: &PlacedActivation| {
        let bytes = activation.bytes as f64;
        match kind(activation) {
            offloaded @ (2 | 3) if offloaded == of => bytes * share,
            2 | 3 if of == 0 => bytes * (1.0 - share),
            same if same == of => bytes,
            _ => 0.0,
        }
    };
    let of_segment = |segment: &PlacedSegment| -> f64 {
        let named = segment.activations.iter().filter(|a| name.is_none_or(|name| a.name == name));
        named.map(here).sum::<f64>() * segment.layers.len() as f64
    };
    placement.segments.iter().map(of_segment).sum::<f64>().round() as u64
}

/// Draws the map of one stage.
pub fn map(placement: &Placement) -> KindMap {
    let columns = columns(placement);
    let mut rows = names(placement);
    let tokens = human::grouped(placement.tokens);
    let share = placement.offloaded_share.unwrap_or(1.0);
    let draw = |(column, segment): &(String, &PlacedSegment), name: &str| -> Option<MapCell> {
        let Cell { kind, bytes, cols, dtype } = cell(segment, name)?;
        let (class, words) = KINDS[kind];
        let place = if column.parse::<u32>().is_ok() { format!("layer {column}") } else { column.clone() };
        let title = format!("{place}, {name} [{tokens}, {cols}] {dtype}, {}: {words}", human::bytes(bytes));
        let split = matches!(kind, 2 | 3) && share < 1.0;
        Some(MapCell {
            class: if split { KINDS[0].0 } else { class }.into(),
            text: human::bytes(bytes),
            title,
            part: split.then(|| (share, class.to_string())),
        })
    };
    let cells: Vec<Vec<Option<MapCell>>> =
        rows.iter().map(|name| columns.iter().map(|column| draw(column, name)).collect()).collect();
    // Columns of totals: memory, and each other place that holds something.
    let homes: Vec<(&str, usize)> = [("in memory", 0), ("on the host", 2), ("on disk", 3)]
        .into_iter()
        .filter(|(_, kind)| *kind == 0 || sum(placement, None, *kind) > 0)
        .collect();
    let figures = |name: Option<&str>| -> Vec<String> {
        let some = |bytes: u64| if bytes > 0 { human::bytes(bytes) } else { String::new() };
        homes.iter().map(|(_, kind)| some(sum(placement, name, *kind))).collect()
    };
    let mut figures_of_rows: Vec<Vec<String>> = rows.iter().map(|name| figures(Some(name))).collect();
    figures_of_rows.push(figures(None));
    rows.push("sum".into());
    let classes = || {
        cells
            .iter()
            .flatten()
            .flatten()
            .flat_map(|cell| std::iter::once(&cell.class).chain(cell.part.iter().map(|(_, class)| class)))
    };
    let present = |at: &usize| classes().any(|class| class == KINDS[*at].0);
    let kinds = (0..KINDS.len()).filter(present).map(|at| (KINDS[at].0.into(), KINDS[at].1.into())).collect();
    let stage = if placement.stage.is_empty() { String::new() } else { format!(", {}", placement.stage) };
    KindMap {
        title: format!("Where activations live between forward and backward{stage}"),
        note: note(placement, share),
        x_label: "layer".into(),
        columns: columns.iter().map(|(name, _)| name.clone()).collect(),
        rows,
        cells,
        heads: homes.iter().map(|(name, _)| name.to_string()).collect(),
        figures: figures_of_rows,
        kinds,
    }
}

fn note(placement: &Placement, share: f64) -> String {
    let mut note = format!(
        "Of one micro batch of {} tokens. `start` is what comes before the first block, `end` what comes after the last; \
         a block's output is the next one's input.",
        human::grouped(placement.tokens)
    );
    if share < 1.0 {
        let (offloaded, here) = (human::percent(share), human::percent(1.0 - share));
        note += &format!(
            " Of what is offloaded, the last {offloaded} of the tokens go and {here} stay in memory."
        );
    }
    if !placement.codec.is_empty() {
        note += &format!(" It is written as {}; bytes are those before that.", placement.codec);
    }
    note
}
