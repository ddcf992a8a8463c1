//! The common checks of all requests: request id, host names, key, size and time limits, and the headers of every
//! response.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::json;

use crate::admission::Permit;
use crate::api::{AdmittedRequest, RequestNames, tensors};
use crate::drain::Phase;
use crate::fault::{Fault, Words};
use crate::keys::Asker;
use crate::route::{Access, Route, Takes};
use crate::shared::{BODIES, ServerState};
use crate::traces::Parent;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Default headers of every response.
const ALWAYS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Responds to a request for a route, or for none.
pub async fn enter(
    server: Arc<ServerState>,
    route: Option<&'static Route>,
    request: Request,
) -> Response<Body> {
    let started = Instant::now();
    // A body cannot be shared between threads, so its head is kept separately.
    let (head, body) = request.into_parts();
    let id = request_id(&server, &head.headers);
    let method = head.method.clone();
    let words = route.map_or(Words::OpenAi, |route| route.words);
    let passed = server.names.check(&head.headers, head.uri.authority().map(|it| it.as_str()));
    let (origin, answer) = match passed {
        Err(why) => (None, Err(Fault::forbidden(why))),
        Ok(origin) => {
            let origin = origin.map(str::to_string);
            if origin.is_some() && method == Method::OPTIONS {
                (origin, Ok(preflight()))
            } else {
                let work = pass(&server, route, (&head, body), &id);
                // A panic of a handler is a defect of the server; the process and its other requests continue.
                let done = AssertUnwindSafe(work).catch_unwind().await;
                let defect = |_| Err(Fault::ours("the request failed by a defect of the server"));
                (origin, done.unwrap_or_else(defect))
            }
        }
    };
    let mut response = answer.unwrap_or_else(|fault| {
        server.metrics.failed(fault.cause());
        fault.response(words)
    });
    finish(response.headers_mut(), &id, origin.as_deref());
    let name = route.map_or("none", |route| route.path);
    server.metrics.http(name, response.status().as_u16());
    if !name.starts_with("/health") {
        server.log(|| {
            json!({
                "event": "request",
                "id": id,
                "method": method.as_str(),
                "route": name,
                "status": response.status().as_u16(),
                "seconds": started.elapsed().as_secs_f64(),
            })
        });
    }
    response
}

/// The client's request id, or a new one.
fn request_id(server: &ServerState, headers: &HeaderMap) -> String {
    let plain =
        |text: &&str| (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(plain);
    given.map_or_else(|| server.unique("req-"), str::to_string)
}

fn preflight() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, x-api-key, x-request-id"),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn finish(headers: &mut HeaderMap, id: &str, origin: Option<&str>) {
    for (name, value) in ALWAYS {
        if !headers.contains_key(&name) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(origin).ok()) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let exposed = HeaderValue::from_static("x-request-id, x-fathom-ignored, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}

/// Admits a request, reads it, and responds to it.
async fn pass(
    server: &Arc<ServerState>,
    route: Option<&'static Route>,
    (head, body): (&Parts, Body),
    id: &str,
) -> Result<Response<Body>, Fault> {
    let asker = server.keys.asker(&head.headers);
    let open = route.is_some_and(|route| route.access == Access::Open);
    if asker == Asker::Denied && !open {
        return Err(Fault::no_key());
    }
    let path = head.uri.path().to_string();
    let Some(route) = route else {
        return Err(Fault::missing(format!(
            "there is no {} {path}; /openapi.json lists what there is",
            head.method
        )));
    };
    // The permit comes before any work, and before the body is read.
    let permit = if route.takes == Takes::Work { Some(permit(server)?) } else { None };
    let json_bytes = json_bytes(route, &head.headers)?;
    let (body, bytes) = if route.takes == Takes::Nothing {
        (Bytes::new(), None)
    } else {
        read(server, (&head.headers, json_bytes.is_some()), body).await?
    };
    let operation = if route.converses() { "chat" } else { "text_completion" };
    let left = Arc::default();
    let id = RequestNames { id: id.to_string(), traced: Parent::of(&head.headers), operation, left };
    let asked = AdmittedRequest { id, asker, path, body, json_bytes, permit, _bytes: bytes };
    (route.call)(server.clone(), asked).await
}

/// A permit for a request.
fn permit(server: &ServerState) -> Result<Permit, Fault> {
    if server.drain.phase() > Phase::Serving {
        return Err(Fault::ending());
    }
    server.requests.take(1).ok_or_else(|| {
        let most = server.requests.most();
        Fault::busy(format!("{most} requests are open, which is the most (serve.max_requests)"), 1.0)
    })
}

/// Permit for the body of a request, which needs many times its size while it is parsed.
fn room_for(server: &ServerState, bytes: u64) -> Result<Permit, Fault> {
    server.bodies.take(bytes).ok_or_else(|| {
        let most = server.bodies.most();
        Fault::busy(
            format!(
                "bodies of {most} bytes are being read, which is the most ({BODIES} of serve.body_bytes)"
            ),
            1.0,
        )
    })
}

/// Length of the body's JSON part, on a route that accepts tensors after it.
fn json_bytes(route: &Route, headers: &HeaderMap) -> Result<Option<usize>, Fault> {
    let Some(said) = headers.get(tensors::JSON_BYTES).filter(|_| route.words == Words::Kserve) else {
        return Ok(None);
    };
    let number = said.to_str().ok().and_then(|said| said.parse().ok());
    let wrong = || Fault::bad(format!("the header `{}` has to be a number of bytes", tensors::JSON_BYTES));
    number.map(Some).ok_or_else(wrong)
}

/// The body of a request with the content type of JSON, or of bytes if tensors follow its JSON. Clients other than
/// browsers may omit the type, as Triton's does; browsers, which send the page's origin or its relation
/// (`Sec-Fetch-Site`), must declare it. Also returns the permit for its bytes.
async fn read(
    server: &ServerState,
    (headers, tensors): (&HeaderMap, bool),
    body: Body,
) -> Result<(Bytes, Option<Permit>), Fault> {
    let settings = &server.settings;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let of_a_page = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    let unsaid = !headers.contains_key(header::CONTENT_TYPE) && !of_a_page;
    let kind = text(header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let binary = tensors && kind.eq_ignore_ascii_case("application/octet-stream");
    if !unsaid && !binary && !kind.eq_ignore_ascii_case("application/json") {
        return Err(Fault::media("a body has to be `content-type: application/json`"));
    }
    if text(header::CONTENT_ENCODING).is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return Err(Fault::media("compressed bodies are not taken; send it without content-encoding"));
    }
    let limit = settings.body_bytes;
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(Fault::too_large(limit));
    }
    // A body of unknown length may have the maximum length.
    let mut bytes = room_for(server, length.unwrap_or(limit))?;
    let body = Limited::new(body, usize::try_from(limit).unwrap_or(usize::MAX));
    let time = Duration::from_secs_f64(settings.body_s.clamp(0.01, 86_400.0));
    match tokio::time::timeout(time, body.collect()).await {
        Err(_) => Err(Fault::slow()),
        Ok(Ok(body)) => {
            let body = body.to_bytes();
            bytes.give_back(length.unwrap_or(limit).saturating_sub(body.len() as u64));
            Ok((body, Some(bytes)))
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Fault::too_large(limit)),
        Ok(Err(error)) => Err(Fault::bad(format!("the body broke off: {error}"))),
    }
}
