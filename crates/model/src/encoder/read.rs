//! Reads the architecture from an encoder's configuration.

use fathom_grad::Distances;
use fathom_tensor::{Activation, NormKind};
use serde_json::Value;

use super::modernbert;
use crate::config::{Config, MAX_SIZE};
use crate::error::Result;
use crate::spec::{
    Biases, EncoderHead, EncoderParts, Family, LayerSpec, Mlp, PartKind, PositionBias, QkNorm, Reach,
    Relative, Residual, Spec, head_columns_refused,
};

/// The architecture of a configuration.
pub(super) fn blocks(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    let mut spec = common(c, family)?;
    match family.model_type {
        "bert" => {}
        "distilbert" => ["dropout", "qa_dropout", "seq_classif_dropout"].iter().for_each(|key| {
            c.raw(key);
        }),
        "electra" => electra(c, &mut spec)?,
        "deberta-v2" => deberta(c, &mut spec)?,
        "modernbert" => modernbert::read(c, &mut spec)?,
        "mpnet" => mpnet(c, &mut spec)?,
        _ => roberta(c, &mut spec)?,
    }
    spec.check().map_err(|(keys, what)| c.refuse(c.present(keys), what))?;
    Ok(spec)
}

/// A family's names of the keys that all encoders have.
pub(super) struct Keys {
    pub hidden: &'static str,
    pub layers: &'static str,
    pub heads: &'static str,
    pub ffn: &'static str,
    pub activation: &'static str,
    /// The epsilon of norms, with its default; the key is empty where it cannot be set.
    pub eps: (&'static str, f64),
    /// Default of `type_vocab_size`; `None` without that key.
    pub types: Option<usize>,
}

impl Keys {
    /// Those of a family.
    pub fn of(family: &Family) -> Keys {
        let bert = Keys {
            hidden: "hidden_size",
            layers: "num_hidden_layers",
            heads: "num_attention_heads",
            ffn: "intermediate_size",
            activation: "hidden_act",
            eps: ("layer_norm_eps", 1e-12),
            types: Some(2),
        };
        match family.model_type {
            "deberta-v2" => Keys { eps: (bert.eps.0, 1e-7), types: Some(0), ..bert },
            "distilbert" => Keys {
                hidden: "dim",
                layers: "n_layers",
                heads: "n_heads",
                ffn: "hidden_dim",
                activation: "activation",
                eps: ("", 1e-12),
                types: None,
            },
            "mpnet" => Keys { types: None, ..bert },
            "modernbert" => {
                Keys { activation: "hidden_activation", eps: ("norm_eps", 1e-5), types: None, ..bert }
            }
            _ => bert,
        }
    }
}

/// Keys common to all encoders.
fn common(c: &Config<'_>, family: &'static Family) -> Result<Spec> {
    c.only("is_decoder", "false")?;
    c.only("position_embedding_type", "\"absolute\"")?;
    c.only("sinusoidal_pos_embds", "false")?;
    let keys = Keys::of(family);
    let (hidden, heads) = (c.size(keys.hidden)?, c.size(keys.heads)?);
    if hidden % heads != 0 {
        let what = format!("is {heads}, which does not divide the hidden size {hidden}");
        return Err(c.refuse(keys.heads, what));
    }
    let head_dim = hidden / heads;
    if let Some(what) = head_columns_refused(head_dim) {
        return Err(c.refuse(keys.heads, what));
    }
    let eps = match keys.eps {
        ("", fixed) => fixed as f32,
        (key, default) => c.eps(key, default)?,
    };
    let layer = LayerSpec::new([PartKind::Attention { reach: Reach::Full, rope: None }, PartKind::Mlp]);
    let layers = vec![layer; c.layers(keys.layers)?];
    let (ffn, vocab) = (c.size(keys.ffn)?, c.size("vocab_size")?);
    let rows = c.size("max_position_embeddings")?;
    let types = keys.types.map_or(Ok(0), |default| c.count("type_vocab_size", default, 0..=MAX_SIZE))?;
    let activation = c.activation(keys.activation, "gelu")?;
    let parts = EncoderParts {
        first_position: 0,
        embedding: None,
        types,
        relative: None,
        pool: Some(Activation::Tanh),
        pool_bias: true,
        pool_norm: false,
        mean: false,
        head: EncoderHead::None,
    };
    Ok(Spec {
        family,
        hidden,
        vocab,
        heads,
        kv_heads: heads,
        head_dim,
        ffn,
        norm: NormKind { centred: true, plus_one: false, round_first: false, eps },
        norm_bias: true,
        qk_norm: QkNorm::None,
        latent: None,
        attention_gate: false,
        sinks: false,
        bias: Biases { qkv: true, attn_out: true, mlp: true },
        mlp: Mlp { activation, gated: false },
        moe: None,
        attention_scale: (head_dim as f64).powf(-0.5) as f32,
        attention_softcap: 0.0,
        layers,
        source: 0,
        retrieval: None,
        position_bias: None,
        slopes: false,
        ropes: Vec::new(),
        rereads: false,
        learned_positions: Some(rows),
        embed_norm: true,
        embed_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        logit_softcap: 0.0,
        tied: false,
        head_bias: true,
        scores: 0,
        padding: None,
        projections: None,
        max_positions: rows,
        encoder: Some(parts),
        adapter: None,
    }
    .with_residual(Residual::Sum))
}

fn roberta(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    let first = 1 + c.count("pad_token_id", 1, 0..=MAX_SIZE)?;
    let rows = spec.max_positions;
    if first >= rows {
        let what = format!("is {}, beyond the {rows} rows of the position table", first - 1);
        return Err(c.refuse("pad_token_id", what));
    }
    spec.encoder.iter_mut().for_each(|parts| parts.first_position = first);
    Ok(())
}

/// ELECTRA: embeddings of any width, and a projection to that of the blocks if it is another one.
fn electra(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    let width = c.size_or("embedding_size", Some(128))?;
    let hidden = spec.hidden;
    spec.encoder.iter_mut().for_each(|parts| parts.embedding = Some(width).filter(|width| *width != hidden));
    Ok(())
}

/// MPNet: RoBERTa's positions, whatever the padding, and one table of biases by distance for all layers.
fn mpnet(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    c.raw("pad_token_id");
    c.only(BUCKETS, &MPNET_BIAS.buckets.to_string())?;
    spec.position_bias = Some(MPNET_BIAS);
    spec.encoder.iter_mut().for_each(|parts| parts.first_position = 2);
    Ok(())
}

/// Transformers' class has no other distances.
const MPNET_BIAS: PositionBias = PositionBias { buckets: 32, max_distance: 128, each_layer: false };
pub(super) const BUCKETS: &str = "relative_attention_num_buckets";

fn deberta(c: &Config<'_>, spec: &mut Spec) -> Result<()> {
    c.only("conv_kernel_size", "0")?;
    c.only("embedding_size", &spec.hidden.to_string())?;
    c.only("pooler_hidden_size", &spec.hidden.to_string())?;
    c.only("attention_head_size", &spec.head_dim.to_string())?;
    let pool = Some(c.activation("pooler_hidden_act", "gelu")?);
    let rows = spec.max_positions;
    if !c.or("position_biased_input", true)? {
        spec.learned_positions = None;
    }
    let terms = terms(c)?;
    let [buckets, distances] = ["position_buckets", "max_relative_positions"].map(|key| c.or(key, -1i64));
    let (buckets, distances) =
        (usize::try_from(buckets?).unwrap_or(0), usize::try_from(distances?).unwrap_or(0));
    let max_distance = if distances == 0 { rows } else { distances };
    let span = if buckets == 0 { max_distance } else { buckets };
    let normed: String = c.or("norm_rel_ebd", "none".to_owned())?;
    let shared = c.or("share_att_key", false)?;
    let relative: bool = c.or("relative_attention", false)?;
    if buckets > 0 && (buckets / 2 < 1 || max_distance <= buckets / 2 + 1) {
        let what =
            format!("is {buckets}: half of them must be less than the {max_distance} distances, and not 0");
        return Err(c.refuse("position_buckets", what));
    }
    let normed = normed.to_lowercase().split('|').any(|part| part.trim() == "layer_norm");
    let has = |term: &str| terms.iter().any(|known| known == term);
    let (c2p, p2c) = (has("c2p"), has("p2c"));
    if !relative && (c2p || p2c) {
        let what = "names terms, but `relative_attention` is false; remove them, or set that key to true";
        return Err(c.refuse("pos_att_type", what));
    }
    if relative {
        let terms = 1 + usize::from(c2p) + usize::from(p2c);
        spec.attention_scale = 1.0 / ((spec.head_dim * terms) as f32).sqrt();
    }
    let distances = Distances { span, buckets: buckets > 0, max_distance };
    let relative = relative.then_some(Relative { distances, c2p, p2c, shared, normed });
    spec.encoder.iter_mut().for_each(|parts| (parts.relative, parts.pool) = (relative, pool));
    Ok(())
}

/// `pos_att_type`: a list, or names separated by `|`.
fn terms(c: &Config<'_>) -> Result<Vec<String>> {
    let terms: Vec<String> = match c.raw("pos_att_type") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.split('|').map(|term| term.trim().to_lowercase()).collect(),
        Some(list) => c.parse("pos_att_type", list)?,
    };
    match terms.iter().find(|term| !["c2p", "p2c", ""].contains(&term.as_str())) {
        Some(other) => Err(c.refuse("pos_att_type", format!("holds \"{other}\"; supported: c2p, p2c"))),
        None => Ok(terms),
    }
}

/// Activation of the projection before a text's labels.
fn text_pool(spec: &Spec) -> Option<Activation> {
    let parts = spec.encoder.as_ref();
    let modern = spec.family.model_type == "modernbert";
    let own = parts.filter(|parts| modern || parts.head != EncoderHead::Masked).and_then(|parts| parts.pool);
    match spec.family.model_type {
        "distilbert" => Some(Activation::Relu),
        // Their configurations name it.
        "deberta-v2" | "modernbert" => own.or(Some(Activation::GeluErf)),
        "electra" => Some(Activation::GeluErf),
        _ => Some(Activation::Tanh),
    }
}

impl Spec {
    /// An encoder with this head, and the projection before it that its family has.
    pub fn with_encoder_head(self, head: EncoderHead) -> Spec {
        with_head(self, head)
    }
}

/// A model with a head, and the projection before it that its family has.
pub(crate) fn with_head(mut spec: Spec, head: EncoderHead) -> Spec {
    let (kind, act, text) = (spec.family.model_type, spec.mlp.activation, text_pool(&spec));
    let Some(parts) = &mut spec.encoder else { return spec };
    let modern = kind == "modernbert";
    parts.pool = match head {
        EncoderHead::None => None,
        EncoderHead::Masked if modern => text,
        EncoderHead::Masked if matches!(kind, "bert" | "deberta-v2" | "distilbert") => Some(act),
        EncoderHead::Masked => Some(Activation::GeluErf),
        EncoderHead::Text(_) => text,
        EncoderHead::Tokens(_) => text.filter(|_| modern),
    };
    parts.pool_norm = parts.pool.is_some() && (modern || head == EncoderHead::Masked);
    parts.pool_bias = !modern || parts.pool_bias;
    let kept = parts.head == head;
    parts.head = head;
    spec.tied = head == EncoderHead::Masked && (spec.tied || !kept);
    spec
}
