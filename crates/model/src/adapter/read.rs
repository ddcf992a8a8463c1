//! Parses the configuration in an adapter's folder.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::{Map, Value};

use super::experts::STACKED;
use crate::error::{Error, Result};
use crate::files::{SafeTensors, Source};
use crate::spec::{Adapter, AdapterMethod, Size, Spec};
use crate::weight::Term;

/// The model's name of the module of a tensor whose name ends with that of `term`.
fn module(spec: &Spec, name: &str, term: Term) -> Option<String> {
    let module = spec.name_in_model(name)?.strip_suffix(term.end())?.to_string();
    Some(module).filter(|module| !spec.is_left_over(module))
}

/// PEFT's `get_pattern_key`: the first pattern that a name ends with.
fn by_pattern(config: &Map<String, Value>, key: &str, name: &str) -> Option<f64> {
    let matches = |pattern: &str| {
        let whole = match pattern.strip_prefix('^') {
            Some(pattern) => format!("^(?:{pattern})$"),
            None => format!(r"^(?:.*\.)?(?:{pattern})$"),
        };
        Regex::new(&whole).is_ok_and(|regex| regex.is_match(name))
    };
    let table = config.get(key)?.as_object()?;
    table.iter().find(|(pattern, _)| matches(pattern)).and_then(|(_, value)| value.as_f64())
}

/// Reads an adapter of low-rank terms.
pub(super) fn read_lora(
    config: &Map<String, Value>,
    (tensors, base): (&SafeTensors, &Spec),
    refuse: &dyn Fn(String) -> Error,
) -> Result<Adapter> {
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or_default();
    let start = config.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default();
    let singular = start == "pissa" || start.starts_with("pissa_niter");
    let changed = ["olora", "corda", "loftq", "eva"];
    if changed.contains(&start) {
        return Err(refuse(format!(
            "`init_lora_weights` is \"{start}\", which changes the base; read are true and pissa"
        )));
    }
    let (rank_stabilised, lengths) = (flag("use_rslora"), flag("use_dora"));
    let alpha = config.get("lora_alpha").and_then(Value::as_f64).unwrap_or(8.0);
    let alpha_of = |name: &str| by_pattern(config, "alpha_pattern", base.module_name(name)).unwrap_or(alpha);
    let stacks = Stacks::of(config, (tensors, base), refuse)?;
    let mut modules = BTreeMap::new();
    for name in tensors.names() {
        let found = module(base, name, Term::LoraA).or_else(|| module(base, name, Term::EmbedA));
        let (Some(module), Some(shape)) = (found, tensors.shape(name)) else { continue };
        let rows = shape.first().copied().unwrap_or(0);
        let stacked = stacks.names.get(&module).cloned();
        let (module, rank) = stacked.map_or((module, rows), |name| (name, rows / stacks.experts.max(1)));
        let alpha = alpha_of(&module);
        modules.insert(module, Size { rank, alpha });
    }
    let method = AdapterMethod::Lora { rank_stabilised, lengths, singular };
    Ok(Adapter {
        tokens: read_tokens(config, base).map_err(refuse)?,
        biases: flag("lora_bias"),
        dropout: config.get("lora_dropout").and_then(Value::as_f64).unwrap_or_default(),
        swapped: stacks.swapped,
        ..Adapter::of(method, modules, BTreeSet::new())
    })
}

/// Tokens with trained rows of the embedding: a list, or an object with one under the embedding's name.
fn read_tokens(config: &Map<String, Value>, base: &Spec) -> std::result::Result<Vec<u32>, String> {
    let key = "trainable_token_indices";
    let said = match config.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(table)) => {
            let [embed, _] = base.table_names();
            match table.iter().next() {
                Some((name, list)) if table.len() == 1 && embed.ends_with(name.as_str()) => list,
                _ => return Err(format!("`{key}` is of something else than {embed}, whose rows are read")),
            }
        }
        Some(list) => list,
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = said.as_array().and_then(|list| list.iter().map(id).collect());
    ids.ok_or_else(|| format!("`{key}` is {said}, which is no list of tokens"))
}

/// Stacked experts, stored as matrices under module names.
#[derive(Default)]
struct Stacks {
    /// Maps a module name in the file to the name of the stacked tensor.
    names: BTreeMap<String, String>,
    /// Whether A applies to the output.
    swapped: bool,
    experts: usize,
}

impl Stacks {
    fn of(
        config: &Map<String, Value>,
        (tensors, base): (&SafeTensors, &Spec),
        refuse: &dyn Fn(String) -> Error,
    ) -> Result<Stacks> {
        let key = "target_parameters";
        let targets: Vec<&str> = config
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if targets.is_empty() {
            return Ok(Stacks::default());
        }
        let of =
            |target: &&str| STACKED.iter().position(|name| name.ends_with(target) || target.ends_with(name));
        if let Some(other) = targets.iter().find(|target| of(target).is_none()) {
            let read = STACKED.join(" and ");
            return Err(refuse(format!("`{key}` has {other}; read are {read}")));
        }
        let Some(m) = &base.moe else {
            return Err(refuse(format!("`{key}` is of experts, and {} has none", base.family)));
        };
        let named: BTreeSet<usize> = targets.iter().filter_map(of).collect();
        let (mut names, mut ways) = (BTreeMap::new(), BTreeSet::new());
        for tensor in tensors.names() {
            let Some(module) = module(base, tensor, Term::LoraA) else { continue };
            let (at, inside) = match module.strip_suffix("mlp.experts.base_layer") {
                Some(at) => (at, true),
                None => match module.strip_suffix("mlp.experts") {
                    Some(at) => (at, false),
                    None => continue,
                },
            };
            // With two, the first is the inner one.
            let which = match (named.len(), inside) {
                (2, inside) => usize::from(!inside),
                (_, false) => named.first().copied().unwrap_or_default(),
                (_, true) => {
                    return Err(refuse(format!("`{key}` names one tensor, and {tensor} is of a second")));
                }
            };
            let (inner, out) = if which == 0 {
                (m.width(base.hidden), m.wide(base.mlp.gated))
            } else {
                (m.ffn, m.width(base.hidden))
            };
            let cols = tensors.shape(tensor).and_then(|shape| shape.last().copied()).unwrap_or_default();
            if inner != out && !m.transposed {
                ways.insert(cols == out);
            }
            let stacked = format!("{at}{}", STACKED[which]);
            names.insert(module, stacked);
        }
        let swapped = match ways.iter().copied().collect::<Vec<bool>>()[..] {
            [swapped] => swapped,
            [] if m.transposed => false,
            [] => {
                return Err(refuse(format!(
                    "`{key}` is of tensors as high as wide, so nothing tells whether A is of their input (PEFT 0.19 and later) or of \
                     their output (0.17, 0.18); save the adapter again with a PEFT that you know, over both tensors of the experts"
                )));
            }
            _ => {
                return Err(refuse("some terms of experts have A of the input, others of the output".into()));
            }
        };
        Ok(Stacks { names, swapped, experts: m.experts })
    }
}

/// Reads IA3: factors of an input are a row, those of an output a column.
pub(super) fn read_factors(tensors: &SafeTensors, base: &Spec) -> Adapter {
    let (mut modules, mut inputs) = (BTreeMap::new(), BTreeSet::new());
    for name in tensors.names() {
        let (Some(module), Some(shape)) = (module(base, name, Term::Factors), tensors.shape(name)) else {
            continue;
        };
        modules.insert(module.clone(), Size { rank: 1, alpha: 1.0 });
        if matches!(shape, [1, _]) {
            inputs.insert(module);
        }
    }
    Adapter::of(AdapterMethod::Factors, modules, inputs)
}
