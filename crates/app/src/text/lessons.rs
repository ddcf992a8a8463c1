//! Lessons as a store of tokens with weights, made once and kept with a manifest, like a corpus.
//!
//! ```text
//! OUT/data/tokenizer/                                     the model's tokenizer
//! OUT/data/store/train.{bin,idx,json,docs,weight}         the store
//! OUT/data/lessons.json                                   the manifest, written last: settings, hashes, report
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fathom_base::human;
use fathom_base::metrics::events::{self, Data, DataSource, DroppedText};
use fathom_curate::{store_prefix, tokenizer_dir};
use fathom_text::Tokenizer;
use fathom_text::chat::Template;
use fathom_text::lessons::{Lesson, LessonConversion, Lessons, Truncation};
use fathom_text::loader::{LengthCounts, Spec, is_held_out, shortened};
use fathom_text::store::{DocMeta, Header, Store, StoreWriter};
use fathom_train::loader_spec;
use serde::{Deserialize, Serialize};

use super::reference::ReferenceColumn;
use super::{fetched, templates};
use crate::error::{Context, Result, refuse};
use crate::events::{Event as Heard, Events};
use crate::job::Job;

/// Version of the store; raised when the same settings produce other bytes.
const VERSION: u32 = 1;
/// Rows between checks of whether the run should stop.
const LOOK: u64 = 1 << 10;
/// Maximum number of refused rows that the report names.
const NAMED: usize = 16;
/// Maximum bytes of the example's text that are shown.
const SHOWN: usize = 2000;

/// Everything that determines the bytes of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoreKey {
    version: u32,
    teaching: LessonConversion,
    held_out: f64,
    max_rows_dropped: u64,
    /// Path and BLAKE3 hash of each file.
    files: Vec<(PathBuf, String)>,
    /// Files whose rows are held out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    held_out_files: Vec<(PathBuf, String)>,
    tokenizer: String,
    /// BLAKE3 of the chat template.
    template: Option<String>,
    /// Set if answers no longer begin with a token that only the model's configuration names, which older stores had.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    without_bos: bool,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    made: StoreKey,
    /// [`Store::fingerprint`] in hexadecimal, and BLAKE3 hashes of the tokens and of the weights.
    store: [String; 3],
    report: Data,
    example: events::Lesson,
}

/// Makes or reuses the store of a run's lessons; returns it with its report and an example, or `None` if the run was
/// asked to stop.
///
/// # Errors
/// Files that cannot be read; more refused rows than the recipe allows; no rows at all.
pub fn corpus(
    job: &Job,
    given: Tokenizer,
    stop: &AtomicBool,
    events: &dyn Events,
) -> Result<Option<(Tokenizer, Store, Data, events::Lesson)>> {
    let (recipe, out) = (job.recipe(), job.data());
    let copies = out.join("fetched");
    let paths = fetched::rows(&recipe.data.paths, &copies, events)?;
    let held_out_paths = match recipe.data.held_out_paths.as_slice() {
        [] => Vec::new(),
        named if (0.0..=0.5).contains(&recipe.data.held_out_share) && recipe.data.held_out_share > 0.0 => {
            fetched::rows(named, &copies, events)?
        }
        _ => {
            return Err(job
                .loaded
                .refuse("data.held_out_share", "has to be above 0 and at most 0.5 with data.held_out_paths")
                .into());
        }
    };
    let template = template(job, &given)?;
    let made = StoreKey {
        version: VERSION,
        teaching: recipe.teaching(),
        held_out: recipe.data.held_out_share,
        max_rows_dropped: recipe.data.max_rows_dropped,
        files: hashed(&paths)?,
        held_out_files: hashed(&held_out_paths)?,
        tokenizer: given.hash()?,
        template: template.as_ref().map(|template| template.hash().to_string()),
        without_bos: recipe.teaching().answers.bare && given.bos() != given.own_bos(),
    };
    let place = out.join("lessons.json");
    let before: Option<Manifest> =
        std::fs::read(&place).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if let Some(manifest) = before {
        if manifest.made == made && identify(&out).is_ok_and(|store| store == manifest.store) {
            let store = Store::open(store_prefix(&out))?;
            return Ok(Some((
                Tokenizer::from_dir(tokenizer_dir(&out))?,
                store,
                manifest.report,
                manifest.example,
            )));
        }
        if job.checkpoints().exists() {
            refuse!(
                "{}: this run has trained on other lessons: a file of data.paths, a key of `data` or the tokenizer has changed since; \
                 give back what was there, or begin in another folder (run.out=FOLDER)",
                place.display()
            );
        }
        std::fs::remove_file(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let folder = tokenizer_dir(&out);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    given.save_dir(&folder)?;
    keep_template(job, &folder)?;
    let mut given_reference = ReferenceColumn::new(job)?;
    let from = (&given, template.as_ref());
    let Some((report, example)) = write(&made, from, (&out, stop), (&mut given_reference, events))? else {
        return Ok(None);
    };
    given_reference.finish(&out)?;
    let manifest = Manifest { made, store: identify(&out)?, report, example };
    let text = serde_json::to_vec_pretty(&manifest)?;
    fathom_base::files::write(&place, &text).with_context(|| format!("cannot write {}", place.display()))?;
    let Manifest { report, example, .. } = manifest;
    Ok(Some((given, Store::open(store_prefix(&out))?, report, example)))
}

/// Saves the chat template that the recipe names next to the tokenizer, so that the model is later used with the
/// template that it was trained with.
///
/// # Errors
/// A file that cannot be copied.
pub fn keep_template(job: &Job, folder: &Path) -> Result<()> {
    let Some(file) = &job.recipe().data.chat_template else { return Ok(()) };
    let to = folder.join("chat_template.jinja");
    fathom_base::files::write(&to, templates::source(file)?.as_bytes())
        .with_context(|| format!("cannot write {}", to.display()))
}

/// Returns the chat template that the recipe names, or the model's own.
pub fn template(job: &Job, tokenizer: &Tokenizer) -> Result<Option<Template>> {
    Ok(match (&job.recipe().data.chat_template, job.start()?) {
        (Some(file), _) => Some(templates::named(file, tokenizer)?),
        (None, Some(folder)) => Template::from_dir(&folder, tokenizer)?,
        (None, None) => None,
    })
}

/// Writes the store; returns its report and an example, or `None` if the run was asked to stop.
fn write(
    made: &StoreKey,
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    (out, stop): (&Path, &AtomicBool),
    (reference, events): (&mut ReferenceColumn, &dyn Events),
) -> Result<Option<(Data, events::Lesson)>> {
    let started = Instant::now();
    let answers = &made.teaching.answers;
    let (group, values) = (answers.group() as u32, answers.values() as u32);
    let header = Header { group, values, ..Header::for_tokenizer(tokenizer)? };
    let mut writer = StoreWriter::create(store_prefix(out), header)?;
    let paths = |files: &[(PathBuf, String)]| files.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
    // If held-out files are named, they alone determine what is held out, instead of hashes.
    let named = !made.held_out_files.is_empty();
    let parts = [(paths(&made.files), named.then_some(false)), (paths(&made.held_out_files), Some(true))];
    let names: Vec<String> = paths(&made.files).iter().map(|path| path.display().to_string()).collect();
    let source = writer.add_source(names.join(", "));
    let mut report = Data { vocabulary: tokenizer.vocab_size() as u64, ..Data::default() };
    let (mut example, mut rows, mut dropped, mut cut) = (None, 0u64, 0u64, 0u64);
    let lessons = parts.into_iter().flat_map(|(paths, held)| {
        Lessons::new(paths, (tokenizer, template), &made.teaching).map(move |documents| (documents, held))
    });
    for (documents, held) in lessons {
        rows += 1;
        if rows.is_multiple_of(LOOK) {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            events.doing(&format!("turning lessons into tokens: {}", human::counted(rows, "row")));
        }
        let documents = match documents {
            Ok(documents) => documents,
            Err(error @ fathom_text::Error::Row { .. }) => {
                dropped += 1;
                if dropped > made.max_rows_dropped {
                    refuse!("{error}; {}", advice(dropped));
                }
                report.damage.extend((report.damage.len() < NAMED).then(|| error.to_string()));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        // Documents that belong together are held out together, by the hash of the first.
        let mut hash = None;
        for lesson in &documents {
            cut += u64::from(lesson.cut > 0);
            let meta = DocMeta::of_text(&tokenizer.decode(&lesson.ids), source);
            let meta = DocMeta { hash: *hash.get_or_insert(split(meta.hash, held)), ..meta };
            writer.push_weighted(&lesson.ids, &lesson.weights, meta)?;
            writer.push_values(&lesson.values)?;
            reference.push(lesson, &store_prefix(out))?;
            if is_held_out(meta.hash, made.held_out) {
                report.held_out_documents += 1;
                continue;
            }
            report.documents += 1;
            report.tokens += lesson.ids.len() as u64;
            report.bytes += meta.text_bytes;
            report.supervised_tokens += lesson.supervised() as u64;
            example.get_or_insert_with(|| shown(lesson, tokenizer));
        }
    }
    let Some(example) = example else {
        refuse!("{}: {}", names.join(", "), no_example(report.held_out_documents, rows - dropped))
    };
    writer.finish()?;
    let dropped_text = |reason: &str, documents| DroppedText { reason: reason.into(), documents, bytes: 0 };
    report.dropped.extend((dropped > 0).then(|| dropped_text("rows that cannot be taught", dropped)));
    report.dropped.extend((cut > 0).then(|| dropped_text("rows of which a part was cut off", cut)));
    let (name, documents, bytes) = (names.join(", "), report.documents, report.bytes);
    report.sources = vec![DataSource { name, documents, bytes }];
    report.seconds = started.elapsed().as_secs_f64();
    Ok(Some((report, example)))
}

/// Returns the reason why there is no example among the valid rows.
fn no_example(held_out: u64, rows: u64) -> String {
    if held_out == 0 {
        return "there is no row to learn from; a lesson is a JSON object on a line".into();
    }
    let rows = human::grouped(rows);
    format!(
        "all {rows} rows are held out, and none is left to learn from; lower data.held_out_share, or give more rows"
    )
}

/// Returns a document's hash, changed if `held` decides: to one that is held out at any share up to a half, or at none.
fn split(hash: u128, held: Option<bool>) -> u128 {
    match held {
        None => hash,
        Some(true) => hash >> 64,
        Some(false) => hash | 1 << 127,
    }
}

fn hashed(paths: &[PathBuf]) -> Result<Vec<(PathBuf, String)>> {
    paths.iter().map(|path| Ok((path.clone(), hash_of(path)?))).collect()
}

/// Returns the advice for a refused row.
fn advice(dropped: u64) -> String {
    format!("mend the row, or allow some to be left out (data.max_rows_dropped={dropped})")
}

/// Splits a lesson into pieces of text that are context or targets, up to `SHOWN` bytes.
pub fn shown(lesson: &Lesson, tokenizer: &Tokenizer) -> events::Lesson {
    let mut pieces: Vec<(bool, Vec<u32>)> = Vec::new();
    for (at, (id, weight)) in lesson.ids.iter().zip(&lesson.weights).enumerate() {
        // The first token is never predicted.
        let learned = at > 0 && *weight > 0.0;
        match pieces.last_mut() {
            Some((same, ids)) if *same == learned => ids.push(*id),
            _ => pieces.push((learned, vec![*id])),
        }
    }
    let mut room = SHOWN;
    let mut piece = |(learned, ids): &(bool, Vec<u32>)| {
        let mut text = tokenizer.decode(ids);
        if text.len() > room {
            text.truncate(text.floor_char_boundary(room));
            text.push('…');
        }
        room = room.saturating_sub(text.len());
        events::Piece { learned: *learned, text }
    };
    let pieces = pieces.iter().map(&mut piece).filter(|piece| !piece.text.is_empty()).collect();
    let (tokens, supervised, cut) = (lesson.ids.len() as u64, lesson.supervised() as u64, lesson.cut as u64);
    events::Lesson { pieces, tokens, supervised, cut }
}

/// Reports the number of lessons and targets, the refused rows and the example.
pub fn say(report: &Data, example: &events::Lesson, fresh: bool, events: &dyn Events) {
    events.line(&format!(
        "{} of {}, {} of them learned ({}); {} held out",
        human::counted(report.documents, "lesson"),
        human::counted(report.tokens, "token"),
        human::grouped(report.supervised_tokens),
        human::percent(report.supervised_tokens as f64 / report.tokens.max(1) as f64),
        human::grouped(report.held_out_documents),
    ));
    for dropped in &report.dropped {
        events.line(&format!("{} {}", human::grouped(dropped.documents), dropped.reason));
    }
    report.damage.iter().for_each(|damage| events.line(&format!("  {damage}")));
    if fresh {
        events.on(Heard::Lesson(Box::new(example.clone())));
    }
}

/// Reports the stages whose samples are too short for some lessons.
///
/// # Errors
/// A store that cannot be read; a lesson that is too long where none may be truncated.
pub fn say_shortened(job: &Job, store: &Store, events: &dyn Events) -> Result<()> {
    let recipe = job.recipe();
    let held_out = fathom_train::held_out(recipe, &[store])?;
    for (index, stage) in recipe.stage.iter().enumerate() {
        let spec = loader_spec(recipe, index, held_out);
        let found = shortened(store, &spec).map_err(|error| format!("stage.{index}: {error}"));
        match found {
            Ok(found) => short(&stage.name, &spec, found).iter().for_each(|line| events.line(line)),
            Err(message) => refuse!("{message}"),
        }
    }
    Ok(())
}

/// Returns the message about lessons that are too long for a stage's samples, if any.
pub fn short(stage: &str, spec: &Spec, found: LengthCounts) -> Option<String> {
    let LengthCounts { cut, left_out } = found;
    let part = if spec.kept == Some(Truncation::KeepEnd) { "beginning" } else { "end" };
    (cut + left_out > 0).then(|| {
        format!(
            "stage {stage}: samples of {} tokens; {} longer lessons lose their {part}, and {} are left out, of which nothing that is \
             learned would be left",
            human::grouped(spec.room() as u64),
            human::grouped(cut),
            human::grouped(left_out),
        )
    })
}

/// Returns the hashes that identify the store in a folder.
fn identify(out: &Path) -> Result<[String; 3]> {
    let prefix = store_prefix(out);
    let fingerprint = Store::open(&prefix)?.fingerprint();
    let file = |suffix: &str| hash_of(&prefix.with_extension(suffix));
    Ok([fingerprint.iter().map(|byte| format!("{byte:02x}")).collect(), file("bin")?, file("weight")?])
}

fn hash_of(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let hashed = std::fs::File::open(path).and_then(|file| hasher.update_reader(file).map(drop));
    hashed.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hasher.finalize().to_hex().to_string())
}
