//! Weights of the base that a folder of an adapter has besides the adapter: PEFT's `modules_to_save`, its biases, and what lies under a
//! module with terms.
//!
//! PEFT puts a copy in the place of each module that it saves. Of a model whose head is the embedding it so parts the two, unless
//! `ensure_weight_tying` says otherwise. What it finds no module for it ignores.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::names::INSIDE;
use crate::spec::{Adapter, AdapterMethod, Spec, Trained};
use crate::weight::{Kind, WeightSpec};

/// Modules that files call otherwise than Transformers 5: there, and in files.
const MODULES: [[&str; 2]; 1] = [[".mlp.gate.", ".block_sparse_moe.gate."]];

/// The weights of the model itself that are trained with an adapter.
pub(super) struct AlsoTrained {
    /// All of these modules.
    pub modules: BTreeSet<String>,
    /// Which biases, in PEFT's words.
    pub biases: &'static str,
    /// A head that is the embedding stays that.
    pub tied: bool,
}

/// What a folder says of the embedding and the head.
pub(super) struct Tables {
    /// One of them, or each, has weights of its own, though the base has one table for both.
    pub untied: bool,
}

impl Tables {
    /// Read from an adapter's configuration.
    ///
    /// # Errors
    /// Terms of one of the two that are the other's as well.
    pub fn of(config: &Map<String, Value>, base: &Spec) -> Result<Tables, String> {
        let tables = base.table_names();
        let means = |module: &str| tables.iter().any(|table| !table.is_empty() && table.ends_with(module));
        let saved = config.get("modules_to_save").and_then(Value::as_array).into_iter().flatten();
        let saves = saved.filter_map(Value::as_str).any(means);
        let ensured = config.get("ensure_weight_tying").and_then(Value::as_bool).unwrap_or_default();
        if ensured && !saves {
            return Err("`ensure_weight_tying` is true; adapters with it are read where `modules_to_save` has the embedding or the head".into());
        }
        // Without the vocabulary's head the embedding is that of no other.
        Ok(Tables { untied: saves && !ensured && base.tied && base.scores == 0 })
    }
}

/// The name of the head's tensor, and those of the embedding's.
pub(super) fn head_from(spec: &Spec) -> (String, [String; 2]) {
    let ([embed, head], short) = (spec.table_names(), spec.family.names.embed);
    (format!("{head}.weight"), [format!("{embed}.weight"), format!("{short}.weight")])
}

/// What files call a tensor, by PEFT's name of it: that itself, if the base has it.
pub(super) fn stored_as(name: &str, base: &BTreeSet<String>) -> String {
    let other =
        MODULES.iter().map(|[peft, file]| name.replace(peft, file)).find(|other| base.contains(other));
    other.filter(|_| !base.contains(name)).unwrap_or_else(|| name.to_string())
}

/// What PEFT calls a tensor of the base: one of a module with terms is under these.
pub(super) fn in_peft(adapter: &Adapter, name: &str) -> String {
    let name = match name.rsplit_once('.') {
        Some((module, end)) if adapter.modules.contains_key(module) => format!("{module}{INSIDE}{end}"),
        _ => name.to_string(),
    };
    MODULES.iter().fold(name, |name, [peft, file]| name.replace(file, peft))
}

/// What PEFT says of the tensors of the base that are trained: biases, of all or of the modules with terms, or else all of modules. Those
/// with terms it reads whatever it says, and refuses to be asked to save.
pub(super) fn also_trained(spec: &Spec, adapter: &Adapter, trained: BTreeSet<String>) -> AlsoTrained {
    let is_bias = |name: &&String| name.ends_with(".bias");
    let own: BTreeSet<&String> = trained.iter().filter(is_bias).collect();
    let stored = spec.without_adapter().stored_names();
    let all: BTreeSet<&String> = stored.iter().filter(is_bias).collect();
    let module = |name: &String| name.trim_end_matches(".weight").trim_end_matches(".bias").to_string();
    let adapted = |name: &String| adapter.modules.contains_key(&module(name));
    let of_terms: BTreeSet<&String> = all.iter().filter(|name| adapted(name)).copied().collect();
    let biases = match own {
        own if own.is_empty() || !adapter.method.is_low_rank() => "none",
        own if own == all => "all",
        own if own == of_terms => "lora_only",
        _ => "none",
    };
    let saved = trained.iter().filter(|name| (biases == "none" || !is_bias(name)) && !adapted(name));
    let saved = saved.map(|name| module(&in_peft(adapter, name).replace(INSIDE, ".")));
    let mut also = AlsoTrained { modules: saved.collect(), biases, tied: false };
    if let Some([_, head]) = head_too(spec, adapter, &also) {
        also.modules.insert(head);
        also.tied = adapter.method.is_low_rank();
    }
    also
}

/// The names of the embedding and the head of a model in which they are one, if it is trained and the head has no terms: PEFT needs both.
pub(super) fn head_too(spec: &Spec, adapter: &Adapter, also: &AlsoTrained) -> Option<[String; 2]> {
    let [embed, head] = spec.table_names();
    let one = spec.tied && spec.scores == 0 && !head.is_empty();
    (one && also.modules.contains(&embed) && !adapter.modules.contains_key(&head)).then_some([embed, head])
}

impl Spec {
    /// Whether a folder of the adapter can have the weights of the base that are trained with it.
    ///
    /// # Errors
    /// The weight that PEFT would not find.
    pub(crate) fn saves(&self, trained: &Trained) -> Result<(), String> {
        let low_rank = |adapter: &&Adapter| adapter.method.is_low_rank();
        let Some(adapter) = self
            .adapter
            .as_deref()
            .filter(|adapter| low_rank(adapter) || adapter.method == AdapterMethod::Factors)
        else {
            return Ok(());
        };
        let [embed, _] = self.table_names();
        let (embed, mut found) = (format!("{embed}.weight"), Ok(()));
        self.walk(&mut |layer, weight: &WeightSpec<'_>| {
            for piece in self.pieces(layer, weight).into_iter().filter(|_| weight.kind != Kind::Adapter) {
                let plain = piece.name.ends_with(".weight") || piece.name.ends_with(".bias");
                let why = if matches!(weight.kind, Kind::Experts(_)) {
                    "is of experts, which PEFT has in another layout; give them low-rank terms (adapter.targets)"
                } else if !plain {
                    "is no module's weight or bias, so PEFT does not read it from an adapter's folder"
                } else if piece.name == embed && !adapter.tokens.is_empty() {
                    "has rows that are trained by themselves (adapter.token_rows); train these or all of it"
                } else {
                    continue;
                };
                if found.is_ok() && trained.keeps(weight, &piece.name) {
                    found = Err(format!("{} {why}", piece.name));
                }
            }
            fathom_grad::ParamId(0)
        });
        found
    }
}
