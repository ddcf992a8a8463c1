//! Information about the server: models, health, version, metrics, load.

use serde_json::{Value, json};

use super::{AdmittedRequest, Answer, Server, json_answer, typed};
use crate::drain::Phase;
use crate::fault::Fault;
use crate::shared::Model;

fn described(server: &Server, model: &Model) -> Vec<Value> {
    let card = model.service.card();
    let one = |id: &str, parent: Value, fingerprint: &str| {
        json!({
            "id": id,
            "object": "model",
            "created": server.began,
            "owned_by": "fathom",
            "root": model.name,
            "parent": parent,
            "max_model_len": card.context_tokens,
            "converses": card.converses,
            "generates": card.generates,
            "embedding": card.embedding,
            "fingerprint": fingerprint,
        })
    };
    let adapters = card.adapters.iter().map(|(name, print)| one(name, model.name.clone().into(), print));
    std::iter::once(one(&model.name, Value::Null, &card.fingerprint)).chain(adapters).collect()
}

/// `/v1/models`.
///
/// # Errors
/// None.
pub async fn models(server: Server, _: AdmittedRequest) -> Answer {
    let all: Vec<Value> = server.models().iter().flat_map(|model| described(&server, model)).collect();
    Ok(json_answer(&json!({"object": "list", "data": all})))
}

/// `/v1/models/NAME`.
///
/// # Errors
/// There is no such model.
pub async fn model(server: Server, asked: AdmittedRequest) -> Answer {
    let name = asked.path.trim_start_matches("/v1/models/");
    let (model, _) = server.model(Some(name))?;
    let found = described(&server, &model).into_iter().find(|it| it["id"] == name);
    found.map(|it| json_answer(&it)).ok_or_else(|| Fault::no_model(name, std::slice::from_ref(&model.name)))
}

/// `/health/live`: the process responds.
///
/// # Errors
/// None.
pub async fn live(_: Server, _: AdmittedRequest) -> Answer {
    Ok(json_answer(&json!({"status": "live"})))
}

/// `/health/ready`: the server accepts requests.
///
/// # Errors
/// The server is shutting down, or has no model.
pub async fn ready(server: Server, _: AdmittedRequest) -> Answer {
    if server.drain.phase() > Phase::Serving {
        return Err(Fault::ending());
    }
    // A server of guardrails alone has no model.
    if server.models().is_empty() && server.rails.is_none() {
        return Err(Fault {
            status: axum::http::StatusCode::SERVICE_UNAVAILABLE,
            ..Fault::ours("no model is loaded yet")
        });
    }
    Ok(json_answer(&json!({"status": "ready"})))
}

/// `/version`.
///
/// # Errors
/// None.
pub async fn version(server: Server, _: AdmittedRequest) -> Answer {
    Ok(json_answer(&json!({"version": server.version})))
}

/// `/metrics`.
///
/// # Errors
/// None.
pub async fn metrics(server: Server, _: AdmittedRequest) -> Answer {
    let adapters = |model: &std::sync::Arc<Model>| (model.name.clone(), model.service.card().adapters.len());
    let adapters: Vec<_> = server.models().iter().map(adapters).collect();
    let mut text = server.metrics.text(&server.loads(), &adapters);
    text.push_str(&server.traces.metrics());
    text.push_str(&server.rails.as_ref().map(|rails| rails.metrics()).unwrap_or_default());
    Ok(typed("text/plain; version=0.0.4; charset=utf-8", text))
}

/// `/load`: load of the models, for the page.
///
/// # Errors
/// None.
pub async fn load(server: Server, _: AdmittedRequest) -> Answer {
    let one = |model: &std::sync::Arc<Model>| {
        let mut load = serde_json::to_value(model.service.load()).unwrap_or_default();
        load["name"] = model.name.clone().into();
        load["tokens_held"] = model.admission.tokens.used().into();
        load["tokens_most"] = model.admission.tokens.most().into();
        load["latency"] = server.metrics.latency(&model.name);
        load
    };
    let models: Value = server.models().iter().map(one).collect();
    let requests = json!({"open": server.requests.used(), "most": server.requests.most()});
    Ok(json_answer(
        &json!({"models": models, "requests": requests, "draining": server.drain.phase() > Phase::Serving}),
    ))
}
