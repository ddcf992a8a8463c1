//! A device as a [`Machine`]: products by cuBLASLt, attention by cuDNN, everything else, and what those refuse, by kernels.
//!
//! All work of a rank goes to one stream in the order of its calls, so memory that the pool gives to another tensor is
//! written after its last use. Calls return before their work is done; what the host wants to know it reads late.
#![allow(unsafe_code)]

mod attention;
#[cfg(test)]
mod blocks_tests;
mod build;
mod contract;
mod grouped;
#[cfg(test)]
mod grouped_tests;
mod narrow;
#[cfg(test)]
mod narrow_tests;
#[cfg(test)]
mod ranks_tests;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use fathom_tensor::Profile;

use crate::Result;
use crate::blas::{GroupedProducts, Operands, Products, Shape};
use crate::driver::{Driver, Stream};
use crate::kernels::{Launch, Scratch};
use crate::memory::{Reads, Stamps, Streams, Work, Writes};
use crate::operand::{input, output};
use crate::programs::Programs;
use crate::sdpa::Attend;

pub use crate::memory::Counts as Graphs;
#[cfg(test)]
pub(crate) use build::MachineLibraries;
pub use build::profile;
pub use taken::Calls;

/// Lines that are said: shapes may be as many as there are micro batches.
const MOST_LINES: usize = 256;

/// One device, as one rank uses it.
pub struct Cuda {
    profile: Profile,
    streams: Arc<Streams>,
    reads: Arc<Reads>,
    writes: Writes,
    programs: Programs,
    /// What computes products, if anything but kernels does.
    products: Option<Arc<dyn Products>>,
    /// What multiplies groups, or why nothing but kernels does; without words where nothing is to be said.
    grouped: std::result::Result<Arc<dyn GroupedProducts>, String>,
    /// What attends, if anything but kernels does.
    attend: Option<Arc<dyn Attend>>,
    /// Of [`crate::kernels::SCRATCH_BYTES`], for sums in chunks.
    scratch: u64,
    stamps: Stamps,
    taken: taken::Taken,
    /// Lines that were said.
    said: Mutex<BTreeSet<String>>,
}

impl Cuda {
    /// What the device is.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.streams.driver
    }

    /// Where its operations run; all that were called are issued.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn compute(&self) -> Result<Stream> {
        self.streams.compute("somebody asks for the stream")
    }

    /// The same machine; with `on`, what a block issues is captured as a graph and replayed where it comes again.
    pub fn with_graphs(self, on: bool) -> Cuda {
        self.streams.capture(on);
        self
    }

    /// The same machine with this much memory of the host.
    pub fn with_host(mut self, bytes: u64) -> Cuda {
        self.profile.host_bytes = Some(bytes);
        self
    }

    /// What became of blocks so far.
    pub fn graphs(&self) -> Graphs {
        self.streams.counts()
    }

    /// Numbers in [0, 1), each a function of the seed and its place: operands of measurements.
    #[track_caller]
    pub fn random(&self, out: &fathom_tensor::Tensor, seed: u64) {
        self.run(&crate::kernels::random_uniform(out, seed, 0));
    }

    /// Bytes of the device behind pools; of a pool as many as it has ever reserved, in the driver's steps.
    pub fn backed_bytes(&self) -> u64 {
        self.streams.backed.load(Ordering::Relaxed)
    }

    /// Who did the products so far, and who attention with its gradients.
    pub fn calls(&self) -> [Calls; 2] {
        self.taken.calls()
    }

    /// Who did products of narrow operands so far: units for such, or (as kernels) products of rounded operands.
    pub fn narrow_calls(&self) -> Calls {
        self.taken.narrow_calls()
    }

    /// Who did products by expert so far.
    pub fn grouped_calls(&self) -> Calls {
        self.taken.grouped_calls()
    }

    /// Whether a library is asked for products by expert.
    pub fn has_groups(&self) -> bool {
        self.grouped.is_ok()
    }

    /// What cuBLASLt and its units refused so far, a line each.
    pub fn refusals(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// A line for whoever watches, once.
    fn say_once(&self, line: String) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if line.is_empty() || said.len() >= MOST_LINES || said.contains(&line) {
            return;
        }
        log::warn!("{line}");
        said.insert(line);
    }

    /// Waits until all work issued so far is done.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn synchronise(&self) -> Result<()> {
        self.streams.synchronise()
    }

    /// Its streams, for links.
    pub(crate) fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    fn scratch(&self) -> Scratch {
        Scratch(self.scratch)
    }

    /// # Panics
    /// With the operation's name, if the device has failed: nothing later can be right.
    #[track_caller]
    fn must<T>(&self, op: &str, result: Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("{op}: {error}"))
    }

    /// Issues a launch.
    #[track_caller]
    fn run(&self, launch: &Launch) {
        if launch.is_empty() {
            return;
        }
        let issue = || {
            let function = self.programs.function(launch.entry)?;
            // SAFETY: launches are made of tensors that live, by functions that check their shapes; storage is given to
            // others only in the order of this stream.
            unsafe { self.streams.issue(Work::Launch(function, *launch)) }
        };
        self.must(launch.entry.name, issue());
    }

    /// Asks a library, which answers for the device that is current on this thread.
    fn within<T>(&self, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        self.streams.driver.enter().and_then(|()| ask())
    }

    /// Issues launches, one after the other.
    #[track_caller]
    fn run_all(&self, launches: &[Launch]) {
        launches.iter().for_each(|launch| self.run(launch));
    }

    /// Issues a product if the library has one for it.
    #[track_caller]
    fn product(&self, op: &fathom_tensor::MatMul<'_>, ws: &fathom_tensor::Tensor) -> bool {
        let (m, n, k) = op.sizes();
        let (Some(products), Some(shape)) = (&self.products, Shape::of(op)) else { return false };
        if m * n * k == 0 {
            return false;
        }
        let operands = Operands {
            a: input(op.a),
            b: input(op.b),
            c: output(op.c),
            scales: [0; 2],
            accumulate: op.accumulate,
            workspace: output(ws),
            workspace_bytes: ws.bytes(),
        };
        if !self.must("matmul", self.within(|| products.takes(&shape, &operands))) {
            self.say_once(format!(
                "cuBLASLt has no product for {shape:?} with {} bytes of scratch; a kernel of our own computes it",
                operands.workspace_bytes
            ));
            return false;
        }
        // SAFETY: the shape is that of the operands, whose tensors live; see `run` for their storage.
        self.must("matmul", unsafe { self.streams.issue(Work::Product(products.clone(), shape, operands)) });
        true
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let driver = &self.streams.driver;
        // A device that has failed gives its memory back when the process ends.
        let _ = self.streams.synchronise().and_then(|()| driver.free(self.scratch));
    }
}
