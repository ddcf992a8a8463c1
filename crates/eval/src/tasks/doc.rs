//! Rows of sets.

use serde_json::{Map, Value};

/// A row.
pub type Doc = Map<String, Value>;
