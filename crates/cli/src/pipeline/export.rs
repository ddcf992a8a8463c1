//! The model of a run as a Hugging Face folder, and what it needs: looked at before the first step.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fathom_grad::Params;
use fathom_model::{Family, FolderOptions, GenerationConfig, Model, SaveOptions, open_config, save_hf};
use fathom_tensor::Device;
use fathom_text::Tokenizer;
use fathom_train::recipe::Recipe;
use fathom_train::{Checkpoints, needs_corpus, stage};

use super::{Job, spec};
use crate::{commands, device, exported};

/// What the exported model's files say of generation: as the model's that the recipe starts from, or the special tokens of
/// the tokenizer in a folder.
pub fn generation(recipe: &Recipe, tokenizer: &Path) -> Result<GenerationConfig> {
    if let Some(folder) = &recipe.model.from {
        return Ok(open_config(&device::model_folder(folder)?)?.1);
    }
    let tokenizer = Tokenizer::from_dir(tokenizer)?;
    let eos = tokenizer.eos().into_iter().collect();
    Ok(GenerationConfig { bos: tokenizer.bos(), eos, ..GenerationConfig::default() })
}

impl Job<'_> {
    /// Refuses a tokenizer with more entries than the model has rows for them, before any text is read.
    pub(super) fn check_tokenizer(&self) -> Result<()> {
        let (recipe, from) = (self.recipe, &self.recipe.model.from);
        if recipe.data.tokenizer.is_none() && from.is_none() && needs_corpus(recipe) {
            // One that the run trains has as many entries as the model.
            return Ok(());
        }
        let (entries, rows) = (self.given_tokenizer()?.vocab_size(), spec(recipe)?.vocab);
        if entries <= rows {
            return Ok(());
        }
        if from.is_some() {
            bail!(
                "the tokenizer has {entries} tokens and the model's embedding {rows} rows; give data.tokenizer the model's own"
            );
        }
        let message =
            format!("is {rows}, and the tokenizer has {entries} entries; give model.vocab={entries}");
        Err(self.loaded.refuse("model.vocab", message).into())
    }

    /// Tries what the export at the end will need: the tokenizer's files are read again, and the configuration of the model
    /// after the last stage is put together.
    pub(super) fn check_export(&self) -> Result<()> {
        let (folder, tokenizer) = (self.folder.join("model"), self.folder.join("data/tokenizer"));
        let ready = || -> Result<()> {
            if folder.exists() && !folder.is_dir() {
                bail!("{} is not a folder", folder.display());
            }
            Tokenizer::from_dir(&tokenizer)?;
            generation(self.recipe, &tokenizer)?;
            let mut stages = self.recipe.stage.iter().enumerate();
            let first = spec(self.recipe)?;
            let last = stages.try_fold(first, |spec, (index, table)| stage::extend(&spec, table, index))?;
            Family::write(&folder.join("config.json"), &last)?;
            Ok(())
        };
        ready().context("the trained model could not be exported")
    }

    /// The model of a run on one rank.
    pub(super) fn export(&self, device: &Device, model: &Model, params: &Params) -> Result<()> {
        let (folder, tokenizer) = (self.folder.join("model"), self.folder.join("data/tokenizer"));
        let (generation, copy) = (&generation(self.recipe, &tokenizer)?, device::tokenizer_files(&tokenizer));
        let weights = SaveOptions::new(model.dtype(params));
        let options = FolderOptions { weights, generation, copy: &copy };
        exported::forget(&folder)?;
        save_hf(device, model, params, &folder, options)?;
        exported::remember(&folder)
    }

    /// The model of a run over ranks: from its last checkpoint.
    pub(super) fn export_of_ranks(&self, step: u64) -> Result<()> {
        let saved = Checkpoints::new(&self.folder.join("checkpoints"), 1).latest();
        if saved != Some(step) {
            bail!("step {step} was not saved, so the model cannot be exported; run the same command again");
        }
        commands::convert::write_model(&self.folder)
    }
}
