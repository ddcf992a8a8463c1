//! `fathom plan --solve mesh`: the best meshes of so many ranks, and the recipe's own.

use anyhow::Result;
use fathom_app::plan::{Mesh, Meshes, Plans};
use fathom_base::human;
use fathom_tensor::mesh::Grid;
use fathom_train::{Draft, MeshPlan};
use serde_json::{Value, json};

use crate::args::Plan;
use crate::working::Working;

/// Solves one stage and prints the answer; without --gpus for as many ranks as the recipe's own mesh has.
///
/// # Errors
/// Without a number of ranks, and those of the solver.
pub fn run(args: &Plan, plans: &Plans<'_>, index: usize, working: &Working) -> Result<()> {
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

/// Recipe and stage, ranks; mesh, peak and tokens per second and rank of the recipe's own mesh and of the best; why.
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

fn row_in_json(row: &Mesh) -> Value {
    json!({
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

fn print_row(row: &Mesh, mark: &str, width: usize) {
    let bubble = row.plan.gantt.as_ref().map_or(String::new(), |gantt| human::percent(gantt.bubble()));
    let flops = row.plan.flops_per_s().map_or(String::new(), |flops| format!("{}FLOP/s", human::si(flops)));
    let (mesh, places) = (&row.mesh, &row.places);
    let [peak, step, waits] =
        [human::bytes(row.peak_bytes), human::seconds(row.step_s), human::seconds(row.wait_s())];
    outln!("{mark} {mesh:<width$} {peak:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}  {places}");
}

fn in_json(draft: &Draft<'_>, Meshes { ranks, own, best, solution }: &Meshes) -> Value {
    let table = &draft.recipe.stage[draft.index];
    json!({
        "stage": table.name,
        "seq_tokens": table.seq_tokens,
        "profile": draft.profile.name,
        "gpus": ranks,
        "meshes": solution.meshes,
        "too_large": solution.too_large,
        "rule": solution.rule,
        "recipe": own.as_ref().map(row_in_json),
        "best": best.iter().map(row_in_json).collect::<Vec<_>>(),
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
    let heads = ["mesh", "places", "peak", "step", "waits", "bubble", "each rank"];
    let [mesh, places, peak, step, waits, bubble, flops] = heads;
    let width = own.iter().chain(best).map(|row| row.mesh.len()).max().unwrap_or(0);
    outln!("  {mesh:<width$} {peak:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}  {places}");
    own.iter().for_each(|row| print_row(row, "=", width));
    for (index, row) in best.iter().enumerate() {
        print_row(row, if index == 0 { "*" } else { " " }, width);
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
