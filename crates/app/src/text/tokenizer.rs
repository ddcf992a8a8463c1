//! The tokenizer that a recipe gives, where it does not have one trained.

use std::path::Path;

use fathom_text::Tokenizer;
use fathom_train::needs_corpus;
use fathom_train::recipe::MethodName;

use crate::error::{Result, refuse};
use crate::job::Job;
use crate::models::model_folder;

/// The tokenizer that the recipe gives: its own, or the model's.
///
/// # Errors
/// None is given, or it cannot be read.
pub fn given(job: &Job) -> Result<Tokenizer> {
    match (&job.recipe().data.tokenizer, job.start()?) {
        (Some(path), _) => open(path),
        (None, Some(folder)) => open(&folder),
        (None, None) => {
            refuse!("data.blend names token stores alone; data.tokenizer must say which tokenizer made them")
        }
    }
}

/// Refuses a tokenizer with more entries than the model has rows for them.
///
/// # Errors
/// That, and those of [`given`].
pub fn check(job: &Job) -> Result<()> {
    let (recipe, from) = (job.recipe(), &job.recipe().model.from);
    if recipe.data.tokenizer.is_none() && from.is_none() && needs_corpus(recipe) {
        // One that the run trains has as many entries as the model.
        return Ok(());
    }
    let (entries, rows) = (given(job)?.vocab_size(), job.specs[0].vocab);
    if entries <= rows {
        return Ok(());
    }
    if from.is_some() {
        refuse!(
            "the tokenizer has {entries} tokens and the model's embedding {rows} rows; give data.tokenizer the model's own"
        );
    }
    let message = format!("is {rows}, and the tokenizer has {entries} entries; give model.vocab={entries}");
    Err(job.loaded.refuse("model.vocab", message).into())
}

/// Refuses a teacher whose tokens mean something else than the student's.
///
/// # Errors
/// Another tokenizer, by its hash.
pub fn same_as_teacher(job: &Job, tokenizer: &Tokenizer) -> Result<()> {
    let table = &job.recipe().objective;
    let Some(folder) = table.teacher.as_deref().filter(|_| table.method == MethodName::Distill) else {
        return Ok(());
    };
    let (own, other) = (tokenizer.hash()?, open(&model_folder(folder)?)?.hash()?);
    if own == other {
        return Ok(());
    }
    let message = format!(
        "{} has another tokenizer (hash {other}) than the student (hash {own}): the same id is another text for each. Take a teacher \
         of the student's vocabulary, or give the run the teacher's (data.tokenizer={0})",
        folder.display()
    );
    Err(job.loaded.refuse("objective.teacher", message).into())
}

/// A `tokenizer.json`, or that of a folder.
fn open(path: &Path) -> Result<Tokenizer> {
    Ok(if path.is_file() { Tokenizer::from_file(path)? } else { Tokenizer::from_dir(path)? })
}
