//! The machine's interface to CUDA's driver, as a trait: implemented by a device or, in tests, by host memory and a
//! list of the calls made.
//!
//! Handles are plain numbers. Their creator destroys them; nothing is reference-counted here.
#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod fake;
mod real;

pub use real::Real;

use crate::Result;
use crate::kernels::Launch;

/// A queue of work that runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

/// A point in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// A loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Module(pub u64);

/// A kernel of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(pub u64);

/// Captured operations that can be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Graph(pub u64);

/// Memory behind a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing(pub u64);

/// Description of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Name reported by the driver.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Total memory.
    pub memory_bytes: u64,
    /// CUDA version of the driver, as 1000 x major + 10 x minor.
    pub driver: u32,
    /// True if addresses can be reserved without memory behind them.
    pub virtual_memory: bool,
    /// PCI domain, bus and device, the same in all processes of a machine.
    pub pci: [u32; 3],
}

impl Facts {
    /// The chip's name for NVRTC. From 9.0 on with the suffix that allows chip-specific features.
    pub fn arch(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }
}

/// Rows of bytes, on the device or on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Address of the first byte.
    pub address: u64,
    /// Number of rows.
    pub rows: usize,
    /// Bytes per row.
    pub row_bytes: usize,
    /// Bytes from one row to the next.
    pub stride_bytes: usize,
}

impl Rows {
    /// Contiguous bytes.
    pub fn flat(address: u64, bytes: usize) -> Rows {
        Rows { address, rows: 1, row_bytes: bytes, stride_bytes: bytes }
    }

    /// The elements of a tensor at `address`.
    pub fn of(tensor: &fathom_tensor::Tensor, address: u64) -> Rows {
        let size = tensor.dtype().bytes();
        let (rows, row_bytes, stride_bytes) = (tensor.rows(), tensor.cols() * size, tensor.stride() * size);
        Rows { address, rows, row_bytes, stride_bytes }
    }

    /// Total bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes
    }

    /// The same number of rows at another address, without gaps.
    pub fn packed_at(&self, address: u64) -> Rows {
        Rows { address, stride_bytes: self.row_bytes, ..*self }
    }

    /// True if rows follow each other without gaps.
    pub fn is_flat(&self) -> bool {
        self.rows <= 1 || self.row_bytes == self.stride_bytes
    }
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Host to device.
    Up,
    /// Device to host.
    Down,
    /// Device to device.
    Across,
}

/// The driver's calls. Every call may come from any thread.
///
/// # Safety
/// An implementation copies, clears and maps exactly what it is asked to, and memory that it returns stays valid until
/// it is released.
pub unsafe trait Driver: Send + Sync {
    /// Description of the device.
    fn facts(&self) -> &Facts;
    /// Identifies the address space: drivers with one number have the same memory at the same addresses.
    fn space(&self) -> u64;
    /// Makes the device current on this thread, for libraries that use the current device.
    fn enter(&self) -> Result<()>;
    /// Free and total bytes of the device.
    fn memory(&self) -> Result<(u64, u64)>;

    /// Granularity of memory behind a range.
    fn chunk_bytes(&self) -> u64;
    /// Reserves addresses without memory behind them.
    fn reserve(&self, bytes: u64) -> Result<u64>;
    /// Releases reserved addresses.
    fn release(&self, address: u64, bytes: u64) -> Result<()>;
    /// Backs addresses of a reserved range with memory.
    fn back(&self, address: u64, bytes: u64) -> Result<Backing>;
    /// Removes and frees the memory behind addresses.
    fn unback(&self, address: u64, bytes: u64, backing: Backing) -> Result<()>;
    /// Allocates memory, if ranges cannot be reserved.
    fn allocate(&self, bytes: u64) -> Result<u64>;
    /// Frees allocated memory.
    fn free(&self, address: u64) -> Result<()>;
    /// Allocates pinned host memory, which copies use directly.
    fn pin(&self, bytes: usize) -> Result<u64>;
    /// Frees pinned memory.
    fn unpin(&self, address: u64) -> Result<()>;

    /// Creates a stream.
    fn stream(&self) -> Result<Stream>;
    /// Destroys a stream, once its work is done.
    fn end_stream(&self, stream: Stream) -> Result<()>;
    /// Waits on the host for all of a stream's work.
    fn synchronise(&self, stream: Stream) -> Result<()>;
    /// Creates an event; with `timed`, one that records a timestamp.
    fn event(&self, timed: bool) -> Result<Event>;
    /// Destroys an event.
    fn end_event(&self, event: Event) -> Result<()>;
    /// Records the event after the stream's work so far.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;
    /// Makes later work of the stream wait for the event.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;
    /// Waits on the host for the event.
    fn join(&self, event: Event) -> Result<()>;
    /// True if the event has completed, without waiting.
    fn is_over(&self, event: Event) -> Result<bool>;
    /// Seconds from one timed event to another; both have completed.
    fn seconds(&self, from: Event, to: Event) -> Result<f64>;

    /// Copies rows; both sides have the same number of rows and bytes per row. May return before host memory, pinned or
    /// not, has been read or written.
    ///
    /// # Safety
    /// Both sides live until the copy has completed, and nothing else uses the destination.
    unsafe fn copy(&self, way: Way, from: Rows, to: Rows, stream: Stream) -> Result<()>;
    /// Sets all bytes to zero.
    ///
    /// # Safety
    /// See [`Driver::copy`].
    unsafe fn clear(&self, rows: Rows, stream: Stream) -> Result<()>;

    /// Loads machine code for the chip.
    fn load(&self, cubin: &[u8]) -> Result<Module>;
    /// Unloads a module.
    fn unload(&self, module: Module) -> Result<()>;
    /// Looks up a kernel by name.
    fn function(&self, module: Module, name: &str) -> Result<Function>;
    /// Allows a kernel this much dynamic shared memory; required beyond 48 KiB.
    fn allow_shared(&self, function: Function, bytes: u32) -> Result<()>;
    /// Runs a kernel.
    ///
    /// # Safety
    /// The launch fits this function, and everything its arguments point to lives until it has run.
    unsafe fn launch(&self, function: Function, launch: &Launch, stream: Stream) -> Result<()>;

    /// Starts capturing: work issued to the stream is recorded instead of run.
    fn begin_capture(&self, stream: Stream) -> Result<()>;
    /// True during a capture of the stream.
    fn is_capturing(&self, stream: Stream) -> Result<bool>;
    /// Ends the capture and returns the captured graph.
    fn end_capture(&self, stream: Stream) -> Result<Graph>;
    /// Runs a captured graph.
    ///
    /// # Safety
    /// Those of each captured operation.
    unsafe fn replay(&self, graph: Graph, stream: Stream) -> Result<()>;
    /// Destroys a graph.
    fn end_graph(&self, graph: Graph) -> Result<()>;
}
