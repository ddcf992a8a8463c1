//! New tokens of some sequences as one packed stream over their pages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use fathom_grad::{Batch, LayerMemory, RowTerms, Terms};
use fathom_model::{Model, mask};
use fathom_tensor::{
    Category, DType, Device, Mask, PAGE_ROWS, PackPages, PageFormat, PageTable, Slice, Tensor,
};

use super::{Pages, Table};

/// New tokens of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Feed<'a> {
    /// The tokens, following those that are held.
    pub ids: &'a [u32],
    /// Tokens that are held.
    pub held: usize,
    /// Its pages, with room for the new tokens.
    pub table: &'a Table,
    /// Tokens that the sequence had when its first was read; what depends on its length does not depend on the chunks in which it is
    /// read. Later tokens see the length with themselves.
    pub known: usize,
    /// Where recurrences keep what they have of it.
    pub slot: usize,
    /// What an adapter adds to its rows.
    pub terms: Option<&'a Rc<Terms>>,
}

impl Feed<'_> {
    /// Runs of its rows, each with the length of the sequence that they see.
    fn lengths(&self, rows: &Range<usize>) -> Vec<(Range<usize>, usize)> {
        let early = self.known.saturating_sub(self.held).min(rows.len());
        let first = (early > 0).then(|| (rows.start..rows.start + early, self.known));
        let later = (early..rows.len()).map(|at| (rows.start + at..rows.start + at + 1, self.held + at + 1));
        first.into_iter().chain(later).collect()
    }
}

/// What recurrences keep: by layer, one state for each slot, below each other.
pub(crate) type States = BTreeMap<usize, Tensor>;

/// The memory of a batch of feeds: what its new tokens write, and what they read.
pub(crate) struct Feeding<'a> {
    pages: &'a Pages,
    feeds: &'a [Feed<'a>],
    rows: Vec<Range<usize>>,
    /// By class, whether a feed sees pages that are on disk.
    on_disk: Vec<bool>,
    states: &'a mut States,
    slots: usize,
}

impl<'a> Feeding<'a> {
    /// The batch of some feeds, with masks that let every token see its own sequence up to itself, and its memory.
    ///
    /// # Panics
    /// If a table lacks a page.
    pub fn new(
        (device, model): (&Device, &Model),
        pages: &'a Pages,
        feeds: &'a [Feed<'a>],
        (states, slots): (&'a mut States, usize),
    ) -> (Batch, Feeding<'a>) {
        device.pool.enter("batch", -1);
        let (mut ids, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for feed in feeds {
            rows.push(ids.len()..ids.len() + feed.ids.len());
            ids.extend(feed.ids.iter().map(|id| *id as i32));
            positions.extend(feed.held as i32..(feed.held + feed.ids.len()) as i32);
        }
        let sequences =
            feeds.iter().zip(&rows).flat_map(|(feed, rows)| feed.lengths(rows)).collect::<Vec<_>>();
        let (tokens, text) = (ids.len(), model.text(device, &ids));
        let [ids, positions] =
            [&model.looked_up(&ids)[..], &positions].map(|row| device.from_i32(row, Category::Data));
        let ropes = model.rope_tables(device, &positions, &sequences);
        let mut feeding = Feeding { pages, feeds, rows, on_disk: Vec::new(), states, slots };
        feeding.on_disk = (0..pages.classes()).map(|class| feeding.sees_disk(class)).collect();
        let masks = (0..pages.classes()).map(|class| feeding.mask(device, &positions, class)).collect();
        let (context, keys, terms) = (None, None, feeding.terms());
        (Batch { tokens, ids, positions, masks, ropes, context, text, keys, terms }, feeding)
    }

    /// Rows that are next to each other and have the same adapter's terms, with these.
    fn terms(&self) -> Vec<RowTerms> {
        let mut all: Vec<RowTerms> = Vec::new();
        for (feed, rows) in self.feeds.iter().zip(&self.rows) {
            let Some(terms) = feed.terms else { continue };
            match all.last_mut() {
                Some(last) if Rc::ptr_eq(&last.terms, terms) && last.rows.end == rows.start => {
                    last.rows.end = rows.end;
                }
                _ => all.push(RowTerms { rows: rows.clone(), terms: terms.clone() }),
            }
        }
        all
    }

    /// The pages of a class that a feed's tokens see, from the first that they reach.
    fn seen(&self, class: usize, feed: &Feed<'_>) -> Range<usize> {
        let window = self.pages.classes[class].window;
        let first = window.map_or(0, |window| feed.held.saturating_sub(window));
        first / PAGE_ROWS..(feed.held + feed.ids.len()).div_ceil(PAGE_ROWS)
    }

    fn sees_disk(&self, class: usize) -> bool {
        let on_disk = |feed: &Feed<'_>, index| self.pages.is_on_disk(class, self.page(class, feed, index));
        self.feeds.iter().any(|feed| self.seen(class, feed).any(|index| on_disk(feed, index)))
    }

    fn mask(&self, device: &Device, positions: &Tensor, class: usize) -> Mask {
        let (mut slices, mut pos_k, mut pages, mut pairs) = (Vec::new(), Vec::new(), Vec::new(), 0u64);
        for (feed, rows) in self.feeds.iter().zip(&self.rows) {
            let seen = self.seen(class, feed);
            let (first, end) = (seen.start * PAGE_ROWS, feed.held + feed.ids.len());
            let start = pages.len() * PAGE_ROWS;
            slices.push(Slice::causal(
                rows.clone(),
                start..start + end - first,
                self.pages.classes[class].window,
            ));
            pages.extend(seen.clone().map(|index| self.page(class, feed, index) as i32));
            // Tokens behind a sequence's end, up to the end of its last page, are unused.
            pos_k.extend((first..seen.end * PAGE_ROWS).map(|at| at as i32));
            pairs += (rows.len() * (end - first)) as u64;
        }
        let pos_k = device.from_i32(&pos_k, Category::Data);
        let table = |pages: &[i32]| PageTable {
            pages: device.from_i32(pages, Category::Data),
            format: self.pages.format,
        };
        if self.on_disk[class] {
            // They are gathered, in this order.
            pages = (0..pages.len() as i32).collect();
        }
        let pages = device.machine.reads_pages().then(|| table(&pages));
        Mask { pages, ..mask(device, &slices, slices.len().max(1), [positions, &pos_k], pairs) }
    }

    #[track_caller]
    fn page(&self, class: usize, feed: &Feed<'_>, index: usize) -> u32 {
        let page = feed.table.classes[class].page(index);
        page.unwrap_or_else(|| panic!("kv: page {index} of a sequence of {} tokens is not there", feed.held))
    }

    /// Writes the new rows of a layer's keys or values to their pages.
    fn write(&self, device: &Device, (layer, which): (usize, usize), from: &Tensor) {
        let (class, into) = (self.pages.of_layer[layer], &self.pages.layers[layer][which]);
        for (feed, rows) in self.feeds.iter().zip(&self.rows) {
            let mut done = 0;
            while done < rows.len() {
                let at = feed.held + done;
                let (index, inside) = (at / PAGE_ROWS, at % PAGE_ROWS);
                let count = (PAGE_ROWS - inside).min(rows.len() - done);
                let page = self.page(class, feed, index);
                let (to, on_disk) = (page as usize * PAGE_ROWS + inside, self.pages.is_on_disk(class, page));
                let part = rows.start + done..rows.start + done + count;
                let out = if on_disk {
                    device.empty(count, into.cols(), into.dtype(), Category::Activations)
                } else {
                    into.view_rows(to..to + count)
                };
                let (x, out) = (&from.view_rows(part), &out);
                match self.pages.format {
                    PageFormat::Plain => device.machine.copy(x, out),
                    format => device.machine.pack_pages(&PackPages {
                        x,
                        head_dim: self.pages.head_dim,
                        format,
                        out,
                    }),
                }
                if on_disk {
                    let bytes = device.machine.read(out).wait();
                    self.pages.write_rows(device, (layer, which), to..to + count, &bytes);
                }
                done += count;
            }
        }
    }

    /// All pages that the batch sees, in order: for machines that do not read pages where they are, and where some are on disk.
    fn gather(&self, device: &Device, (layer, which): (usize, usize)) -> Tensor {
        let (class, held) = (self.pages.of_layer[layer], &self.pages.layers[layer][which]);
        let pages: Vec<u32> = self
            .feeds
            .iter()
            .flat_map(|feed| self.seen(class, feed).map(|index| self.page(class, feed, index)))
            .collect();
        let all = device.empty(pages.len() * PAGE_ROWS, held.cols(), held.dtype(), Category::Activations);
        for (index, page) in pages.iter().enumerate() {
            if self.pages.is_on_disk(class, *page) {
                let bytes = self.pages.read_rows(device, (layer, which), *page, PAGE_ROWS);
                device.machine.write(&all.view_rows(index * PAGE_ROWS..(index + 1) * PAGE_ROWS), &bytes);
                continue;
            }
            let [from, to] = [*page as usize, index].map(|page| page * PAGE_ROWS..(page + 1) * PAGE_ROWS);
            device.machine.copy(&held.view_rows(from), &all.view_rows(to));
        }
        all
    }
}

impl LayerMemory for Feeding<'_> {
    fn append(&mut self, device: &Device, layer: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        let (class, [keys, values]) = (self.pages.of_layer[layer], &self.pages.layers[layer]);
        self.write(device, (layer, 0), k);
        self.write(device, (layer, 1), v);
        if device.machine.reads_pages() && !self.on_disk[class] {
            return (keys.clone(), values.clone());
        }
        (self.gather(device, (layer, 0)), self.gather(device, (layer, 1)))
    }

    fn state(
        &mut self,
        device: &Device,
        layer: usize,
        [rows, cols]: [usize; 2],
    ) -> Vec<(Range<usize>, Tensor)> {
        let make = || device.zeros(self.slots * rows, cols, DType::F32, Category::Kv);
        let states = self.states.entry(layer).or_insert_with(make);
        let of = |(feed, run): (&Feed<'_>, &Range<usize>)| {
            let state = states.view_rows(feed.slot * rows..(feed.slot + 1) * rows);
            if feed.held == 0 {
                device.machine.zero(&state);
            }
            (run.clone(), state)
        };
        self.feeds.iter().zip(&self.rows).map(of).collect()
    }
}
