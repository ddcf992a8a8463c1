//! Quantization of a model's projections to four bits or FP8, as folders that other servers load.

mod awq;
mod moments;

use std::path::{Path, PathBuf};

use fathom_model::{
    BlockTensor, Coder, FolderOptions, Fp8Save, GroupedSave, GroupedTensor, HfFolder, Packing4, RoundTo,
    SaveOptions, Spec, Zero, block_tensors, gptq, group_of, prunable, save_hf_coded, save_hf_rounded,
};

use crate::calibration::{mean_loss, samples};
use crate::error::{Error, Result, caught, refuse};
use crate::events::Events;
use crate::export::Target;
use crate::machine::Machine;
use crate::models::{self, model_folder, tokenizer_files_for};
use fathom_model::LoadedModel;

use moments::{CalibrationModel, KnownMoments};

/// One of this many samples is held out for measuring.
const HELD_OUT: usize = 4;

/// Options of a quantization.
pub struct Request {
    /// Folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Folder to write.
    pub to: PathBuf,
    /// Format; one for which [`Target::is_coded`] holds.
    pub format: Target,
    /// Calibration text: training rows or plain text. Required by `gptq` and `awq`; for the other formats it only
    /// measures the loss.
    pub data: Option<PathBuf>,
    /// Maximum number of samples.
    pub samples: usize,
    /// Maximum tokens of a sample.
    pub sample_tokens: usize,
}

/// Result of a quantization.
#[derive(Clone, Debug)]
pub struct QuantizationSummary {
    /// Family of the model.
    pub family: String,
    /// Number of weights.
    pub weights: u64,
    /// Columns per scale; 0 for one scale per row.
    pub group: usize,
    /// Mean loss per token on held-out text, before and after.
    pub losses: Option<[f64; 2]>,
    /// Quantization of the experts' projections; `None` for a model without experts.
    pub experts: Option<Experts>,
}

/// Quantization of a model's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    /// Not quantized: the format has no layout for experts stored as one tensor.
    Whole,
    /// All of them are quantized.
    Rounded {
        /// Number of projections.
        projections: usize,
        /// Number of those rounded to nearest, without calibration, since too few tokens of the text were routed to the
        /// expert.
        unjudged: usize,
    },
}

/// Result of writing the folder.
struct FolderSummary {
    /// Columns per scale.
    group: usize,
    /// Number of experts' projections with too little calibration text.
    unjudged: usize,
}

/// Quantizes a model and writes the folder.
///
/// # Errors
/// No model or text there; a model that the format does not support; a folder that is not empty.
pub fn run(request: &Request, machine: &Machine, events: &dyn Events) -> Result<QuantizationSummary> {
    if std::fs::read_dir(&request.to).is_ok_and(|mut entries| entries.next().is_some()) {
        refuse!("{} is not empty; name another folder, or remove it", request.to.display());
    }
    caught(|| {
        let folder = model_folder(&request.model)?;
        let tokenizer = models::tokenizer(&folder)?;
        let opened = fathom_model::open(&folder)?;
        let mut texts = match &request.data {
            Some(data) => samples((data, request.samples, request.sample_tokens), (&folder, &tokenizer))?,
            None if matches!(request.format, Target::Gptq | Target::Awq) => {
                refuse!(
                    "--to {} rounds by what projections are given; name a text with --data",
                    request.format
                )
            }
            None => Vec::new(),
        };
        let held = texts.len() - texts.len() / HELD_OUT;
        let measured = if texts.len() < 2 { texts.clone() } else { texts.split_off(held) };
        let device = machine.open()?;
        let _revocable = machine.revocable(&device);
        let loaded =
            if request.data.is_some() { Some(models::load(&device, &folder, None, events)?) } else { None };
        let loss = |loaded: &LoadedModel| mean_loss(loaded.view(), &tokenizer, &measured);
        let before = loaded.as_ref().map(loss).transpose()?;
        let calibration = loaded.as_ref().map(|loaded| CalibrationModel { loaded, texts: &texts, events });
        let FolderSummary { group, unjudged } = write(request, (&folder, &opened), calibration.as_ref())?;
        drop(loaded);
        let written = models::load(&device, &request.to, None, events)?;
        let after = before.is_some().then(|| loss(&written)).transpose()?;
        Ok(QuantizationSummary {
            family: opened.spec.family.to_string(),
            weights: written.params.num_elements(),
            group,
            losses: before.zip(after).map(|(before, after)| [before, after]),
            experts: experts(&block_tensors(&opened.spec), unjudged),
        })
    })
}

/// Summarizes the quantization of experts.
fn experts(tensors: &[BlockTensor], unjudged: usize) -> Option<Experts> {
    let mut all = tensors.iter().filter(|tensor| tensor.role.starts_with("experts.")).peekable();
    all.peek()?;
    let projections = all.filter(|tensor| tensor.expert.is_some()).count();
    Some(if projections > 0 { Experts::Rounded { projections, unjudged } } else { Experts::Whole })
}

/// Writes the folder in the requested format.
fn write(
    request: &Request,
    (folder, opened): (&Path, &HfFolder),
    calibration: Option<&CalibrationModel<'_>>,
) -> Result<FolderSummary> {
    let HfFolder { spec, generation, source, .. } = opened;
    let copy = tokenizer_files_for(folder, &request.to)?;
    let weights = SaveOptions::new(models::stored_dtype(source));
    let options = FolderOptions { weights, generation, copy: &copy };
    let save = |coder: &dyn Coder, group: usize| -> Result<usize> {
        save_hf_coded((spec, [source, source]), &request.to, (coder, options))?;
        Ok(group)
    };
    let rounded = |how: RoundTo| -> Result<usize> {
        Ok(save_hf_rounded((spec, [source, source]), &request.to, (how, options))?.block())
    };
    let named = |message: String| Error::Refused(format!("{}: {message}", folder.display()));
    let tensors = block_tensors(spec);
    let grouped = || group_of(&tensors).map_err(named);
    let mut unjudged = 0;
    let group = match (request.format, calibration) {
        (Target::Fp8, _) => save(&Fp8Save, 0)?,
        (Target::Int4, _) => rounded(RoundTo::Int4)?,
        (Target::Mxfp4, _) => rounded(RoundTo::Mxfp4)?,
        (Target::Nvfp4, _) => rounded(RoundTo::Nvfp4)?,
        (Target::Gptq, Some(calibration)) => {
            judgeable(folder, (spec, &tensors))?;
            let group = grouped()?;
            let mut all = calibration.moments(&tensors);
            let mut failed = None;
            let code = |name: &str, shape, values: Vec<f32>| {
                let nearest = || GroupedTensor::round(&values, shape, group, Zero::Middle);
                let found = match all.of(name) {
                    KnownMoments::Enough(moments) => gptq(&values, shape, moments, group),
                    KnownMoments::TooLittle => {
                        unjudged += 1;
                        Some(nearest())
                    }
                    KnownMoments::Nothing => None,
                };
                if found.is_none() {
                    failed = Some(name.to_string());
                }
                Ok(found.unwrap_or_else(nearest))
            };
            save(&GroupedSave::new((Packing4::Gptq, group), code, |_: &str, _: &mut [f32]| ()), group)?;
            if let Some(name) = failed {
                refuse!("{}: what {name} is given was not seen, or is no number", folder.display());
            }
            group
        }
        (Target::Awq, Some(calibration)) => {
            judgeable(folder, (spec, &tensors))?;
            let group = grouped()?;
            let factors =
                awq::factors((spec, source), (&tensors, group), &calibration.sizes()).map_err(named)?;
            let of_experts = tensors.iter().filter(|tensor| tensor.expert.is_some());
            unjudged = of_experts.filter(|tensor| !factors.has(&tensor.name)).count();
            let code = |name: &str, shape: [usize; 2], mut values: Vec<f32>| {
                factors.scale(name, shape, &mut values);
                Ok(GroupedTensor::round(&values, shape, group, Zero::Lowest))
            };
            let adjust = |name: &str, values: &mut [f32]| factors.adjust(name, values);
            save(&GroupedSave::new((Packing4::Awq, group), code, adjust), group)?
        }
        (format, _) => refuse!("{format} is no format of a folder that is rounded"),
    };
    Ok(FolderSummary { group, unjudged })
}

/// Checks that a model can be calibrated.
///
/// # Errors
/// A model whose projections' inputs the text does not determine.
fn judgeable(folder: &Path, (spec, tensors): (&Spec, &[BlockTensor])) -> Result<()> {
    let folder = folder.display();
    if experts(tensors, 0) == Some(Experts::Whole) {
        refuse!(
            "{folder}: the model has its experts as one tensor, for which --to gptq and awq have no layout; --to int4, mxfp4, nvfp4 and fp8 \
             need no text, and leave them as they are"
        );
    }
    // Each expert is calibrated by its own inputs.
    match prunable(&Spec { moe: None, ..spec.clone() }) {
        Ok(()) => Ok(()),
        Err(what) => {
            let what = what.replace("pruning", "rounding by text");
            refuse!("{folder}: the model {what}; --to int4, mxfp4, nvfp4 and fp8 need no text")
        }
    }
}
