//! Memory of keys and values: pages of [`PAGE_ROWS`] tokens, which sequences with the same prefix share.
//!
//! Layers with the same window form a *class* and use the same pages of a sequence, each with tensors of its own; a
//! sequence's [`Table`] lists its pages for each class. Layers with a window keep only the pages within it. After the
//! pages in memory there may be some on disk, for longer sequences ([`file`]): a step that reads such pages gathers
//! them layer by layer, starting on the next layer while one is computed.

mod ahead;
mod feed;
mod file;
mod row;
mod sources;
mod states;
mod tree;

use std::ops::Range;
use std::path::Path;

use fathom_model::Model;
use fathom_tensor::{Category, DType, Device, PAGE_ROWS, PageFormat, Tensor};

pub(crate) use feed::{Feed, FeedMemory};
use file::{PageFile, Side};
use row::row_bytes;
pub(crate) use sources::SourceText;
use states::States;
pub(crate) use states::{Checkpoint, state_bytes};
pub(crate) use tree::{Place, Root, Tree};

/// Pages of all layers.
pub(crate) struct Pages {
    classes: Vec<Class>,
    /// The class of each layer; 0 for a layer without keys.
    of_layer: Vec<usize>,
    /// Keys and values of each layer, [pages x rows, columns].
    layers: Vec<[Tensor; 2]>,
    format: PageFormat,
    head_dim: usize,
    /// The pages on disk.
    file: Option<PageFile>,
    /// States of layers besides keys and values.
    states: States,
}

/// Pages of the layers with the same window.
struct Class {
    window: Option<usize>,
    /// Number of tables and prefixes that use each page.
    users: Vec<u32>,
    /// Number of pages in memory, which precede those on disk.
    in_memory: usize,
    free: Vec<u32>,
    free_on_disk: Vec<u32>,
}

/// The pages of a sequence, by class.
#[derive(Debug, Default)]
pub(crate) struct Table {
    classes: Vec<Run>,
}

/// The pages of a sequence that are kept, starting with number `first`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    first: usize,
    pages: Vec<u32>,
}

impl Table {
    /// By class, the page with a sequence's tokens from `index * PAGE_ROWS` on, if it is kept.
    pub fn pages(&self, index: usize) -> Vec<Option<u32>> {
        self.classes.iter().map(|run| run.page(index)).collect()
    }
}

impl Run {
    /// The page with a sequence's tokens from `index * PAGE_ROWS` on, if it is kept.
    pub fn page(&self, index: usize) -> Option<u32> {
        self.pages.get(index.checked_sub(self.first)?).copied()
    }

    fn end(&self) -> usize {
        self.first + self.pages.len()
    }
}

/// A class has too few pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub class: usize,
    /// Number of missing pages.
    pub pages: usize,
}

fn rows_of(page: u32) -> Range<usize> {
    page as usize * PAGE_ROWS..(page as usize + 1) * PAGE_ROWS
}

/// Number of pages for `tokens` tokens.
pub(crate) fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_ROWS)
}

/// Pages of each class for `sequences` of up to `tokens` tokens that read at most `chunk` at once.
pub(crate) fn pages_for(
    windows: &[Option<usize>],
    sequences: usize,
    tokens: usize,
    chunk: usize,
) -> Vec<usize> {
    let of = |window: Option<usize>| {
        let all = pages_of(tokens);
        // A window may begin inside a page, and a chunk may end inside one.
        window.map_or(all, |window| all.min(pages_of(window + chunk) + 2))
    };
    windows.iter().map(|window| sequences * of(*window)).collect()
}

/// Bytes of the keys and values of a page in one layer, for this rank's heads.
pub fn layer_page_bytes(model: &Model, dtype: DType, format: PageFormat) -> u64 {
    let spec = model.portion.local(&model.spec);
    (2 * PAGE_ROWS * spec.kv_heads * format.head_bytes(spec.head_dim, dtype)) as u64
}

/// Memory for the buffers of a file with `pages` pages, in addition to the layer that a step gathers from it.
pub fn page_buffers_bytes(pages: usize, layer_page_bytes: u64) -> u64 {
    file::buffers_bytes(pages, layer_page_bytes)
}

/// Bytes of one page of each class, for this rank's heads and layers; of a model with a source also those of as many of
/// its tokens: keys and values in each layer that attends to it, and those of all texts of a step in one layer.
pub fn page_bytes(model: &Model, dtype: DType, format: PageFormat) -> Vec<u64> {
    let (spec, bytes) = (model.portion.local(&model.spec), layer_page_bytes(model, dtype, format));
    let windows = spec.windows();
    let layers = |window: &Option<usize>| {
        let alike =
            |layer: &&fathom_model::LayerSpec| layer.reach().map(|reach| reach.window()) == Some(*window);
        model
            .portion
            .layers()
            .filter(|layer| *layer >= spec.source)
            .map(|layer| &spec.layers[layer])
            .filter(alike)
            .count() as u64
    };
    let own = windows.iter().map(|window| bytes * layers(window));
    let readers = model.portion.layers().filter(|layer| spec.source > 0 && *layer >= spec.source).count();
    let of_source = match readers as u64 {
        0 => 0,
        readers => (readers + 1) * layer_page_bytes(model, dtype, PageFormat::Plain),
    };
    own.enumerate().map(|(class, bytes)| if class == 0 { bytes + of_source } else { bytes }).collect()
}

impl Pages {
    /// Allocates the pages of each class, and the states of all sequences; with spare ones if tokens are guessed.
    pub fn new(
        device: &Device,
        model: &Model,
        (dtype, format): (DType, PageFormat),
        (counts, sequences, guesses): (&[usize], usize, bool),
    ) -> Pages {
        device.pool.enter("kv", -1);
        // A rank has the heads and layers of its part of the model.
        let (spec, here) = (&model.portion.local(&model.spec), |index: usize| {
            // A source has no later tokens.
            index >= model.spec.source && model.portion.layers().any(|layer| layer == index)
        });
        let windows = spec.windows();
        let class = |(window, count): (&Option<usize>, &usize)| Class {
            window: *window,
            users: vec![0; *count],
            in_memory: *count,
            free: (0..*count as u32).rev().collect(),
            free_on_disk: Vec::new(),
        };
        let classes = windows.iter().zip(counts).map(class).collect();
        let class_of = |layer: &fathom_model::LayerSpec| {
            let window = layer.reach().map(|reach| reach.window());
            windows.iter().position(|other| Some(*other) == window)
        };
        let room = |(index, layer): (usize, &fathom_model::LayerSpec)| {
            let class = class_of(layer).filter(|_| here(index));
            let rows = class.map_or(0, |class| counts[class] * PAGE_ROWS);
            let (dtype, cols) = format.storage(spec.kv_heads, spec.head_dim, dtype);
            // Rows of another rank's layers are empty; all pages may be on disk.
            let cols = if class.is_some() { cols } else { 0 };
            [(); 2].map(|()| device.zeros(rows, cols, dtype, Category::Kv))
        };
        let of_layer = spec.layers.iter().map(|layer| class_of(layer).unwrap_or(0)).collect();
        let layers = spec.layers.iter().enumerate().map(room).collect();
        let states = States::new(device, model, sequences, guesses);
        Pages { classes, of_layer, layers, format, head_dim: spec.head_dim, file: None, states }
    }

    /// The states of the sequence in a slot, of this rank's layers.
    pub fn checkpoint(&self, device: &Device, slot: usize) -> Checkpoint {
        self.states.save(device, slot)
    }

    /// Sets the states of the sequence in a slot.
    pub fn restore(&self, device: &Device, slot: usize, checkpoint: &Checkpoint) {
        self.states.load(device, slot, checkpoint);
    }

    /// Copies the states of the sequence in a slot to that in another.
    pub fn copy_states(&self, device: &Device, slots: [usize; 2]) {
        self.states.copy(device, slots);
    }

    /// Copies the states of the sequence in a slot to its spare ones.
    pub fn save_states(&self, device: &Device, slot: usize) {
        self.states.copy(device, [slot, self.states.spare(slot)]);
    }

    /// Takes the states of the sequence in a slot back to its spare ones.
    pub fn step_back(&self, device: &Device, slot: usize) {
        self.states.copy(device, [self.states.spare(slot), slot]);
    }

    /// Bytes of a checkpoint.
    pub fn checkpoint_bytes(&self) -> usize {
        self.states.bytes()
    }

    /// A checkpoint from its bytes; `None` if they are of other states.
    pub fn split_states(&self, bytes: &[u8]) -> Option<Checkpoint> {
        self.states.split(bytes)
    }

    /// The window of a class; `None` is unlimited.
    pub fn window(&self, class: usize) -> Option<usize> {
        self.classes[class].window
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Adds `pages` pages on disk, in a folder, to each class without a window.
    ///
    /// # Errors
    /// Those of the system.
    pub fn add_on_disk(&mut self, device: &Device, folder: &Path, pages: usize) -> std::io::Result<()> {
        device.pool.enter("kv", -1);
        let row = |tensor: &Tensor| row_bytes(tensor) as u64;
        let rows = |(tensors, class): (&[Tensor; 2], &usize)| match self.classes[*class].window {
            None => [row(&tensors[0]), row(&tensors[1])],
            Some(_) => [0; 2],
        };
        let rows = self.layers.iter().zip(&self.of_layer).map(rows).collect();
        self.file = Some(PageFile::create(device, folder, rows, pages)?);
        for class in self.classes.iter_mut().filter(|class| class.window.is_none()) {
            let all = class.in_memory + pages;
            class.users.resize(all, 0);
            class.free_on_disk = (class.in_memory as u32..all as u32).rev().collect();
        }
        Ok(())
    }

    /// Total and free pages of a class in memory.
    pub fn counts(&self, class: usize) -> [usize; 2] {
        self.classes.get(class).map_or([0; 2], |class| [class.in_memory, class.free.len()])
    }

    /// Free pages of a class, for a sequence in memory or for one on disk.
    pub fn free(&self, class: usize, on_disk: bool) -> usize {
        let class = &self.classes[class];
        if class.gives_disk(on_disk) { class.free_on_disk.len() } else { class.free.len() }
    }

    fn is_on_disk(&self, class: usize, page: u32) -> bool {
        page as usize >= self.classes[class].in_memory
    }

    /// A table without pages.
    pub fn table(&self) -> Table {
        Table { classes: vec![Run::default(); self.classes.len()] }
    }

    /// Allocates pages for a sequence of `tokens` tokens, in memory or on disk.
    ///
    /// # Errors
    /// A class has too few pages; those that it had are in the table.
    pub fn grow(&mut self, table: &mut Table, tokens: usize, on_disk: bool) -> Result<(), Short> {
        let pages = pages_of(tokens);
        for (index, run) in table.classes.iter_mut().enumerate() {
            while run.end() < pages {
                let Some(page) = self.take(index, on_disk) else {
                    return Err(Short { class: index, pages: pages - run.end() });
                };
                run.pages.push(page);
            }
        }
        Ok(())
    }

    /// Frees the pages that no later token of a sequence of `tokens` tokens reads.
    pub fn slide(&mut self, table: &mut Table, tokens: usize) {
        for (index, run) in table.classes.iter_mut().enumerate() {
            let Some(window) = self.classes[index].window else { continue };
            let first = tokens.saturating_sub(window) / PAGE_ROWS;
            let gone = first.saturating_sub(run.first).min(run.pages.len());
            for page in run.pages.drain(..gone) {
                self.classes[index].release(page);
            }
            run.first = if run.pages.is_empty() { run.first.max(first) } else { run.first + gone };
        }
    }

    /// Frees all pages of a table.
    pub fn clear(&mut self, table: &mut Table) {
        for (class, run) in self.classes.iter_mut().zip(&mut table.classes) {
            run.pages.drain(..).for_each(|page| class.release(page));
            run.first = 0;
        }
    }

    /// A second sequence with the same first `tokens` tokens: whole pages are shared, and a page that both will write
    /// to is copied.
    ///
    /// # Errors
    /// There is no page for the copy; nothing is allocated.
    pub fn fork(&mut self, device: &Device, table: &Table, tokens: usize) -> Result<Table, Short> {
        let mut other = self.table();
        let whole = tokens / PAGE_ROWS;
        for (index, run) in table.classes.iter().enumerate() {
            other.classes[index].first = run.first;
            for at in run.first..run.end().min(whole) {
                let Some(page) = run.page(at) else { continue };
                self.retain(index, page);
                other.classes[index].pages.push(page);
            }
        }
        if tokens > whole * PAGE_ROWS
            && let Err(short) = self.copy_tail(device, table, &mut other, tokens)
        {
            self.clear(&mut other);
            return Err(short);
        }
        Ok(other)
    }

    /// Copies the last, partial page of the prefix, in every class that has it.
    fn copy_tail(
        &mut self,
        device: &Device,
        table: &Table,
        other: &mut Table,
        tokens: usize,
    ) -> Result<(), Short> {
        let (index, rows) = (tokens / PAGE_ROWS, tokens % PAGE_ROWS);
        for class in 0..self.classes.len() {
            let Some(from) = table.classes[class].page(index) else { continue };
            let to = self.take(class, false).ok_or(Short { class, pages: 1 })?;
            other.classes[class].pages.push(to);
            self.copy(device, class, [from, to], rows);
        }
        Ok(())
    }

    /// Copies the first rows of a page to another.
    fn copy(&self, device: &Device, class: usize, [from, to]: [u32; 2], rows: usize) {
        let first = |page: u32| rows_of(page).start..rows_of(page).start + rows;
        let in_memory = ![from, to].into_iter().any(|page| self.is_on_disk(class, page));
        for (side, tensor) in self.sides(class) {
            if in_memory {
                device.machine.copy(&tensor.view_rows(first(from)), &tensor.view_rows(first(to)));
                continue;
            }
            let bytes = self.read_rows(device, side, from, rows);
            self.write_rows(device, side, first(to), bytes);
        }
    }

    /// The first rows of a page in their stored format.
    fn read_rows(&self, device: &Device, (layer, which): Side, page: u32, rows: usize) -> Vec<u8> {
        let (class, first) = (self.of_layer[layer], rows_of(page).start);
        match &self.file {
            Some(file) if self.is_on_disk(class, page) => {
                file.read((layer, which), (first - self.classes[class].in_memory * PAGE_ROWS, rows))
            }
            _ => device.machine.read(&self.layers[layer][which].view_rows(first..first + rows)).wait(),
        }
    }

    /// Overwrites rows of a page, counted over all pages of its class.
    fn write_rows(&self, device: &Device, (layer, which): Side, rows: Range<usize>, bytes: Vec<u8>) {
        let first = self.classes[self.of_layer[layer]].in_memory * PAGE_ROWS;
        match &self.file {
            Some(file) if rows.start >= first => file.write((layer, which), rows.start - first, bytes),
            _ => device.machine.write(&self.layers[layer][which].view_rows(rows), &bytes),
        }
    }

    /// Maximum number of pages on disk per read.
    fn piece(&self, side: Side) -> usize {
        self.file.as_ref().map_or(1, |file| file.piece(side))
    }

    /// Waits until writes are on disk.
    fn settle(&self) {
        self.file.iter().for_each(PageFile::settle);
    }

    /// Position in the file of the rows of a page on disk.
    fn in_file(&self, (layer, _): Side, (page, rows): (u32, usize)) -> (usize, usize) {
        ((page as usize - self.classes[self.of_layer[layer]].in_memory) * PAGE_ROWS, rows)
    }

    /// Starts to read rows of pages on disk.
    fn read_ahead(&self, pieces: impl Iterator<Item = (Side, (u32, usize))>) {
        if let Some(file) = &self.file {
            file.read_ahead(pieces.map(|(side, rows)| (side, self.in_file(side, rows))));
        }
    }

    /// Reads rows of pages on disk into their tensors.
    fn fill(&self, device: &Device, side: Side, pieces: Vec<((u32, usize), Tensor)>) {
        if let Some(file) = &self.file {
            let pieces = pieces.into_iter().map(|(rows, into)| (self.in_file(side, rows), into));
            file.fill(device, side, pieces.collect());
        }
    }

    /// Bytes of the keys and values of a page of a class, over all of its layers.
    pub fn bytes(&self, class: usize) -> usize {
        self.sides(class).map(|(_, tensor)| PAGE_ROWS * row_bytes(tensor)).sum()
    }

    /// Appends the keys and values of a page, layer by layer.
    pub fn save(&self, device: &Device, class: usize, page: u32, out: &mut Vec<u8>) {
        for (side, _) in self.sides(class) {
            out.extend(self.read_rows(device, side, page, PAGE_ROWS));
        }
    }

    /// Overwrites a page with keys and values written by [`Pages::save`].
    ///
    /// # Panics
    /// If the number of bytes differs from the page's.
    pub fn load(&self, device: &Device, class: usize, page: u32, mut bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes(class), "kv: bytes of a page");
        for (side, tensor) in self.sides(class) {
            let (own, rest) = bytes.split_at(PAGE_ROWS * row_bytes(tensor));
            self.write_rows(device, side, rows_of(page), own.to_vec());
            bytes = rest;
        }
    }

    /// Keys and values of the layers of a class.
    fn sides(&self, class: usize) -> impl Iterator<Item = (Side, &Tensor)> {
        let layers = self.layers.iter().enumerate().filter(move |(layer, _)| self.of_layer[*layer] == class);
        let sides = layers.flat_map(|(layer, [keys, values])| [((layer, 0), keys), ((layer, 1), values)]);
        sides.filter(|(_, tensor)| row_bytes(tensor) > 0)
    }

    pub(crate) fn take(&mut self, class: usize, on_disk: bool) -> Option<u32> {
        let class = &mut self.classes[class];
        let free = if class.gives_disk(on_disk) { &mut class.free_on_disk } else { &mut class.free };
        let page = free.pop()?;
        class.users[page as usize] = 1;
        Some(page)
    }

    fn retain(&mut self, class: usize, page: u32) {
        self.classes[class].users[page as usize] += 1;
    }

    pub(crate) fn release(&mut self, class: usize, page: u32) {
        self.classes[class].release(page);
    }

    /// True if the page has a single user.
    fn is_alone(&self, class: usize, page: u32) -> bool {
        self.classes[class].users[page as usize] == 1
    }
}

impl Class {
    /// True if a sequence on disk gets its pages there; layers with a window always keep theirs in memory.
    fn gives_disk(&self, on_disk: bool) -> bool {
        on_disk && self.users.len() > self.in_memory
    }

    fn release(&mut self, page: u32) {
        let users = &mut self.users[page as usize];
        *users -= 1;
        if *users == 0 {
            let on_disk = page as usize >= self.in_memory;
            if on_disk { self.free_on_disk.push(page) } else { self.free.push(page) }
        }
    }
}
