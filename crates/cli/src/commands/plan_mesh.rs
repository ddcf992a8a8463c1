//! `fathom plan --solve mesh`: the best meshes of so many ranks, beside the recipe's own.

use anyhow::{Context, Result};
use fathom_base::human;
use fathom_tensor::mesh::Grid;
use fathom_train::{Candidate, Draft, MeshPlan, MeshSolution};
use serde_json::{Value, json};

use crate::working::Working;

/// A mesh as a row of the table.
struct Row {
    mesh: String,
    places: String,
    /// A run with it has other numbers than the recipe's.
    changes_numbers: bool,
    peak_bytes: u64,
    step_s: f64,
    plan: MeshPlan,
    settings: Vec<String>,
}

/// How the answer is printed.
#[derive(Clone, Copy, Debug)]
pub enum Style<'a> {
    /// A table for people.
    Text,
    /// One JSON object.
    Json,
    /// A row of a Markdown table, of the recipe with this name.
    Markdown(&'a str),
}

/// Solves one stage and prints the answer; without `gpus` for as many ranks as the recipe's own mesh has.
///
/// # Errors
/// Without a number of ranks, and those of the solver.
pub fn run(draft: &Draft<'_>, gpus: Option<usize>, style: Style<'_>, working: &Working) -> Result<()> {
    let own = own(draft)?;
    let ranks = |row: &Row| row.plan.ranks.grid.ranks();
    let given = gpus.or_else(|| own.as_ref().map(ranks).filter(|ranks| *ranks > 1));
    let gpus = given.context("--solve mesh needs the number of ranks: --gpus N")?;
    let own = own.filter(|row| ranks(row) == gpus);
    let solution = draft.solve_mesh(gpus, &|text| working.at(text))?;
    let rows: Vec<Row> = solution.best.iter().filter_map(of).collect();
    match style {
        Style::Json => println!("{}", in_json(draft, gpus, own.as_ref(), &rows, &solution)),
        Style::Text => print(draft, gpus, own.as_ref(), &rows, &solution),
        Style::Markdown(name) => {
            println!("{}", in_markdown(draft, (name, gpus), own.as_ref(), &rows, &solution))
        }
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
fn in_markdown(
    draft: &Draft<'_>,
    (name, gpus): (&str, usize),
    own: Option<&Row>,
    rows: &[Row],
    solution: &MeshSolution,
) -> String {
    let rate =
        |row: &Row| row.plan.tokens_per_s().map_or("-".into(), |rate| human::number(rate / gpus as f64));
    let peak = |row: &Row| {
        if row.peak_bytes > draft.budgets.memory {
            format!("{}, too much", human::bytes(row.peak_bytes))
        } else {
            human::bytes(row.peak_bytes)
        }
    };
    let first = |row: &Row| [short(&row.plan), peak(row), rate(row)];
    let dashes = || ["-"; 3].map(str::to_string);
    let own = own.map_or_else(dashes, first);
    let [mesh, peak, rate] = rows.first().map_or_else(dashes, first);
    let places = rows.first().map_or_else(String::new, |row| row.places.clone());
    let cells = [format!("`{name}`"), gpus.to_string()].into_iter().chain(own);
    let cells: Vec<String> = cells.chain([mesh, places, peak, rate, solution.rule.clone()]).collect();
    format!("| {} |", cells.join(" | "))
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
        changes_numbers: false,
        peak_bytes,
        step_s,
        plan,
        settings: Vec::new(),
    }))
}

fn of(candidate: &Candidate) -> Option<Row> {
    let plan = candidate.plan.clone()?;
    let (places, changes_numbers) = (candidate.words(), candidate.state.changes_numbers);
    let (peak_bytes, step_s, settings) = (candidate.peak_bytes, candidate.step_s, candidate.settings.clone());
    Some(Row { mesh: mesh(&plan), places, changes_numbers, peak_bytes, step_s, plan, settings })
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "mesh": self.mesh,
            "places": self.places,
            "changes_numbers": self.changes_numbers,
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

    fn print(&self, mark: &str, width: usize) {
        let bubble = self.plan.gantt.as_ref().map_or(String::new(), |gantt| human::percent(gantt.bubble()));
        let flops =
            self.plan.flops_per_s().map_or(String::new(), |flops| format!("{}FLOP/s", human::si(flops)));
        let (mesh, places) = (&self.mesh, &self.places);
        let [peak, step, waits] =
            [human::bytes(self.peak_bytes), human::seconds(self.step_s), human::seconds(self.wait_s())];
        println!("{mark} {mesh:<width$} {peak:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}  {places}");
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
    let width = own.into_iter().chain(rows).map(|row| row.mesh.len()).max().unwrap_or(0);
    println!("  {mesh:<width$} {peak:>10} {step:>9} {waits:>9} {bubble:>8} {flops:>14}  {places}");
    own.iter().for_each(|row| row.print("=", width));
    for (index, row) in rows.iter().enumerate() {
        row.print(if index == 0 { "*" } else { " " }, width);
    }
    if own.is_some() {
        println!("  = the recipe's own mesh");
    }
    let Some(first) = rows.first() else { return };
    println!("  * {}", solution.rule);
    println!("    {}", first.settings.join(" "));
    if first.changes_numbers {
        println!(
            "    no mesh fits with the recipe's own types of optimizer state: these change the numbers of a run"
        );
    }
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
