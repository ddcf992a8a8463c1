//! Copies of a machine's data by host threads: the only part of the engine that a machine supplies.
#![allow(unsafe_code)]

use crate::Tensor;

/// The elements of a tensor as bytes of its machine's memory. Plain data for worker threads: the maker of a transfer
/// keeps the tensor's storage until the transfer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address of the first element, in the machine's own terms.
    pub address: u64,
    /// Number of rows.
    pub rows: usize,
    /// Bytes of a row's elements.
    pub row_bytes: usize,
    /// Bytes from one row to the next.
    pub stride_bytes: usize,
    /// Value of [`Copies::fence`] when the transfer was issued; copies come after it.
    pub fence: u64,
}

impl Region {
    /// The elements of a tensor that is not in flight.
    #[track_caller]
    pub fn of(tensor: &Tensor) -> Region {
        let size = tensor.dtype().bytes();
        Region {
            address: tensor.address(),
            rows: tensor.rows(),
            row_bytes: tensor.cols() * size,
            stride_bytes: tensor.stride() * size,
            fence: 0,
        }
    }

    /// True if rows follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.rows <= 1 || self.row_bytes == self.stride_bytes
    }

    /// Calls `each(distance from the address, position in the packed bytes, length)` for the stretches without gaps
    /// that hold bytes `at..at + len` of the rows laid end to end.
    fn stretches(&self, at: usize, len: usize, mut each: impl FnMut(usize, usize, usize)) {
        if self.is_contiguous() {
            return each(at, 0, len);
        }
        let mut done = 0;
        while done < len {
            let (row, col) = ((at + done) / self.row_bytes, (at + done) % self.row_bytes);
            let part = (self.row_bytes - col).min(len - done);
            each(row * self.stride_bytes + col, done, part);
            done += part;
        }
    }
}

/// Host memory owned by the holder of this value.
///
/// # Safety
/// [`HostBuffer::start`] points to as many readable and writable bytes as were requested, until the value is dropped.
pub unsafe trait HostBuffer: Send + Sync {
    /// The first byte.
    fn start(&self) -> *mut u8;
}

/// Copies between a machine's memory and the host's, made by worker threads.
///
/// # Safety
/// [`Copies::host`] gives a pointer that is valid for reads and writes of the storage at that address for as long as
/// its tensor lives, and the two copies touch nothing but the bytes they are asked for.
pub unsafe trait Copies: Send + Sync {
    /// Host address of the machine's `address`; `None` if host threads cannot reach it, in which case everything goes
    /// through the two copies. Staging buffers from the pool must be reachable.
    fn host(&self, address: u64) -> Option<*mut u8>;

    /// Host memory for a worker's staging, on a machine whose own memory the host cannot reach; `None` if it can, and
    /// staging then comes from the pool. Staging is charged to the pool either way, so that a plan need not know.
    fn staging(&self, _bytes: usize) -> Option<Box<dyn HostBuffer>> {
        None
    }

    /// Called on the issuing thread when a transfer is issued: marks the point that earlier work has to reach before
    /// the transfer's copies may begin. A machine whose operations end before they return has nothing to mark.
    fn fence(&self) -> u64 {
        0
    }

    /// Fills `into` with bytes `at..at + into.len()` of the region's rows laid end to end, and returns when done.
    ///
    /// # Safety
    /// The region's storage lives, and nothing writes it meanwhile.
    unsafe fn fetch(&self, from: &Region, at: usize, into: &mut [u8]);

    /// Sets bytes `at..at + from.len()` of the region's rows laid end to end, and returns when done.
    ///
    /// # Safety
    /// The region's storage lives, and nothing reads or writes it meanwhile.
    unsafe fn store(&self, into: &Region, at: usize, from: &[u8]);
}

/// The copies of a machine whose addresses are pointers of this process.
pub struct HostMemory(());

impl HostMemory {
    /// # Safety
    /// Every tensor's address is a pointer to its elements, readable and writable by every thread while the tensor
    /// lives.
    pub unsafe fn new() -> HostMemory {
        HostMemory(())
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

// SAFETY: `HostMemory::new` is called only where addresses are such pointers; the copies stay inside the rows.
unsafe impl Copies for HostMemory {
    fn host(&self, address: u64) -> Option<*mut u8> {
        Some(pointer(address))
    }

    unsafe fn fetch(&self, from: &Region, at: usize, into: &mut [u8]) {
        let start = pointer(from.address);
        from.stretches(at, into.len(), |distance, position, len| {
            // SAFETY: the stretch lies in the region, which lives; the slice is the caller's own memory.
            unsafe {
                std::ptr::copy_nonoverlapping(start.add(distance), into[position..][..len].as_mut_ptr(), len)
            }
        });
    }

    unsafe fn store(&self, into: &Region, at: usize, from: &[u8]) {
        let start = pointer(into.address);
        into.stretches(at, from.len(), |distance, position, len| {
            // SAFETY: as in `fetch`, the other way.
            unsafe {
                std::ptr::copy_nonoverlapping(from[position..][..len].as_ptr(), start.add(distance), len)
            }
        });
    }
}
