//! Models for the stages of a curation: the engine over Hugging Face folders.

use std::path::Path;
use std::sync::Arc;

use fathom_curate::Error;
use fathom_curate::pipeline::{ModelKind, ModelSettings, Models, WithClassify, WithEmbed, WithScore};
use fathom_engine::{Classifier, Engine, Limits};
use fathom_model::EncoderSpec;
use fathom_tensor::DType;
use fathom_train::recipe::MachineKind;

use crate::error::{self, in_full};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{self, or_on_the_hub};

/// Opens models on the processor; what is to be said of them is said to the listener.
pub struct Engines(pub Arc<dyn Events>);

impl Models for Engines {
    fn check(&self, folder: &Path, kind: ModelKind) -> Result<(), Error> {
        let opened = match kind {
            ModelKind::Classes => EncoderSpec::open(folder).map(drop),
            ModelKind::Text => fathom_model::open_config(folder).map(drop),
        };
        let opened = opened.map_err(error::Error::from);
        opened.and_then(|()| models::tokenizer(folder).map(drop)).map_err(|error| refused(folder, &error))
    }

    fn with_embed(&self, settings: &ModelSettings, work: &mut WithEmbed<'_>) -> Result<(), Error> {
        with_engine(settings, self.0.as_ref(), &mut |engine| work(engine))
    }

    fn with_score(&self, settings: &ModelSettings, work: &mut WithScore<'_>) -> Result<(), Error> {
        with_engine(settings, self.0.as_ref(), &mut |engine| work(engine))
    }

    fn with_classify(&self, settings: &ModelSettings, work: &mut WithClassify<'_>) -> Result<(), Error> {
        let ModelSettings { folder, context_tokens, threads } = settings;
        let open = || -> error::Result<Classifier> {
            let device = Machine::of_kind(MachineKind::Cpu, *threads, self.0.as_ref()).cpu()?;
            let chunk_tokens = Limits::default().chunk_tokens;
            Ok(Classifier::open(&device, folder, DType::F32, *context_tokens, chunk_tokens)?)
        };
        work(&mut open().map_err(|error| refused(folder, &error))?)
    }
}

/// Opens a model with its weights as they are stored, and calls `work`.
fn with_engine(
    settings: &ModelSettings,
    events: &dyn Events,
    work: &mut dyn FnMut(&mut Engine<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let folder = &settings.folder;
    let open = || -> error::Result<_> {
        let device = Machine::of_kind(MachineKind::Cpu, settings.threads, events).cpu()?;
        let loaded = models::load(&device, folder, None, events)?;
        Ok((device, loaded, models::tokenizer(folder)?))
    };
    let (device, loaded, tokenizer) = open().map_err(|error| refused(folder, &error))?;
    let limits = Limits { context_tokens: settings.context_tokens, ..Limits::default() };
    work(&mut Engine::new(&device, &loaded.model, &loaded.params, &tokenizer, limits))
}

fn refused(folder: &Path, error: &error::Error) -> Error {
    let detail = format!("{}{}", in_full(error), or_on_the_hub(folder));
    Error::Model { folder: folder.to_owned(), detail }
}
