//! Continuation of a conversation after an answer: tokens to append, so that the preceding tokens stay unchanged.

use std::rc::Rc;

use serde_json::{Value, json};

use super::conversation::{Conversation, Message};
use super::template::Template;
use crate::Tokenizer;

/// Placeholder answer, used to see what the template writes after one.
const ANSWER: &str = "an answer 7f3a";

/// Tokenizes replies that follow an answer.
#[derive(Debug)]
pub struct Follow {
    /// Tokenizer of the model.
    pub tokenizer: Rc<Tokenizer>,
    /// Chat template; not needed for plain texts.
    pub template: Option<Template>,
    /// Role of the reply.
    pub role: String,
}

impl Follow {
    /// Tokens after an answer that ended with the token `end`. In a conversation: the rest of the answer's turn, the
    /// reply `said`, and the beginning of the next answer; in a text without turns: `said` unchanged. `so_far` is the
    /// conversation before the answer.
    ///
    /// The tokens are those that the template appends, so the rendered conversation must be a prefix of the rendering
    /// with the answer, which in turn must be a prefix of the rendering with the reply.
    ///
    /// # Errors
    /// A message if the template fails, the template rewrites earlier turns, or a text has no tokens.
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

    /// Checks in advance that conversations like this one can be continued.
    ///
    /// # Errors
    /// Same as [`Follow::tokens`].
    pub fn check(&self, prompt: &Conversation) -> Result<(), String> {
        let mut so_far = prompt.clone();
        for _ in 0..2 {
            self.between(&so_far, "yes", None, "no")?;
            so_far.messages.extend([Message::new("assistant", "yes"), Message::new(&self.role, "no")]);
        }
        Ok(())
    }

    /// Text between an answer and the next.
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
        // The end of a turn is visible after an answer that no template changes.
        let shown = render(&[with(ANSWER)], false)?.text;
        let close = shown.rfind(ANSWER).map(|at| &shown[at + ANSWER.len()..]);
        let Some(close) = close.filter(|close| answered.ends_with(close)) else {
            return Err(
                "the chat template does not show an answer as it is, so that what ends its turn is unknown"
                    .into(),
            );
        };
        // The model already generated the beginning of the closing text.
        let own = end.and_then(|end| self.tokenizer.token(end)).unwrap_or_default();
        let rest = close.strip_prefix(own.as_str()).unwrap_or(close);
        Ok(format!("{rest}{}", &follows[answered.len()..]))
    }
}
