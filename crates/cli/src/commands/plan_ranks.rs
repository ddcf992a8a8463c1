//! Plans of a mesh: one for each kind of rank, run alone without its peers, and the step of the whole pipeline.

use fathom_base::human;
use fathom_tensor::mesh::Axis;
use fathom_train::{MeshPlan, OfRank};
use serde_json::{Map, Value, json};

/// Coordinates along the axes with more than one rank.
fn place(mesh: &MeshPlan, rank: usize) -> String {
    let grid = mesh.ranks.grid;
    let at = |axis: Axis| format!("{} {}", axis.name(), grid.index(rank, axis));
    let axes = [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Tp].into_iter().filter(|axis| grid.size(*axis) > 1);
    axes.map(at).collect::<Vec<_>>().join(", ")
}

/// Peak, traffic per step and waiting time of every kind of rank; the step of all.
pub fn json(mesh: &MeshPlan) -> Value {
    let row = |kind: &OfRank| {
        let waits = &kind.plan.waits;
        let wires: Map<String, Value> = kind
            .plan
            .wires
            .iter()
            .map(|(key, wire)| {
                let wait_s = waits.get(key).copied().unwrap_or_default();
                let row = json!({ "calls": wire.calls, "bytes": wire.bytes, "wait_s": wait_s });
                (format!("{} {}", key.0, key.1), row)
            })
            .collect();
        json!({
            "rank": kind.rank,
            "stands_for": kind.stands_for,
            "place": place(mesh, kind.rank),
            "peak_bytes": kind.plan.usage.peak_live,
            "peak_reserved_bytes": kind.plan.usage.peak_reserved,
            "times": kind.plan.times,
            "wires": wires,
        })
    };
    json!({
        "ranks": mesh.ranks.grid.ranks(),
        "kinds": mesh.kinds.iter().map(row).collect::<Vec<_>>(),
        "step_s": mesh.step_s(),
        "bubble_share": mesh.gantt.as_ref().map(fathom_train::Gantt::bubble),
        "tokens_per_s": mesh.tokens_per_s(),
        "flops_per_s_per_rank": mesh.flops_per_s(),
        "has_fabric": mesh.has_fabric,
    })
}

/// The same as a table: a line for each kind of rank, followed by its traffic by axes and collective.
pub fn print(mesh: &MeshPlan) {
    outln!("  mesh {}: {} ranks", mesh.ranks.grid, mesh.ranks.grid.ranks());
    for kind in &mesh.kinds {
        let usage = &kind.plan.usage;
        let name = format!("rank {} of {} alike", kind.rank, kind.stands_for);
        outln!("  {name:<24} {:>12}  {}", human::bytes(usage.peak_reserved), place(mesh, kind.rank));
        for (key, wire) in kind.plan.wires.iter().filter(|(_, wire)| wire.bytes > 0) {
            let waits = kind.plan.waits.get(key).filter(|seconds| **seconds > 0.0);
            let waits =
                waits.map_or(String::new(), |seconds| format!(", waits {}", human::seconds(*seconds)));
            let name = format!("{} {}", key.0, key.1);
            outln!(
                "    {name:<22} {:>12}  sent in {} calls{waits}",
                human::bytes(wire.bytes),
                human::grouped(wire.calls)
            );
        }
    }
    time(mesh);
}

fn time(mesh: &MeshPlan) {
    let (Some(step_s), Some(rate), Some(gantt)) = (mesh.step_s(), mesh.tokens_per_s(), &mesh.gantt) else {
        return;
    };
    let waits = mesh.kinds.iter().map(|kind| kind.plan.waits.values().sum::<f64>()).fold(0.0, f64::max);
    let known = if mesh.has_fabric {
        format!("waiting for messages up to {}", human::seconds(waits))
    } else {
        "messages take no time: the profile does not know what connects ranks".to_string()
    };
    let bubble = match mesh.ranks.grid.pp {
        1 => String::new(),
        _ => format!("bubble {}, ", human::percent(gantt.bubble())),
    };
    outln!("  {:<12} {:>12}  {bubble}{known}", "mesh step", human::seconds(step_s));
    let each = mesh
        .flops_per_s()
        .map_or(String::new(), |flops| format!("{}FLOP/s of the model on each rank", human::si(flops)));
    outln!("  {:<12} {:>12}  {each}", "mesh tokens/s", human::number(rate));
}
