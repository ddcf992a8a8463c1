//! Memory, to the byte.
//!
//! A charge is the size rounded up to the machine's granule. Charges and releases happen on one thread in program
//! order; offsets come from a best fit over an address range that only ever grows at its end, so the same program gives
//! the same offsets, the same `peak_live` and the same `peak_reserved` on every machine with the same granule,
//! including `meta`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::best_fit::BestFit;
use crate::moves::{Move, Moves};
use crate::span::Span;
use crate::usage::{Category, Label, Mark, OutOfMemory, PoolUsage};

struct Inner {
    granule: u64,
    budget: u64,
    base: u64,
    /// Keeps the address range alive.
    arena: Box<dyn Arena>,
    state: RefCell<State>,
    op: Cell<&'static str>,
    layer: Cell<i32>,
    /// Name of the next allocation, and whether it is a gradient.
    label: Cell<Option<(&'static str, bool)>>,
    /// Set when the current work is to be cancelled.
    stop: RefCell<Option<Arc<AtomicBool>>>,
}

#[derive(Default)]
struct State {
    usage: PoolUsage,
    peak_op: &'static str,
    peak_layer: i32,
    space: BestFit,
    timeline: Option<Vec<Mark>>,
    /// True if the timeline has every tile of a loop, not only those that differ.
    every_tile: bool,
    /// Charges and releases since a summary was started, with their offsets.
    moves: Option<Vec<(Move, u64)>>,
    /// Offsets that a repeated summary has charged.
    offsets: Vec<u64>,
}

/// The pool of one rank. Cheap to clone; not `Send`.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

/// A charged piece of the pool, released when dropped.
pub(crate) struct Buf {
    pool: Pool,
    offset: u64,
    charge: u64,
    label: Label,
    /// Number of shares that forbid writing.
    pub(crate) readers: Cell<u32>,
    /// Spans that transfers are using.
    pub(crate) loans: RefCell<Vec<Span>>,
}

impl Buf {
    pub(crate) fn address(&self) -> u64 {
        self.pool.0.base + self.offset
    }

    pub(crate) fn category(&self) -> Category {
        self.label.category
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.pool.release(self.offset, self.charge, self.label);
    }
}

impl Pool {
    /// A pool over `budget` bytes of an address range, charged in units of `granule` bytes.
    pub fn new(arena: Box<dyn Arena>, granule: u64, budget: u64) -> Pool {
        let inner = Inner {
            granule,
            budget,
            base: arena.base(),
            arena,
            state: RefCell::new(State::default()),
            op: Cell::new("start"),
            layer: Cell::new(-1),
            label: Cell::new(None),
            stop: RefCell::default(),
        };
        Pool(Rc::new(inner))
    }

    /// Charges for `bytes` bytes and places them; panics as [`Pool::alloc`] does.
    pub(crate) fn buffer(&self, bytes: u64, category: Category) -> Buf {
        self.heed_stop();
        let charge = self.charge(bytes);
        let mut state = self.0.state.borrow_mut();
        let offset = self.place(&mut state, charge, category);
        let (name, gradient) = self.0.label.take().unwrap_or((self.0.op.get(), false));
        let label = Label { name, layer: self.0.layer.get(), gradient, category };
        state.charge(charge, label, self.0.op.get());
        if let Some(moves) = &mut state.moves {
            moves.push((Move::charge(self.0.op.get(), label, charge), offset));
        }
        drop(state);
        let (readers, loans) = (Cell::new(0), RefCell::new(Vec::new()));
        Buf { pool: self.clone(), offset, charge, label, readers, loans }
    }

    /// Bytes charged for a request.
    pub fn charge(&self, bytes: u64) -> u64 {
        bytes.max(1).div_ceil(self.0.granule) * self.0.granule
    }

    /// Replaces the cancellation flag; returns the previous one.
    pub(crate) fn replace_stop(&self, stop: Option<Arc<AtomicBool>>) -> Option<Arc<AtomicBool>> {
        self.0.stop.replace(stop)
    }

    /// True if the cancellation flag is set.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.stop.borrow().as_deref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Places a charge and returns its offset.
    fn place(&self, state: &mut State, charge: u64, category: Category) -> u64 {
        let Some(offset) = state.space.place(charge, self.0.budget) else {
            let table: Vec<String> = state
                .usage
                .by_category
                .iter()
                .filter(|(_, live)| *live > 0)
                .map(|(category, live)| format!("{} {live}", category.name()))
                .collect();
            let (op, layer, budget) = (self.0.op.get(), self.0.layer.get(), self.0.budget);
            OutOfMemory::raise(format!(
                "{op} (layer {layer}) asks for {charge} bytes of {}; the budget is {budget}; live: {}",
                category.name(),
                table.join(", ")
            ));
        };
        if state.space.peak_end > state.usage.peak_reserved {
            if let Err(why) = self.0.arena.grow(state.space.peak_end) {
                let reserved = state.usage.peak_reserved;
                state.space.withdraw(offset, reserved);
                OutOfMemory::raise(why);
            }
            state.usage.peak_reserved = state.space.peak_end;
        }
        offset
    }

    fn release(&self, offset: u64, charge: u64, label: Label) {
        let mut state = self.0.state.borrow_mut();
        state.space.give_back(offset, charge);
        state.release(charge, label, self.0.op.get(), self.0.layer.get());
        if let Some(moves) = &mut state.moves {
            let moved = Move::release(self.0.op.get(), Label { layer: self.0.layer.get(), ..label }, charge);
            moves.push((moved, offset));
        }
    }

    /// Starts recording charges and releases.
    pub(crate) fn begin_moves(&self) {
        self.0.state.borrow_mut().moves = Some(Vec::new());
    }

    /// Ends recording; returns the moves if everything charged was released again and nothing else happened. `layer` is
    /// that of the part that ran.
    pub(crate) fn end_moves(&self, layer: i32) -> Option<Moves> {
        let moves = self.0.state.borrow_mut().moves.take()?;
        Moves::of(moves, layer, self.at())
    }

    /// Repeats recorded charges and releases at another layer.
    pub(crate) fn repeat_moves(&self, moves: &Moves, layer: i32) {
        let mut state = self.0.state.borrow_mut();
        let mut offsets = std::mem::take(&mut state.offsets);
        let whole = state.every_tile && state.timeline.is_some();
        for run in &moves.runs {
            for _ in 0..run.times {
                // Neither the peak nor the end of the range would change.
                let unseen = state.timeline.is_none() && state.usage.live + run.rise <= state.usage.peak_live;
                if unseen && run.fits(&state.space) {
                    break;
                }
                for one in &moves.list[run.range()] {
                    self.enter(one.op, one.layer(layer));
                    let label = Label { layer: one.layer(layer), ..one.label };
                    match one.released {
                        None => {
                            offsets.push(self.place(&mut state, one.charge, label.category));
                            state.charge(one.charge, label, one.op);
                        }
                        Some(at) => {
                            state.space.give_back(offsets[at as usize], one.charge);
                            state.release(one.charge, label, one.op, label.layer);
                        }
                    }
                }
                offsets.clear();
                // A pass over an unchanged free list repeats the same offsets.
                if !whole {
                    break;
                }
            }
        }
        state.offsets = offsets;
        self.enter(moves.last.0, moves.last_layer(layer));
    }

    /// Names the next buffer: an activation or its gradient. By default it is named after the operation.
    pub fn label(&self, name: &'static str, gradient: bool) {
        self.0.label.set(Some((name, gradient)));
    }

    /// Sets the operation and layer that following charges belong to.
    pub fn enter(&self, op: &'static str, layer: i32) {
        self.0.op.set(op);
        self.0.layer.set(layer);
    }

    /// The operation and layer that charges belong to.
    pub fn at(&self) -> (&'static str, i32) {
        (self.0.op.get(), self.0.layer.get())
    }

    /// Live bytes and peaks.
    pub fn usage(&self) -> PoolUsage {
        let state = self.0.state.borrow();
        let mut usage = state.usage.clone();
        usage.peak_op = match state.peak_layer {
            -1 => state.peak_op.to_string(),
            layer => format!("{} (layer {layer})", state.peak_op),
        };
        usage
    }

    /// Restarts the peak of live bytes at the current value; `peak_reserved` stays.
    pub fn reset_peak(&self) {
        let mut state = self.0.state.borrow_mut();
        state.usage.peak_live = state.usage.live;
        state.usage.peak_by_category = state.usage.by_category;
    }

    /// Has the machine commit memory for this many reserved bytes now rather than on demand. Charges nothing.
    ///
    /// # Panics
    /// With [`OutOfMemory`] if the machine does not have that much.
    pub fn prepare(&self, bytes: u64) {
        self.0.arena.grow(bytes.min(self.0.budget)).unwrap_or_else(|why| OutOfMemory::raise(why));
    }

    /// Starts recording a timeline.
    pub fn record(&self) {
        self.begin_timeline(true);
    }

    /// Starts recording a timeline without repeated tiles of a loop; the buffers live at the peak are still included.
    pub fn record_peak(&self) {
        self.begin_timeline(false);
    }

    fn begin_timeline(&self, every_tile: bool) {
        let mut state = self.0.state.borrow_mut();
        (state.timeline, state.every_tile) = (Some(Vec::new()), every_tile);
    }

    /// True if a timeline with every tile is being recorded.
    pub fn is_recording(&self) -> bool {
        let state = self.0.state.borrow();
        state.every_tile && state.timeline.is_some()
    }

    /// Ends recording and returns the timeline.
    pub fn recorded(&self) -> Vec<Mark> {
        self.0.state.borrow_mut().timeline.take().unwrap_or_default()
    }

    /// The memory budget in bytes.
    pub fn budget(&self) -> u64 {
        self.0.budget
    }
}

impl State {
    fn charge(&mut self, charge: u64, label: Label, op: &'static str) {
        self.usage.live += charge;
        self.usage.by_category[label.category] += charge;
        if self.usage.live > self.usage.peak_live {
            self.usage.peak_live = self.usage.live;
            self.usage.peak_by_category = self.usage.by_category;
            (self.peak_op, self.peak_layer) = (op, label.layer);
        }
        self.mark(op, label.layer, label, charge as i64);
    }

    fn release(&mut self, charge: u64, label: Label, op: &'static str, layer: i32) {
        self.usage.live -= charge;
        self.usage.by_category[label.category] -= charge;
        self.mark(op, layer, label, -(charge as i64));
    }

    fn mark(&mut self, op: &'static str, layer: i32, label: Label, delta: i64) {
        let by_category = self.usage.by_category;
        if let Some(timeline) = &mut self.timeline {
            timeline.push(Mark { op, layer, by_category, label, delta });
        }
    }
}

/// An address range of a machine, released when dropped.
pub trait Arena {
    /// The first address.
    fn base(&self) -> u64;
    /// Called before the pool uses bytes up to `end` of the range, more than ever before. A machine that has to request
    /// its memory does so here; the order of calls is the program's.
    ///
    /// # Errors
    /// If the machine has no memory left, with the amount it has.
    fn grow(&self, _end: u64) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, Meta, Profile, Tensor};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    fn device(budget: u64) -> Device {
        Device::new(Arc::new(Meta::new(Profile::portable(1))), budget)
    }

    #[test]
    fn charges_are_granules_and_peaks_are_kept() {
        let device = device(1 << 30);
        let granule = device.machine.profile().granule;
        let a = device.empty(1, 1, DType::F32, Category::Params);
        let b = device.empty(1, granule as usize + 1, DType::U8, Category::Activations);
        assert_eq!(device.pool.usage().live, 3 * granule);
        drop(b);
        let usage = device.pool.usage();
        assert_eq!((usage.live, usage.peak_live, usage.peak_reserved), (granule, 3 * granule, 3 * granule));
        assert_eq!(usage.by_category[Category::Params], granule);
        drop(a);
        assert_eq!(device.pool.usage().live, 0);
    }

    #[test]
    fn freed_neighbours_merge_and_are_used_again() {
        let device = device(1 << 30);
        let g = device.machine.profile().granule as usize;
        let keep: Vec<Tensor> = (0..4).map(|_| device.empty(1, g, DType::U8, Category::Data)).collect();
        let [a, b, c, d]: [Tensor; 4] = keep.try_into().unwrap();
        let first = b.address();
        drop(b);
        drop(c);
        let big = device.empty(1, 2 * g, DType::U8, Category::Data);
        assert_eq!(big.address(), first);
        drop((a, d, big));
        let all = device.empty(1, 4 * g, DType::U8, Category::Data);
        assert_eq!(device.pool.usage().peak_reserved, 4 * g as u64);
        drop(all);
    }

    #[test]
    fn a_view_keeps_the_storage() {
        let device = device(1 << 30);
        let a = device.empty(8, 4, DType::F32, Category::Data);
        let view = a.view_rows(2..4).view_cols(1..3);
        assert_eq!(view.address(), a.address() + (2 * 4 + 1) * 4);
        drop(a);
        assert!(device.pool.usage().live > 0);
        drop(view);
        assert_eq!(device.pool.usage().live, 0);
    }

    #[test]
    fn the_budget_holds() {
        let device = device(1 << 20);
        let ask = |bytes| device.empty(1, bytes, DType::U8, Category::Data);
        let held = ask(1000);
        let refused = catch_unwind(AssertUnwindSafe(|| ask(2 << 20))).err().unwrap();
        let said = refused.downcast::<OutOfMemory>().unwrap().to_string();
        assert!(said.starts_with("out of memory: "), "{said}");
        let live = device.pool.usage().live;
        assert!(said.ends_with(&format!("the budget is 1048576; live: data {live}")), "{said}");
        // The pool then behaves the same for later work.
        drop((held, ask(1 << 19)));
        assert_eq!(device.pool.usage().live, 0);
        ask(1 << 20);
    }
}
