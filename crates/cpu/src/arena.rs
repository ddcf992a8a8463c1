//! The address range behind a CPU pool: reserved at once, backed by memory on first touch.
#![allow(unsafe_code)]

use fathom_tensor::{Arena, OutOfMemory};

/// An anonymous mapping with huge pages, which make the first touch three times as fast and reduce TLB misses of the
/// matrix kernels.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    bytes: usize,
    base: u64,
}

/// Alignment of bases: a huge page.
const ALIGN: usize = 2 << 20;

impl Mapping {
    /// Reserves address space for `bytes`.
    ///
    /// # Panics
    /// With [`OutOfMemory`] if the kernel refuses the range (larger than the address space, or a limit of the process).
    pub fn reserve(bytes: u64) -> Mapping {
        let bytes = bytes as usize + ALIGN;
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        let error = std::io::Error::last_os_error();
        if start == libc::MAP_FAILED {
            OutOfMemory::raise(format!(
                "cannot reserve {bytes} bytes of address space: {error}; the limit of the process (ulimit -v) may be too low"
            ));
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the range is the mapping made above; the advice changes no contents.
        unsafe {
            libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
        }
        let base = (start as usize).next_multiple_of(ALIGN) as u64;
        Mapping { start, bytes, base }
    }
}

impl Arena for Mapping {
    fn base(&self) -> u64 {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of the mapping; the pool with all buffers in it has been dropped.
        unsafe {
            libc::munmap(self.start, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_not_allocated_is_refused_by_name() {
        let Err(refused) = std::panic::catch_unwind(|| drop(Mapping::reserve(1 << 60))) else {
            panic!("there is no such range")
        };
        assert!(refused.downcast_ref::<OutOfMemory>().unwrap().to_string().contains("ulimit -v"));
    }
}
