//! Pages of sequences on disk: stored as soon as they are full, and loaded when another sequence has the same prefix.
//!
//! A sequence that could run next waits while a thread reads its prefix; others continue meanwhile. Loaded data is
//! copied into pages from step to step, and the sequence holds them until it runs. If running sequences need these
//! pages, they get them, and the rest is computed.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Device, PAGE_ROWS, Tensor};

use super::Scheduler;
use super::sequence::Sequence;
use crate::pages::{Pages, Place, Root, Table};
use crate::store::{Beginnings, Chain, HeldReads, Part, PrefixStore};

/// Storing state of a sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// By page; the first entry is the beginning without a page. Empty for a sequence that is not stored.
    chain: Vec<Chain>,
    /// Pages used after this time are not evicted for this sequence.
    since: u64,
}

impl Kept {
    /// The initial state of a sequence that is to be stored.
    pub fn none((store, part): (Option<&Beginnings>, Part), root: &Root) -> Kept {
        let Some(store) = store.map(Beginnings::lock) else { return Kept::default() };
        Kept { chain: vec![store.chain(root, part)], since: store.now() }
    }
}

/// Maximum number of prefixes read at once.
const AT_ONCE: usize = 8;

/// Time that a step waits for the next page if nothing else can run.
const LOOK: Duration = Duration::from_millis(100);

/// After this time without an answer, a disk read is abandoned, and the pages are computed.
const LATE: Duration = Duration::from_secs(30);

/// Condition for running a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// Nothing.
    Nothing,
    /// Its prefix is being read.
    Comes,
    /// The maximum number of other prefixes is being read.
    Later,
}

/// A prefix being read from disk for a sequence, until the sequence takes it.
pub(super) struct Reading {
    /// The sequence: its request and answer index.
    of: (u64, usize),
    root: Root,
    ids: Vec<u32>,
    /// True if the sequence has its pages on disk.
    on_disk: bool,
    /// One chain per page, from the first.
    chains: Vec<Chain>,
    /// True if the number of pages that all ranks have is known.
    started: bool,
    /// Number of pages in memory, and their end in the tree.
    next: usize,
    place: Option<Place>,
    /// The first page that each class needs.
    first: Vec<usize>,
    /// Pinned pages by class, held as long as this value.
    held: Vec<(usize, u32)>,
    /// Arrival time of the last page.
    heard: Instant,
    /// Channel for the pages; `None` if no more arrive.
    coming: Option<Receiver<Option<Vec<u8>>>>,
    /// Maximum number of pages waiting to be copied to memory.
    ahead: usize,
    arrived: VecDeque<Vec<u8>>,
    /// True if no more pages are copied to memory.
    done: bool,
}

impl Reading {
    /// Number of pages that could be copied to memory now, and whether no more arrive; before the start, the number of
    /// all pages.
    fn counts(&self) -> [usize; 2] {
        let (there, ends) = (self.arrived.len(), self.coming.is_none());
        if self.started { [there, usize::from(ends)] } else { [self.chains.len(), 0] }
    }

    /// Starts to read `all` pages.
    fn start(&mut self, pages: &Pages, store: Option<&Beginnings>, all: usize) {
        self.started = true;
        self.chains.truncate(all);
        // Layers with a window need only the last pages.
        let first = |class| pages.window(class).map_or(0, |window| (all * PAGE_ROWS).saturating_sub(window));
        self.first = (0..pages.classes()).map(|class| first(class) / PAGE_ROWS).collect();
        if let (Some(rest), Some(store)) = (self.chains.get(self.next..).filter(|it| !it.is_empty()), store) {
            let (coming, ahead) = store.lock().read(rest, most_bytes(pages));
            (self.coming, self.ahead, self.heard) = (Some(coming), ahead, Instant::now());
        }
    }

    /// Receives arrived pages, optionally waiting for some. A wrong page ends the reading, and is removed from the
    /// store.
    fn receive(&mut self, pages: &Pages, store: Option<&Beginnings>, mut wait: bool) {
        while let Some(coming) = self.coming.as_ref().filter(|_| self.arrived.len() < self.ahead) {
            let at = self.next + self.arrived.len();
            let heard = coming.recv_timeout(if wait { LOOK } else { Duration::ZERO });
            wait = false;
            let page = match heard {
                Ok(page) => page,
                Err(RecvTimeoutError::Timeout) if self.heard.elapsed() < LATE => return,
                Err(_) => {
                    self.coming = None;
                    return;
                }
            };
            self.heard = Instant::now();
            let own = &self.ids[at * PAGE_ROWS..(at + 1) * PAGE_ROWS];
            let needed = |parts: &Vec<Option<&[u8]>>| {
                parts.iter().zip(&self.first).all(|(part, first)| part.is_some() || at < *first)
            };
            let whole = page.filter(|bytes| unpacked(pages, own, bytes).as_ref().is_some_and(needed));
            match whole {
                Some(bytes) => self.arrived.push_back(bytes),
                None => {
                    self.coming = None;
                    store.iter().for_each(|store| store.lock().remove(&self.chains[at]));
                }
            }
        }
    }

    fn release(&mut self, pages: &mut Pages) {
        self.held.drain(..).for_each(|(class, page)| pages.release(class, page));
    }
}

impl Scheduler<'_> {
    /// Stores the full pages of a running sequence.
    pub(super) fn keep(&mut self, index: usize) {
        let Some(store) = &self.store else { return };
        keep(&mut store.lock(), (self.engine.device, &self.pages), &mut self.running[index], false);
    }

    /// Stores the remaining full pages of a sequence that leaves, and marks all of them as used.
    pub(super) fn keep_all(&mut self, sequence: &mut Sequence<'_>) {
        let Some(store) = &self.store else { return };
        let mut store = store.lock();
        keep(&mut store, (self.engine.device, &self.pages), sequence, true);
        store.touch(sequence.kept.chain.get(1..).unwrap_or_default());
        self.totals.stored_bytes = store.bytes();
    }

    /// The condition for running a waiting sequence. Starts to read its prefix, if that is on disk.
    pub(super) fn fetches(&mut self, index: usize) -> Fetch {
        let sequence = &self.waiting[index];
        let asks = self.requests.get(&sequence.request).is_some_and(|it| it.asked.prompt_logprobs.is_some());
        if sequence.fetched || asks || self.store.is_none() {
            return Fetch::Nothing;
        }
        let long = self.is_long(sequence, sequence.ids.len());
        self.waiting[index].long = long;
        let root = self.root(&self.waiting[index]);
        let Sequence { request, answer, ids, fetched, on_disk, .. } = &mut self.waiting[index];
        let (Some(store), Some(tree)) = (&self.store, &mut self.tree) else { return Fetch::Nothing };
        let (store, pages, most) = (store.lock(), &mut self.pages, ids.len() - 1);
        let found = tree.find(pages, &root, &ids[..most], *on_disk);
        let mut chains = Vec::new();
        let mut chain = store.chain(&root, self.part);
        for (index, page) in ids[..most].chunks_exact(PAGE_ROWS).enumerate() {
            chain = chain.with(page);
            if index >= found.pages() && !store.has(&chain) {
                break;
            }
            chains.push(chain.clone());
        }
        // Ranks may have evicted different pages, so all of them check.
        let last = if self.part.is_none() { chains.len() } else { most / PAGE_ROWS };
        if last <= found.pages() {
            *fetched = true;
            return Fetch::Nothing;
        }
        if self.reads.len() == AT_ONCE {
            return Fetch::Later;
        }
        *fetched = true;
        self.reads.push(Reading {
            of: (*request, *answer),
            ids: ids.clone(),
            on_disk: *on_disk,
            held: tree.pin(pages, &found),
            place: tree.end(&found),
            next: found.pages(),
            root,
            chains,
            started: false,
            first: Vec::new(),
            heard: Instant::now(),
            coming: None,
            ahead: 0,
            arrived: VecDeque::new(),
            done: false,
        });
        Fetch::Comes
    }

    /// True if the sequence's prefix is being read.
    pub(super) fn is_fetching(&self, sequence: &Sequence<'_>) -> bool {
        self.reads.iter().any(|read| !read.done && read.of == (sequence.request, sequence.answer))
    }

    /// Copies pages that were read to memory, as far as there is room: on all ranks those that all of them have read.
    pub(super) fn take_reads(&mut self) {
        self.forget_reads();
        if self.reads.iter().all(|read| read.done) {
            return;
        }
        let mut all = std::mem::take(&mut self.reads);
        let mut own = Vec::new();
        for read in all.iter_mut().filter(|read| !read.done) {
            read.receive(&self.pages, self.store.as_ref(), false);
            own.push(read.counts());
        }
        for (read, [count, ended]) in all.iter_mut().filter(|read| !read.done).zip(self.agreed(&own)) {
            if !read.started {
                read.start(&self.pages, self.store.as_ref(), count);
                continue;
            }
            let short = (0..count).any(|_| !self.graft(read));
            read.done = short || ended > 0;
            if read.done {
                let grafted = read.chains.get(..read.next).unwrap_or_default();
                self.store.iter().for_each(|store| store.lock().touch(grafted));
                (read.coming, read.arrived) = (None, VecDeque::new());
            }
        }
        self.reads = all;
    }

    /// For each prefix, the number of pages that all ranks have, and whether one of them has no more
    /// ([`Reading::counts`]).
    fn agreed(&self, own: &[[usize; 2]]) -> Vec<[usize; 2]> {
        if self.part.is_none() {
            return own.to_vec();
        }
        let device = self.engine.device;
        let group = device.mesh.group(&[Axis::Tp, Axis::Pp]);
        let flat: Vec<i32> = own.iter().flatten().map(|count| *count as i32).collect();
        device.pool.enter("beginnings", -1);
        let mine = device.from_i32(&flat, Category::Data);
        let parts: Vec<Tensor> =
            (0..group.size()).map(|_| device.empty(1, flat.len(), DType::I32, Category::Data)).collect();
        group.all_gather(device, &mine, &parts).wait();
        let all: Vec<Vec<i32>> = parts
            .iter()
            .map(|part| {
                let bytes = device.machine.read(part).wait();
                bytes.chunks_exact(4).map(|it| i32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect()
            })
            .collect();
        let of = |(at, own): (usize, &[usize; 2])| {
            let each =
                || all.iter().map(|rank| [rank[2 * at].max(0) as usize, rank[2 * at + 1].max(0) as usize]);
            // If a rank failed, these numbers are meaningless.
            let count = each().map(|[count, _]| count).min().unwrap_or(0).min(own[0]);
            [count, usize::from(each().any(|[arrived, ended]| ended > 0 && arrived <= count))]
        };
        own.iter().enumerate().map(of).collect()
    }

    /// Copies the next page of a prefix to memory; false if there is no room, or its parent was evicted.
    fn graft(&mut self, read: &mut Reading) -> bool {
        let (Some(bytes), Some(tree)) = (read.arrived.pop_front(), &mut self.tree) else { return false };
        let (device, pages, index) = (self.engine.device, &mut self.pages, read.next);
        let own = &read.ids[index * PAGE_ROWS..(index + 1) * PAGE_ROWS];
        let Some(parts) = unpacked(pages, own, &bytes) else { return false };
        let mut there = vec![None; pages.classes()];
        for (class, part) in parts.into_iter().enumerate().filter(|(class, _)| index >= read.first[*class]) {
            let Some(part) = part else { continue };
            let Some(page) = tree.take(pages, class, read.on_disk) else { return false };
            read.held.push((class, page));
            pages.load(device, class, page, part);
            there[class] = Some(page);
        }
        let Some(place) = tree.graft(pages, (&read.root, read.place), (own, &there)) else { return false };
        read.place = Some(place);
        read.next += 1;
        self.totals.restored_tokens += PAGE_ROWS as u64;
        true
    }

    /// Waits until more of a prefix has arrived; false if none is being read.
    pub(super) fn await_read(&mut self) -> bool {
        let Some(read) = self.reads.iter_mut().find(|read| !read.done) else { return false };
        if read.started && read.arrived.is_empty() {
            read.receive(&self.pages, self.store.as_ref(), true);
        }
        true
    }

    /// Drops the prefixes of sequences that no longer wait.
    pub(super) fn forget_reads(&mut self) {
        let (waiting, pages) = (&self.waiting, &mut self.pages);
        self.reads.retain_mut(|read| {
            let waits = waiting.iter().any(|it| read.of == (it.request, it.answer));
            if !waits {
                read.release(pages);
            }
            waits
        });
    }

    /// Drops the prefix of a sequence, which has taken it.
    pub(super) fn forget_read(&mut self, sequence: &Sequence<'_>) {
        let pages = &mut self.pages;
        self.reads.retain_mut(|read| {
            let other = read.of != (sequence.request, sequence.answer);
            if !other {
                read.release(pages);
            }
            other
        });
    }

    /// Drops all prefixes, so that running sequences can use their pages; false if there were none.
    pub(super) fn give_up_reads(&mut self) -> bool {
        let any = self.reads.iter().any(|read| !read.held.is_empty());
        for mut read in self.reads.drain(..) {
            read.release(&mut self.pages);
        }
        any
    }

    /// Suspends reads from disk after `after` more pages, until the result is dropped; `None` without a store.
    pub fn hold_reads(&self, after: u64) -> Option<HeldReads> {
        self.store.as_ref().map(|store| store.lock().hold_reads(after))
    }

    /// Drops all prefixes in memory, and erases those on disk for one scope or all; returns their bytes. Running
    /// sequences are not stored any more.
    pub fn erase(&mut self, scope: Option<&str>) -> u64 {
        self.give_up_reads();
        if let Some(tree) = &mut self.tree {
            tree.clear(&mut self.pages);
        }
        let all = self.running.iter_mut().chain(&mut self.waiting);
        all.for_each(|sequence| sequence.kept = Kept::default());
        let Some(store) = &self.store else { return 0 };
        let mut store = store.lock();
        let erased = store.erase(scope);
        self.totals.stored_bytes = store.bytes();
        erased
    }
}

fn keep(
    store: &mut PrefixStore,
    (device, pages): (&Device, &Pages),
    sequence: &mut Sequence<'_>,
    wait: bool,
) {
    let Sequence { kept, ids, held, table, .. } = sequence;
    let Some(mut last) = kept.chain.last().cloned() else { return };
    while (last.pages() + 1) * PAGE_ROWS <= *held {
        let index = last.pages();
        let own = &ids[index * PAGE_ROWS..(index + 1) * PAGE_ROWS];
        let chain = last.with(own);
        if !store.has(&chain)
            && !store.put(&chain, || packed(device, pages, (own, table), index), (kept.since, wait))
        {
            return;
        }
        kept.chain.push(chain.clone());
        last = chain;
    }
}

/// Maximum bytes of a stored page, with the keys and values of all classes.
fn most_bytes(pages: &Pages) -> u64 {
    let classes: usize = (0..pages.classes()).map(|class| 1 + pages.bytes(class)).sum();
    (4 * PAGE_ROWS + classes) as u64
}

/// Serializes a page: its tokens and, for each class, a flag and its keys and values.
fn packed(device: &Device, pages: &Pages, (ids, table): (&[u32], &Table), index: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    for (class, page) in table.pages(index).into_iter().enumerate() {
        bytes.push(u8::from(page.is_some()));
        if let Some(page) = page {
            pages.save(device, class, page, &mut bytes);
        }
    }
    bytes
}

/// The keys and values of a serialized page by class, if it has these tokens.
fn unpacked<'b>(pages: &Pages, ids: &[u32], bytes: &'b [u8]) -> Option<Vec<Option<&'b [u8]>>> {
    let (own, mut rest) = bytes.split_at_checked(4 * ids.len())?;
    let same = ids.iter().zip(own.chunks_exact(4)).all(|(id, bytes)| id.to_le_bytes() == *bytes);
    let mut parts = Vec::new();
    for class in 0..pages.classes() {
        let (there, after) = rest.split_first()?;
        let size = if *there == 1 { pages.bytes(class) } else { 0 };
        let (part, after) = after.split_at_checked(size)?;
        // A pipeline stage may have no layer of a class.
        parts.push((*there == 1).then_some(part));
        rest = after;
    }
    (same && rest.is_empty()).then_some(parts)
}
