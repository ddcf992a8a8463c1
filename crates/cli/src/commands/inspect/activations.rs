//! Every activation of a recipe's stages: name, shape, bytes and place.

use std::sync::Arc;

use anyhow::Result;
use fathom_base::human;
use fathom_grad::schedule::{At, Schedule};
use fathom_grad::{Ctx, Desc, Params, Place, Places, Segments, Val};
use fathom_model::Model;
use fathom_tensor::{Category, DType, Device, Meta, Tensor};
use fathom_train::recipe::Recipe;
use fathom_train::stage;
use serde_json::json;

use crate::args;
use crate::library::{layers, load};
use crate::{device, pipeline};

/// One value of one segment.
#[derive(Clone, Debug, PartialEq)]
struct Activation {
    name: &'static str,
    cols: usize,
    dtype: DType,
    place: Place,
    /// Held from the forward to the backward pass.
    held: bool,
    bytes: u64,
}

/// A segment's values; neighbours that are alike are counted, not repeated.
struct Segment {
    layers: Vec<i32>,
    activations: Vec<Activation>,
}

/// Runs the verb.
pub fn run(args: &args::Plan) -> Result<()> {
    let loaded = load(layers(&args.recipe, &args.settings))?;
    let recipe = &loaded.value;
    let profile = device::cpu_profile(&recipe.machine)?;
    let device = Device::new(Arc::new(Meta::new(profile)), u64::MAX);
    let mut spec = pipeline::spec(recipe)?;
    for (index, table) in recipe.stage.iter().enumerate() {
        spec = stage::extend(&spec, table, index)?;
        let places = stage::places(recipe, index)?;
        let tokens = table.seq_tokens * table.samples_per_micro_batch.max(1);
        let (model, params) = Model::declare(&device, &spec, device::precision(recipe.model.precision));
        let mut recorder = Recorder {
            device: &device,
            params: &params,
            places: &places,
            tokens,
            grads: false,
            segments: Vec::new(),
        };
        model.forward(&mut recorder);
        match args.json {
            true => print_json(recipe, index, tokens, &recorder.segments),
            false => print_stage(recipe, index, tokens, &recorder.segments),
        }
    }
    Ok(())
}

/// Records segments instead of running them.
struct Recorder<'a> {
    device: &'a Device,
    params: &'a Params,
    places: &'a Places,
    tokens: usize,
    /// What flows into the next segment depends on something trainable.
    grads: bool,
    segments: Vec<Segment>,
}

impl<'a> Segments<'a> for Recorder<'a> {
    fn segment(&mut self, layer: i32, x: Option<Tensor>, body: &dyn Fn(&mut Ctx<'a>, Val) -> Val) -> Tensor {
        let input = x.as_ref().map(|x| Desc { cols: x.cols(), dtype: x.dtype() });
        let graph = Ctx::record(self.params, input, body);
        let at = At { places: self.places, layer, input_grad: self.grads, disk: self.places.uses_disk() };
        let schedule = Schedule::new(&graph, self.params, at);
        self.grads = true;
        // Values are numbered in the order in which they appear: the input, then what each operation makes.
        let vals =
            || graph.input.into_iter().chain(graph.nodes.iter().flat_map(|node| node.outs.iter().copied()));
        let activations: Vec<Activation> = vals()
            .zip(graph.activations())
            .map(|(val, info)| Activation {
                name: info.name,
                cols: info.cols,
                dtype: info.dtype,
                place: self.places.place(layer, info.name),
                held: if Some(val) == graph.input {
                    schedule.keeps_input
                } else {
                    schedule.kept.contains(&val)
                },
                bytes: self.tokens as u64 * info.cols as u64 * info.dtype.bytes() as u64,
            })
            .collect();
        match self.segments.last_mut() {
            Some(last) if last.activations == activations && layer >= 0 => last.layers.push(layer),
            _ => self.segments.push(Segment { layers: vec![layer], activations }),
        }
        let out = vals().zip(graph.activations()).find(|(val, _)| *val == graph.output);
        let (cols, dtype) = out.map_or((0, DType::F32), |(_, info)| (info.cols, info.dtype));
        self.device.empty(self.tokens, cols, dtype, Category::Activations)
    }
}

impl Segment {
    fn title(&self) -> String {
        match self.layers.as_slice() {
            [-1] => "outside the blocks".into(),
            [one] => format!("layer {one}"),
            [first, .., last] => format!("layers {first} to {last}, each"),
            [] => String::new(),
        }
    }

    fn sum(&self, which: impl Fn(&Activation) -> bool) -> u64 {
        self.activations
            .iter()
            .filter(|activation| which(activation))
            .map(|activation| activation.bytes)
            .sum()
    }
}

fn place_name(place: Place) -> &'static str {
    match place {
        Place::Keep => "keep",
        Place::Recompute => "recompute",
        Place::Disk => "disk",
    }
}

fn print_stage(recipe: &Recipe, index: usize, tokens: usize, segments: &[Segment]) {
    println!("stage {}: {} tokens in a micro batch", recipe.stage[index].name, human::grouped(tokens as u64));
    for segment in segments {
        println!("\n  {}", segment.title());
        for activation in &segment.activations {
            let Activation { name, cols, dtype, place, held, bytes } = activation;
            let shape = format!("[{tokens}, {cols}]");
            let held = if *held { "held" } else { "" };
            println!(
                "    {name:<22} {shape:>20} {:<5} {:>10}  {:<10} {held}",
                dtype.safetensors_name().to_lowercase(),
                human::bytes(*bytes),
                place_name(*place)
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

fn print_json(recipe: &Recipe, index: usize, tokens: usize, segments: &[Segment]) {
    for segment in segments {
        for Activation { name, cols, dtype, place, held, bytes } in &segment.activations {
            let row = json!({
                "stage": recipe.stage[index].name,
                "layers": segment.layers,
                "name": name,
                "shape": [tokens, *cols],
                "dtype": dtype,
                "bytes": bytes,
                "place": place_name(*place),
                "held": held,
            });
            println!("{row}");
        }
    }
}
