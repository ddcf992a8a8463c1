//! The plans of a mesh: one of each kind of rank, run as that rank would run, with nobody at the other end.

use anyhow::Result;
use fathom_base::human;
use fathom_tensor::mesh::Axis;
use fathom_train::{Draft, Plan, stage};
use serde_json::{Value, json};

/// The plan of one rank.
pub struct OfRank {
    rank: usize,
    /// Along pp, dp, cp, tp.
    place: String,
    plan: Plan,
}

/// The ranks of a stage whose plans may differ; none for one rank alone.
pub fn of(draft: &Draft<'_>) -> Result<Vec<OfRank>> {
    let ranks = stage::ranks(&draft.recipe, draft.index)?;
    if ranks.grid.ranks() == 1 {
        return Ok(Vec::new());
    }
    let one = |rank: usize| {
        let at = |axis: Axis| format!("{} {}", axis.name(), ranks.grid.index(rank, axis));
        let axes = [Axis::Pp, Axis::Cp, Axis::Tp].into_iter().filter(|axis| ranks.grid.size(*axis) > 1);
        let place = axes.map(at).collect::<Vec<_>>().join(", ");
        Ok(OfRank { rank, place, plan: Draft { rank, ..draft.clone() }.plan()? })
    };
    ranks.distinct().into_iter().map(one).collect()
}

/// Every rank's peak, and what it sends in a step.
pub fn json(ranks: &[OfRank]) -> Value {
    let row = |rank: &OfRank| {
        let wires: serde_json::Map<String, Value> = rank
            .plan
            .wires
            .iter()
            .map(|((axes, collective), wire)| {
                (format!("{axes} {collective}"), json!({ "calls": wire.calls, "bytes": wire.bytes }))
            })
            .collect();
        json!({
            "rank": rank.rank,
            "place": rank.place,
            "peak_bytes": rank.plan.usage.peak_live,
            "peak_reserved_bytes": rank.plan.usage.peak_reserved,
            "wires": wires,
        })
    };
    ranks.iter().map(row).collect()
}

/// As a table; ranks that need and send the same are one line.
pub fn print(ranks: &[OfRank]) {
    let sent = |plan: &Plan| -> String {
        let mut by_axes: Vec<(&str, u64)> = Vec::new();
        for ((axes, _), wire) in plan.wires.iter().filter(|(_, wire)| wire.bytes > 0) {
            match by_axes.iter_mut().find(|(name, _)| name == axes) {
                Some((_, bytes)) => *bytes += wire.bytes,
                None => by_axes.push((axes, wire.bytes)),
            }
        }
        let part = |(axes, bytes): &(&str, u64)| format!("{axes} {}", human::bytes(*bytes));
        by_axes.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    let mut index = 0;
    while let Some(first) = ranks.get(index) {
        let figures = |rank: &OfRank| (rank.plan.usage.peak_reserved, sent(&rank.plan));
        let alike = ranks[index..].iter().take_while(|rank| figures(rank) == figures(first)).count();
        let name = match alike {
            1 => format!("rank {}", first.rank),
            _ => format!("ranks {} to {}", first.rank, ranks[index + alike - 1].rank),
        };
        let (reserved, sent) = figures(first);
        println!("  {name:<16} {:>12}  {}; sends in a step: {sent}", human::bytes(reserved), first.place);
        index += alike;
    }
}
