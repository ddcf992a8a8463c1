//! A family unknown to this program of two stacks, defined in this file alone: a source whose tokens attend to all of
//! their document, and layers that attend to its result.

use fathom_model::{CrossNames, Family, LayerSpec, LlamaSizes, Names, PartKind, Reach, Spec};
use serde_json::{Map, Value, json};

const SIZES: LlamaSizes =
    LlamaSizes { head_dim: 8, ffn: 48, max_positions: 1024, tied: false, ..LlamaSizes::TINY };

pub static FAMILY: Family = Family {
    model_type: "streams",
    architecture: "StreamsForConditionalGeneration",
    read: |c, _| Ok(spec(c.size("hidden_size")?, c.layers("num_hidden_layers")?)),
    write: |s: &Spec, map: &mut Map<String, Value>| {
        map.insert("hidden_size".into(), json!(s.hidden));
        map.insert("num_hidden_layers".into(), json!(s.layers.len()));
    },
    names: Names {
        cross: Some(CrossNames {
            embed: "source_tokens",
            source_norm: "source_norm",
            norms: ["cross_attention_layernorm", ""],
            projections: ["cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj", "cross_attn.o_proj"],
        }),
        ..Names::LLAMA
    },
};

/// Layers of each stack.
pub fn spec(hidden: usize, layers: usize) -> Spec {
    let plain = Spec::llama(LlamaSizes { hidden, layers, ..SIZES });
    let attention = |reach| PartKind::Attention { reach, rope: Some(0) };
    let below = LayerSpec::new([attention(Reach::Full), PartKind::Mlp]);
    let above = LayerSpec::new([attention(Reach::Causal), PartKind::Cross, PartKind::Mlp]);
    let layers = [vec![below; layers / 2], vec![above; layers / 2]].concat();
    Spec { family: &FAMILY, source: layers.len() / 2, layers, ..plain }
}
