//! Memory: addresses with and without backing, and access rights.

use std::collections::BTreeMap;

use cudarc::driver::sys::CUresult;

use super::settings;
use super::state::{Range, Reservation, State, complain, computes};

/// Granularity of physical memory, as on real devices.
pub const GRANULE: u64 = 2 << 20;
/// Granularity of plain allocations.
const SMALL: u64 = 512;
/// Memory that a context takes of its device.
pub const CONTEXT: u64 = 520 << 20;
/// Content of fresh memory: NaN in every float type.
const FRESH: u8 = 0xff;

fn refuse<T>(call: &str, why: impl std::fmt::Display, status: CUresult) -> Result<T, CUresult> {
    complain(call, why);
    Err(status)
}

fn pointer(address: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Reserves inaccessible host addresses, which cost nothing.
fn addresses(bytes: u64) -> Result<u64, CUresult> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return refuse("memory", std::io::Error::last_os_error(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(start.expose_provenance() as u64)
}

fn forget(address: u64, bytes: u64) {
    // SAFETY: a mapping of `addresses` that is no longer in use.
    unsafe { libc::munmap(pointer(address), bytes as usize) };
}

/// Makes addresses accessible and fills them with NaN.
fn open(address: u64, bytes: u64) -> Result<(), CUresult> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a part of a mapping of `addresses`.
    if unsafe { libc::mprotect(pointer(address), bytes as usize, rights) } != 0 {
        return refuse("memory", std::io::Error::last_os_error(), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    if computes() {
        // SAFETY: just made writable, and not yet shared.
        unsafe { std::ptr::write_bytes(pointer(address).cast::<u8>(), FRESH, bytes as usize) };
    }
    Ok(())
}

/// Makes memory inaccessible: any access ends the process from now on.
fn close(address: u64, bytes: u64) {
    // SAFETY: a part of a mapping of `addresses`, whose contents are no longer needed.
    unsafe {
        libc::madvise(pointer(address), bytes as usize, libc::MADV_DONTNEED);
        libc::mprotect(pointer(address), bytes as usize, libc::PROT_NONE);
    }
}

impl State {
    /// Checks that the device has not failed.
    ///
    /// # Errors
    /// The earlier failure.
    pub fn alive(&self) -> Result<(), CUresult> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Free and total bytes of a device.
    pub fn info(&self, device: usize) -> (u64, u64) {
        let context = if self.contexts.contains(&device) { CONTEXT } else { 0 };
        (settings().memory.saturating_sub(self.used[device] + context), settings().memory)
    }

    fn take(&mut self, device: usize, bytes: u64) -> Result<(), CUresult> {
        if bytes > self.info(device).0 {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.used[device] += bytes;
        Ok(())
    }

    /// Reserves addresses without backing.
    ///
    /// # Errors
    /// Like the driver.
    pub fn reserve(&mut self, bytes: u64) -> Result<u64, CUresult> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            let why = format!("{bytes} bytes are no multiple of the granularity");
            return refuse("cuMemAddressReserve", why, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let raw = addresses(bytes + GRANULE)?;
        let start = raw.next_multiple_of(GRANULE);
        if start > raw {
            forget(raw, start - raw);
        }
        if raw + GRANULE > start {
            forget(start + bytes, raw + GRANULE - start);
        }
        self.reservations.insert(start, Reservation { bytes, ranges: BTreeMap::new() });
        Ok(start)
    }

    /// Releases a reservation.
    ///
    /// # Errors
    /// If there is no such reservation, or it still has mappings.
    pub fn unreserve(&mut self, start: u64, bytes: u64) -> Result<(), CUresult> {
        let whole = self.reservations.get(&start);
        if whole.is_none_or(|whole| whole.bytes != bytes || !whole.ranges.is_empty()) {
            let why = "not a whole reservation, or something is still mapped there";
            return refuse("cuMemAddressFree", why, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.reservations.remove(&start);
        forget(start, bytes);
        Ok(())
    }

    /// Creates physical memory.
    ///
    /// # Errors
    /// If there is not enough, or the size is not a multiple of the granularity.
    pub fn create(&mut self, device: usize, bytes: u64) -> Result<u64, CUresult> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            let why = format!("{bytes} bytes are no multiple of the granularity");
            return refuse("cuMemCreate", why, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.take(device, bytes)?;
        let handle = self.handle();
        self.physical.insert(handle, (device, bytes));
        Ok(handle)
    }

    /// Releases physical memory. It must not be mapped any more, which a driver would allow.
    ///
    /// # Errors
    /// If there is no such memory.
    pub fn release(&mut self, handle: u64) -> Result<(), CUresult> {
        let mut ranges = self.reservations.values().flat_map(|whole| whole.ranges.values());
        if ranges.any(|range| range.handle == handle) {
            return refuse("cuMemRelease", "still mapped", CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let Some((device, bytes)) = self.physical.remove(&handle) else {
            return refuse("cuMemRelease", "no such memory", CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        self.used[device] -= bytes;
        Ok(())
    }

    /// The reservation that contains an address range.
    fn within(&mut self, address: u64, bytes: u64) -> Option<&mut Reservation> {
        let (start, whole) = self.reservations.range_mut(..=address).next_back()?;
        (address + bytes <= start + whole.bytes).then_some(whole)
    }

    /// Maps physical memory to addresses.
    ///
    /// # Errors
    /// If either is not free, or the sizes differ.
    pub fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Result<(), CUresult> {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        if self.physical.get(&handle).is_none_or(|(_, has)| *has != bytes) {
            return refuse("cuMemMap", "no such memory, or not all of it", invalid);
        }
        let Some(whole) = self.within(address, bytes) else {
            return refuse("cuMemMap", "not within one reservation", invalid);
        };
        let before = whole.ranges.range(..address + bytes).next_back();
        if !address.is_multiple_of(GRANULE) || before.is_some_and(|(at, range)| at + range.bytes > address) {
            return refuse("cuMemMap", "not aligned, or something is there", invalid);
        }
        whole.ranges.insert(address, Range { bytes, handle, open: false });
        Ok(())
    }

    /// Makes mapped memory readable and writable.
    ///
    /// # Errors
    /// If it is not mapped.
    pub fn open(&mut self, address: u64, bytes: u64) -> Result<(), CUresult> {
        let range = self.within(address, bytes).and_then(|whole| whole.ranges.get_mut(&address));
        let Some(range) = range.filter(|range| range.bytes == bytes) else {
            return refuse("cuMemSetAccess", "not what was mapped", CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        range.open = true;
        open(address, bytes)
    }

    /// Unmaps addresses.
    ///
    /// # Errors
    /// If they are not a whole mapping.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), CUresult> {
        let whole = self.within(address, bytes);
        let fits =
            |whole: &&mut Reservation| whole.ranges.get(&address).is_some_and(|range| range.bytes == bytes);
        let Some(whole) = whole.filter(fits) else {
            return refuse("cuMemUnmap", "not what was mapped", CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        whole.ranges.remove(&address);
        close(address, bytes);
        Ok(())
    }

    /// Allocates memory.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn allocate(&mut self, device: usize, bytes: u64) -> Result<u64, CUresult> {
        if bytes == 0 {
            return refuse("cuMemAlloc", "no bytes", CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let taken = bytes.next_multiple_of(GRANULE);
        if taken > self.info(device).0 {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        // Adds an inaccessible guard page.
        let behind = bytes.next_multiple_of(4096) + 4096;
        let start = addresses(behind)?;
        open(start, behind - 4096)?;
        self.take(device, taken)?;
        // Ends the allocation at the guard page, as closely as the alignment allows, so that overruns are detected.
        let address = start + (behind - 4096 - bytes.next_multiple_of(SMALL));
        self.allocations.insert(address, (device, bytes, behind));
        Ok(address)
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// If there is no such allocation.
    pub fn free(&mut self, address: u64) -> Result<(), CUresult> {
        let Some((device, bytes, behind)) = self.allocations.remove(&address) else {
            return refuse("cuMemFree", "no such allocation", CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        self.used[device] -= bytes.next_multiple_of(GRANULE);
        forget(address & !4095, behind);
        Ok(())
    }

    /// Allocates pinned host memory, which devices can access.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn pin(&mut self, bytes: u64) -> Result<u64, CUresult> {
        if bytes == 0 {
            return refuse("cuMemHostAlloc", "no bytes", CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let start = addresses(bytes)?;
        open(start, bytes)?;
        self.pinned.insert(start, bytes);
        Ok(start)
    }

    /// Frees pinned memory.
    ///
    /// # Errors
    /// If it is not pinned.
    pub fn unpin(&mut self, address: u64) -> Result<(), CUresult> {
        let Some(bytes) = self.pinned.remove(&address) else {
            return refuse("cuMemFreeHost", "not pinned", CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        forget(address, bytes);
        Ok(())
    }

    /// See [`super::check_memory`].
    ///
    /// # Errors
    /// The reason that the memory is not accessible.
    pub fn check(&self, address: u64, bytes: u64) -> Result<(), String> {
        let holds = |at: u64, has: u64| address >= at && address + bytes <= at + has;
        let allocation = self.allocations.range(..=address).next_back();
        let pinned = self.pinned.range(..=address).next_back();
        if allocation.is_some_and(|(at, (_, has, _))| holds(*at, *has))
            || pinned.is_some_and(|(at, has)| holds(*at, *has))
        {
            return Ok(());
        }
        let bad = |why: &str| Err(format!("{bytes} bytes at {address:#x}: {why}"));
        let Some((start, whole)) = self.reservations.range(..=address).next_back() else {
            return bad("no memory of a device");
        };
        if address + bytes > start + whole.bytes {
            return bad("no memory of a device");
        }
        let mut at = address;
        while at < address + bytes {
            match whole.ranges.range(..=at).next_back() {
                Some((first, range)) if at < first + range.bytes && range.open => at = first + range.bytes,
                _ => return bad("nothing is mapped there"),
            }
        }
        Ok(())
    }
}
