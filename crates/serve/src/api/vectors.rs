//! `/v1/embeddings` and `/v1/rerank`: vectors and scores of texts.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fathom_base::{Reading, Service, TextPair};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::params::most;
use super::{Answer, Asked, Server, ignored, json_answer, prepared};
use crate::admission::{Held, Permit};
use crate::fault::Fault;
use crate::fields::Fields;
use crate::shared::{Model, now_s};

/// Texts to compute numbers of.
struct Asking {
    model: std::sync::Arc<Model>,
    name: String,
    texts: Vec<TextPair>,
    tokens: usize,
    classify: bool,
    _held: Held,
    _permit: Permit,
}

/// Counts the tokens of texts, and holds room for them.
fn hold(
    server: &Server,
    asked: &mut Asked,
    name: Option<String>,
    texts: Vec<TextPair>,
) -> Result<Asking, Fault> {
    let permit = asked.permit()?;
    let (model, adapter) = server.model(name.as_deref())?;
    if let Some(adapter) = adapter {
        let what = format_args!("is `{adapter}`, an adapter, which writes text; ask {}", model.name);
        return Err(Fault::field("model", what));
    }
    most("input", texts.len(), server.settings.max_texts)?;
    if texts.is_empty() {
        return Err(Fault::bad("there are no texts"));
    }
    let (mut tokens, context) = (0, model.service.card().context_tokens);
    for (first, second) in &texts {
        let count =
            |text: &str| Ok(model.service.encode(text, Reading::Prompt).map_err(Fault::refused)?.len());
        let of = count(first)? + second.as_deref().map_or(Ok(0), count)?;
        if of == 0 {
            return Err(Fault::bad("a text is empty, and nothing can be computed of no tokens"));
        }
        if context > 0 && of > context {
            return Err(Fault::bad(format!("a text has {of} tokens; {context} are the most of this model")));
        }
        tokens += of;
    }
    let held = model.admission.admit(tokens as u64, 0, model.service.load().prefill_tokens_per_s)?;
    let name = name.unwrap_or_else(|| model.name.clone());
    Ok(Asking { model, name, texts, tokens, classify: false, _held: held, _permit: permit })
}

/// Waits for the numbers; dropping it cancels.
async fn numbers(asking: &mut Asking) -> Result<Vec<Vec<f32>>, Fault> {
    let (send, receive) = oneshot::channel();
    let texts = std::mem::take(&mut asking.texts);
    let sink = Box::new(move |result| _ = send.send(result));
    let _ticket = asking.model.service.embed(texts, asking.classify, sink).map_err(Fault::refused)?;
    match receive.await {
        Ok(result) => result.map_err(|error| Fault::bad(error.to_string())),
        Err(_) => Err(Fault::ours("the model failed while it worked on this request; try again")),
    }
}

/// Texts of a field: text, ids, or lists of either.
fn inputs(service: &dyn Service, value: Value) -> Result<Vec<TextPair>, Fault> {
    let wrong = || {
        Fault::field(
            "input",
            "has to be a string, a list of strings, a list of token ids, or a list of such lists",
        )
    };
    let decoded = |values: &[Value]| {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong);
        let ids = values.iter().map(id).collect::<Result<Vec<u32>, Fault>>()?;
        Ok((service.decode(&ids).map_err(Fault::refused)?, None))
    };
    match value {
        Value::String(text) => Ok(vec![(text, None)]),
        Value::Array(all) if !all.is_empty() && all.iter().all(Value::is_number) => Ok(vec![decoded(&all)?]),
        Value::Array(all) => all
            .into_iter()
            .map(|one| match one {
                Value::String(text) => Ok((text, None)),
                Value::Array(ids) => decoded(&ids),
                _ => Err(wrong()),
            })
            .collect(),
        _ => Err(wrong()),
    }
}

/// `/v1/embeddings`.
///
/// # Errors
/// What is wrong with the request, or with the model.
pub async fn embeddings(server: Server, asked: Asked) -> Answer {
    let of = server.clone();
    let (mut asking, base64, unknown) = prepared(asked, move |mut asked| {
        let mut fields: Fields = asked.fields()?;
        let name: Option<String> = fields.take("model")?;
        let (model, _) = of.model(name.as_deref())?;
        let size = model.service.card().embedding;
        if let Some(asked) = fields.take::<usize>("dimensions")?
            && asked != size
        {
            return Err(Fault::field(
                "dimensions",
                format_args!("is {asked}; vectors of this model have {size} numbers"),
            ));
        }
        let base64 = match fields.take::<String>("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(Fault::field("encoding_format", "has to be float or base64")),
        };
        let value: Value = fields.need("input")?;
        let texts = inputs(&*model.service, value)?;
        if texts.iter().any(|(text, _)| text.is_empty()) {
            return Err(Fault::field("input", "has an empty text, of which there is no vector"));
        }
        let unknown = fields.rest()?;
        Ok((hold(&of, &mut asked, name, texts)?, base64, unknown))
    })
    .await?;
    let vectors = numbers(&mut asking).await?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let value = if base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            Value::from(BASE64_STANDARD.encode(bytes))
        } else {
            json!(vector)
        };
        json!({"object": "embedding", "index": index, "embedding": value})
    });
    let usage = json!({"prompt_tokens": asking.tokens, "total_tokens": asking.tokens});
    let body = json!({
        "id": server.unique("embd-"),
        "object": "list",
        "created": now_s(),
        "model": asking.name,
        "data": data.collect::<Value>(),
        "usage": usage,
    });
    Ok(ignored(json_answer(&body), &unknown))
}

/// What is ranked: the texts, as the request gave them.
struct Ranking {
    documents: Vec<String>,
    most: usize,
    with_documents: bool,
}

/// `/v1/rerank`: documents by how well they answer a query, by a classifier's first number, or else by the cosine of vectors.
///
/// # Errors
/// What is wrong with the request, or with the model.
pub async fn rerank(server: Server, asked: Asked) -> Answer {
    let of = server.clone();
    let (mut asking, ranking, unknown) = prepared(asked, move |mut asked| {
        let mut fields: Fields = asked.fields()?;
        let name: Option<String> = fields.take("model")?;
        let query: String = fields.need("query")?;
        let documents: Vec<Value> = fields.need("documents")?;
        let text = |value: &Value| value.as_str().or(value["text"].as_str()).map(str::to_string);
        let wrong = || Fault::field("documents", "has to be a list of strings, or of objects with `text`");
        let documents =
            documents.iter().map(|it| text(it).ok_or_else(wrong)).collect::<Result<Vec<_>, _>>()?;
        let most = fields.take::<usize>("top_n")?.filter(|most| *most > 0).unwrap_or(documents.len());
        let with_documents = fields.or("return_documents", true)?;
        let unknown = fields.rest()?;
        let classify = !of.model(name.as_deref())?.0.service.card().labels.is_empty();
        let mut texts: Vec<TextPair> = if classify { Vec::new() } else { vec![(query.clone(), None)] };
        texts.extend(
            documents.iter().map(|text| {
                if classify { (query.clone(), Some(text.clone())) } else { (text.clone(), None) }
            }),
        );
        let mut asking = hold(&of, &mut asked, name, texts)?;
        asking.classify = classify;
        Ok((asking, Ranking { documents, most, with_documents }, unknown))
    })
    .await?;
    let rows = numbers(&mut asking).await?;
    let scores: Vec<f32> = if asking.classify {
        rows.iter().map(|row| row.first().copied().unwrap_or(0.0)).collect()
    } else {
        // Vectors have length 1.
        let dot = |row: &Vec<f32>| rows[0].iter().zip(row).map(|(a, b)| a * b).sum();
        rows[1..].iter().map(dot).collect()
    };
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.truncate(ranking.most);
    let result = |index: &usize| {
        let mut result = json!({"index": index, "relevance_score": scores[*index]});
        if ranking.with_documents {
            result["document"] = json!({"text": ranking.documents[*index]});
        }
        result
    };
    let body = json!({
        "id": server.unique("rerank-"),
        "model": asking.name,
        "results": order.iter().map(result).collect::<Value>(),
        "usage": {"total_tokens": asking.tokens, "prompt_tokens": asking.tokens},
    });
    Ok(ignored(json_answer(&body), &unknown))
}
