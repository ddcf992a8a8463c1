//! New tokens of several sequences as one packed stream over their pages.

use std::ops::Range;
use std::rc::Rc;

use fathom_grad::{Batch, DocumentRun, DocumentRuns, LayerMemory, RowTerms, Terms};
use fathom_model::{Model, mask};
use fathom_tensor::{Category, Device, Mask, PAGE_ROWS, PackPages, PageFormat, PageTable, Slice, Tensor};

use super::row::row_bytes;
use super::sources::{BatchSources, SourceText};
use super::{Pages, Side, Table};

/// New tokens of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Feed<'a> {
    /// The tokens, following those that are cached.
    pub ids: &'a [u32],
    /// Number of cached tokens.
    pub held: usize,
    /// Its pages, with room for the new tokens.
    pub table: &'a Table,
    /// Length of the sequence when its first token was read. Length-dependent settings use it, so that they do not
    /// depend on how the prompt is chunked; later tokens see the length up to themselves.
    pub known: usize,
    /// Slot of its recurrent states.
    pub slot: usize,
    /// The adapter's terms for its rows.
    pub terms: Option<&'a Rc<Terms>>,
    /// The text that it answers, if the model has a source.
    pub source: Option<&'a Rc<SourceText>>,
}

impl Feed<'_> {
    /// Ranges of its rows, each with the sequence length that they see.
    fn lengths(&self, rows: &Range<usize>) -> Vec<(Range<usize>, usize)> {
        let early = self.known.saturating_sub(self.held).min(rows.len());
        let first = (early > 0).then(|| (rows.start..rows.start + early, self.known));
        let later = (early..rows.len()).map(|at| (rows.start + at..rows.start + at + 1, self.held + at + 1));
        first.into_iter().chain(later).collect()
    }
}

/// The memory of a batch of feeds: pages that its tokens write and read.
pub(crate) struct FeedMemory<'a> {
    pages: &'a Pages,
    feeds: &'a [Feed<'a>],
    rows: Vec<Range<usize>>,
    /// By class, whether a feed reads pages on disk.
    on_disk: Vec<bool>,
    /// The texts that the feeds answer.
    pub sources: BatchSources,
}

impl<'a> FeedMemory<'a> {
    /// The batch of some feeds, with masks that let every token see its own sequence up to itself, and its memory.
    ///
    /// # Panics
    /// If a table lacks a page.
    pub fn new(
        (device, model): (&Device, &Model),
        pages: &'a Pages,
        feeds: &'a [Feed<'a>],
    ) -> (Batch, FeedMemory<'a>) {
        device.pool.enter("batch", -1);
        let (mut ids, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for feed in feeds {
            rows.push(ids.len()..ids.len() + feed.ids.len());
            ids.extend(feed.ids.iter().map(|id| *id as i32));
            positions.extend(feed.held as i32..(feed.held + feed.ids.len()) as i32);
        }
        let sequences =
            feeds.iter().zip(&rows).flat_map(|(feed, rows)| feed.lengths(rows)).collect::<Vec<_>>();
        let text = model.text(device, &ids);
        let [ids, positions] =
            [&model.looked_up(&ids)[..], &positions].map(|row| device.from_i32(row, Category::Data));
        let ropes = model.rope_tables(device, &positions, &sequences);
        let sources = BatchSources::new(model, feeds.iter().filter_map(|feed| feed.source));
        let mut feeding = FeedMemory { pages, feeds, rows, on_disk: Vec::new(), sources };
        feeding.on_disk = (0..pages.classes()).map(|class| feeding.sees_disk(class)).collect();
        feeding.read_ahead(0);
        let mut masks: Vec<Mask> =
            (0..pages.classes()).map(|class| feeding.mask(device, &positions, class)).collect();
        if model.spec.source > 0 {
            masks.push(feeding.sources.mask(device, &positions, &feeding.rows));
        }
        let documents = model.spec.mixes_by_document().then(|| feeding.documents(device));
        let (terms, slopes) = (feeding.terms(), model.slopes(device));
        (Batch { documents, masks, ropes, text, terms, slopes, ..Batch::new(ids, positions) }, feeding)
    }

    /// The feeds' rows, each a document.
    fn documents(&self, device: &Device) -> DocumentRuns {
        let run = |(document, (feed, rows)): (usize, (&Feed<'_>, &Range<usize>))| DocumentRun {
            rows: rows.clone(),
            document,
            offset: feed.held,
        };
        let runs = self.feeds.iter().zip(&self.rows).enumerate().map(run).collect();
        DocumentRuns::new(device, runs, self.feeds.len())
    }

    /// Adapter terms, each with a range of adjacent rows that share them.
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

    /// The range of pages in a class that a feed's tokens see.
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
            // Positions after a sequence's end, up to the end of its last page, are unused.
            pos_k.extend((first..seen.end * PAGE_ROWS).map(|at| at as i32));
            pairs += (rows.len() * (end - first)) as u64;
        }
        let pos_k = device.from_i32(&pos_k, Category::Data);
        let table = |pages: &[i32]| PageTable {
            pages: device.from_i32(pages, Category::Data),
            format: self.pages.format,
        };
        if self.on_disk[class] {
            // Pages are gathered in this order.
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

    /// Writes the new rows of a layer's keys or values to their pages. Rows for pages on disk are first copied into the
    /// gathered tensor.
    fn write(&self, device: &Device, (layer, which): Side, from: &Tensor, gathered: Option<&Tensor>) {
        let (class, into) = (self.pages.of_layer[layer], &self.pages.layers[layer][which]);
        let starts = self.starts(class);
        for ((feed, rows), start) in self.feeds.iter().zip(&self.rows).zip(starts) {
            let mut done = 0;
            while done < rows.len() {
                let at = feed.held + done;
                let (index, inside) = (at / PAGE_ROWS, at % PAGE_ROWS);
                let count = (PAGE_ROWS - inside).min(rows.len() - done);
                let page = self.page(class, feed, index);
                let to = page as usize * PAGE_ROWS + inside;
                let on_disk = gathered.filter(|_| self.pages.is_on_disk(class, page));
                let out = match on_disk {
                    Some(gathered) => gathered.view_rows(start + at..start + at + count),
                    None => into.view_rows(to..to + count),
                };
                self.put(device, &from.view_rows(rows.start + done..rows.start + done + count), &out);
                if on_disk.is_some() {
                    let bytes = device.machine.read(&out).wait();
                    self.pages.write_rows(device, (layer, which), to..to + count, bytes);
                }
                done += count;
            }
        }
    }

    /// Converts rows to the pages' format.
    fn put(&self, device: &Device, x: &Tensor, out: &Tensor) {
        let Pages { format, head_dim, .. } = *self.pages;
        match format {
            PageFormat::Plain => device.machine.copy(x, out),
            format => device.machine.pack_pages(&PackPages { x, head_dim, format, out }),
        }
    }

    /// The first row of each sequence among the gathered pages.
    fn starts(&self, class: usize) -> Vec<usize> {
        let pages = |feed: &Feed<'_>| self.seen(class, feed).len();
        let start =
            |sum: &mut usize, feed: &Feed<'_>| Some(std::mem::replace(sum, *sum + pages(feed)) * PAGE_ROWS);
        self.feeds.iter().scan(0, start).collect()
    }

    /// Runs of adjacent pages that the batch sees, in memory, or on disk as far as their rows are cached already; a run
    /// on disk has at most `most` pages.
    fn pieces(&self, class: usize, most: usize) -> Vec<Piece> {
        let mut all: Vec<Piece> = Vec::new();
        for (feed, start) in self.feeds.iter().zip(self.starts(class)) {
            let seen = self.seen(class, feed);
            for index in seen.clone() {
                let (page, to) = (self.page(class, feed, index), start + (index - seen.start) * PAGE_ROWS);
                let on_disk = self.pages.is_on_disk(class, page);
                let held = feed.held.saturating_sub(index * PAGE_ROWS).min(PAGE_ROWS);
                let rows = if on_disk { held } else { PAGE_ROWS };
                match all.last_mut() {
                    Some(last) if last.goes_on(page, on_disk, most) => last.rows += rows,
                    _ if rows > 0 => all.push(Piece { page, on_disk, to, rows }),
                    _ => {}
                }
            }
        }
        all
    }

    /// Gathers all pages that the batch sees, in order, except new rows of pages on disk: for machines that cannot read
    /// pages in place, and if some are on disk.
    fn gather(&self, device: &Device, (layer, which): Side, all: &Tensor) {
        let (class, held) = (self.pages.of_layer[layer], &self.pages.layers[layer][which]);
        let mut read = Vec::new();
        for Piece { page, on_disk, to, rows } in self.pieces(class, self.pages.piece((layer, which))) {
            let (first, into) = (page as usize * PAGE_ROWS, all.view_rows(to..to + rows));
            if on_disk {
                read.push(((page, rows), into));
            } else {
                device.machine.copy(&held.view_rows(first..first + rows), &into);
            }
        }
        self.pages.fill(device, (layer, which), read);
    }

    /// A tensor for all pages that the batch sees; zeros where pages on disk have no rows yet.
    fn room(&self, device: &Device, (layer, which): Side) -> Tensor {
        let (class, held) = (self.pages.of_layer[layer], &self.pages.layers[layer][which]);
        let starts = self.starts(class);
        let rows = |feed: &Feed<'_>| self.seen(class, feed).len() * PAGE_ROWS;
        let ends = self.feeds.iter().zip(&starts).map(|(feed, start)| start + rows(feed));
        let all = device.empty(
            ends.clone().next_back().unwrap_or(0),
            held.cols(),
            held.dtype(),
            Category::Activations,
        );
        for (feed, end) in self.feeds.iter().zip(ends) {
            let unused = (PAGE_ROWS - (feed.held + feed.ids.len()) % PAGE_ROWS) % PAGE_ROWS;
            device.machine.zero(&all.view_rows(end - unused..end));
        }
        all
    }

    /// Starts to read ahead for the next layer with pages on disk, cyclically from layer `from`: in the next step,
    /// sequences still have these pages.
    fn read_ahead(&self, from: usize) {
        let layers = self.pages.layers.len();
        let sees = |layer: &usize| {
            row_bytes(&self.pages.layers[*layer][0]) > 0 && self.on_disk[self.pages.of_layer[*layer]]
        };
        let Some(layer) = (from..layers).chain(0..from).find(sees) else { return };
        let on_disk = [0, 1].into_iter().flat_map(|which| {
            let pieces = self.pieces(self.pages.of_layer[layer], self.pages.piece((layer, which)));
            let there = pieces.into_iter().filter(|piece| piece.on_disk);
            there.map(move |piece| ((layer, which), (piece.page, piece.rows)))
        });
        self.pages.read_ahead(on_disk);
    }
}

/// A run of adjacent pages.
struct Piece {
    page: u32,
    on_disk: bool,
    /// First row among the gathered pages.
    to: usize,
    rows: usize,
}

impl Piece {
    /// True if `page` continues the run.
    fn goes_on(&self, page: u32, on_disk: bool, most: usize) -> bool {
        let pages = self.rows / PAGE_ROWS;
        let whole = self.rows.is_multiple_of(PAGE_ROWS);
        whole
            && self.on_disk == on_disk
            && page as usize == self.page as usize + pages
            && (!on_disk || pages < most)
    }
}

impl LayerMemory for FeedMemory<'_> {
    fn append(&mut self, device: &Device, layer: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        let (class, [keys, values]) = (self.pages.of_layer[layer], &self.pages.layers[layer]);
        let on_disk = self.on_disk[class];
        if device.machine.reads_pages() && !on_disk {
            self.write(device, (layer, 0), k, None);
            self.write(device, (layer, 1), v, None);
            return (keys.clone(), values.clone());
        }
        self.pages.settle();
        let [keys, values] = [(0, k), (1, v)].map(|(which, from)| {
            let all = self.room(device, (layer, which));
            self.write(device, (layer, which), from, Some(&all));
            self.gather(device, (layer, which), &all);
            all
        });
        if on_disk {
            self.read_ahead(layer + 1);
        }
        (keys, values)
    }

    fn source(&mut self, device: &Device, layer: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        self.sources.keys(device, layer, [k, v]).into()
    }

    fn state(&mut self, device: &Device, layer: usize, name: &str, sequence: usize) -> Tensor {
        let feed = &self.feeds[sequence];
        let state = self.pages.states.get(layer, name, feed.slot);
        if feed.held == 0 {
            device.machine.zero(&state);
        }
        state
    }
}
