//! Every activation of a recipe's stages: name, shape, bytes and place.

use anyhow::Result;
use fathom_base::human;
use fathom_grad::Place;
use fathom_train::activations::{Activation, Segment};
use fathom_train::recipe::Recipe;
use fathom_train::{Draft, Workload, stage};
use serde_json::json;

use crate::args;
use crate::commands::plan::{budgets, sharing, specs};
use crate::library::{layers, load, placed};
use crate::{device, profiles};

/// Runs the verb.
pub fn run(args: &args::InspectRecipe) -> Result<()> {
    let loaded = load(layers(&args.recipe, &args.settings))?;
    inspect(args, &loaded.value).map_err(|error| placed(&loaded, error))
}

fn inspect(args: &args::InspectRecipe, recipe: &Recipe) -> Result<()> {
    let profile = profiles::of(&recipe.machine)?;
    let ranks = stage::ranks(recipe, 0).map_or(1, |ranks| ranks.grid.ranks());
    let sharing = sharing(recipe, &profile, ranks);
    let budgets = budgets(recipe, &profile, device::default_budget(), sharing);
    for (index, (table, spec)) in recipe.stage.iter().zip(specs(recipe)?).enumerate() {
        let draft = Draft { profile: &profile, spec: &spec, recipe: recipe.clone(), index, budgets, rank: 0 };
        let work = Workload { how: draft.settle()?.how, ..draft.workload()? };
        let segments = work.activations();
        if args.json {
            print_json(&table.name, &segments)
        } else {
            print_stage(&table.name, &work, &segments)
        }
    }
    Ok(())
}

/// What a segment is called.
fn title(segment: &Segment) -> String {
    match segment.layers.as_slice() {
        [-1] => "outside the blocks".into(),
        [one] => format!("layer {one}"),
        [first, .., last] => format!("layers {first} to {last}, each"),
        [] => String::new(),
    }
}

fn print_stage(stage: &str, work: &Workload<'_>, segments: &[Segment]) {
    let grid = work.how.ranks.grid;
    let part = match grid.ranks() {
        1 => String::new(),
        ranks => format!("; what one of {ranks} ranks has of each layer ({grid})"),
    };
    println!("stage {stage}: {} tokens in a micro batch{part}", human::grouped(work.tokens as u64));
    for segment in segments {
        println!("\n  {}", title(segment));
        for activation in &segment.activations {
            let Activation { name, rows, cols, dtype, place, held, bytes } = activation;
            let shape = format!("[{rows}, {cols}]");
            let held = if *held { "held" } else { "" };
            println!(
                "    {name:<22} {shape:>20} {:<5} {:>10}  {:<10} {held}",
                dtype.safetensors_name().to_lowercase(),
                human::bytes(*bytes),
                place.name()
            );
        }
        let recomputed = segment.sum(|activation| activation.place == Place::Recompute);
        println!(
            "    {:<22} held {}, kept by the table {}, recomputed {}",
            "sum",
            human::bytes(segment.sum(|activation| activation.held)),
            human::bytes(segment.sum(|activation| activation.place == Place::Keep)),
            human::bytes(recomputed)
        );
    }
    println!("\n  all layers: held from forward to backward {}\n", human::bytes(held(segments)));
}

fn held(segments: &[Segment]) -> u64 {
    segments
        .iter()
        .map(|segment| segment.layers.len() as u64 * segment.sum(|activation| activation.held))
        .sum()
}

fn print_json(stage: &str, segments: &[Segment]) {
    for segment in segments {
        for Activation { name, rows, cols, dtype, place, held, bytes } in &segment.activations {
            let row = json!({
                "stage": stage,
                "layers": segment.layers,
                "name": name,
                "shape": [rows, cols],
                "dtype": dtype,
                "bytes": bytes,
                "place": place.name(),
                "held": held,
            });
            println!("{row}");
        }
    }
}
