//! ModernBERT (Warner et al., arXiv 2412.13663): norms before sub-layers, rotated positions, a gated MLP, and attention
//! to tokens nearby in two of three layers.

use fathom_tensor::Activation;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::error::Result;
use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::{LayerSpec, PartKind, Reach, Residual, Spec};

/// Bases of rotated positions, of layers that see all and of the others.
const THETAS: [f64; 2] = [160_000.0, 10_000.0];
/// Their keys, in Transformers 4 and in 5.
const THETA_KEYS: [&str; 2] = ["global_rope_theta", "local_rope_theta"];
const POOLING: &str = "classifier_pooling";
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

/// Reads what distinguishes it.
pub(super) fn read(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    c.only("decoder_bias", "true")?;
    c.only("rope_scaling", "null")?;
    for key in [
        "mlp_dropout",
        "deterministic_flash_attn",
        "sparse_prediction",
        "sparse_pred_ignore_index",
        "initializer_cutoff_factor",
        "reference_compile",
        "repad_logits_with_grad",
        "cls_token_id",
        "layer_norm_eps",
        "embedding_dropout",
    ] {
        c.raw(key);
    }
    let every = c.size_or("global_attn_every_n_layers", Some(3))?;
    let layers = spec.layers.len();
    let of_number = |layer: usize| KINDS[usize::from(!layer.is_multiple_of(every))].to_string();
    let kinds: Vec<String> = c.or("layer_types", (0..layers).map(of_number).collect())?;
    let local = c.size_or("local_attention", Some(128))? / 2;
    let kind = |name: &String| KINDS.iter().position(|known| known == name);
    let known: Option<Vec<usize>> = kinds.iter().map(kind).collect();
    let Some(known) = known.filter(|known| known.len() == layers) else {
        let what = format!("names {} layers of {layers}, of the kinds {}", kinds.len(), KINDS.join(", "));
        return Err(c.refuse("layer_types", what));
    };
    spec.ropes = ropes(c, spec)?;
    let layer = |(index, kind): (usize, usize)| {
        let reach = [Reach::Full, Reach::Around(local)][kind];
        let first = if index == 0 { Residual::None } else { Residual::Pre };
        let attention = PartKind::Attention { reach, rope: Some(kind) };
        let mut layer = LayerSpec::new([attention, PartKind::Mlp]);
        layer.parts[0].residual = first;
        layer
    };
    spec.layers = known.into_iter().enumerate().map(layer).collect();
    let attention = c.or("attention_bias", false)?;
    (spec.bias.qkv, spec.bias.attn_out, spec.bias.mlp) = (attention, attention, c.or("mlp_bias", false)?);
    spec.norm_bias = c.or("norm_bias", false)?;
    spec.mlp.gated = true;
    spec.learned_positions = None;
    let pool = c.activation("classifier_activation", "gelu")?;
    let (bias, mean) = (c.or("classifier_bias", false)?, pools_means(c)?);
    if mean && !spec.reaches().contains(&Reach::Full) {
        let what = format!("names no {}, and `{POOLING}` \"mean\" reads whole texts", KINDS[0]);
        return Err(c.refuse("layer_types", what));
    }
    if let Some(parts) = &mut spec.encoder {
        (parts.pool, parts.pool_bias, parts.mean) = (Some(pool), bias, mean);
    }
    Ok(())
}

/// Returns whether labels of a text read the mean of its tokens.
fn pools_means(c: &Config<'_>) -> Result<bool> {
    let names = ["cls", "mean"];
    let pooling: String = c.or(POOLING, names[0].to_string())?;
    let known = names.iter().position(|name| *name == pooling).map(|at| at == 1);
    known.ok_or_else(|| c.refuse(POOLING, format!("is \"{pooling}\"; supported: {}", names.join(", "))))
}

fn ropes(c: &Config<'_>, spec: &Spec) -> Result<Vec<RopeSpec>> {
    let nested: Map<String, Value> = c.or("rope_parameters", Map::new())?;
    if !spec.head_dim.is_multiple_of(2) {
        let what = format!("gives heads of {} columns; they rotate in pairs", spec.head_dim);
        return Err(c.refuse("num_attention_heads", what));
    }
    let rope = |at: usize| {
        let own = nested.get(KINDS[at]).and_then(Value::as_object);
        let kind = own.and_then(|own| own.get("rope_type")).and_then(Value::as_str).unwrap_or("default");
        if kind != "default" {
            return Err(c.refuse("rope_parameters", format!("has rope_type \"{kind}\"; supported: default")));
        }
        let theta = own.and_then(|own| own.get("rope_theta")).and_then(Value::as_f64);
        let theta = match theta {
            Some(theta) => theta,
            None => c.or(THETA_KEYS[at], THETAS[at])?,
        };
        if !(theta.is_finite() && theta > 0.0) {
            return Err(c.refuse("rope_parameters", format!("has rope_theta {theta}; it must be above 0")));
        }
        Ok(RopeSpec {
            theta,
            rot_dim: spec.head_dim,
            interleaved: false,
            scaling: RopeScaling::Default,
            max_positions: spec.max_positions,
        })
    };
    THETA_KEYS.iter().for_each(|key| {
        c.raw(key);
    });
    Ok(vec![rope(0)?, rope(1)?])
}

/// Writes the keys that [`read`] reads.
pub(super) fn write(s: &Spec, map: &mut Map<String, Value>) {
    let reach = |layer: &LayerSpec| match layer.reach() {
        Some(Reach::Around(_)) => KINDS[1],
        _ => KINDS[0],
    };
    let local = s.layers.iter().find_map(|layer| match layer.reach() {
        Some(Reach::Around(far)) => Some(2 * far),
        _ => None,
    });
    let [pool_bias, mean] = s.encoder.as_ref().map_or([false; 2], |parts| [parts.pool_bias, parts.mean]);
    let theta = |at: usize| s.ropes.get(at).map_or(THETAS[at], |rope| rope.theta);
    let rope = |at: usize| json!({"rope_type": "default", "rope_theta": theta(at)});
    let values = [
        ("layer_types", json!(s.layers.iter().map(reach).collect::<Vec<_>>())),
        ("local_attention", json!(local.unwrap_or(128))),
        ("rope_parameters", json!({KINDS[0]: rope(0), KINDS[1]: rope(1)})),
        // Transformers 4.
        (THETA_KEYS[0], json!(theta(0))),
        (THETA_KEYS[1], json!(theta(1))),
        ("attention_bias", json!(s.bias.qkv)),
        ("mlp_bias", json!(s.bias.mlp)),
        ("norm_bias", json!(s.norm_bias)),
        ("classifier_bias", json!(pool_bias)),
        (POOLING, json!(if mean { "mean" } else { "cls" })),
        ("classifier_activation", json!(activation(s))),
    ];
    map.extend(values.map(|(key, value)| (key.to_string(), value)));
}

fn activation(s: &Spec) -> &'static str {
    let pool = s.encoder.as_ref().and_then(|parts| parts.pool);
    crate::family::activation_name(pool.unwrap_or(Activation::GeluErf))
}
