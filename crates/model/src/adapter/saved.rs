//! Base weights stored in an adapter's folder: PEFT's `modules_to_save`, its biases, and the base's own weight of a
//! module with terms.
//!
//! PEFT replaces each module that it saves with a copy. This unties a head from the embedding unless
//! `ensure_weight_tying` is set. PEFT ignores tensors without a module.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::names::{HEADS, INSIDE};
use crate::spec::{Adapter, AdapterMethod, Spec, TrainableWeights};
use crate::weight::{Kind, WeightSpec};

/// Modules named differently by Transformers 5: its name, and the name in files.
const MODULES: [[&str; 2]; 1] = [[".mlp.gate.", ".block_sparse_moe.gate."]];

/// Base weights trained with an adapter.
pub(super) struct AlsoTrained {
    /// Modules trained as a whole.
    pub modules: BTreeSet<String>,
    /// Trained biases, in PEFT's terms.
    pub biases: &'static str,
    /// Whether a tied head stays tied.
    pub tied: bool,
}

/// Settings of a folder for the embedding and the head.
pub(super) struct Tables {
    /// Whether the embedding or the head has weights of its own although the base ties them.
    pub untied: bool,
}

impl Tables {
    /// Reads them from an adapter's configuration.
    ///
    /// # Errors
    /// Terms of one of the two that would also apply to the other.
    pub fn of(config: &Map<String, Value>, base: &Spec) -> Result<Tables, String> {
        let tables = base.table_names();
        let means = |module: &str| tables.iter().any(|table| !table.is_empty() && table.ends_with(module));
        let saved = config.get("modules_to_save").and_then(Value::as_array).into_iter().flatten();
        let saves = saved.filter_map(Value::as_str).any(means);
        let ensured = config.get("ensure_weight_tying").and_then(Value::as_bool).unwrap_or_default();
        if ensured && !saves {
            return Err("`ensure_weight_tying` is true; adapters with it are read where `modules_to_save` has the embedding or the head".into());
        }
        // Without a vocabulary head, the embedding is not tied.
        Ok(Tables { untied: saves && !ensured && base.tied && base.scores == 0 })
    }
}

/// Name of the head's tensor, and possible names of the embedding's.
pub(super) fn head_from(spec: &Spec) -> (String, [String; 2]) {
    let ([embed, head], short) = (spec.table_names(), spec.family.names.embed);
    (format!("{head}.weight"), [format!("{embed}.weight"), format!("{short}.weight")])
}

/// Name in files of a tensor with this PEFT name; unchanged if the base has it.
pub(super) fn stored_as(name: &str, base: &BTreeSet<String>) -> String {
    let other =
        MODULES.iter().map(|[peft, file]| name.replace(peft, file)).find(|other| base.contains(other));
    other.filter(|_| !base.contains(name)).unwrap_or_else(|| name.to_string())
}

/// PEFT's name of a base tensor; a module with terms keeps its own under [`INSIDE`].
pub(super) fn in_peft(adapter: &Adapter, name: &str) -> String {
    let name = match name.rsplit_once('.') {
        Some((module, end)) if adapter.modules.contains_key(module) => format!("{module}{INSIDE}{end}"),
        _ => name.to_string(),
    };
    MODULES.iter().fold(name, |name, [peft, file]| name.replace(file, peft))
}

/// Groups trained base tensors in PEFT's terms: biases, of all modules or of those with terms, otherwise whole
/// modules. PEFT always reads those with terms and refuses them in `modules_to_save`.
pub(super) fn also_trained(spec: &Spec, adapter: &Adapter, trained: BTreeSet<String>) -> AlsoTrained {
    let is_bias = |name: &&String| name.ends_with(".bias");
    let own: BTreeSet<&String> = trained.iter().filter(is_bias).collect();
    let stored = spec.without_adapter().stored_names();
    let all: BTreeSet<&String> = stored.iter().filter(is_bias).collect();
    let module = |name: &String| name.trim_end_matches(".weight").trim_end_matches(".bias").to_string();
    let of_head = |module: String| {
        let whole =
            HEADS.iter().find(|head| module.strip_prefix(**head).is_some_and(|rest| rest.starts_with('.')));
        whole.map_or(module, |head| head.to_string())
    };
    let adapted = |name: &String| adapter.modules.contains_key(&module(name));
    let of_terms: BTreeSet<&String> = all.iter().filter(|name| adapted(name)).copied().collect();
    let biases = match own {
        own if own.is_empty() || !adapter.method.is_low_rank() => "none",
        own if own == all => "all",
        own if own == of_terms => "lora_only",
        _ => "none",
    };
    let saved = trained.iter().filter(|name| (biases == "none" || !is_bias(name)) && !adapted(name));
    let saved = saved.map(|name| of_head(module(&in_peft(adapter, name).replace(INSIDE, "."))));
    let mut also = AlsoTrained { modules: saved.collect(), biases, tied: false };
    if let Some([_, head]) = head_too(spec, adapter, &also) {
        also.modules.insert(head);
        also.tied = adapter.method.is_low_rank();
    }
    also
}

/// Names of a tied embedding and head, if trained and the head has no terms: PEFT needs both.
pub(super) fn head_too(spec: &Spec, adapter: &Adapter, also: &AlsoTrained) -> Option<[String; 2]> {
    let [embed, head] = spec.table_names();
    let one = spec.tied && spec.scores == 0 && !head.is_empty();
    (one && also.modules.contains(&embed) && !adapter.modules.contains_key(&head)).then_some([embed, head])
}

impl Spec {
    /// Checks that a folder of the adapter can store the base weights trained with it.
    ///
    /// # Errors
    /// A weight that PEFT would not find.
    pub(crate) fn saves(&self, trained: &TrainableWeights) -> Result<(), String> {
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
