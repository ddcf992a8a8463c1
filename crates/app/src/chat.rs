//! Conversation with a model, turn by turn. Earlier turns are not processed again: they stay in the engine's pages.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use fathom_base::{Event, Flow, GenerateRequest, PartialSampling, Prompt, Sampling, Stop, Usage};
use fathom_engine::{Engine, Limits, Scheduler};
use fathom_serve::{ToolFormat, shown_marks};
use fathom_text::chat::{Conversation, Message, Template};

use crate::error::{Result, caught, refuse};
use crate::models::{self, TextModel};

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
pub enum Said {
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
    fn next(&mut self) -> Option<Said>;

    /// Receives the answer's text as it is generated.
    fn hear(&mut self, text: &str) -> Flow;

    /// The answer is complete.
    fn heard(&mut self, stop: Stop, usage: &Usage);

    /// The turn could not be answered, and was removed from the conversation.
    fn refused(&mut self, message: &str);
}

/// Runs a conversation until the person has no more input.
///
/// # Errors
/// A model without a chat template, settings out of range, no memory for the context.
pub fn chat(model: &TextModel, settings: &Settings, person: &mut dyn Person) -> Result<()> {
    let TextModel { folder, tokenizer, loaded } = model;
    models::check_writes(folder, &loaded.model.spec)?;
    let template = match &settings.template {
        Some(file) => Some(Template::from_file(file, tokenizer)?),
        None => Template::from_dir(folder, tokenizer)?,
    };
    let Some(template) = template else {
        refuse!(
            "{} has no chat template (chat_template.jinja, or in tokenizer_config.json), so it continues text and does not converse; \
             ask fathom generate, or name a template (--chat-template FILE)",
            folder.display()
        );
    };
    let spec = &loaded.model.spec;
    let context_tokens = settings.context_tokens.unwrap_or_else(|| spec.max_positions.min(CONTEXT));
    let limits = Limits { context_tokens, draft_tokens: DRAFTS, ..Limits::default() };
    caught(|| {
        let engine = Engine::new(loaded.view(), tokenizer, limits);
        let mut talk = Talk {
            template: &template,
            scheduler: Scheduler::new(&engine, engine.capacity(1, context_tokens)),
            sampling: settings.sampling_of(fathom_model::open_config(folder)?.1.sampling()),
            settings,
            tokenizer,
            context_tokens,
            conversation: Conversation::default(),
        };
        talk.begin(settings.system.as_deref());
        while let Some(said) = person.next() {
            match said {
                Said::Reset => talk.begin(settings.system.as_deref()),
                Said::System(text) => talk.begin(Some(&text)),
                Said::Text(text) => talk.turn(&text, person),
            }
        }
        Ok(())
    })
}

struct Talk<'e> {
    template: &'e Template,
    scheduler: Scheduler<'e>,
    settings: &'e Settings,
    sampling: Sampling,
    tokenizer: &'e fathom_text::Tokenizer,
    context_tokens: usize,
    conversation: Conversation,
}

impl Talk<'_> {
    fn begin(&mut self, system: Option<&str>) {
        let first = system.filter(|text| !text.is_empty()).map(|text| Message::new("system", text));
        self.conversation = Conversation { messages: first.into_iter().collect(), ..Conversation::default() };
    }

    /// Runs a turn: the person's message and the model's answer.
    fn turn(&mut self, text: &str, person: &mut dyn Person) {
        self.conversation.messages.push(Message::new("user", text));
        match self.answer(person) {
            Ok(answer) => self.conversation.messages.push(Message::new("assistant", &answer)),
            Err(message) => {
                self.conversation.messages.pop();
                person.refused(&message);
            }
        }
    }

    /// Returns the model's answer to the conversation, or a message about what is wrong.
    fn answer(&mut self, person: &mut dyn Person) -> std::result::Result<String, String> {
        let all = self.conversation.messages.len();
        let prompt = self.template.render(&self.conversation, all, true)?.text;
        let ids = self.tokenizer.encode_special(&prompt).map_err(|error| error.to_string())?;
        let left = self.context_tokens.saturating_sub(ids.len());
        if left == 0 {
            return Err(format!(
                "the conversation has {} tokens, and the context {}; begin again (/reset), or raise --context",
                ids.len(),
                self.context_tokens
            ));
        }
        let max_tokens = self.settings.max_tokens.unwrap_or(MAX_TOKENS).min(left);
        let sampling = Sampling { max_tokens, ..self.sampling.clone() };
        let request = asking(ids, sampling);
        let events: Rc<RefCell<VecDeque<Event>>> = Rc::default();
        let inbox = events.clone();
        let listener = Box::new(move |event| {
            inbox.borrow_mut().push_back(event);
            Flow::Continue
        });
        let id = self.scheduler.submit(request, listener).map_err(|error| error.to_string())?;
        let (mut answer, mut why) = (String::new(), Stop::Receiver);
        while self.scheduler.step() {
            while let Some(event) = events.borrow_mut().pop_front() {
                match event {
                    Event::Piece { text, .. } => {
                        answer.push_str(&text);
                        if !text.is_empty() && person.hear(&text) == Flow::Stop {
                            self.scheduler.cancel(id);
                            person.heard(Stop::Receiver, &Usage::default());
                            return Ok(answer);
                        }
                    }
                    Event::Ended { stop, .. } => why = stop,
                    Event::Done(usage) => person.heard(why.clone(), &usage),
                    Event::Failed(error) => return Err(error.to_string()),
                    Event::Started { .. } => {}
                }
            }
        }
        Ok(answer)
    }
}

/// The request to the model, whose thoughts and calls keep their marks, also where these are special tokens.
fn asking(ids: Vec<u32>, sampling: Sampling) -> GenerateRequest {
    GenerateRequest {
        shown: shown_marks(ToolFormat::Auto),
        ..GenerateRequest::new(Prompt::Ids(ids), sampling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_and_calls_keep_their_marks() {
        let shown = asking(vec![1], Sampling::default()).shown;
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
