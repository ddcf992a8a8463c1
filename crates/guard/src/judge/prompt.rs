//! Prompts of judges. Texts of users are never read as special tokens: a prompt's own parts and its texts are tokenized
//! separately, so that a text cannot end the judge's turn or begin another one.

use fathom_base::{Conversation, Service, SpecialTokens, Tokenize};
use serde_json::json;

use super::question::{JudgeError, JudgeResult};

/// Part of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    /// Text of the prompt itself, in which special tokens are spelled out.
    Own(String),
    /// A text of a user, a model or a tool.
    Text(String),
    /// Place of the judged text.
    JudgedText,
}

/// A message of a conversation with a judge.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// Its role.
    pub role: &'static str,
    /// Its content.
    pub pieces: Vec<Piece>,
}

impl Turn {
    /// Creates a message.
    pub fn new(role: &'static str, pieces: Vec<Piece>) -> Turn {
        Turn { role, pieces }
    }
}

/// A prompt around a judged text, as token ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JudgePrompt {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl JudgePrompt {
    /// A prompt of pieces, preceded by the token that begins texts.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn plain(service: &dyn Service, pieces: &[Piece]) -> JudgeResult<JudgePrompt> {
        let begin = service.encode("", SpecialTokens::Prompt)?;
        let mut prompt = JudgePrompt::of(service, pieces)?;
        prompt.before.splice(0..0, begin);
        Ok(prompt)
    }

    /// A prompt of pieces, exactly as given.
    ///
    /// # Errors
    /// Errors of the tokenizer.
    pub fn of(service: &dyn Service, pieces: &[Piece]) -> JudgeResult<JudgePrompt> {
        let (mut prompt, mut after) = (JudgePrompt::default(), false);
        for piece in joined(pieces) {
            let (text, reading) = match &piece {
                Piece::Own(text) => (text, SpecialTokens::Rendered),
                Piece::Text(text) => (text, SpecialTokens::Text),
                Piece::JudgedText => {
                    after = true;
                    continue;
                }
            };
            let ids = service.encode(text, reading)?;
            if after { prompt.after.extend(ids) } else { prompt.before.extend(ids) }
        }
        Ok(prompt)
    }

    /// A conversation, rendered with the model's own template and followed by `lead`, with which the answer begins.
    /// A model without a template reads the messages one after another.
    ///
    /// # Errors
    /// The template refuses the conversation, or changes or leaves out a message.
    pub fn conversation(
        service: &dyn Service,
        turns: &[Turn],
        variables: serde_json::Map<String, serde_json::Value>,
        lead: &str,
    ) -> JudgeResult<JudgePrompt> {
        if !service.card().converses {
            let mut pieces: Vec<Piece> = Vec::new();
            for turn in turns {
                pieces.extend(turn.pieces.iter().cloned());
                pieces.push(Piece::Own("\n\n".into()));
            }
            pieces.push(Piece::Own(lead.into()));
            return JudgePrompt::plain(service, &pieces);
        }
        let mut places: Vec<Piece> = Vec::new();
        let mut messages = Vec::with_capacity(turns.len());
        for turn in turns {
            let mut content = String::new();
            for piece in &turn.pieces {
                match piece {
                    Piece::Own(text) => content.push_str(text),
                    other => {
                        content.push_str(&mark(places.len()));
                        places.push(other.clone());
                    }
                }
            }
            messages.push(json!({"role": turn.role, "content": content}));
        }
        let conversation =
            Conversation { messages, add_generation_prompt: true, variables, ..Conversation::default() };
        let rendered = service.render(&conversation)? + lead;
        JudgePrompt::of(service, &filled(&rendered, places)?)
    }

    /// Number of its tokens, without the judged text.
    pub fn len(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// The whole prompt with the judged text's tokens.
    pub fn around(&self, text: &[u32]) -> Vec<u32> {
        [&self.before[..], text, &self.after[..]].concat()
    }
}

/// Token ids of a judged text.
///
/// # Errors
/// Errors of the tokenizer.
pub(super) fn text_ids<T: Tokenize + ?Sized>(service: &T, text: &str) -> JudgeResult<Vec<u32>> {
    Ok(if text.is_empty() { Vec::new() } else { service.encode(text, SpecialTokens::Text)? })
}

/// Place of a text in a rendered template.
fn mark(at: usize) -> String {
    format!("\u{27E6}judged-text-{at}\u{27E7}")
}

/// A rendered template as pieces: each text in its place.
fn filled(rendered: &str, places: Vec<Piece>) -> JudgeResult<Vec<Piece>> {
    let (mut pieces, mut rest) = (Vec::new(), rendered);
    for (at, place) in places.into_iter().enumerate() {
        let once = || {
            JudgeError::Unfit(
                "the judge's chat template changes, repeats or leaves out a message".to_string(),
            )
        };
        let (before, after) = rest.split_once(&mark(at)).ok_or_else(once)?;
        if after.contains(&mark(at)) {
            return Err(once());
        }
        pieces.extend([Piece::Own(before.to_string()), place]);
        rest = after;
    }
    pieces.push(Piece::Own(rest.to_string()));
    Ok(pieces)
}

/// Neighbours of one kind as one piece, and no empty ones, so that tokens are those of the joined text.
fn joined(pieces: &[Piece]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (all.last_mut(), piece) {
            (_, Piece::Own(text) | Piece::Text(text)) if text.is_empty() => {}
            (Some(Piece::Own(last)), Piece::Own(text)) | (Some(Piece::Text(last)), Piece::Text(text)) => {
                last.push_str(text);
            }
            _ => all.push(piece.clone()),
        }
    }
    all
}

/// A prompt's text from a configuration, with places for texts in double braces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PromptText(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Own(String),
    Place(String),
}

impl PromptText {
    /// Reads a text such as `Is this allowed? {{ text }}`.
    ///
    /// # Errors
    /// An unknown place, an unclosed one, or not exactly one `text`.
    pub fn parse(text: &str, places: &[&str]) -> Result<PromptText, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) =
                after.split_once("}}").ok_or("a place in the prompt is not closed: it ends with `}}`")?;
            let name = name.trim();
            if !places.contains(&name) {
                return Err(format!("the prompt has no place `{name}`; there are {}", places.join(", ")));
            }
            parts.extend([Part::Own(before.to_string()), Part::Place(name.to_string())]);
            rest = after;
        }
        parts.push(Part::Own(rest.to_string()));
        let judged = parts.iter().filter(|part| **part == Part::Place("text".into())).count();
        match judged {
            1 => Ok(PromptText(parts)),
            _ => Err(format!(
                "the prompt needs one place `{{{{ text }}}}` for the judged text; it has {judged}"
            )),
        }
    }

    /// The prompt with its texts in place; `text` is the judged one.
    pub fn pieces(&self, texts: &dyn Fn(&str) -> String) -> Vec<Piece> {
        let piece = |part: &Part| match part {
            Part::Own(text) => Piece::Own(text.clone()),
            Part::Place(name) if name == "text" => Piece::JudgedText,
            Part::Place(name) => Piece::Text(texts(name)),
        };
        self.0.iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_names_its_places() {
        let read = PromptText::parse("a {{ text }} b {{question}}", &["text", "question"]).unwrap();
        let pieces = read.pieces(&|name| format!("<{name}>"));
        assert_eq!(
            pieces,
            [
                Piece::Own("a ".into()),
                Piece::JudgedText,
                Piece::Own(" b ".into()),
                Piece::Text("<question>".into()),
                Piece::Own(String::new())
            ]
        );
        for (text, why) in [
            ("none", "has 0"),
            ("{{ text }}{{ text }}", "has 2"),
            ("{{ text", "not closed"),
            ("{{ text }}{{ user }}", "no place `user`; there are text, question"),
        ] {
            assert!(PromptText::parse(text, &["text", "question"]).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn a_template_that_loses_or_repeats_a_text_is_refused() {
        let places = || vec![Piece::Text("x".into()), Piece::JudgedText];
        let good = format!("a{}b{}c", mark(0), mark(1));
        assert_eq!(filled(&good, places()).unwrap().len(), 5);
        for bad in [
            format!("a{}", mark(0)),
            format!("{}{}{}", mark(0), mark(1), mark(1)),
            format!("{}{}", mark(1), mark(0)),
        ] {
            assert!(filled(&bad, places()).is_err(), "{bad}");
        }
    }
}
