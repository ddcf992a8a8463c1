//! Pages of sequences on disk: kept as soon as they are full, brought back when another sequence begins with the same tokens.

use fathom_tensor::{Device, PAGE_ROWS};

use super::Scheduler;
use super::sequence::Sequence;
use crate::pages::{Pages, Root, Table};
use crate::store::{Chain, PrefixStore};

/// How far a sequence is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// By page; the first is the beginning without a page. Empty for a sequence that is not kept.
    chain: Vec<Chain>,
    /// Nothing that was used after this is given up for its sake.
    since: u64,
}

impl Kept {
    /// Nothing yet of a sequence that is to be.
    pub fn none(store: Option<&PrefixStore>, root: &Root) -> Kept {
        store.map_or_else(Kept::default, |store| Kept { chain: vec![store.chain(root)], since: store.now() })
    }
}

impl Scheduler<'_> {
    /// Keeps the full pages of a running sequence.
    pub(super) fn keep(&mut self, index: usize) {
        let Some(store) = &mut self.store else { return };
        keep(store, (self.engine.device, &self.pages), &mut self.running[index], false);
    }

    /// Keeps what is left of the full pages of a sequence that leaves, and notes that all of them were used.
    pub(super) fn keep_all(&mut self, sequence: &mut Sequence<'_>) {
        let Some(store) = &mut self.store else { return };
        keep(store, (self.engine.device, &self.pages), sequence, true);
        store.touch(sequence.kept.chain.get(1..).unwrap_or_default());
        self.totals.stored_bytes = store.bytes();
    }

    /// Brings what a sequence begins with back into memory, as far as it was kept and there are pages: at most `most` tokens.
    pub(super) fn restore(&mut self, root: &Root, ids: &[u32], most: usize) {
        let (Some(store), Some(tree)) = (&mut self.store, &mut self.tree) else { return };
        let (device, pages) = (self.engine.device, &mut self.pages);
        let found = tree.find(pages, root, ids, most);
        let mut chains = Vec::new();
        let mut chain = store.chain(root);
        for (index, page) in ids[..most].chunks_exact(PAGE_ROWS).enumerate() {
            chain = chain.with(page);
            if index >= found.pages() && !store.has(&chain) {
                break;
            }
            chains.push(chain.clone());
        }
        // Layers with a window read the last pages alone.
        let end = chains.len() * PAGE_ROWS;
        let first: Vec<usize> = (0..pages.classes())
            .map(|class| pages.window(class).map_or(0, |window| end.saturating_sub(window)) / PAGE_ROWS)
            .collect();
        let mut held = tree.pin(pages, &found);
        let mut place = found.place();
        for (index, chain) in chains.iter().enumerate().skip(found.pages()) {
            let own = &ids[index * PAGE_ROWS..(index + 1) * PAGE_ROWS];
            let Some(bytes) = store.get(chain) else { break };
            let Some(parts) = unpacked(pages, own, &bytes) else { break };
            let mut there = vec![None; pages.classes()];
            let mut short = false;
            for (class, part) in parts.into_iter().enumerate().filter(|(class, _)| index >= first[*class]) {
                let Some(part) = part else { continue };
                if pages.counts(class)[1] == 0 {
                    tree.evict(pages, class, 1);
                }
                let Some(page) = pages.take(class) else {
                    short = true;
                    break;
                };
                held.push((class, page));
                pages.load(device, class, page, part);
                there[class] = Some(page);
            }
            if short {
                break;
            }
            place = Some(tree.graft(pages, (root, place), (own, &there)));
            self.totals.restored_tokens += PAGE_ROWS as u64;
        }
        store.touch(&chains);
        held.into_iter().for_each(|(class, page)| pages.release(class, page));
    }

    /// Gives up all beginnings in memory, and erases what is kept on disk of one scope or of all; returns its bytes. What runs is not
    /// kept any more.
    pub fn erase(&mut self, scope: Option<&str>) -> u64 {
        if let Some(tree) = &mut self.tree {
            tree.clear(&mut self.pages);
        }
        let all = self.running.iter_mut().chain(&mut self.waiting);
        all.for_each(|sequence| sequence.kept = Kept::default());
        let Some(store) = &mut self.store else { return 0 };
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

/// A page: its tokens, and of each class whether its keys and values follow, and these.
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

/// The keys and values of a page by class, if it is one of these tokens.
fn unpacked<'b>(pages: &Pages, ids: &[u32], bytes: &'b [u8]) -> Option<Vec<Option<&'b [u8]>>> {
    let (own, mut rest) = bytes.split_at_checked(4 * ids.len())?;
    let same = ids.iter().zip(own.chunks_exact(4)).all(|(id, bytes)| id.to_le_bytes() == *bytes);
    let mut parts = Vec::new();
    for class in 0..pages.classes() {
        let (there, after) = rest.split_first()?;
        let size = if *there == 1 { pages.bytes(class) } else { 0 };
        let (part, after) = after.split_at_checked(size)?;
        parts.push((size > 0).then_some(part));
        rest = after;
    }
    (same && rest.is_empty()).then_some(parts)
}
