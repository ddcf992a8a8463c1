//! Pruning: a smaller model from a larger one, by removing the parts that matter least for some text and leaving the
//! others unchanged. The loss in quality is recovered by distillation from the larger model (recipe `distill`).

mod importance;

use std::path::PathBuf;

use fathom_base::human;
use fathom_model::{FolderOptions, ModelView, PrunePlan, SaveOptions, open_config, prunable, prune, save_hf};
use fathom_train::recipe::Precision;

use crate::calibration::{mean_loss, samples};
use crate::error::{Result, caught, refuse};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{self, TextModel, tokenizer_files_for};
use fathom_model::LoadedModel;

use importance::{Choice, importance};
pub use importance::{Importance, Sizes};

/// Options of a pruning.
pub struct Request {
    /// Folder of a run, or a Hugging Face folder.
    pub model: PathBuf,
    /// Folder to write.
    pub to: PathBuf,
    /// Calibration text: training rows or plain text.
    pub data: PathBuf,
    /// Numbers of layers, columns of the residual stream, columns inside MLPs, and query heads to keep; `None` keeps
    /// all.
    pub sizes: Sizes,
    /// Maximum number of calibration samples.
    pub samples: usize,
    /// Maximum tokens of a sample.
    pub sample_tokens: usize,
    /// Type of the weights.
    pub precision: Precision,
}

/// Result of a pruning.
#[derive(Clone, Debug)]
pub struct PruneSummary {
    /// Number of weights before and after.
    pub weights: [u64; 2],
    /// Mean loss per token of the samples, before and after.
    pub losses: [f64; 2],
    /// Number of calibration tokens.
    pub tokens: usize,
    /// Parts that were kept.
    pub kept: PrunePlan,
    /// Importance of each part.
    pub importance: Importance,
}

/// Prunes a model and writes the smaller one.
///
/// # Errors
/// No model or text there; invalid sizes; a folder that is not empty.
pub fn run(request: &Request, machine: &Machine, events: &dyn Events) -> Result<PruneSummary> {
    if std::fs::read_dir(&request.to).is_ok_and(|mut entries| entries.next().is_some()) {
        refuse!("{} is not empty; name another folder, or remove it", request.to.display());
    }
    let dtype = request.precision.dtype();
    let TextModel { folder, tokenizer, loaded } = models::open(&request.model, Some(dtype), machine, events)?;
    let _revocable = machine.revocable(&loaded.device);
    caught(|| {
        let LoadedModel { device, model, params } = &loaded;
        let refusal = |message: String| format!("{}: the model {message}", folder.display());
        if let Err(message) = prunable(&model.spec) {
            refuse!("{}", refusal(message));
        }
        let wanted = Choice::new(&model.spec, &request.sizes)?;
        let samples =
            samples((&request.data, request.samples, request.sample_tokens), (&folder, &tokenizer))?;
        let tokens = samples.iter().map(Vec::len).sum();
        events.doing(&format!(
            "judging the parts of {} by {} tokens",
            folder.display(),
            human::grouped(tokens as u64)
        ));
        let importance = importance(loaded.view(), &samples);
        let kept = wanted.of(&model.spec, &importance);
        let pruned = prune(loaded.view(), &kept);
        let (smaller, slices) = match pruned {
            Ok(pruned) => pruned,
            Err(message) => refuse!("{}", refusal(message)),
        };
        let loss = |model, params| mean_loss(ModelView { device, model, params }, &tokenizer, &samples);
        let losses = [loss(model, params)?, loss(&smaller, &slices)?];
        let copy = tokenizer_files_for(&folder, &request.to)?;
        let generation = fathom_model::open(&folder)?.generation;
        let options =
            FolderOptions { weights: SaveOptions::new(dtype), generation: &generation, copy: &copy };
        save_hf(device, &smaller, &slices, &request.to, options)?;
        if open_config(&request.to)?.0 != smaller.spec {
            refuse!(
                "{}: the family {} cannot say in its configuration which layers are left, as they differ from each other; leave --layers \
                 out, and remove the folder",
                request.to.display(),
                smaller.spec.family
            );
        }
        let weights = [params, &slices].map(fathom_grad::Params::num_elements);
        Ok(PruneSummary { weights, losses, tokens, kept, importance })
    })
}
