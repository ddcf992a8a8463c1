//! Keys of Mamba-2's mixer in the configurations of the families that have it.

use serde_json::{Map, Value, json};

use super::common;
use crate::config::{Config, short};
use crate::error::Result;
use crate::mamba2::{Gate, Mamba2};
use crate::spec::{LayerSpec, Spec};

/// A family's names of the mixer's keys, with its defaults.
pub(super) struct MixerKeys {
    /// Prefix of its names in files.
    pub at: &'static str,
    pub heads: (&'static str, usize),
    /// `None` for Bamba's default `"auto"`: the inner columns divided by the heads.
    pub head_dim: (&'static str, Option<usize>),
    pub state: (&'static str, usize),
    pub groups: (&'static str, usize),
    pub width: &'static str,
    /// Activation after the convolution.
    pub activation: &'static str,
    /// Inner columns by hidden ones.
    pub expand: &'static str,
    pub chunk: &'static str,
    /// Whether the convolution and the projections have biases.
    pub biases: [&'static str; 2],
    /// Whether inner columns that are not `expand` times the hidden ones are refused, as Transformers does.
    pub expands: bool,
    /// Key of the norm's epsilon.
    pub eps: &'static str,
}

/// Keys of Bamba, Granite 4 and Falcon-H1.
pub(super) const BAMBA: MixerKeys = MixerKeys {
    at: "mamba",
    heads: ("mamba_n_heads", 128),
    head_dim: ("mamba_d_head", None),
    state: ("mamba_d_state", 256),
    groups: ("mamba_n_groups", 1),
    width: "mamba_d_conv",
    activation: "hidden_act",
    expand: "mamba_expand",
    chunk: "mamba_chunk_size",
    biases: ["mamba_conv_bias", "mamba_proj_bias"],
    expands: true,
    eps: "rms_norm_eps",
};

/// Key of the range of the step.
const LIMIT: &str = "time_step_limit";
/// Most columns of z, x, B, C and the step together.
const MOST_COLUMNS: usize = 1 << 20;

/// Reads the mixer. Its chunks are no part of the model: any length gives the same function, and their key is checked
/// and ignored.
pub(super) fn read(c: &Config<'_>, keys: &MixerKeys, hidden: usize, eps: f32) -> Result<Mamba2> {
    let heads = c.size_or(keys.heads.0, Some(keys.heads.1))?;
    let inner = c.size_or(keys.expand, Some(2))?.saturating_mul(hidden);
    let head_dim = match c.raw(keys.head_dim.0).filter(|value| !value.is_null() && **value != "auto") {
        Some(value) => c.parse(keys.head_dim.0, value)?,
        None => keys.head_dim.1.unwrap_or(inner / heads),
    };
    let (all, most) = (heads.saturating_mul(head_dim), MOST_COLUMNS / 2);
    if !(1..=most).contains(&all) {
        let what = format!("gives {all} columns of all heads; 1 to {most} are supported");
        return Err(c.refuse(c.present(&[keys.head_dim.0, keys.heads.0]), what));
    }
    if keys.expands && all != inner {
        let what = format!("gives {all} columns, and {} times the hidden size is {inner}", keys.expand);
        return Err(c.refuse(keys.heads.0, what));
    }
    let groups = c.size_or(keys.groups.0, Some(keys.groups.1))?;
    if !heads.is_multiple_of(groups) {
        let what = format!("is {groups}, which does not divide the {heads} heads of the state-space layers");
        return Err(c.refuse(keys.groups.0, what));
    }
    let state = c.count(keys.state.0, keys.state.1, 1..=1024)?;
    if groups.saturating_mul(state) > most {
        return Err(
            c.refuse(keys.groups.0, format!("gives {groups} groups of {state} columns, which are too many"))
        );
    }
    c.count(keys.chunk, 256, 1..=1 << 20)?;
    let proj: bool = c.or(keys.biases[1], false)?;
    Ok(Mamba2 {
        at: keys.at,
        heads,
        head_dim,
        state,
        groups,
        width: c.count(keys.width, 4, 2..=8)?,
        activation: c.activation(keys.activation, "silu")?,
        biases: [proj, c.or(keys.biases[0], true)?, proj],
        limit: read_limit(c)?,
        gate: Gate::First,
        eps,
        factors: [1.0; 5],
    })
}

/// The range of the step; Transformers writes infinity as `{"__float__": "Infinity"}`.
fn read_limit(c: &Config<'_>) -> Result<[f32; 2]> {
    let Some(value) = c.raw(LIMIT).filter(|value| !value.is_null()) else { return Ok([0.0, f32::INFINITY]) };
    let number = |value: &Value| match value.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Some(f32::INFINITY),
        _ => value.as_f64().map(|number| number as f32),
    };
    let ends: Option<Vec<f32>> = value.as_array().and_then(|ends| ends.iter().map(number).collect());
    match ends.as_deref() {
        Some([low, high]) if *low >= 0.0 && low < high => Ok([*low, *high]),
        _ => Err(c.refuse(LIMIT, format!("is {value}; a list of two numbers, ascending from 0, is needed"))),
    }
}

/// Writes the keys that [`read`] reads.
pub(super) fn write(s: &Spec, keys: &MixerKeys, map: &mut Map<String, Value>) {
    let Some(mixer) = mixer(s) else { return };
    let mut put = |key: &str, value: Value| map.insert(key.into(), value);
    put(keys.heads.0, json!(mixer.heads));
    put(keys.head_dim.0, json!(mixer.head_dim));
    put(keys.state.0, json!(mixer.state));
    put(keys.groups.0, json!(mixer.groups));
    put(keys.width, json!(mixer.width));
    put(keys.activation, json!(common::activation_name(mixer.activation)));
    put(keys.chunk, json!(256));
    put(keys.biases[0], json!(mixer.biases[1]));
    put(keys.biases[1], json!(mixer.biases[0]));
    let inner = mixer.heads * mixer.head_dim;
    if keys.expands && inner.is_multiple_of(s.hidden) {
        put(keys.expand, json!(inner / s.hidden));
    }
    if mixer.limit != [0.0, f32::INFINITY] {
        let end = |end: f32| {
            if end == f32::INFINITY { json!({ "__float__": "Infinity" }) } else { json!(short(end)) }
        };
        put(LIMIT, json!(mixer.limit.map(end)));
    }
}

/// The mixer of a model's layers.
pub(super) fn mixer(s: &Spec) -> Option<&Mamba2> {
    s.layers.iter().find_map(mixer_of)
}

/// The mixer of a layer.
pub(super) fn mixer_of(layer: &LayerSpec) -> Option<&Mamba2> {
    layer.own().find_map(|own| own.as_any().downcast_ref())
}

/// Kinds of layers by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerKind {
    Mixer,
    Attention,
    Mlp,
    Experts,
}

/// Reads a list of kinds of layers in Transformers' spellings, old and new; `known` are those that the family has.
pub(super) fn read_kinds(
    c: &Config<'_>,
    key: &'static str,
    known: &[LayerKind],
) -> Result<Option<Vec<LayerKind>>> {
    let Some(names): Option<Vec<String>> = c.nullable(key, None)? else { return Ok(None) };
    let kind = |name: &String| {
        let kind = match name.as_str() {
            "mamba" | "linear_attention" => Some(LayerKind::Mixer),
            "attention" | "full_attention" => Some(LayerKind::Attention),
            "mlp" => Some(LayerKind::Mlp),
            "moe" => Some(LayerKind::Experts),
            _ => None,
        };
        kind.filter(|kind| known.contains(kind)).ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|kind| kind.name()).collect();
            c.refuse(key, format!("holds \"{name}\"; supported: {}", known.join(", ")))
        })
    };
    names.iter().map(kind).collect::<Result<_>>().map(Some)
}

impl LayerKind {
    /// Its name in configurations of Transformers 4 and 5.
    pub fn name(self) -> &'static str {
        match self {
            LayerKind::Mixer => "mamba",
            LayerKind::Attention => "attention",
            LayerKind::Mlp => "mlp",
            LayerKind::Experts => "moe",
        }
    }
}
