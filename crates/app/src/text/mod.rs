//! The text of a run: gathered or named, curated where a recipe says how, made into tokens.

#[cfg(feature = "curate")]
mod curated;
#[cfg(not(feature = "curate"))]
#[path = "uncurated.rs"]
mod curated;
pub(crate) mod fetched;
mod held_out;
pub(crate) mod lessons;
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

use crate::error::{Context, Result, refuse};
use crate::events::{Event as Heard, Events};
use crate::job::Job;

/// Reasons that a line names of those for which text is not trained on; the report names all.
const REASONS: usize = 5;
/// And damaged records that are shown.
const DAMAGE: usize = 3;

/// What a run trains on: its tokenizer, and the text as tokens where it gathers any.
pub(crate) type Corpus = (Tokenizer, Option<Store>);

/// What a run reads: looked at before anything is read.
pub(crate) struct Inputs {
    /// Its text, and the recipe that curates it; none where it reads lessons or prompts.
    text: Option<(Input, Option<Curation>)>,
    /// The tokenizer that the recipe gives; none where it has one trained.
    tokenizer: Option<Tokenizer>,
}

impl Inputs {
    /// Those of a job.
    ///
    /// # Errors
    /// A recipe of curation that cannot be loaded; no text at all; a tokenizer with more entries than the model has rows for them.
    pub fn of(job: &Job) -> Result<Inputs> {
        let reads_text = !job.recipe().data.is_lessons() && !job.recipe().rl.is_on();
        let text = if reads_text { Some(input(job)?) } else { None };
        Ok(Inputs { text, tokenizer: tokenizer::of_run(job)? })
    }

    /// Text to tokens, or what an earlier call left; nothing if the run was asked to stop on the way.
    ///
    /// # Errors
    /// Text or rows that cannot be read; a run that has trained on others; a teacher with another tokenizer.
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
            store => Ok(Some((tokenizer, store))),
        }
    }
}

/// The corpus of a run that draws from other stores, or asks prompts: its tokenizer alone.
fn kept(job: &Job, tokenizer: Tokenizer) -> Result<Corpus> {
    let folder = tokenizer_dir(&job.data());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    tokenizer.save_dir(&folder)?;
    lessons::keep_template(job, &folder)?;
    Ok((tokenizer, None))
}

/// The corpus of text.
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
                events.on(Heard::Progress { text: &words(progress), done, all });
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

/// The corpus of lessons.
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

/// Refuses to make the corpus again under a run that has trained on another.
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

/// Says what was read, and what of it is not trained on.
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

/// Says what is not trained on, and why.
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
    // A curation has said it of its own.
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
            TokenizerFrom::Train { vocab: job.recipe().model.vocab, sample_bytes }
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

/// What is read, and the recipe that curates it.
fn input(job: &Job) -> Result<(Input, Option<Curation>)> {
    let (data, curation) = (&job.recipe().data, curated::curation(&job.recipe().data)?);
    let input = if data.is_gathered() {
        Input::Default { roots: gathered_roots(), fallback: std::env::current_dir().ok() }
    } else if data.paths.is_empty() && curation.as_ref().is_some_and(Curation::names_input) {
        // The recipe says what is read.
        Input::Default { roots: Vec::new(), fallback: None }
    } else if data.paths.is_empty() && needs_corpus(job.recipe()) {
        let message = format!("is empty, and data.curate = {:?} names no input of its own", data.curate);
        return Err(job.loaded.refuse("data.paths", message).into());
    } else {
        Input::Paths(data.paths.clone())
    };
    Ok((input, curation))
}

/// The folders of sources that are read where a recipe names no text: those below cargo's own, `CARGO_HOME` or `.cargo` in the
/// user's folder.
pub fn gathered_roots() -> Vec<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    cargo.map(|home| default_roots(&home)).unwrap_or_default()
}

/// What the corpus builder is doing, in words.
fn words(progress: Progress) -> String {
    let doing = match progress.phase {
        Phase::Read => "reading text",
        Phase::Tokenizer => "training the tokenizer",
        Phase::Encode => "turning text into tokens",
    };
    format!("{doing}: {} of {}", human::bytes(progress.done_bytes), human::bytes(progress.total_bytes))
}
