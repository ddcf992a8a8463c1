//! Tokenizer that a recipe gives, unless the run trains one.

use std::path::Path;

use fathom_text::Tokenizer;
use fathom_train::needs_corpus;
use fathom_train::recipe::MethodName;

use crate::error::{Error, Result, refuse};
use crate::job::Job;
use crate::models::model_folder;

/// Returns the tokenizer that the recipe gives: its own, or the model's.
///
/// # Errors
/// None is given; it cannot be read.
pub fn given(job: &Job) -> Result<Tokenizer> {
    match (&job.recipe().data.tokenizer, job.start()?) {
        (Some(path), _) => open(path),
        (None, Some(folder)) => open(&folder),
        (None, None) => Err(none_given()),
    }
}

/// Returns the error for a missing tokenizer.
pub fn none_given() -> Error {
    Error::Refused(
        "data.blend names token stores alone; data.tokenizer must say which tokenizer made them".into(),
    )
}

/// [`given`], checked against the model's embedding; `None` if the run trains a tokenizer.
///
/// # Errors
/// A tokenizer with more entries than the model's embedding has rows; those of [`given`].
pub fn of_run(job: &Job) -> Result<Option<Tokenizer>> {
    let (recipe, from) = (job.recipe(), &job.recipe().model.from);
    if recipe.data.tokenizer.is_none() && from.is_none() && needs_corpus(recipe) {
        // A tokenizer that the run trains has as many entries as the model's embedding.
        return Ok(None);
    }
    let tokenizer = given(job)?;
    let (entries, rows) = (tokenizer.vocab_size(), job.stages[0].spec.vocab);
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

/// Refuses a teacher whose token ids mean other text than the student's.
///
/// # Errors
/// A different tokenizer, by hash.
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

/// Opens a `tokenizer.json`, or the tokenizer of a folder.
fn open(path: &Path) -> Result<Tokenizer> {
    Ok(if path.is_file() { Tokenizer::from_file(path)? } else { Tokenizer::from_dir(path)? })
}
