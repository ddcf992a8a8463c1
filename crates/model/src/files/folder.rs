//! Opens Hugging Face folders: `config.json`, weights, `generation_config.json`, and the tokenizer's files next to
//! them.

use std::fmt;
use std::path::{Path, PathBuf};

use fathom_grad::Params;
use fathom_tensor::{DType, Device};
use serde_json::{Map, Value, json};

use super::generation::{GenerationConfig, context};
use super::json::read_object;
use super::save::{SaveOptions, save};
use super::table::SafeTensors;
use super::writer::write_file;
use super::{bitsandbytes, few_bits, gguf};
use crate::encoder::{EncoderSpec, of_norms};
use crate::error::{Error, Result};
use crate::family::Wrapper;
use crate::model::Model;
use crate::spec::{Family, Spec};

/// An opened folder.
pub struct HfFolder {
    /// The architecture.
    pub spec: Spec,
    /// Special tokens and defaults of generation.
    pub generation: GenerationConfig,
    /// The weights.
    pub source: SafeTensors,
    /// Parts that are not read, if the folder is of a multimodal model.
    pub left_out: Option<LeftOut>,
}

/// The unread parts of a multimodal model: those for images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// `model_type` of the whole model.
    pub model_type: &'static str,
    /// `model_type` of the part being read.
    pub text: &'static str,
    /// Number of unread tensors.
    pub tensors: usize,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut { model_type, text, tensors } = self;
        write!(
            f,
            "the text part ({text}) of a {model_type} model; {tensors} tensors of its vision part are not read"
        )
    }
}

/// Opens the Hugging Face folder of a decoder, or a GGUF file: reads the configuration and checks the headers of the
/// weight files.
///
/// # Errors
/// Those of [`open_any`], and an encoder.
pub fn open(folder: &Path) -> Result<HfFolder> {
    let opened = open_writer(folder)?;
    refuse_source(folder, &opened.spec)?;
    Ok(opened)
}

/// Opens the Hugging Face folder of a model that writes text, a decoder or an encoder-decoder, or a GGUF file.
///
/// # Errors
/// Those of [`open_any`], an encoder, and a decoder that reads neighbours of its text.
pub fn open_writer(folder: &Path) -> Result<HfFolder> {
    refuse_encoder(folder)?;
    let opened = open_any(folder)?;
    refuse_retrieval(folder, &opened.spec)?;
    Ok(opened)
}

/// Reads the architecture and the generation settings of a model that writes text, without weights.
///
/// # Errors
/// Those of [`open_writer`].
pub fn open_writer_config(folder: &Path) -> Result<(Spec, GenerationConfig)> {
    refuse_encoder(folder)?;
    let (spec, generation) = open_any_config(folder)?;
    refuse_retrieval(folder, &spec)?;
    Ok((spec, generation))
}

/// Reads a decoder's architecture and the generation settings, without weights.
///
/// # Errors
/// Those of [`open`].
pub fn open_config(folder: &Path) -> Result<(Spec, GenerationConfig)> {
    let (spec, generation) = open_writer_config(folder)?;
    refuse_source(folder, &spec)?;
    Ok((spec, generation))
}

/// Refuses a decoder with retrieval where a model that writes text is needed.
fn refuse_retrieval(folder: &Path, spec: &Spec) -> Result<()> {
    if spec.retrieval.is_none() {
        return Ok(());
    }
    let what = format!(
        "is {}, a decoder that reads neighbours of its text: it is trained and evaluated with them (fathom train retro), its \
         logits can be inspected (fathom inspect logits --neighbours), and it does not generate",
        spec.family
    );
    Err(Error::config(&folder.join("config.json"), "model_type", what))
}

/// Refuses an encoder-decoder where a decoder is needed.
fn refuse_source(folder: &Path, spec: &Spec) -> Result<()> {
    if spec.source == 0 {
        return Ok(());
    }
    let what = format!(
        "is {}, an encoder-decoder, whose decoder does not go on alone: it answers texts (fathom generate, fathom serve on one rank), \
         and is measured by what it answers (fathom eval --tasks)",
        spec.family
    );
    Err(Error::config(&folder.join("config.json"), "model_type", what))
}

/// Refuses an encoder where a decoder is needed.
fn refuse_encoder(folder: &Path) -> Result<()> {
    if !EncoderSpec::is_of(folder) {
        return Ok(());
    }
    let what = "is an encoder's: it gives labels and vectors of texts (fathom serve; the stages `classify` and `semantic` of a \
                curation), is trained by `fathom train mlm`, `embed`, `rerank` and `classify`, and never continues a text";
    Err(Error::config(&folder.join("config.json"), "model_type", what))
}

/// Opens the Hugging Face folder of a decoder or an encoder, or a GGUF file.
///
/// # Errors
/// Names the file and the key or tensor that is missing, malformed or not supported.
pub fn open_any(folder: &Path) -> Result<HfFolder> {
    if fathom_base::gguf::is_file(folder) {
        let (spec, generation, source) = gguf::open(folder)?;
        return Ok(HfFolder { spec, generation, source, left_out: None });
    }
    let (mut spec, generation) = open_any_config(folder)?;
    let mut source = SafeTensors::open_folder(folder)?;
    if spec.encoder.is_some() {
        source.rename(&|name| Some(of_norms(name)))?;
    }
    source.as_published(&spec)?;
    // Transformers 5 writes that a head is tied even if it is not, and reads the folder's own head if there is one.
    let head = format!("{}.weight", spec.family.names.head);
    if spec.source > 0 && source.stored(&head).is_some() {
        spec.tied = false;
    }
    let left_out = match Wrapper::of(&read_object(&folder.join("config.json"))?) {
        Some(wrapper) => {
            let tensors = source.rename(&|name| wrapper.name(name))?;
            Some(LeftOut { model_type: wrapper.model_type, text: wrapper.text, tensors })
        }
        None => None,
    };
    Ok(HfFolder { spec, generation, source, left_out })
}

/// Reads the architecture and the generation settings, without weights, of a decoder or an encoder.
///
/// # Errors
/// Those of [`open_any`].
pub fn open_any_config(folder: &Path) -> Result<(Spec, GenerationConfig)> {
    if fathom_base::gguf::is_file(folder) {
        return gguf::open_config(folder);
    }
    let file = folder.join("config.json");
    let mut config = read_object(&file)?;
    bitsandbytes::take_config(&file, &mut config)?;
    few_bits::take_config(&file, &mut config)?;
    let mut spec = Family::read(&file, &config)?;
    let positions = Some(context(&spec));
    let mut outer = special_ids(&file, &config)?;
    if let Some(wrapper) = Wrapper::of(&config) {
        outer = outer.or(special_ids(&file, &wrapper.text_config(&file, &config)?)?);
    }
    outer.positions = positions;
    // From `config.json`, where Transformers' classifiers read it; `generation_config.json` does not apply to those.
    spec.padding = outer.pad;
    let file = folder.join(GENERATION);
    if !file.is_file() {
        return Ok((spec, outer));
    }
    let mut map = read_object(&file)?;
    let inner = special_ids(&file, &map)?;
    map.retain(|key, _| !SPECIAL.contains(&key.as_str()));
    Ok((spec, GenerationConfig { others: map, ..inner.or(outer) }))
}

/// Generation defaults next to a configuration.
const GENERATION: &str = "generation_config.json";
/// Keys of special tokens in both files: start, end, padding.
const SPECIAL: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// Special tokens in one of the files.
fn special_ids(file: &Path, map: &Map<String, Value>) -> Result<GenerationConfig> {
    let ids = |key: &str| -> Result<Vec<u32>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match map.get(key) {
            None | Some(Value::Null) => Some(Vec::new()),
            // Early Llama files write -1 for none.
            Some(value) if value.as_i64() == Some(-1) => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(value) => id(value).map(|id| vec![id]),
        };
        let what = || format!("is {}; a token id or a list of them is needed", map[key]);
        ids.ok_or_else(|| Error::config(file, key, what()))
    };
    let first = |key: &str| -> Result<Option<u32>> { Ok(ids(key)?.first().copied()) };
    let [bos, eos, pad] = SPECIAL;
    Ok(GenerationConfig { bos: first(bos)?, eos: ids(eos)?, pad: first(pad)?, ..GenerationConfig::default() })
}

/// Options of writing a folder.
#[derive(Clone, Copy, Debug)]
pub struct FolderOptions<'a> {
    /// Format of the weights.
    pub weights: SaveOptions,
    /// Special tokens and defaults of generation.
    pub generation: &'a GenerationConfig,
    /// Files to copy next to the weights under their own names: the tokenizer's.
    pub copy: &'a [PathBuf],
}

/// Writes a folder that Transformers loads unchanged. The configuration is written last, so a folder that has one is
/// complete.
///
/// # Errors
/// If the system refuses to write, or the family cannot express the specification.
///
/// # Panics
/// If the machine has no data.
pub fn save_hf(
    device: &Device,
    model: &Model,
    params: &Params,
    folder: &Path,
    options: FolderOptions<'_>,
) -> Result<()> {
    let weights = || save(device, model, params, folder, options.weights);
    write_folder(&model.spec, folder, (options, None), weights)
}

/// Writes a folder, its weights by `weights`; `quantization` is the configuration's entry for them.
pub(super) fn write_folder(
    spec: &Spec,
    folder: &Path,
    (options, quantization): (FolderOptions<'_>, Option<Value>),
    weights: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let file = folder.join("config.json");
    let tokens = context(spec);
    let extended = options.generation.positions.is_some_and(|before| before < tokens).then_some(tokens);
    let mut config = Family::write(&file, spec)?;
    config.extend(quantization.map(|said| (bitsandbytes::KEY.to_string(), said)));
    config.insert("torch_dtype".into(), json!(torch_name(options.weights.dtype)));
    // Transformers would replace an absent id by the family's default; null means none.
    let ids = special_values(options.generation);
    config.extend(ids.clone());
    if spec.scores > 0 {
        let harmless = options.generation.pad.filter(|pad| !options.generation.eos.contains(pad));
        config.insert("pad_token_id".into(), json!(spec.padding.or(harmless)));
    }
    if let Some(parts) = spec.encoder.as_ref().filter(|parts| parts.first_position > 0) {
        // Positions begin after the padding token's.
        config.insert("pad_token_id".into(), json!(parts.first_position - 1));
    }
    weights()?;
    for from in options.copy {
        let name = from.file_name().ok_or_else(|| Error::file(from, "is not a file that can be copied"))?;
        let to = folder.join(name);
        if std::fs::canonicalize(from).ok() != std::fs::canonicalize(&to).ok() {
            let bytes = std::fs::read(from).map_err(Error::io("read", from))?;
            let raised =
                extended.filter(|_| name == TOKENIZER).map(|tokens| raised(from, tokens)).transpose()?;
            write_file(&to, &raised.flatten().unwrap_or(bytes))?;
        }
    }
    let mut generation = if options.generation.others.is_empty() {
        Map::from_iter([("_from_model_config".to_string(), json!(true))])
    } else {
        options.generation.others.clone()
    };
    if let Some(tokens) = extended {
        raise(&mut generation, tokens);
    }
    generation.extend(ids.into_iter().filter(|(_, value)| !value.is_null()));
    write_file(&folder.join(GENERATION), &pretty(generation))?;
    write_file(&file, &pretty(config))
}

/// The tokenizer's file with the length limit.
const TOKENIZER: &str = "tokenizer_config.json";
/// Keys of the longest sequence in that file and in `generation_config.json`.
const LENGTHS: [&str; 3] = ["model_max_length", "max_length", "max_len"];

/// Contents of the file with lengths raised; `None` if unchanged.
fn raised(file: &Path, tokens: usize) -> Result<Option<Vec<u8>>> {
    let mut map = read_object(file)?;
    Ok(raise(&mut map, tokens).then(|| pretty(map)))
}

/// Raises lengths below `tokens`, and returns whether there were any. Transformers would truncate texts, or end
/// answers, at the old length.
fn raise(map: &mut Map<String, Value>, tokens: usize) -> bool {
    let below = |value: &Value| value.as_f64().is_some_and(|length| length < tokens as f64);
    let lower: Vec<&str> = LENGTHS.into_iter().filter(|key| map.get(*key).is_some_and(below)).collect();
    lower.iter().for_each(|key| map[*key] = json!(tokens));
    !lower.is_empty()
}

fn special_values(generation: &GenerationConfig) -> Map<String, Value> {
    let eos = match generation.eos.as_slice() {
        [] => Value::Null,
        [one] => json!(one),
        many => json!(many),
    };
    let values = [json!(generation.bos), eos, json!(generation.pad)];
    SPECIAL.map(String::from).into_iter().zip(values).collect()
}

fn pretty(map: Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", Value::Object(map)).into_bytes()
}

/// PyTorch's name of an element type.
pub(super) fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    }
}
