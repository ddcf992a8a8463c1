//! Scalars on their way to a server, and the way there.

use fathom_serve::bench::{Target, post_all};
use serde_json::Value;

/// Scalars of a step.
pub(super) struct Sample {
    pub step: u64,
    pub wall_s: f64,
    pub scalars: Vec<(String, f64)>,
}

impl Sample {
    /// Scalars that are finite.
    pub fn finite(&self) -> impl Iterator<Item = &(String, f64)> {
        self.scalars.iter().filter(|(_, value)| value.is_finite())
    }
}

/// A server that takes scalars in batches.
pub(super) trait Server: Send {
    /// Delivers a batch.
    fn deliver(&mut self, batch: &[Sample]) -> std::result::Result<(), String>;

    /// Tells the server that the run has come to its end.
    fn finish(&mut self) -> std::result::Result<(), String>;
}

/// Posts a body to a server, and returns its answer.
pub(super) fn post(target: &Target, path: &str, body: &Value) -> std::result::Result<Value, String> {
    let answers = post_all(target, path, &[body.to_string()]).map_err(|error| error.to_string())?;
    match answers.into_iter().next() {
        Some((200..300, answer)) => Ok(answer),
        Some((status, answer)) => Err(format!("{path} answers with status {status}: {answer}")),
        None => Err(format!("{path} gives no answer")),
    }
}
