//! RETRO (Borgeaud et al., arXiv 2112.04426; Megatron-LM's `retro`, removed in 2026): a decoder whose text is cut into chunks,
//! and that attends to neighbours of the chunks before. Transformers has no such model: the folder is our own.
//!
//! Its layers are Llama's; some of them attend to neighbours after their own attention. Neighbours go through an encoder
//! of few layers, each alone, whose layers attend to the rows of the neighbour's chunk.

use serde_json::{Map, Value, json};

use super::common;
use crate::config::Config;
use crate::error::Result;
use crate::spec::{Family, LayerSpec, PartKind, Reach, Retrieval, Spec};
use crate::weight::{CrossNames, Names};

const LAYERS: &str = "num_hidden_layers";
const CROSS: &str = "retro_layer_numbers";
const CHUNK: &str = "retro_chunk_size";
const NEIGHBOURS: &str = "retro_num_neighbors";
const ENCODER: &str = "retro_encoder_layers";

/// Layers of the paper's encoder.
const ENCODER_LAYERS: usize = 2;

/// Names of the encoder's layers.
const SOURCE: Names = Names {
    layers: "encoder.layers",
    cross: Some(CrossNames {
        embed: "",
        source_norm: "encoder.norm",
        norms: ["cross_attention_layernorm", ""],
        projections: ["cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj", "cross_attn.o_proj"],
    }),
    ..Names::LLAMA
};

pub(super) static FAMILY: Family = Family {
    model_type: "retro",
    architecture: "RetroForCausalLM",
    read,
    write,
    names: Names { layers: "layers", source: Some(&SOURCE), ..SOURCE },
};

fn read(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    let plain = common::read(c, family, &common::LLAMA)?;
    let number = plain.layers.len();
    let retrieval = Retrieval {
        chunk: c.count(CHUNK, Retrieval::PAPER.chunk, 2..=1 << 16)?,
        neighbours: c.count(NEIGHBOURS, Retrieval::PAPER.neighbours, 1..=1 << 10)?,
    };
    let encoder = c.count(ENCODER, ENCODER_LAYERS, 1..=4096)?;
    let cross: Vec<usize> = c.nullable(CROSS, None)?.unwrap_or_else(|| numbers(number));
    check(number, &cross).map_err(|what| c.refuse(CROSS, what))?;
    Ok(plain.retrieving(retrieval, encoder, &cross))
}

/// Numbers, from 1, of the layers that attend to neighbours: from the 6th, or the 9th of more than 15, every third.
fn numbers(layers: usize) -> Vec<usize> {
    let first = if layers <= 15 { 6 } else { 9 };
    (first.min(layers)..=layers).step_by(3).collect()
}

/// Refuses numbers of layers that do not ascend, or are not all there.
fn check(layers: usize, cross: &[usize]) -> std::result::Result<(), String> {
    let there = cross.iter().all(|number| (1..=layers).contains(number));
    if there && !cross.is_empty() && cross.is_sorted_by(|a, b| a < b) {
        return Ok(());
    }
    Err(format!("is {cross:?}; ascending numbers of layers from 1 to {layers} are supported, at least one"))
}

impl Spec {
    /// Turns a Llama into a RETRO of the paper's sizes, with an encoder of two layers. The layers that attend to
    /// neighbours are given by their numbers, from 1; none for those of the paper.
    ///
    /// # Errors
    /// Numbers that do not ascend, or are of no layer.
    pub fn into_retro(self, cross: &[usize]) -> std::result::Result<Spec, String> {
        let layers = self.layers.len();
        let cross = if cross.is_empty() { numbers(layers) } else { cross.to_vec() };
        check(layers, &cross)?;
        Ok(Spec { family: &FAMILY, ..self }.retrieving(Retrieval::PAPER, ENCODER_LAYERS, &cross))
    }

    /// Adds an encoder of neighbours, and attention to them to layers given by their numbers.
    fn retrieving(self, retrieval: Retrieval, encoder: usize, cross: &[usize]) -> Spec {
        let attention = |reach| PartKind::Attention { reach, rope: Some(0) };
        let below = LayerSpec::new([attention(Reach::Full), PartKind::Cross, PartKind::Mlp]);
        let above = |number: usize| {
            let crosses = cross.contains(&number).then_some(PartKind::Cross);
            let parts = [Some(attention(Reach::Causal)), crosses, Some(PartKind::Mlp)];
            LayerSpec::new(parts.into_iter().flatten())
        };
        let layers = std::iter::repeat_n(below, encoder).chain((1..=self.layers.len()).map(above)).collect();
        Spec { layers, source: encoder, retrieval: Some(retrieval), ..self }
    }
}

fn write(s: &Spec, map: &mut Map<String, Value>) {
    common::write(s, &common::LLAMA, map);
    let main = &s.layers[s.source..];
    let cross: Vec<usize> = (1..=main.len()).filter(|number| main[number - 1].cross().is_some()).collect();
    let Retrieval { chunk, neighbours } = s.retrieval.unwrap_or(Retrieval::PAPER);
    let keys = [
        (LAYERS, json!(main.len())),
        (CROSS, json!(cross)),
        (CHUNK, json!(chunk)),
        (NEIGHBOURS, json!(neighbours)),
        (ENCODER, json!(s.source)),
    ];
    map.extend(keys.map(|(key, value)| (key.to_string(), value)));
}
