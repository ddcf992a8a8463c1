//! Plans of a mesh: one for each kind of rank, run alone without its peers, and the step of the whole pipeline.

use fathom_app::plan::rank_place;
use fathom_base::human;
use fathom_train::MeshPlan;

/// Prints a table: a line for each kind of rank, followed by its traffic by axes and collective.
pub fn print(mesh: &MeshPlan) {
    outln!("  mesh {}: {} ranks", mesh.ranks.grid, mesh.ranks.grid.ranks());
    for kind in &mesh.kinds {
        let usage = &kind.plan.usage;
        let name = format!("rank {} of {} alike", kind.rank, kind.stands_for);
        outln!("  {name:<24} {:>12}  {}", human::bytes(usage.peak_reserved), rank_place(mesh, kind.rank));
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
