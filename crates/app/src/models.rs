//! Models from folders: where they are, their weights on a device, their tokenizers.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use fathom_base::{gguf, hub};
use fathom_grad::{Params, StateDisk};
use fathom_model::{
    EncoderSpec, HfFolder, LoadedModel, Model, PROJECTIONS, Portion, Quantized, SafeTensors, Scored, Source,
    Spec, StateProjections, load_scores, open_config,
};
use fathom_tensor::{DType, Device};
use fathom_text::Tokenizer;
use fathom_text::gguf::side_file;
use fathom_text::tokenizer::FILES;
use fathom_train::parallel::Ranks;
use fathom_train::quantizes;
use fathom_train::recipe::Precision;

use crate::adapters::{self, Held, Use};
use crate::error::{Context, Error, Result, caught, refuse};
use crate::events::{Events, Silent};
use crate::exported;
use crate::machine::Machine;

/// The element type of a precision.
pub fn precision(precision: Precision) -> DType {
    match precision {
        Precision::Bf16 => DType::Bf16,
        Precision::F32 => DType::F32,
    }
}

/// The Hugging Face folder of a path: the path itself, or the `model` folder of a run. A GGUF file stands for one.
///
/// # Errors
/// Neither is one.
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

/// Whether a path is an encoder's folder.
pub(crate) fn is_encoder(path: &Path) -> bool {
    model_folder(path).is_ok_and(|folder| folder.is_dir() && EncoderSpec::is_of(&folder))
}

/// The end of a message about a path without a model: what to do if it is a name of the Hugging Face hub.
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
    load_part(device, folder, dtype, &how, events)
}

/// As [`load`], for a model that is asked and not trained: blocks of a GGUF file, and linears in few bits with scales of groups, stay
/// packed where the machine multiplies with them.
///
/// # Errors
/// As [`load`].
pub fn load_stored(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    load_held(device, folder, dtype, None, events)
}

/// As [`load_stored`], with projections as the run of an adapter held them, if it did.
///
/// # Errors
/// As [`load`], and a model that cannot be held so.
pub(crate) fn load_held(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    held: Option<&Held>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    exported::verify(folder)?;
    let opened = fathom_model::open(folder)?;
    note_left_out(folder, &opened, events);
    let dtype = dtype.unwrap_or_else(|| stored_dtype(&opened.source));
    let fill =
        |model: &Model, params: &mut Params| Ok(fathom_model::load(device, model, params, &opened.source)?);
    let (model, params) = adapters::held_model(device, (&opened.spec, &opened.source, dtype), held, fill)?;
    Ok(LoadedModel { device: device.clone(), model, params })
}

/// As [`load`], with the adapter of a folder or a run if one is given.
///
/// # Errors
/// As [`load`], and an adapter of another base.
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
    let opened = fathom_model::open(folder)?;
    note_left_out(folder, &opened, events);
    let dtype = dtype.unwrap_or_else(|| stored_dtype(&opened.source));
    let base = (folder, opened.spec, &opened.source);
    let (model, params) = adapters::load(device, base, adapter, (dtype, how))?;
    Ok(LoadedModel { device: device.clone(), model, params })
}

/// Opens the disk behind the weights of a model.
pub(crate) type OpenDisk<'a> = dyn Fn(&Spec, DType) -> Result<Option<Rc<StateDisk>>> + 'a;

/// How a rank holds its part of a model.
pub(crate) struct How<'a> {
    /// Gives the disk behind the weights.
    pub disk: &'a OpenDisk<'a>,
    /// As they share it.
    pub ranks: &'a Ranks,
    /// What of it is in few bits.
    pub quantized: Option<&'a Quantized>,
    /// What a run adds to the model.
    pub adapt: &'a dyn Fn(Spec) -> Result<Spec>,
}

/// As [`load`], of a rank's part; a head of scores that the folder does not have, and projections of hidden states, begin at random.
pub(crate) fn load_part(
    device: &Device,
    folder: &Path,
    dtype: Option<DType>,
    how: &How<'_>,
    events: &dyn Events,
) -> Result<LoadedModel> {
    exported::verify(folder)?;
    let opened = fathom_model::open(folder)?;
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
    } else if let Some(StateProjections { count, columns }) = spec.projections {
        let shape = [count * columns, spec.hidden];
        let source = Scored::named(&opened.source, PROJECTIONS, shape, SEED);
        fathom_model::load(device, &model, &mut params, &source)?;
    } else {
        fathom_model::load(device, &model, &mut params, &opened.source)?;
    }
    Ok(LoadedModel { device: device.clone(), model, params })
}

/// The same first values for the head of scores of another adapter over a folder's model.
pub(crate) fn begin_scores(device: &Device, folder: &Path, model: &Model, params: &Params) -> Result<()> {
    if model.spec.scores == 0 {
        return Ok(());
    }
    let HfFolder { spec, source, .. } = fathom_model::open(folder)?;
    if spec.scores > 0 {
        return Ok(load_scores(device, model, params, &source)?);
    }
    Ok(load_scores(device, model, params, &new_scores(&source, &model.spec))?)
}

/// A model's weights with a new head of scores.
fn new_scores<'a>(source: &'a SafeTensors, spec: &Spec) -> Scored<'a> {
    Scored::new(source, [spec.scores, spec.hidden], SEED)
}

/// Of a new head of scores and of projections, the same in each run.
const SEED: u64 = 24;

/// A model with so many scores in the place of its vocabulary's head; as it is for 0.
///
/// # Errors
/// It has others.
pub(crate) fn scoring(spec: Spec, scores: usize) -> Result<Spec> {
    match (spec.scores, scores) {
        (_, 0) => Ok(spec),
        (0, _) => Ok(spec.scoring(scores)),
        (has, _) if has == scores => Ok(spec),
        (has, _) => refuse!(
            "the model has {has} scores and the objective {scores}; start from another model (model.from)"
        ),
    }
}

/// What of a folder is not read.
pub(crate) fn note_left_out(folder: &Path, opened: &HfFolder, events: &dyn Events) {
    if let Some(left_out) = opened.left_out {
        events.note(&format!("{}: {left_out}", folder.display()));
    }
}

/// A rank's part of a model.
///
/// # Errors
/// A model that cannot be cut like that.
pub fn portion(device: &Device, spec: &Spec, ranks: &Ranks) -> Result<Portion> {
    let portion = ranks.portion(spec, &device.mesh);
    portion.check(spec).map_err(|misfit| Error::Refused(misfit.to_string()))?;
    Ok(portion)
}

/// bf16 if every stored tensor is bf16, else f32. In a GGUF file norms are f32 always, and blocks of few bits are for narrow weights.
pub(crate) fn stored_dtype(source: &SafeTensors) -> DType {
    let few = |name: &str| {
        let vector = source.shape(name).is_some_and(|shape| shape.len() == 1);
        source.kind(name).is_some_and(|kind| vector || kind.block() > 1)
    };
    let narrow = source.names().iter().all(|name| source.dtype(name) == Some(DType::Bf16) || few(name));
    if narrow { DType::Bf16 } else { DType::F32 }
}

/// Whether most weights of a model are f32. A folder that cannot be read is reported where it is read.
pub(crate) fn is_in_f32(model: &Path) -> bool {
    let weights = model_folder(model).ok().and_then(|folder| SafeTensors::open_folder(&folder).ok());
    let Some(weights) = weights else { return false };
    let elements =
        |name: &&str| weights.shape(name).map_or(0.0, |shape| shape.iter().map(|n| *n as f64).product());
    let (names, mut all, mut wide) = (weights.names(), 0.0, 0.0);
    for name in &names {
        all += elements(name);
        let few = weights.kind(name).is_some_and(|kind| kind.block() > 1);
        wide += if weights.dtype(name) == Some(DType::F32) && !few { elements(name) } else { 0.0 };
    }
    2.0 * wide > all
}

/// The tokenizer of a model's folder.
///
/// # Errors
/// None there, or one that cannot be read.
pub fn tokenizer(folder: &Path) -> Result<Tokenizer> {
    Ok(Tokenizer::from_dir(folder)?)
}

/// Whether a model's folder has a chat template. A folder that cannot be read has none.
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

/// The files of a tokenizer in a folder.
pub(crate) fn tokenizer_files(folder: &Path) -> Vec<PathBuf> {
    FILES.map(|name| folder.join(name)).into_iter().filter(|file| file.is_file()).collect()
}

/// The files of a model's tokenizer, to be copied into the folder `to`; those that a GGUF file stands for are written there.
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

/// A model that is ready to be asked.
pub struct TextModel {
    /// Its Hugging Face folder.
    pub folder: PathBuf,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The model with its weights.
    pub loaded: LoadedModel,
}

/// Opens a run's model, or that of a Hugging Face folder.
///
/// # Errors
/// No model there, a machine that is asked for and is not there, no memory for it.
pub fn open(path: &Path, dtype: Option<DType>, machine: &Machine, events: &dyn Events) -> Result<TextModel> {
    open_with(path, None, dtype, machine, events)
}

/// A rank's part of a model, on its device, as [`load_held`] holds it.
///
/// # Errors
/// As [`open`], and a model that cannot be cut like that, or cannot be held so.
pub(crate) fn open_part(
    path: &Path,
    dtype: Option<DType>,
    held: Option<&Held>,
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

/// As [`open`], with the adapter of a folder or a run if one is given. Weights that the machine multiplies with in few bits stay so, those
/// that the adapter's run held so among them, but under an adapter that changes its base (PiSSA, modules that were trained whole).
///
/// # Errors
/// As [`open`], and an adapter of another base.
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

/// As [`open_with`], of a model that is to write.
///
/// # Errors
/// As [`open_with`], and a reward model.
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

/// Whether a model has a head for the vocabulary.
///
/// # Errors
/// A reward model, which has scores in its place.
pub(crate) fn check_writes(path: &Path, spec: &Spec) -> Result<()> {
    if spec.scores > 0 {
        refuse!(
            "{} is a reward model: it has a head of scores and none for tokens; ask it for rewards (fathom score, fathom eval --reward-bench, \
             /v1/rerank of fathom serve)",
            path.display()
        );
    }
    Ok(())
}
