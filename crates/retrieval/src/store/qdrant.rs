//! Qdrant over its REST interface (version 1.12 or later, which has facets).

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::address::StoreAddress;
use super::backend::{Point, ScoredPoint, StoreQuery, VectorStore};
use crate::error::Result;
use crate::filter::{Comparison, Condition};

/// Time that a store has to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Segments that are listed, at most.
const SEGMENTS: u64 = 1 << 20;

pub(super) struct Qdrant {
    address: StoreAddress,
    base: String,
    key: Option<String>,
    client: Client,
    runtime: Runtime,
}

impl Qdrant {
    pub fn new(address: StoreAddress) -> Result<Qdrant> {
        let scheme = if address.url.scheme() == "qdrants" { "https" } else { "http" };
        let host = address.url.host_str().unwrap_or_default();
        let port = address.url.port().unwrap_or(6333);
        let base = format!("{scheme}://{host}:{port}/collections/{}", address.collection);
        let key = std::env::var("QDRANT_API_KEY").ok().filter(|key| !key.is_empty());
        let failed = |error: &dyn std::fmt::Display| address.error(error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
        // A key is sent to the named host alone.
        let client = Client::builder().timeout(PATIENCE).redirect(reqwest::redirect::Policy::none());
        let client = client.build().map_err(|error| failed(&error))?;
        Ok(Qdrant { base, key, client, runtime, address })
    }

    /// The result of a request; `None` if there is no such collection.
    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Option<Value>> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("api-key", key);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = self.runtime.block_on(async {
            let response = request.send().await?;
            Ok::<_, reqwest::Error>((response.status(), response.bytes().await?))
        });
        let (status, body) = answer.map_err(|error| {
            let error = error.without_url();
            let source = std::error::Error::source(&error).map(|it| format!(": {it}")).unwrap_or_default();
            self.address.unreachable(format!("{error}{source}"))
        })?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(self.address.error("it refuses the key; QDRANT_API_KEY has it"))
            }
            status if status.is_success() && answer.get("result").is_some() => {
                Ok(Some(answer["result"].clone()))
            }
            status => {
                let why = answer["status"]["error"].as_str().unwrap_or("no result");
                Err(self.address.error(format!("it answers {status}: {why}")))
            }
        }
    }

    /// The result of a request to a collection that exists.
    fn need(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        self.ask(method, path, Some(body))?.ok_or_else(|| self.address.missing())
    }

    fn unexpected(&self, of: &str) -> crate::error::Error {
        self.address.error(format!("its answer has no {of}; Qdrant 1.12 or later is needed"))
    }
}

impl VectorStore for Qdrant {
    fn prepare(&mut self, dimensions: usize) -> Result<()> {
        match self.ask(Method::GET, "", None)? {
            Some(found) => {
                let vectors = &found["config"]["params"]["vectors"];
                let Some(size) = vectors["size"].as_u64() else { return Err(self.address.of_others()) };
                self.address.check_dimensions(size as usize, dimensions)?;
                match vectors["distance"].as_str() {
                    Some("Cosine") => Ok(()),
                    other => Err(self.address.error(format!(
                        "it compares by {}, not by Cosine; name another collection",
                        other.unwrap_or("nothing")
                    ))),
                }
            }
            None => {
                let vectors = json!({"vectors": {"size": dimensions, "distance": "Cosine"}});
                self.need(Method::PUT, "", &vectors)?;
                let keyword = json!({"field_name": "segment", "field_schema": "keyword"});
                self.need(Method::PUT, "/index?wait=true", &keyword)?;
                Ok(())
            }
        }
    }

    fn segments(&mut self) -> Result<BTreeMap<String, u64>> {
        let asked = json!({"key": "segment", "limit": SEGMENTS, "exact": true});
        let found = self.need(Method::POST, "/facet", &asked)?;
        let hits = found["hits"].as_array().ok_or_else(|| self.unexpected("facets"))?;
        let hit = |hit: &Value| Some((hit["value"].as_str()?.to_string(), hit["count"].as_u64()?));
        let held: BTreeMap<String, u64> =
            hits.iter().map(hit).collect::<Option<_>>().ok_or_else(|| self.unexpected("facets"))?;
        let points = self.need(Method::POST, "/points/count", &json!({"exact": true}))?;
        if points["count"].as_u64() != Some(held.values().sum()) {
            return Err(self.address.of_others());
        }
        Ok(held)
    }

    fn put(&mut self, points: &[Point<'_>]) -> Result<()> {
        let one = |point: &Point<'_>| {
            let payload = json!({
                "segment": point.segment, "chunk": point.chunk, "texts": point.texts, "numbers": point.numbers,
            });
            json!({"id": point.id(), "vector": point.vector, "payload": payload})
        };
        let points = json!({"points": points.iter().map(one).collect::<Value>()});
        self.need(Method::PUT, "/points?wait=true", &points).map(|_| ())
    }

    fn remove(&mut self, segments: &[&str]) -> Result<()> {
        let filter = json!({"filter": {"must": [{"key": "segment", "match": {"any": segments}}]}});
        self.need(Method::POST, "/points/delete?wait=true", &filter).map(|_| ())
    }

    /// Qdrant builds its approximate index by itself.
    fn finish(&mut self, _points: u64, _dimensions: usize) -> Result<()> {
        Ok(())
    }

    fn nearest(&mut self, query: &StoreQuery<'_>) -> Result<Vec<ScoredPoint>> {
        let StoreQuery { vector, k, conditions, exact } = *query;
        let mut asked = json!({
            "query": vector, "limit": k, "params": {"exact": exact}, "with_payload": ["segment", "chunk"],
        });
        let must: Vec<Value> = conditions.iter().filter_map(filter).collect();
        if !must.is_empty() {
            asked["filter"] = json!({ "must": must });
        }
        let found = self.need(Method::POST, "/points/query", &asked)?;
        let point = |point: &Value| {
            let payload = &point["payload"];
            let chunk = u32::try_from(payload["chunk"].as_u64()?).ok()?;
            Some((payload["segment"].as_str()?.to_string(), chunk, point["score"].as_f64()?))
        };
        let points = found["points"].as_array().ok_or_else(|| self.unexpected("points"))?;
        points.iter().map(point).collect::<Option<_>>().ok_or_else(|| self.address.of_others())
    }
}

/// A condition as a filter; `None` for patterns, orders of texts and keys with other characters, which the index itself
/// compares.
fn filter(condition: &Condition) -> Option<Value> {
    let Condition { key, comparison, value } = condition;
    if !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
        return None;
    }
    let [text, number] = ["texts", "numbers"].map(|of| format!("{of}.{key}"));
    let parsed = value.parse::<f64>().ok();
    if parsed.is_some_and(|number| !number.is_finite()) || value.contains('\0') {
        return None;
    }
    let range = |of: Value| json!({"key": number, "range": of});
    let equal = || {
        let same = json!({"key": text, "match": {"value": value}});
        match parsed {
            None if value.contains('*') => None,
            None => Some(same),
            Some(own) => {
                let is_text = json!({"is_empty": {"key": number}});
                let same = json!({"must": [is_text, same]});
                Some(json!({"should": [range(json!({"gte": own, "lte": own})), same]}))
            }
        }
    };
    match comparison {
        Comparison::Equal => equal(),
        Comparison::NotEqual => equal().map(|equal| json!({"must_not": [equal]})),
        order => {
            let own = parsed?;
            let of = match order {
                Comparison::Less => json!({"lt": own}),
                Comparison::AtMost => json!({"lte": own}),
                Comparison::Greater => json!({"gt": own}),
                _ => json!({"gte": own}),
            };
            // Texts that stand there in place of numbers are compared by the index itself.
            let is_text =
                json!({"must": [{"is_empty": {"key": number}}], "must_not": [{"is_empty": {"key": text}}]});
            Some(json!({"should": [range(of), is_text]}))
        }
    }
}
