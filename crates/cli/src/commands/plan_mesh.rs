//! `fathom plan --solve mesh`: the best meshes for a number of ranks, and the recipe's own.

use anyhow::Result;
use fathom_app::plan::{Mesh, Meshes, Plans};
use fathom_base::human;
use fathom_tensor::mesh::Grid;
use fathom_train::{Draft, MeshPlan, Plan};
use serde_json::{Value, json};

use crate::args;
use crate::working::WorkReport;

/// Solves one stage and prints the answer; without --gpus for as many ranks as the recipe's own mesh has.
///
/// # Errors
/// A missing number of ranks, and those of the solver.
pub fn run(args: &args::Plan, plans: &Plans<'_>, index: usize, working: &WorkReport) -> Result<()> {
    let draft = &plans.draft(index);
    let found = plans.meshes(index, args.gpus, working)?;
    if args.json {
        outln!("{}", in_json(draft, &found))
    } else if args.markdown {
        outln!("{}", in_markdown(draft, &args.recipe, &found))
    } else {
        print(draft, &found)
    }
    Ok(())
}

/// The axes with more than one rank.
fn short(plan: &MeshPlan) -> String {
    let Grid { tp, cp, dp, pp, ep, etp, .. } = plan.ranks.grid;
    let axes = [
        ("tp", tp),
        ("cp", cp),
        ("pp", pp),
        ("vp", plan.ranks.virtual_stages),
        ("dp", dp),
        ("ep", ep),
        ("etp", etp),
    ];
    let some = axes.into_iter().filter(|(_, size)| *size > 1).map(|(axis, size)| format!("{axis} {size}"));
    some.collect::<Vec<_>>().join(", ")
}

/// Recipe and stage, ranks; mesh, peak and tokens per second and rank of the recipe's own mesh and of the best; the
/// reason.
fn in_markdown(draft: &Draft<'_>, name: &str, Meshes { ranks, own, best, solution }: &Meshes) -> String {
    let rate =
        |row: &Mesh| row.plan.tokens_per_s().map_or("-".into(), |rate| human::number(rate / *ranks as f64));
    let peak = |row: &Mesh| {
        if row.peak_bytes > draft.budgets.memory {
            format!("{}, too much", human::bytes(row.peak_bytes))
        } else {
            human::bytes(row.peak_bytes)
        }
    };
    let first = |row: &Mesh| [short(&row.plan), peak(row), rate(row)];
    let dashes = || ["-"; 3].map(str::to_string);
    let own = own.as_ref().map_or_else(dashes, first);
    let [mesh, peak, rate] = best.first().map_or_else(dashes, first);
    let places = best.first().map_or_else(String::new, |row| row.places.clone());
    let cells = [format!("`{name}`"), ranks.to_string()].into_iter().chain(own);
    let cells: Vec<String> = cells.chain([mesh, places, peak, rate, solution.rule.clone()]).collect();
    format!("| {} |", cells.join(" | "))
}

/// Ranks per node, as far as the profile gives them.
fn ranks_of_node(draft: &Draft<'_>, ranks: usize) -> u64 {
    draft.profile.fabric.map_or(ranks, |fabric| fabric.node_ranks.min(ranks)).max(1) as u64
}

/// Upper bound on host and disk bytes of a node's ranks: as if each were the largest.
fn of_node(row: &Mesh, node_ranks: u64) -> [u64; 2] {
    let most =
        |bytes: fn(&Plan) -> u64| row.plan.kinds.iter().map(|kind| bytes(&kind.plan)).max().unwrap_or(0);
    [most(|plan| plan.host_peak_bytes), most(|plan| plan.disk_peak_bytes)].map(|bytes| bytes * node_ranks)
}

fn row_in_json(row: &Mesh, node_ranks: u64) -> Value {
    let [host_bytes, disk_bytes] = of_node(row, node_ranks);
    json!({
        "node_ranks": node_ranks,
        "host_bytes_per_node": host_bytes,
        "disk_bytes_per_node": disk_bytes,
        "mesh": row.mesh,
        "places": row.places,
        "changes_numbers": row.changes_numbers,
        "peak_reserved_bytes": row.peak_bytes,
        "step_s": row.step_s,
        "wait_s": row.wait_s(),
        "bubble_share": row.plan.gantt.as_ref().map(fathom_train::Gantt::bubble),
        "flops_per_s_per_rank": row.plan.flops_per_s(),
        "tokens_per_s": row.plan.tokens_per_s(),
        "settings": row.settings.join(" "),
    })
}

fn print_row(row: &Mesh, mark: &str, width: usize, node_ranks: u64) {
    let bubble = row.plan.gantt.as_ref().map_or(String::new(), |gantt| human::percent(gantt.bubble()));
    let flops = row.plan.flops_per_s().map_or(String::new(), |flops| format!("{}FLOP/s", human::si(flops)));
    let (mesh, places) = (&row.mesh, &row.places);
    let [peak, step, waits] =
        [human::bytes(row.peak_bytes), human::seconds(row.step_s), human::seconds(row.wait_s())];
    let [host, disk] =
        of_node(row, node_ranks).map(|bytes| if bytes > 0 { human::bytes(bytes) } else { "-".into() });
    outln!(
        "{mark} {mesh:<width$} {peak:>10} {host:>10} {disk:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}  {places}"
    );
}

fn in_json(draft: &Draft<'_>, Meshes { ranks, own, best, solution }: &Meshes) -> Value {
    let table = &draft.recipe.stage[draft.index];
    let row = |row: &Mesh| row_in_json(row, ranks_of_node(draft, *ranks));
    json!({
        "stage": table.name,
        "seq_tokens": table.seq_tokens,
        "profile": draft.profile.name,
        "gpus": ranks,
        "meshes": solution.meshes,
        "too_large": solution.too_large,
        "rule": solution.rule,
        "recipe": own.as_ref().map(row),
        "best": best.iter().map(row).collect::<Vec<_>>(),
    })
}

fn print(draft: &Draft<'_>, Meshes { ranks, own, best, solution }: &Meshes) {
    let table = &draft.recipe.stage[draft.index];
    outln!(
        "stage {} ({} tokens a sample, {} samples a step) on {ranks} ranks of {}",
        table.name,
        human::grouped(table.seq_tokens as u64),
        table.micro_batches * table.samples_per_micro_batch.max(1),
        draft.profile.name
    );
    let heads = ["mesh", "places", "peak", "host/node", "disk/node", "step", "waits", "bubble", "each rank"];
    let [mesh, places, peak, host, disk, step, waits, bubble, flops] = heads;
    let node_ranks = ranks_of_node(draft, *ranks);
    let width = own.iter().chain(best).map(|row| row.mesh.len()).max().unwrap_or(0);
    outln!(
        "  {mesh:<width$} {peak:>10} {host:>10} {disk:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}  {places}"
    );
    own.iter().for_each(|row| print_row(row, "=", width, node_ranks));
    for (index, row) in best.iter().enumerate() {
        print_row(row, if index == 0 { "*" } else { " " }, width, node_ranks);
    }
    if own.is_some() {
        outln!("  = the recipe's own mesh");
    }
    let Some(first) = best.first() else { return };
    outln!("  * {}", solution.rule);
    outln!("    {}", first.settings.join(" "));
    if first.changes_numbers {
        outln!(
            "    no mesh fits with the recipe's own types of optimizer state: these change the numbers of a run"
        );
    }
    outln!(
        "  {} meshes divide the model and the step; {} of them do not fit into {}, whatever is kept",
        solution.meshes,
        solution.too_large,
        human::bytes(draft.budgets.memory)
    );
    if draft.profile.fabric.is_none() {
        outln!("  messages take no time: the profile does not know what connects ranks (dgx-h100 does)");
    }
}
