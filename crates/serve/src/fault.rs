//! Failures of a request, as status and as JSON in each protocol's format.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use fathom_base::Error;
use serde_json::{Value, json};

/// A request that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// The field at fault.
    pub param: Option<String>,
    /// The reason, and a remedy.
    pub message: String,
    /// Seconds after which the client should retry.
    pub retry_after_s: Option<f64>,
}

/// Format of an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Words {
    /// OpenAI's.
    #[default]
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// KServe's.
    Kserve,
}

impl Fault {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Fault {
        Fault { status, kind, code: None, param: None, message: message.into(), retry_after_s: None }
    }

    /// An invalid request.
    pub fn bad(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// An invalid field of the request.
    pub fn field(name: &str, message: impl std::fmt::Display) -> Fault {
        Fault { param: Some(name.to_string()), ..Fault::bad(format!("`{name}` {message}")) }
    }

    /// A request of the right form whose content cannot be processed.
    pub fn unprocessable(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message)
    }

    /// Something that does not exist.
    pub fn missing(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// A model that does not exist.
    pub fn no_model(name: &str, there: &[String]) -> Fault {
        let message = format!("there is no model `{name}`; there are {}", there.join(", "));
        Fault { code: Some("model_not_found"), param: Some("model".into()), ..Fault::missing(message) }
    }

    /// A missing or wrong key.
    pub fn no_key() -> Fault {
        let message = "a valid key is needed: `Authorization: Bearer KEY`, or `x-api-key: KEY`";
        let kind = "invalid_request_error";
        Fault { code: Some("invalid_api_key"), ..Fault::new(StatusCode::UNAUTHORIZED, kind, message) }
    }

    /// A page or a host name that is not allowed.
    pub fn forbidden(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::FORBIDDEN, "invalid_request_error", message)
    }

    /// A body whose type is not JSON.
    pub fn media(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// A body that is too large.
    pub fn too_large(limit: u64) -> Fault {
        let message = format!("the body is larger than {limit} bytes, the most (serve.body_bytes)");
        Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// A body that did not arrive in time.
    pub fn slow() -> Fault {
        let message = "the body did not arrive in time (serve.body_s)";
        Fault::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// Too much load.
    pub fn busy(what: impl Into<String>, retry_after_s: f64) -> Fault {
        Fault {
            code: Some("rate_limit_exceeded"),
            retry_after_s: Some(retry_after_s),
            ..Fault::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", what)
        }
    }

    /// The server is shutting down.
    pub fn ending() -> Fault {
        Fault {
            code: Some("shutting_down"),
            retry_after_s: Some(5.0),
            ..Fault::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is shutting down")
        }
    }

    /// Something that cannot be done now.
    pub fn unavailable(message: impl Into<String>) -> Fault {
        Fault {
            retry_after_s: Some(30.0),
            ..Fault::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
        }
    }

    /// A defect of the server.
    pub fn ours(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The client has left and receives nothing.
    pub fn left() -> Fault {
        Fault::bad("the client has left")
    }

    /// Attributes the fault to a field.
    pub fn of(self, name: &str) -> Fault {
        Fault { param: Some(name.to_string()), ..self }
    }

    /// A request refused by a model before it was queued: the request is at fault, unless the error says otherwise.
    pub fn refused(error: Error) -> Fault {
        Fault::of_request(&error).unwrap_or_else(|| Fault::bad(error.to_string()))
    }

    /// A request that failed during processing: the server is at fault, unless the error says otherwise.
    pub fn failed(error: &Error) -> Fault {
        Fault::of_request(error).unwrap_or_else(|| Fault::ours(error.to_string()))
    }

    /// The fault of an error whose cause is known.
    fn of_request(error: &Error) -> Option<Fault> {
        match error {
            Error::Busy { what, retry_after_s } => Some(Fault::busy(what, *retry_after_s)),
            Error::Unmet { what } => Some(Fault::bad(what)),
            Error::Gone { what } => Some(Fault::ours(what)),
            Error::Missing { what } => {
                let param = Some("model".to_string());
                Some(Fault { code: Some("model_not_found"), param, ..Fault::missing(what) })
            }
            _ => None,
        }
    }

    /// The cause, for metrics.
    pub fn cause(&self) -> &'static str {
        match self.status.as_u16() {
            429 => "overloaded",
            401 | 403 => "denied",
            503 => "shutting_down",
            500.. => "generation",
            _ => "validation",
        }
    }

    /// The error in a protocol's format.
    pub fn json(&self, words: Words) -> Value {
        let Fault { kind, code, param, message, .. } = self;
        match words {
            Words::OpenAi => {
                json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
            }
            Words::Anthropic => {
                let kind = match self.status.as_u16() {
                    401 => "authentication_error",
                    403 => "permission_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    503 => "overloaded_error",
                    500.. => "api_error",
                    _ => "invalid_request_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
            Words::Kserve => json!({ "error": message }),
        }
    }

    /// The response with the error.
    pub fn response(&self, words: Words) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json(words).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.clamp(1.0, 3600.0).ceil() as u64));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
