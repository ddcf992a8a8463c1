//! Text of a run: gathered or named, curated if a recipe asks for it, and tokenized.

#[cfg(feature = "curate")]
mod curated;
#[cfg(not(feature = "curate"))]
#[path = "uncurated.rs"]
mod curated;
pub(crate) mod fetched;
mod held_out;
pub(crate) mod lessons;
mod neighbours;
pub(crate) mod reference;
pub(crate) mod templates;
pub(crate) mod tokenizer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fathom_base::human;
use fathom_base::metrics::events::{Data, DroppedText};
use fathom_base::metrics::{Event, MetricsWriter};
use fathom_curate::{
    CorpusSpec, Curation, Input, Phase, Progress, Reason, TokenizerFrom, altered, build, built,
    default_roots, made_otherwise,
};
pub(crate) use fathom_curate::{store_prefix, tokenizer_dir};
use fathom_text::Tokenizer;
use fathom_text::store::Store;
use fathom_train::needs_corpus;
use fathom_train::recipe::MethodName;

use crate::error::{Context, Result, refuse};
use crate::events::{Event as Heard, Events};
use crate::job::Job;

/// Reasons for dropped text that are listed; the report lists all.
const REASONS: usize = 5;
/// Damaged records that are listed.
const DAMAGE: usize = 3;

/// Data of a run: its tokenizer, and the tokenized text if it has text of its own.
pub(crate) type Corpus = (Tokenizer, Option<Store>);

/// Inputs of a run, checked before anything is read.
pub(crate) struct Inputs {
    /// Text and the recipe that curates it; `None` for a run on lessons or prompts.
    text: Option<(Input, Option<Curation>)>,
    /// Tokenizer that the recipe gives; `None` if the run trains one.
    tokenizer: Option<Tokenizer>,
}

impl Inputs {
    /// Resolves the inputs of a job.
    ///
    /// # Errors
    /// A curation recipe that cannot be loaded; no text at all; a tokenizer with more entries than the model's
    /// embedding has rows.
    pub fn of(job: &Job) -> Result<Inputs> {
        let reads_text = !job.recipe().data.is_lessons() && !job.recipe().rl.is_on();
        let text = if reads_text { Some(input(job)?) } else { None };
        Ok(Inputs { text, tokenizer: tokenizer::of_run(job)? })
    }

    /// Tokenizes the text, or reuses the result of an earlier call; returns `None` if the run was asked to stop.
    ///
    /// # Errors
    /// Text or rows that cannot be read; a run that has trained on other data; a teacher with another tokenizer.
    pub fn corpus(
        self,
        job: &Job,
        metrics: &mut MetricsWriter,
        stop: &Arc<AtomicBool>,
        events: &dyn Events,
    ) -> Result<Option<Corpus>> {
        let lessons = needs_corpus(job.recipe()) && job.recipe().data.is_lessons();
        let made = match (self.text, self.tokenizer) {
            (_, Some(tokenizer)) if lessons => taught(job, (tokenizer, metrics), stop, events)?,
            (Some(text), _) if needs_corpus(job.recipe()) => made(job, (text, metrics), stop, events)?,
            (_, Some(tokenizer)) => Some(kept(job, tokenizer)?),
            (_, None) => return Err(tokenizer::none_given()),
        };
        let Some((tokenizer, store)) = made else { return Ok(None) };
        tokenizer::same_as_teacher(job, &tokenizer)?;
        match store {
            Some(store) if lessons => {
                let store = reference::column(job, (store, &tokenizer), stop, events)?;
                Ok(store.map(|store| (tokenizer, Some(store))))
            }
            Some(store) if job.recipe().objective.method == MethodName::Retro => {
                let store = neighbours::column(job, (store, &tokenizer), stop, events)?;
                Ok(store.map(|store| (tokenizer, Some(store))))
            }
            store => Ok(Some((tokenizer, store))),
        }
    }
}

/// Returns the corpus of a run that draws from other stores or generates from prompts: its tokenizer alone.
fn kept(job: &Job, tokenizer: Tokenizer) -> Result<Corpus> {
    let folder = tokenizer_dir(&job.data());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    tokenizer.save_dir(&folder)?;
    lessons::keep_template(job, &folder)?;
    Ok((tokenizer, None))
}

/// Returns the corpus of plain text.
fn made(
    job: &Job,
    (text, metrics): ((Input, Option<Curation>), &mut MetricsWriter),
    stop: &Arc<AtomicBool>,
    events: &dyn Events,
) -> Result<Option<Corpus>> {
    let spec = corpus_spec(job, text)?;
    let report = match built(&spec) {
        Some(report) => report,
        None => {
            check_remade(job, &spec, events)?;
            if !curated::run(job, &spec, stop, events)? {
                return Ok(None);
            }
            build(&spec, &mut |progress| {
                let Progress { done_bytes: done, total_bytes: all, .. } = progress;
                events.on(Heard::Progress { text: words(progress), done, all });
            })?
        }
    };
    let tokenizer = Tokenizer::from_dir(tokenizer_dir(&spec.out))?;
    let store = Store::open(store_prefix(&spec.out))?;
    let event = held_out::counted(job.recipe(), &store, report.to_event())?;
    say_read(job, &event, events);
    metrics.write_once(&Event::Data(event))?;
    Ok(Some((tokenizer, Some(store))))
}

/// Returns the corpus of lessons.
fn taught(
    job: &Job,
    (tokenizer, metrics): (Tokenizer, &mut MetricsWriter),
    stop: &AtomicBool,
    events: &dyn Events,
) -> Result<Option<Corpus>> {
    let Some((tokenizer, store, report, example)) = lessons::corpus(job, tokenizer, stop, events)? else {
        return Ok(None);
    };
    let report = held_out::counted(job.recipe(), &store, report)?;
    let fresh = metrics.write_once(&Event::Data(report.clone()))?;
    lessons::say(&report, &example, fresh, events);
    lessons::say_shortened(job, &store, events)?;
    if fresh {
        metrics.write(&Event::Lesson(example))?;
    }
    Ok(Some((tokenizer, Some(store))))
}

/// Refuses to rebuild the corpus under a run that has trained on another.
fn check_remade(job: &Job, spec: &CorpusSpec, events: &dyn Events) -> Result<()> {
    let trained = job.checkpoints().exists();
    match altered(&spec.out) {
        Some(path) if trained => refuse!(
            "{}: was altered since the run made it (its hash differs), and the run has trained on what it was; remove {} to have \
             it rebuilt from the text",
            path.display(),
            spec.out.join("corpus.json").display()
        ),
        Some(path) => events.warn(&format!(
            "{} was altered since the run made it (its hash differs); it is rebuilt from the text",
            path.display()
        )),
        None => {}
    }
    if made_otherwise(spec) && trained {
        refuse!(
            "{}: this run has trained on text that was made by other settings, or by another recipe of curation \
             (data.curate = \"{}\"); give back what was there, or begin in another folder (run.out=FOLDER)",
            spec.out.join("corpus.json").display(),
            job.recipe().data.curate
        );
    }
    Ok(())
}

/// Reports the text that was read, and what was dropped.
fn say_read(job: &Job, event: &Data, events: &dyn Events) {
    let recall = match event.synthetic_share {
        share if share > 0.0 => format!(", {} of them synthetic recall", human::percent(share)),
        _ => String::new(),
    };
    events.line(&format!(
        "{}, {} of text, {} with a vocabulary of {}{recall}",
        human::counted(event.documents, "document"),
        human::bytes(event.bytes),
        human::counted(event.tokens, "token"),
        human::grouped(event.vocabulary),
    ));
    say_dropped(job, event, events);
    if let Some(stage) = job.recipe().stage.iter().find(|stage| event.tokens < stage.seq_tokens as u64) {
        events.warn(&format!(
            "the text has {} tokens, fewer than one sample of stage {} ({}): its samples are shorter; give more text \
             (data.paths), or lower seq_tokens",
            human::grouped(event.tokens),
            stage.name,
            human::grouped(stage.seq_tokens as u64),
        ));
    }
}

/// Reports what was dropped, and why.
fn say_dropped(job: &Job, event: &Data, events: &dyn Events) {
    if event.dropped.is_empty() {
        return;
    }
    let data = &job.recipe().data;
    let part = |dropped: &DroppedText| {
        let (count, size) = (human::grouped(dropped.documents), human::bytes(dropped.bytes));
        format!("{count} {} ({size})", dropped.reason)
    };
    let shown: Vec<String> = event.dropped.iter().take(REASONS).map(part).collect();
    let more = if event.dropped.len() > REASONS { ", ..." } else { "" };
    let over = event.dropped.iter().any(|dropped| dropped.reason == Reason::OverBudget.words());
    let most = data.max_bytes.filter(|_| over);
    let most = most.map_or(String::new(), |bytes| format!("; the budget is data.max_bytes={bytes}"));
    events.line(&format!("not trained on: {}{more}{most}", shown.join(", ")));
    // A curation has reported damage itself.
    let damage = if curated::name(data).is_none() { &event.damage[..] } else { &[] };
    for damage in damage.iter().take(DAMAGE) {
        events.line(&format!("  {damage}"));
    }
}

fn corpus_spec(job: &Job, (input, curation): (Input, Option<Curation>)) -> Result<CorpusSpec> {
    let data = &job.recipe().data;
    let tokenizer = match (&data.tokenizer, job.start()?) {
        (Some(path), _) => TokenizerFrom::File(path.clone()),
        (None, Some(folder)) => TokenizerFrom::File(folder),
        (None, None) => {
            let sample_bytes = data.tokenizer_bytes as usize;
            let special = job.recipe().special_tokens();
            TokenizerFrom::Train { vocab: job.recipe().model.vocab, sample_bytes, special }
        }
    };
    Ok(CorpusSpec {
        text_field: data.text_field.clone(),
        curation,
        max_bytes: data.max_bytes,
        document_bytes: data.document_bytes as usize,
        recall_share: data.recall_share,
        tokenizer,
        held_out: data.held_out_share,
        seed: job.recipe().run.seed,
        ..CorpusSpec::new(input, job.data())
    })
}

/// Returns the text to read, and the recipe that curates it.
fn input(job: &Job) -> Result<(Input, Option<Curation>)> {
    let (data, curation) = (&job.recipe().data, curated::curation(&job.recipe().data)?);
    let input = if data.is_gathered() {
        Input::Default { roots: gathered_roots(), fallback: std::env::current_dir().ok() }
    } else if data.paths.is_empty() && curation.as_ref().is_some_and(Curation::names_input) {
        // The recipe names the input.
        Input::Default { roots: Vec::new(), fallback: None }
    } else if data.paths.is_empty() && needs_corpus(job.recipe()) {
        let message = format!("is empty, and data.curate = {:?} names no input of its own", data.curate);
        return Err(job.loaded.refuse("data.paths", message).into());
    } else {
        Input::Paths(data.paths.clone())
    };
    Ok((input, curation))
}

/// Returns the folders of sources that are read if a recipe names no text: those below cargo's home, `CARGO_HOME` or
/// `.cargo` in the user's home.
pub fn gathered_roots() -> Vec<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    cargo.map(|home| default_roots(&home)).unwrap_or_default()
}

/// Describes the current activity of the corpus builder.
fn words(progress: Progress) -> String {
    let doing = match progress.phase {
        Phase::Read => "reading text",
        Phase::Tokenizer => "training the tokenizer",
        Phase::Encode => "turning text into tokens",
    };
    format!("{doing}: {} of {}", human::bytes(progress.done_bytes), human::bytes(progress.total_bytes))
}
