//! All activations of a recipe's stages: name, shape, bytes and place.

use anyhow::Result;
use fathom_app::inspect::{Activations, activations};
use fathom_app::{Job, library};
use fathom_base::human;
use fathom_grad::Place;
use fathom_train::activations::{Activation, Segment};
use serde_json::json;

use crate::args;
use crate::listen::Plain;

/// Runs the verb.
pub fn run(args: &args::InspectRecipe) -> Result<()> {
    let loaded = library::load(library::layers(&args.recipe, &args.settings))?;
    for stage in activations(&Job::new(loaded, &Plain::default())?)? {
        if args.json { print_json(&stage.stage, &stage.segments) } else { print_stage(&stage) }
    }
    Ok(())
}

fn title(segment: &Segment) -> String {
    match segment.layers.as_slice() {
        [-1] => "outside the blocks".into(),
        [one] => format!("layer {one}"),
        [first, .., last] => format!("layers {first} to {last}, each"),
        [] => String::new(),
    }
}

fn print_stage(of: &Activations) {
    let segments = &of.segments;
    let part = match &of.mesh {
        None => String::new(),
        Some((ranks, grid)) => format!("; what one of {ranks} ranks has of each layer ({grid})"),
    };
    outln!("stage {}: {} tokens in a micro batch{part}", of.stage, human::grouped(of.tokens as u64));
    for segment in segments {
        outln!("\n  {}", title(segment));
        for activation in &segment.activations {
            let Activation { name, rows, cols, dtype, place, held, bytes } = activation;
            let shape = format!("[{rows}, {cols}]");
            let held = if *held { "held" } else { "" };
            outln!(
                "    {name:<22} {shape:>20} {:<5} {:>10}  {:<10} {held}",
                dtype.safetensors_name().to_lowercase(),
                human::bytes(*bytes),
                place.name()
            );
        }
        let recomputed = segment.sum(|activation| activation.place == Place::Recompute);
        outln!(
            "    {:<22} held {}, kept by the table {}, recomputed {}",
            "sum",
            human::bytes(segment.sum(|activation| activation.held)),
            human::bytes(segment.sum(|activation| activation.place == Place::Keep)),
            human::bytes(recomputed)
        );
    }
    outln!("\n  all layers: held from forward to backward {}\n", human::bytes(held(segments)));
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
            outln!("{row}");
        }
    }
}
