//! `fathom plan`: the training step on the machine without data.

use anyhow::Result;
use fathom_base::human;
use fathom_tensor::Category;
use fathom_train::recipe::Recipe;
use fathom_train::{Plan, plan, stage};
use serde_json::json;

use crate::args;
use crate::library::{layers, load};
use crate::{device, pipeline};

/// Runs the verb.
pub fn run(args: &args::Plan) -> Result<()> {
    let loaded = load(layers(&args.recipe, &args.settings))?;
    for (index, planned) in stages(&loaded.value)?.into_iter().enumerate() {
        match args.json {
            true => println!("{}", to_json(&loaded.value, index, &planned)),
            false => print_stage(&loaded.value, index, &planned),
        }
    }
    Ok(())
}

/// The plan of every stage.
pub fn stages(recipe: &Recipe) -> Result<Vec<Plan>> {
    let profile = device::cpu_profile(&recipe.machine)?;
    let mut spec = pipeline::spec(recipe)?;
    let mut plans = Vec::new();
    for (index, table) in recipe.stage.iter().enumerate() {
        spec = stage::extend(&spec, table, index)?;
        let how = stage::in_step(recipe, index)?;
        let tokens = table.seq_tokens * table.samples_per_micro_batch.max(1);
        let dtype = device::precision(recipe.model.precision);
        plans.push(plan(&profile, &spec, dtype, &how, table.micro_batches.max(1), tokens));
    }
    Ok(plans)
}

fn to_json(recipe: &Recipe, index: usize, plan: &Plan) -> serde_json::Value {
    let by_category: serde_json::Map<String, serde_json::Value> = Category::ALL
        .iter()
        .zip(plan.usage.peak_by_category)
        .map(|(category, bytes)| (category.name().to_string(), bytes.into()))
        .collect();
    json!({
        "stage": recipe.stage[index].name,
        "seq_tokens": recipe.stage[index].seq_tokens,
        "peak_bytes": plan.usage.peak_live,
        "peak_reserved_bytes": plan.usage.peak_reserved,
        "by_category": by_category,
        "peak_op": plan.usage.peak_op,
        "model_flops": plan.model_flops,
        "hardware_flops": plan.hardware_flops,
        "disk_bytes": plan.disk_bytes,
        "disk_peak_bytes": plan.disk_peak_bytes,
    })
}

fn print_stage(recipe: &Recipe, index: usize, plan: &Plan) {
    let table = &recipe.stage[index];
    let step_tokens = table.seq_tokens * table.samples_per_micro_batch.max(1) * table.micro_batches.max(1);
    println!(
        "stage {} ({} tokens a sample, {} a step)",
        table.name,
        human::grouped(table.seq_tokens as u64),
        human::grouped(step_tokens as u64)
    );
    for (category, bytes) in Category::ALL.iter().zip(plan.usage.peak_by_category) {
        if bytes > 0 {
            println!("  {:<12} {:>12}  {:>22}", category.name(), human::bytes(bytes), human::grouped(bytes));
        }
    }
    println!(
        "  {:<12} {:>12}  {:>22}  in {}",
        "peak",
        human::bytes(plan.usage.peak_live),
        human::grouped(plan.usage.peak_live),
        plan.usage.peak_op
    );
    println!(
        "  {:<12} {:>12}  {:>22}",
        "reserved",
        human::bytes(plan.usage.peak_reserved),
        human::grouped(plan.usage.peak_reserved)
    );
    if plan.disk_bytes > 0 {
        println!(
            "  {:<12} {:>12}  {:>22}  {} written and read in a step",
            "disk",
            human::bytes(plan.disk_peak_bytes),
            human::grouped(plan.disk_peak_bytes),
            human::bytes(plan.disk_bytes)
        );
    }
    let share = plan.hardware_flops as f64 / plan.model_flops as f64 - 1.0;
    println!(
        "  {:<12} {:>12}  recompute and score products add {}",
        "step FLOPs",
        human::si(plan.model_flops as f64),
        human::percent(share)
    );
}
