//! Falcon-H1: every layer has Mamba-2 and attention side by side, of one norm, and a SwiGLU; factors everywhere.

use std::sync::Arc;

use serde_json::{Value, json};

use super::common::{Dialect, KvHeads};
use super::mamba::MixerKeys;
use super::{bamba, common, mamba};
use crate::config::{Config, short};
use crate::error::Result;
use crate::mamba2::{Gate, Mamba2};
use crate::spec::{Factors, Family, LayerSpec, PartKind, Reach, Residual, Spec};

const DIALECT: Dialect =
    Dialect { eps: ("rms_norm_eps", 1e-5), kv_heads: KvHeads::Fixed(8), ..common::LLAMA };

const KEYS: MixerKeys = MixerKeys { expands: false, ..mamba::BAMBA };

pub(super) static FAMILY: Family = Family {
    model_type: "falcon_h1",
    architecture: "FalconH1ForCausalLM",
    read: |c, family| {
        let bias = common::read_biases(c, true)?;
        let mut spec = Spec { bias, ..common::read(c, family, &DIALECT)? };
        c.only("mamba_use_mlp", "true")?;
        c.only("attn_layer_indices", "null")?;
        c.raw("num_logits_to_keep");
        c.raw("mlp_expansion_factor");
        let mut mixer = mamba::read(c, &KEYS, spec.hidden, spec.norm.eps)?;
        sizes(c, &mut mixer, spec.hidden)?;
        mixer.biases[2] = c.or("projectors_bias", false)?;
        let normed: bool = c.or("mamba_rms_norm", false)?;
        let before: bool = c.or("mamba_norm_before_gate", true)?;
        mixer.gate = match (normed, before) {
            (false, _) => Gate::Alone,
            (true, true) => Gate::Last,
            (true, false) => Gate::First,
        };
        mixer.factors = factors(c, "ssm_multipliers")?;
        let [gate, down] = factors(c, "mlp_multipliers")?;
        let mut layer = LayerSpec::new([
            PartKind::Own(Arc::new(mixer)),
            PartKind::Attention { reach: Reach::Causal, rope: Some(0) },
            PartKind::Mlp,
        ]);
        layer.parts[1].residual = Residual::SharedNorm;
        let of = |input: &'static str, output: &'static str| -> Result<Factors> {
            Ok(Factors { input: factor(c, input)? as f32, gate: 1.0, output: factor(c, output)? as f32 })
        };
        layer.parts[0].factors = of("ssm_in_multiplier", "ssm_out_multiplier")?;
        layer.parts[1].factors = of("attention_in_multiplier", "attention_out_multiplier")?;
        layer.parts[2].factors = Factors { input: 1.0, gate, output: down };
        spec.layers.fill(layer);
        spec.embed_scale = factor(c, "embedding_multiplier")? as f32;
        spec.logit_scale = factor(c, "lm_head_multiplier")? as f32;
        // A factor of the keys is one of the scores.
        spec.attention_scale = scale(factor(c, "key_multiplier")?, spec.head_dim);
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, true, map);
        mamba::write(s, &KEYS, map);
        let Some((mixer, parts)) =
            s.layers.first().and_then(|layer| Some((mamba::mixer_of(layer)?, &layer.parts)))
        else {
            return;
        };
        let [ssm, attention, mlp] =
            [0, 1, 2].map(|part| parts.get(part).map_or(Factors::NONE, |p| p.factors));
        let keys: [(&str, Value); 14] = [
            ("mamba_d_ssm", json!(mixer.heads * mixer.head_dim)),
            ("projectors_bias", json!(mixer.biases[2])),
            ("mamba_rms_norm", json!(mixer.gate != Gate::Alone)),
            ("mamba_norm_before_gate", json!(mixer.gate != Gate::First)),
            ("ssm_multipliers", json!(mixer.factors.map(short))),
            ("mlp_multipliers", json!([mlp.gate, mlp.output].map(short))),
            ("ssm_in_multiplier", json!(short(ssm.input))),
            ("ssm_out_multiplier", json!(short(ssm.output))),
            ("attention_in_multiplier", json!(short(attention.input))),
            ("attention_out_multiplier", json!(short(attention.output))),
            ("embedding_multiplier", json!(short(s.embed_scale))),
            ("lm_head_multiplier", json!(short(s.logit_scale))),
            ("key_multiplier", json!(of_keys(s))),
            ("mamba_use_mlp", json!(true)),
        ];
        map.extend(keys.map(|(key, value)| (key.to_string(), value)));
    },
    names: bamba::NAMES,
};

/// Checks the inner columns, and takes them from `mamba_d_ssm` where heads have no size of their own.
fn sizes(c: &Config<'_>, mixer: &mut Mamba2, hidden: usize) -> Result<()> {
    let inner = match c.nullable("mamba_d_ssm", Some(1024))? {
        Some(inner) => inner,
        None => c.size_or(KEYS.expand, Some(2))?.saturating_mul(hidden),
    };
    if c.raw(KEYS.head_dim.0).is_none_or(|value| value.is_null() || *value == "auto") {
        mixer.head_dim = inner / mixer.heads;
    }
    match mixer.head_dim.saturating_mul(mixer.heads) {
        all if all == inner && all > 0 => Ok(()),
        all => Err(c.refuse("mamba_d_ssm", format!("is {inner}, and the heads have {all} columns"))),
    }
}

fn factor(c: &Config<'_>, key: &'static str) -> Result<f64> {
    let factor: f64 = c.or(key, 1.0)?;
    if (factor as f32) != 0.0 && (factor as f32).is_finite() {
        return Ok(factor);
    }
    Err(c.refuse(key, format!("is {factor}; a number that is not zero is needed")))
}

/// A list of factors; ones by default.
fn factors<const N: usize>(c: &Config<'_>, key: &'static str) -> Result<[f32; N]> {
    let list: Vec<f64> = c.or(key, vec![1.0; N])?;
    let list: Vec<f32> = list.into_iter().map(|factor| factor as f32).collect();
    match <[f32; N]>::try_from(list) {
        Ok(list) if list.iter().all(|factor| factor.is_finite() && *factor != 0.0) => Ok(list),
        _ => Err(c.refuse(key, format!("is not a list of {N} numbers that are not zero"))),
    }
}

fn scale(factor: f64, head_dim: usize) -> f32 {
    (factor * (head_dim as f64).powf(-0.5)) as f32
}

/// The factor of the keys that gives the scale of the scores: the shortest decimal, or the exact quotient.
fn of_keys(s: &Spec) -> f64 {
    let exact = f64::from(s.attention_scale) * (s.head_dim as f64).sqrt();
    let near = exact as f32;
    let candidates = [near, near.next_up(), near.next_down()];
    let same = |factor: &f64| scale(*factor, s.head_dim) == s.attention_scale;
    candidates.into_iter().map(short).find(same).unwrap_or(exact)
}
