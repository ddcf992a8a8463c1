//! Adapters in folders as PEFT writes and reads them: `adapter_model.safetensors`, `adapter_config.json`, `README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use fathom_grad::Params;
use fathom_tensor::Device;
use regex::Regex;
use serde_json::{Map, Value, json};

use super::begin::{load_adapted, values};
use super::leading::columns;
use super::targets::{ends, last};
use super::tensors::{Over, PeftTensors};
use super::{Adapter, AdapterMethod, Size};
use crate::error::{Error, Result};
use crate::files::{FileWriter, SafeTensors, Source, TensorInfo, convert_into, read_object, write_file};
use crate::model::Model;
use crate::pieces::Piece;
use crate::spec::Spec;
use crate::trained::Trained;
use crate::walk::{Kind, Term};

/// The file of an adapter's tensors.
const TENSORS: &str = "adapter_model.safetensors";
/// The file that says what they mean.
const CONFIG: &str = "adapter_config.json";
/// What stands before every name.
const BEFORE: &str = "base_model.model.";
/// All that there is of virtual tokens.
const EMBEDDINGS: &str = "prompt_embeddings";
/// The version whose layout this is.
const VERSION: &str = "0.21.2";

/// What files call networks behind sub-layers, which PEFT does not have.
const NETWORKS: &str = "HOULSBY";

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedAdapter {
    /// Tensors.
    pub tensors: usize,
    /// Bytes of their elements.
    pub bytes: u64,
}

/// Settings that change what an adapter computes and that are not read, with the values that change nothing.
const PLAIN: &[(&str, &[&str])] = &[
    ("bias", &["\"none\"", "null"]),
    ("lora_bias", &["false", "null"]),
    ("trainable_token_indices", &["null"]),
    ("target_parameters", &["null", "[]"]),
    ("layer_replication", &["null"]),
    ("use_qalora", &["false", "null"]),
    ("use_bdlora", &["false", "null"]),
    ("alora_invocation_tokens", &["null"]),
    ("arrow_config", &["null"]),
    ("velora_config", &["null"]),
];

/// Opens an adapter's folder, or that of a run: the specification of a base with it, and its tensors.
///
/// # Errors
/// Files that cannot be read; an adapter of another model, or one that is not understood, with what is not.
pub fn open_peft(folder: &Path, base: Spec) -> Result<(Spec, PeftTensors)> {
    let path = folder.join(CONFIG);
    let config = read_object(&path)?;
    let refuse = |what: String| Error::file(&path, what);
    let kind = config.get("peft_type").and_then(Value::as_str).unwrap_or_default().to_string();
    for (key, plain) in PLAIN {
        if let Some(value) = config.get(*key).filter(|value| !plain.contains(&value.to_string().as_str())) {
            return Err(refuse(format!("`{key}` is {value}; adapters with it are not read")));
        }
    }
    let tensors = SafeTensors::open_file(&folder.join(TENSORS))?;
    let adapter = match kind.as_str() {
        "LORA" => read_lora(&config, &tensors, &refuse)?,
        "IA3" => read_factors(&tensors),
        NETWORKS => {
            let width = config.get("r").and_then(Value::as_u64).unwrap_or_default() as usize;
            let (modules, inputs) = (BTreeMap::new(), BTreeSet::new());
            Adapter { method: AdapterMethod::Networks(width), modules, inputs }
        }
        "PROMPT_TUNING" | "P_TUNING" | "PREFIX_TUNING" => {
            let tokens = tensors.shape(EMBEDDINGS).and_then(|shape| shape.first().copied()).unwrap_or(0);
            Adapter::leading(match kind.as_str() {
                "PREFIX_TUNING" => AdapterMethod::Prefix { tokens },
                // Of an encoder folders have the outputs alone.
                _ => AdapterMethod::Prompt { tokens, encoder: None },
            })
        }
        _ => {
            let read = "LORA, IA3, PROMPT_TUNING, P_TUNING, PREFIX_TUNING";
            return Err(refuse(format!("`peft_type` is \"{kind}\"; read are {read} and {NETWORKS}")));
        }
    };
    let spec = base.with_adapter(adapter).map_err(|what| refuse(format!("not of this model: {what}")))?;
    let (names, columns) = if spec.virtual_tokens() > 0 {
        leading(&spec, &tensors)?
    } else {
        (wanted(&spec, &tensors)?, BTreeMap::new())
    };
    let alone = names.len() == spec.adapter_tensors().len();
    Ok((spec, PeftTensors { alone, path: folder.join(TENSORS), tensors, names, columns }))
}

/// The module that a tensor is of, if its name ends so.
fn module(name: &str, term: Term) -> Option<&str> {
    name.strip_prefix(BEFORE)?.strip_suffix(term.end())
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

fn read_lora(
    config: &Map<String, Value>,
    tensors: &SafeTensors,
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
    let mut modules = BTreeMap::new();
    for name in tensors.names() {
        let (Some(module), Some(shape)) = (module(name, Term::LoraA), tensors.shape(name)) else { continue };
        let alpha = by_pattern(config, "alpha_pattern", module).unwrap_or(alpha);
        modules.insert(module.to_string(), Size { rank: shape.first().copied().unwrap_or(0), alpha });
    }
    let method = AdapterMethod::Lora { rank_stabilised, lengths, singular };
    Ok(Adapter { method, modules, inputs: BTreeSet::new() })
}

/// Factors of an input are a row, of an output a column.
fn read_factors(tensors: &SafeTensors) -> Adapter {
    let (mut modules, mut inputs) = (BTreeMap::new(), BTreeSet::new());
    for name in tensors.names() {
        let (Some(module), Some(shape)) = (module(name, Term::Factors), tensors.shape(name)) else {
            continue;
        };
        modules.insert(module.to_string(), Size { rank: 1, alpha: 1.0 });
        if matches!(shape, [1, _]) {
            inputs.insert(module.to_string());
        }
    }
    Adapter { method: AdapterMethod::Factors, modules, inputs }
}

/// By the model's name: the file's, and the shape that the model has.
type Names = BTreeMap<String, (String, Vec<usize>)>;

/// The tensors that the adapter of a model has, found among those of a file.
fn wanted(spec: &Spec, tensors: &SafeTensors) -> Result<Names> {
    let mut names = BTreeMap::new();
    for (name, shape) in spec.adapter_tensors() {
        let stored = format!("{BEFORE}{name}");
        let there = tensors.shape(&stored).unwrap_or_default();
        let plain = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<usize>>();
        if plain(there) != plain(&shape) || there.is_empty() {
            let what = format!("has shape {there:?}; an adapter of this model has {shape:?}");
            return Err(Error::tensor(tensors.place(&stored), &stored, what));
        }
        names.insert(name, (stored, shape));
    }
    let (own, base): (BTreeSet<String>, BTreeSet<String>) = (
        names.values().map(|(stored, _)| stored.clone()).collect(),
        spec.stored_names().into_iter().collect(),
    );
    for stored in tensors.names().into_iter().filter(|name| !own.contains(*name)) {
        let name = stored.strip_prefix(BEFORE).filter(|name| base.contains(*name));
        let (Some(name), Some(shape)) = (name, tensors.shape(stored)) else {
            return Err(Error::tensor(tensors.place(stored), stored, "is not understood"));
        };
        names.insert(name.to_string(), (stored.to_string(), shape.to_vec()));
    }
    Ok(names)
}

/// What virtual tokens have of the one tensor that PEFT has of them all, and which of its columns where they are not all.
#[allow(clippy::type_complexity)]
fn leading(spec: &Spec, tensors: &SafeTensors) -> Result<(Names, BTreeMap<String, Range<usize>>)> {
    let there = tensors.shape(EMBEDDINGS).unwrap_or_default();
    let (mut names, mut parts, mut width) = (BTreeMap::new(), BTreeMap::new(), 0);
    spec.walk(&mut |layer, weight| {
        if weight.kind == Kind::Adapter {
            for Piece { name, shape, .. } in spec.pieces(layer, weight) {
                if let Some(columns) = layer.and_then(|layer| columns(&name, layer, shape[1])) {
                    parts.insert(name.clone(), columns);
                }
                width += shape[1];
                names.insert(name, (EMBEDDINGS.to_string(), shape));
            }
        }
        fathom_grad::ParamId(0)
    });
    let shape = [spec.virtual_tokens(), width];
    if there != shape || tensors.names() != [EMBEDDINGS] {
        let what =
            format!("has shape {there:?}; virtual tokens of this model have {shape:?}, and nothing else");
        return Err(Error::tensor(tensors.place(EMBEDDINGS), EMBEDDINGS, what));
    }
    Ok((names, parts))
}

impl Spec {
    /// The tensors of the adapter: names in files and shapes.
    fn adapter_tensors(&self) -> BTreeMap<String, Vec<usize>> {
        let mut all = BTreeMap::new();
        self.walk(&mut |layer, weight| {
            if weight.kind == Kind::Adapter {
                let pieces = self.pieces(layer, weight);
                all.extend(pieces.into_iter().map(|piece| (piece.name, piece.shape)));
            }
            fathom_grad::ParamId(0)
        });
        all
    }
}

/// As [`load_adapted`], of a base with the tensors of an adapter's folder.
///
/// # Errors
/// As there.
pub fn load_peft(
    device: &Device,
    model: &Model,
    params: &mut Params,
    (base, tensors): (&dyn Source, &PeftTensors),
) -> Result<()> {
    load_adapted(device, model, params, &Over { own: tensors, base }, 0)
}

/// Writes the adapter of a whole model as PEFT does, with the weights of the model itself that were `trained` beside it; `base` is what
/// its configuration calls the base.
///
/// # Errors
/// If the system refuses to write.
///
/// # Panics
/// If the model has no adapter, or ranks have parts of it.
#[track_caller]
pub fn save_peft(
    device: &Device,
    model: &Model,
    params: &Params,
    folder: &Path,
    (base, trained): (&str, &Trained),
) -> Result<SavedAdapter> {
    let Some(adapter) = model.spec.adapter.as_deref() else { panic!("save_peft: there is no adapter") };
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let (dtype, pieces) = (model.dtype(params), model.pieces());
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
    let mut modules = BTreeSet::new();
    model.visit(&mut |id, _, weight| {
        let whole = model.spec.virtual_tokens() > 0;
        let saved = |piece: &&Piece| match weight.kind {
            Kind::Adapter => !whole,
            _ => trained.names(&piece.name),
        };
        let pieces: Vec<&Piece> = pieces[id.index()].iter().filter(saved).collect();
        if pieces.is_empty() {
            return;
        }
        let elements = values(device, params, id);
        for piece in pieces {
            if weight.kind != Kind::Adapter {
                modules.insert(piece.name.trim_end_matches(".weight").trim_end_matches(".bias").to_string());
                assert!(!piece.transpose, "save_peft: {} lies otherwise in files", piece.name);
            }
            let width = piece.row_width();
            let name = format!("{BEFORE}{}", piece.name);
            let (_, all) = tensors.entry(name).or_insert_with(|| {
                let shape = shape_in_file(adapter, weight.term, &piece.name, &piece.shape);
                (shape, vec![0.0; piece.shape.iter().product()])
            });
            let from = piece.param_row * width;
            let len = piece.rows.len() * width;
            all[piece.rows.start * width..][..len].copy_from_slice(&elements[from..from + len]);
        }
    });
    if let Some((shape, rows)) = model.prompt_embeddings(device, params) {
        tensors.insert(EMBEDDINGS.to_string(), (shape.to_vec(), rows));
    }
    let info = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| TensorInfo {
        name: name.clone(),
        dtype,
        shape: shape.clone(),
    };
    let infos: Vec<TensorInfo> = tensors.iter().map(info).collect();
    let mut file = FileWriter::create(&folder.join(TENSORS), &infos)?;
    for (_, elements) in tensors.values() {
        let wide: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut bytes = vec![0; elements.len() * dtype.bytes()];
        convert_into(fathom_tensor::DType::F32, &wide, dtype, &mut bytes);
        file.write(&bytes)?;
    }
    file.finish()?;
    let config = format!("{:#}\n", Value::Object(config(&model.spec, adapter, (base, &modules))));
    let write = |name: &str, text: &str| write_file(&folder.join(name), text.as_bytes());
    write(CONFIG, &config)?;
    write("README.md", &readme(adapter, base))?;
    let bytes = infos.iter().map(TensorInfo::bytes).sum();
    Ok(SavedAdapter { tensors: infos.len(), bytes })
}

/// A vector of factors is a row where it is of an input, else a column.
fn shape_in_file(adapter: &Adapter, term: Term, name: &str, shape: &[usize]) -> Vec<usize> {
    let of = name.strip_suffix(term.end()).unwrap_or(name);
    match (term, shape) {
        (Term::Factors, [n]) if adapter.inputs.contains(of) => vec![1, *n],
        (Term::Factors, [n]) => vec![*n, 1],
        (Term::LoraA, [n]) => vec![1, *n],
        _ => shape.to_vec(),
    }
}

/// `adapter_config.json`, with the keys that PEFT needs and those that say what it does by default.
fn config(spec: &Spec, adapter: &Adapter, (base, trained): (&str, &BTreeSet<String>)) -> Map<String, Value> {
    if adapter.virtual_tokens() > 0 {
        return leading_config(spec, adapter, base);
    }
    let all = spec.adaptable();
    let modules: BTreeSet<String> = adapter.modules.keys().cloned().collect();
    let common = json!({
        "base_model_name_or_path": base,
        "fan_in_fan_out": spec.family.names.transposed,
        "inference_mode": true,
        "modules_to_save": if trained.is_empty() { Value::Null } else { json!(trained) },
        "peft_version": VERSION,
        "target_modules": ends(&all, &modules),
        "task_type": "CAUSAL_LM",
    });
    let own = match adapter.method {
        AdapterMethod::Lora { rank_stabilised, lengths, singular } => {
            let (size, ranks, alphas) = patterns(adapter);
            let start = if singular { json!("pissa") } else { json!(true) };
            json!({
                "peft_type": "LORA", "bias": "none", "r": size.rank, "lora_alpha": number(size.alpha), "lora_dropout": 0.0,
                "use_rslora": rank_stabilised, "use_dora": lengths, "init_lora_weights": start,
                "rank_pattern": ranks, "alpha_pattern": alphas, "lora_bias": false,
            })
        }
        AdapterMethod::Networks(width) => {
            json!({ "peft_type": NETWORKS, "r": width, "target_modules": null })
        }
        AdapterMethod::Factors => {
            json!({
                "peft_type": "IA3", "init_ia3_weights": true,
                "feedforward_modules": ends(&all, &adapter.inputs),
            })
        }
        AdapterMethod::Prompt { .. } | AdapterMethod::Prefix { .. } => Value::Null,
    };
    joined([common, own])
}

fn joined(parts: [Value; 2]) -> Map<String, Value> {
    let mut map = Map::new();
    for part in parts {
        if let Value::Object(part) = part {
            map.extend(part);
        }
    }
    map
}

/// The same of virtual tokens, whose width PEFT wants to know.
fn leading_config(spec: &Spec, adapter: &Adapter, base: &str) -> Map<String, Value> {
    let prefix = matches!(adapter.method, AdapterMethod::Prefix { .. });
    let (heads, width) = if prefix { (spec.kv_heads, spec.kv_cols()) } else { (spec.heads, spec.hidden) };
    let common = json!({
        "base_model_name_or_path": base, "inference_mode": true, "modules_to_save": null, "peft_version": VERSION,
        "num_attention_heads": heads, "num_layers": spec.layers.len(), "num_transformer_submodules": 1,
        "num_virtual_tokens": adapter.virtual_tokens(), "task_type": "CAUSAL_LM", "token_dim": width,
    });
    let own = match adapter.method {
        AdapterMethod::Prefix { .. } => json!({ "peft_type": "PREFIX_TUNING", "prefix_projection": false }),
        AdapterMethod::Prompt { encoder: Some(hidden), .. } => json!({
            "peft_type": "P_TUNING", "encoder_hidden_size": hidden, "encoder_reparameterization_type": "MLP",
            "encoder_num_layers": 2, "encoder_dropout": 0.0,
        }),
        _ => json!({ "peft_type": "PROMPT_TUNING", "prompt_tuning_init": "RANDOM" }),
    };
    joined([common, own])
}

/// The most common size, and what differs from it by whole names.
fn patterns(adapter: &Adapter) -> (Size, Map<String, Value>, Map<String, Value>) {
    let sizes: Vec<Size> = adapter.modules.values().copied().collect();
    let times = |size: &Size| sizes.iter().filter(|other| *other == size).count();
    let most = sizes.iter().max_by_key(|size| times(size)).copied().unwrap_or(Size { rank: 1, alpha: 1.0 });
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    for (name, size) in &adapter.modules {
        let pattern = || format!("^{}", regex::escape(name));
        if size.rank != most.rank {
            ranks.insert(pattern(), json!(size.rank));
        }
        if size.alpha != most.alpha {
            alphas.insert(pattern(), number(size.alpha));
        }
    }
    (most, ranks, alphas)
}

/// Whole numbers as such.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

fn readme(adapter: &Adapter, base: &str) -> String {
    let modules: BTreeSet<&str> = adapter.modules.keys().map(|name| last(name)).collect();
    let modules = match adapter.virtual_tokens() {
        0 => modules.into_iter().collect::<Vec<&str>>().join(", "),
        tokens => format!("{tokens} virtual tokens"),
    };
    let base_name = serde_json::to_string(base).unwrap_or_default();
    format!(
        "---\nbase_model: {base_name}\nlibrary_name: peft\n---\n\n# Adapter\n\nOf {modules}. Trained with Fathom; PEFT reads it:\n\n\
         ```python\nfrom peft import PeftModel\n\nmodel = PeftModel.from_pretrained(base, \"adapter\")\n```\n"
    )
}
