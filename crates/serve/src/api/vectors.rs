//! Vectors, labels and scores of texts: `/v1/embeddings`, `/classify`, `/score`, `/v1/rerank`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fathom_base::{Numbers, TextIds, TextPair};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::params::most;
use super::{AdmittedRequest, Answer, Server, apart, ignored, json_answer, on_blocking_thread};
use crate::admission::{Permit, Permits};
use crate::fault::Fault;
use crate::fields::Fields;
use crate::now::now_s;
use crate::shared::Model;

/// Texts to process.
struct TextBatch {
    model: std::sync::Arc<Model>,
    name: String,
    texts: Vec<TextIds>,
    tokens: usize,
    numbers: Numbers,
    /// Fields unknown to the server.
    unknown: Vec<String>,
    _held: Permits,
    _permit: Option<Permit>,
}

/// A text of a request.
enum Input {
    Text(TextPair),
    Ids(Vec<u32>),
}

/// The common fields of these requests.
struct Common {
    name: Option<String>,
    model: std::sync::Arc<Model>,
    /// Maximum tokens of a text, if longer ones are to be truncated.
    most: Option<usize>,
}

impl Common {
    fn take(server: &Server, fields: &mut Fields) -> Result<Common, Fault> {
        let name: Option<String> = fields.take("model")?;
        let (model, adapter) = server.model(name.as_deref())?;
        if let Some(adapter) = adapter {
            let what = format_args!("is `{adapter}`, an adapter, which writes text; ask {}", model.name);
            return Err(Fault::field("model", what));
        }
        let context = model.service.card().context_tokens;
        let key = "truncate_prompt_tokens";
        let most = match fields.take::<i64>(key)? {
            None => None,
            // The maximum of the model.
            Some(-1) => Some(context),
            Some(asked) => match usize::try_from(asked) {
                Ok(asked) if asked > 0 && asked <= context => Some(asked),
                _ => {
                    let what =
                        format_args!("is {asked}; it has to be from 1 to {context}, or -1 for {context}");
                    return Err(Fault::field(key, what));
                }
            },
        };
        Ok(Common { name, model, most })
    }

    /// Reads texts, and takes permits for their tokens.
    fn hold(
        self,
        asked: &mut AdmittedRequest,
        (inputs, numbers): (Vec<Input>, Numbers),
        fields: Fields,
    ) -> Result<TextBatch, Fault> {
        let Common { name, model, most: cut } = self;
        let (permit, unknown) = (asked.permit.take(), fields.rest()?);
        if inputs.is_empty() {
            return Err(Fault::bad("there are no texts"));
        }
        let context = model.service.card().context_tokens;
        let read = |(at, input): (usize, Input)| {
            let text = match input {
                Input::Text(text) => model.service.read(&text, numbers, cut).map_err(Fault::refused)?,
                Input::Ids(mut ids) => {
                    ids.truncate(cut.unwrap_or(usize::MAX));
                    ids.into()
                }
            };
            match text.ids.len() {
                // The tokenizer adds nothing around it either.
                0 => Err(Fault::bad(format!(
                    "text {at} of the request, counted from 0, is empty for this model, and nothing can be computed of no tokens; leave it out"
                ))),
                of if context > 0 && of > context => Err(Fault::bad(format!(
                    "a text has {of} tokens; {context} are the most of this model (truncate_prompt_tokens: -1 reads the first of them)"
                ))),
                _ => Ok(text),
            }
        };
        let texts = inputs.into_iter().enumerate().map(read).collect::<Result<Vec<TextIds>, Fault>>()?;
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        let held = model.admission.admit(tokens as u64, 0, model.service.load().prefill_tokens_per_s)?;
        let name = name.unwrap_or_else(|| model.name.clone());
        Ok(TextBatch { model, name, texts, tokens, numbers, unknown, _held: held, _permit: permit })
    }

    /// Checks that the model's head has one output.
    fn ranks(&self) -> Result<(), Fault> {
        match self.model.service.card().labels.len() {
            0 | 1 => Ok(()),
            labels => Err(Fault::field(
                "model",
                format_args!(
                    "is {}, which has {labels} labels and no one score; ask /classify",
                    self.model.name
                ),
            )),
        }
    }
}

impl TextBatch {
    /// Waits for the results; dropping this cancels.
    async fn numbers(&mut self) -> Result<Vec<Vec<f32>>, Fault> {
        let (send, receive) = oneshot::channel();
        let texts = std::mem::take(&mut self.texts);
        let sink = Box::new(move |result| _ = send.send(result));
        let _ticket = self.model.service.numbers(texts, self.numbers, sink).map_err(Fault::refused)?;
        match receive.await {
            Ok(result) => result.map_err(|error| Fault::bad(error.to_string())),
            Err(_) => Err(Fault::ours("the model failed while it worked on this request; try again")),
        }
    }

    /// A list response with usage figures.
    fn list(&self, id: String, data: Value) -> Answer {
        let body = json!({
            "id": id,
            "object": "list",
            "created": now_s(),
            "model": self.name,
            "data": data,
            "usage": {"prompt_tokens": self.tokens, "total_tokens": self.tokens},
        });
        Ok(ignored(json_answer(&body), &self.unknown))
    }
}

/// The texts of a field: text, ids, or lists of either, at most `limit` of them.
fn inputs(value: Value, limit: u64) -> Result<Vec<Input>, Fault> {
    let wrong = || {
        Fault::field(
            "input",
            "has to be a string, a list of strings, a list of token ids, or a list of such lists",
        )
    };
    let text = |text: String| Input::Text((text, None));
    let ids = |values: &[Value]| {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong);
        Ok(Input::Ids(values.iter().map(id).collect::<Result<Vec<u32>, Fault>>()?))
    };
    match value {
        Value::String(one) => Ok(vec![text(one)]),
        Value::Array(all) if !all.is_empty() && all.iter().all(Value::is_number) => Ok(vec![ids(&all)?]),
        Value::Array(all) => {
            most("input", all.len(), limit)?;
            let one = |one| match one {
                Value::String(one) => Ok(text(one)),
                Value::Array(one) => ids(&one),
                _ => Err(wrong()),
            };
            all.into_iter().map(one).collect()
        }
        _ => Err(wrong()),
    }
}

/// Checks pairs with repeated texts: their number is limited, and their bytes by the limit of a body.
///
/// # Errors
/// The field that exceeds a limit.
fn repeated(server: &Server, field: &str, pairs: usize, bytes: usize) -> Result<(), Fault> {
    most(field, pairs, server.settings.max_texts)?;
    let limit = server.settings.body_bytes;
    if bytes as u64 > limit {
        return Err(Fault::field(
            field,
            format_args!(
                "makes pairs of {bytes} bytes together, and {limit} are the most (serve.body_bytes); send fewer of them, or shorter texts"
            ),
        ));
    }
    Ok(())
}

/// `/v1/embeddings`.
///
/// # Errors
/// Those of the request or of the model.
pub async fn embeddings(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let (mut asking, base64) = on_blocking_thread(asked, move |mut asked| {
        let mut fields: Fields = Fields::parse(&asked.body)?;
        let common = Common::take(&of, &mut fields)?;
        let size = common.model.service.card().embedding;
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
        let inputs = inputs(fields.need("input")?, of.settings.max_texts)?;
        Ok((common.hold(&mut asked, (inputs, Numbers::Vector), fields)?, base64))
    })
    .await?;
    let vectors = asking.numbers().await?;
    let written = move || {
        let data = vectors.iter().enumerate().map(|(index, vector)| {
            let value = if base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                Value::from(BASE64_STANDARD.encode(bytes))
            } else {
                json!(vector)
            };
            json!({"object": "embedding", "index": index, "embedding": value})
        });
        asking.list(server.unique("embd-"), data.collect())
    };
    apart(written).await
}

/// `/classify`: the most likely label of each text, and the scores of all labels.
///
/// # Errors
/// Those of the request or of the model.
pub async fn classify(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let mut asking = on_blocking_thread(asked, move |mut asked| {
        let mut fields: Fields = Fields::parse(&asked.body)?;
        let common = Common::take(&of, &mut fields)?;
        let inputs = inputs(fields.need("input")?, of.settings.max_texts)?;
        common.hold(&mut asked, (inputs, Numbers::Classes), fields)
    })
    .await?;
    let (rows, labels) = (asking.numbers().await?, asking.model.service.card().labels);
    let data = rows.iter().enumerate().map(|(index, row)| {
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a))).unwrap_or(0);
        json!({"index": index, "label": labels.get(best), "probs": row, "num_classes": row.len()})
    });
    asking.list(server.unique("classify-"), data.collect())
}

/// `/score`: how well each second text answers the first, as in vLLM's `text_1` and `text_2`: one and several, or
/// equally many of each.
///
/// # Errors
/// Those of the request or of the model.
pub async fn score(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let (mut asking, pairs) = on_blocking_thread(asked, move |mut asked| {
        let mut fields: Fields = Fields::parse(&asked.body)?;
        let common = Common::take(&of, &mut fields)?;
        let mut texts = |key: &'static str| match fields.need(key)? {
            Value::String(text) => Ok(vec![text]),
            Value::Array(all) => {
                let wrong = || Fault::field(key, "has to be a string or a list of strings");
                all.iter().map(|it| it.as_str().map(str::to_string).ok_or_else(wrong)).collect()
            }
            _ => Err(Fault::field(key, "has to be a string or a list of strings")),
        };
        let (mut first, second): (Vec<String>, Vec<String>) = (texts("text_1")?, texts("text_2")?);
        if let [one] = &mut first[..] {
            let (one, of_second) = (std::mem::take(one), second.iter().map(String::len).sum::<usize>());
            repeated(&of, "text_2", second.len(), one.len().saturating_mul(second.len()) + of_second)?;
            first = vec![one; second.len()];
        }
        most("text_1", first.len(), of.settings.max_texts)?;
        if first.len() != second.len() {
            let what =
                format_args!("has {} texts, and text_1 {}; one, or as many", second.len(), first.len());
            return Err(Fault::field("text_2", what));
        }
        let pairs = first.len();
        let paired = first.into_iter().zip(second).collect();
        Ok((judged(common, &mut asked, paired, fields)?, pairs))
    })
    .await?;
    let scores = scores(&mut asking, pairs).await?;
    let score = |(index, score): (usize, &f32)| json!({"index": index, "object": "score", "score": score});
    asking.list(server.unique("score-"), scores.iter().enumerate().map(score).collect())
}

/// Submits pairs for scoring: as pairs to a model with a head, else for vectors of both texts, the first of each pair
/// before the second; a first text common to all pairs is submitted once.
fn judged(
    common: Common,
    asked: &mut AdmittedRequest,
    pairs: Vec<(String, String)>,
    fields: Fields,
) -> Result<TextBatch, Fault> {
    common.ranks()?;
    if !common.model.service.card().labels.is_empty() {
        let inputs = pairs.into_iter().map(|(first, second)| Input::Text((first, Some(second)))).collect();
        return common.hold(asked, (inputs, Numbers::Relevance), fields);
    }
    let text = |text: String| Input::Text((text, None));
    let same = pairs.iter().all(|(first, _)| *first == pairs[0].0);
    let mut inputs = Vec::new();
    for (at, (first, second)) in pairs.into_iter().enumerate() {
        if at == 0 || !same {
            inputs.push(text(first));
        }
        inputs.push(text(second));
    }
    common.hold(asked, (inputs, Numbers::Vector), fields)
}

/// The scores of `pairs` pairs.
async fn scores(asking: &mut TextBatch, pairs: usize) -> Result<Vec<f32>, Fault> {
    let rows = asking.numbers().await?;
    // Vectors have length 1.
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    Ok(match asking.numbers {
        Numbers::Vector if rows.len() == pairs + 1 => {
            rows[1..].iter().map(|row| dot(&rows[0], row)).collect()
        }
        Numbers::Vector => rows.chunks_exact(2).map(|pair| dot(&pair[0], &pair[1])).collect(),
        _ => rows.iter().map(|row| row.first().copied().unwrap_or(0.0)).collect(),
    })
}

/// The texts to rank, as in the request.
struct Ranking {
    documents: Vec<String>,
    most: usize,
    with_documents: bool,
}

/// `/v1/rerank`: ranks documents by how well they answer a query, by the score of a model with a head, or else by the
/// cosine of vectors.
///
/// # Errors
/// Those of the request or of the model.
pub async fn rerank(server: Server, asked: AdmittedRequest) -> Answer {
    let of = server.clone();
    let (mut asking, ranking) = on_blocking_thread(asked, move |mut asked| {
        let mut fields: Fields = Fields::parse(&asked.body)?;
        let common = Common::take(&of, &mut fields)?;
        let query: String = fields.need("query")?;
        let documents: Vec<Value> = fields.need("documents")?;
        most("documents", documents.len(), of.settings.max_texts)?;
        let text = |value: &Value| value.as_str().or(value["text"].as_str()).map(str::to_string);
        let wrong = || Fault::field("documents", "has to be a list of strings, or of objects with `text`");
        let documents =
            documents.iter().map(|it| text(it).ok_or_else(wrong)).collect::<Result<Vec<_>, _>>()?;
        let all: usize = documents.iter().map(String::len).sum();
        repeated(&of, "documents", documents.len(), query.len().saturating_mul(documents.len()) + all)?;
        let top = fields.take::<usize>("top_n")?.filter(|top| *top > 0).unwrap_or(documents.len());
        let with_documents = fields.or("return_documents", true)?;
        let pairs = documents.iter().map(|text| (query.clone(), text.clone())).collect();
        let asking = judged(common, &mut asked, pairs, fields)?;
        Ok((asking, Ranking { documents, most: top, with_documents }))
    })
    .await?;
    let scores = scores(&mut asking, ranking.documents.len()).await?;
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
    Ok(ignored(json_answer(&body), &asking.unknown))
}
