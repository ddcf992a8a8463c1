//! A device as a [`Machine`]: products by cuBLASLt, attention by cuDNN, and everything else, including what those
//! refuse, by kernels.
//!
//! All work of a rank is issued to one stream in program order, so memory that the pool reassigns is written after its
//! last use. Calls return before their work is done; results are read by the host later.
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

/// Limit on reported lines: there may be as many shapes as micro-batches.
const MOST_LINES: usize = 256;

/// One device as used by one rank.
pub struct Cuda {
    profile: Profile,
    streams: Arc<Streams>,
    reads: Arc<Reads>,
    writes: Writes,
    programs: Programs,
    /// Library for products; `None` if kernels compute them.
    products: Option<Arc<dyn Products>>,
    /// Library for grouped products, or the reason that kernels compute them; the reason is empty if there is nothing
    /// to report.
    grouped: std::result::Result<Arc<dyn GroupedProducts>, String>,
    /// Library for attention; `None` if kernels compute it.
    attend: Option<Arc<dyn Attend>>,
    /// Address of [`crate::kernels::SCRATCH_BYTES`] for sums in chunks.
    scratch: u64,
    stamps: Stamps,
    taken: taken::Taken,
    /// Lines already reported.
    said: Mutex<BTreeSet<String>>,
}

impl Cuda {
    /// The device's driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.streams.driver
    }

    /// The compute stream, with all called operations issued.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn compute(&self) -> Result<Stream> {
        self.streams.compute("somebody asks for the stream")
    }

    /// Enables or disables graphs: a block's operations are captured and replayed when it recurs.
    pub fn with_graphs(self, on: bool) -> Cuda {
        self.streams.capture(on);
        self
    }

    /// Sets the host memory in the profile.
    pub fn with_host(mut self, bytes: u64) -> Cuda {
        self.profile.host_bytes = Some(bytes);
        self
    }

    /// Counts of captured and replayed blocks.
    pub fn graphs(&self) -> Graphs {
        self.streams.counts()
    }

    /// Numbers in [0, 1), each a function of the seed and its index: operands for measurements.
    #[track_caller]
    pub fn random(&self, out: &fathom_tensor::Tensor, seed: u64) {
        self.run(&crate::kernels::random_uniform(out, seed, 0));
    }

    /// Device bytes behind pools: for each pool, the most it has ever reserved, in the driver's steps.
    pub fn backed_bytes(&self) -> u64 {
        self.streams.backed.load(Ordering::Relaxed)
    }

    /// Counts of products by implementation, and of attention with its gradients.
    pub fn calls(&self) -> [Calls; 2] {
        self.taken.calls()
    }

    /// Counts of narrow products: by matrix units or, as kernels, by rounding the operands.
    pub fn narrow_calls(&self) -> Calls {
        self.taken.narrow_calls()
    }

    /// Counts of products by expert.
    pub fn grouped_calls(&self) -> Calls {
        self.taken.grouped_calls()
    }

    /// True if a library is used for products by expert.
    pub fn has_groups(&self) -> bool {
        self.grouped.is_ok()
    }

    /// Reasons for which cuBLASLt and matrix units refused operations so far, one per line.
    pub fn refusals(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Reports a line once.
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

    /// The streams, for links.
    pub(crate) fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    fn scratch(&self) -> Scratch {
        Scratch(self.scratch)
    }

    /// # Panics
    /// With the operation's name if the device has failed, as no later result can be right.
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
            // SAFETY: launches are made of tensors that live, by functions that check their shapes; storage is
            // reassigned only in the order of this stream.
            unsafe { self.streams.issue(Work::Launch(function, *launch)) }
        };
        self.must(launch.entry.name, issue());
    }

    /// Calls a library with the device current on this thread.
    fn within<T>(&self, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        self.streams.driver.enter().and_then(|()| ask())
    }

    /// Issues launches in order.
    #[track_caller]
    fn run_all(&self, launches: &[Launch]) {
        launches.iter().for_each(|launch| self.run(launch));
    }

    /// Issues a product if the library supports it.
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
        // A device that has failed releases its memory when the process ends.
        let _ = self.streams.synchronise().and_then(|()| driver.free(self.scratch));
    }
}
