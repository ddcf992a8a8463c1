//! Adapters of projections as data: their weights, the columns that they are added to, and their dropout. The operation is
//! [`Ctx::lora`](crate::Ctx::lora).

use fathom_tensor::Dropout;

use crate::param_id::ParamId;

/// Sharding of a projection over tensor parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearCut {
    /// Each rank computes all of it, for its rows.
    Whole,
    /// Each rank computes some columns.
    Columns,
    /// Each rank computes a term of the sum.
    Rows,
}

/// Most runs: tensors in files that make up one projection.
pub const MOST_RUNS: usize = 6;

/// Runs of the columns of a projection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    list: [(usize, usize); MOST_RUNS],
    len: usize,
}

impl Runs {
    /// The runs with these first columns and lengths.
    ///
    /// # Panics
    /// If there are more than six.
    #[track_caller]
    pub fn new(runs: &[(usize, usize)]) -> Runs {
        let mut list = [(0, 0); MOST_RUNS];
        list[..runs.len()].copy_from_slice(runs);
        Runs { list, len: runs.len() }
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The runs.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.list[..self.len].iter().copied()
    }

    /// Total number of columns.
    pub fn columns(&self) -> usize {
        self.iter().map(|(_, columns)| columns).sum()
    }

    /// The part that a rank has whose weights have this many columns in all.
    pub(crate) fn held(&self, columns: usize) -> Runs {
        self.part((self.columns() / columns.max(1)).max(1))
    }

    /// The part on one of several ranks; each run is divided equally among them.
    pub fn part(&self, ranks: usize) -> Runs {
        let mut part = *self;
        part.list.iter_mut().for_each(|(at, columns)| (*at, *columns) = (*at / ranks, *columns / ranks));
        part
    }
}

/// The low-rank adapter of a projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraUse {
    /// [runs x rank, in].
    pub a: ParamId,
    /// [columns of all runs, rank].
    pub b: ParamId,
    /// Factor of A and B together, for each run.
    pub scales: [f32; MOST_RUNS],
    /// The columns of the whole projection to which each adapter is added.
    pub runs: Runs,
    /// [1, columns of all runs]: added too, times the scale of its run.
    pub bias: Option<ParamId>,
    /// Dropout of the adapters' inputs, in training steps.
    pub drops: Option<Drops>,
    /// True if its magnitudes, if it has any, are stored as column factors ([`length_factors`](crate::length_factors)).
    pub fixed: bool,
}

/// Dropout of an adapter's input (the `lora_dropout` of PEFT), by counters: see [`Dropout`] and [`Batch::keys`](crate::Batch::keys).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drops {
    /// The dropout rate.
    pub rate: f32,
    /// Identifies the projection among those of its layer.
    pub salt: u32,
    /// The layer that the operations are recorded for.
    pub layer: usize,
}

impl Drops {
    /// The dropout of one of the projection's adapters, in a layer at distance `layers_on`.
    pub(crate) fn of_run(self, layers_on: i32, run: usize, first: usize) -> Dropout {
        let layer = (self.layer as u32).wrapping_add_signed(layers_on);
        let place = [layer, run as u32].iter().fold(self.salt, |hash, part| {
            let hash = (hash ^ part).wrapping_mul(0x9e37_79b1);
            hash ^ (hash >> 15)
        });
        Dropout::new(self.rate, place, first)
    }
}

impl LoraUse {
    /// An adapter with these weights and a scale for each run.
    ///
    /// # Panics
    /// If the numbers of scales and runs differ.
    #[track_caller]
    pub fn new(a: ParamId, b: ParamId, of_runs: &[f32], runs: Runs) -> LoraUse {
        assert_eq!(of_runs.len(), runs.len(), "lora: scales of runs");
        let mut scales = [1.0; MOST_RUNS];
        scales[..of_runs.len()].copy_from_slice(of_runs);
        LoraUse { a, b, scales, runs, bias: None, drops: None, fixed: false }
    }
}

/// A projection: weight [out, in] and bias [1, out].
pub type ProjectionWeights = (ParamId, Option<ParamId>);
