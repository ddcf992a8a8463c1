//! Recipe names of a block's parts, after Megatron's, and the activations of each.

use fathom_grad::Modules;

use crate::spec::{LayerSpec, Spec};
use crate::weight::Module;

/// Norms before and after sub-layers; norms of heads belong to attention.
const NORMS: [&str; 12] = [
    "attn.norm",
    "attn.norm.stats",
    "attn.post_norm",
    "attn.post_norm.stats",
    "cross.norm",
    "cross.norm.stats",
    "cross.post_norm",
    "cross.post_norm.stats",
    "mlp.norm",
    "mlp.norm.stats",
    "mlp.post_norm",
    "mlp.post_norm.stats",
];

/// Modules of blocks. A model may lack some of them.
pub const MODULES: &Modules = &[
    ("core_attn", &["attn.out", "attn.lse", "mixer.out*"]),
    ("layernorm", &NORMS),
    ("mlp", &["mlp.*"]),
    ("mlp_act", &["mlp.act"]),
    ("moe", &["moe.*"]),
    ("moe_act", &["moe.act"]),
    ("shared_experts", &["moe.shared.*"]),
    ("mixer", &["mixer.*"]),
    ("mla_up_proj", &["attn.q.up", "attn.q", "attn.kv.up", "attn.k", "attn.v"]),
];

impl Spec {
    /// The modules that this model has.
    pub fn modules(&self) -> Vec<&'static str> {
        let own = |module| self.layers.iter().flat_map(LayerSpec::own).any(|own| own.module() == module);
        let has = |name: &&str| match *name {
            "core_attn" => self.attends() || own(Module::Attention),
            "mixer" => own(Module::Attention),
            "mlp" | "mlp_act" => self.has_dense_ffn() || own(Module::Mlp),
            "moe" | "moe_act" => self.moe.is_some(),
            "shared_experts" => self.moe.as_ref().is_some_and(|moe| moe.shared.is_some()),
            "mla_up_proj" => self.latent.is_some(),
            _ => true,
        };
        MODULES.iter().map(|(name, _)| *name).filter(has).collect()
    }
}
