//! Conversation with a model, turn by turn. Earlier turns are not processed again: they stay in the engine's pages.

use std::path::{Path, PathBuf};

use fathom_base::{
    Conversation, Describe, Event, Flow, GenerateRequest, PartialSampling, Prompt, Sampling, Stop, Tokenize,
    Usage,
};
use fathom_serve::{ToolFormat, shown_marks};
use fathom_tensor::DType;
use serde_json::{Value, json};

use crate::error::{Result, in_full, refuse};
use crate::events::Events;
use crate::host::{Host, HostOptions};
use crate::machine::Machine;
use crate::models;

/// Default number of context tokens, if the model supports as many.
const CONTEXT: usize = 8192;
/// Default number of tokens of an answer, if the context has room for them.
const MAX_TOKENS: usize = 1024;
/// Maximum number of draft tokens per step.
const DRAFTS: usize = 8;

/// Settings of a conversation.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Seed and stop conditions.
    pub sampling: Sampling,
    /// Sampling settings that override those of the model's files; the number of tokens is set below.
    pub chosen: PartialSampling,
    /// Maximum number of tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Maximum number of tokens of the conversation.
    pub context_tokens: Option<usize>,
    /// System message.
    pub system: Option<String>,
    /// File with a chat template; `None` for the model's own.
    pub template: Option<PathBuf>,
}

impl Settings {
    /// Returns the sampling settings, given those of the model's files.
    fn sampling_of(&self, model: PartialSampling) -> Sampling {
        self.chosen.on(model.on(self.sampling.clone()))
    }
}

/// Input from a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A message to the model.
    Text(String),
    /// Restarts the conversation.
    Reset,
    /// Restarts the conversation with this system message.
    System(String),
}

/// A chat front end.
pub trait Person {
    /// Returns the next input; `None` at the end.
    fn next(&mut self) -> Option<Input>;

    /// Receives the answer's text as it is generated.
    fn hear(&mut self, text: &str) -> Flow;

    /// The answer is complete.
    fn heard(&mut self, stop: Stop, usage: &Usage);

    /// The turn could not be answered, and was removed from the conversation.
    fn refused(&mut self, message: &str);
}

/// Opens a model to talk to.
///
/// # Errors
/// No model there; a reward model; an adapter of another base; an invalid chat template; out of memory.
pub fn open(
    (model, adapter): (&Path, Option<&Path>),
    dtype: Option<DType>,
    machine: &Machine,
    settings: &Settings,
    events: &dyn Events,
) -> Result<Host> {
    let own = models::context_tokens(&fathom_model::open_writer_config(&models::model_folder(model)?)?.0)
        .min(CONTEXT);
    let options = HostOptions {
        adapter: adapter.map(Path::to_path_buf),
        dtype,
        context_tokens: Some(settings.context_tokens.unwrap_or(own)),
        draft_tokens: DRAFTS,
        template: settings.template.clone(),
        ..HostOptions::new(model, machine)
    };
    Host::open_writer(options, events)
}

/// Runs a conversation until the person has no more input.
///
/// # Errors
/// A model without a chat template; settings out of range.
pub fn chat(host: &Host, settings: &Settings, person: &mut dyn Person) -> Result<()> {
    let card = host.service().card();
    if !card.converses {
        refuse!(
            "{} has no chat template (chat_template.jinja, or in tokenizer_config.json), so it continues text and does not converse; \
             ask fathom generate, or name a template (--chat-template FILE)",
            host.facts().folder.display()
        );
    }
    let sampling = settings.sampling_of(card.sampling);
    let mut talk = Talk { host, settings, sampling, conversation: Conversation::default() };
    talk.begin(settings.system.as_deref());
    while let Some(input) = person.next() {
        match input {
            Input::Reset => talk.begin(settings.system.as_deref()),
            Input::System(text) => talk.begin(Some(&text)),
            Input::Text(text) => talk.turn(&text, person),
        }
    }
    Ok(())
}

struct Talk<'a> {
    host: &'a Host,
    settings: &'a Settings,
    sampling: Sampling,
    conversation: Conversation,
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

impl Talk<'_> {
    fn begin(&mut self, system: Option<&str>) {
        let first = system.filter(|text| !text.is_empty()).map(|text| message("system", text));
        let messages = first.into_iter().collect();
        self.conversation = Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
    }

    /// Runs a turn: the person's message and the model's answer.
    fn turn(&mut self, text: &str, person: &mut dyn Person) {
        self.conversation.messages.push(message("user", text));
        match self.answer(person) {
            Ok(answer) => self.conversation.messages.push(message("assistant", &answer)),
            Err(error) => {
                self.conversation.messages.pop();
                person.refused(&in_full(&error));
            }
        }
    }

    /// Returns the model's answer to the conversation.
    ///
    /// # Errors
    /// A conversation that the template refuses or that is too long; a model that fails.
    fn answer(&mut self, person: &mut dyn Person) -> Result<String> {
        let (service, prompt) = (self.host.service(), Prompt::Conversation(self.conversation.clone()));
        let (ids, context_tokens) = (service.ids(&prompt)?, service.card().context_tokens);
        let left = context_tokens.saturating_sub(ids.len());
        if left == 0 {
            refuse!(
                "the conversation has {} tokens, and the context {context_tokens}; begin again (/reset), or raise --context",
                ids.len()
            );
        }
        let max_tokens = self.settings.max_tokens.unwrap_or(MAX_TOKENS).min(left);
        let sampling = Sampling { max_tokens, ..self.sampling.clone() };
        let request = GenerateRequest { ids: Some(ids), ..asking(prompt, sampling) };
        let (ticket, events) = self.host.events(request)?;
        let (mut answer, mut why) = (String::new(), Stop::Receiver);
        for event in events {
            match event {
                Event::Piece { text, .. } => {
                    answer.push_str(&text);
                    if !text.is_empty() && person.hear(&text) == Flow::Stop {
                        drop(ticket);
                        person.heard(Stop::Receiver, &Usage::default());
                        return Ok(answer);
                    }
                }
                Event::Ended { stop, .. } => why = stop,
                Event::Done(usage) => {
                    person.heard(why, &usage);
                    return Ok(answer);
                }
                Event::Failed(error) => return Err(self.host.cause(error)),
                Event::Started { .. } => {}
            }
        }
        let what = "the model failed while it answered".into();
        Err(self.host.cause(fathom_base::Error::Gone { what }))
    }
}

/// The request to the model, whose thoughts and calls keep their marks, also where these are special tokens.
fn asking(prompt: Prompt, sampling: Sampling) -> GenerateRequest {
    GenerateRequest { shown: shown_marks(ToolFormat::Auto), ..GenerateRequest::new(prompt, sampling) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_and_calls_keep_their_marks() {
        let shown = asking("a".into(), Sampling::default()).shown;
        for mark in
            ["<think>", "</think>", "[THINK]", "[TOOL_CALLS]", "[ARGS]", "<tool_call>", "<|python_tag|>"]
        {
            assert!(shown.iter().any(|it| it == mark), "{mark}");
        }
    }

    #[test]
    fn a_model_says_how_it_is_talked_to_unless_a_person_does() {
        let model = PartialSampling { temperature: Some(0.6), top_k: Some(20), ..PartialSampling::default() };
        let of = |chosen: PartialSampling| {
            let how = Settings { chosen, ..Settings::default() }.sampling_of(model.clone());
            (how.temperature, how.top_k, how.top_p)
        };
        assert_eq!(of(PartialSampling::default()), (0.6, 20, 1.0));
        let greedy =
            PartialSampling { temperature: Some(0.0), top_p: Some(0.5), ..PartialSampling::default() };
        assert_eq!(of(greedy), (0.0, 20, 0.5));
    }
}
