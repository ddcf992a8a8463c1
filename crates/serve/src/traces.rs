//! Traces: a span for each request at a model, sent to a collector as OTLP over HTTP in JSON, with OpenTelemetry's
//! names for generative models (`gen_ai.*`). Spans contain the settings of requests, never their contents.
//!
//! Spans wait in a short queue and are sent in batches, at most a second apart. Spans that a collector does not accept
//! in time are lost and counted: no request waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::bench::client::{Connection, Target};
use crate::error::Error;
use crate::rails::RailSpan;

/// Maximum number of waiting spans; more are lost.
const QUEUE: usize = 4096;
/// Maximum number of spans in a batch.
const BATCH: usize = 256;
/// Maximum wait of the oldest span of a batch.
const PACE: Duration = Duration::from_secs(1);
/// Time limit for a collector to accept a batch.
const TAKEN: Duration = Duration::from_secs(5);

/// The parent of a request in its caller's trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    trace: String,
    span: String,
}

impl Parent {
    /// Parses the `traceparent` of a request (W3C Trace Context): without a valid one the request is a trace of its
    /// own, and it may ask not to be traced.
    pub fn of(headers: &HeaderMap) -> RequestTrace {
        let Some(text) = headers.get("traceparent").and_then(|value| value.to_str().ok()) else {
            return RequestTrace::Alone;
        };
        let parts: Vec<&str> = text.trim().split('-').collect();
        let hex = |text: &str, len: usize| {
            let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            text.len() == len && digits && text.bytes().any(|byte| byte != b'0')
        };
        match parts.as_slice() {
            [version, trace, span, flags, ..] if *version != "ff" && hex(trace, 32) && hex(span, 16) => {
                match u8::from_str_radix(flags, 16) {
                    Ok(flags) if flags & 1 == 0 => RequestTrace::Not,
                    Ok(_) => RequestTrace::Below(Parent { trace: trace.to_string(), span: span.to_string() }),
                    Err(_) => RequestTrace::Alone,
                }
            }
            _ => RequestTrace::Alone,
        }
    }
}

/// Tracing of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestTrace {
    /// A trace of its own.
    #[default]
    Alone,
    /// Child of the caller's span.
    Below(Parent),
    /// Not traced by the caller.
    Not,
}

/// Subject of a span.
#[derive(Debug)]
pub enum SpanSubject {
    /// A request at a model.
    Request {
        /// The operation: `chat`, `text_completion`.
        operation: &'static str,
        /// The model.
        model: String,
    },
    /// The runs of a rail for a request, by the rail's name.
    Rail(String),
}

/// A finished request, or a part of one.
#[derive(Debug)]
pub struct Span {
    /// Its tracing.
    pub traced: RequestTrace,
    /// A unique id: 32 hexadecimal digits.
    pub unique: String,
    /// Subject of the span.
    pub subject: SpanSubject,
    /// Start time.
    pub began: SystemTime,
    /// Duration.
    pub took: Duration,
    /// Further attributes; null ones are omitted.
    pub attributes: Vec<(&'static str, Value)>,
    /// The reason of a failure.
    pub failed: Option<&'static str>,
}

impl Span {
    /// Its id.
    fn own(&self) -> String {
        self.unique.chars().rev().take(16).collect()
    }

    /// The span of a rail's runs for this request.
    pub fn of_rail(&self, unique: String, run: RailSpan) -> Span {
        let traced = match &self.traced {
            RequestTrace::Below(parent) => {
                RequestTrace::Below(Parent { trace: parent.trace.clone(), span: self.own() })
            }
            RequestTrace::Alone => {
                RequestTrace::Below(Parent { trace: self.unique.clone(), span: self.own() })
            }
            RequestTrace::Not => RequestTrace::Not,
        };
        let attributes = vec![
            ("rail.type", json!(run.direction)),
            ("rail.name", json!(run.rail)),
            ("rail.stop", json!(run.stops)),
            ("rail.decisions", json!(run.decisions)),
            ("rail.llm_calls", json!(run.model_calls)),
        ];
        let (began, took) = (run.began, run.took);
        Span { traced, unique, subject: SpanSubject::Rail(run.rail), began, took, attributes, failed: None }
    }

    /// The span in OTLP's JSON.
    fn json(self) -> Value {
        let nanos =
            |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos()).to_string();
        let own = self.own();
        let (trace, parent) = match self.traced {
            RequestTrace::Below(Parent { trace, span }) => (trace, span),
            RequestTrace::Alone | RequestTrace::Not => (self.unique.clone(), String::new()),
        };
        // The kinds of a server's span and of one within a process.
        let (name, kind, operation, provider) = match self.subject {
            SpanSubject::Request { operation, model } => {
                (format!("{operation} {model}"), 2, json!(operation), json!("fathom"))
            }
            SpanSubject::Rail(rail) => (format!("rail {rail}"), 1, Value::Null, Value::Null),
        };
        let all = [("gen_ai.operation.name", operation), ("gen_ai.provider.name", provider)];
        let error = self.failed.map(|why| ("error.type", json!(why)));
        let all = all.into_iter().chain(self.attributes).chain(error).filter(|(_, value)| !value.is_null());
        let mut span = json!({
            "traceId": trace,
            "spanId": own,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": nanos(self.began),
            "endTimeUnixNano": nanos(self.began + self.took),
            "attributes": all.map(|(key, value)| json!({"key": key, "value": any(&value)})).collect::<Vec<_>>(),
            "status": if self.failed.is_some() { json!({"code": 2}) } else { json!({}) },
        });
        if !parent.is_empty() {
            span["parentSpanId"] = parent.into();
        }
        span
    }
}

/// A value as OTLP's `AnyValue`, in which whole numbers are strings.
fn any(value: &Value) -> Value {
    match value {
        Value::Bool(on) => json!({"boolValue": on}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::Array(values) => json!({"arrayValue": {"values": values.iter().map(any).collect::<Vec<_>>()}}),
        Value::String(text) => json!({"stringValue": text}),
        other => json!({"stringValue": other.to_string()}),
    }
}

enum Message {
    Ended(Box<Span>),
    /// Answered when everything before it is sent or lost.
    Flush(oneshot::Sender<()>),
}

/// Pending spans.
#[derive(Debug, Default)]
pub struct Traces {
    send: Mutex<Option<mpsc::Sender<Message>>>,
    lost: AtomicU64,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Message")
    }
}

impl Traces {
    /// True if spans are wanted.
    pub fn wanted(&self) -> bool {
        self.sender().is_some()
    }

    /// Number of spans that the collector did not accept.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Metrics of the spans; empty if none are sent.
    pub fn metrics(&self) -> String {
        if !self.wanted() {
            return String::new();
        }
        const NAME: &str = "fathom:spans_lost_total";
        format!(
            "# HELP {NAME} Spans that no collector took.\n# TYPE {NAME} counter\n{NAME} {}\n",
            self.lost()
        )
    }

    fn sender(&self) -> Option<mpsc::Sender<Message>> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a span; it is lost if too many are waiting.
    pub fn take(&self, span: Span) {
        if let Some(send) = self.sender().filter(|_| span.traced != RequestTrace::Not)
            && send.try_send(Message::Ended(Box::new(span))).is_err()
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Starts to send spans to a collector, given its address without `/v1/traces`; returns the future that does so, to
    /// be spawned.
    ///
    /// # Errors
    /// An address that is not HTTP.
    pub fn start(
        self: std::sync::Arc<Self>,
        collector: &str,
        version: String,
    ) -> Result<impl Future<Output = ()> + Send + use<>, Error> {
        let target = Target::parse(collector)?;
        let (send, mut receive) = mpsc::channel(QUEUE);
        *self.send.lock().unwrap_or_else(PoisonError::into_inner) = Some(send);
        Ok(async move {
            let mut connection = None;
            while let Some(first) = receive.recv().await {
                let (mut spans, mut flushed) = (Vec::new(), None);
                let mut next = Some(first);
                let limit = tokio::time::Instant::now() + PACE;
                while let Some(message) = next.take() {
                    match message {
                        Message::Ended(span) => spans.push(span.json()),
                        Message::Flush(done) => flushed = Some(done),
                    }
                    if flushed.is_none() && spans.len() < BATCH {
                        next = tokio::time::timeout_at(limit, receive.recv()).await.ok().flatten();
                    }
                }
                let many = spans.len() as u64;
                if many > 0 && !post(&target, &mut connection, &body(spans, &version)).await {
                    self.lost.fetch_add(many, Ordering::Relaxed);
                }
                flushed.into_iter().for_each(|done| _ = done.send(()));
            }
        })
    }

    /// Waits until all finished spans are sent or lost, at most for this time.
    pub async fn flush(&self, most: Duration) {
        let Some(send) = self.sender() else { return };
        let (done, heard) = oneshot::channel();
        let flushed = async {
            if send.send(Message::Flush(done)).await.is_ok() {
                _ = heard.await;
            }
        };
        _ = timeout(most, flushed).await;
    }
}

/// Sends a batch, over the open connection or, if that is broken, a new one; false if it was not accepted.
async fn post(target: &Target, connection: &mut Option<Connection>, body: &str) -> bool {
    for _ in 0..2 {
        let kept = connection.is_some();
        let sent = async {
            if connection.is_none() {
                *connection = Connection::open(target).await.ok();
            }
            connection.as_mut()?.post(target, "/v1/traces", body).await
        };
        match timeout(TAKEN, sent).await.ok().flatten() {
            Some((status, whole)) => {
                if !whole {
                    *connection = None;
                }
                return (200..300).contains(&status);
            }
            None => *connection = None,
        }
        if !kept {
            break;
        }
    }
    false
}

fn body(spans: Vec<Value>, version: &str) -> String {
    let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute("service.name", "fathom"), attribute("service.version", version)]},
        "scopeSpans": [{"scope": {"name": "fathom.serve", "version": version}, "spans": spans}],
    }]})
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_as_the_w3c_writes_it() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", text.parse().unwrap());
            Parent::of(&headers)
        };
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let below = RequestTrace::Below(Parent { trace: trace.into(), span: span.into() });
        assert_eq!(of(&format!("00-{trace}-{span}-01")), below);
        assert_eq!(of(&format!("00-{trace}-{span}-00")), RequestTrace::Not);
        for bad in [
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}"),
            "nothing".into(),
        ] {
            assert_eq!(of(&bad), RequestTrace::Alone, "{bad}");
        }
        assert_eq!(Parent::of(&HeaderMap::new()), RequestTrace::Alone);
    }

    #[test]
    fn spans_of_rails_are_below_that_of_their_request() {
        let request = |traced: RequestTrace| Span {
            traced,
            unique: "0123456789abcdef0123456789abcdef".into(),
            subject: SpanSubject::Request { operation: "chat", model: "m".into() },
            began: UNIX_EPOCH,
            took: Duration::from_secs(1),
            attributes: Vec::new(),
            failed: None,
        };
        let run = RailSpan {
            rail: "cards".into(),
            direction: "output",
            decisions: vec!["allow".into(), "block".into()],
            stops: true,
            model_calls: 2,
            began: UNIX_EPOCH,
            took: Duration::from_millis(5),
        };
        let below = RequestTrace::Below(Parent { trace: "t".repeat(32), span: "s".repeat(16) });
        for traced in [RequestTrace::Alone, below] {
            let request = request(traced);
            let rail = request.of_rail("f".repeat(32), run.clone()).json();
            let request = request.json();
            assert_eq!(rail["traceId"], request["traceId"]);
            assert_eq!((&rail["parentSpanId"], &rail["name"]), (&request["spanId"], &json!("rail cards")));
            assert_eq!((&request["name"], &rail["kind"]), (&json!("chat m"), &json!(1)));
            let stop = json!({"key": "rail.stop", "value": {"boolValue": true}});
            assert!(rail["attributes"].as_array().unwrap().contains(&stop), "{rail}");
        }
        assert_eq!(request(RequestTrace::Not).of_rail("f".into(), run).traced, RequestTrace::Not);
    }

    #[test]
    fn values_are_those_of_otlp() {
        assert_eq!(any(&json!(5)), json!({"intValue": "5"}));
        assert_eq!(any(&json!(0.5)), json!({"doubleValue": 0.5}));
        let list = json!({"arrayValue": {"values": [{"stringValue": "stop"}]}});
        assert_eq!(any(&json!(["stop"])), list);
    }
}
