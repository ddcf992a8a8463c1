//! KServe's inference protocol v2 for generation, as used by Triton deployments: JSON, with the binary data extension
//! ([`tensors`]).

use axum::body::Body;
use axum::http::Response;
use fathom_base::{Answer as Answered, Event, Stop, Usage};
use serde_json::{Map, Value, json};

use super::params::{Params, one_answer};
use super::{AdmittedRequest, Answer, Server, ignored, json_answer, on_blocking_thread, tensors};
use crate::answering::{ModelRequests, blocked, collect};
use crate::fault::{Fault, Words};
use crate::fields::Fields;
use crate::sse::{Frames, Protocol, stream};

/// Default number of answer tokens.
const USUAL: usize = 16;

/// The version of each model.
const VERSION: &str = "1";

/// The model of a path.
///
/// # Errors
/// The path names an unknown version.
fn name_of(path: &str) -> Result<String, Fault> {
    let mut parts = path.trim_start_matches("/v2/models/").split('/');
    let name = parts.next().unwrap_or_default();
    match (parts.next(), parts.next()) {
        (Some("versions"), Some(version)) if version != VERSION => {
            Err(Fault::missing(format!("there is no version `{version}` of {name}; there is `{VERSION}`")))
        }
        _ => Ok(name.to_string()),
    }
}

/// `/v2`.
///
/// # Errors
/// None.
pub async fn server(server: Server, _: AdmittedRequest) -> Answer {
    Ok(json_answer(
        &json!({"name": "fathom", "version": server.version, "extensions": ["generate", "binary_tensor_data"]}),
    ))
}

/// `/v2/models/NAME`; like all routes of a model it also exists below `/v2/models/NAME/versions/1`.
///
/// # Errors
/// There is no such model.
pub async fn model(server: Server, asked: AdmittedRequest) -> Answer {
    let name = name_of(&asked.path)?;
    server.model(Some(&name))?;
    let tensor = |name: &str, kind: &str| json!({"name": name, "datatype": kind, "shape": [1]});
    Ok(json_answer(&json!({
        "name": name,
        "versions": [VERSION],
        "platform": "fathom",
        "inputs": [tensor("text_input", "BYTES"), tensor("max_tokens", "INT32"), tensor("temperature", "FP32")],
        "outputs": [tensor("text_output", "BYTES")],
    })))
}

/// `/v2/models/NAME/ready`.
///
/// # Errors
/// There is no such model, or the server is shutting down.
pub async fn ready(server: Server, asked: AdmittedRequest) -> Answer {
    let name = name_of(&asked.path)?;
    server.model(Some(&name))?;
    super::info::ready(server, asked).await
}

/// A text being continued.
struct Continuation {
    answering: ModelRequests,
    /// The model's name in the request.
    name: String,
    /// Parameters that have no effect.
    unknown: Vec<String>,
}

/// Submits a text to a model.
fn ask(
    server: &Server,
    mut asked: AdmittedRequest,
    text: &str,
    mut fields: Fields,
) -> Result<Continuation, Fault> {
    let permit = asked.permit.take();
    fields.set("model", name_of(&asked.path)?.into());
    for (theirs, ours) in [("max_output_tokens", "max_tokens"), ("stop_words", "stop")] {
        if let Some(value) = fields.take::<Value>(theirs)? {
            fields.set(ours, value);
        }
    }
    let params = Params::take(server, &asked, &mut fields)?;
    let unknown = fields.rest()?;
    let request = params.request(text.into(), USUAL)?;
    if request.sampling.max_tokens == 0 {
        return Err(Fault::field("max_tokens", "has to be at least 1"));
    }
    let answering =
        ModelRequests::ask(server.clone(), params.model.clone(), vec![request], (asked.id, permit))?;
    Ok(Continuation { answering, name: params.name, unknown })
}

/// The text and the parameters of a request to generate; other fields count as parameters.
fn generation(asked: &AdmittedRequest) -> Result<(String, Fields), Fault> {
    let mut fields = Fields::parse(&asked.body)?;
    let text: String = fields.need("text_input")?;
    let parameters: Map<String, Value> = fields.or("parameters", Map::new())?;
    fields.take::<Value>("id")?;
    fields.take::<bool>("stream")?;
    let fields = fields.under(parameters);
    one_answer(&fields, "generate")?;
    Ok((text, fields))
}

/// `/v2/models/NAME/generate`.
///
/// # Errors
/// Those of the request or of its answer.
pub async fn generate(server: Server, asked: AdmittedRequest) -> Answer {
    let mut asking = on_blocking_thread(asked, move |asked| {
        let (text, parameters) = generation(&asked)?;
        ask(&server, asked, &text, parameters)
    })
    .await?;
    let (texts, refused) = texts(&mut asking.answering).await?;
    let text = texts.into_iter().next().unwrap_or_default();
    let mut body = json!({"model_name": asking.name, "model_version": VERSION, "text_output": text});
    if let Some(why) = refused {
        (body["finish_reason"], body["refusal"]) = ("content_filter".into(), why.into());
    }
    if let Some(report) = asking.answering.guardrails() {
        body["guardrails"] = report;
    }
    Ok(ignored(json_answer(&body), &asking.unknown))
}

/// The texts of a request's answers, and the refusal of a rail, if one has refused.
async fn texts(answering: &mut ModelRequests) -> Result<(Vec<String>, Option<String>), Fault> {
    let answers = collect(answering, 1).await?.into_iter().flat_map(|answered| answered.answers);
    let mut refused = None;
    let text = |answer: Answered| {
        if let Some(Stop::Refused { why, .. }) = answer.stop {
            refused = Some(why);
        }
        answer.text
    };
    let texts = answers.map(text).collect();
    Ok((texts, refused))
}

/// `/v2/models/NAME/generate_stream`.
///
/// # Errors
/// Those of the request.
pub async fn generate_stream(server: Server, asked: AdmittedRequest) -> Answer {
    let keep_alive_s = server.settings.keep_alive_s;
    let Continuation { answering, name, unknown } = on_blocking_thread(asked, move |asked| {
        let (text, parameters) = generation(&asked)?;
        ask(&server, asked, &text, parameters)
    })
    .await?;
    let response: Response<Body> = stream(answering, Pieces { name }, keep_alive_s);
    Ok(ignored(response, &unknown))
}

/// A streamed answer.
struct Pieces {
    name: String,
}

impl Protocol for Pieces {
    fn begin(&mut self, _: &mut Frames) {}

    fn event(&mut self, _: usize, event: Event, out: &mut Frames) {
        match event {
            Event::Piece { text, .. } if !text.is_empty() => {
                out.data(&json!({"model_name": self.name, "model_version": VERSION, "text_output": text}));
            }
            Event::Ended { stop, .. } => blocked(&stop).iter().for_each(|frame| {
                out.data(&json!({"error": frame["error"]["message"]}));
            }),
            _ => {}
        }
    }

    fn fault(&mut self, fault: &Fault, out: &mut Frames) {
        out.data(&fault.json(Words::Kserve));
    }

    fn guardrails(&mut self, report: Value, out: &mut Frames) {
        let name = &self.name;
        out.data(
            &json!({"model_name": name, "model_version": VERSION, "text_output": "", "guardrails": report}),
        );
    }

    fn end(&mut self, _: &Usage, _: &mut Frames) {}
}

/// `/v2/models/NAME/infer`: one text as a tensor of bytes, parameters as tensors of one element or as `parameters`.
///
/// # Errors
/// Those of the request or of its answer.
pub async fn infer(server: Server, asked: AdmittedRequest) -> Answer {
    let (mut asking, (id, binary)) = on_blocking_thread(asked, move |asked| {
        let (json, mut behind) = tensors::split(&asked.body, asked.json_bytes)?;
        let mut fields = Fields::parse(json)?;
        let id: Option<String> = fields.take("id")?;
        let mut parameters: Map<String, Value> = fields.or("parameters", Map::new())?;
        let whole = parameters.remove("binary_data_output").is_some_and(|all| all == true);
        let binary = tensors::wants_binary(&fields.or::<Vec<Value>>("outputs", Vec::new())?, whole)?;
        let mut text = None;
        for input in fields.need::<Vec<Value>>("inputs")? {
            let only = tensors::element(&input, &mut behind)?;
            match (input["name"].as_str(), only.as_str()) {
                (Some("text_input"), Some(given)) => text = Some(given.to_string()),
                (Some(name), _) => _ = parameters.insert(name.to_string(), only),
                (None, _) => return Err(Fault::field("inputs", "has one without a name")),
            }
        }
        if !behind.is_empty() {
            return Err(Fault::bad(format!("{} bytes behind the tensors belong to none", behind.len())));
        }
        let text = text.ok_or_else(|| Fault::field("inputs", "has no `text_input` of type BYTES"))?;
        Ok((ask(&server, asked, &text, Fields::of(parameters))?, (id, binary)))
    })
    .await?;
    let (texts, refused) = texts(&mut asking.answering).await?;
    let mut body = json!({"model_name": asking.name, "model_version": VERSION});
    if let Some(why) = refused {
        body["parameters"] = json!({"finish_reason": "content_filter", "refusal": why});
    }
    if let Some(report) = asking.answering.guardrails() {
        body["guardrails"] = report;
    }
    if let Some(id) = id {
        body["id"] = id.into();
    }
    Ok(ignored(tensors::answer(body, &texts, binary), &asking.unknown))
}
