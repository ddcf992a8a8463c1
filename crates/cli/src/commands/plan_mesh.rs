//! `fathom plan --solve mesh`: the best meshes of so many ranks, beside the recipe's own.

use anyhow::{Context, Result};
use fathom_base::human;
use fathom_train::{Candidate, Draft, MeshPlan, MeshSolution};
use serde_json::{Value, json};

/// A mesh as a row of the table.
struct Row {
    mesh: String,
    places: String,
    peak_bytes: u64,
    step_s: f64,
    plan: MeshPlan,
    settings: Vec<String>,
}

/// Solves one stage and prints the table, or one JSON object.
///
/// # Errors
/// Without a number of ranks, and those of the solver.
pub fn run(draft: &Draft<'_>, gpus: Option<usize>, as_json: bool) -> Result<()> {
    let gpus = gpus.context("--solve mesh needs the number of ranks: --gpus N")?;
    let own = own(draft)?.filter(|row| row.plan.ranks.grid.ranks() == gpus);
    let solution = draft.solve_mesh(gpus)?;
    let rows: Vec<Row> = solution.best.iter().filter_map(of).collect();
    match as_json {
        true => println!("{}", in_json(draft, gpus, own.as_ref(), &rows, &solution)),
        false => print(draft, gpus, own.as_ref(), &rows, &solution),
    }
    Ok(())
}

fn mesh(plan: &MeshPlan) -> String {
    let stages = plan.ranks.virtual_stages;
    let own = plan.ranks.grid.to_string();
    if stages > 1 { format!("{own} vp={stages}") } else { own }
}

/// The mesh of the recipe.
fn own(draft: &Draft<'_>) -> Result<Option<Row>> {
    let plan = draft.mesh()?;
    let (Some(step_s), Some(most)) = (plan.step_s(), plan.most()) else { return Ok(None) };
    let table = &draft.recipe.stage[draft.index];
    let places = table.recompute_granularity.unwrap_or(draft.recipe.activations.recompute_granularity);
    let peak_bytes = most.plan.usage.peak_reserved;
    Ok(Some(Row {
        mesh: mesh(&plan),
        places: places.to_string(),
        peak_bytes,
        step_s,
        plan,
        settings: Vec::new(),
    }))
}

fn of(candidate: &Candidate) -> Option<Row> {
    let plan = candidate.plan.clone()?;
    let places = match candidate.tile_rows {
        Some(rows) => format!("{}, tiles of {rows}", candidate.places),
        None => candidate.places.to_string(),
    };
    let (peak_bytes, step_s, settings) = (candidate.peak_bytes, candidate.step_s, candidate.settings());
    Some(Row { mesh: mesh(&plan), places, peak_bytes, step_s, plan, settings })
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "mesh": self.mesh,
            "places": self.places,
            "peak_reserved_bytes": self.peak_bytes,
            "step_s": self.step_s,
            "wait_s": self.wait_s(),
            "bubble_share": self.plan.gantt.as_ref().map(fathom_train::Gantt::bubble),
            "flops_per_s_per_rank": self.plan.flops_per_s(),
            "tokens_per_s": self.plan.tokens_per_s(),
            "settings": self.settings.join(" "),
        })
    }

    /// The longest that any rank waits for messages.
    fn wait_s(&self) -> f64 {
        let waits = self.plan.kinds.iter().map(|kind| kind.plan.waits.values().sum::<f64>());
        waits.fold(0.0, f64::max)
    }

    fn print(&self, mark: &str) {
        let bubble = self.plan.gantt.as_ref().map_or(String::new(), |gantt| human::percent(gantt.bubble()));
        let flops =
            self.plan.flops_per_s().map_or(String::new(), |flops| format!("{}FLOP/s", human::si(flops)));
        let (mesh, places) = (&self.mesh, &self.places);
        let [peak, step, waits] =
            [human::bytes(self.peak_bytes), human::seconds(self.step_s), human::seconds(self.wait_s())];
        println!("{mark} {mesh:<32} {places:<22} {peak:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}");
    }
}

fn in_json(
    draft: &Draft<'_>,
    gpus: usize,
    own: Option<&Row>,
    rows: &[Row],
    solution: &MeshSolution,
) -> Value {
    let table = &draft.recipe.stage[draft.index];
    json!({
        "stage": table.name,
        "seq_tokens": table.seq_tokens,
        "profile": draft.profile.name,
        "gpus": gpus,
        "meshes": solution.meshes,
        "too_large": solution.too_large,
        "rule": solution.rule,
        "recipe": own.map(Row::json),
        "best": rows.iter().map(Row::json).collect::<Vec<_>>(),
    })
}

fn print(draft: &Draft<'_>, gpus: usize, own: Option<&Row>, rows: &[Row], solution: &MeshSolution) {
    let table = &draft.recipe.stage[draft.index];
    println!(
        "stage {} ({} tokens a sample, {} samples a step) on {gpus} ranks of {}",
        table.name,
        human::grouped(table.seq_tokens as u64),
        table.micro_batches * table.samples_per_micro_batch.max(1),
        draft.profile.name
    );
    let heads = ["mesh", "places", "peak", "step", "waits", "bubble", "each rank"];
    let [mesh, places, peak, step, waits, bubble, flops] = heads;
    println!("  {mesh:<32} {places:<22} {peak:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}");
    own.iter().for_each(|row| row.print("="));
    for (index, row) in rows.iter().enumerate() {
        row.print(if index == 0 { "*" } else { " " });
    }
    if own.is_some() {
        println!("  = the recipe's own mesh");
    }
    let Some(first) = rows.first() else { return };
    println!("  * {}", solution.rule);
    println!("    {}", first.settings.join(" "));
    println!(
        "  {} meshes divide the model and the step; {} of them do not fit into {}, whatever is kept",
        solution.meshes,
        solution.too_large,
        human::bytes(draft.budgets.memory)
    );
    if draft.profile.fabric.is_none() {
        println!("  messages take no time: the profile does not know what connects ranks (dgx-h100 does)");
    }
}
