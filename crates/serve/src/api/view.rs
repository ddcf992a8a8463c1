//! The routes of a server of one page: the page, and answers to what it asks.

use std::sync::Arc;

use axum::http::{HeaderValue, header};
use serde_json::Value;

use super::{AdmittedRequest, Answer, apart, json_answer, typed};
use crate::fault::Fault;
use crate::shared::ServerState;
use crate::view::View;

fn of(server: &ServerState) -> Result<Arc<dyn View>, Fault> {
    server.view.clone().ok_or_else(|| Fault::missing("this server has no view"))
}

/// The page.
///
/// # Errors
/// A server without a view.
pub(crate) async fn page(server: Arc<ServerState>, _: AdmittedRequest) -> Answer {
    let view = of(&server)?;
    Ok(with_nonce(&server, view.page()))
}

/// A page whose script and style a nonce permits, new in each response.
pub(crate) fn with_nonce(server: &ServerState, page: &str) -> axum::http::Response<axum::body::Body> {
    let nonce = server.unique("");
    let mut response = typed("text/html; charset=utf-8", page.replace("{nonce}", &nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action \
         'none'; frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// An answer for the page.
///
/// # Errors
/// A body that is not JSON; a question that has no answer.
pub(crate) async fn ask(server: Arc<ServerState>, asked: AdmittedRequest) -> Answer {
    let view = of(&server)?;
    let answer = apart(move || {
        let question: Value =
            serde_json::from_slice(&asked.body).map_err(|error| Fault::bad(format!("not JSON: {error}")))?;
        view.answer(&question).map_err(Fault::bad)
    });
    Ok(typed("application/json", answer.await?))
}

/// The process answers.
///
/// # Errors
/// None.
pub(crate) async fn live(_: Arc<ServerState>, _: AdmittedRequest) -> Answer {
    Ok(json_answer(&serde_json::json!({ "status": "live" })))
}
