//! Export of a run's model as a Hugging Face folder, and checks of its requirements before the first step.

use fathom_model::{Family, FolderOptions, ModelView, SaveOptions, Spec, save_hf};
use fathom_text::Tokenizer;
use fathom_train::Checkpoints;

use crate::error::{Context, Result, refuse};
use crate::events::Events;
use crate::export::{generation, write_model};
use crate::job::Job;
use crate::models::tokenizer_files;
use crate::text::tokenizer_dir;
use crate::{adapters, card, encoder_files, exported};

/// Tests what the export at the end will need: reads the tokenizer's files again, and makes the configuration of the
/// model after the last stage.
pub fn check(job: &Job) -> Result<()> {
    let (folder, tokenizer) = (job.model(), tokenizer_dir(&job.data()));
    let ready = || -> Result<()> {
        if folder.exists() && !folder.is_dir() {
            refuse!("{} is not a folder", folder.display());
        }
        Tokenizer::from_dir(&tokenizer)?;
        generation(job.recipe(), &tokenizer)?;
        // Only training uses a value head.
        let scores = if job.recipe().rl.has_values() { 0 } else { job.trained.scores };
        Family::write(
            &folder.join("config.json"),
            &Spec { scores, projections: None, ..job.trained.without_adapter() },
        )?;
        Ok(())
    };
    ready().context("the trained model could not be exported")
}

/// Exports the model of a run on one rank.
pub fn whole(job: &Job, ModelView { device, model, params }: ModelView<'_>) -> Result<()> {
    if model.spec.adapter.is_some() {
        let (base, trained) = (job.start()?, &job.stages[0].how.goal.trained);
        return adapters::write(
            &job.adapter(),
            ModelView { device, model, params },
            (base.as_deref(), trained),
        );
    }
    let (folder, tokenizer) = (job.model(), tokenizer_dir(&job.data()));
    let (generation, copy) = (&generation(job.recipe(), &tokenizer)?, tokenizer_files(&tokenizer));
    let weights = SaveOptions::new(model.dtype(params));
    let options = FolderOptions { weights, generation, copy: &copy };
    exported::forget(&folder)?;
    save_hf(device, model, params, &folder, options)?;
    encoder_files::write(job.recipe(), &model.spec, &folder)?;
    card::write(&folder, &model.spec, job.start()?.as_deref())?;
    exported::remember(&folder)
}

/// Exports the model of a run on several ranks, from its last checkpoint.
pub fn of_ranks(job: &Job, step: u64, events: &dyn Events) -> Result<()> {
    let saved = Checkpoints::new(&job.checkpoints(), 1).latest();
    if saved != Some(step) {
        refuse!("step {step} was not saved, so the model cannot be exported; run the same command again");
    }
    write_model(&job.folder, &job.adapter(), events)
}
