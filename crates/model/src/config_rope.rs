//! Rotary settings in `config.json`: Transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`).

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::Result;
use crate::rope::{RopeScaling, RopeSpec};

/// A family's keys for its rotary setting outside the map of parameters.
#[derive(Clone, Copy)]
pub(crate) struct RopeKeys {
    /// Key of the base, with its default.
    pub theta: (&'static str, f64),
    /// Key of the rotated share of a head, with its default; families without it rotate all. The key is empty where only
    /// the map has one.
    pub partial: Option<(&'static str, f64)>,
    /// Families with a setting per kind of layer: the kind whose setting is the main one.
    pub nested: Option<&'static str>,
}

/// Sizes from the rest of the configuration that a rotary setting depends on.
#[derive(Clone, Copy)]
pub(crate) struct RopeSizes {
    /// Columns of one head.
    pub head_dim: usize,
    /// `max_position_embeddings`.
    pub max_positions: usize,
    /// A length before extension that stands outside the map (Phi-3).
    pub original: Option<usize>,
}

/// Settings outside the map of parameters, used where the map has none.
#[derive(Clone, Copy)]
pub(crate) struct Outside {
    /// The base.
    pub theta: f64,
    /// The rotated share of a head; `None` if the family rotates all.
    pub partial: Option<f64>,
    /// The rest.
    pub sizes: RopeSizes,
}

/// The one rotary setting of a configuration in either spelling. If both are present they must agree.
pub(crate) fn read_rope(c: &Config<'_>, keys: &RopeKeys, sizes: RopeSizes) -> Result<RopeSpec> {
    let theta = c.or(keys.theta.0, keys.theta.1)?;
    let partial = keys.partial.map(|(key, default)| c.or(key, default)).transpose()?;
    let outside = Outside { theta, partial, sizes };
    let read = |key: &'static str| -> Result<Option<RopeSpec>> {
        let value = c.raw(key).filter(|value| !value.is_null());
        let value = value.map(|value| keys.nested.and_then(|kind| value.get(kind)).unwrap_or(value));
        value.map(|value| read_parameters(c, key, value, &outside)).transpose()
    };
    let (old, new) = (read("rope_scaling")?, read("rope_parameters")?);
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            Err(c.refuse("rope_scaling", "and `rope_parameters` disagree; remove one of them"))
        }
        (Some(rope), _) | (None, Some(rope)) => Ok(rope),
        (None, None) => finish(c, keys.theta.0, RopeScaling::Default, &outside),
    }
}

/// One map of rotary parameters.
pub(crate) fn read_parameters(
    c: &Config<'_>,
    key: &str,
    value: &Value,
    outside: &Outside,
) -> Result<RopeSpec> {
    let mut map: Map<String, Value> = c.parse(key, value)?;
    let mut take = |name: &str, default: f64| -> Result<f64> {
        let value = map.remove(name).filter(|value| !value.is_null());
        value.map_or(Ok(default), |value| c.parse(&format!("{key}.{name}"), &value))
    };
    let theta = take("rope_theta", outside.theta)?;
    let partial = take("partial_rotary_factor", outside.partial.unwrap_or(1.0))?;
    if outside.partial.is_none() && partial != 1.0 {
        let key = format!("{key}.partial_rotary_factor");
        return Err(c.refuse(key, format!("is {partial}; this family rotates all columns of a head")));
    }
    // Positions of images have three parts; those of text are equal.
    for name in ["mrope_section", "mrope_interleaved"] {
        map.remove(name);
    }
    let scaling = read_scaling(c, key, map, outside.sizes)?;
    finish(c, key, scaling, &Outside { theta, partial: Some(partial), ..*outside })
}

/// The remaining parameters, which must be those of the `rope_type`.
fn read_scaling(
    c: &Config<'_>,
    key: &str,
    mut map: Map<String, Value>,
    sizes: RopeSizes,
) -> Result<RopeScaling> {
    let old = map.remove("type");
    let kind = map.remove("rope_type").or(old.clone()).unwrap_or(json!("default"));
    if old.is_some_and(|old| old != kind) {
        return Err(c.refuse(format!("{key}.type"), format!("and `rope_type` {kind} disagree")));
    }
    // Early Phi-3 files call LongRoPE by the name of its predecessor.
    let kind = if kind == "su" { json!("longrope") } else { kind };
    let takes_original = ["llama3", "yarn", "longrope"].iter().any(|name| kind == *name);
    if takes_original {
        // Phi-3 repeats the length outside the map, where it takes precedence.
        let inside = map.remove("original_max_position_embeddings").filter(|value| !value.is_null());
        let original = sizes.original.map(Value::from).or(inside);
        let original = original.or((kind == "llama3").then(|| json!(sizes.max_positions)));
        if let Some(original) = original {
            map.insert("original_max_position_embeddings".into(), original);
        }
    }
    if kind == "default" {
        return match map.iter().find(|(_, value)| !value.is_null()) {
            Some((name, value)) => Err(c.refuse(
                format!("{key}.{name}"),
                format!("is {value}; rope_type \"default\" has no such setting"),
            )),
            None => Ok(RopeScaling::Default),
        };
    }
    // Transformers tests this for truth, not for presence.
    if map.get("truncate").is_some_and(Value::is_null) {
        map.insert("truncate".into(), json!(false));
    }
    map.insert("rope_type".into(), kind);
    c.parse(key, &Value::Object(map))
}

/// Assembles and checks a setting.
fn finish(c: &Config<'_>, key: &str, scaling: RopeScaling, outside: &Outside) -> Result<RopeSpec> {
    let Outside { theta, partial, sizes } = *outside;
    let partial = partial.unwrap_or(1.0);
    let rot_dim = (sizes.head_dim as f64 * partial) as usize;
    let refuse = |what: String| Err(c.refuse(key, what));
    if rot_dim == 0 || !rot_dim.is_multiple_of(2) || rot_dim > sizes.head_dim {
        return refuse(format!("rotates {partial} of {} columns; an even number is needed", sizes.head_dim));
    }
    if !(theta > 0.0 && theta.is_finite()) {
        return refuse(format!("has the base {theta}; a positive number is needed"));
    }
    let positive = |x: f64| x > 0.0 && x.is_finite();
    let sound = match &scaling {
        RopeScaling::Default => true,
        RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor } => positive(*factor),
        RopeScaling::Yarn { factor, original, .. } => positive(*factor) && *original != Some(0),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
            let bands = positive(*low_freq_factor) && high_freq_factor > low_freq_factor;
            positive(*factor) && bands && *original > 0
        }
        RopeScaling::Longrope { short_factor, long_factor, original, .. } => {
            let factors = [short_factor, long_factor];
            if factors.iter().any(|list| list.len() != rot_dim / 2) {
                let [short, long] = factors.map(|list| list.len());
                return refuse(format!(
                    "has {short} short and {long} long factors, {} are needed",
                    rot_dim / 2
                ));
            }
            factors.iter().all(|list| list.iter().all(|x| positive(*x)))
                && original.is_none_or(|original| original > 1)
        }
    };
    if !sound {
        return refuse(format!("is out of range: {}", written(&scaling)));
    }
    Ok(RopeSpec { theta, rot_dim, interleaved: false, scaling, max_positions: sizes.max_positions })
}

/// A scaling in Transformers' keys, without unset ones.
pub(crate) fn written(scaling: &RopeScaling) -> Value {
    let mut value = serde_json::to_value(scaling).unwrap_or(Value::Null);
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    value
}

/// A rotary setting of one kind of layer in Transformers 5's keys; its family rotates whole heads.
pub(crate) fn parameters(rope: &RopeSpec) -> Value {
    let mut value = written(&rope.scaling);
    value["rope_theta"] = json!(rope.theta);
    value
}

/// Adds a rotary setting in Transformers 4's keys, which 5 reads as well.
pub(crate) fn write_rope(map: &mut Map<String, Value>, keys: &RopeKeys, rope: &RopeSpec, head_dim: usize) {
    map.insert(keys.theta.0.into(), json!(rope.theta));
    if let Some((key, _)) = keys.partial.filter(|(key, _)| !key.is_empty()) {
        map.insert(key.into(), json!(rope.rot_dim as f64 / head_dim as f64));
    }
    let scaling = match rope.scaling {
        RopeScaling::Default => Value::Null,
        _ => written(&rope.scaling),
    };
    map.insert("rope_scaling".into(), scaling);
}
