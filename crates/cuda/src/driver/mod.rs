//! What the machine asks of CUDA's driver, as a trait: a device behind it, or, in tests, memory of the host and a list of
//! the calls that were made.
//!
//! Handles are plain numbers. Whoever made one ends it; nothing here counts.
#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod fake;
mod real;

pub use real::Real;

use crate::Result;
use crate::kernels::Launch;

/// A queue of work; what is in one runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

/// A point in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// A loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Module(pub u64);

/// One kernel of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(pub u64);

/// Operations that were captured, to be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Graph(pub u64);

/// What backs a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing(pub u64);

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// As the driver calls it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// All of its memory.
    pub memory_bytes: u64,
    /// CUDA's version that the driver is of, as 1000 x major + 10 x minor.
    pub driver: u32,
    /// Addresses can be reserved without memory behind them.
    pub virtual_memory: bool,
    /// Where it is plugged in: PCI domain, bus and device, which all processes of a machine have for it.
    pub pci: [u32; 3],
}

impl Facts {
    /// The chip, as NVRTC names it. From 9.0 on with the letter that allows what only this chip has.
    pub fn arch(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }
}

/// Some rows of bytes, on the device or on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The first byte.
    pub address: u64,
    /// How many.
    pub rows: usize,
    /// Bytes of one.
    pub row_bytes: usize,
    /// From one to the next.
    pub stride_bytes: usize,
}

impl Rows {
    /// Bytes without gaps.
    pub fn flat(address: u64, bytes: usize) -> Rows {
        Rows { address, rows: 1, row_bytes: bytes, stride_bytes: bytes }
    }

    /// The elements of a tensor at `address`.
    pub fn of(tensor: &fathom_tensor::Tensor, address: u64) -> Rows {
        let size = tensor.dtype().bytes();
        let (rows, row_bytes, stride_bytes) = (tensor.rows(), tensor.cols() * size, tensor.stride() * size);
        Rows { address, rows, row_bytes, stride_bytes }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes
    }

    /// As many rows at another address, without gaps between them.
    pub fn packed_at(&self, address: u64) -> Rows {
        Rows { address, stride_bytes: self.row_bytes, ..*self }
    }

    /// Rows follow each other without gaps.
    pub fn is_flat(&self) -> bool {
        self.rows <= 1 || self.row_bytes == self.stride_bytes
    }
}

/// Which way bytes go.
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
/// An implementation copies, clears and maps exactly what it is asked for, and gives memory that is there until it is
/// given back.
pub unsafe trait Driver: Send + Sync {
    /// What the device is.
    fn facts(&self) -> &Facts;
    /// Drivers of one number have the same memory at the same addresses.
    fn space(&self) -> u64;
    /// Makes the device that of this thread, for libraries that ask the thread.
    fn enter(&self) -> Result<()>;
    /// Free bytes and all bytes of the device.
    fn memory(&self) -> Result<(u64, u64)>;

    /// Memory behind a range comes in multiples of this.
    fn chunk_bytes(&self) -> u64;
    /// Addresses without memory behind them.
    fn reserve(&self, bytes: u64) -> Result<u64>;
    /// Gives addresses back.
    fn release(&self, address: u64, bytes: u64) -> Result<()>;
    /// Memory behind addresses of a reserved range.
    fn back(&self, address: u64, bytes: u64) -> Result<Backing>;
    /// Takes the memory from behind them.
    fn unback(&self, address: u64, bytes: u64, backing: Backing) -> Result<()>;
    /// Addresses with memory behind all of them, where ranges cannot be reserved.
    fn allocate(&self, bytes: u64) -> Result<u64>;
    /// Gives them back.
    fn free(&self, address: u64) -> Result<()>;
    /// Memory of the host that copies go from and to without a stop.
    fn pin(&self, bytes: usize) -> Result<u64>;
    /// Gives it back.
    fn unpin(&self, address: u64) -> Result<()>;

    /// A new stream.
    fn stream(&self) -> Result<Stream>;
    /// Ends it, once its work is done.
    fn end_stream(&self, stream: Stream) -> Result<()>;
    /// The host waits for all of a stream's work.
    fn synchronise(&self, stream: Stream) -> Result<()>;
    /// A new event; with `timed`, one whose moment can be asked for.
    fn event(&self, timed: bool) -> Result<Event>;
    /// Ends it.
    fn end_event(&self, event: Event) -> Result<()>;
    /// The event is where the stream's work so far ends.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;
    /// Later work of the stream begins after the event.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;
    /// The host waits for the event.
    fn join(&self, event: Event) -> Result<()>;
    /// Whether the event is over, without waiting.
    fn is_over(&self, event: Event) -> Result<bool>;
    /// Seconds from one timed event to another that is over.
    fn seconds(&self, from: Event, to: Event) -> Result<f64>;

    /// Copies rows; both sides have as many of as many bytes. It may return before it has read or written memory of the host,
    /// pinned or not.
    ///
    /// # Safety
    /// Both sides live until the copy is over, and nothing else uses what is written.
    unsafe fn copy(&self, way: Way, from: Rows, to: Rows, stream: Stream) -> Result<()>;
    /// All bytes zero.
    ///
    /// # Safety
    /// As in [`Driver::copy`].
    unsafe fn clear(&self, rows: Rows, stream: Stream) -> Result<()>;

    /// Loads machine code for the chip.
    fn load(&self, cubin: &[u8]) -> Result<Module>;
    /// Takes the memory from behind them.
    fn unload(&self, module: Module) -> Result<()>;
    /// A kernel by name.
    fn function(&self, module: Module, name: &str) -> Result<Function>;
    /// Allows a kernel this much dynamic shared memory; beyond 48 KiB it has to be asked for.
    fn allow_shared(&self, function: Function, bytes: u32) -> Result<()>;
    /// Runs a kernel.
    ///
    /// # Safety
    /// The launch is of this function, and what its arguments point to lives until it has run.
    unsafe fn launch(&self, function: Function, launch: &Launch, stream: Stream) -> Result<()>;

    /// What is issued to the stream from here on is not run but remembered.
    fn begin_capture(&self, stream: Stream) -> Result<()>;
    /// Whether it is so.
    fn is_capturing(&self, stream: Stream) -> Result<bool>;
    /// Ends that; what was remembered.
    fn end_capture(&self, stream: Stream) -> Result<Graph>;
    /// Runs what was remembered.
    ///
    /// # Safety
    /// As for each of its operations.
    unsafe fn replay(&self, graph: Graph, stream: Stream) -> Result<()>;
    /// Forgets it.
    fn end_graph(&self, graph: Graph) -> Result<()>;
}
