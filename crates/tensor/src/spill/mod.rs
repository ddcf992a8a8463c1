//! Disk behind memory: one unnamed file per rank that tensors are written to behind the forward pass and read from
//! ahead of the backward pass.
//!
//! ```text
//! Tensor --write--> Writing --retire--> Stored --read(into)--> Reading --retire--> Tensor
//!                                       Stored --rewrite(tensor)--> Writing
//! ```
//!
//! - **A value in flight cannot be touched.** [`Spill::write`] takes the tensor by value. Its charge stays in the pool,
//!   and using a clone or view of the same elements panics, until [`FileWrite::retire`]: a fixed point of the program
//!   that waits, however early the transfer ended. So issue a write after the value's last use.
//! - **Memory is stated before the first step.** Workers use [`Options::staging`] buffers, charged once to
//!   [`Category::StagingBuffers`](crate::Category::StagingBuffers). A slow disk means waiting ([`Stats::stall_s`]), never more memory.
//! - **The plan is the program.** On a machine without data the same calls make the same charges, extents, counts and
//!   refusals, and no file: [`Stats::peak_reserved_bytes`] is the capacity that a run will need.
//! - **One clean error.** A failure in a worker is returned at the next retire point or call with file, offset, bytes
//!   and remedy, and every later call returns the same. Nothing hangs, no thread panics.
//! - **Nothing is left behind.** The file has no name from its first moment, so a killed process leaves no trace; its
//!   disk is allocated when it is opened, so a step cannot meet a full disk on file systems that can promise that.
//!
//! Contiguous rows at page-aligned addresses go from and to the tensor itself with direct IO. Everything else (strided
//! views, the rest of a last page, encoded values, memory that the host cannot reach) goes through the staging buffers.
//!
//! A machine supplies [`Copies`] ([`Machine::copies`](crate::Machine::copies)); the engine knows nothing else of it.
mod chaos;
mod copies;
mod engine;
mod error;
mod file;
mod flight;
mod fp8;
mod layout;
mod memory;
mod options;
mod reader;
mod space;
mod stats;
mod tag;
#[cfg(test)]
mod tests;
mod worker;

use std::ops::Range;
use std::rc::Rc;

pub use chaos::Chaos;
pub(crate) use chaos::mix;
pub use copies::{Copies, HostBuffer, HostMemory, Region};
pub use error::{Error, Result};
pub use file::{Access, free_bytes};
pub use flight::{FileRead, FileValue, FileWrite};
pub use fp8::{VALUES as E4M3, encode_one as encode_e4m3};
pub use layout::Codec;
pub use options::Options;
pub use space::PAGE;
pub use stats::{Kind, Span, Stats};
pub use tag::Tag;

use crate::loan::LoanedTensor;
use crate::{DType, Device, Tensor, Way};
use engine::Engine;
use flight::Flight;
use layout::Layout;
use space::Extent;
use worker::{Transfer, WorkerContext};

/// The spill engine of one rank. Cheap to clone; not `Send`: charges, extents and counts belong to the thread that
/// issues work.
#[derive(Clone)]
pub struct Spill(Rc<Engine>);

impl Spill {
    /// Opens a file in the options' folder, charges the staging buffers to the device's pool and starts the workers. On
    /// a machine without data only the charges are made. The host must be able to reach staging memory: a machine with
    /// its own memory supplies it ([`Copies::staging`]).
    ///
    /// # Errors
    /// Invalid options, a machine without host copies, a folder that cannot hold a file of this size.
    pub fn open(device: &Device, options: &Options) -> Result<Spill> {
        Ok(Spill(Rc::new(Engine::start(device, options)?)))
    }

    /// Starts writing a tensor, or a view of some rows or columns of one.
    ///
    /// # Errors
    /// The engine's first failure, or a file without room; the tensor is released.
    ///
    /// # Panics
    /// If the codec does not support its type, or if it is already in flight.
    #[track_caller]
    pub fn write(&self, tensor: Tensor, codec: Codec, tag: Tag) -> Result<FileWrite> {
        self.check()?;
        let layout = Layout::of(codec, &tensor, self.0.piece_bytes);
        let bytes = layout.extent_bytes();
        let extent = Extent::new(&self.0.space, bytes).ok_or_else(|| self.full(bytes, tag))?;
        let rows = 0..layout.rows;
        let mut stats = self.0.stats.get();
        stats.written_bytes += layout.moved_bytes(&rows);
        stats.num_writes += 1;
        self.0.stats.set(stats);
        Ok(FileWrite(self.fly(Kind::Write, tensor, FileValue { extent: Rc::new(extent), layout, tag }, rows)))
    }

    /// Reserves room for a value of rows x cols that is written later with [`Spill::rewrite`]; until then it is
    /// undefined.
    ///
    /// # Errors
    /// The engine's first failure, or a file without room.
    ///
    /// # Panics
    /// If the codec does not support the type.
    #[track_caller]
    pub fn reserve(
        &self,
        [rows, cols]: [usize; 2],
        dtype: DType,
        codec: Codec,
        tag: Tag,
    ) -> Result<FileValue> {
        self.check()?;
        let layout = Layout::new(codec, rows, cols, dtype, self.0.piece_bytes);
        let bytes = layout.extent_bytes();
        let extent = Extent::new(&self.0.space, bytes).ok_or_else(|| self.full(bytes, tag))?;
        Ok(FileValue { extent: Rc::new(extent), layout, tag })
    }

    /// Starts overwriting a value with a tensor of its shape and type: state that is read, changed and written back
    /// keeps its place in the file.
    ///
    /// # Errors
    /// The engine's first failure; the tensor is released.
    ///
    /// # Panics
    /// If the tensor has another shape or type or is already in flight, or if the value is being read or written.
    #[track_caller]
    pub fn rewrite(&self, stored: &FileValue, tensor: Tensor) -> Result<FileWrite> {
        let &FileValue { ref extent, layout, tag } = stored;
        let shape = [stored.rows(), stored.cols()];
        let fits = tensor.shape() == shape && tensor.dtype() == layout.dtype;
        assert!(fits, "spill rewrite: {tag}, {:?}{shape:?}, with {tensor:?}", layout.dtype);
        assert!(Rc::ptr_eq(extent.space(), &self.0.space), "spill rewrite: {tag} is stored in another file");
        self.check()?;
        let rows = 0..layout.rows;
        let mut stats = self.0.stats.get();
        stats.written_bytes += layout.moved_bytes(&rows);
        stats.num_writes += 1;
        self.0.stats.set(stats);
        Ok(FileWrite(self.fly(Kind::Write, tensor, FileValue { extent: extent.clone(), layout, tag }, rows)))
    }

    /// Starts reading a value into a tensor of its shape and type; strides may differ.
    ///
    /// # Errors
    /// The engine's first failure; the tensor is released.
    ///
    /// # Panics
    /// If the tensor has another shape or type, or is already in flight.
    #[track_caller]
    pub fn read(&self, stored: &FileValue, into: Tensor) -> Result<FileRead> {
        self.read_rows(stored, 0..stored.rows(), into)
    }

    /// Starts reading some rows of a value into a tensor of as many rows; tiles need not be those of the write.
    ///
    /// # Errors
    /// The engine's first failure; the tensor is released.
    ///
    /// # Panics
    /// If the rows are out of range, or the tensor has another shape or type, is already in flight, or is being read by
    /// another thread ([`Machine::share`](crate::Machine::share)).
    #[track_caller]
    pub fn read_rows(&self, stored: &FileValue, rows: Range<usize>, into: Tensor) -> Result<FileRead> {
        let &FileValue { ref extent, layout, tag } = stored;
        let shape = [rows.len(), stored.cols()];
        let fits = rows.end <= stored.rows() && into.shape() == shape && into.dtype() == layout.dtype;
        let (height, dtype) = (stored.rows(), layout.dtype);
        assert!(fits, "spill read: rows {rows:?} of {height} of {tag}, {dtype:?}{shape:?}, into {into:?}");
        assert!(Rc::ptr_eq(extent.space(), &self.0.space), "spill read: {tag} is stored in another file");
        assert!(!into.is_shared(), "spill read: {into:?} would be written while another thread reads it");
        self.check()?;
        let rows = rows.start as u64..rows.end as u64;
        let mut stats = self.0.stats.get();
        stats.read_bytes += layout.moved_bytes(&rows);
        stats.num_reads += 1;
        self.0.stats.set(stats);
        let stored = FileValue { extent: extent.clone(), layout, tag };
        Ok(FileRead(self.fly(Kind::Read, into, stored, rows)))
    }

    #[track_caller]
    fn fly(&self, kind: Kind, tensor: Tensor, stored: FileValue, rows: Range<u64>) -> Flight {
        let FileValue { extent, layout, tag } = stored;
        let region = Region::of(&tensor);
        extent.begin(kind, tag);
        let loan = LoanedTensor::new(tensor);
        let transfer = self.0.live().map(|live| {
            let region = Region { fence: live.copies.fence(), ..region };
            let mut transfer = Transfer::new(kind, region, layout, extent.offset);
            transfer.id = self.0.transfers.get();
            transfer.bytes = layout.moved_bytes(&rows);
            transfer.tag = tag;
            live.issue(transfer, rows.clone())
        });
        self.0.transfers.set(self.0.transfers.get() + 1);
        let way = match (self.0.in_memory, kind == Kind::Write) {
            (false, true) => Way::DiskWrite,
            (false, false) => Way::DiskRead,
            (true, true) => Way::HostWrite,
            (true, false) => Way::HostRead,
        };
        let ends_at = self.0.clock().map(|clock| clock.begin(way, layout.moved_bytes(&rows)));
        Flight { engine: self.0.clone(), kind, loan, extent, layout, tag, transfer, ends_at }
    }

    fn full(&self, bytes: u64, tag: Tag) -> Error {
        let space = self.0.space.borrow();
        let (file, bytes) = (self.0.name.clone(), space::charge(bytes));
        Error::Full { file, tag, bytes, live: space.live, capacity: space.capacity }
    }

    /// The engine's first failure, if there was one: for the end of a step.
    ///
    /// # Errors
    /// The failure.
    pub fn check(&self) -> Result<()> {
        self.0.live().map_or(Ok(()), WorkerContext::check)
    }

    /// Totals since the engine was opened.
    pub fn stats(&self) -> Stats {
        let space = self.0.space.borrow();
        Stats {
            live_bytes: space.live,
            peak_live_bytes: space.peak_live,
            peak_reserved_bytes: space.peak_end(),
            ..self.0.stats.get()
        }
    }

    /// Access mode of the file.
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// Starts recording transfers and waits.
    pub fn record(&self) {
        self.0.recording.set(true);
        self.0.live().map(|live| live.record(true));
    }

    /// Ends recording and returns the spans in the order in which they began, without transfers still in flight.
    pub fn recorded(&self) -> Vec<Span> {
        self.0.recording.set(false);
        let mut spans = self.0.live().map(|live| live.record(false)).unwrap_or_default();
        spans.sort_by_key(|span| (span.began, span.ended));
        spans
    }
}
