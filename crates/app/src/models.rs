//! Models in folders: paths, weights on a device, tokenizers.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use fathom_base::{gguf, hub};
use fathom_grad::{Params, StateDisk};
use fathom_model::{
    EncoderHead, EncoderSpec, HfFolder, LoadedModel, Model, PROJECTIONS, Portion, Quantization, SafeTensors,
    Source, Spec, StateProjections, WithRandomTensor, load_scores, open_any_config, open_config,
};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_text::gguf::side_file;
use fathom_text::tokenizer::FILES;
use fathom_train::parallel::Ranks;
use fathom_train::quantizes;

use crate::adapters::{self, BaseQuantization, Use};
use crate::error::{Context, Error, Result, caught, refuse};
use crate::events::{Events, Silent};
use crate::exported;
use crate::machine::Machine;

/// Most tokens of an encoder-decoder's streams, unless a context is asked for: its distances have no end, and a source
/// is read at once.
const SOURCE_TOKENS: usize = 4096;

/// Returns a model's context if none is asked for.
pub fn context_tokens(spec: &Spec) -> usize {
    if spec.source > 0 { spec.max_positions.min(SOURCE_TOKENS) } else { spec.max_positions }
}

/// Returns the Hugging Face folder of a path: the path itself, or the `model` folder of a run. A GGUF file is accepted
/// in its place.
///
/// # Errors
/// Neither is a model.
pub fn model_folder(path: &Path) -> Result<PathBuf> {
    if gguf::is_file(path) {
        return Ok(path.to_path_buf());
    }
    [path.to_path_buf(), path.join("model")]
        .into_iter()
        .find(|folder| folder.join("config.json").is_file())
        .with_context(|| {
            format!(
                "{}: neither a Hugging Face folder (config.json), nor a run with a `model` folder, nor a .gguf file{}",
                path.display(),
                adapters::advice(path).unwrap_or_else(|| or_on_the_hub(path))
            )
        })
}

/// Returns whether a path is the folder of an encoder.
pub(crate) fn is_encoder(path: &Path) -> bool {
    model_folder(path).is_ok_and(|folder| folder.is_dir() && EncoderSpec::is_of(&folder))
}

/// Returns the most tokens of a text for which an encoder has positions; `None` if a path is none, or has no limit.
pub(crate) fn encoder_room(path: &Path) -> Option<usize> {
    let folder = model_folder(path).ok().filter(|folder| folder.is_dir())?;
    let (spec, _) = open_any_config(&folder).ok()?;
    spec.encoder.as_ref().and_then(|_| spec.position_room())
}

/// Returns the end of a message about a path without a model: advice if the path is a name on the Hugging Face Hub.
pub(crate) fn or_on_the_hub(path: &Path) -> String {
    let advice = |advice| format!("; {advice} (a plan needs its config.json alone)");
    hub::advice(path).map(advice).unwrap_or_default()
}

/// Loads a model's weights, streamed, as `dtype` (as stored if `None`).
///
/// # Errors
/// Files that cannot be read, or were altered since a run exported them.
pub fn load(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    let ranks = &Ranks::default();
    let how = How { disk: &|_, _| Ok(None), ranks, quantized: None, adapt: &Ok };
    load_how(device, folder, dtype, (&how, false), events)
}

/// [`load`] for inference: blocks of a GGUF file, and linear layers quantized in groups, stay packed if the machine can
/// multiply them in packed form.
///
/// # Errors
/// Those of [`load`].
pub fn load_stored(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    load_held(device, folder, dtype, None, events)
}

/// [`load_stored`], with projections quantized as in an adapter's run, if it quantized them.
pub(crate) fn load_held(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    held: Option<&BaseQuantization>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    exported::verify(folder)?;
    let opened = fathom_model::open_writer(folder)?;
    note_left_out(folder, &opened, events);
    portion(device, &opened.spec, &Ranks::default())?;
    let dtype = dtype.unwrap_or_else(|| stored_dtype(&opened.source));
    let fill =
        |model: &Model, params: &mut Params| Ok(fathom_model::load(device, model, params, &opened.source)?);
    let (model, params) = adapters::held_model(device, (&opened.spec, &opened.source, dtype), held, fill)?;
    Ok(LoadedModel { device: device.clone(), model, params })
}

/// [`load`], with an adapter (its folder, or its run's) if one is given.
///
/// # Errors
/// Those of [`load`], and an adapter of another base.
pub fn load_with(
    device: &Device,
    folder: &Path,
    adapter: Option<&Path>,
    dtype: Option<DType>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    let Some(adapter) = adapter else { return load(device, folder, dtype, events) };
    load_adapted(device, folder, (adapter, Use::Plain), dtype, events)
}

fn load_adapted(
    device: &Device,
    folder: &Path,
    (adapter, how): (&Path, Use),
    dtype: Option<DType>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    exported::verify(folder)?;
    let opened = fathom_model::open_any(folder)?;
    note_left_out(folder, &opened, events);
    let dtype = dtype.unwrap_or_else(|| stored_dtype(&opened.source));
    let base = (folder, opened.spec, &opened.source);
    let (model, params) = adapters::load(device, base, adapter, (dtype, how))?;
    Ok(LoadedModel { device: device.clone(), model, params })
}

/// Opens the disk behind the weights of a model.
pub(crate) type OpenDisk<'a> = dyn Fn(&Spec, DType) -> Result<Option<Rc<StateDisk>>> + 'a;

/// Options of a rank's part of a model.
pub(crate) struct How<'a> {
    /// Opens the disk behind the weights.
    pub disk: &'a OpenDisk<'a>,
    /// Ranks that share the model.
    pub ranks: &'a Ranks,
    /// Quantization of the weights, if any.
    pub quantized: Option<&'a Quantization>,
    /// Adds a run's own parts to the specification.
    pub adapt: &'a dyn Fn(Spec) -> Result<Spec>,
}

/// [`load`], for a rank's part of a model in training. A head that the folder lacks, and projections of hidden states,
/// are initialized randomly.
pub(crate) fn load_part(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    how: &How<'_>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    load_how(device, folder, dtype, (how, true), events)
}

/// Loads a rank's part of a model, in which an encoder's head may be new.
fn load_how(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    (how, new_head): (&How<'_>, bool),
    events: &dyn Events,
) -> Result<LoadedModel> {
    exported::verify(folder)?;
    let opened = fathom_model::open_any(folder)?;
    if device.mesh.rank() == 0 {
        note_left_out(folder, &opened, events);
    }
    let dtype = dtype.unwrap_or_else(|| stored_dtype(&opened.source));
    let had = opened.spec.scores;
    let spec = (how.adapt)(opened.spec)?;
    let needs_scores = spec.scores > 0 && had == 0;
    let disk = (how.disk)(&spec, dtype)?;
    let portion = portion(device, &spec, how.ranks)?;
    quantizes(how.quantized, &spec, &portion)?;
    let how = (portion, how.quantized);
    let (model, mut params) = Model::declare_quantized(device, &spec, dtype, disk, how);
    if needs_scores {
        fathom_model::load(device, &model, &mut params, &new_scores(&opened.source, &spec))?;
    } else if spec.encoder.is_some() && new_head {
        let source = WithRandomTensor::head(&opened.source, &spec, SEED);
        let new: Vec<&str> = source.added().collect();
        let masked = spec.encoder.as_ref().is_some_and(|parts| parts.head == EncoderHead::Masked);
        if spec.adapter.is_some() && masked && !new.is_empty() {
            refuse!(
                "{}: it has no masked-language head, which an adapter leaves as it is; start from a folder with one, or train all of \
                     the model first",
                folder.display()
            );
        }
        if device.mesh.rank() == 0 && !new.is_empty() {
            let message = "the head begins from new weights, which the folder does not have";
            events.note(&format!("{}: {message}: {}", folder.display(), new.join(", ")));
        }
        fathom_model::load(device, &model, &mut params, &source)?;
    } else if let Some(StateProjections { count, columns }) = spec.projections {
        let shape = [count * columns, spec.hidden];
        let source = WithRandomTensor::named(&opened.source, PROJECTIONS, shape, SEED);
        fathom_model::load(device, &model, &mut params, &source)?;
    } else {
        fathom_model::load(device, &model, &mut params, &opened.source)?;
    }
    Ok(LoadedModel { device: device.clone(), model, params })
}

/// Initializes the head of scores of another adapter over a folder's model with the same first values.
pub(crate) fn begin_scores(device: &Device, folder: &Path, model: &Model, params: &Params) -> Result<()> {
    let labels = model.spec.encoder.as_ref().map_or(0, |parts| parts.head.labels());
    if model.spec.scores == 0 && labels == 0 {
        return Ok(());
    }
    let HfFolder { spec, source, .. } = fathom_model::open_any(folder)?;
    if spec.scores > 0 {
        return Ok(load_scores(device, model, params, &source)?);
    }
    if labels > 0 {
        let source = WithRandomTensor::head(&source, &model.spec, SEED);
        return Ok(load_scores(device, model, params, &source)?);
    }
    Ok(load_scores(device, model, params, &new_scores(&source, &model.spec))?)
}

/// Returns a model's weights with a new head of scores.
fn new_scores<'a>(source: &'a SafeTensors, spec: &Spec) -> WithRandomTensor<'a> {
    WithRandomTensor::new(source, [spec.scores, spec.hidden], SEED)
}

/// Seed of new heads of scores and of projections, the same in every run.
const SEED: u64 = 24;

/// Notes the parts of a folder that are not read.
pub(crate) fn note_left_out(folder: &Path, opened: &HfFolder, events: &dyn Events) {
    if let Some(left_out) = opened.left_out {
        events.note(&format!("{}: {left_out}", folder.display()));
    }
}

/// Returns a rank's part of a model.
///
/// # Errors
/// A model that cannot be split so, or whose layers the machine cannot compute.
pub fn portion(device: &Device, spec: &Spec, ranks: &Ranks) -> Result<Portion> {
    let portion = ranks.portion(spec, &device.mesh);
    portion.check(spec).map_err(|misfit| Error::Refused(misfit.to_string()))?;
    Ok(portion)
}

/// Returns bf16 if every stored tensor is bf16, else f32. In a GGUF file, norms (always f32) are ignored and quantized
/// blocks count as bf16.
pub(crate) fn stored_dtype(source: &SafeTensors) -> DType {
    let few = |name: &str| {
        let vector = source.shape(name).is_some_and(|shape| shape.len() == 1);
        source.kind(name).is_some_and(|kind| vector || kind.block() > 1)
    };
    let narrow = source.names().iter().all(|name| source.dtype(name) == Some(DType::Bf16) || few(name));
    if narrow { DType::Bf16 } else { DType::F32 }
}

/// Opens the tokenizer of a model's folder.
///
/// # Errors
/// None there, or one that cannot be read.
pub fn tokenizer(folder: &Path) -> Result<Tokenizer> {
    Ok(Tokenizer::from_dir(folder)?)
}

/// Returns whether a model's folder has a chat template; false if it cannot be read.
pub fn converses(folder: &Path) -> bool {
    let named = |file: &str| -> String {
        let bytes = side_file(folder, file).ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    folder.join("chat_template.jinja").is_file()
        || ["tokenizer_config.json", "chat_template.json"]
            .iter()
            .any(|file| named(file).contains("\"chat_template\""))
}

/// Returns the paths of a folder's tokenizer files.
pub(crate) fn tokenizer_files(folder: &Path) -> Vec<PathBuf> {
    FILES.map(|name| folder.join(name)).into_iter().filter(|file| file.is_file()).collect()
}

/// Returns the tokenizer files of a model that are to be copied to the folder `to`; for a GGUF file, writes them there
/// instead.
pub(crate) fn tokenizer_files_for(model: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    if !gguf::is_file(model) {
        return Ok(tokenizer_files(model));
    }
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for name in FILES {
        if let Some(bytes) = side_file(model, name)? {
            fathom_model::write_file(&to.join(name), &bytes)?;
        }
    }
    Ok(Vec::new())
}

/// A language model ready for inference.
pub struct TextModel {
    /// Hugging Face folder of the model.
    pub folder: PathBuf,
    /// Tokenizer of the model.
    pub tokenizer: Tokenizer,
    /// Model with its weights.
    pub loaded: LoadedModel,
}

/// Opens a run's decoder or one in a Hugging Face folder.
///
/// # Errors
/// No decoder there; a requested machine that is missing; out of memory.
pub fn open(path: &Path, dtype: Option<DType>, machine: &Machine, events: &dyn Events) -> Result<TextModel> {
    open_config(&model_folder(path)?)?;
    open_with(path, None, dtype, machine, events)
}

/// Opens a rank's part of a model on its device; for `held` see [`load_held`].
pub(crate) fn open_part(
    path: &Path,
    dtype: Option<DType>,
    held: Option<&BaseQuantization>,
    device: Device,
) -> Result<TextModel> {
    let folder = model_folder(path)?;
    let ranks = Ranks { grid: *device.mesh.grid(), rank: device.mesh.rank(), ..Ranks::default() };
    let spec = open_config(&folder)?.0;
    ranks.check(&spec)?;
    portion(&device, &spec, &Ranks::default())?;
    let (tokenizer, loaded) = (tokenizer(&folder)?, load_held(&device, &folder, dtype, held, &Silent)?);
    Ok(TextModel { folder, tokenizer, loaded })
}

/// [`open`], with an adapter (its folder, or its run's) if one is given. Weights that the machine can multiply in
/// packed form stay packed, including those that the adapter's run quantized, except under an adapter that changes its
/// base (PiSSA, modules trained in full).
///
/// # Errors
/// Those of [`open`], and an adapter of another base.
pub fn open_with(
    path: &Path,
    adapter: Option<&Path>,
    dtype: Option<DType>,
    machine: &Machine,
    events: &dyn Events,
) -> Result<TextModel> {
    caught(|| {
        let folder = model_folder(path)?;
        let tokenizer = tokenizer(&folder)?;
        let device = machine.open()?;
        let loaded = match adapter {
            None => load_stored(&device, &folder, dtype, events)?,
            Some(adapter) => load_adapted(&device, &folder, (adapter, Use::Asked), dtype, events)?,
        };
        Ok(TextModel { folder, tokenizer, loaded })
    })
}

/// [`open_with`], for a model that generates text.
///
/// # Errors
/// Those of [`open_with`], and a reward model.
pub fn open_writer(
    path: &Path,
    adapter: Option<&Path>,
    dtype: Option<DType>,
    machine: &Machine,
    events: &dyn Events,
) -> Result<TextModel> {
    let ready = open_with(path, adapter, dtype, machine, events)?;
    check_writes(adapter.unwrap_or(path), &ready.loaded.model.spec)?;
    Ok(ready)
}

/// Checks that a model has a head for the vocabulary.
///
/// # Errors
/// A reward model, which has a head of scores instead.
pub(crate) fn check_writes(path: &Path, spec: &Spec) -> Result<()> {
    if spec.scores > 0 {
        refuse!(
            "{} is a reward model: it has a head of scores and none for tokens; ask it for rewards (fathom score, fathom eval --reward-bench, \
             /v1/rerank of fathom serve)",
            path.display()
        );
    }
    if spec.encoder.as_ref().is_some_and(|parts| parts.head != EncoderHead::Masked) {
        refuse!(
            "{} is an encoder without a masked-language head, so its tokens have no logits; ask it for vectors or labels (fathom serve)",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use fathom_cpu::Cpu;

    use super::*;
    use crate::events::Event;

    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl Events for Notes {
        fn on(&self, event: Event) {
            if let (Event::Note(text), Ok(mut notes)) = (event, self.0.lock()) {
                notes.push(text);
            }
        }
    }

    /// A run of training makes the head that a folder lacks, and says so; everything else names the tensor.
    #[test]
    fn a_missing_head_of_an_encoder_is_made_for_training_alone() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders/bert");
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(golden.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let config = std::fs::read_to_string(golden.join("config.json")).unwrap();
        let config = config.replace("BertForSequenceClassification", "BertForMaskedLM");
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let device = || Device::new(Arc::new(Cpu::new(1, None)), 1 << 26);
        let notes = Notes::default();
        let error = load(&device(), folder.path(), None, &notes).err().unwrap().to_string();
        assert!(error.contains("cls.predictions."), "{error}");
        let ranks = &Ranks::default();
        let how = How { disk: &|_, _| Ok(None), ranks, quantized: None, adapt: &Ok };
        load_part(&device(), folder.path(), None, &how, &notes).unwrap();
        let said = notes.0.lock().unwrap().join("\n");
        assert!(said.contains("new weights") && said.contains("cls.predictions.bias"), "{said}");
    }
}
