//! Granite 4: layers of Mamba-2 and a few of attention, with or without rotation; each with an MLP, or with experts and
//! the MLP for all tokens. Factors as in Granite.

use std::sync::Arc;

use serde_json::json;

use super::common::Dialect;
use super::granite;
use super::mamba::LayerKind;
use super::{common, mamba, moe};
use crate::config::Config;
use crate::error::Result;
use crate::spec::{Biases, Family, LayerSpec, PartKind, SharedExperts, Spec};
use crate::weight::{Experts, MoeNames, Names, Up};

const DIALECT: Dialect = common::LLAMA;
const EXPERTS: &str = "num_local_experts";
const SHARED: &str = "shared_intermediate_size";
const POSITIONS: &str = "position_embedding_type";

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoehybrid",
    architecture: "GraniteMoeHybridForCausalLM",
    read: |c, family| {
        let bias: Biases = common::read_biases(c, false)?;
        let mut spec = granite::read_factors(c, Spec { bias, ..common::read(c, family, &DIALECT)? })?;
        c.only("normalization_function", "\"rmsnorm\"")?;
        c.raw("init_method");
        let shared = c.size_or(SHARED, Some(1024))?;
        if c.or(EXPERTS, 8)? == 0usize {
            let _: Option<usize> = c.nullable("num_experts_per_tok", None)?;
            let _: bool = c.or("output_router_logits", false)?;
            let _: f64 = c.or("router_aux_loss_coef", 0.0)?;
            spec.ffn = shared;
        } else {
            let sizes = [(EXPERTS, 8), ("num_experts_per_tok", 2), ("intermediate_size", 11008)];
            let mut experts = moe::read(c, sizes[0], sizes[1], sizes[2])?;
            // The softmax of the chosen logits equals that of all, renormalised over the chosen.
            experts.routing.normalise = true;
            experts.shared = Some(SharedExperts { ffn: shared, gated: false });
            spec.moe = Some(experts);
        }
        if !rotates(c)? {
            spec.ropes.clear();
            spec.layers.iter_mut().for_each(|layer| layer.set_rope(None));
        }
        let mixer = Arc::new(mamba::read(c, &mamba::BAMBA, spec.hidden, spec.norm.eps)?);
        for (layer, kind) in spec.layers.iter_mut().zip(kinds(c)?) {
            if kind == LayerKind::Mixer {
                *layer = LayerSpec::new([PartKind::Own(mixer.clone()), PartKind::Mlp]);
            }
        }
        Ok(spec)
    },
    write: |s, map| {
        common::write(s, &DIALECT, map);
        common::write_biases(s, false, map);
        granite::write_factors(s, map);
        mamba::write(s, &mamba::BAMBA, map);
        let [experts, chosen] = s.moe.as_ref().map_or([0; 2], |moe| [moe.experts, moe.routing.top_k]);
        let shared = s.moe.as_ref().and_then(|moe| moe.shared).map_or(s.ffn, |shared| shared.ffn);
        let attends = |layer: &LayerSpec| layer.reach().is_some();
        let kind = |layer| if attends(layer) { LayerKind::Attention } else { LayerKind::Mixer };
        let kinds: Vec<&str> = s.layers.iter().map(|layer| kind(layer).name()).collect();
        let keys = [
            (EXPERTS, json!(experts)),
            ("num_experts_per_tok", json!(chosen)),
            (SHARED, json!(shared)),
            (POSITIONS, if s.ropes.is_empty() { json!(null) } else { json!("rope") }),
            ("layer_types", json!(kinds)),
        ];
        map.extend(keys.map(|(key, value)| (key.to_string(), value)));
    },
    names: Names {
        up: Up::One("shared_mlp.input_linear"),
        down: "shared_mlp.output_linear",
        moe: Some(MoeNames {
            router: "block_sparse_moe.router.layer",
            experts: Experts::Joined([
                "block_sparse_moe.input_linear.weight",
                "block_sparse_moe.output_linear.weight",
            ]),
            shared: "shared_mlp",
            ..MoeNames::QWEN
        }),
        ..Names::LLAMA
    },
};

/// Whether attention rotates q and k.
fn rotates(c: &Config<'_>) -> Result<bool> {
    match c.nullable::<String>(POSITIONS, None)?.as_deref() {
        Some("rope") => Ok(true),
        None | Some("nope") => Ok(false),
        Some(other) => Err(c.refuse(POSITIONS, format!("is \"{other}\"; supported: rope, nope, null"))),
    }
}

/// Kinds of the layers: the mixer's by default.
fn kinds(c: &Config<'_>) -> Result<Vec<LayerKind>> {
    let (layers, known) = (c.layers("num_hidden_layers")?, [LayerKind::Mixer, LayerKind::Attention]);
    let [new, old] = ["layer_types", "layers_block_type"].map(|key| mamba::read_kinds(c, key, &known));
    let kinds = new?.or(old?).unwrap_or_else(|| vec![LayerKind::Mixer; layers]);
    if kinds.len() != layers {
        let what = format!("has {} entries for {layers} layers", kinds.len());
        return Err(c.refuse(c.present(&["layer_types", "layers_block_type"]), what));
    }
    Ok(kinds)
}
