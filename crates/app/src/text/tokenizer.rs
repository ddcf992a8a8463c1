//! The tokenizer that a recipe gives, where it does not have one trained.

use std::path::Path;

use fathom_text::Tokenizer;
use fathom_train::needs_corpus;
use fathom_train::recipe::MethodName;

use crate::error::{Error, Result, refuse};
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
        (None, None) => Err(none_given()),
    }
}

/// What is wrong where a tokenizer has to be given, and is not.
pub fn none_given() -> Error {
    Error::Refused(
        "data.blend names token stores alone; data.tokenizer must say which tokenizer made them".into(),
    )
}

/// As [`given`], of a run whose model has a row for each of its tokens; `None` where the run trains one.
///
/// # Errors
/// A tokenizer with more entries than the model has rows for them, and those of [`given`].
pub fn of_run(job: &Job) -> Result<Option<Tokenizer>> {
    let (recipe, from) = (job.recipe(), &job.recipe().model.from);
    if recipe.data.tokenizer.is_none() && from.is_none() && needs_corpus(recipe) {
        // One that the run trains has as many entries as the model.
        return Ok(None);
    }
    let tokenizer = given(job)?;
    let (entries, rows) = (tokenizer.vocab_size(), job.specs[0].vocab);
    if entries <= rows {
        return Ok(Some(tokenizer));
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
    let folder = model_folder(folder)?;
    let (own, other) = (tokenizer.hash()?, open(&folder)?.hash()?);
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
