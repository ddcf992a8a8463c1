//! Memory of a run in figures: categories, peaks, and what is live at one.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// Panic payload when memory runs out: a pool's budget, or the machine's own. Earlier allocations unwind as usual, and
/// the pool stays usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory(String);

impl OutOfMemory {
    /// Panics with a description of the request that does not fit.
    ///
    /// # Panics
    /// Always.
    pub fn raise(what: String) -> ! {
        std::panic::panic_any(OutOfMemory(what))
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {}", self.0)
    }
}

/// Purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Weights in their compute type.
    Params,
    /// Main gradients.
    Grads,
    /// Moments and master weights.
    Optimizer,
    /// Values and gradients between operations, and a batch's own tables.
    Activations,
    /// Scratch of one operation.
    Workspace,
    /// Keys and values of generation.
    Kv,
    /// Buffers of collectives.
    Comm,
    /// Rings of transfers: the buffers of [`crate::spill`].
    Staging,
    /// Token ids, positions, masks.
    Data,
    /// Copies held for a checkpoint being written.
    Snapshot,
}

impl Category {
    /// All categories in report order.
    pub const ALL: [Category; 10] = [
        Category::Params,
        Category::Grads,
        Category::Optimizer,
        Category::Activations,
        Category::Workspace,
        Category::Kv,
        Category::Comm,
        Category::Staging,
        Category::Data,
        Category::Snapshot,
    ];

    /// Name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Category::Params => "params",
            Category::Grads => "grads",
            Category::Optimizer => "optimizer",
            Category::Activations => "activations",
            Category::Workspace => "workspace",
            Category::Kv => "kv",
            Category::Comm => "comm",
            Category::Staging => "staging",
            Category::Data => "data",
            Category::Snapshot => "snapshot",
        }
    }
}

/// Bytes by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByCategory([u64; Category::ALL.len()]);

impl ByCategory {
    /// Each category with its bytes, in report order.
    pub fn iter(&self) -> impl Iterator<Item = (Category, u64)> {
        Category::ALL.into_iter().zip(self.0)
    }

    /// Total bytes of all categories.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Index<Category> for ByCategory {
    type Output = u64;
    fn index(&self, category: Category) -> &u64 {
        &self.0[category as usize]
    }
}

impl IndexMut<Category> for ByCategory {
    fn index_mut(&mut self, category: Category) -> &mut u64 {
        &mut self.0[category as usize]
    }
}

/// Live bytes by category, and the peaks since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes charged now.
    pub live: u64,
    /// Bytes charged now, by category.
    pub by_category: ByCategory,
    /// Most bytes charged at once.
    pub peak_live: u64,
    /// The categories at that moment.
    pub peak_by_category: ByCategory,
    /// The operation that was running at that moment.
    pub peak_op: String,
    /// Highest end of the address range ever used.
    pub peak_reserved: u64,
}

/// One point of a recorded timeline: the live bytes right after a charge or release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The operation running.
    pub op: &'static str,
    /// The segment's layer, or -1 outside one.
    pub layer: i32,
    /// Live bytes by category.
    pub by_category: ByCategory,
    /// The buffer that was charged or released.
    pub label: Label,
    /// Its bytes; negative if it was released.
    pub delta: i64,
}

/// Content of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// An activation's name, or the operation that asked for the buffer.
    pub name: &'static str,
    /// The segment's layer, or -1 outside one.
    pub layer: i32,
    /// True if the buffer holds the gradient of the named value.
    pub gradient: bool,
    /// Purpose of the buffer.
    pub category: Category,
}

/// The buffers that were live at the highest point of a timeline, by label, the largest first. Buffers older than the
/// recording are not included.
pub fn live_at_peak(marks: &[Mark]) -> Vec<(Label, u64)> {
    let total = |mark: &Mark| mark.by_category.sum();
    let Some(peak) = marks.iter().map(total).max() else { return Vec::new() };
    let mut live: BTreeMap<Label, i64> = BTreeMap::new();
    for mark in marks {
        *live.entry(mark.label).or_default() += mark.delta;
        if total(mark) == peak {
            break;
        }
    }
    let mut live: Vec<(Label, u64)> = live
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(label, bytes)| (label, bytes as u64))
        .collect();
    live.sort_by_key(|(label, bytes)| (std::cmp::Reverse(*bytes), *label));
    live
}
