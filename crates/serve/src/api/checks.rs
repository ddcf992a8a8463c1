//! `/v1/checks` and what else shows the guardrails: messages judged without a model, configurations, health.

use axum::http::HeaderValue;
use serde_json::{Value, json};

use super::{AdmittedRequest, Answer, Server, info, json_answer, on_blocking_thread};
use crate::fault::Fault;

/// Header with the names of rails that let texts pass unjudged.
const DEGRADED: &str = "x-guardrails-degraded";

/// The fault of a server without guardrails.
pub fn without() -> Fault {
    Fault::missing("this server has no guardrails; start it with --guard DIR")
}

/// `/v1/checks`: the guardrails' judgement of given messages.
///
/// # Errors
/// The server has no guardrails; those of [`check`](crate::Rails::check).
pub async fn checks(server: Server, asked: AdmittedRequest) -> Answer {
    let rails = server.rails.clone().ok_or_else(without)?;
    let computes = !rails.asks_models();
    let _turn = if computes { server.turns.acquire().await.ok() } else { None };
    let judged = on_blocking_thread(asked, move |asked| {
        let request: Value = serde_json::from_slice(&asked.body)
            .map_err(|error| Fault::bad(format!("the body is not JSON: {error}")))?;
        let answer = rails.check(&request, asked.asker.key())?;
        Ok((answer, rails.degraded()))
    });
    let (answer, degraded) = judged.await?;
    let mut response = json_answer(&answer);
    if !degraded.is_empty()
        && let Ok(names) = HeaderValue::from_str(&degraded.join(", "))
    {
        response.headers_mut().insert(DEGRADED, names);
    }
    Ok(response)
}

/// `/v1/rails/configs`: the configurations and their rails.
///
/// # Errors
/// The server has no guardrails.
pub async fn configs(server: Server, _: AdmittedRequest) -> Answer {
    Ok(json_answer(&server.rails.as_ref().ok_or_else(without)?.configs()))
}

/// `/v1/health`: ready once the model of every rail has answered.
///
/// # Errors
/// The server is shutting down, has nothing to serve, or waits for the model of a rail.
pub async fn health(server: Server, asked: AdmittedRequest) -> Answer {
    let Some(rails) = server.rails.clone() else { return info::ready(server, asked).await };
    info::ready(server, asked).await?;
    rails.ready().map_err(Fault::unavailable)?;
    Ok(json_answer(&json!({"status": "ready", "degraded": rails.degraded()})))
}

/// `/healthz`: the same for everyone, without names of rails.
///
/// # Errors
/// Those of [`health`].
pub async fn healthz(server: Server, asked: AdmittedRequest) -> Answer {
    let rails = server.rails.clone();
    info::ready(server, asked).await?;
    if rails.is_some_and(|rails| rails.ready().is_err()) {
        return Err(Fault::unavailable("a rail is not ready"));
    }
    Ok(json_answer(&json!({"status": "ready"})))
}
