//! A device made of host memory. Copies and sums are computed, other kernels are only recorded. Work of a stream runs
//! as late as possible, when it is waited for, so a caller that forgets to wait, or releases memory too early, reads
//! stale data.
#![allow(unsafe_code)]

mod kernels;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Backing, Driver, Event, Facts, Function, Graph, Module, Rows, Stream, Way};
use crate::kernels::{Grid, Launch};
use crate::{Error, Result};
use kernels::{copy, pointer};

const CHUNK: u64 = 64 << 10;

#[derive(Clone)]
enum Op {
    Copy {
        from: Rows,
        to: Rows,
    },
    Clear(Rows),
    Wait(Stream, u64),
    Launch(LaunchRecord, Vec<u64>),
    /// A library's operation.
    Call(Arc<dyn Fn() + Send + Sync>),
    /// Puts bytes on a line, which has unlimited room.
    Give(u64, Rows),
    /// Takes bytes off a line.
    Get(u64, Rows),
}

/// Bytes in transit between streams, as transferred by a library for several ranks.
#[derive(Default)]
struct Line {
    /// Position and stream of each transfer that was put and not yet taken.
    given: VecDeque<(Stream, u64)>,
    /// Total number of puts.
    total: usize,
    bytes: VecDeque<Vec<u8>>,
    /// Set once the line is cut: nothing more is transferred.
    cut: bool,
}

/// A launch as seen by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchRecord {
    pub name: String,
    pub grid: Grid,
    /// One letter per argument.
    pub kinds: String,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// Position of the first operation in `ops`.
    first: u64,
    /// Captured operations, during a capture.
    captured: Option<Vec<Op>>,
}

#[derive(Default)]
struct State {
    next: u64,
    queues: BTreeMap<u64, Queue>,
    /// Position of each event, if recorded.
    events: BTreeMap<u64, Option<(Stream, u64)>>,
    /// Reserved ranges: start, bytes, and the parts backed by memory.
    ranges: BTreeMap<u64, (u64, BTreeMap<u64, u64>)>,
    pinned: BTreeMap<u64, usize>,
    functions: BTreeMap<u64, String>,
    modules: BTreeSet<u64>,
    launched: Vec<LaunchRecord>,
    used: u64,
    lines: BTreeMap<u64, Line>,
    graphs: BTreeMap<u64, Vec<Op>>,
    /// Allocations, by aligned address.
    taken: BTreeMap<u64, (u64, u64)>,
}

pub struct Fake {
    facts: Facts,
    capacity: u64,
    /// Most host bytes that can be pinned at once.
    pinnable: usize,
    state: Mutex<State>,
}

/// Untouched memory costs nothing, so devices may be large; a larger alignment than the allocator's own would force it
/// to clear the memory by hand.
fn layout(bytes: u64) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes as usize + 4096, 16).unwrap()
}

fn take(state: &mut State, bytes: u64) -> u64 {
    // SAFETY: the size is not zero.
    let raw = unsafe { std::alloc::alloc_zeroed(layout(bytes)) }.expose_provenance() as u64;
    let address = raw.next_multiple_of(4096);
    state.taken.insert(address, (raw, bytes));
    address
}

fn give_back(state: &mut State, address: u64) {
    let (raw, bytes) = state.taken.remove(&address).unwrap();
    // SAFETY: the address is from `take`, with its size.
    unsafe { std::alloc::dealloc(pointer(raw), layout(bytes)) }
}

impl Fake {
    /// A device with this much memory.
    pub fn new(capacity: u64) -> Fake {
        let facts = Facts {
            name: "fake".into(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: capacity,
            driver: 13_000,
            virtual_memory: true,
            pci: [0; 3],
        };
        Fake { facts, capacity, pinnable: usize::MAX, state: Mutex::default() }
    }

    /// The same with a host that can pin at most this much at once.
    pub fn with_pinnable(self, pinnable: usize) -> Fake {
        Fake { pinnable, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Launches that have run so far.
    pub fn launched(&self) -> Vec<LaunchRecord> {
        self.state().launched.clone()
    }

    /// Bytes of the device in use.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// Puts bytes on a line.
    pub fn give(&self, line: u64, from: Rows, stream: Stream) {
        let mut state = self.state();
        state.push(stream, Op::Give(line, from));
        let queue = &state.queues[&stream.0];
        let end = queue.first + queue.ops.len() as u64;
        let line = state.lines.entry(line).or_default();
        line.given.push_back((stream, end));
        line.total += 1;
    }

    /// Issues non-kernel work to a stream.
    pub fn call(&self, work: Arc<dyn Fn() + Send + Sync>, stream: Stream) {
        self.state().push(stream, Op::Call(work));
    }

    /// Number of times bytes were put on a line.
    pub fn given(&self, line: u64) -> usize {
        self.state().lines.get(&line).map_or(0, |line| line.total)
    }

    /// Cuts a line: transfers in flight are lost.
    pub fn cut(&self, line: u64) {
        self.state().lines.entry(line).or_default().cut = true;
    }

    /// Takes bytes off a line that were put there before.
    pub fn get(&self, line: u64, to: Rows, stream: Stream) {
        self.state().push(stream, Op::Get(line, to));
    }

    /// True if everything that was created has been destroyed.
    pub fn is_clean(&self) -> bool {
        let state = self.state();
        let streams = state.queues.is_empty() && state.events.is_empty();
        streams && state.taken.is_empty() && state.graphs.is_empty()
    }
}

impl State {
    fn handle(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn push(&mut self, stream: Stream, op: Op) {
        let queue = self.queues.get_mut(&stream.0).unwrap();
        let Some(captured) = &mut queue.captured else { return queue.ops.push_back(op) };
        assert!(
            matches!(op, Op::Copy { .. } | Op::Clear(_) | Op::Launch(..)),
            "what another stream does cannot be captured"
        );
        captured.push(op);
    }

    /// Runs a stream's operations before `end`.
    fn run(&mut self, stream: Stream, end: u64) {
        loop {
            let Some(queue) = self.queues.get_mut(&stream.0) else { return };
            if queue.first >= end {
                return;
            }
            let Some(op) = queue.ops.pop_front() else { return };
            queue.first += 1;
            match op {
                Op::Wait(other, end) => self.run(other, end),
                Op::Launch(launched, words) => {
                    kernels::run(&launched.name, &words, &mut |address, bytes| self.check(address, bytes));
                    self.launched.push(launched);
                }
                Op::Call(work) => work(),
                Op::Clear(to) => self.each(None, to, |_, to, bytes| {
                    // SAFETY: checked to be live memory of the device.
                    unsafe { std::ptr::write_bytes(pointer(to), 0, bytes) }
                }),
                Op::Copy { from, to } => self.each(Some(from), to, copy),
                Op::Give(line, _) | Op::Get(line, _)
                    if self.lines.get(&line).is_some_and(|line| line.cut) => {}
                Op::Give(line, from) => {
                    let mut bytes = vec![0; from.row_bytes];
                    self.check(from.address, bytes.len());
                    copy(from.address, bytes.as_mut_ptr().expose_provenance() as u64, bytes.len());
                    self.lines.entry(line).or_default().bytes.push_back(bytes);
                }
                Op::Get(line, to) => {
                    let (giver, end) = self.lines.get_mut(&line).unwrap().given.pop_front().unwrap();
                    self.run(giver, end);
                    let bytes = self.lines.get_mut(&line).unwrap().bytes.pop_front().unwrap();
                    assert_eq!(bytes.len(), to.row_bytes, "two ranks cut a message differently");
                    self.check(to.address, bytes.len());
                    copy(bytes.as_ptr().expose_provenance() as u64, to.address, bytes.len());
                }
            }
        }
    }

    fn each(&self, from: Option<Rows>, to: Rows, call: impl Fn(u64, u64, usize)) {
        for row in 0..to.rows {
            let at = |rows: Rows| rows.address + (row * rows.stride_bytes) as u64;
            self.check(at(to), to.row_bytes);
            from.into_iter().for_each(|from| self.check(at(from), to.row_bytes));
            call(from.map_or(0, at), at(to), to.row_bytes);
        }
    }

    /// Checks that an address in a reserved range is backed by memory.
    fn check(&self, address: u64, bytes: usize) {
        let Some((start, (len, backed))) = self.ranges.range(..=address).next_back() else { return };
        if address >= start + len {
            return;
        }
        let mut at = address;
        while at < address + bytes as u64 {
            let (part, len) = backed.range(..=at).next_back().expect("no memory behind an address");
            assert!(at < part + len, "no memory behind an address");
            at = part + len;
        }
    }
}

// SAFETY: see the methods; tests only.
unsafe impl Driver for Fake {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn space(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }
    fn enter(&self) -> Result<()> {
        Ok(())
    }
    fn memory(&self) -> Result<(u64, u64)> {
        Ok((self.capacity - self.state().used, self.capacity))
    }
    fn chunk_bytes(&self) -> u64 {
        CHUNK
    }
    fn reserve(&self, bytes: u64) -> Result<u64> {
        assert!(bytes.is_multiple_of(CHUNK));
        let mut state = self.state();
        let address = take(&mut state, bytes);
        state.ranges.insert(address, (bytes, BTreeMap::new()));
        Ok(address)
    }
    fn release(&self, address: u64, bytes: u64) -> Result<()> {
        let mut state = self.state();
        let (len, backed) = state.ranges.remove(&address).unwrap();
        assert!(len == bytes && backed.is_empty());
        give_back(&mut state, address);
        Ok(())
    }
    fn back(&self, address: u64, bytes: u64) -> Result<Backing> {
        assert!(bytes.is_multiple_of(CHUNK));
        let mut state = self.state();
        if state.used + bytes > self.capacity {
            let name = "CUDA_ERROR_OUT_OF_MEMORY".to_string();
            return Err(Error::Driver { call: "cuMemCreate", name, code: 2, detail: String::new() });
        }
        state.used += bytes;
        let (_, (_, backed)) = state.ranges.range_mut(..=address).next_back().unwrap();
        backed.insert(address, bytes);
        Ok(Backing(bytes))
    }
    fn unback(&self, address: u64, bytes: u64, backing: Backing) -> Result<()> {
        assert_eq!(backing.0, bytes);
        let mut state = self.state();
        state.used -= bytes;
        let (_, (_, backed)) = state.ranges.range_mut(..=address).next_back().unwrap();
        assert_eq!(backed.remove(&address), Some(bytes));
        Ok(())
    }
    fn allocate(&self, bytes: u64) -> Result<u64> {
        Ok(take(&mut self.state(), bytes))
    }
    fn free(&self, address: u64) -> Result<()> {
        give_back(&mut self.state(), address);
        Ok(())
    }
    fn pin(&self, bytes: usize) -> Result<u64> {
        let mut state = self.state();
        if state.pinned.values().sum::<usize>() + bytes > self.pinnable {
            let name = "CUDA_ERROR_OUT_OF_MEMORY".to_string();
            return Err(Error::Driver { call: "cuMemHostAlloc", name, code: 2, detail: String::new() });
        }
        let address = take(&mut state, bytes as u64);
        state.pinned.insert(address, bytes);
        Ok(address)
    }
    fn unpin(&self, address: u64) -> Result<()> {
        let mut state = self.state();
        state.pinned.remove(&address).unwrap();
        give_back(&mut state, address);
        Ok(())
    }
    fn stream(&self) -> Result<Stream> {
        let mut state = self.state();
        let handle = state.handle();
        state.queues.insert(handle, Queue::default());
        Ok(Stream(handle))
    }
    fn end_stream(&self, stream: Stream) -> Result<()> {
        assert!(self.state().queues.remove(&stream.0).unwrap().ops.is_empty());
        Ok(())
    }
    fn synchronise(&self, stream: Stream) -> Result<()> {
        self.state().run(stream, u64::MAX);
        Ok(())
    }
    fn event(&self, _: bool) -> Result<Event> {
        let mut state = self.state();
        let handle = state.handle();
        state.events.insert(handle, None);
        Ok(Event(handle))
    }
    fn end_event(&self, event: Event) -> Result<()> {
        self.state().events.remove(&event.0).unwrap();
        Ok(())
    }
    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        let mut state = self.state();
        let queue = &state.queues[&stream.0];
        assert!(queue.captured.is_none(), "an event inside a capture");
        let end = queue.first + queue.ops.len() as u64;
        state.events.insert(event.0, Some((stream, end)));
        Ok(())
    }
    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        let mut state = self.state();
        if let Some((other, end)) = state.events[&event.0] {
            state.push(stream, Op::Wait(other, end));
        }
        Ok(())
    }
    fn join(&self, event: Event) -> Result<()> {
        let mut state = self.state();
        if let Some((stream, end)) = state.events[&event.0] {
            state.run(stream, end);
        }
        Ok(())
    }
    fn is_over(&self, event: Event) -> Result<bool> {
        let state = self.state();
        let over =
            |(stream, end): (Stream, u64)| state.queues.get(&stream.0).is_none_or(|queue| queue.first >= end);
        Ok(state.events[&event.0].is_none_or(over))
    }
    /// Each operation takes a microsecond.
    fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        let state = self.state();
        let at = |event: Event| state.events[&event.0].unwrap().1 as f64;
        Ok((at(to) - at(from)) * 1e-6)
    }
    unsafe fn copy(&self, way: Way, from: Rows, to: Rows, stream: Stream) -> Result<()> {
        assert_eq!((from.rows, from.row_bytes), (to.rows, to.row_bytes));
        let mut state = self.state();
        let captured = state.queues[&stream.0].captured.is_some();
        assert!(way != Way::Up || !captured, "what the host has cannot be captured");
        state.push(stream, Op::Copy { from, to });
        Ok(())
    }
    unsafe fn clear(&self, rows: Rows, stream: Stream) -> Result<()> {
        self.state().push(stream, Op::Clear(rows));
        Ok(())
    }
    fn load(&self, _: &[u8]) -> Result<Module> {
        let mut state = self.state();
        let handle = state.handle();
        state.modules.insert(handle);
        Ok(Module(handle))
    }
    fn unload(&self, module: Module) -> Result<()> {
        assert!(self.state().modules.remove(&module.0));
        Ok(())
    }
    fn function(&self, module: Module, name: &str) -> Result<Function> {
        let mut state = self.state();
        assert!(state.modules.contains(&module.0));
        let handle = state.handle();
        state.functions.insert(handle, name.to_string());
        Ok(Function(handle))
    }
    fn allow_shared(&self, _: Function, _: u32) -> Result<()> {
        Ok(())
    }
    unsafe fn launch(&self, function: Function, launch: &Launch, stream: Stream) -> Result<()> {
        let mut state = self.state();
        let name = state.functions[&function.0].clone();
        assert_eq!(name, launch.entry.name);
        let (grid, kinds) = (launch.grid, launch.args.kinds().to_string());
        state.push(stream, Op::Launch(LaunchRecord { name, grid, kinds }, launch.args.words().to_vec()));
        Ok(())
    }
    fn begin_capture(&self, stream: Stream) -> Result<()> {
        let mut state = self.state();
        let queue = state.queues.get_mut(&stream.0).unwrap();
        assert!(queue.captured.is_none());
        queue.captured = Some(Vec::new());
        Ok(())
    }
    fn is_capturing(&self, stream: Stream) -> Result<bool> {
        Ok(self.state().queues[&stream.0].captured.is_some())
    }
    fn end_capture(&self, stream: Stream) -> Result<Graph> {
        let mut state = self.state();
        let ops = state.queues.get_mut(&stream.0).unwrap().captured.take().unwrap();
        let handle = state.handle();
        state.graphs.insert(handle, ops);
        Ok(Graph(handle))
    }
    unsafe fn replay(&self, graph: Graph, stream: Stream) -> Result<()> {
        let mut state = self.state();
        for op in state.graphs[&graph.0].clone() {
            state.push(stream, op);
        }
        Ok(())
    }
    fn end_graph(&self, graph: Graph) -> Result<()> {
        self.state().graphs.remove(&graph.0).unwrap();
        Ok(())
    }
}
