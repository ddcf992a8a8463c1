//! A benchmark client: one request at a time over a persistent connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::pretended::Clock;
use super::tls;
use crate::error::Error;

/// Maximum bytes of a response to keep.
const MOST_BYTES: usize = 16 << 20;

/// The server to benchmark.
#[derive(Clone, Debug)]
pub struct Target {
    /// Host and port.
    address: String,
    /// Path prefix before `/v1`.
    prefix: String,
    /// True if TLS is spoken.
    is_secure: bool,
    /// File of trusted authorities, in place of the system's.
    pub authorities: Option<PathBuf>,
    /// The API key.
    pub key: Option<String>,
    /// The clock of a pretended model.
    clock: Option<Arc<Clock>>,
}

/// Measurements of a request.
#[derive(Debug, Default)]
pub struct RequestTimes {
    /// The status; 0 without a response.
    pub status: u16,
    /// True if the request failed.
    pub failed: bool,
    /// Seconds to the first token.
    pub first_s: Option<f64>,
    /// Seconds between tokens.
    pub gaps: Vec<f64>,
    /// Seconds to the end.
    pub whole_s: f64,
    /// Tokens of the answer.
    pub tokens: usize,
}

impl Target {
    /// A server by host and port.
    pub fn at(address: &str) -> Target {
        Target {
            address: address.to_string(),
            prefix: String::new(),
            is_secure: false,
            authorities: None,
            key: None,
            clock: None,
        }
    }

    /// Times texts by a clock.
    pub(super) fn timed(&self, clock: &Arc<Clock>) -> Target {
        Target { clock: Some(clock.clone()), ..self.clone() }
    }

    /// A server by its address: `http://host:port` or `https://host`, with or without `/v1`.
    ///
    /// # Errors
    /// The address is neither.
    pub fn parse(url: &str) -> Result<Target, Error> {
        let (rest, is_secure, port) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false, 80),
            (None, Some(rest)) => (rest, true, 443),
            (None, None) => {
                let why = "give an address that begins with http:// or https://";
                return Err(Error::Refused(format!("{url}: {why}")));
            }
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = path.trim_end_matches('/').trim_end_matches("v1").trim_end_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_string() } else { format!("{host}:{port}") };
        Ok(Target { is_secure, prefix, ..Target::at(&address) })
    }
}

/// A connection to a server.
pub struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    /// Opens a connection.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn open(target: &Target) -> Result<Connection, Error> {
        let refuse =
            |why: &dyn std::fmt::Display| Error::Refused(format!("cannot reach {}: {why}", target.address));
        let stream = TcpStream::connect(&target.address).await.map_err(|error| refuse(&error))?;
        stream.set_nodelay(true)?;
        let send = if target.is_secure {
            let stream = tls::connect(stream, &target.address, target.authorities.as_deref()).await?;
            let (send, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| refuse(&error))?;
            tokio::spawn(connection);
            send
        } else {
            let (send, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| refuse(&error))?;
            tokio::spawn(connection);
            send
        };
        Ok(Connection(send))
    }

    /// Posts JSON to a path; returns the status, and whether the response was read completely, so that the connection
    /// can be reused. Of an endless response the first [`MOST_BYTES`] are read.
    pub async fn post(&mut self, target: &Target, path: &str, body: &str) -> Option<(u16, bool)> {
        let response = self.send(target, path, body).await?;
        let status = response.status().as_u16();
        let read = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        Some((status, read.is_ok()))
    }

    async fn send(&mut self, target: &Target, path: &str, body: &str) -> Option<Response<Incoming>> {
        self.0.ready().await.ok()?;
        let mut request = Request::post(format!("{}{path}", target.prefix))
            .header("host", &target.address)
            .header("content-type", "application/json");
        if let Some(key) = &target.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).ok()?;
        self.0.send_request(request).await.ok()
    }
}

/// Posts JSON bodies to a path, one after another; returns each response's status with its JSON, which is null if it has
/// none.
///
/// # Errors
/// The server cannot be reached, or a response breaks off.
pub fn post_all(target: &Target, path: &str, bodies: &[String]) -> Result<Vec<(u16, Value)>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connection = Connection::open(target).await?;
        let mut all = Vec::with_capacity(bodies.len());
        for body in bodies {
            let broken = || Error::Refused(format!("{} broke off a response to {path}", target.address));
            // A server may close a connection after any response.
            let response = match connection.send(target, path, body).await {
                Some(response) => response,
                None if !all.is_empty() => {
                    connection = Connection::open(target).await?;
                    connection.send(target, path, body).await.ok_or_else(broken)?
                }
                None => return Err(broken()),
            };
            let status = response.status().as_u16();
            let whole =
                Limited::new(response.into_body(), MOST_BYTES).collect().await.map_err(|_| broken())?;
            all.push((status, serde_json::from_slice(&whole.to_bytes()).unwrap_or_default()));
        }
        Ok(all)
    })
}

/// Sends one request over an open or a new connection, which is dropped if it breaks.
pub async fn ask(target: &Target, connection: &mut Option<Connection>, body: &str) -> RequestTimes {
    let mut seen = RequestTimes { failed: true, ..RequestTimes::default() };
    if connection.is_none() {
        *connection = Connection::open(target).await.ok();
    }
    let Some(open) = connection else { return seen };
    let started = Instant::now();
    let Some(response) = open.send(target, "/v1/completions", body).await else {
        *connection = None;
        return seen;
    };
    seen.status = response.status().as_u16();
    let whole = read(response, (&mut seen, target.clock.as_deref()), started).await;
    seen.whole_s = started.elapsed().as_secs_f64();
    if !whole {
        seen.failed = true;
        *connection = None;
    }
    seen
}

/// Reads a response to its end; false if it broke off.
async fn read(
    response: Response<Incoming>,
    (seen, clock): (&mut RequestTimes, Option<&Clock>),
    started: Instant,
) -> bool {
    let streams = response
        .headers()
        .get("content-type")
        .is_some_and(|kind| kind.to_str().is_ok_and(|kind| kind.starts_with("text/event-stream")));
    let (mut body, mut rest, mut last) = (response.into_body(), Vec::<u8>::new(), None);
    seen.failed = false;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let Ok(data) = frame.into_data() else { continue };
        rest.extend_from_slice(&data);
        if rest.len() > MOST_BYTES {
            return false;
        }
        while streams && let Some(end) = rest.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = rest.drain(..end + 2).collect();
            let Some(event) = event.strip_prefix(b"data: ") else { continue };
            let Ok(value) = serde_json::from_slice::<Value>(event) else { continue };
            if let (Some(clock), Some(text)) = (clock, value["choices"][0]["text"].as_str()) {
                clock.heard(text);
            }
            see(&value, seen, started, &mut last);
        }
    }
    if !streams && let Ok(value) = serde_json::from_slice::<Value>(&rest) {
        seen.tokens = value["usage"]["completion_tokens"].as_u64().unwrap_or(0) as usize;
    }
    true
}

fn see(value: &Value, seen: &mut RequestTimes, started: Instant, last: &mut Option<Instant>) {
    seen.failed |= value["error"].is_object();
    if value["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()) {
        let now = Instant::now();
        match last.replace(now) {
            None => seen.first_s = Some((now - started).as_secs_f64()),
            Some(before) => seen.gaps.push((now - before).as_secs_f64()),
        }
        seen.tokens = seen.tokens.max(seen.gaps.len() + 1);
    }
    if let Some(tokens) = value["usage"]["completion_tokens"].as_u64() {
        seen.tokens = tokens as usize;
    }
}
