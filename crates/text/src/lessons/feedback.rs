//! Rows that compare or judge answers, in the formats of TRL, NeMo-Aligner, NeMo-RL, ShareGPT and LLaMA-Factory.
//!
//! Parses their content before tokenization ([`super::answers`]).

use serde_json::{Map, Value};

use super::teaching::Lesson;
use crate::chat::{Keys, Message};

/// A prompt or answer: plain text, or messages to be rendered by a chat template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TextOrMessages {
    Text(String),
    Messages(Vec<Message>),
}

/// A parsed row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FeedbackRow {
    /// Two answers, the better one first, with the reward of each and the margin of the first, if given.
    Pair { prompt: TextOrMessages, answers: [TextOrMessages; 2], rewards: [f32; 2], margin: f32 },
    /// A desirable or undesirable answer.
    Answer { prompt: TextOrMessages, answer: TextOrMessages, wanted: bool },
    /// Several answers, with known values of each.
    Responses { prompt: TextOrMessages, answers: Vec<TextOrMessages>, known: Vec<[f32; 2]> },
    /// A text with its ratings; unknown ratings are NaN.
    Rated { prompt: TextOrMessages, answer: TextOrMessages, ratings: Vec<f32> },
    /// Steps of an answer, each right or wrong.
    Steps { prompt: String, steps: Vec<String>, right: Vec<bool> },
}

type Row = Map<String, Value>;
/// A value made from a row, or the fault of the row.
pub(super) type RowResult<T> = Result<T, String>;

fn present<'a>(row: &'a Row, key: &str) -> Option<&'a Value> {
    row.get(key).filter(|value| !value.is_null())
}

/// First of several keys that the row contains, with its value.
fn first<'a>(row: &'a Row, named: &Option<String>, usual: &[&str]) -> Option<(String, &'a Value)> {
    let keys = named.iter().map(String::as_str).chain(usual.iter().copied());
    keys.into_iter().find_map(|key| Some((key.to_string(), present(row, key)?)))
}

fn seen(row: &Row) -> String {
    row.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

/// Parses a text, a message, or a list of messages.
fn said(key: &str, value: &Value, keys: &Keys) -> RowResult<TextOrMessages> {
    match value {
        Value::String(text) => Ok(TextOrMessages::Text(text.clone())),
        Value::Object(_) => {
            let list = Value::Array(vec![value.clone()]);
            Ok(TextOrMessages::Messages(Message::list(key, &list, keys)?))
        }
        list => Ok(TextOrMessages::Messages(Message::list(key, list, keys)?)),
    }
}

fn number(row: &Row, key: &str) -> RowResult<f32> {
    let Some(value) = present(row, key) else { return Ok(f32::NAN) };
    let number = value.as_f64().filter(|number| number.is_finite());
    number.map(|number| number as f32).ok_or_else(|| format!("`{key}` is {value}, which is no number"))
}

/// Parses two answers to a prompt.
pub(super) fn pair(row: &Row, keys: &Keys) -> RowResult<FeedbackRow> {
    let margin = number(row, "margin")?;
    if let (Some(context), Some(Value::Array(completions))) =
        (present(row, "context"), row.get("completions"))
    {
        return ranked(context, completions, margin, keys);
    }
    let find = |named, usual: &[&str]| first(row, named, usual);
    let chosen = find(&keys.chosen, &["chosen", "chosen_response"]);
    let rejected = find(&keys.rejected, &["rejected", "rejected_response"]);
    let (Some((better, chosen)), Some((worse, rejected))) = (chosen, rejected) else {
        return Err(format!(
            "has the keys {}; a row of two answers has `chosen` and `rejected` with `prompt`, `chosen_response` and \
             `rejected_response`, or `context` and ranked `completions`",
            seen(row)
        ));
    };
    let answers = [said(&better, chosen, keys)?, said(&worse, rejected, keys)?];
    let rewards = [number(row, "chosen_reward")?, number(row, "rejected_reward")?];
    let prompt = find(&keys.prompt, &["prompt", "conversations", "messages"]);
    let prompt = prompt.map(|(key, value)| said(&key, value, keys)).transpose()?;
    let (prompt, answers) = match (prompt, &answers) {
        (Some(TextOrMessages::Text(prompt)), [TextOrMessages::Messages(_), TextOrMessages::Messages(_)]) => {
            asked(&prompt, answers)?
        }
        (Some(TextOrMessages::Messages(_)), [TextOrMessages::Text(_), _] | [_, TextOrMessages::Text(_)]) => {
            return Err(format!(
                "has a prompt of messages, and `{better}` or `{worse}` is a text; give all as messages, or all as texts"
            ));
        }
        (Some(prompt), _) => (prompt, answers),
        (None, _) => {
            let (prompt, answers) = shared(answers)?;
            let unread = QUESTIONS.iter().find(|key| !is_asked(&prompt) && present(row, key).is_some());
            if let Some(key) = unread {
                return Err(format!(
                    "has the keys {}, of which none is read as its prompt; name the one that is (data.columns.prompt={key})",
                    seen(row)
                ));
            }
            (prompt, answers)
        }
    };
    Ok(FeedbackRow::Pair { prompt, answers, rewards, margin })
}

/// Names that other formats use for the prompt.
const QUESTIONS: [&str; 6] = ["question", "instruction", "input", "query", "system", "history"];

/// Combines a text prompt with two message answers: the prompt becomes the user's first turn, unless they already
/// begin with it.
fn asked(prompt: &str, answers: [TextOrMessages; 2]) -> RowResult<(TextOrMessages, [TextOrMessages; 2])> {
    let (before, answers) = shared(answers)?;
    let before = match before {
        TextOrMessages::Messages(before) if !is_asked(&TextOrMessages::Messages(before.clone())) => {
            TextOrMessages::Messages(before.into_iter().chain([Message::new("user", prompt)]).collect())
        }
        before => before,
    };
    Ok((before, answers))
}

/// Returns true for messages that include one of the user.
fn is_asked(prompt: &TextOrMessages) -> bool {
    matches!(prompt, TextOrMessages::Messages(list) if list.iter().any(|message| message.said["role"] == "user"))
}

/// Splits two answers into their common prompt and the rest, like TRL's `extract_prompt`.
fn shared([chosen, rejected]: [TextOrMessages; 2]) -> RowResult<(TextOrMessages, [TextOrMessages; 2])> {
    match (chosen, rejected) {
        (TextOrMessages::Text(chosen), TextOrMessages::Text(rejected)) => {
            let [one, other] = [&chosen, &rejected].map(|text| text.chars().collect::<Vec<_>>());
            let least = one.len().min(other.len());
            let mut at = (0..least).find(|at| one[*at] != other[*at]).unwrap_or(least.saturating_sub(1));
            if at > 0 && one[at] != other[at] && one[at - 1] == ' ' {
                at -= 1;
            }
            let text = |chars: &[char]| TextOrMessages::Text(chars.iter().collect());
            Ok((text(&one[..at]), [text(&one[at..]), text(&other[at..])]))
        }
        (TextOrMessages::Messages(mut chosen), TextOrMessages::Messages(mut rejected)) => {
            let least = chosen.len().min(rejected.len());
            let same = (0..least).find(|at| chosen[*at] != rejected[*at]).unwrap_or(least.saturating_sub(1));
            rejected.drain(..same);
            let answer = chosen.split_off(same);
            Ok((
                TextOrMessages::Messages(chosen),
                [TextOrMessages::Messages(answer), TextOrMessages::Messages(rejected)],
            ))
        }
        _ => Err("has one answer that is a text and one of messages".into()),
    }
}

/// NeMo-RL's format: two completions, of which the one with the lower rank is better.
fn ranked(context: &Value, completions: &[Value], margin: f32, keys: &Keys) -> RowResult<FeedbackRow> {
    let [one, other] = completions else {
        return Err(format!("has {} `completions`; a pair has two", completions.len()));
    };
    let rank = |it: &Value| it["rank"].as_f64().ok_or("has a completion without a `rank`");
    let (first, second) = (rank(one)?, rank(other)?);
    if first == second {
        return Err(format!("has two completions of rank {first}: neither is better"));
    }
    let (better, worse) = if first < second { (one, other) } else { (other, one) };
    let answer = |it: &Value| said("completion", &it["completion"], keys);
    let answers = [answer(better)?, answer(worse)?];
    Ok(FeedbackRow::Pair { prompt: said("context", context, keys)?, answers, rewards: [f32::NAN; 2], margin })
}

/// Parses desirable or undesirable answers; a row of two answers yields one of each.
pub(super) fn labelled(row: &Row, keys: &Keys) -> RowResult<Vec<FeedbackRow>> {
    let find = |named: &Option<String>, usual: &[&str]| first(row, named, usual);
    let label = find(&keys.label, &["label", "kto_tag", "preference"]);
    let Some((name, label)) = label else {
        let FeedbackRow::Pair { prompt, answers: [wanted, unwanted], .. } = pair(row, keys)? else {
            return Err("is no pair".into());
        };
        let answer = |answer, wanted| FeedbackRow::Answer { prompt: prompt.clone(), answer, wanted };
        return Ok(vec![answer(wanted, true), answer(unwanted, false)]);
    };
    let wanted = match label {
        Value::Bool(wanted) => *wanted,
        Value::String(text) if name == "preference" => text == "chosen",
        Value::Number(number) if [Some(0.0), Some(1.0)].contains(&number.as_f64()) => {
            number.as_f64() == Some(1.0)
        }
        other => return Err(format!("`{name}` is {other}; it says true or false")),
    };
    let (prompt, answer) = prompt_and_answer(row, keys)?;
    Ok(vec![FeedbackRow::Answer { prompt, answer, wanted }])
}

/// Prompt and answer of a row; the last message of a conversation is the answer.
fn prompt_and_answer(row: &Row, keys: &Keys) -> RowResult<(TextOrMessages, TextOrMessages)> {
    let prompt = first(row, &keys.prompt, &["prompt"]);
    let answer = first(row, &keys.completion, &["completion", "response"]);
    if let (Some((prompt_key, prompt)), Some((key, answer))) = (prompt, answer) {
        return Ok((said(&prompt_key, prompt, keys)?, said(&key, answer, keys)?));
    }
    let Some((key, turns)) = first(row, &keys.messages, &["messages", "conversations"]) else {
        return Err(format!(
            "has the keys {}; it has `prompt` and `completion`, or `messages` whose last is the answer",
            seen(row)
        ));
    };
    let mut messages = Message::list(&key, turns, keys)?;
    let answer = messages.pop().ok_or_else(|| format!("`{key}` is empty"))?;
    Ok((TextOrMessages::Messages(messages), TextOrMessages::Messages(vec![answer])))
}

/// Parses a text with a rating for each of `names`: NeMo-Aligner's `text` with a list `label`, or one key per name.
/// -100 stands for unknown.
pub(super) fn rated(row: &Row, names: &[String], keys: &Keys) -> RowResult<FeedbackRow> {
    let rating = |value: f64| if value == -100.0 { f32::NAN } else { value as f32 };
    let ratings: Vec<f32> = match first(row, &keys.label, &["label"]) {
        Some((key, Value::Array(list))) => {
            if list.len() != names.len() {
                let (has, wants) = (list.len(), names.len());
                return Err(format!("`{key}` has {has} ratings, and objective.attributes names {wants}"));
            }
            let numbers = list.iter().map(|value| value.as_f64().filter(|number| number.is_finite()));
            let numbers: Option<Vec<f64>> = numbers.collect();
            numbers.ok_or_else(|| format!("`{key}` is no list of numbers"))?.into_iter().map(rating).collect()
        }
        _ => names
            .iter()
            .map(|name| number(row, name).map(|it| rating(it.into())))
            .collect::<RowResult<_>>()?,
    };
    if ratings.iter().all(|rating| rating.is_nan()) {
        return Err(format!("has no rating; its keys are {}, the ratings {}", seen(row), names.join(", ")));
    }
    let (prompt, answer) = match present(row, "text") {
        Some(text) => (TextOrMessages::Text(String::new()), said("text", text, keys)?),
        None => prompt_and_answer(row, keys)?,
    };
    Ok(FeedbackRow::Rated { prompt, answer, ratings })
}

/// Parses NeMo-Aligner's rows of SteerLM 2: `responses`, each with its text (`value`) and three log-likelihoods: of
/// the attributes given the answer, of the answer, and of the answer given the attributes under the model that wrote
/// it. The prompt is `prompt`, or `prompt_turns` with the attributes (`label`), which the chat template writes before
/// an answer.
pub(super) fn responses(row: &Row, count: usize, keys: &Keys) -> RowResult<FeedbackRow> {
    let (prompt, answers, list) = several(row, keys, true)?;
    if list.len() != count {
        return Err(format!("has {} `responses`, and objective.responses is {count}", list.len()));
    }
    let logarithm = |it: &Value, name: &str| {
        let number = it[name].as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| format!("has a response without a number `{name}`"))
    };
    let known = |it: &Value| -> RowResult<[f32; 2]> {
        let [given, own, then] =
            ["log(P(a|x,y))", "log(P(y|x))", "log(Q(y|a,x))"].map(|name| logarithm(it, name));
        let (given, own, then) = (given?, own?, then?);
        Ok([(given + own - then) as f32, then as f32])
    };
    let known = list.iter().map(known).collect::<RowResult<_>>()?;
    Ok(FeedbackRow::Responses { prompt, answers, known })
}

/// Prompt of such a row, its answers, with or without the row's label before them, and the list that they come from.
pub(super) fn several<'a>(
    row: &'a Row,
    keys: &Keys,
    labelled: bool,
) -> RowResult<(TextOrMessages, Vec<TextOrMessages>, &'a [Value])> {
    let Some(list) = present(row, "responses").and_then(Value::as_array) else {
        return Err(format!("has the keys {}; it has `prompt` and a list `responses`", seen(row)));
    };
    let turns = first(row, &keys.prompt, &["prompt", "prompt_turns"]);
    let (key, turns) = turns.ok_or_else(|| format!("has the keys {}, and no `prompt`", seen(row)))?;
    let prompt = said(&key, turns, keys)?;
    if let (TextOrMessages::Text(_), false) = (&prompt, labelled) {
        return Err(
            "has a prompt that is a string, which contains its label; give messages, and a key `label`"
                .into(),
        );
    }
    let text =
        |it: &Value| it["value"].as_str().map(str::to_string).ok_or("has a response without a `value`");
    let answer = |it: &Value| -> RowResult<TextOrMessages> {
        let text = text(it)?;
        if let TextOrMessages::Text(_) = prompt {
            return Ok(TextOrMessages::Text(text));
        }
        let mut message = Message::new("assistant", &text);
        if let Some(label) = present(row, "label").filter(|_| labelled) {
            message.said["label"] = label.clone();
        }
        Ok(TextOrMessages::Messages(vec![message]))
    };
    let answers = list.iter().map(answer).collect::<RowResult<_>>()?;
    Ok((prompt, answers, list))
}

/// Parses TRL's rows of steps.
pub(super) fn steps(row: &Row, keys: &Keys) -> RowResult<FeedbackRow> {
    let prompt = first(row, &keys.prompt, &["prompt"]).and_then(|(_, prompt)| prompt.as_str());
    let list = |key: &str| present(row, key).and_then(Value::as_array);
    let (Some(prompt), Some(steps), Some(labels)) = (prompt, list("completions"), list("labels")) else {
        return Err(format!("has the keys {}; steps have `prompt`, `completions` and `labels`", seen(row)));
    };
    let texts: Option<Vec<String>> = steps.iter().map(|step| step.as_str().map(str::to_string)).collect();
    let right: Option<Vec<bool>> =
        labels.iter().map(|it| it.as_bool().or_else(|| Some(it.as_f64()? > 0.0))).collect();
    let (Some(steps), Some(right)) = (texts, right) else {
        return Err("has `completions` that are no texts, or `labels` that are neither true nor false".into());
    };
    if steps.len() != right.len() || steps.is_empty() {
        return Err(format!("has {} `completions` and {} `labels`", steps.len(), right.len()));
    }
    Ok(FeedbackRow::Steps { prompt: prompt.into(), steps, right })
}

/// Attaches a reference model's log-probabilities to the examples of a row, if the row has them in the form written
/// by `fathom score`.
pub(super) fn refer(row: &Row, documents: &mut [Lesson]) -> RowResult<()> {
    let Some(reference) = present(row, "reference") else { return Ok(()) };
    let model = reference["model"].as_str().ok_or("has a `reference` that names no `model`")?;
    let lists: Option<Vec<Vec<f32>>> = serde_json::from_value(reference["logps"].clone()).ok();
    let lists = lists.ok_or("has a `reference` whose `logps` are no lists of numbers")?;
    let fit = lists.len() == documents.len()
        && lists.iter().zip(documents.iter()).all(|(list, document)| list.len() == document.ids.len());
    if !fit {
        return Err("has a `reference` for other tokens: they were made by another tokenizer, or cut since; score the rows again".into());
    }
    for (document, logps) in documents.iter_mut().zip(lists) {
        document.reference = Some((model.to_string(), logps));
    }
    Ok(())
}

/// Attaches a teacher's best tokens to a lesson, if the row has them in the form written by `fathom score --top-k`.
pub(super) fn learn_from(row: &Row, lesson: &mut Lesson) -> RowResult<()> {
    let Some(teacher) = present(row, "teacher").filter(|teacher| teacher.is_object()) else { return Ok(()) };
    let model = teacher["model"].as_str().ok_or("has a `teacher` that names no `model`")?;
    let lists = |key: &str| serde_json::from_value::<Vec<Vec<f32>>>(teacher[key].clone()).ok();
    let (Some(ids), Some(logps)) = (lists("ids"), lists("logps")) else {
        return Err("has a `teacher` whose `ids` or `logps` are no lists of numbers for each token".into());
    };
    let k = logps.last().map_or(0, Vec::len);
    let even = |lists: &[Vec<f32>]| lists.iter().skip(1).all(|list| list.len() == k && k > 0);
    if ids.len() != lesson.ids.len() || logps.len() != ids.len() || !even(&ids) || !even(&logps) {
        return Err("has a `teacher` for other tokens: they were made by another tokenizer, or cut since; score the rows again".into());
    }
    let pairs = ids.iter().zip(&logps).skip(1).flat_map(|(ids, logps)| ids.iter().zip(logps));
    // The first token has no prediction.
    let best = std::iter::repeat_n(0.0, 2 * k).chain(pairs.flat_map(|(id, logp)| [*id, *logp]));
    lesson.best = Some((model.to_string(), best.collect()));
    Ok(())
}
