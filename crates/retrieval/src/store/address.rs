//! Addresses of stores of vectors, as an index remembers them.

use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Qdrant,
    Postgres,
}

/// Address of a store: `qdrant://HOST:PORT/COLLECTION`, `qdrants://..` over TLS, or
/// `postgres://USER@HOST:PORT/DATABASE?table=NAME`. It has no secrets: keys come from `QDRANT_API_KEY` and `PGPASSWORD`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreAddress {
    text: String,
    pub(super) backend: Backend,
    /// The collection or table.
    pub(super) collection: String,
    pub(super) url: url::Url,
}

impl FromStr for StoreAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<StoreAddress> {
        let refused = |why: &str| {
            let forms = "qdrant://HOST:PORT/COLLECTION, qdrants://.. over TLS, postgres://USER@HOST:PORT/DATABASE?table=NAME";
            Error::Refused(format!("`{text}` is no address of a store: {why}; known are {forms}"))
        };
        let url = url::Url::parse(text).map_err(|error| refused(&error.to_string()))?;
        if url.password().is_some() {
            return Err(Error::Refused(
                "the address of a store is written to the index and must not have a password; set PGPASSWORD or QDRANT_API_KEY".into(),
            ));
        }
        let is_host = url.host_str().is_some_and(|host| !host.is_empty());
        let path = url.path().trim_matches('/').to_string();
        let (backend, collection) = match url.scheme() {
            "qdrant" | "qdrants" => (Backend::Qdrant, path),
            "postgres" | "postgresql" => {
                let table =
                    url.query_pairs().find(|(key, _)| key == "table").map(|(_, name)| name.into_owned());
                (Backend::Postgres, table.unwrap_or_else(|| "fathom".into()))
            }
            other => return Err(refused(&format!("`{other}` is another scheme"))),
        };
        let is_name = |name: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (1..=48).contains(&name.len()) && name.chars().all(allowed)
        };
        if !is_host && backend == Backend::Qdrant {
            return Err(refused("it names no host"));
        }
        if !is_name(&collection) {
            return Err(refused("a collection has a name of 1 to 48 letters, digits, `_` and `-`"));
        }
        Ok(StoreAddress { text: text.into(), backend, collection, url })
    }
}

impl TryFrom<String> for StoreAddress {
    type Error = Error;

    fn try_from(text: String) -> Result<StoreAddress> {
        text.parse()
    }
}

impl From<StoreAddress> for String {
    fn from(address: StoreAddress) -> String {
        address.text
    }
}

impl std::fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl StoreAddress {
    /// An error that names the store.
    pub(super) fn error(&self, why: impl std::fmt::Display) -> Error {
        Error::Store { store: self.text.clone(), why: why.to_string() }
    }

    pub(super) fn unreachable(&self, why: impl std::fmt::Display) -> Error {
        self.error(format!("it cannot be reached: {why}"))
    }

    pub(super) fn of_others(&self) -> Error {
        self.error("it has points that are not of an index; name another collection")
    }

    pub(super) fn missing(&self) -> Error {
        self.error("it does not exist; `fathom index` writes it")
    }

    pub(super) fn check_dimensions(&self, there: usize, own: usize) -> Result<()> {
        if there == own {
            return Ok(());
        }
        Err(self.error(format!(
            "its vectors have {there} numbers, and those of the encoder {own}; name another collection, or delete it"
        )))
    }
}

/// The store of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreEntry {
    /// Its address.
    pub address: StoreAddress,
    /// Name of the index in the store: the hash of the place where it was first written.
    pub owner: String,
}

impl StoreEntry {
    /// The store that an index is given, or had.
    pub fn of(out: &Path, asked: Option<&StoreAddress>, old: Option<&StoreEntry>) -> Option<StoreEntry> {
        let had = old.cloned();
        let Some(address) = asked else { return had };
        let place = std::fs::canonicalize(out).unwrap_or_else(|_| out.to_path_buf());
        let hash = || blake3::hash(place.to_string_lossy().as_bytes()).to_hex()[..16].to_string();
        Some(StoreEntry { address: address.clone(), owner: had.map_or_else(hash, |had| had.owner) })
    }

    /// Name of a segment's points.
    pub(super) fn segment(&self, fingerprint: &str, vectors: &str) -> String {
        format!("{}/{fingerprint}/{vectors}", self.owner)
    }
}
