//! PostgreSQL with the extension `vector` (pgvector), over its own protocol.

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::config::SslMode;
use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::StoreAddress;
use super::backend::{Point, ScoredPoint, StoreQuery, VectorStore};
use crate::approximate::FROM_ROWS;
use crate::error::{Error, Result};
use crate::filter::{Comparison, Condition};

/// Time that a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest vectors that pgvector's approximate index takes.
const INDEXED_DIMENSIONS: usize = 2000;
/// Largest number of candidates of pgvector's approximate index.
const CANDIDATES: usize = 1000;

pub(super) struct Postgres {
    address: StoreAddress,
    client: Client,
    /// The table, quoted.
    table: String,
}

impl Postgres {
    pub fn connect(address: StoreAddress) -> Result<Postgres> {
        let mut url = address.url.clone();
        let rest: Vec<(String, String)> = url
            .query_pairs()
            .filter(|(key, _)| key != "table")
            .map(|(k, v)| (k.into_owned(), v.into_owned()))
            .collect();
        url.set_query(None);
        if !rest.is_empty() {
            url.query_pairs_mut().extend_pairs(rest);
        }
        let mut config: Config =
            url.as_str().parse().map_err(|error| address.error(format!("{error}: {}", cause(&error))))?;
        if let Some(password) = std::env::var_os("PGPASSWORD").filter(|it| !it.is_empty()) {
            config.password(password.to_string_lossy().as_bytes());
        }
        config.connect_timeout(PATIENCE).application_name("fathom");
        let client = if config.get_ssl_mode() == SslMode::Require {
            let (tls, _) = MakeRustlsConnect::with_native_certs()
                .map_err(|errors| address.error(format!("no certificates of authorities: {errors:?}")))?;
            config.connect(tls)
        } else {
            config.connect(NoTls)
        };
        let client = client.map_err(|error| match error.as_db_error() {
            Some(_) => address.error(format!("{}; PGPASSWORD has the password", cause(&error))),
            None => address.unreachable(cause(&error)),
        })?;
        let table = format!("\"{}\"", address.collection);
        Ok(Postgres { address, client, table })
    }

    fn error(&self, error: &postgres::Error) -> Error {
        match error.code() {
            Some(code) if *code == SqlState::UNDEFINED_TABLE => self.address.missing(),
            Some(code) if *code == SqlState::UNDEFINED_COLUMN => self.address.of_others(),
            _ => self.address.error(cause(error)),
        }
    }

    fn run(&mut self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).map_err(|error| self.error(&error))
    }
}

/// The innermost reason of an error, which the others only announce.
fn cause(error: &postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        return said.message().to_string();
    }
    std::error::Error::source(error).map_or_else(|| error.to_string(), |it| it.to_string())
}

impl VectorStore for Postgres {
    fn prepare(&mut self, dimensions: usize) -> Result<()> {
        let there = self.client.query("SELECT 1 FROM pg_type WHERE typname = 'vector'", &[]);
        if there.map_err(|error| self.error(&error))?.is_empty()
            && let Err(error) = self.client.batch_execute("CREATE EXTENSION IF NOT EXISTS vector")
        {
            let why = cause(&error);
            return Err(self.address.error(format!(
                "it lacks pgvector ({why}); install it there, and run CREATE EXTENSION vector as its administrator"
            )));
        }
        let table = self.table.clone();
        let found =
            "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'embedding'";
        let row = self.client.query(found, &[&table]).map_err(|error| self.error(&error))?;
        if let Some(row) = row.first() {
            return self.address.check_dimensions(row.get::<_, i32>(0) as usize, dimensions);
        }
        self.run(&format!(
            "CREATE TABLE IF NOT EXISTS {table} (id uuid PRIMARY KEY, segment text NOT NULL, chunk int4 NOT NULL, \
             texts jsonb NOT NULL, numbers jsonb NOT NULL, embedding vector({dimensions}) NOT NULL); \
             CREATE INDEX IF NOT EXISTS \"{}_segment\" ON {table} (segment)",
            self.address.collection
        ))
    }

    fn segments(&mut self) -> Result<BTreeMap<String, u64>> {
        let sql = format!("SELECT segment, count(*) FROM {} GROUP BY segment", self.table);
        let rows = self.client.query(&sql, &[]).map_err(|error| self.error(&error))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1) as u64)).collect())
    }

    fn put(&mut self, points: &[Point<'_>]) -> Result<()> {
        let of = |text: fn(&Point<'_>) -> String| points.iter().map(text).collect::<Vec<String>>();
        let (ids, segments) = (of(|point| point.id()), of(|point| point.segment.to_string()));
        let chunks: Vec<i32> = points.iter().map(|point| point.chunk as i32).collect();
        let texts = of(|point| serde_json::to_string(&point.texts).unwrap_or_default());
        let numbers = of(|point| serde_json::to_string(&point.numbers).unwrap_or_default());
        let vectors = of(|point| literal(point.vector));
        let sql = format!(
            "INSERT INTO {} (id, segment, chunk, texts, numbers, embedding) \
             SELECT i::uuid, s, c, t::jsonb, n::jsonb, e::vector \
             FROM unnest($1::text[], $2::text[], $3::int4[], $4::text[], $5::text[], $6::text[]) AS u(i, s, c, t, n, e) \
             ON CONFLICT (id) DO UPDATE SET texts = excluded.texts, numbers = excluded.numbers, embedding = excluded.embedding",
            self.table
        );
        let values: [&(dyn ToSql + Sync); 6] = [&ids, &segments, &chunks, &texts, &numbers, &vectors];
        self.client.execute(&sql, &values).map(|_| ()).map_err(|error| self.error(&error))
    }

    fn remove(&mut self, segments: &[&str]) -> Result<()> {
        let sql = format!("DELETE FROM {} WHERE segment = ANY($1)", self.table);
        self.client.execute(&sql, &[&segments]).map(|_| ()).map_err(|error| self.error(&error))
    }

    /// Many vectors get an approximate index, as in the folder.
    fn finish(&mut self, points: u64, dimensions: usize) -> Result<()> {
        if points < FROM_ROWS as u64 || dimensions > INDEXED_DIMENSIONS {
            return Ok(());
        }
        let name = &self.address.collection;
        self.run(&format!(
            "CREATE INDEX IF NOT EXISTS \"{name}_embedding\" ON {} USING hnsw (embedding vector_ip_ops)",
            self.table
        ))
    }

    fn nearest(&mut self, query: &StoreQuery<'_>) -> Result<Vec<ScoredPoint>> {
        let StoreQuery { vector, k, conditions, exact } = *query;
        let (vector, most) = (literal(vector), k as i64);
        let candidates = (2 * k).clamp(100, CANDIDATES);
        let (clause, own) = clause(conditions);
        let sql = format!(
            "SELECT segment, chunk, -(embedding <#> $1::text::vector) FROM {} WHERE {clause} \
             ORDER BY embedding <#> $1::text::vector LIMIT $2",
            self.table
        );
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&vector, &most];
        values.extend(own.iter().map(|value| value as &(dyn ToSql + Sync)));
        let asked = |client: &mut Client| {
            let mut transaction = client.build_transaction().read_only(true).start()?;
            let scan = if exact { "off" } else { "on" };
            // The extension has to be loaded before its settings are known.
            transaction.batch_execute(&format!(
                "SELECT '[1]'::vector; SET LOCAL enable_indexscan = {scan}; SET LOCAL hnsw.ef_search = {candidates}"
            ))?;
            let rows = transaction.query(&sql, &values)?;
            transaction.commit()?;
            Ok::<_, postgres::Error>(rows)
        };
        let rows = asked(&mut self.client).map_err(|error| self.error(&error))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i32>(1) as u32, row.get(2))).collect())
    }
}

/// A vector as pgvector reads it; every number has the digits that make it the same again.
fn literal(vector: &[f32]) -> String {
    let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// Conditions as SQL, with its values from `$3` on.
fn clause(conditions: &[Condition]) -> (String, Vec<String>) {
    let mut values: Vec<String> = Vec::new();
    let mut parts = vec!["true".to_string()];
    // The index itself compares with infinity and the like.
    let is_known = |it: &&Condition| {
        !it.value.contains('\0') && !it.value.parse::<f64>().is_ok_and(|it| !it.is_finite())
    };
    for Condition { key, comparison, value } in conditions.iter().filter(is_known) {
        let mut place = |value: String| {
            values.push(value);
            format!("${}::text", values.len() + 2)
        };
        let key = place(key.clone());
        let operator = match comparison {
            Comparison::Equal | Comparison::NotEqual => "=",
            Comparison::Less => "<",
            Comparison::AtMost => "<=",
            Comparison::Greater => ">",
            Comparison::AtLeast => ">=",
        };
        let is_pattern = operator == "=" && value.contains('*');
        let text = if is_pattern {
            let escaped =
                value.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_").replace('*', "%");
            format!("(texts ->> {key}) LIKE {}", place(escaped))
        } else {
            format!("(texts ->> {key}) COLLATE \"C\" {operator} {}", place(value.clone()))
        };
        let holds = match value.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                let number = place(number.to_string());
                format!(
                    "CASE WHEN numbers ? {key} THEN (numbers ->> {key})::float8 {operator} {number}::float8 ELSE {text} END"
                )
            }
            _ => text,
        };
        let not = if *comparison == Comparison::NotEqual { "NOT " } else { "" };
        parts.push(format!("{not}coalesce({holds}, false)"));
    }
    (parts.join(" AND "), values)
}
