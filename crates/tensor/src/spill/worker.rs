//! The threads that move pieces. They see addresses and offsets, never tensors, the pool or the file's allocation.
//!
//! A failure of any piece becomes the engine's first error. From then on pieces are dropped unmoved, so every transfer
//! still ends and every retire point returns.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use super::chaos::{Chaos, mix};
use super::copies::{Copies, Region};
use super::error::{Error, Result, remedy};
use super::file::{Backing, IoFailure, Step, move_all};
use super::fp8;
use super::layout::{Codec, Layout, Piece};
use super::space::PAGE;
use super::stats::{Kind, Span};
use super::tag::Tag;

/// One write or read of a region.
pub(super) struct Transfer {
    pub id: u64,
    pub kind: Kind,
    pub region: Region,
    pub layout: Layout,
    /// Offset of the extent in the file.
    pub offset: u64,
    /// Bytes moved, without padding.
    pub bytes: u64,
    pub tag: Tag,
    /// Pieces that have not ended; changed under the lock of [`WorkerContext::state`].
    remaining: AtomicU32,
    issued: Instant,
    began: OnceLock<Instant>,
}

/// A piece for a worker.
struct Job {
    transfer: Arc<Transfer>,
    piece: Piece,
    index: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    error: Option<Error>,
    stop: bool,
    /// Jobs taken so far.
    taken: u64,
    spans: Option<Vec<Span>>,
}

/// State shared by the workers and the issuing thread.
pub(super) struct WorkerContext {
    pub file: Box<dyn Backing>,
    /// Name in messages.
    pub name: String,
    pub direct: bool,
    pub copies: Arc<dyn Copies>,
    pub chaos: Option<Chaos>,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

/// A worker's two staging buffers: addresses of page-aligned memory that nothing else uses.
#[derive(Clone, Copy)]
pub(super) struct StagingBuffers {
    pub near: usize,
    pub near_len: usize,
    pub far: usize,
    pub far_len: usize,
}

impl StagingBuffers {
    /// The first page of the far buffer, for use before any worker has started.
    pub fn first_page(&mut self) -> &mut [u8] {
        // SAFETY: the buffer has a page, and until the workers start no other thread knows of it.
        unsafe { bytes_mut(self.far, PAGE as usize) }
    }
}

/// # Safety
/// `len` bytes at `address` are readable and writable, and nothing else uses them for `'a`.
unsafe fn bytes_mut<'a>(address: usize, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), len) }
}

impl Transfer {
    pub fn new(kind: Kind, region: Region, layout: Layout, offset: u64) -> Transfer {
        let (remaining, issued, began) = (AtomicU32::new(0), Instant::now(), OnceLock::new());
        let (id, bytes, tag) = (0, 0, Tag::default());
        Transfer { id, kind, region, layout, offset, bytes, tag, remaining, issued, began }
    }
}

impl WorkerContext {
    pub fn new(file: Box<dyn Backing>, name: String, direct: bool, copies: Arc<dyn Copies>) -> WorkerContext {
        let (state, work, done) = (Mutex::default(), Condvar::new(), Condvar::new());
        WorkerContext { file, name, direct, copies, chaos: None, state, work, done }
    }

    /// Locks the state, which is consistent whenever the lock is free, even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first failure, if there was one.
    pub fn check(&self) -> Result<()> {
        self.lock().error.clone().map_or(Ok(()), Err)
    }

    /// Hands the rows of a value to the workers.
    pub fn issue(&self, transfer: Transfer, rows: std::ops::Range<u64>) -> Arc<Transfer> {
        let host = self.plain_host(&transfer);
        let mut pieces = Vec::new();
        for piece in transfer.layout.cut(rows) {
            match host.filter(|_| self.direct).and_then(|host| split_tail(&piece, host)) {
                Some(parts) => pieces.extend(parts),
                None => pieces.push(piece),
            }
        }
        transfer.remaining.store(pieces.len() as u32, Ordering::Relaxed);
        let transfer = Arc::new(transfer);
        let mut state = self.lock();
        for (index, piece) in pieces.into_iter().enumerate() {
            state.queue.push_back(Job { transfer: transfer.clone(), piece, index: index as u32 });
        }
        drop(state);
        self.work.notify_all();
        transfer
    }

    /// Waits until no worker uses the transfer any more.
    pub fn wait(&self, transfer: &Transfer) -> Result<()> {
        let mut state = self.lock();
        while transfer.remaining.load(Ordering::Relaxed) > 0 {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.clone().map_or(Ok(()), Err)
    }

    pub fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_all();
    }

    pub fn record(&self, on: bool) -> Vec<Span> {
        std::mem::replace(&mut self.lock().spans, on.then(Vec::new)).unwrap_or_default()
    }

    /// Adds a wait of the issuing thread to the recording.
    pub fn stalled(&self, tag: Tag, began: Instant) {
        if let Some(spans) = &mut self.lock().spans {
            let ended = Instant::now();
            spans.push(Span { kind: Kind::Stall, tag, bytes: 0, issued: began, began, ended });
        }
    }

    /// A worker's main loop.
    pub fn serve(&self, staging: StagingBuffers) {
        while let Some(job) = self.take() {
            job.transfer.began.get_or_init(Instant::now);
            let moved = match self.check() {
                Ok(()) => catch_unwind(AssertUnwindSafe(|| self.run(&job, staging)))
                    .unwrap_or_else(|panic| Err(self.panicked(&job.transfer, panic.as_ref()))),
                Err(_) => Ok(()),
            };
            self.finish(&job.transfer, moved);
        }
    }

    fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            let pending = state.queue.len();
            if pending > 0 {
                state.taken += 1;
                let pick = self.chaos.map_or(0, |chaos| mix(&[chaos.seed, state.taken]) as usize % pending);
                return state.queue.remove(pick);
            }
            if state.stop {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, transfer: &Transfer, moved: Result<()>) {
        let mut state = self.lock();
        if let Err(error) = moved {
            state.error.get_or_insert(error);
        }
        if transfer.remaining.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let Transfer { kind, tag, bytes, issued, .. } = *transfer;
        if let (Some(spans), Some(&began)) = (&mut state.spans, transfer.began.get()) {
            spans.push(Span { kind, tag, bytes, issued, began, ended: Instant::now() });
        }
        drop(state);
        self.done.notify_all();
    }

    fn panicked(&self, transfer: &Transfer, panic: &(dyn std::any::Any + Send)) -> Error {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
        Error::Worker { file: self.name.clone(), tag: transfer.tag, message: message.to_string() }
    }

    /// Host address of the elements, if they are contiguous and stored unchanged.
    fn plain_host(&self, transfer: &Transfer) -> Option<u64> {
        let plain = transfer.layout.codec == Codec::AsIs && transfer.region.is_contiguous();
        plain.then(|| self.copies.host(transfer.region.address)).flatten().map(|start| start.addr() as u64)
    }

    /// Memory that file operations of a piece may use without staging.
    fn in_place(&self, transfer: &Transfer, piece: &Piece) -> Option<usize> {
        let at = self.plain_host(transfer)? + piece.near.start;
        let len = piece.near.end - piece.near.start;
        let pages = [at, len, piece.far.start].iter().all(|place| place.is_multiple_of(PAGE));
        (pages || !self.direct).then_some(at as usize)
    }

    /// The piece's memory in the backing, if the machine copies from and to it directly.
    fn straight(&self, transfer: &Transfer, offset: u64, len: usize) -> Option<usize> {
        if transfer.layout.codec == Codec::AsIs { self.file.place(offset, len) } else { None }
    }

    fn run(&self, job: &Job, staging: StagingBuffers) -> Result<()> {
        match job.transfer.kind {
            Kind::Read => self.run_read(job, staging),
            _ => self.run_write(job, staging),
        }
    }

    fn run_write(&self, job: &Job, staging: StagingBuffers) -> Result<()> {
        let (transfer, piece) = (&*job.transfer, &job.piece);
        let len = (piece.far.end - piece.far.start) as usize;
        if let Some(address) = self.in_place(transfer, piece) {
            // SAFETY: the issuing thread holds the region's tensor on loan until this piece has ended, the machine
            // says host threads reach it, and no other piece has these bytes.
            let bytes = unsafe { bytes_mut(address, len) };
            return self.write(bytes, job);
        }
        if let Some(place) = self.straight(transfer, transfer.offset + piece.far.start, len) {
            // SAFETY: the place is this piece's alone until it has ended; the region's tensor is on loan, as above.
            unsafe { self.copies.fetch(&transfer.region, piece.near.start as usize, bytes_mut(place, len)) };
            return Ok(());
        }
        // SAFETY: a worker's staging buffers are its own.
        let far = unsafe { bytes_mut(staging.far, staging.far_len) };
        match transfer.layout.codec {
            // SAFETY: the region's tensor is on loan, as above.
            Codec::AsIs => unsafe {
                self.copies.fetch(&transfer.region, piece.near.start as usize, &mut far[..len])
            },
            Codec::Fp8Block => {
                let near_len = (piece.near.end - piece.near.start) as usize;
                // SAFETY: as above.
                let near = unsafe { bytes_mut(staging.near, staging.near_len) };
                // SAFETY: as above.
                unsafe {
                    self.copies.fetch(&transfer.region, piece.near.start as usize, &mut near[..near_len])
                }
                fp8::encode(&transfer.layout, piece.blocks.clone(), &near[..near_len], &mut far[..len]);
            }
        }
        let padded = if self.direct { len.next_multiple_of(PAGE as usize) } else { len };
        far[len..padded].fill(0);
        self.write(&far[..padded], job)
    }

    fn run_read(&self, job: &Job, staging: StagingBuffers) -> Result<()> {
        let (transfer, piece) = (&*job.transfer, &job.piece);
        let len = (piece.far.end - piece.far.start) as usize;
        let offset = transfer.offset + piece.far.start;
        if let Some(address) = self.in_place(transfer, piece) {
            // SAFETY: as in `run_write`.
            let bytes = unsafe { bytes_mut(address, len) };
            return self.read(bytes, offset, job);
        }
        if let Some(place) = self.straight(transfer, offset, len) {
            // SAFETY: as in `run_write`.
            unsafe { self.copies.store(&transfer.region, piece.near.start as usize, bytes_mut(place, len)) };
            return Ok(());
        }
        // SAFETY: a worker's staging buffers are its own.
        let far = unsafe { bytes_mut(staging.far, staging.far_len) };
        let head = if self.direct { (offset % PAGE) as usize } else { 0 };
        let padded = if self.direct { (head + len).next_multiple_of(PAGE as usize) } else { len };
        self.read(&mut far[..padded], offset - head as u64, job)?;
        let far = &far[head..head + len];
        match transfer.layout.codec {
            // SAFETY: the region's tensor is on loan, as above.
            Codec::AsIs => unsafe { self.copies.store(&transfer.region, piece.near.start as usize, far) },
            Codec::Fp8Block => {
                let near_len = (piece.near.end - piece.near.start) as usize;
                // SAFETY: as above.
                let near = unsafe { bytes_mut(staging.near, staging.near_len) };
                fp8::decode(&transfer.layout, piece.blocks.clone(), far, &mut near[..near_len]);
                // SAFETY: as above.
                unsafe { self.copies.store(&transfer.region, piece.near.start as usize, &near[..near_len]) }
            }
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], job: &Job) -> Result<()> {
        let offset = job.transfer.offset + job.piece.far.start;
        let moved = move_all(bytes.len(), self.direct, |at, attempt| {
            self.file.write_at(&bytes[at..], offset + at as u64, step(job, attempt))
        });
        moved.map_err(|stopped| self.stopped("write", offset, bytes.len(), job, stopped))
    }

    fn read(&self, bytes: &mut [u8], offset: u64, job: &Job) -> Result<()> {
        let len = bytes.len();
        let moved = move_all(len, self.direct, |at, attempt| {
            self.file.read_at(&mut bytes[at..], offset + at as u64, step(job, attempt))
        });
        moved.map_err(|stopped| self.stopped("read", offset, len, job, stopped))
    }

    fn stopped(&self, action: &'static str, offset: u64, len: usize, job: &Job, stopped: IoFailure) -> Error {
        let IoFailure { at, source } = stopped;
        Error::Io {
            action,
            file: self.name.clone(),
            offset: offset + at as u64,
            bytes: (len - at) as u64,
            tag: job.transfer.tag,
            remedy: remedy(&source),
            source: Arc::new(source),
        }
    }
}

fn step(job: &Job, attempt: u32) -> Step {
    Step { transfer: job.transfer.id, piece: job.index, attempt }
}

/// Splits a piece into whole pages that need no staging, and the rest of the last page.
fn split_tail(piece: &Piece, host: u64) -> Option<[Piece; 2]> {
    let (at, len) = (host + piece.near.start, piece.near.end - piece.near.start);
    let aligned = at.is_multiple_of(PAGE) && piece.far.start.is_multiple_of(PAGE);
    let whole = len - len % PAGE;
    if !aligned || whole == 0 || whole == len {
        return None;
    }
    let part = |from: u64, to: u64| Piece {
        near: piece.near.start + from..piece.near.start + to,
        far: piece.far.start + from..piece.far.start + to,
        blocks: 0..0,
    };
    Some([part(0, whole), part(whole, len)])
}
