//! An OpenTelemetry collector, by OTLP over HTTP in JSON (`/v1/metrics`): every scalar is a gauge.

use std::collections::BTreeMap;

use fathom_serve::bench::Target;
use serde_json::{Value, json};

use super::delivery::{Sample, Server, post};
use crate::error::Result;
use crate::job::Job;

/// A collector.
pub(super) struct Collector {
    target: Target,
    run: String,
}

impl Collector {
    /// Reads an address such as `http://localhost:4318`.
    ///
    /// # Errors
    /// An address that is not HTTP.
    pub fn new(job: &Job, address: &str) -> Result<Collector> {
        Ok(Collector { target: Target::parse(address)?, run: job.recipe().run.name.clone() })
    }

    fn body(&self, batch: &[Sample]) -> Value {
        let mut points: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for of in batch {
            let (at, step) = (((of.wall_s * 1e9) as u64).to_string(), of.step.to_string());
            for (name, value) in of.finite() {
                points.entry(name).or_default().push(json!({
                    "timeUnixNano": at,
                    "asDouble": value,
                    "attributes": [{ "key": "step", "value": { "intValue": step } }],
                }));
            }
        }
        let metric = |(name, points): (&str, Vec<Value>)| json!({ "name": format!("fathom.{}", name.replace('/', ".")), "gauge": { "dataPoints": points } });
        let metrics: Vec<Value> = points.into_iter().map(metric).collect();
        let attribute = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        json!({ "resourceMetrics": [{
            "resource": { "attributes": [attribute("service.name", "fathom"), attribute("fathom.run", &self.run)] },
            "scopeMetrics": [{ "scope": { "name": "fathom", "version": env!("CARGO_PKG_VERSION") }, "metrics": metrics }],
        }] })
    }
}

impl Server for Collector {
    fn deliver(&mut self, batch: &[Sample]) -> std::result::Result<(), String> {
        post(&self.target, "/v1/metrics", &self.body(batch)).map(drop)
    }

    fn finish(&mut self) -> std::result::Result<(), String> {
        Ok(())
    }
}
