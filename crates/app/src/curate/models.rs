//! Models for curation stages: the engine over Hugging Face folders.

use std::path::Path;
use std::sync::Arc;

use fathom_curate::Error;
use fathom_curate::pipeline::{ModelKind, ModelSettings, Models, WithClassify, WithEmbed, WithScore};
use fathom_engine::{Engine, Limits, TextEncoder};
use fathom_model::{EncoderSpec, Sentence};
use fathom_tensor::DType;
use fathom_train::recipe::MachineKind;

use crate::error::{self, in_full};
use crate::events::Events;
use crate::machine::Machine;
use crate::models::{self, or_on_the_hub};

/// Opens models on the processor; reports about them go to the listener.
pub struct Engines(pub Arc<dyn Events>);

impl Models for Engines {
    fn check(&self, folder: &Path, kind: ModelKind) -> Result<(), Error> {
        let opened = match kind {
            ModelKind::Classes => EncoderSpec::open(folder).map(drop),
            ModelKind::Vectors if EncoderSpec::is_of(folder) => EncoderSpec::open(folder).map(drop),
            ModelKind::Text | ModelKind::Vectors => fathom_model::open_config(folder).map(drop),
        };
        let opened = opened.map_err(error::Error::from);
        opened.and_then(|()| models::tokenizer(folder).map(drop)).map_err(|error| refused(folder, &error))
    }

    fn with_embed(&self, settings: &ModelSettings, work: &mut WithEmbed<'_>) -> Result<(), Error> {
        if EncoderSpec::is_of(&settings.folder) {
            let encoder = self.encoder(settings).and_then(|encoder| Ok(encoder.embedding()?));
            return work(&mut encoder.map_err(|error| refused(&settings.folder, &error))?);
        }
        with_engine(settings, self.0.as_ref(), &mut |engine| work(engine))
    }

    fn with_score(&self, settings: &ModelSettings, work: &mut WithScore<'_>) -> Result<(), Error> {
        with_engine(settings, self.0.as_ref(), &mut |engine| work(&*engine))
    }

    fn with_classify(&self, settings: &ModelSettings, work: &mut WithClassify<'_>) -> Result<(), Error> {
        let classifier = self.encoder(settings).and_then(|encoder| Ok(encoder.classifying()?));
        work(&mut classifier.map_err(|error| refused(&settings.folder, &error))?)
    }
}

impl Engines {
    /// Opens an encoder in f32.
    fn encoder(&self, settings: &ModelSettings) -> error::Result<TextEncoder> {
        let ModelSettings { folder, context_tokens, threads } = settings;
        let device = Machine::of_kind(MachineKind::Cpu, *threads, self.0.as_ref()).cpu()?;
        let (tokenizer, chunk_tokens) =
            (Arc::new(models::tokenizer(folder)?), Limits::default().chunk_tokens);
        let how = (DType::F32, tokenizer);
        // The folder's own limit on the length of a text is not exceeded.
        let own = match Sentence::open(folder, EncoderSpec::open(folder)?.model.hidden)? {
            Some(sentence) => sentence.max_tokens,
            None => Sentence::tokenizer_limit(folder)?,
        };
        let max_tokens = own.unwrap_or(usize::MAX).min(*context_tokens);
        Ok(TextEncoder::open(&device, folder, how, Some(max_tokens), chunk_tokens)?)
    }
}

/// Opens a model with its weights as stored, and calls `work`.
fn with_engine(
    settings: &ModelSettings,
    events: &dyn Events,
    work: &mut dyn FnMut(&mut Engine<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let folder = &settings.folder;
    let open = || -> error::Result<_> {
        let device = Machine::of_kind(MachineKind::Cpu, settings.threads, events).cpu()?;
        let loaded = models::load(&device, folder, None, events)?;
        Ok((loaded, models::tokenizer(folder)?))
    };
    let (loaded, tokenizer) = open().map_err(|error| refused(folder, &error))?;
    let sentence =
        Sentence::open(folder, loaded.model.spec.hidden).map_err(|error| refused(folder, &error.into()))?;
    let own = sentence.as_ref().and_then(|sentence| sentence.max_tokens).unwrap_or(usize::MAX);
    let limits = Limits { context_tokens: settings.context_tokens.min(own), ..Limits::default() };
    let engine = Engine::new(loaded.view(), &tokenizer, limits);
    work(&mut engine.pooling(sentence))
}

fn refused(folder: &Path, error: &error::Error) -> Error {
    let detail = format!("{}{}", in_full(error), or_on_the_hub(folder));
    Error::Model { folder: folder.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Silent;

    /// Sentence-Transformers reads the same length.
    #[test]
    fn a_folder_that_reads_less_of_a_text_than_is_asked_for_is_asked_for_no_more() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/encoders/embed_bert");
        let copy = tempfile::tempdir().unwrap();
        for part in [".", "1_Pooling", "2_Normalize"] {
            std::fs::create_dir_all(copy.path().join(part)).unwrap();
            for entry in std::fs::read_dir(golden.join(part)).unwrap().map(|entry| entry.unwrap()) {
                if entry.path().is_file() {
                    std::fs::copy(entry.path(), copy.path().join(part).join(entry.file_name())).unwrap();
                }
            }
        }
        let file = copy.path().join("sentence_bert_config.json");
        std::fs::write(file, "{\"max_seq_length\": 9}").unwrap();
        let folder = copy.path().to_owned();
        let encoder = |context_tokens| {
            let settings = ModelSettings { folder: folder.clone(), context_tokens, threads: 1 };
            Engines(Arc::new(Silent)).encoder(&settings).unwrap().max_tokens()
        };
        assert_eq!([encoder(512), encoder(9), encoder(8)], [9, 9, 8]);
    }
}
