//! The solver's choices, as a table for people.

use fathom_base::human;
use fathom_grad::Place;
use fathom_train::{Instead, Row, Solution};

/// A table of the place of each unit of activations, and the cost of alternatives.
pub fn table(solution: &Solution) -> String {
    let timed = solution.plan.times.is_some();
    let places: Vec<Place> = {
        let mut seen: Vec<Place> = Vec::new();
        for row in &solution.rows {
            for place in row.instead.iter().map(|instead| instead.place).chain([row.place]) {
                if !seen.contains(&place) {
                    seen.push(place);
                }
            }
        }
        seen.sort_by_key(|place| place.name().len());
        seen
    };
    let mut text = format!("  {:<12} {:<10}", "activations", "place");
    places.iter().for_each(|place| text += &format!(" {:>22}", format!("if {}", place.name())));
    for row in &solution.rows {
        text += &format!("\n  {:<12} {:<10}", row.unit, row.place.name());
        for place in &places {
            text += &format!(" {:>22}", cell(row, *place, timed));
        }
    }
    let rows = solution.places.tile_rows.map_or("no tiles".into(), |rows| format!("tiles of {rows} tokens"));
    let groups = match solution.places.head_groups {
        1 => "all heads at once".to_string(),
        groups => format!("heads in {groups} groups"),
    };
    text += &format!("\n  {rows}, {groups}; {} steps were planned to find this", solution.planned);
    if let Some(rest) = &solution.rest {
        let differs = solution.rows.iter().zip(rest).filter(|(row, place)| row.place != **place);
        let differs: Vec<String> =
            differs.map(|(row, place)| format!("{} {}", row.unit, place.name())).collect();
        text += &format!(
            "\n  layers 0 to {} are so; in the others: {}",
            solution.layers.saturating_sub(1),
            differs.join(", ")
        );
    }
    text
}

fn cell(row: &Row, place: Place, timed: bool) -> String {
    if row.place == place {
        return "chosen".into();
    }
    match row.instead.iter().find(|instead| instead.place == place) {
        None => "-".into(),
        Some(Instead { excess, .. }) if *excess > 0 => format!("{} too much", human::bytes(*excess)),
        Some(Instead { more_s, .. }) if timed => {
            let sign = if *more_s < 0.0 { "-" } else { "+" };
            format!("{sign}{} a step", human::seconds(more_s.abs()))
        }
        Some(Instead { more_s, .. }) => format!("{more_s:+.2e} FLOPs"),
    }
}
