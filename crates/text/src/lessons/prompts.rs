//! Rows with prompts for a policy to answer, together with their other keys.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::files;
use super::rows::Rows;
use super::teaching::Columns;
use crate::Tokenizer;
use crate::chat::{Conversation, Template};
use crate::error::{Error, Result};

/// A tokenized prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Text of the prompt.
    pub text: String,
    /// The row it comes from.
    pub row: Map<String, Value>,
    /// Messages of the prompt, if it is a conversation.
    pub conversation: Option<Conversation>,
}

/// Reads the prompts of files and folders in order, with the errors of rows without a valid one: `prompt` as a string
/// or as a list of messages, or `messages` up to the last one that is not the model's. A prompt of more than
/// `max_tokens` tokens is an error.
///
/// # Errors
/// A file cannot be read.
pub fn prompts(
    paths: &[PathBuf],
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    columns: &Columns,
    max_tokens: usize,
) -> Result<(Vec<Prompt>, Vec<Error>)> {
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for path in files(paths)? {
        let mut rows = Rows::open(&path)?;
        while let Some(row) = rows.next() {
            let row = match row {
                Ok(row) => row,
                Err(error @ Error::Row { .. }) => {
                    refused.push(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match prompt(row, (tokenizer, template), columns, max_tokens) {
                Ok(prompt) => found.push(prompt),
                Err(reason) => refused.push(refusal(rows.path(), rows.line(), reason)),
            }
        }
    }
    Ok((found, refused))
}

fn refusal(path: &Path, line: u64, reason: String) -> Error {
    Error::Row { path: path.to_owned(), line, reason }
}

fn prompt(
    row: Value,
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    columns: &Columns,
    max_tokens: usize,
) -> std::result::Result<Prompt, String> {
    let Value::Object(row) = row else { return Err("is no JSON object with named fields".into()) };
    let key = columns.prompt.as_deref().unwrap_or("prompt");
    let mut conversation = None;
    let (text, ids) = match row.get(key) {
        Some(Value::String(text)) => {
            let ids = tokenizer.encode_prompt(text).map_err(|error| error.to_string())?;
            (text.clone(), if ids.is_empty() { tokenizer.bos().into_iter().collect() } else { ids })
        }
        _ => {
            let asked = Conversation::asked(&row, &columns.keys())?;
            let Some(template) = template else {
                return Err("is a conversation, and the model has no chat template; name one (data.chat_template=FILE), or give \
                            rows whose `prompt` is a string"
                    .into());
            };
            let text = template.render(&asked, asked.messages.len(), true)?.text;
            let ids = tokenizer.encode_special(&text).map_err(|error| error.to_string())?;
            conversation = Some(asked);
            (text, ids)
        }
    };
    match ids.len() {
        0 => Err("has an empty prompt, and the tokenizer has no begin-of-text token to start from".into()),
        tokens if tokens > max_tokens => Err(format!(
            "has a prompt of {tokens} tokens, and with the answer there is room for {max_tokens}; raise stage.*.seq_tokens, or \
             lower rl.max_answer_tokens"
        )),
        _ => Ok(Prompt { ids, text, row, conversation }),
    }
}
