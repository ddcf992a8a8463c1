//! llama.cpp's names for the weights of Hugging Face's families.

use crate::weight::{Experts, Names, Qkv, Up};

/// A weight's names in GGUF and in Hugging Face files, without `.weight` and `.bias`.
pub(super) type Pair = (&'static str, String);

/// Weights outside the blocks.
pub(super) fn outer(names: &Names) -> [Pair; 3] {
    [
        ("token_embd", format!("{}{}", names.base, names.embed)),
        ("output_norm", format!("{}{}", names.base, names.final_norm)),
        ("output", names.head.to_string()),
    ]
}

/// Weights inside a block except experts, in the order of llama.cpp's files.
pub(super) fn block(names: &Names) -> Vec<Pair> {
    let mut pairs: Vec<(&'static str, &str)> = vec![("attn_norm", names.attn_norm)];
    match names.qkv {
        Qkv::Separate([q, k, v]) => pairs.extend([("attn_q", q), ("attn_k", k), ("attn_v", v)]),
        Qkv::Fused(name) => pairs.push(("attn_qkv", name)),
        Qkv::Grouped(_) | Qkv::Latent(_) => {}
    }
    pairs.extend([("attn_q_norm", names.q_norm), ("attn_k_norm", names.k_norm)]);
    pairs.push(("attn_output", names.attn_out));
    if !names.attn_post_norm.is_empty() {
        pairs.push(("post_attention_norm", names.attn_post_norm));
    }
    pairs.push(("ffn_norm", names.mlp_norm));
    match names.up {
        Up::Pair([gate, up]) | Up::Either([gate, up], _) => {
            pairs.extend([("ffn_gate", gate), ("ffn_up", up)])
        }
        Up::One(name) => pairs.push(("ffn_up", name)),
    }
    pairs.push(("ffn_down", names.down));
    if !names.mlp_post_norm.is_empty() {
        pairs.push(("post_ffw_norm", names.mlp_post_norm));
    }
    let mut pairs: Vec<Pair> = pairs.into_iter().map(|(ours, theirs)| (ours, theirs.to_string())).collect();
    if let Some(moe) = &names.moe {
        pairs.push(("ffn_gate_inp", moe.router.to_string()));
        pairs.push(("ffn_gate_inp_shexp", moe.shared_gate.to_string()));
        if let Up::Pair([gate, up]) = names.up {
            let within = |name: &str| format!("{}.{}", moe.shared, name.rsplit('.').next().unwrap_or(name));
            let parts = [("ffn_gate_shexp", gate), ("ffn_up_shexp", up), ("ffn_down_shexp", names.down)];
            pairs.extend(parts.map(|(ours, theirs)| (ours, within(theirs))));
        }
    }
    pairs
}

/// Stacked experts, each with the parts of one expert's name around its number.
pub(super) fn experts(names: &Names) -> Vec<(&'static str, [&'static str; 2])> {
    let Some(Experts::Each(at, parts)) = names.moe.as_ref().map(|moe| moe.experts) else { return Vec::new() };
    ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].into_iter().zip(parts.map(|part| [at, part])).collect()
}

/// Splits `blk.N.` from the rest of a name.
pub(super) fn split(name: &str) -> (Option<usize>, &str) {
    let block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match block.and_then(|(number, rest)| Some((number.parse().ok()?, rest))) {
        Some((number, rest)) => (Some(number), rest),
        None => (None, name),
    }
}
