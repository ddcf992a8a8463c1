//! T5 (Raffel et al., 2020), its version 1.1 with Flan-T5, and UMT5: encoder-decoders with biases by distance, unscaled
//! scores and no other positions.

use fathom_tensor::{Activation, NormKind};
use serde_json::{Map, Value, json};

use super::common;
use crate::config::{Config, short};
use crate::error::Result;
use crate::made::LlamaSizes;
use crate::spec::{Family, LayerSpec, Mlp, PartKind, PositionBias, Reach, Spec};
use crate::weight::{CrossNames, Names, Qkv, Up};

/// Id before a target's first token: that of the padding.
pub const TARGET_START: i32 = 0;
/// Longest sequence: distances have no end.
const POSITIONS: usize = 1 << 20;
const FEED_FORWARD: &str = "feed_forward_proj";
const ACTIVATION: &str = "dense_act_fn";
const GATED: &str = "is_gated_act";
const BUCKETS: &str = "relative_attention_num_buckets";
const MAX_DISTANCE: &str = "relative_attention_max_distance";
const TIED: &str = "tie_word_embeddings";
const SCALED: &str = "scale_decoder_outputs";

const CROSS: CrossNames = CrossNames {
    embed: "",
    source_norm: "encoder.final_layer_norm",
    norms: ["layer.1.layer_norm", ""],
    projections: [
        "layer.1.EncDecAttention.q",
        "layer.1.EncDecAttention.k",
        "layer.1.EncDecAttention.v",
        "layer.1.EncDecAttention.o",
    ],
};

/// Names of the encoder's blocks.
const SOURCE: Names = Names {
    base: "",
    layers: "encoder.block",
    attn_norm: "layer.0.layer_norm",
    qkv: Qkv::Separate(["layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"]),
    attn_out: "layer.0.SelfAttention.o",
    cross: Some(CROSS),
    distances: "layer.0.SelfAttention.relative_attention_bias.weight",
    mlp_norm: "layer.1.layer_norm",
    up: Up::Either(
        ["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"],
        "layer.1.DenseReluDense.wi",
    ),
    down: "layer.1.DenseReluDense.wo",
    ..Names::LLAMA
};

const NAMES: Names = Names {
    layers: "decoder.block",
    embed: "shared",
    final_norm: "decoder.final_layer_norm",
    source: Some(&SOURCE),
    mlp_norm: "layer.2.layer_norm",
    up: Up::Either(
        ["layer.2.DenseReluDense.wi_0", "layer.2.DenseReluDense.wi_1"],
        "layer.2.DenseReluDense.wi",
    ),
    down: "layer.2.DenseReluDense.wo",
    // Copies of the shared table, and a table that first versions had and no layer reads.
    ignored: &["embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"],
    ..SOURCE
};

pub(super) static FAMILY: Family = Family {
    model_type: "t5",
    architecture: "T5ForConditionalGeneration",
    read: |c, family| read(c, family, false),
    write: |s, map| {
        write(s, map);
        map.insert(SCALED.into(), json!(s.logit_scale != 1.0));
    },
    names: NAMES,
};

pub(super) static UMT5: Family = Family {
    model_type: "umt5",
    architecture: "UMT5ForConditionalGeneration",
    read: |c, family| read(c, family, true),
    write,
    names: NAMES,
};

fn read(c: &Config<'_>, family: &'static Family, each_layer: bool) -> Result<Spec> {
    let hidden = c.size("d_model")?;
    let (heads, head_dim) = (c.size("num_heads")?, c.size("d_kv")?);
    let source = c.layers("num_layers")?;
    let decoders = c.nullable("num_decoder_layers", Some(source))?.unwrap_or(source);
    if !(1..=4096).contains(&decoders) {
        let what = format!(
            "is {decoders}; a T5 that reads and never writes has no decoder to generate or train with"
        );
        return Err(c.refuse("num_decoder_layers", what));
    }
    c.only("is_encoder_decoder", "true")?;
    c.only("decoder_start_token_id", "0")?;
    // Positions that no layer reads, and the scale of first values.
    for key in ["n_positions", "output_past", "initializer_factor", "dropout_rate"] {
        c.raw(key);
    }
    let tied = c.or(TIED, true)?;
    // Transformers 5 scales UMT5's hidden states whether or not the head is tied; 4 did if it was.
    let scaled = each_layer || c.or(SCALED, tied)?;
    let max_distance = c.count(MAX_DISTANCE, 128, 2..=1 << 16)?;
    let buckets = c.count(BUCKETS, 32, 4..=1 << 16)?;
    if !buckets.is_multiple_of(2) || max_distance <= buckets / 2 {
        let what =
            format!("is {buckets}; an even number below twice {MAX_DISTANCE} ({max_distance}) is supported");
        return Err(c.refuse(BUCKETS, what));
    }
    let sizes = LlamaSizes {
        hidden,
        layers: 0,
        heads,
        kv_heads: heads,
        head_dim,
        ffn: c.size("d_ff")?,
        vocab: c.size("vocab_size")?,
        rope_theta: 1e4,
        max_positions: POSITIONS,
        tied,
    };
    Ok(Spec {
        family,
        layers: layers(source, decoders),
        source,
        ropes: Vec::new(),
        position_bias: Some(PositionBias { buckets, max_distance, each_layer }),
        norm: NormKind { eps: c.eps("layer_norm_epsilon", 1e-6)?, ..common::RMS },
        mlp: mlp(c, if each_layer { "gated-gelu" } else { "relu" })?,
        attention_scale: 1.0,
        logit_scale: if scaled { (hidden as f64).powf(-0.5) as f32 } else { 1.0 },
        ..Spec::llama(sizes)
    })
}

/// Layers of both stacks.
fn layers(source: usize, decoders: usize) -> Vec<LayerSpec> {
    let attention = |reach| PartKind::Attention { reach, rope: None };
    let encoder = LayerSpec::new([attention(Reach::Full), PartKind::Mlp]);
    let decoder = LayerSpec::new([attention(Reach::Causal), PartKind::Cross, PartKind::Mlp]);
    [vec![encoder; source], vec![decoder; decoders]].concat()
}

impl Spec {
    /// Turns a Llama into a T5 1.1 with as many layers in each stack: biases by distance, a gated GELU and, unless it is tied, a head
    /// of its own.
    pub fn into_t5(self) -> Spec {
        let source = self.layers.len();
        Spec {
            family: &FAMILY,
            kv_heads: self.heads,
            layers: layers(source, source),
            source,
            ropes: Vec::new(),
            position_bias: Some(PositionBias { buckets: 32, max_distance: 128, each_layer: false }),
            norm: NormKind { eps: 1e-6, ..common::RMS },
            mlp: Mlp { activation: Activation::GeluTanh, gated: true },
            attention_scale: 1.0,
            logit_scale: if self.tied { (self.hidden as f64).powf(-0.5) as f32 } else { 1.0 },
            max_positions: POSITIONS,
            ..self
        }
    }
}

/// `feed_forward_proj`, `relu` or `gated-` and a name, of which Transformers' `gated-gelu` is the one by a hyperbolic
/// tangent; what `dense_act_fn` and `is_gated_act` say takes precedence, as it does there.
fn mlp(c: &Config<'_>, default: &str) -> Result<Mlp> {
    let both = c.or(FEED_FORWARD, default.to_string())?;
    let (gated, name) = match both.strip_prefix("gated-") {
        Some("gelu") => (true, "gelu_new"),
        Some(name) => (true, name),
        None => (false, both.as_str()),
    };
    let own: Option<String> = c.nullable(ACTIVATION, None)?;
    let activation = match &own {
        Some(name) => c.activation_named(ACTIVATION, name)?,
        None => c.activation_named(FEED_FORWARD, name)?,
    };
    Ok(Mlp { activation, gated: c.or(GATED, gated)? })
}

fn write(s: &Spec, map: &mut Map<String, Value>) {
    let PositionBias { buckets, max_distance, .. } =
        s.position_bias.unwrap_or(PositionBias { buckets: 0, max_distance: 0, each_layer: false });
    let activation = match s.mlp.activation {
        Activation::GeluTanh => "gelu_new",
        activation => common::activation_name(activation),
    };
    let both = match (s.mlp.gated, activation) {
        (true, "gelu_new") => "gated-gelu".into(),
        (true, activation) => format!("gated-{activation}"),
        (false, activation) => activation.to_string(),
    };
    let keys = [
        ("vocab_size", json!(s.vocab)),
        ("d_model", json!(s.hidden)),
        ("d_kv", json!(s.head_dim)),
        ("d_ff", json!(s.ffn)),
        ("num_heads", json!(s.heads)),
        ("num_layers", json!(s.source)),
        ("num_decoder_layers", json!(s.layers.len() - s.source)),
        (BUCKETS, json!(buckets)),
        (MAX_DISTANCE, json!(max_distance)),
        (FEED_FORWARD, json!(both)),
        (ACTIVATION, json!(activation)),
        (GATED, json!(s.mlp.gated)),
        ("layer_norm_epsilon", json!(short(s.norm.eps))),
        ("is_encoder_decoder", json!(true)),
        ("decoder_start_token_id", json!(TARGET_START)),
        (TIED, json!(s.tied)),
    ];
    map.extend(keys.map(|(key, value)| (key.to_string(), value)));
}
