//! Values of an item by the metrics of its task.

use serde_json::Value;

use super::config::TaskConfig;
use super::doc::Doc;
use super::filters::{Answers, said};
use super::measure::{Measure, OutputType, ROUGE};
use super::pass_at_k::PASS_AT_K;
use super::prompt::{Writer, index_of};
use crate::error::{Error, Result};
use crate::metrics::aggregate::ItemValue;
use crate::metrics::exact::ExactMatch;
use crate::metrics::rouge::rouge;
use crate::python::is_space;
use crate::ruler::string_match;

/// The values of an item for each metric, by the names that results have.
///
/// # Errors
/// A label that names no choice; answers of the wrong kind.
pub fn values(
    config: &TaskConfig,
    writer: &Writer<'_>,
    doc: &Doc,
    answers: &[Answers],
) -> Result<Vec<(String, ItemValue)>> {
    let wrong = |reason: String| Error::task(&config.name, reason);
    if config.measures.iter().all(|measure| measure.name == PASS_AT_K) {
        return Ok(Vec::new());
    }
    let one = |answers: &Answers| match answers {
        Answers::One(answer) => Ok(answer.clone()),
        Answers::Many(_) => Err(wrong("the filters leave several answers; end them with take_first".into())),
    };
    let answers: Vec<Value> = answers.iter().map(one).collect::<Result<_>>()?;
    let likelihood = |answer: &Value| (answer[0].as_f64().unwrap_or(f64::NAN), answer[1] == true);
    match config.output {
        OutputType::MultipleChoice => {
            let found: Vec<(f64, bool)> = answers.iter().map(likelihood).collect();
            choice_values(config, writer, doc, &found)
        }
        OutputType::LogLikelihood => {
            let (sum, greedy) = likelihood(&answers[0]);
            let of = |measure: &Measure| match measure.name.as_str() {
                "perplexity" => Some(sum),
                "acc" => Some(f64::from(u8::from(greedy))),
                _ => None,
            };
            let named =
                config.measures.iter().filter_map(|it| Some((it.name.clone(), ItemValue::Number(of(it)?))));
            Ok(named.collect())
        }
        OutputType::Rolling => {
            let text = said(&writer.target(doc)?);
            let sum = answers[0].as_f64().unwrap_or(f64::NAN);
            // Equal to `len(re.split(r"\s+", text))`.
            let is_start = |(at, c): (usize, char)| is_space(c) && !text[..at].ends_with(is_space);
            let words = 1 + text.char_indices().filter(|it| is_start(*it)).count();
            let of = |measure: &Measure| match measure.name.as_str() {
                "word_perplexity" => Some(words),
                "byte_perplexity" | "bits_per_byte" => Some(text.len()),
                _ => None,
            };
            let value = |measure: &Measure| Some(ItemValue::Weighted(sum, of(measure)? as f64));
            Ok(config.measures.iter().filter_map(|it| Some((it.name.clone(), value(it)?))).collect())
        }
        OutputType::GenerateUntil => text_values(config, writer, doc, &said(&answers[0])),
    }
}

/// Indices of the right choices.
fn golds(config: &TaskConfig, writer: &Writer<'_>, doc: &Doc, choices: &[String]) -> Result<Vec<usize>> {
    let gold = if writer.many_inputs { writer.text(doc)? } else { writer.target(doc)? };
    let all = gold.as_array().cloned().unwrap_or_else(|| vec![gold.clone()]);
    let index = |value: &Value| match value {
        Value::String(text) => choices.iter().position(|choice| choice == text),
        other => index_of(other).and_then(|at| usize::try_from(at).ok()).filter(|at| *at < choices.len()),
    };
    let named = |value: &Value| {
        index(value).ok_or_else(|| {
            let row = Value::Object(doc.clone()).to_string();
            let row: String = row.chars().take(200).collect();
            Error::task(
                &config.name,
                format!("label {value} is none of the {} choices of the row {row}", choices.len()),
            )
        })
    };
    all.iter().map(named).collect()
}

/// Index of the largest number, the first of equals.
fn best(numbers: impl Iterator<Item = f64>) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (at, number) in numbers.enumerate() {
        if number > best.1 {
            best = (at, number);
        }
    }
    best.0
}

fn choice_values(
    config: &TaskConfig,
    writer: &Writer<'_>,
    doc: &Doc,
    found: &[(f64, bool)],
) -> Result<Vec<(String, ItemValue)>> {
    let choices = writer.choices(doc)?;
    let golds = golds(config, writer, doc, &choices)?;
    let (own, alone) = found.split_at(choices.len().min(found.len()));
    let sums = || own.iter().map(|(sum, _)| *sum);
    let by_length = |length: &dyn Fn(&String) -> usize| {
        best(sums().zip(&choices).map(|(sum, choice)| sum / length(choice) as f64))
    };
    let right = |chosen: usize| ItemValue::Number(f64::from(u8::from(golds.contains(&chosen))));
    let value = |measure: &Measure| {
        Some(match measure.name.as_str() {
            "acc" => right(best(sums())),
            "acc_norm" => right(by_length(&|choice| choice.chars().count())),
            "acc_bytes" => right(by_length(&|choice| choice.len())),
            "exact_match" => {
                let any = golds.iter().any(|gold| own.get(*gold).is_some_and(|it| it.1));
                ItemValue::Number(f64::from(u8::from(any)))
            }
            "f1" | "mcc" => ItemValue::Classes(*golds.first()? as i64, best(sums()) as i64),
            "brier_score" => {
                let most = sums().fold(f64::NEG_INFINITY, f64::max);
                let terms: Vec<f64> = sums().map(|sum| (sum - most).exp()).collect();
                let all: f64 = terms.iter().sum();
                ItemValue::Probabilities(
                    *golds.first()? as i64,
                    terms.iter().map(|term| term / all).collect(),
                )
            }
            "acc_mutual_info" => right(best(sums().zip(alone).map(|(sum, (alone, _))| sum - alone))),
            _ => return None,
        })
    };
    Ok(config.measures.iter().filter_map(|it| Some((it.name.clone(), value(it)?))).collect())
}

fn text_values(
    config: &TaskConfig,
    writer: &Writer<'_>,
    doc: &Doc,
    answer: &str,
) -> Result<Vec<(String, ItemValue)>> {
    let gold = writer.target(doc)?;
    let golds: Vec<String> = if config.keys.contains_key("doc_to_choice") {
        vec![writer.choice(&writer.choices(doc)?, &gold)?]
    } else if let (true, Some(all)) = (writer.many_targets, gold.as_array()) {
        all.iter().map(said).collect()
    } else {
        vec![said(&gold)]
    };
    let mut values = Vec::new();
    for measure in &config.measures {
        let name = measure.name.as_str();
        if let Some(rule) = &measure.score {
            let value =
                rule.value(answer, &golds, doc).map_err(|reason| Error::task(&config.name, reason))?;
            values.push((name.to_string(), ItemValue::Number(value)));
            continue;
        }
        match name {
            "exact_match" => {
                let wrong = |reason| Error::task(&config.name, reason);
                let rule = ExactMatch::new(&measure.options).map_err(wrong)?;
                let mut same = false;
                for gold in &golds {
                    same |= rule.is_same(answer, gold).map_err(wrong)?;
                }
                values.push((name.to_string(), ItemValue::Number(f64::from(u8::from(same)))));
            }
            "string_match" => {
                let any = measure.options.get("any") == Some(&Value::Bool(true));
                values.push((name.to_string(), ItemValue::Number(string_match(answer, &golds, any))));
            }
            _ if name.starts_with("rouge") => {
                let mut most = [0.0f64; 4];
                for gold in &golds {
                    let scores = rouge(gold, answer);
                    most.iter_mut().zip(scores).for_each(|(most, score)| *most = most.max(score));
                }
                let wanted = ROUGE.iter().zip(most).filter(|(kind, _)| name == "rouge" || name == **kind);
                values.extend(wanted.map(|(kind, score)| (kind.to_string(), ItemValue::Number(score))));
            }
            "bleu" | "chrf" | "chrf++" | "ter" => {
                values.push((name.to_string(), ItemValue::Texts(golds.clone(), answer.to_string())));
            }
            PASS_AT_K => {}
            "bypass" => values.push((name.to_string(), ItemValue::Number(f64::NAN))),
            other => {
                return Err(Error::task(
                    &config.name,
                    format!("the metric `{other}` is none of generated answers"),
                ));
            }
        }
    }
    Ok(values)
}
