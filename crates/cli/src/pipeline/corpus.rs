//! The text of a run: gathered or named, curated where a recipe says how, made into tokens.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use fathom_base::human;
use fathom_base::metrics::events::{Data, DroppedText};
use fathom_base::metrics::{Event, MetricsWriter, read_events};
use fathom_base::recipe::{Layers, Recipe as Loaded};
use fathom_curate::pipeline::{Outcome, Progress, Recipe as CurationRecipe, RunOptions};
use fathom_curate::{
    CorpusSpec, Curation, Error, Input, Reason, TokenizerFrom, altered, build, built, curation,
    default_roots, made_otherwise, store_prefix, tokenizer_dir,
};
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::needs_corpus;

use super::Job;
use crate::commands::curate;
use crate::curate_models::Engines;
use crate::library::CURATE;
use crate::{describe, device};

/// Reasons that the console names of those for which text is not trained on; the report names all.
const REASONS: usize = 5;
/// And damaged records that it shows.
const DAMAGE: usize = 3;

/// What a run trains on: its tokenizer, and the text as tokens where it gathers any.
pub(super) type Corpus = (Tokenizer, Option<Store>);

impl Job<'_> {
    /// Text to tokens, or what an earlier call left; nothing if the run was asked to stop on the way.
    pub(super) fn corpus(
        &mut self,
        metrics: &mut MetricsWriter,
        stop: &Arc<AtomicBool>,
    ) -> Result<Option<Corpus>> {
        if !needs_corpus(self.recipe) {
            let tokenizer = self.given_tokenizer()?;
            let folder = tokenizer_dir(&self.folder.join("data"));
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            tokenizer.save_dir(folder)?;
            return Ok(Some((tokenizer, None)));
        }
        let spec = self.corpus_spec()?;
        let found = built(&spec);
        if found.is_none() {
            let trained = self.folder.join("checkpoints").exists();
            match altered(&spec.out) {
                Some(path) if trained => bail!(
                    "{}: was altered since the run made it (its hash differs), and the run has trained on what it was; remove {} to have \
                     it made anew from the text",
                    path.display(),
                    spec.out.join("corpus.json").display()
                ),
                Some(path) => self.live.say(&format!(
                    "warning: {} was altered since the run made it (its hash differs); it is made anew from the text",
                    path.display()
                )),
                None => {}
            }
            if made_otherwise(&spec) && trained {
                bail!(
                    "{}: this run has trained on text that was made by other settings, or by another recipe of curation \
                     (data.curate = \"{}\"); give back what was there, or begin in another folder (run.out=FOLDER)",
                    spec.out.join("corpus.json").display(),
                    self.recipe.data.curate
                );
            }
            if !self.curated(&spec, stop)? {
                return Ok(None);
            }
        }
        let live = &mut self.live;
        let report = match found {
            Some(report) => report,
            None => build(&spec, &mut |progress| {
                live.progress(&describe::progress(progress), [progress.done_bytes, progress.total_bytes]);
            })?,
        };
        let event = report.to_event();
        self.live.say(&format!(
            "{} documents, {} of text, {} tokens with a vocabulary of {}, {} of them synthetic recall",
            human::grouped(event.documents),
            human::bytes(event.bytes),
            human::grouped(event.tokens),
            human::grouped(event.vocabulary),
            human::percent(event.synthetic_share),
        ));
        self.say_dropped(&event);
        if let Some(stage) = self.recipe.stage.iter().find(|stage| event.tokens < stage.seq_tokens as u64) {
            self.live.say(&format!(
                "warning: the text has {} tokens, fewer than one sample of stage {} ({}): its samples are shorter; give more text \
                 (data.paths), or lower seq_tokens",
                human::grouped(event.tokens),
                stage.name,
                human::grouped(stage.seq_tokens as u64),
            ));
        }
        let known = read_events(self.log())?;
        if !known.iter().any(|value| matches!(Event::from_value(value), Some(Event::Data(_)))) {
            metrics.write(&Event::Data(event))?;
        }
        let tokenizer = Tokenizer::from_dir(tokenizer_dir(&spec.out))?;
        let store = Store::open(store_prefix(&spec.out))?;
        Ok(Some((tokenizer, Some(store))))
    }

    /// Says what is not trained on, and why.
    fn say_dropped(&self, event: &Data) {
        if event.dropped.is_empty() {
            return;
        }
        let part = |dropped: &DroppedText| {
            let (count, size) = (human::grouped(dropped.documents), human::bytes(dropped.bytes));
            format!("{count} {} ({size})", dropped.reason)
        };
        let shown: Vec<String> = event.dropped.iter().take(REASONS).map(part).collect();
        let more = if event.dropped.len() > REASONS { ", ..." } else { "" };
        let over = event.dropped.iter().any(|dropped| dropped.reason == Reason::OverBudget.words());
        let most = self.recipe.data.max_bytes.filter(|_| over);
        let most = most.map_or(String::new(), |bytes| format!("; the budget is data.max_bytes={bytes}"));
        self.live.say(&format!("not trained on: {}{more}{most}", shown.join(", ")));
        // A curation has said it of its own.
        let damage = if self.curation_layers().is_none() { &event.damage[..] } else { &[] };
        for damage in damage.iter().take(DAMAGE) {
            self.live.say(&format!("  {damage}"));
        }
    }

    /// The tokenizer that the recipe gives: its own, or the model's.
    pub(super) fn given_tokenizer(&self) -> Result<Tokenizer> {
        match (&self.recipe.data.tokenizer, &self.recipe.model.from) {
            (Some(path), _) => open_tokenizer(path),
            (None, Some(folder)) => open_tokenizer(&device::model_folder(folder)?),
            (None, None) => {
                bail!(
                    "data.blend names token stores alone; data.tokenizer must say which tokenizer made them"
                )
            }
        }
    }

    fn corpus_spec(&self) -> Result<CorpusSpec> {
        let data = &self.recipe.data;
        let tokenizer = match (&data.tokenizer, &self.recipe.model.from) {
            (Some(path), _) => TokenizerFrom::File(path.clone()),
            (None, Some(folder)) => TokenizerFrom::File(device::model_folder(folder)?),
            (None, None) => {
                let sample_bytes = data.tokenizer_bytes as usize;
                TokenizerFrom::Train { vocab: self.recipe.model.vocab, sample_bytes }
            }
        };
        let (input, curation) = self.input()?;
        Ok(CorpusSpec {
            text_field: data.text_field.clone(),
            curation,
            max_bytes: data.max_bytes,
            document_bytes: data.document_bytes as usize,
            recall_share: data.recall_share,
            tokenizer,
            held_out: data.held_out_share,
            seed: self.recipe.run.seed,
            ..CorpusSpec::new(input, self.folder.join("data"))
        })
    }

    /// What is read, and the recipe that curates it.
    ///
    /// # Errors
    /// A recipe of curation that cannot be loaded; no text at all.
    pub(super) fn input(&self) -> Result<(Input, Option<Curation>)> {
        let (data, curation) = (&self.recipe.data, self.curation()?);
        let input = if data.is_gathered() {
            Input::Default {
                roots: cargo_home().map(|home| default_roots(&home)).unwrap_or_default(),
                fallback: std::env::current_dir().ok(),
            }
        } else if data.paths.is_empty() && curation.as_ref().is_some_and(Curation::names_input) {
            // The recipe says what is read.
            Input::Default { roots: Vec::new(), fallback: None }
        } else if data.paths.is_empty() && needs_corpus(self.recipe) {
            let message = format!("is empty, and data.curate = {:?} names no input of its own", data.curate);
            return Err(self.loaded.refuse("data.paths", message).into());
        } else {
            Input::Paths(data.paths.clone())
        };
        Ok((input, curation))
    }

    /// The recipe that `data.curate` names.
    fn curation(&self) -> Result<Option<Curation>> {
        let Some(layers) = self.curation_layers() else { return Ok(None) };
        Ok(Some(Curation::of(Loaded::<CurationRecipe>::load(layers).context("data.curate")?)?))
    }

    fn curation_layers(&self) -> Option<Layers<'static>> {
        let data = &self.recipe.data;
        let recipe = match data.curate.as_str() {
            "none" => return None,
            "auto" if !data.is_gathered() => return None,
            "auto" => "code",
            recipe => recipe,
        };
        Some(Layers::with_library(CURATE).recipe(recipe))
    }

    /// Passes the text through the stages of `data.curate`; false if the run was asked to stop.
    fn curated(&mut self, spec: &CorpusSpec, stop: &Arc<AtomicBool>) -> Result<bool> {
        let Some(layers) = self.curation_layers() else { return Ok(true) };
        let machine = &self.recipe.machine;
        let pipeline = curation(spec, layers, machine.memory_bytes, curate::remote())?;
        let live = &mut self.live;
        let (told, said, asked) =
            (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())), stop.clone());
        let (tell, say) = (told.clone(), said.clone());
        let options = RunOptions {
            threads: machine.threads,
            stop: Some(Arc::new(move |_: &str| asked.load(Ordering::Relaxed))),
            progress: Some(Arc::new(move |progress: &Progress| {
                *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress.clone());
            })),
            say: Some(Arc::new(move |line: &str| {
                say.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
            })),
            models: Some(Arc::new(Engines)),
            ..RunOptions::default()
        };
        let ran = std::thread::scope(|scope| {
            let running = scope.spawn(|| pipeline.run(&options));
            while !running.is_finished() {
                std::thread::sleep(std::time::Duration::from_millis(100));
                said.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .drain(..)
                    .for_each(|line| live.say(&format!("curating: {line}")));
                if let Some(progress) = told.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    live.progress(
                        &describe::curating(&progress),
                        [progress.parts_done as u64, progress.parts as u64],
                    );
                }
            }
            running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        said.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .for_each(|line| live.say(&format!("curating: {line}")));
        let stats = match ran {
            Err(Error::Interrupted { .. }) => return Ok(false),
            Ok(Outcome::Done(stats)) => stats,
            Ok(Outcome::Waiting { missing, .. }) => bail!("the curation lacks {}", missing.join(", ")),
            Err(error) => return Err(error.into()),
        };
        curate::page(pipeline.out(), &stats)?;
        live.say(&format!(
            "curated: {} of {} documents kept; {}",
            human::grouped(stats.documents_kept()),
            human::grouped(stats.documents_read()),
            pipeline.out().join("report.html").display()
        ));
        Ok(true)
    }
}

/// Cargo's folder: `CARGO_HOME`, or `.cargo` in the user's folder.
fn cargo_home() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home)
}

/// A `tokenizer.json`, or that of a folder.
fn open_tokenizer(path: &Path) -> Result<Tokenizer> {
    Ok(if path.is_file() { Tokenizer::from_file(path)? } else { Tokenizer::from_dir(path)? })
}
