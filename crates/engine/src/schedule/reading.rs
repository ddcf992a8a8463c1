//! Reading of stored prefixes, and the form of a stored page.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fathom_tensor::{Device, PAGE_ROWS};

use crate::pages::{Checkpoint, Pages, Place, Root, Table};
use crate::store::{Beginnings, Chain, Part};

/// Storing state of a sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct StoreProgress {
    /// By page; the first entry is the beginning without a page. Empty for a sequence that is not stored.
    pub chain: Vec<Chain>,
    /// Pages used after this time are not evicted for this sequence.
    pub since: u64,
    /// States that are not stored yet, each with the number of pages before it.
    pub states: Vec<(usize, Checkpoint)>,
}

impl StoreProgress {
    /// The initial state of a sequence that is to be stored.
    pub fn none((store, part): (Option<&Beginnings>, Part), root: &Root) -> StoreProgress {
        let Some(store) = store.map(Beginnings::lock) else { return StoreProgress::default() };
        StoreProgress { chain: vec![store.chain(root, part)], since: store.now(), states: Vec::new() }
    }
}

/// Maximum number of prefixes read at once.
pub(super) const AT_ONCE: usize = 8;

/// Time that a step waits for the next page if nothing else can run.
const LOOK: Duration = Duration::from_millis(100);

/// After this time without an answer, a disk read is abandoned, and the pages are computed.
pub(super) const LATE: Duration = Duration::from_secs(30);

/// Condition for running a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    Nothing,
    /// Its prefix is being read.
    Comes,
    /// The maximum number of other prefixes is being read.
    Later,
}

/// A prefix being read from disk for a sequence, until the sequence takes it.
pub(super) struct PrefixRead {
    /// The sequence: its request and answer index.
    pub of: (u64, usize),
    pub root: Root,
    pub ids: Vec<u32>,
    /// True if the sequence has its pages on disk.
    pub on_disk: bool,
    /// One chain per page, from the first.
    pub chains: Vec<Chain>,
    /// True if states follow the last page.
    pub ends_in_states: bool,
    /// True if the number of pages that all ranks have is known.
    pub started: bool,
    /// Number of pages in memory, and their end in the tree.
    pub next: usize,
    pub place: Option<Place>,
    /// The first page that each class needs.
    pub first: Vec<usize>,
    /// Pinned pages by class, held as long as this value.
    pub held: Vec<(usize, u32)>,
    /// Arrival time of the last page.
    pub heard: Instant,
    /// Channel for the pages; `None` if no more arrive.
    pub coming: Option<Receiver<Option<Vec<u8>>>>,
    /// Maximum number of pages waiting to be copied to memory.
    pub ahead: usize,
    pub arrived: VecDeque<Vec<u8>>,
    /// True if no more pages are copied to memory.
    pub done: bool,
}

impl PrefixRead {
    /// Number of pages that could be copied to memory now, and whether no more arrive; before the start, the number of
    /// all pages.
    pub fn counts(&self) -> [usize; 2] {
        let (there, ends) = (self.arrived.len(), self.coming.is_none());
        if self.started { [there, usize::from(ends)] } else { [self.chains.len(), 0] }
    }

    /// Starts to read `all` pages.
    pub fn start(&mut self, pages: &Pages, store: Option<&Beginnings>, all: usize) {
        self.started = true;
        self.chains.truncate(all);
        // Layers with a window need only the last pages.
        let first = |class| pages.window(class).map_or(0, |window| (all * PAGE_ROWS).saturating_sub(window));
        self.first = (0..pages.classes()).map(|class| first(class) / PAGE_ROWS).collect();
        if let (Some(rest), Some(store)) = (self.chains.get(self.next..).filter(|it| !it.is_empty()), store) {
            let states = rest.last().filter(|_| self.ends_in_states).map(Chain::states);
            let rest: Vec<Chain> = rest.iter().cloned().chain(states).collect();
            let store = store.lock();
            let (coming, ahead) = store.read(&rest, most_bytes(pages, store.model()));
            (self.coming, self.ahead, self.heard) = (Some(coming), ahead, Instant::now());
        }
    }

    /// Receives arrived pages, optionally waiting for some. A wrong page ends the reading, and is removed from the
    /// store.
    pub fn receive(&mut self, pages: &Pages, (store, late): (Option<&Beginnings>, Duration), mut wait: bool) {
        while let Some(coming) = self.coming.as_ref().filter(|_| self.arrived.len() < self.ahead) {
            let at = self.next + self.arrived.len();
            let heard = coming.recv_timeout(if wait { LOOK } else { Duration::ZERO });
            wait = false;
            let page = match heard {
                Ok(page) => page,
                Err(RecvTimeoutError::Timeout) if self.heard.elapsed() < late => return,
                Err(_) => {
                    self.coming = None;
                    return;
                }
            };
            self.heard = Instant::now();
            let needed = |parts: &Vec<Option<&[u8]>>| {
                parts.iter().zip(&self.first).all(|(part, first)| part.is_some() || at < *first)
            };
            let is_whole = |bytes: &Vec<u8>| match self.ids.get(at * PAGE_ROWS..(at + 1) * PAGE_ROWS) {
                Some(own) if at < self.chains.len() => {
                    unpacked(pages, own, bytes).as_ref().is_some_and(needed)
                }
                _ => self.has_states(pages, store, bytes),
            };
            let whole = page.filter(is_whole);
            match whole {
                Some(bytes) => self.arrived.push_back(bytes),
                None => {
                    self.coming = None;
                    let last = || self.chains.last().map(Chain::states);
                    let chain = self.chains.get(at).cloned().or_else(last);
                    store.iter().zip(&chain).for_each(|(store, chain)| store.lock().remove(chain));
                }
            }
        }
    }

    /// True if these are states of the model after the last page; those of another are reported.
    fn has_states(&self, pages: &Pages, store: Option<&Beginnings>, bytes: &[u8]) -> bool {
        let Some(store) = store.map(Beginnings::lock) else { return false };
        let found = unpacked_states(pages, store.model(), bytes);
        if let Err(why) = &found {
            log::warn!("{}: {why}; the prompt is read again", store.root().display());
        }
        found.is_ok()
    }

    pub fn release(&mut self, pages: &mut Pages) {
        self.held.drain(..).for_each(|(class, page)| pages.release(class, page));
    }
}

/// Maximum bytes of a stored page, with the keys and values of all classes, or of stored states.
fn most_bytes(pages: &Pages, model: &str) -> u64 {
    let classes: usize = (0..pages.classes()).map(|class| 1 + pages.bytes(class)).sum();
    (4 * PAGE_ROWS + classes).max(4 + model.len() + pages.checkpoint_bytes()) as u64
}

/// Serializes states: the length of the model's name, the name, and one state after the other.
pub(super) fn packed_states(model: &str, checkpoint: &Checkpoint) -> Vec<u8> {
    let length = (model.len() as u32).to_le_bytes();
    [&length, model.as_bytes()]
        .into_iter()
        .chain(checkpoint.iter().map(Vec::as_slice))
        .flatten()
        .copied()
        .collect()
}

/// The states in serialized ones.
///
/// # Errors
/// They are another model's, or have another size.
pub(super) fn unpacked_states(pages: &Pages, model: &str, bytes: &[u8]) -> Result<Checkpoint, String> {
    let named = bytes
        .split_first_chunk()
        .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
    let Some((name, states)) = named else { return Err("stored states without a model's name".into()) };
    if name != model.as_bytes() {
        let name = String::from_utf8_lossy(name);
        return Err(format!("stored states of the model {name}, and this is {model}"));
    }
    pages.split_states(states).ok_or_else(|| {
        let there = pages.checkpoint_bytes();
        format!("stored states of {} bytes, and the model {model} has {there}", states.len())
    })
}

/// Serializes a page: its tokens and, for each class, a flag and its keys and values.
pub(super) fn packed(
    device: &Device,
    pages: &Pages,
    (ids, table): (&[u32], &Table),
    index: usize,
) -> Vec<u8> {
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
pub(super) fn unpacked<'b>(pages: &Pages, ids: &[u32], bytes: &'b [u8]) -> Option<Vec<Option<&'b [u8]>>> {
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
