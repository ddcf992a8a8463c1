//! Graphs of blocks: operations issued within a block are collected, and if the same list was issued before, with
//! identical addresses, the driver is called once instead of for each operation.
//!
//! Two lists are the same if they have the same operations with the same arguments. Memory is allocated in program
//! order, so a step repeats its predecessor's addresses, and graphs never need updates. A new list is issued one by
//! one, which also lets libraries make their plans; the second time it is captured; from then on it is replayed.
//!
//! Other uses of the stream cannot be part of a graph and cut it ([`Blocks::cuts`] counts the reasons): the host writes
//! or reads (including lists of packed documents), a transfer or another rank needs a point to wait for, a timestamp is
//! recorded.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::Result;
use crate::blas::{GroupOperands, GroupedProducts, Groups, Operands, Products, Shape};
use crate::driver::{Driver, Function, Graph, Rows, Stream};
use crate::kernels::Launch;
use crate::sdpa::{Attend, Call, Case};

/// Least number of operations worth a graph.
const LEAST: usize = 4;
/// Most graphs kept: each takes some of the driver's memory.
const MOST_GRAPHS: usize = 2048;
/// Most lists remembered, so that memory stays bounded for a program that never repeats itself.
const MOST_SEEN: usize = 1 << 16;

/// An operation of the compute stream. Most are launches, and the others are not worth an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Work {
    /// A kernel.
    Launch(Function, Launch),
    /// Sets memory to zero.
    Clear(Rows),
    /// A product by the library.
    Product(Arc<dyn Products>, Shape, Operands),
    /// Grouped products by the library.
    Groups(Arc<dyn GroupedProducts>, Groups, GroupOperands),
    /// Attention by the library.
    Attend(Arc<dyn Attend>, Box<Attended>),
}

/// A call of attention.
pub struct Attended {
    /// The case.
    pub case: Case,
    /// True for the gradient.
    pub backward: bool,
    /// Address of every tensor in memory, by number.
    pub tensors: Vec<(i64, u64)>,
    /// Address and bytes of the engine's scratch.
    pub workspace: [u64; 2],
    /// Scale of the scores.
    pub scale: f32,
    /// Reach of the window, if the case has one.
    pub window: usize,
}

impl Work {
    /// Issues the operation.
    ///
    /// # Safety
    /// Its memory lives until the stream has executed it.
    pub unsafe fn perform(&self, driver: &dyn Driver, stream: Stream) -> Result<()> {
        // Libraries use the thread's current device.
        driver.enter()?;
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Work::Launch(function, launch) => driver.launch(*function, launch, stream),
                Work::Clear(rows) => driver.clear(*rows, stream),
                Work::Product(products, shape, operands) => products.product(shape, operands, stream),
                Work::Groups(library, groups, operands) => library.product(groups, operands, stream),
                Work::Attend(library, call) => {
                    let Attended { case, backward, tensors, workspace, scale, window } = &**call;
                    let [workspace, workspace_bytes] = *workspace;
                    let (scale, window) = (*scale, *window);
                    let call = Call { tensors, workspace, workspace_bytes, scale, window };
                    library.attend(case, *backward, &call, stream)
                }
            }
        }
    }

    fn feed(&self, hasher: &mut impl Hasher) {
        match self {
            Work::Launch(function, launch) => (0, function, launch.grid, launch.args.words()).hash(hasher),
            Work::Clear(rows) => (1, rows).hash(hasher),
            Work::Product(_, shape, operands) => (2, shape, operands).hash(hasher),
            Work::Groups(_, groups, operands) => (4, groups, operands).hash(hasher),
            Work::Attend(_, call) => {
                let Attended { case, backward, tensors, workspace, scale, window } = &**call;
                (3, case, backward, tensors, workspace, scale.to_bits(), window).hash(hasher);
            }
        }
    }
}

/// State of a list of operations, keyed by a 128-bit hash.
enum Known {
    Once,
    Captured(Graph),
    /// The driver refused to capture the list.
    Refused,
}

/// Counts of blocks' operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations issued one by one.
    pub single: u64,
    /// Graphs made.
    pub captured: u64,
    /// Graphs replayed, and the operations in them.
    pub replayed: [u64; 2],
    /// Captures that the driver refused, and its last message.
    pub refused: (u64, Option<String>),
    /// Number of cuts by reason.
    pub cuts: BTreeMap<&'static str, u64>,
}

/// Collects the operations of blocks.
#[derive(Default)]
pub struct Blocks {
    /// True if graphs are enabled.
    pub on: bool,
    inside: bool,
    list: Vec<Work>,
    known: HashMap<[u64; 2], Known>,
    graphs: usize,
    counts: Counts,
}

impl Blocks {
    /// Counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Starts a block.
    pub fn enter(&mut self) {
        self.inside = self.on;
    }

    /// Collects an operation, or issues it.
    ///
    /// # Safety
    /// Its memory lives until the stream has executed it; any other use of the stream is preceded by [`Blocks::cut`].
    pub unsafe fn issue(&mut self, work: Work, driver: &dyn Driver, stream: Stream) -> Result<()> {
        if self.inside {
            self.list.push(work);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { work.perform(driver, stream) }
    }

    /// Issues the collected operations; `why` is the reason that the stream is needed, `None` at a block's end.
    pub fn cut(&mut self, why: Option<&'static str>, driver: &dyn Driver, stream: Stream) -> Result<()> {
        if let (true, Some(why)) = (self.inside && !self.list.is_empty(), why) {
            *self.counts.cuts.entry(why).or_default() += 1;
        }
        if why.is_none() {
            self.inside = false;
        }
        let list = std::mem::take(&mut self.list);
        if list.len() < LEAST {
            return self.one_by_one(&list, driver, stream);
        }
        let key = [0u8, 1].map(|seed| {
            let mut hasher = DefaultHasher::new();
            (seed, list.len()).hash(&mut hasher);
            list.iter().for_each(|work| work.feed(&mut hasher));
            hasher.finish()
        });
        match self.known.get(&key) {
            Some(Known::Captured(graph)) => {
                self.counts.replayed[0] += 1;
                self.counts.replayed[1] += list.len() as u64;
                // SAFETY: the promise made for each of its operations.
                unsafe { driver.replay(*graph, stream) }
            }
            Some(Known::Once) if self.graphs < MOST_GRAPHS => self.capture(key, &list, driver, stream),
            None if self.known.len() < MOST_SEEN => {
                self.known.insert(key, Known::Once);
                self.one_by_one(&list, driver, stream)
            }
            _ => self.one_by_one(&list, driver, stream),
        }
    }

    fn one_by_one(&mut self, list: &[Work], driver: &dyn Driver, stream: Stream) -> Result<()> {
        self.counts.single += list.len() as u64;
        // SAFETY: the promise made for each operation.
        list.iter().try_for_each(|work| unsafe { work.perform(driver, stream) })
    }

    /// Captures a list as a graph and runs it. A list that cannot be captured is issued one by one, now and later.
    fn capture(&mut self, key: [u64; 2], list: &[Work], driver: &dyn Driver, stream: Stream) -> Result<()> {
        driver.begin_capture(stream)?;
        // SAFETY: the promise made for each operation.
        let issued = list.iter().try_for_each(|work| unsafe { work.perform(driver, stream) });
        // A failed capture has to be ended too.
        let ended = driver.end_capture(stream);
        match (issued, ended) {
            (Ok(()), Ok(graph)) => {
                self.graphs += 1;
                self.counts.captured += 1;
                self.known.insert(key, Known::Captured(graph));
                // SAFETY: as above.
                unsafe { driver.replay(graph, stream) }
            }
            (issued, ended) => {
                let error = match (issued, ended) {
                    (Err(error), Ok(graph)) => {
                        driver.end_graph(graph)?;
                        error
                    }
                    (Err(error), _) | (_, Err(error)) => error,
                    (Ok(()), Ok(_)) => return Ok(()),
                };
                self.counts.refused.0 += 1;
                self.counts.refused.1 = Some(error.to_string());
                self.known.insert(key, Known::Refused);
                self.one_by_one(list, driver, stream)
            }
        }
    }

    /// Discards everything, including collected operations, which are not issued.
    pub fn clear(&mut self, driver: &dyn Driver) {
        self.list.clear();
        self.inside = false;
        for known in self.known.drain() {
            if let (_, Known::Captured(graph)) = known {
                // The driver frees the rest when the process ends.
                let _ = driver.end_graph(graph);
            }
        }
        self.graphs = 0;
    }
}
