//! NCCL ranks as threads and as processes.
#![allow(unsafe_code, clippy::unwrap_used)]

mod ends;
mod exchanges;
mod processes;
mod refusals;

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use fathom_rehearsal::device::{StreamState, drive, state};
use fathom_rehearsal::driver::{cuCtxSetCurrent, cuDevicePrimaryCtxRetain};
use fathom_rehearsal::nccl::*;

const SUCCESS: c_int = 0;
const ARGUMENT: c_int = 4;
const USAGE: c_int = 5;
const REMOTE: c_int = 6;
const PROGRESS: c_int = 7;
const FLOAT: c_int = 7;
const BF16: c_int = 9;

/// `ncclConfig_t` of 2.18, as bytes.
#[repr(C, align(8))]
struct OldConfig([u32; 12]);

fn nonblocking() -> OldConfig {
    let undefined = i32::MIN as u32;
    let rest = [0, undefined, undefined, undefined, 0, 0, undefined, undefined];
    let mut words = [48, 0, 0xcafe_beef, 21_800, 0, 0, 0, 0, 0, 0, 0, 0];
    words[4..].copy_from_slice(&rest);
    OldConfig(words)
}

/// Serialises tests, which share devices on which one thread at a time may issue operations.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes one of eight devices current.
fn device(index: usize) {
    static SET: Once = Once::new();
    // SAFETY: before anything reads it, as all tests begin here.
    SET.call_once(|| unsafe {
        std::env::set_var("FATHOM_REHEARSAL_DEVICES", "8");
        let _ = fathom_rehearsal::device::settings();
    });
    let mut context = std::ptr::null_mut();
    // SAFETY: an address of a context.
    let retained = unsafe { cuDevicePrimaryCtxRetain(&mut context, index as c_int) };
    assert_eq!((retained as u32, cuCtxSetCurrent(context) as u32), (0, 0));
}

fn id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    // SAFETY: an address of an id.
    assert_eq!(unsafe { ncclGetUniqueId(&mut id) }, SUCCESS);
    id
}

/// Device memory with values.
#[derive(Clone, Copy)]
struct Buffer(u64, usize);

impl Buffer {
    fn of(device: usize, values: &[f32]) -> Buffer {
        let at = state().allocate(device, (4 * values.len()) as u64).unwrap();
        let buffer = Buffer(at, values.len());
        // SAFETY: as many were allocated.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), buffer.at().cast(), values.len()) };
        buffer
    }

    fn at(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }

    fn values(self) -> Vec<f32> {
        // SAFETY: as many were allocated.
        unsafe { std::slice::from_raw_parts(self.at().cast::<f32>(), self.1) }.to_vec()
    }
}

/// A rank with a stream.
struct Rank {
    comm: Handle,
    stream: Stream,
    rank: usize,
}

/// Allows handles to move between threads.
#[derive(Clone, Copy)]
struct Sent<T>(T);
// SAFETY: numbers.
unsafe impl<T> Send for Sent<T> {}

fn stream() -> Stream {
    let mut now = state();
    let handle = now.handle();
    now.streams.insert(handle, StreamState::default());
    std::ptr::without_provenance_mut(handle as usize)
}

impl Rank {
    /// Joins with blocking calls.
    fn join(id: UniqueId, rank: usize, ranks: usize) -> Rank {
        device(rank);
        let mut comm = std::ptr::null_mut();
        // SAFETY: addresses that live.
        assert_eq!(unsafe { ncclCommInitRank(&mut comm, ranks as c_int, id, rank as c_int) }, SUCCESS);
        Rank { comm, stream: stream(), rank }
    }

    fn buffer(&self, values: &[f32]) -> Buffer {
        Buffer::of(self.rank, values)
    }

    fn send(&self, buffer: Buffer, peer: usize) -> c_int {
        let (count, peer) = (buffer.1, peer as c_int);
        // SAFETY: memory of the device.
        unsafe { ncclSend(buffer.at(), count, FLOAT, peer, self.comm, self.stream) }
    }

    fn receive(&self, buffer: Buffer, peer: usize) -> c_int {
        let (count, peer) = (buffer.1, peer as c_int);
        // SAFETY: memory of the device.
        unsafe { ncclRecv(buffer.at(), count, FLOAT, peer, self.comm, self.stream) }
    }

    fn wait(&self) {
        drive(self.stream.addr() as u64);
    }

    fn is_idle(&self) -> bool {
        state().streams[&(self.stream.addr() as u64)].is_idle()
    }

    fn asked(&self) -> c_int {
        let mut result = -1;
        // SAFETY: an address that lives.
        assert_eq!(unsafe { ncclCommGetAsyncError(self.comm, &mut result) }, SUCCESS);
        result
    }

    /// Waits for a status.
    fn until(&self, wanted: c_int) {
        until(|| self.asked() == wanted);
    }

    fn destroy(self) {
        assert_eq!(ncclCommDestroy(self.comm), SUCCESS);
    }
}

fn until(so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < Duration::from_secs(20), "waited in vain");
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Runs a number of ranks as threads.
fn ranks(count: usize, run: impl Fn(Rank) + Sync) {
    let id = id();
    std::thread::scope(|scope| {
        for rank in 0..count {
            let run = &run;
            scope.spawn(move || run(Rank::join(id, rank, count)));
        }
    });
}

fn group(run: impl FnOnce()) {
    assert_eq!(ncclGroupStart(), SUCCESS);
    run();
    assert_eq!(ncclGroupEnd(), SUCCESS);
}
