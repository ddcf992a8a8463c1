//! Locates the model's turns in a rendered text.

use std::ops::Range;

use super::conversation::{Conversation, Speaker};
use super::template::{Shows, Template};
use super::turns::Turns;

/// A byte range of a text, and the weight of its tokens.
pub(super) struct WeightedSpan {
    pub bytes: Range<usize>,
    pub weight: f32,
}

/// Renders a conversation and locates its target parts.
pub(super) fn spans(
    template: &Template,
    conversation: &Conversation,
    turns: Turns,
) -> Result<(String, Vec<WeightedSpan>), String> {
    let all = conversation.messages.len();
    if turns == Turns::All {
        let text = template.render(conversation, all, false)?.text;
        let part = WeightedSpan { bytes: 0..text.len(), weight: 1.0 };
        return Ok((text, vec![part]));
    }
    let (text, mut parts) = if *template.of(&conversation.tools).shows() == Shows::Difference {
        by_difference(template, conversation)?
    } else {
        by_marks(template, conversation)?
    };
    if turns == Turns::Last {
        parts.drain(..parts.len().saturating_sub(1));
    }
    Ok((text, parts))
}

/// Indices and weights of the model's messages after the prompt.
fn answers(conversation: &Conversation) -> impl Iterator<Item = (usize, f32)> {
    let all = conversation.messages.iter().enumerate().skip(conversation.prompt);
    all.filter(|(_, message)| message.by() == Speaker::Model).map(|(at, message)| (at, message.weight))
}

/// Spans by the template's own or inserted marks, one per message of the model.
fn by_marks(template: &Template, conversation: &Conversation) -> Result<(String, Vec<WeightedSpan>), String> {
    let rendered = template.render(conversation, conversation.messages.len(), false)?;
    let model: Vec<f32> = conversation
        .messages
        .iter()
        .enumerate()
        .filter(|(_, message)| message.by() == Speaker::Model)
        .map(|(at, message)| if at < conversation.prompt { 0.0 } else { message.weight })
        .collect();
    // Some templates mark an answer and its end separately.
    let marked =
        if model.len() == rendered.marked.len() { rendered.marked } else { joined(&rendered.marked) };
    if model.len() == marked.len() {
        let parts = marked.into_iter().zip(model);
        let parts = parts.map(|(bytes, weight)| WeightedSpan { bytes, weight }).collect();
        return Ok((rendered.text, parts));
    }
    // Some templates join messages, or mark several parts of each.
    if model.iter().all(|weight| *weight == 1.0) && !marked.is_empty() {
        let parts = marked.into_iter().map(|bytes| WeightedSpan { bytes, weight: 1.0 }).collect();
        return Ok((rendered.text, parts));
    }
    Err(format!(
        "the chat template marks {} parts of {} messages of the assistant, so that their weights cannot be distinguished",
        marked.len(),
        model.len()
    ))
}

/// Marked ranges with adjacent ones merged and empty ones removed.
fn joined(marked: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for part in marked {
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part.clone()),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Spans by the text that each answer adds.
fn by_difference(
    template: &Template,
    conversation: &Conversation,
) -> Result<(String, Vec<WeightedSpan>), String> {
    let text = template.render(conversation, conversation.messages.len(), false)?.text;
    let mut parts = Vec::new();
    for (at, weight) in answers(conversation) {
        let before = template.render(conversation, at, true)?.text;
        let with = if at + 1 == conversation.messages.len() {
            text.clone()
        } else {
            template.render(conversation, at + 1, false)?.text
        };
        if !(text.starts_with(&before) && text.starts_with(&with) && with.len() >= before.len()) {
            return Err(format!(
                "this chat template does not show which words are the model's: the text up to message {at} is not the \
                 beginning of the whole (it rewrites or drops earlier turns); name a template file with generation marks \
                 (data.chat_template), or learn the last turn alone (data.supervise=last_turn)"
            ));
        }
        parts.push(WeightedSpan { bytes: before.len()..with.len(), weight });
    }
    Ok((text, parts))
}
