//! A store of vectors as an index uses it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::Result;
use crate::filter::Condition;

/// A point of a store: a chunk with its vector.
pub(super) struct Point<'a> {
    pub segment: &'a str,
    /// Number of the chunk in its segment.
    pub chunk: u32,
    pub vector: &'a [f32],
    /// Fields of its document as texts, and those of them that are numbers.
    pub texts: Map<String, Value>,
    pub numbers: Map<String, Value>,
}

impl Point<'_> {
    /// Its name: a UUID of what it is of.
    pub fn id(&self) -> String {
        let hash = blake3::hash(format!("{}\n{}", self.segment, self.chunk).as_bytes()).to_hex();
        let part = |range: std::ops::Range<usize>| &hash[range];
        format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
    }
}

/// A point that a store found: its segment, its chunk there, and its score.
pub(super) type ScoredPoint = (String, u32, f64);

/// A question to a store.
#[derive(Clone, Copy)]
pub(super) struct StoreQuery<'a> {
    pub vector: &'a [f32],
    /// Number of points.
    pub k: usize,
    pub conditions: &'a [Condition],
    /// Compares all points.
    pub exact: bool,
}

/// A store of unit vectors; scores are cosines.
pub(super) trait VectorStore: Send {
    /// Makes the collection for vectors of this size, unless it exists.
    fn prepare(&mut self, dimensions: usize) -> Result<()>;

    /// Number of points of each segment.
    fn segments(&mut self) -> Result<BTreeMap<String, u64>>;

    /// Writes points, over those of the same name.
    fn put(&mut self, points: &[Point<'_>]) -> Result<()>;

    /// Removes the points of segments.
    fn remove(&mut self, segments: &[&str]) -> Result<()>;

    /// Prepares for searches in this many points.
    fn finish(&mut self, points: u64, dimensions: usize) -> Result<()>;

    /// The nearest points, the best first, among those that fulfil the conditions that the store can compute.
    fn nearest(&mut self, query: &StoreQuery<'_>) -> Result<Vec<ScoredPoint>>;
}
