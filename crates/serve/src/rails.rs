//! Guardrails as a server sees them: a wrapper of every model, and judgements of given messages.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fathom_base::Service;
use serde_json::Value;

use crate::fault::Fault;

/// A model with rails around it for one request.
pub struct RailedModel {
    /// The model.
    pub service: Arc<dyn Service>,
    /// The request's course through the rails.
    pub record: Arc<dyn RailRecord>,
}

/// The rails' account of one request.
pub trait RailRecord: Send + Sync {
    /// `guardrails` of the answer; `None` if the request says nothing about rails.
    fn answer(&self) -> Option<Value>;

    /// The rails that ran so far.
    fn runs(&self) -> Vec<RailSpan>;
}

/// All runs of a rail in one direction, for a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct RailSpan {
    /// Name of the rail.
    pub rail: String,
    /// Direction, as configurations name it.
    pub direction: &'static str,
    /// Its decisions, as answers name them.
    pub decisions: Vec<String>,
    /// True if it ended the request.
    pub stops: bool,
    /// Calls of models.
    pub model_calls: usize,
    /// Start of the first run.
    pub began: SystemTime,
    /// Time of all runs together.
    pub took: Duration,
}

/// Guardrails of a server.
pub trait Rails: Send + Sync {
    /// Returns a model with rails around everything that it reads and writes. The server holds the result alone, so
    /// that no route reaches the model itself.
    fn around(&self, model: &str, service: Arc<dyn Service>) -> Arc<dyn Service>;

    /// Returns the model of this name with rails around it for one request: those that its `guardrails` select, with its
    /// thread, and with `key`, which identifies its client without revealing the key.
    ///
    /// # Errors
    /// 422 for a configuration or a rail that does not exist, 400 for malformed options.
    fn for_request(&self, model: &str, options: Option<&Value>, key: &str) -> Result<RailedModel, Fault>;

    /// Returns whether a check may wait for a model. Other checks compute only, and no more of them run at once than there
    /// are cores, so that they share memory.
    fn asks_models(&self) -> bool;

    /// Judges the messages of a request of `/v1/checks`.
    ///
    /// # Errors
    /// 400 for unknown fields, 422 for messages that cannot be judged, 503 if too many are being judged.
    fn check(&self, request: &Value, key: &str) -> Result<Value, Fault>;

    /// The configurations, with the rails of each.
    fn configs(&self) -> Value;

    /// Names of the rails that failed and, because they are configured so, let texts pass unjudged.
    fn degraded(&self) -> Vec<String>;

    /// Checks that the model of every rail has answered.
    ///
    /// # Errors
    /// The rail whose model has not.
    fn ready(&self) -> Result<(), String>;

    /// Metrics, as Prometheus reads them.
    fn metrics(&self) -> String;

    /// Reads the configurations again; requests in progress end with those that they began with.
    ///
    /// # Errors
    /// A file that is refused; the configurations stay as they were.
    fn reload(&self) -> Result<(), String>;
}
