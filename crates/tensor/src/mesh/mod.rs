//! The mesh: ranks in a grid, the link between them, and the collectives along its axes.
//!
//! A mesh of one rank is the same code path: its collectives are copies or nothing. Every sum runs in ascending order
//! of the ranks with f32 accumulation and is rounded once, so a result does not depend on timing, and is the same on
//! all ranks. Buffers of a collective are charged to [`crate::Category::Comm`] on the rank's own pool.

mod collectives;
pub mod conformance;
mod grid;
mod imagined;
mod link;
mod presence;
mod threads;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

pub use collectives::{PendingSums, Transfers, share};
pub use grid::{Axis, Grid};
pub use imagined::CountingLink;
pub use link::{Absent, Among, Flight, Link, LinkError, Traffic, What};
pub use threads::{Seat, Threads, ThreadsOptions, threads};

/// Volume of one kind of collective along one axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Calls.
    pub calls: u64,
    /// Bytes that this rank sent.
    pub bytes: u64,
}

/// Bytes by axes (their names, joined by `-`) and collective.
pub type Wires = BTreeMap<(String, &'static str), Wire>;

/// Predicted seconds that a rank's program waits for others, by axes and collective.
pub type Waits = BTreeMap<(String, &'static str), f64>;

/// Counts so far.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Messages sent.
    pub wires: Wires,
    /// Seconds waited.
    pub waits: Waits,
}

/// A rank's place in the mesh. It belongs to the rank's issuing thread; cheap to clone.
#[derive(Clone)]
pub struct Mesh(Rc<Inner>);

struct Inner {
    grid: Grid,
    rank: usize,
    link: Option<Box<dyn Link>>,
    accounts: RefCell<Accounts>,
}

/// Counters indexed by the number of a pair of axes and collective.
#[derive(Default)]
struct Accounts {
    keys: Vec<(String, &'static str)>,
    wires: Vec<Wire>,
    /// `None` if nothing was waited for.
    waits: Vec<Option<f64>>,
}

impl Accounts {
    /// Number of a group's collective.
    fn key(&mut self, group: &str, collective: &'static str) -> usize {
        let known = self.keys.iter().position(|(name, of)| *of == collective && name == group);
        known.unwrap_or_else(|| {
            self.keys.push((group.to_string(), collective));
            self.wires.push(Wire::default());
            self.waits.push(None);
            self.keys.len() - 1
        })
    }
}

/// A subset of the mesh's ranks, including this one.
#[derive(Clone)]
pub struct Group {
    mesh: Mesh,
    /// Name for counters: `tp`, or `dp-cp`.
    name: String,
    ranks: Vec<usize>,
    index: usize,
}

impl Mesh {
    /// A mesh of one rank.
    pub fn alone() -> Mesh {
        Mesh::of(Grid::default(), None)
    }

    /// The mesh as seen by the rank of this end of a link.
    ///
    /// # Panics
    /// If the grid does not have as many ranks as the link.
    #[track_caller]
    pub fn new(grid: Grid, link: Box<dyn Link>) -> Mesh {
        if let Err(message) = grid.check() {
            panic!("mesh: {message}");
        }
        assert_eq!(grid.ranks(), link.ranks(), "mesh {grid}: ranks of the link");
        Mesh::of(grid, Some(link))
    }

    fn of(grid: Grid, link: Option<Box<dyn Link>>) -> Mesh {
        let rank = link.as_ref().map_or(0, |link| link.rank());
        Mesh(Rc::new(Inner { grid, rank, link, accounts: RefCell::default() }))
    }

    /// Sizes of the grid.
    pub fn grid(&self) -> &Grid {
        &self.0.grid
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.0.grid.size(axis)
    }

    /// This rank's index along an axis.
    pub fn index(&self, axis: Axis) -> usize {
        self.0.grid.index(self.0.rank, axis)
    }

    /// The ranks that differ from this one only along these axes. The axes are of one grid.
    pub fn group(&self, axes: &[Axis]) -> Group {
        let ranks = self.0.grid.members(self.0.rank, axes);
        let name = axes.iter().map(|axis| axis.name()).collect::<Vec<_>>().join("-");
        self.group_of(name, ranks)
    }

    /// All ranks.
    pub fn everybody(&self) -> Group {
        self.group_of("all".into(), (0..self.0.grid.ranks()).collect())
    }

    /// A group of ranks, ascending, including this one.
    fn group_of(&self, name: String, ranks: Vec<usize>) -> Group {
        let index = ranks.iter().position(|rank| *rank == self.0.rank).unwrap_or_default();
        Group { mesh: self.clone(), name, ranks, index }
    }

    /// The link between ranks; `None` for a single rank.
    pub fn link(&self) -> Option<&dyn Link> {
        self.0.link.as_deref()
    }

    /// The first failure of any rank, if there was one: for the end of a step.
    ///
    /// # Errors
    /// The failure.
    pub fn check(&self) -> Result<(), LinkError> {
        self.link().map_or(Ok(()), Link::check)
    }

    /// The link's totals so far.
    pub fn traffic(&self) -> Traffic {
        self.link().map(Link::traffic).unwrap_or_default()
    }

    /// Bytes this rank sent so far, by axis and collective.
    pub fn wires(&self) -> Wires {
        let accounts = self.0.accounts.borrow();
        let sent = accounts.keys.iter().cloned().zip(accounts.wires.iter().copied());
        sent.filter(|(_, wire)| wire.calls > 0).collect()
    }

    /// Bytes this rank sent and seconds it waited so far.
    pub fn ledger(&self) -> Ledger {
        let accounts = self.0.accounts.borrow();
        let waited = accounts.keys.iter().zip(&accounts.waits);
        let waits = waited.filter_map(|(key, waited)| Some((key.clone(), (*waited)?))).collect();
        Ledger { wires: self.wires(), waits }
    }

    /// The same, indexed by the numbers of groups' collectives.
    pub(crate) fn counted(&self) -> (Vec<Wire>, Vec<Option<f64>>) {
        let accounts = self.0.accounts.borrow();
        (accounts.wires.clone(), accounts.waits.clone())
    }

    /// Counts messages of a group's collective.
    pub(crate) fn count(&self, key: usize, sent: Wire) {
        let wire = &mut self.0.accounts.borrow_mut().wires[key];
        wire.calls += sent.calls;
        wire.bytes += sent.bytes;
    }

    /// Counts seconds waited for a group's collective.
    pub(crate) fn count_wait(&self, key: usize, seconds: f64) {
        *self.0.accounts.borrow_mut().waits[key].get_or_insert_default() += seconds;
    }

    /// Counts the messages sent since `before` another `times` times.
    pub(crate) fn repeat_wires(&self, before: &[Wire], times: u64) {
        for (key, wire) in self.0.accounts.borrow_mut().wires.iter_mut().enumerate() {
            let old = before.get(key).copied().unwrap_or_default();
            wire.calls += (wire.calls - old.calls) * times;
            wire.bytes += (wire.bytes - old.bytes) * times;
        }
    }

    /// Counts the waits since `before` another `times` times.
    pub(crate) fn repeat_waits(&self, before: &[Option<f64>], times: u64) {
        for (key, waited) in self.0.accounts.borrow_mut().waits.iter_mut().enumerate() {
            let old = before.get(key).copied().flatten().unwrap_or_default();
            waited.iter_mut().for_each(|seconds| *seconds += (*seconds - old) * times as f64);
        }
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.0.rank, self.0.grid)
    }
}

impl Group {
    /// A subset of the members, by index, ascending, including this one: for two-level collectives.
    ///
    /// # Panics
    /// If this rank is not among them.
    #[track_caller]
    pub fn some(&self, name: &str, indices: &[usize]) -> Group {
        assert!(
            indices.contains(&self.index),
            "group {}: {indices:?} without index {}",
            self.name,
            self.index
        );
        let ranks = indices.iter().map(|index| self.ranks[*index]).collect();
        self.mesh.group_of(name.to_string(), ranks)
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's index among the members.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The members' ranks, ascending.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}
