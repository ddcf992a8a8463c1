//! Memory of the batch: pages of keys and values, the tree of cached prefixes, and the store on disk.
//!
//! Pages are stored as soon as they are full, and loaded when another sequence has the same prefix.
//!
//! A sequence that could run next waits while a thread reads its prefix; others continue meanwhile. Loaded data is
//! copied into pages from step to step, and the sequence holds them until it runs. If running sequences need these
//! pages, they get them, and the rest is computed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fathom_base::Load;
use fathom_model::{LayerSpec, Sharers, Spec};
use fathom_tensor::mesh::Axis;
use fathom_tensor::{Category, DType, Device, PAGE_ROWS, Tensor};

use super::reading::{
    AT_ONCE, Fetch, LATE, PrefixRead, StoreProgress, packed, packed_states, unpacked, unpacked_states,
};
use super::sequence::Sequence;
use crate::engine::Engine;
use crate::error::Error;
use crate::limits::{CHECKPOINT_TOKENS, Capacity};
use crate::pages::{Pages, Root, Tree};
use crate::store::{Beginnings, Chain, HeldReads, Part, PrefixStore};

/// Most bytes of checkpoints of a whole model, in host memory.
const CHECKPOINT_BYTES: usize = 1 << 30;
/// Most checkpoints of a sequence that wait for a slow disk; the newest are worth the most.
const PENDING_CHECKPOINTS: usize = 8;

/// The next number of tokens at which a prompt's states are kept: multiples of [`CHECKPOINT_TOKENS`], and the last whole page
/// before its last token.
pub(super) fn next_mark(held: usize, prompt: usize) -> Option<usize> {
    let next = (held / CHECKPOINT_TOKENS + 1) * CHECKPOINT_TOKENS;
    Some(next.min(last_mark(prompt))).filter(|mark| *mark > held)
}

/// The last whole page of a prompt before its last token.
fn last_mark(prompt: usize) -> usize {
    prompt.saturating_sub(1) / PAGE_ROWS * PAGE_ROWS
}

fn is_mark(held: usize, prompt: usize) -> bool {
    held > 0 && next_mark(held - 1, prompt) == Some(held)
}

/// Most checkpoints; the same on all ranks.
fn most_checkpoints(spec: &Spec) -> usize {
    let states = spec.layers.iter().flat_map(LayerSpec::own).flat_map(|own| own.states(&Sharers::NONE));
    let bytes: usize = states.map(|state| 4 * state.shape.iter().product::<usize>()).sum();
    (CHECKPOINT_BYTES / bytes.max(1)).clamp(1, 1 << 16)
}

/// Pages, cached prefixes and stored ones.
pub(super) struct Memory {
    pub pages: Pages,
    tree: Tree,
    store: Option<Beginnings>,
    /// Reads from the store in progress.
    reads: Vec<PrefixRead>,
    /// Time without an answer after which a disk is given up.
    pub late: Duration,
    /// The rank's part of the model.
    part: Part,
    stored_bytes: u64,
    restored_tokens: u64,
}

impl Memory {
    pub fn new(engine: &Engine<'_>, capacity: &Capacity) -> Memory {
        let dtype = engine.model.dtype(engine.params);
        let room = (&capacity.pages[..], capacity.sequences, engine.guesses());
        Memory {
            pages: Pages::new(engine.device, engine.model, (dtype, engine.limits.kv), room),
            tree: if engine.has_states() {
                Tree::of_states(most_checkpoints(engine.spec()))
            } else {
                Tree::default()
            },
            store: None,
            reads: Vec::new(),
            late: LATE,
            part: engine.part(),
            stored_bytes: 0,
            restored_tokens: 0,
        }
    }

    /// Stores prefixes in an open folder, with this many pages of running sequences next to them.
    ///
    /// # Errors
    /// Those of the system, from the file of pages there.
    pub fn share(&mut self, device: &Device, beginnings: &Beginnings, on_disk: usize) -> Result<(), Error> {
        let store = beginnings.lock();
        self.stored_bytes = store.bytes();
        if on_disk > 0 {
            let folder = store.root();
            let why = |error: std::io::Error| Error::Store { folder: folder.into(), why: error.to_string() };
            self.pages.add_on_disk(device, folder, on_disk).map_err(why)?;
        }
        self.store = Some(beginnings.clone());
        Ok(())
    }

    /// Adds its figures to a load.
    pub fn load(&self, load: Load) -> Load {
        let [pages, free] = self.pages.counts(0);
        let pages_cached = self.tree.alone(&self.pages, 0);
        let (stored_bytes, restored_tokens) = (self.stored_bytes, self.restored_tokens);
        let pages_used = pages - free - pages_cached;
        Load { pages, pages_used, pages_cached, stored_bytes, restored_tokens, ..load }
    }

    /// Gives a sequence the pages of its cached prefix, of `most` tokens at most; returns their tokens.
    pub fn begin(&mut self, engine: &Engine<'_>, sequence: &mut Sequence<'_>, most: usize) -> usize {
        sequence.long = sequence.is_long_at(engine.spec(), sequence.ids.len());
        let root = sequence.root(engine.spec());
        self.begin_storing(sequence, &root);
        if most == 0 {
            return 0;
        }
        let tree = &mut self.tree;
        let (ids, on_disk) = (&sequence.ids[..most.min(sequence.ids.len() - 1)], sequence.on_disk);
        let found = tree.find(&self.pages, &root, ids, on_disk);
        sequence.checkpoint = tree.checkpoint(&found);
        let shared = tree.share(engine.device, &mut self.pages, (found, on_disk));
        (sequence.table, sequence.held) = shared;
        sequence.held
    }

    /// Takes the pages of a sequence that becomes a long one, and is read again.
    pub fn restart(&mut self, sequence: &mut Sequence<'_>, spec: &Spec) {
        self.pages.clear(&mut sequence.table);
        (sequence.held, sequence.long) = (0, true);
        self.begin_storing(sequence, &sequence.root(spec));
    }

    fn begin_storing(&self, sequence: &mut Sequence<'_>, root: &Root) {
        sequence.kept = StoreProgress::none((self.store.as_ref(), self.part), root);
    }

    /// Evicts cached pages of a class, in memory or on disk; false if there were too few.
    pub fn evict(&mut self, class: usize, (pages, on_disk): (usize, bool)) -> bool {
        let before = self.pages.free(class, on_disk);
        self.tree.evict(&mut self.pages, class, (pages, on_disk));
        self.pages.free(class, on_disk) >= before + pages
    }

    /// Caches a prompt that is read as a prefix for others.
    pub fn share_prompt(&mut self, sequence: &Sequence<'_>, spec: &Spec) {
        if !spec.has_states() {
            let root = sequence.root(spec);
            self.tree.insert(&mut self.pages, &root, (&sequence.ids, &sequence.table), false);
        }
    }

    /// Caches what was read of a prompt with the states of its layers, if it ends where others may go on.
    pub fn mark(&mut self, engine: &Engine<'_>, sequence: &mut Sequence<'_>) {
        let Sequence { held, prompt, slot, ids, table, .. } = &*sequence;
        if !engine.has_states() || !is_mark(*held, *prompt) {
            return;
        }
        let (states, root) = (self.pages.checkpoint(engine.device, *slot), sequence.root(engine.spec()));
        self.tree.mark(&mut self.pages, &root, (&ids[..*held], table), states.clone());
        if !sequence.kept.chain.is_empty() {
            let held = *held / PAGE_ROWS;
            let pending = &mut sequence.kept.states;
            pending.drain(..(pending.len() + 1).saturating_sub(PENDING_CHECKPOINTS));
            pending.push((held, states));
        }
    }

    /// Takes a sequence's pages and caches them as a prefix, for others or for itself.
    pub fn remember(&mut self, engine: &Engine<'_>, sequence: &mut Sequence<'_>) {
        self.keep_all(engine.device, sequence);
        let root = sequence.root(engine.spec());
        if !engine.has_states() {
            let held = &sequence.ids[..sequence.held];
            self.tree.insert(&mut self.pages, &root, (held, &sequence.table), true);
        }
        self.pages.clear(&mut sequence.table);
    }

    /// Drops all prefixes in memory.
    pub fn clear(&mut self) {
        self.give_up_reads();
        self.tree.clear(&mut self.pages);
    }

    /// Stores the full pages of a running sequence, and states after them.
    pub fn keep(&mut self, device: &Device, sequence: &mut Sequence<'_>) {
        let Some(store) = &self.store else { return };
        keep(&mut store.lock(), (device, &self.pages), sequence, false);
    }

    /// Stores the remaining full pages of a sequence that leaves, and marks all of them as used.
    fn keep_all(&mut self, device: &Device, sequence: &mut Sequence<'_>) {
        let Some(store) = &self.store else { return };
        let mut store = store.lock();
        keep(&mut store, (device, &self.pages), sequence, true);
        store.touch(&with_states(&self.pages, sequence.kept.chain.get(1..).unwrap_or_default()));
        self.stored_bytes = store.bytes();
    }

    /// The condition for running a waiting sequence. Starts to read its prefix, if that is on disk and the sequence does
    /// not have to read all of its tokens.
    pub fn fetches(&mut self, sequence: &mut Sequence<'_>, spec: &Spec, reads_all: bool) -> Fetch {
        if sequence.fetched || reads_all || self.store.is_none() {
            return Fetch::Nothing;
        }
        sequence.long = sequence.is_long_at(spec, sequence.ids.len());
        let root = sequence.root(spec);
        let Sequence { request, answer, ids, fetched, on_disk, .. } = sequence;
        let (Some(store), tree) = (&self.store, &mut self.tree) else { return Fetch::Nothing };
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
        let ends_in_states = pages.checkpoint_bytes() > 0;
        if ends_in_states {
            let stored = |chain: &Chain| store.has(&chain.states());
            chains.truncate(chains.iter().rposition(stored).map_or(0, |last| last + 1));
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
        self.reads.push(PrefixRead {
            of: (*request, *answer),
            ids: ids.clone(),
            on_disk: *on_disk,
            held: tree.pin(pages, &found),
            place: tree.end(&found),
            next: found.pages(),
            root,
            chains,
            ends_in_states,
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
    pub fn is_fetching(&self, sequence: &Sequence<'_>) -> bool {
        self.reads.iter().any(|read| !read.done && read.of == (sequence.request, sequence.answer))
    }

    /// Copies pages that were read to memory, as far as there is room: on all ranks those that all of them have read.
    pub fn take_reads(&mut self, device: &Device, waiting: &[Sequence<'_>]) {
        self.forget_reads(waiting);
        if self.reads.iter().all(|read| read.done) {
            return;
        }
        let mut all = std::mem::take(&mut self.reads);
        let mut own = Vec::new();
        for read in all.iter_mut().filter(|read| !read.done) {
            read.receive(&self.pages, (self.store.as_ref(), self.late), false);
            own.push(read.counts());
        }
        for (read, [count, ended]) in all.iter_mut().filter(|read| !read.done).zip(self.agreed(device, &own))
        {
            if !read.started {
                read.start(&self.pages, self.store.as_ref(), count);
                continue;
            }
            let short = (0..count).any(|_| !self.graft(device, read));
            read.done = short || ended > 0;
            if read.done {
                let grafted = &read.chains[..read.next.min(read.chains.len())];
                let grafted = with_states(&self.pages, grafted);
                self.store.iter().for_each(|store| store.lock().touch(&grafted));
                (read.coming, read.arrived) = (None, VecDeque::new());
            }
        }
        self.reads = all;
    }

    /// For each prefix, the number of pages that all ranks have, and whether one of them has no more
    /// ([`PrefixRead::counts`]).
    fn agreed(&self, device: &Device, own: &[[usize; 2]]) -> Vec<[usize; 2]> {
        if self.part.is_none() {
            return own.to_vec();
        }
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
    fn graft(&mut self, device: &Device, read: &mut PrefixRead) -> bool {
        let (Some(bytes), tree) = (read.arrived.pop_front(), &mut self.tree) else { return false };
        let (pages, index) = (&mut self.pages, read.next);
        if index == read.chains.len() {
            let model = self.store.as_ref().map_or(String::new(), |store| store.lock().model().into());
            let (Ok(states), Some(place)) = (unpacked_states(pages, &model, &bytes), read.place) else {
                return false;
            };
            read.next += 1;
            return tree.mark_at(pages, place, states);
        }
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
        self.restored_tokens += PAGE_ROWS as u64;
        true
    }

    /// Waits until more of a prefix has arrived; false if none is being read.
    pub fn await_read(&mut self) -> bool {
        let Some(read) = self.reads.iter_mut().find(|read| !read.done) else { return false };
        if read.started && read.arrived.is_empty() {
            read.receive(&self.pages, (self.store.as_ref(), self.late), true);
        }
        true
    }

    /// Drops the prefixes of sequences that no longer wait.
    pub fn forget_reads(&mut self, waiting: &[Sequence<'_>]) {
        let pages = &mut self.pages;
        self.reads.retain_mut(|read| {
            let waits = waiting.iter().any(|it| read.of == (it.request, it.answer));
            if !waits {
                read.release(pages);
            }
            waits
        });
    }

    /// Drops the prefix of a sequence, which has taken it.
    pub fn forget_read(&mut self, sequence: &Sequence<'_>) {
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
    pub fn give_up_reads(&mut self) -> bool {
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

    /// Drops all prefixes in memory, and erases those on disk for one scope or all; returns their bytes.
    pub fn erase(&mut self, scope: Option<&str>) -> u64 {
        self.clear();
        let Some(store) = &self.store else { return 0 };
        let mut store = store.lock();
        let erased = store.erase(scope);
        self.stored_bytes = store.bytes();
        erased
    }
}

fn keep(
    store: &mut PrefixStore,
    (device, pages): (&Device, &Pages),
    sequence: &mut Sequence<'_>,
    wait: bool,
) {
    let Sequence { kept, ids, held, prompt, table, .. } = sequence;
    let Some(mut last) = kept.chain.last().cloned() else { return };
    // Where layers have states, rows of an answer have other bits than the same rows of a prompt.
    let held = if pages.checkpoint_bytes() > 0 { last_mark(*prompt).min(*held) } else { *held };
    while (last.pages() + 1) * PAGE_ROWS <= held {
        let index = last.pages();
        let own = &ids[index * PAGE_ROWS..(index + 1) * PAGE_ROWS];
        let chain = last.with(own);
        if !store.has(&chain)
            && !store.put(&chain, || packed(device, pages, (own, table), index), (kept.since, wait))
        {
            break;
        }
        kept.chain.push(chain.clone());
        last = chain;
    }
    let StoreProgress { chain, since, states } = kept;
    states.retain(|(pages, states)| {
        let Some(chain) = chain.get(*pages).map(Chain::states) else { return true };
        let model = store.model().to_string();
        !store.has(&chain) && !store.put(&chain, || packed_states(&model, states), (*since, wait))
    });
}

/// The files of pages and, where layers have states, of those after them.
fn with_states(pages: &Pages, chains: &[Chain]) -> Vec<Chain> {
    let states = |chain: &Chain| (pages.checkpoint_bytes() > 0).then(|| chain.states());
    chains.iter().flat_map(|chain| [Some(chain.clone()), states(chain)]).flatten().collect()
}
