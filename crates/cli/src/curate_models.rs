//! Models for the stages of a curation: the engine over Hugging Face folders.

use std::path::Path;

use anyhow::Result;
use fathom_curate::Error;
use fathom_curate::pipeline::{ModelKind, ModelSettings, Models, WithClassify, WithEmbed, WithScore};
use fathom_engine::{Classifier, Engine, Limits};
use fathom_model::EncoderSpec;
use fathom_train::recipe::Machine;

use crate::device;

/// Opens models on the processor.
pub struct Engines;

impl Models for Engines {
    fn check(&self, folder: &Path, kind: ModelKind) -> Result<(), Error> {
        let opened = match kind {
            ModelKind::Classes => EncoderSpec::open(folder).map(drop),
            ModelKind::Text => fathom_model::open_config(folder).map(drop),
        };
        let opened = opened.map_err(anyhow::Error::from);
        opened.and_then(|()| device::tokenizer(folder).map(drop)).map_err(|error| refused(folder, &error))
    }

    fn with_embed(&self, settings: &ModelSettings, work: &mut WithEmbed<'_>) -> Result<(), Error> {
        with_engine(settings, &mut |engine| work(engine))
    }

    fn with_score(&self, settings: &ModelSettings, work: &mut WithScore<'_>) -> Result<(), Error> {
        with_engine(settings, &mut |engine| work(engine))
    }

    fn with_classify(&self, settings: &ModelSettings, work: &mut WithClassify<'_>) -> Result<(), Error> {
        let ModelSettings { folder, context_tokens, threads } = settings;
        let open = || {
            let device = device::cpu(&Machine { threads: *threads, ..Machine::default() })?;
            anyhow::Ok(Classifier::open(&device, folder, *context_tokens, Limits::default().chunk_tokens)?)
        };
        work(&mut open().map_err(|error| refused(folder, &error))?)
    }
}

/// Opens a model with its weights as they are stored, and calls `work`.
fn with_engine(
    settings: &ModelSettings,
    work: &mut dyn FnMut(&mut Engine<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let folder = &settings.folder;
    let open = || {
        let machine = Machine { threads: settings.threads, ..Machine::default() };
        let device = device::cpu(&machine)?;
        let loaded = device::load(&device, folder, None)?;
        Ok::<_, anyhow::Error>((device, loaded, device::tokenizer(folder)?))
    };
    let (device, loaded, tokenizer) = open().map_err(|error| refused(folder, &error))?;
    let limits = Limits { context_tokens: settings.context_tokens, ..Limits::default() };
    work(&mut Engine::new(&device, &loaded.model, &loaded.params, &tokenizer, limits))
}

fn refused(folder: &Path, error: &anyhow::Error) -> Error {
    let detail = format!("{error:#}{}", device::or_on_the_hub(folder));
    Error::Model { folder: folder.to_owned(), detail }
}
