//! A model's projections in four bits by groups, or in FP8, as folders that other servers load.

mod awq;
mod moments;

use std::path::{Path, PathBuf};

use fathom_model::{
    BlockTensor, Coder, FolderOptions, Fp8Save, Grouped, GroupedSave, HfFolder, Packing4, SaveOptions, Spec,
    Zero, block_tensors, gptq, prunable, save_hf_coded,
};

use crate::calibration::{mean_loss, samples};
use crate::error::{Error, Result, caught, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{self, Loaded, model_folder, tokenizer_files_for};

use moments::Judged;

/// Sizes of groups, the first that fits all projections is taken.
const GROUPS: [usize; 3] = [128, 64, 32];
/// Of how many samples one is kept for measuring.
const HELD_OUT: usize = 4;

fathom_base::choice! {
    /// Formats of folders.
    pub enum Method {
        /// compressed-tensors: 4 bits by groups, to nearest.
        Int4 = "int4",
        /// compressed-tensors: e4m3 with a scale a row.
        Fp8 = "fp8",
        /// GPTQ: 4 bits by groups, by what the projections are given for some text.
        Gptq = "gptq",
        /// AWQ: 4 bits by groups, columns scaled by what they are given for some text.
        Awq = "awq",
    }
}

/// What is asked.
pub struct Request {
    /// A run's folder, or a Hugging Face folder.
    pub model: PathBuf,
    /// The folder to write.
    pub to: PathBuf,
    /// The format.
    pub method: Method,
    /// Text to judge by: lessons, or plain text. `gptq` and `awq` need it; of the others it measures the loss.
    pub data: Option<PathBuf>,
    /// Samples of it, at most, and tokens of each, at most.
    pub samples: usize,
    /// See `samples`.
    pub sample_tokens: usize,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// Of the model.
    pub family: String,
    /// Number of its weights.
    pub weights: u64,
    /// Columns under one scale; 0 where it is a row.
    pub group: usize,
    /// Mean loss of a token of text that nothing was judged by, before and after.
    pub losses: Option<[f64; 2]>,
}

/// Writes the folder.
///
/// # Errors
/// No model or text there, a model that has no such format, a folder that holds something.
pub fn run(request: &Request, machine: &Machine, events: &dyn Events) -> Result<Quantised> {
    if std::fs::read_dir(&request.to).is_ok_and(|mut entries| entries.next().is_some()) {
        refuse!("{} is not empty; name another folder, or remove it", request.to.display());
    }
    caught(|| {
        let folder = model_folder(&request.model)?;
        let tokenizer = models::tokenizer(&folder)?;
        let opened = fathom_model::open(&folder)?;
        let mut texts = match &request.data {
            Some(data) => samples((data, request.samples, request.sample_tokens), (&folder, &tokenizer))?,
            None if matches!(request.method, Method::Gptq | Method::Awq) => {
                refuse!(
                    "--to {} rounds by what projections are given; name a text with --data",
                    request.method
                )
            }
            None => Vec::new(),
        };
        let held = texts.len() - texts.len() / HELD_OUT;
        let measured = if texts.len() < 2 { texts.clone() } else { texts.split_off(held) };
        let device = machine.open()?;
        let loaded =
            if request.data.is_some() { Some(models::load(&device, &folder, None, events)?) } else { None };
        let loss =
            |loaded: &Loaded| mean_loss((&device, &tokenizer), (&loaded.model, &loaded.params), &measured);
        let before = loaded.as_ref().map(loss).transpose()?;
        let judged = loaded.as_ref().map(|loaded| Judged { device: &device, loaded, texts: &texts, events });
        let group = write(request, (&folder, &opened), judged.as_ref())?;
        drop(loaded);
        let written = models::load(&device, &request.to, None, events)?;
        let after = before.is_some().then(|| loss(&written)).transpose()?;
        Ok(Quantised {
            family: opened.spec.family.to_string(),
            weights: written.params.num_elements(),
            group,
            losses: before.zip(after).map(|(before, after)| [before, after]),
        })
    })
}

/// Writes it; the size of a group.
fn write(
    request: &Request,
    (folder, opened): (&Path, &HfFolder),
    judged: Option<&Judged<'_>>,
) -> Result<usize> {
    let HfFolder { spec, generation, source, .. } = opened;
    let tensors = block_tensors(spec);
    let group = if request.method == Method::Fp8 { 0 } else { group(folder, &tensors)? };
    let copy = tokenizer_files_for(folder, &request.to)?;
    let weights = SaveOptions::new(models::stored_dtype(source));
    let save = |coder: &dyn Coder| -> Result<()> {
        let options = FolderOptions { weights, generation, copy: &copy };
        Ok(save_hf_coded((spec, source), &request.to, (coder, options))?)
    };
    let plain = |_: &str, _: &mut [f32]| ();
    match (request.method, judged) {
        (Method::Fp8, _) => save(&Fp8Save)?,
        (Method::Int4, _) => {
            let code =
                |_: &str, shape, values: Vec<f32>| Ok(Grouped::round(&values, shape, group, Zero::Middle));
            save(&GroupedSave::new((Packing4::Compressed, group), code, plain))?;
        }
        (Method::Gptq, Some(judged)) => {
            judgeable(folder, spec)?;
            let mut all = judged.moments(&tensors);
            let mut failed = None;
            let code = |name: &str, shape, values: Vec<f32>| {
                let found = all.of(name).and_then(|moments| gptq(&values, shape, moments, group));
                if found.is_none() {
                    failed = Some(name.to_string());
                }
                Ok(found.unwrap_or_else(|| Grouped::round(&values, shape, group, Zero::Middle)))
            };
            save(&GroupedSave::new((Packing4::Gptq, group), code, plain))?;
            if let Some(name) = failed {
                refuse!("{}: what {name} is given was not seen, or is no number", folder.display());
            }
        }
        (Method::Awq, Some(judged)) => {
            judgeable(folder, spec)?;
            let factors = awq::factors((spec, source), (&tensors, group), &judged.sizes())
                .map_err(|message| Error::Refused(format!("{}: {message}", folder.display())))?;
            let code = |name: &str, shape: [usize; 2], mut values: Vec<f32>| {
                factors.scale(name, shape, &mut values);
                Ok(Grouped::round(&values, shape, group, Zero::Lowest))
            };
            let adjust = |name: &str, values: &mut [f32]| factors.adjust(name, values);
            save(&GroupedSave::new((Packing4::Awq, group), code, adjust))?;
        }
        (method, None) => refuse!("--to {method} needs a text"),
    }
    Ok(group)
}

/// The size of a group that all projections have.
fn group(folder: &Path, tensors: &[BlockTensor]) -> Result<usize> {
    let widths = || tensors.iter().filter(|tensor| tensor.shape.len() == 2).map(|tensor| tensor.shape[1]);
    let found = GROUPS.into_iter().find(|group| widths().all(|width| width.is_multiple_of(*group)));
    let Some(group) = found else {
        let width = widths().find(|width| !width.is_multiple_of(GROUPS[2])).unwrap_or_default();
        let folder = folder.display();
        refuse!("{folder}: a projection has {width} columns, not whole groups of {}", GROUPS[2]);
    };
    Ok(group)
}

fn judgeable(folder: &Path, spec: &Spec) -> Result<()> {
    match prunable(spec) {
        Ok(()) => Ok(()),
        Err(what) => {
            let what = what.replace("pruning", "rounding by text");
            refuse!("{}: the model {what}; --to int4 and fp8 need no text", folder.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize]) -> BlockTensor {
        BlockTensor { name: "x".into(), layer: 0, role: "up", shape: shape.to_vec() }
    }

    #[test]
    fn groups_are_those_that_fit_all() {
        let of = |widths: &[usize]| {
            group(Path::new("m"), &widths.iter().map(|width| tensor(&[8, *width])).collect::<Vec<_>>())
        };
        assert_eq!([of(&[256, 128]).unwrap(), of(&[256, 192]).unwrap(), of(&[96]).unwrap()], [128, 64, 32]);
        assert!(of(&[128, 80]).unwrap_err().to_string().contains("80 columns"));
    }
}
