//! Reads and writes adapter folders in PEFT's layout: `adapter_model.safetensors`, `adapter_config.json`,
//! `README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use fathom_grad::Params;
use fathom_tensor::{DType, Device};
use serde_json::{Map, Value};

use super::begin::{load_adapted, values};
use super::card::readme;
use super::config::config;
use super::leading::columns;
use super::names::{BEFORE, INSIDE, NETWORKS};
use super::read::{read_factors, read_lora};
use super::saved::{Tables, also_trained, head_from, head_too, in_peft, stored_as};
use super::tensors::{Over, PeftTensors};
use crate::error::{Error, Result};
use crate::files::{
    FileWriter, SCORE, SafeTensors, Source, TensorInfo, convert_into, read_object, write_file,
};
use crate::loaded::ModelView;
use crate::model::Model;
use crate::pieces::Piece;
use crate::spec::{Adapter, AdapterMethod, EncoderHead, Spec, TrainableWeights};
use crate::weight::{Kind, Term};

/// The file of an adapter's tensors.
const TENSORS: &str = "adapter_model.safetensors";
/// The file with the adapter's configuration.
const CONFIG: &str = "adapter_config.json";
/// The only tensor of an adapter of virtual tokens.
const EMBEDDINGS: &str = "prompt_embeddings";
/// Size of a written adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedAdapter {
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of their elements.
    pub bytes: u64,
}

/// Unsupported settings that change an adapter's result, with the values that leave it unchanged.
const PLAIN: &[(&str, &[&str])] = &[
    ("layer_replication", &["null"]),
    ("use_qalora", &["false", "null"]),
    ("use_bdlora", &["false", "null"]),
    ("alora_invocation_tokens", &["null"]),
    ("arrow_config", &["null"]),
    ("velora_config", &["null"]),
];

/// Opens the folder of an adapter or of a run. Returns the base's specification with the adapter, and with the score
/// head if the folder has one, and the tensors.
///
/// # Errors
/// Files that cannot be read; an adapter of another model; unsupported settings, by name.
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
    let base = with_head(base, &config, &tensors);
    let tables = Tables::of(&config, &base).map_err(refuse)?;
    let base = Spec { tied: base.tied && !tables.untied, ..base };
    let adapter = match kind.as_str() {
        "LORA" => read_lora(&config, (&tensors, &base), &refuse)?,
        "IA3" => read_factors(&tensors, &base),
        NETWORKS => {
            let width = config.get("r").and_then(Value::as_u64).unwrap_or_default() as usize;
            Adapter::of(AdapterMethod::Networks(width), BTreeMap::new(), BTreeSet::new())
        }
        "PROMPT_TUNING" | "P_TUNING" | "PREFIX_TUNING" => {
            let tokens = tensors.shape(EMBEDDINGS).and_then(|shape| shape.first().copied()).unwrap_or(0);
            Adapter::leading(match kind.as_str() {
                "PREFIX_TUNING" => AdapterMethod::Prefix { tokens, encoder: None },
                // Folders store an encoder's outputs only.
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
    let turned = spec.turned().into_iter().map(|(name, (_, turn))| (name, turn)).collect();
    let head_from = tables.untied.then(|| head_from(&spec));
    Ok((spec, PeftTensors { alone, path: folder.join(TENSORS), tensors, names, columns, turned, head_from }))
}

/// The base with the head that an adapter's file contains: scores, as for a reward model, or an encoder's of labels;
/// an encoder whose modules have no prefix has none.
fn with_head(base: Spec, config: &Map<String, Value>, tensors: &SafeTensors) -> Spec {
    if let Some(parts) = &base.encoder {
        let names = &base.family.names;
        let rows = |head: &str| tensors.shape(&format!("{BEFORE}{head}.weight"))?.first().copied();
        let prefix = format!("{BEFORE}{}", names.base);
        let head = match config.get("task_type").and_then(Value::as_str) {
            _ if !tensors.names().iter().any(|name| name.starts_with(&prefix)) => EncoderHead::None,
            Some("SEQ_CLS") => rows(names.head).map_or(parts.head, EncoderHead::Text),
            Some("TOKEN_CLS") => {
                names.encoder.and_then(|own| rows(own.tokens)).map_or(parts.head, EncoderHead::Tokens)
            }
            _ => parts.head,
        };
        return if head == parts.head { base } else { base.with_encoder_head(head) };
    }
    match tensors.shape(&format!("{BEFORE}{SCORE}")) {
        Some([scores, _]) if base.scores == 0 => base.scoring(*scores),
        _ => base,
    }
}

/// By the model's name: the name in the file, and the model's shape.
type Names = BTreeMap<String, (String, Vec<usize>)>;

/// Finds the tensors of the model's adapter among those of a file.
fn wanted(spec: &Spec, tensors: &SafeTensors) -> Result<Names> {
    let (mut names, turned) = (BTreeMap::new(), spec.turned());
    for (name, shape) in spec.adapter_tensors() {
        let (stored, wanted) = match turned.get(&name) {
            Some((stored, turn)) => (stored.clone(), turn.shape().to_vec()),
            None => (spec.in_adapter(&name), shape.clone()),
        };
        let there = tensors.shape(&stored).unwrap_or_default();
        let plain = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<usize>>();
        if plain(there) != plain(&wanted) || there.is_empty() {
            let what = format!("has shape {there:?}; an adapter of this model has {wanted:?}");
            return Err(Error::tensor(tensors.place(&stored), &stored, what));
        }
        names.insert(name, (stored, shape));
    }
    let (own, base): (BTreeSet<String>, BTreeSet<String>) = (
        names.values().map(|(stored, _)| stored.clone()).collect(),
        spec.stored_names().into_iter().collect(),
    );
    let [embed, head] = spec.table_names();
    for stored in tensors.names().into_iter().filter(|name| !own.contains(*name)) {
        // The base's own weight of an adapted module.
        let mut name = spec.name_in_model(stored).map(|name| stored_as(&name.replace(INSIDE, "."), &base));
        if name.as_ref().is_some_and(|name| spec.is_left_over(name)) {
            continue;
        }
        if spec.tied && name.as_ref().is_some_and(|name| *name == format!("{head}.weight")) {
            name = Some(format!("{embed}.weight"));
        }
        let (Some(name), Some(shape)) = (name.filter(|name| base.contains(name)), tensors.shape(stored))
        else {
            return Err(Error::tensor(tensors.place(stored), stored, "is not understood"));
        };
        names.insert(name, (stored.to_string(), shape.to_vec()));
    }
    Ok(names)
}

/// Maps virtual tokens to PEFT's single tensor: names, and the columns of it that each is, where not all.
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
    /// The adapter's tensors: names in files and shapes.
    pub(super) fn adapter_tensors(&self) -> BTreeMap<String, Vec<usize>> {
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

/// Like [`load_adapted`], for a base with the tensors of an adapter's folder.
///
/// # Errors
/// Those of [`load_adapted`].
pub fn load_peft(
    device: &Device,
    model: &Model,
    params: &mut Params,
    (base, tensors): (&dyn Source, &PeftTensors),
) -> Result<()> {
    load_adapted(device, model, params, &Over { own: tensors, base }, 0)
}

/// Writes the adapter of a whole model in PEFT's layout, with the base's weights that were `trained` with it; `base`
/// is the name of the base in the configuration.
///
/// Errors of writing.
///
/// If the model has no adapter, or ranks hold parts of it.
#[track_caller]
pub fn save_peft(
    device: &Device,
    model: &Model,
    params: &Params,
    folder: &Path,
    (base, trained): (&str, &TrainableWeights),
) -> Result<SavedAdapter> {
    let Some(adapter) = model.spec.adapter.as_deref() else { panic!("save_peft: there is no adapter") };
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let (mut tensors, also) = collect(ModelView { device, model, params }, adapter, trained);
    let also = also_trained(&model.spec, adapter, also);
    if let Some([embed, head]) = head_too(&model.spec, adapter, &also) {
        let table = tensors.get(&format!("{BEFORE}{embed}.weight")).cloned();
        tensors.extend(table.map(|table| (format!("{BEFORE}{head}.weight"), table)));
    }
    let saved = write_tensors(&folder.join(TENSORS), &tensors, model.dtype(params))?;
    let config = format!("{:#}\n", Value::Object(config(&model.spec, adapter, (base, &also))));
    let write = |name: &str, text: &str| write_file(&folder.join(name), text.as_bytes());
    write(CONFIG, &config)?;
    write("README.md", &readme(&model.spec, adapter, base))?;
    Ok(saved)
}

/// By name in the file: shape and elements of a tensor.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn write_tensors(path: &Path, tensors: &Tensors, dtype: DType) -> Result<SavedAdapter> {
    let info = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| TensorInfo {
        name: name.clone(),
        dtype,
        shape: shape.clone(),
    };
    let infos: Vec<TensorInfo> = tensors.iter().map(info).collect();
    let mut file = FileWriter::create(path, &infos)?;
    for (_, elements) in tensors.values() {
        let wide: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut bytes = vec![0; elements.len() * dtype.bytes()];
        convert_into(DType::F32, &wide, dtype, &mut bytes);
        file.write(&bytes)?;
    }
    file.finish()?;
    Ok(SavedAdapter { tensors: infos.len(), bytes: infos.iter().map(TensorInfo::bytes).sum() })
}

/// The tensors of an adapter's file, and the names of the base's trained tensors among them.
fn collect(
    ModelView { device, model, params }: ModelView<'_>,
    adapter: &Adapter,
    trained: &TrainableWeights,
) -> (Tensors, BTreeSet<String>) {
    let (pieces, tables) = (model.pieces(), model.spec.table_names());
    let (mut tensors, mut also_trained) = (Tensors::new(), BTreeSet::new());
    // PEFT also writes embeddings and heads that have low-rank terms.
    let has_terms = |piece: &str| {
        let table = tables.iter().find(|name| piece.strip_suffix(".weight") == Some(name.as_str()));
        table.is_some_and(|name| adapter.modules.contains_key(name))
    };
    let whole = model.spec.virtual_tokens() > 0;
    model.visit(&mut |id, _, weight| {
        let saved = |piece: &&Piece| match weight.kind {
            Kind::Adapter => !whole,
            _ => trained.keeps(weight, &piece.name) || has_terms(&piece.name),
        };
        let pieces: Vec<&Piece> = pieces[id.index()].iter().filter(saved).collect();
        if pieces.is_empty() {
            return;
        }
        let elements = values(device, params, id);
        for piece in pieces {
            let mut name = model.spec.in_adapter(&piece.name);
            if weight.kind != Kind::Adapter {
                name = model.spec.in_adapter(&in_peft(adapter, &piece.name));
                also_trained.extend(trained.keeps(weight, &piece.name).then(|| piece.name.clone()));
            }
            let (_, all) = tensors.entry(name).or_insert_with(|| {
                let shape = shape_in_file(adapter, weight.term, &piece.name, &piece.shape);
                (shape, vec![0.0; piece.shape.iter().product()])
            });
            let width = piece.row_width();
            if piece.transpose {
                let rows = piece.rows.len();
                let turned = |at: usize| elements[(at % width) * rows + at / width];
                all.iter_mut().enumerate().for_each(|(at, element)| *element = turned(at));
                continue;
            }
            let from = piece.param_row * width;
            let len = piece.rows.len() * width;
            all[piece.rows.start * width..][..len].copy_from_slice(&elements[from..from + len]);
        }
    });
    turn(&model.spec, &mut tensors);
    if let (true, Some(embed)) = (model.spec.tied && adapter.modules.contains_key(&tables[1]), model.embed) {
        let name = format!("{BEFORE}{}{INSIDE}weight", tables[1]);
        let table = values(device, params, embed.tokens);
        tensors.insert(name, (vec![model.spec.vocab, model.spec.hidden], table));
    }
    if let Some((shape, rows)) = model.prompt_embeddings(device, params) {
        tensors.insert(EMBEDDINGS.to_string(), (shape.to_vec(), rows));
    }
    (tensors, also_trained)
}

/// Rearranges tensors that files store in another layout.
fn turn(spec: &Spec, tensors: &mut Tensors) {
    let own = spec.turned().into_iter().map(|(name, to)| (tensors.remove(&spec.in_adapter(&name)), to));
    let own: Vec<_> = own.collect();
    for (from, (stored, turn)) in own {
        let Some((_, elements)) = from else { continue };
        let shape = turn.shape().to_vec();
        let mut file = vec![0.0; shape.iter().product()];
        for (at, element) in elements.iter().enumerate() {
            if let Some(place) = turn.place(at) {
                file[place] = *element;
            }
        }
        tensors.insert(stored, (shape, file));
    }
}

/// Shape in files; a vector of factors is a row if it scales an input, else a column.
fn shape_in_file(adapter: &Adapter, term: Term, name: &str, shape: &[usize]) -> Vec<usize> {
    let of = name.strip_suffix(term.end()).unwrap_or(name);
    match (term, shape) {
        (Term::Factors, [n]) if adapter.inputs.contains(of) => vec![1, *n],
        (Term::Factors, [n]) => vec![*n, 1],
        (Term::LoraA | Term::TokenRows, [n]) => vec![1, *n],
        _ => shape.to_vec(),
    }
}
