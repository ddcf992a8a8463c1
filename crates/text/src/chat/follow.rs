//! What follows an answer in a conversation that goes on: tokens to append, so that none of those before it is made again.

use std::rc::Rc;

use serde_json::{Value, json};

use super::conversation::{Conversation, Message};
use super::template::Template;
use crate::Tokenizer;

/// An answer in whose place the template shows what it writes behind one.
const ANSWER: &str = "an answer 7f3a";

/// Makes tokens of what somebody else says behind an answer.
#[derive(Debug)]
pub struct Follow {
    /// Of the model.
    pub tokenizer: Rc<Tokenizer>,
    /// Of its conversations; texts need none.
    pub template: Option<Template>,
    /// Who says what follows.
    pub role: String,
}

impl Follow {
    /// The tokens behind an answer that ended by itself, with the token `end`: of a conversation the rest of the answer's turn, what is
    /// `said`, and the beginning of the next answer; of a text without turns what is `said`, as it is. `so_far` is the conversation
    /// before the answer.
    ///
    /// They are what the template adds to the text with the answer, so the text with the answer has to be the beginning of the text with
    /// what follows, and the text before it the beginning of both.
    ///
    /// # Errors
    /// In words: what the template refuses, a template that rewrites earlier turns, a text that has no tokens.
    pub fn tokens(
        &self,
        so_far: Option<&Conversation>,
        (answer, end): (&str, Option<u32>),
        said: &str,
    ) -> Result<Vec<u32>, String> {
        let text = match so_far {
            None => said.to_string(),
            Some(so_far) => self.between(so_far, answer, end, said)?,
        };
        self.tokenizer.encode_special(&text).map_err(|error| error.to_string())
    }

    /// Whether conversations like this one can go on, before any does.
    ///
    /// # Errors
    /// As [`Follow::tokens`].
    pub fn check(&self, prompt: &Conversation) -> Result<(), String> {
        let mut so_far = prompt.clone();
        for _ in 0..2 {
            self.between(&so_far, "yes", None, "no")?;
            so_far.messages.extend([Message::new("assistant", "yes"), Message::new(&self.role, "no")]);
        }
        Ok(())
    }

    /// The text between an answer and the next.
    fn between(
        &self,
        so_far: &Conversation,
        answer: &str,
        end: Option<u32>,
        said: &str,
    ) -> Result<String, String> {
        let Some(template) = &self.template else { return Err("the model has no chat template".into()) };
        let render = |more: &[Message], prompt: bool| {
            let messages: Vec<&Value> = so_far.messages.iter().chain(more).map(|it| &it.said).collect();
            template.render_with(&messages, &so_far.tools, prompt, &serde_json::Map::new())
        };
        let with = |text: &str| Message::new("assistant", text);
        let before = render(&[], true)?.text;
        let answered = render(&[with(answer)], false)?.text;
        let follows = render(&[with(answer), Message::new(&self.role, said)], true)?.text;
        if !(answered.starts_with(&before) && follows.starts_with(&answered)) {
            return Err(format!(
                "the chat template rewrites earlier turns: with {} more the text before them is another, and the model was asked \
                 with what it was; name a template file that leaves them as they are (data.chat_template), or prompts that are strings",
                json!([{"role": "assistant", "content": answer}, {"role": self.role, "content": said}])
            ));
        }
        // What ends a turn is seen behind an answer that no template changes.
        let shown = render(&[with(ANSWER)], false)?.text;
        let close = shown.rfind(ANSWER).map(|at| &shown[at + ANSWER.len()..]);
        let Some(close) = close.filter(|close| answered.ends_with(close)) else {
            return Err(
                "the chat template does not show an answer as it is, so that what ends its turn is unknown"
                    .into(),
            );
        };
        // The model wrote the beginning of that itself.
        let own = end.and_then(|end| self.tokenizer.token(end)).unwrap_or_default();
        let rest = close.strip_prefix(own.as_str()).unwrap_or(close);
        Ok(format!("{rest}{}", &follows[answered.len()..]))
    }
}
