//! Prompts on their way to the model: every text that reaches it is judged, and a rewritten one is what it gets.
//!
//! In a conversation these are the messages of users (input), of tools (results), earlier answers (output), documents
//! (retrieval), and in every message all strings that a template may read. System messages, tools' declarations and
//! variables of templates are written by operators: rails of patterns judge them, rails that judge what users want do
//! not. Messages of a thread that passed unchanged are not judged again.

use std::sync::Arc;

use fathom_base::{Conversation, Prompt, PromptPart, Result, SpecialTokens, Tokenize};
use serde_json::Value;

use crate::engine::{Engine, Outcome, Selection, Subject};
use crate::rail::{Context, ToolUse};
use crate::stream::tool_use;
use crate::threads::{JudgedMessages, MessageId, chained};
use crate::verdict::{Decision, Direction, Verdict};

/// Kinds of rails that find patterns, whoever wrote the text.
const PATTERNS: [&str; 6] = ["regex", "personal_data", "secrets", "injection", "hidden_text", "encodings"];
/// Keys of messages whose values no template shows as text.
const SILENT: [&str; 4] = ["role", "type", "id", "tool_call_id"];

/// A judged text with all that an audit needs.
#[derive(Clone, Debug)]
pub(crate) struct JudgedText {
    pub direction: Direction,
    pub text: String,
    pub verdicts: Vec<Verdict>,
}

/// Result of judging a prompt.
#[derive(Default)]
pub(crate) struct JudgedPrompt {
    /// The prompt in place of the given one.
    pub rewritten: Option<Prompt>,
    /// The verdict that blocks.
    pub blocked: Option<Verdict>,
    pub texts: Vec<JudgedText>,
}

/// Judges prompts of one request.
pub(crate) struct PromptJudge<'a> {
    pub engine: &'a Engine,
    pub tokenizer: &'a dyn Tokenize,
    pub seen: &'a JudgedMessages,
    /// Circumstances without messages.
    pub context: Context,
    pub selection: Arc<Selection>,
    pub scope: &'a str,
}

/// Which rails of a direction judge a text.
#[derive(Clone, Copy, PartialEq)]
enum Rails {
    All,
    /// A message that was the last one of an earlier request: rails that count requests are left out.
    Earlier,
    /// Rails of patterns.
    Patterns,
}

impl PromptJudge<'_> {
    /// Judges a prompt.
    ///
    /// # Errors
    /// Token ids that cannot be decoded or encoded.
    pub fn judge(&self, prompt: &Prompt) -> Result<JudgedPrompt> {
        let mut judged = JudgedPrompt::default();
        match prompt {
            Prompt::Text(text) => {
                let new = self.text(text, Direction::Input, Vec::new(), Rails::All, &mut judged);
                judged.rewritten = new.map(Prompt::Text);
            }
            Prompt::Ids(ids) => {
                let text = self.tokenizer.decode(ids)?;
                let new = self.text(&text, Direction::Input, Vec::new(), Rails::All, &mut judged);
                let new =
                    new.map(|text| self.tokenizer.encode(&text, SpecialTokens::Rendered)).transpose()?;
                judged.rewritten = new.map(Prompt::Ids);
            }
            Prompt::Parts(parts) => self.parts(parts, &mut judged)?,
            Prompt::Conversation(talk) => self.conversation(talk, &mut judged),
        }
        Ok(judged)
    }

    /// Judges a text; returns its replacement, if it is rewritten.
    fn text(
        &self,
        text: &str,
        direction: Direction,
        messages: Vec<Value>,
        rails: Rails,
        judged: &mut JudgedPrompt,
    ) -> Option<String> {
        let context = Context { messages, ..self.context.clone() };
        let mut subject = Subject::new(direction, Arc::new(context));
        subject.selection = self.selected(direction, rails);
        if direction == Direction::ToolResult {
            subject.tool = Some(Arc::new(answered_tool(&subject.context)));
        }
        let outcome = self.engine.judge(text, &subject);
        note_result(&subject, text, &outcome);
        let rewritten = outcome.is_rewritten().then(|| outcome.text.clone());
        self.keep(text, direction, outcome, judged);
        rewritten
    }

    fn keep(&self, text: &str, direction: Direction, outcome: Outcome, judged: &mut JudgedPrompt) {
        if judged.blocked.is_none() {
            judged.blocked = outcome.block().cloned();
        }
        judged.texts.push(JudgedText { direction, text: text.to_string(), verdicts: outcome.verdicts });
    }

    /// The selection of the request without rails that do not judge such texts.
    fn selected(&self, direction: Direction, rails: Rails) -> Arc<Selection> {
        let keeps = |kind: &str| match rails {
            Rails::All => true,
            Rails::Earlier => kind != "rate",
            Rails::Patterns => PATTERNS.contains(&kind),
        };
        let config = self.engine.config();
        if config.on(direction).all(|rail| keeps(rail.manifest.name)) {
            return self.selection.clone();
        }
        let mut selection = Selection::clone(&self.selection);
        let before = self.selection.kept.get(&direction);
        let names = config.on(direction).filter(|rail| {
            let name = &rail.setting.name;
            keeps(rail.manifest.name) && before.is_none_or(|before| before.contains(name))
        });
        selection.kept.insert(direction, names.map(|rail| rail.setting.name.clone()).collect());
        Arc::new(selection)
    }

    fn parts(&self, parts: &[PromptPart], judged: &mut JudgedPrompt) -> Result<()> {
        let texts = parts.iter().map(|part| match part {
            PromptPart::Text(text) => Ok(text.clone()),
            PromptPart::Ids(ids) => self.tokenizer.decode(ids),
        });
        let texts = texts.collect::<Result<Vec<String>>>()?;
        let all = texts.concat();
        if self.text(&all, Direction::Input, Vec::new(), Rails::All, judged).is_none()
            || judged.blocked.is_some()
        {
            return Ok(());
        }
        // Each part alone, so that its tokens stay where they are; what spans parts is replaced in one text.
        let mut new = Vec::with_capacity(parts.len());
        let mut apart = JudgedPrompt::default();
        for (part, text) in parts.iter().zip(&texts) {
            let text = self.text(text, Direction::Input, Vec::new(), Rails::Earlier, &mut apart);
            new.push(match (part, text) {
                (part, None) => part.clone(),
                (PromptPart::Text(_), Some(text)) => PromptPart::Text(text),
                (PromptPart::Ids(_), Some(text)) => {
                    PromptPart::Ids(self.tokenizer.encode(&text, SpecialTokens::Rendered)?)
                }
            });
        }
        let again: String = new
            .iter()
            .map(|part| match part {
                PromptPart::Text(text) => Ok(text.clone()),
                PromptPart::Ids(ids) => self.tokenizer.decode(ids),
            })
            .collect::<Result<Vec<String>>>()?
            .concat();
        let mut last = JudgedPrompt::default();
        let spanning = self.text(&again, Direction::Input, Vec::new(), Rails::Earlier, &mut last);
        judged.blocked = judged.blocked.take().or(apart.blocked).or(last.blocked);
        judged.rewritten = Some(match spanning {
            None => Prompt::Parts(new),
            Some(text) => Prompt::Parts(vec![PromptPart::Text(text)]),
        });
        Ok(())
    }

    fn conversation(&self, talk: &Conversation, judged: &mut JudgedPrompt) {
        let mut new = talk.clone();
        let mut id = self.beginning();
        self.operators(&mut new, &mut id, judged);
        let last = new.messages.len().saturating_sub(1);
        for at in 0..new.messages.len() {
            if judged.blocked.is_some() {
                return;
            }
            let message = new.messages[at].clone();
            let (direction, rails) = match message["role"].as_str() {
                Some("assistant" | "model") => (Direction::Output, Rails::Earlier),
                Some("tool" | "function" | "ipython") => (Direction::ToolResult, Rails::Earlier),
                Some("system" | "developer") => (Direction::Input, Rails::Patterns),
                _ if at == last => (Direction::Input, Rails::All),
                _ => (Direction::Input, Rails::Earlier),
            };
            id = chained(&id, direction.name(), &message.to_string());
            if at != last && self.seen.contains(&id) {
                continue;
            }
            let before = judged.texts.len();
            let messages = new.messages[..=at].to_vec();
            for group in texts(&mut new.messages[at]) {
                self.group(group, direction, &messages, rails, judged);
            }
            self.remember(id, &judged.texts[before..], judged.blocked.is_some());
        }
        if new != *talk {
            judged.rewritten = Some(Prompt::Conversation(new));
        }
    }

    /// Judges documents, tools' declarations and variables of templates.
    fn operators(&self, talk: &mut Conversation, id: &mut MessageId, judged: &mut JudgedPrompt) {
        let mut documents = talk.variables.get_mut("documents").map(Value::take);
        if let Some(documents) = &mut documents {
            let mut groups = Vec::new();
            strings(documents, &mut groups);
            for group in groups {
                self.group(vec![group], Direction::Retrieval, &[], Rails::All, judged);
            }
        }
        let all = (Value::Array(talk.tools.clone()), Value::Object(talk.variables.clone()));
        *id = chained(id, "operators", &format!("{}{}", all.0, all.1));
        if !self.seen.contains(id) {
            let before = judged.texts.len();
            let mut groups = Vec::new();
            talk.tools.iter_mut().for_each(|tool| strings(tool, &mut groups));
            talk.variables.values_mut().for_each(|value| strings(value, &mut groups));
            for group in groups {
                self.group(vec![group], Direction::Input, &[], Rails::Patterns, judged);
            }
            self.remember(*id, &judged.texts[before..], judged.blocked.is_some());
        }
        if let Some(documents) = documents {
            talk.variables.insert("documents".into(), documents);
        }
    }

    /// Judges strings that are read as one text, and replaces them.
    fn group(
        &self,
        mut group: Vec<&mut String>,
        direction: Direction,
        messages: &[Value],
        rails: Rails,
        judged: &mut JudgedPrompt,
    ) {
        let text: String = group.iter().map(|part| part.as_str()).collect();
        if judged.blocked.is_some() {
            return;
        }
        if let Some(new) = self.text(&text, direction, messages.to_vec(), rails, judged)
            && let Some((first, rest)) = group.split_first_mut()
        {
            **first = new;
            rest.iter_mut().for_each(|part| part.clear());
        }
    }

    fn beginning(&self) -> MessageId {
        let context = &self.context;
        let parts = [
            self.engine.config().hash.as_str(),
            self.scope,
            context.key.as_deref().unwrap_or(""),
            context.thread.as_deref().unwrap_or(""),
            &context.model,
        ];
        chained(&[0; 32], &format!("{:?}", self.selection.kept), &parts.join("\n"))
    }

    /// Remembers a message whose texts all passed unchanged and without failures.
    fn remember(&self, id: MessageId, texts: &[JudgedText], blocked: bool) {
        let passes = |verdict: &Verdict| verdict.decision < Decision::Rewrite && !verdict.failed;
        if !blocked && texts.iter().flat_map(|text| &text.verdicts).all(passes) {
            self.seen.insert(id);
        }
    }
}

/// The tool whose result the last message is, by its name or by the id of its call.
pub(crate) fn answered_tool(context: &Context) -> ToolUse {
    let message = context.messages.last();
    let name = message.and_then(|it| it["name"].as_str().or(it["tool_name"].as_str()));
    let name = name.map(str::to_string).or_else(|| called(&context.messages));
    tool_use(&context.tools, name.as_deref().unwrap_or(""), Value::Null)
}

/// Notes a tool's result that passed in the ledger of its thread.
pub(crate) fn note_result(subject: &Subject, text: &str, outcome: &Outcome) {
    if let (Some(ledger), Some(tool), None) = (&subject.context.ledger, &subject.tool, outcome.blocked) {
        let call = subject.context.messages.last().and_then(|it| it["tool_call_id"].as_str());
        ledger.answered(&tool.name, call, text);
    }
}

/// Name of the tool that the last message answers, by the call's id.
fn called(messages: &[Value]) -> Option<String> {
    let id = messages.last()?["tool_call_id"].as_str()?;
    let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let call = calls.into_iter().find(|call| call["id"].as_str() == Some(id))?;
    call["function"]["name"].as_str().map(str::to_string)
}

/// The strings of a message, in groups that are read as one text: its content, whether one string or a list of parts,
/// and every other string that a template may show.
fn texts(message: &mut Value) -> Vec<Vec<&mut String>> {
    let mut groups = Vec::new();
    let Value::Object(members) = message else {
        let mut all = Vec::new();
        strings(message, &mut all);
        return all.into_iter().map(|one| vec![one]).collect();
    };
    for (key, value) in members {
        if SILENT.contains(&key.as_str()) {
            continue;
        }
        let mut all = Vec::new();
        strings(value, &mut all);
        if key == "content" {
            groups.insert(0, all);
        } else {
            groups.extend(all.into_iter().map(|one| vec![one]));
        }
    }
    groups
}

/// All strings in a value, but for the types and roles of its objects.
fn strings<'a>(value: &'a mut Value, all: &mut Vec<&'a mut String>) {
    match value {
        Value::String(text) => all.push(text),
        Value::Array(items) => items.iter_mut().for_each(|item| strings(item, all)),
        Value::Object(members) => {
            for (key, value) in members {
                if !SILENT.contains(&key.as_str()) {
                    strings(value, all);
                }
            }
        }
        _ => {}
    }
}
