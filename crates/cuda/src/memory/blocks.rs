//! The work of a block as one graph: what is issued between the ends of a block is collected, and where the same work came
//! before, to the last address, the driver is called once instead of for each operation.
//!
//! The same work means the same operations with the same arguments. Memory is given out in the order of the program, so a
//! step repeats its predecessor's addresses, and nothing has to be changed in a graph. What comes the first time is issued
//! one by one, which also has libraries make their plans; what comes again is captured; what comes after that is replayed.
//!
//! What touches the stream in another way cannot be part of a graph and cuts it ([`Blocks::cuts`] counts why): the host writes
//! or reads (also the lists of packed documents), a transfer or another rank needs a point to wait for, a time is taken.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::Result;
use crate::blas::{GroupOperands, GroupedProducts, Groups, Operands, Products, Shape};
use crate::driver::{Driver, Function, Graph, Rows, Stream};
use crate::kernels::Launch;
use crate::sdpa::{Attend, Call, Case};

/// Fewer operations than this are not worth a graph.
const LEAST: usize = 4;
/// Graphs that are kept: each is some memory of the driver's.
const MOST_GRAPHS: usize = 2048;
/// Lists of operations that are remembered, so that a program that never repeats itself does not grow.
const MOST_SEEN: usize = 1 << 16;

/// One operation of the compute stream. Most are launches, and those that are not collected are not worth an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Work {
    /// A kernel.
    Launch(Function, Launch),
    /// Zeros.
    Clear(Rows),
    /// A product that the library takes.
    Product(Arc<dyn Products>, Shape, Operands),
    /// Products of groups that the library takes.
    Groups(Arc<dyn GroupedProducts>, Groups, GroupOperands),
    /// Attention that the library takes.
    Attend(Arc<dyn Attend>, Box<Attended>),
}

/// A call of attention.
pub struct Attended {
    /// The case.
    pub case: Case,
    /// Its gradient.
    pub backward: bool,
    /// Every tensor in memory, by number.
    pub tensors: Vec<(i64, u64)>,
    /// Scratch for the engine, and its bytes.
    pub workspace: [u64; 2],
    /// Multiplies the scores.
    pub scale: f32,
    /// What its window reaches, where it has one.
    pub window: usize,
}

impl Work {
    /// Issues it.
    ///
    /// # Safety
    /// What it uses lives until the stream has passed.
    pub unsafe fn perform(&self, driver: &dyn Driver, stream: Stream) -> Result<()> {
        // Libraries ask the thread for its device.
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

/// What is known of a list of operations, by 128 bits of it.
enum Known {
    Once,
    Captured(Graph),
    /// The driver refused to capture it.
    Refused,
}

/// What became of blocks so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations issued one by one.
    pub single: u64,
    /// Graphs made.
    pub captured: u64,
    /// Graphs replayed, and the operations in them.
    pub replayed: [u64; 2],
    /// Captures that the driver refused, and its words for the last.
    pub refused: (u64, Option<String>),
    /// Why a block was cut, and how often.
    pub cuts: BTreeMap<&'static str, u64>,
}

/// The collector.
#[derive(Default)]
pub struct Blocks {
    /// Graphs are wanted.
    pub on: bool,
    inside: bool,
    list: Vec<Work>,
    known: HashMap<[u64; 2], Known>,
    graphs: usize,
    counts: Counts,
}

impl Blocks {
    /// What became of blocks so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// A block begins.
    pub fn enter(&mut self) {
        self.inside = self.on;
    }

    /// Collects an operation, or issues it.
    ///
    /// # Safety
    /// What it uses lives until the stream has passed; whoever uses the stream in another way comes by [`Blocks::cut`].
    pub unsafe fn issue(&mut self, work: Work, driver: &dyn Driver, stream: Stream) -> Result<()> {
        if self.inside {
            self.list.push(work);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { work.perform(driver, stream) }
    }

    /// Issues what was collected; `why` somebody needs the stream, none at a block's end.
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
        // SAFETY: the promise made for each.
        list.iter().try_for_each(|work| unsafe { work.perform(driver, stream) })
    }

    /// Makes a graph of a list and runs it. What cannot be captured is issued one by one, now and later.
    fn capture(&mut self, key: [u64; 2], list: &[Work], driver: &dyn Driver, stream: Stream) -> Result<()> {
        driver.begin_capture(stream)?;
        // SAFETY: the promise made for each.
        let issued = list.iter().try_for_each(|work| unsafe { work.perform(driver, stream) });
        // A capture that went wrong has to be ended too.
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

    /// Forgets everything: what was collected is not issued.
    pub fn clear(&mut self, driver: &dyn Driver) {
        self.list.clear();
        self.inside = false;
        for known in self.known.drain() {
            if let (_, Known::Captured(graph)) = known {
                // The driver gives back what is left when the process ends.
                let _ = driver.end_graph(graph);
            }
        }
        self.graphs = 0;
    }
}
