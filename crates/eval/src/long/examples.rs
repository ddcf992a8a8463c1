//! Rows that HELMET's code samples, with demonstrations that it draws by the hash of a row's id.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::files::{Row, filled, member};
use crate::python::pcg::Pcg;
use crate::python::printed;
use crate::python::random::Random;

type Rows = std::result::Result<Vec<Row>, String>;

/// How rows are picked.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    pub seed: u32,
    /// Rows, or distinct questions, at most.
    pub samples: usize,
    /// Demonstrations of a row.
    pub shots: usize,
}

impl Pick {
    /// `data.shuffle(seed).select(range(samples))`.
    pub fn first(self, data: Vec<Row>) -> Vec<Row> {
        let order = Pcg::new(self.seed).permutation(data.len());
        order.into_iter().take(self.samples).map(|at| data[at].clone()).collect()
    }

    /// The rows of `samples` keys, drawn among the sorted ones.
    fn of_keys(self, data: Vec<Row>, key: &str) -> Rows {
        let mut keys: Vec<Value> = Vec::new();
        for row in &data {
            keys.push(row.get(key).cloned().ok_or_else(|| format!("a row has no `{key}`"))?);
        }
        keys.sort_by(|a, b| match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => printed::text(a).cmp(&printed::text(b)),
        });
        keys.dedup();
        let drawn = Random::new(u64::from(self.seed)).sample(keys.len(), self.samples.min(keys.len()));
        let drawn: BTreeSet<String> =
            drawn.unwrap_or_default().into_iter().map(|at| keys[at].to_string()).collect();
        Ok(data.into_iter().filter(|row| drawn.contains(&row[key].to_string())).collect())
    }
}

/// The last 31 bits of the SHA-256 of a text, as a number.
pub fn seed_of(text: &str) -> u32 {
    let hash = Sha256::digest(text.as_bytes());
    u32::from_be_bytes([hash[28], hash[29], hash[30], hash[31]]) & 0x7fff_ffff
}

/// Rows with demonstrations.
#[derive(Debug)]
pub struct Demonstrations {
    pub pick: Pick,
    pub demos: Vec<Row>,
}

fn documents(row: &Row) -> Result<&Vec<Value>, String> {
    row.get("ctxs").and_then(Value::as_array).ok_or_else(|| "a row has no list `ctxs`".to_string())
}

/// Documents by a template, with empty lines between them.
fn passages(row: &Row, template: &str) -> Result<String, String> {
    let of = |document: &Value| filled(template, &|name| document.get(name).map(printed::text));
    Ok(documents(row)?.iter().map(of).collect::<Vec<_>>().join("\n\n"))
}

impl Demonstrations {
    /// Questions over retrieved passages (KILT).
    pub fn answered(mut self, mut data: Vec<Row>, dataset: &str) -> Rows {
        const PASSAGE: &str = "Document (Title: {title}): {text}";
        let popular = dataset
            .rsplit('_')
            .next()
            .and_then(|it| it.parse::<f64>().ok())
            .filter(|_| dataset.contains("popqa"));
        if let Some(most) = popular {
            let is_rare =
                |row: &Row| row.get("s_pop").and_then(Value::as_f64).is_some_and(|it| it.log10() < most);
            data.retain(is_rare);
            self.demos.retain(is_rare);
        }
        let key = if data.iter().any(|row| row.contains_key("id")) { "id" } else { "question" };
        let first = |row: &Row| match row.get("answers") {
            Some(Value::Array(all)) => {
                all.first().map(printed::text).ok_or("a row has no answers".to_string())
            }
            _ => Err("a row has no list `answers`".to_string()),
        };
        let one = |mut row: Row| {
            let own = row.get(key).cloned().unwrap_or_default();
            let is_other = |demo: &&Row| popular.is_none() || demo.get(key) != Some(&own);
            let pool: Vec<&Row> = self.demos.iter().filter(is_other).collect();
            let mut shown = String::new();
            for demo in self.drawn(&pool, key, &printed::text(&own))? {
                let question = member(demo, "question").unwrap_or_default();
                shown += &format!(
                    "{}\n\nQuestion: {question}\nAnswer: {}\n\n",
                    passages(demo, PASSAGE)?,
                    first(demo)?
                );
            }
            first(&row)?;
            row.insert("context".into(), passages(&row, PASSAGE)?.into());
            row.insert("demos".into(), shown.into());
            Ok(row)
        };
        self.pick.of_keys(data, key)?.into_iter().map(one).collect()
    }

    /// Documents that are ranked (MS MARCO).
    pub fn ranked(mut self, data: Vec<Row>) -> Rows {
        let data = self.pick.of_keys(data, "qid")?;
        let filtered = self.demos.len() > 2 * data.len();
        if filtered {
            let own: BTreeSet<String> = data.iter().map(|row| row["qid"].to_string()).collect();
            self.demos.retain(|demo| !own.contains(&demo.get("qid").unwrap_or(&Value::Null).to_string()));
        }
        let ranking = |row: &Row| -> Result<String, String> {
            let mut sorted: Vec<&Value> = documents(row)?.iter().collect();
            sorted.sort_by(|a, b| {
                b["label"].as_f64().unwrap_or(0.0).total_cmp(&a["label"].as_f64().unwrap_or(0.0))
            });
            Ok(sorted.into_iter().map(|it| printed::text(&it["id"])).collect::<Vec<_>>().join(" > "))
        };
        let one = |mut row: Row| {
            let own = row.get("qid").cloned().unwrap_or_default();
            let pool: Vec<&Row> =
                self.demos.iter().filter(|demo| filtered || demo.get("qid") != Some(&own)).collect();
            let titled = documents(&row)?.first().is_some_and(|it| it.get("title").is_some());
            let passage = if titled {
                "[ID: {id}] Document (Title: {title}): {text}"
            } else {
                "[ID: {id}] Document: {text}"
            };
            let mut shown = String::new();
            for demo in self.drawn(&pool, "qid", &printed::text(&own))? {
                let query = member(demo, "query").unwrap_or_default();
                shown += &format!(
                    "{}\n\nQuery: {query}\nRanking: {}\n\n",
                    passages(demo, passage)?,
                    ranking(demo)?
                );
            }
            row.insert("context".into(), passages(&row, passage)?.into());
            row.insert("demos".into(), shown.into());
            row.insert("question".into(), row.get("query").cloned().unwrap_or_default());
            row.insert("answers".into(), json!([ranking(&row)?]));
            Ok(row)
        };
        data.into_iter().map(one).collect()
    }

    /// The first demonstrations of distinct keys in an order drawn by an id.
    fn drawn<'d>(&self, pool: &[&'d Row], key: &str, id: &str) -> Result<Vec<&'d Row>, String> {
        let mut seen = BTreeSet::new();
        let order = Pcg::new(seed_of(id)).permutation(pool.len());
        let is_new = |demo: &&Row| seen.insert(demo.get(key).unwrap_or(&Value::Null).to_string());
        let found: Vec<&Row> =
            order.into_iter().map(|at| pool[at]).filter(is_new).take(self.pick.shots).collect();
        let all = found.len();
        if all < self.pick.shots {
            return Err(format!("{} demonstrations are wanted, and there are {all}", self.pick.shots));
        }
        Ok(found)
    }
}
