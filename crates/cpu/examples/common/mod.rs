//! Time and memory of the benchmarks.

/// CPU time of this thread.
pub fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Memory in huge pages, like the pool's.
pub fn memory(bytes: usize) -> *mut u8 {
    const HUGE: usize = 2 << 20;
    let bytes = bytes + 2 * HUGE;
    // SAFETY: a fresh mapping that is never unmapped.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
        assert!(start != libc::MAP_FAILED);
        libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
        start.cast::<u8>().add(start.cast::<u8>().align_offset(HUGE))
    }
}
