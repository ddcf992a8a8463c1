//! Memory of keys and values: one region of rows per sequence, in one tensor per layer.

use std::ops::Range;

use fathom_grad::{Batch, KvMemory};
use fathom_model::{Model, mask};
use fathom_tensor::{Category, DType, Device, Slice, Tensor};

/// Keys and values of several sequences. A sequence owns the rows `region * capacity ..`, in order of position.
pub struct Cache {
    layers: Vec<[Tensor; 2]>,
    /// Tokens that each region holds.
    lens: Vec<usize>,
    /// Their ids.
    ids: Vec<Vec<u32>>,
    /// Tokens that each sequence is known to have, its prompt first of all; what depends on a sequence's length does not
    /// depend on the chunks in which it is read.
    known: Vec<usize>,
    capacity: usize,
    /// Position of every row, i32 [1, regions x capacity].
    positions: Tensor,
    /// Rows of the stream at hand and the region each run of them joins.
    incoming: Vec<(usize, Range<usize>)>,
}

/// New tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// Its region.
    pub region: usize,
    /// The tokens, following those already held.
    pub ids: &'a [u32],
}

impl Cache {
    /// Memory for `regions` sequences of up to `capacity` tokens.
    pub fn new(device: &Device, model: &Model, dtype: DType, regions: usize, capacity: usize) -> Cache {
        device.pool.enter("kv", -1);
        let cols = model.spec.kv_cols();
        let make = || device.zeros(regions * capacity, cols, dtype, Category::Kv);
        let layers = model.spec.layers.iter().map(|_| [make(), make()]).collect();
        let rows: Vec<i32> = (0..regions).flat_map(|_| 0..capacity as i32).collect();
        let positions = device.from_i32(&rows, Category::Kv);
        let [lens, known] = [(); 2].map(|()| vec![0; regions]);
        Cache {
            layers,
            lens,
            ids: vec![Vec::new(); regions],
            known,
            capacity,
            positions,
            incoming: Vec::new(),
        }
    }

    /// Tokens that a sequence may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Tokens that a region holds.
    pub fn len(&self, region: usize) -> usize {
        self.lens[region]
    }

    /// True when a region holds nothing.
    pub fn is_empty(&self, region: usize) -> bool {
        self.lens[region] == 0
    }

    /// Forgets what a region holds beyond `len` tokens.
    pub fn truncate(&mut self, region: usize, len: usize) {
        self.lens[region] = self.lens[region].min(len);
        self.ids[region].truncate(len);
        self.known[region] = self.known[region].min(len);
    }

    /// Says before it is read that a sequence has at least `tokens` tokens.
    pub fn expect(&mut self, region: usize, tokens: usize) {
        self.known[region] = self.known[region].max(tokens);
    }

    /// The length of a region's sequence once `new` tokens are read.
    fn length(&self, region: usize, new: usize) -> usize {
        self.known[region].max(self.lens[region] + new)
    }

    /// Forgets a sequence whose keys the feed makes out of date (see [`fathom_model::Spec::rereads_beyond`]) and returns
    /// its ids, to be read again.
    pub fn stale(&mut self, model: &Model, feed: &Feed<'_>) -> Option<Vec<u32>> {
        let beyond = model.spec.rereads_beyond()?;
        let length = self.length(feed.region, feed.ids.len());
        if self.is_empty(feed.region) || self.length(feed.region, 0) > beyond || length <= beyond {
            return None;
        }
        let ids = self.ids[feed.region].clone();
        self.truncate(feed.region, 0);
        self.expect(feed.region, length);
        Some(ids)
    }

    /// The stream of the feeds as a batch whose masks let every row see its own sequence up to itself. The rows join the
    /// memory when the batch runs; [`Cache::commit`] afterwards.
    ///
    /// # Panics
    /// If a region would overflow.
    pub fn batch(&mut self, device: &Device, model: &Model, feeds: &[Feed<'_>]) -> Batch {
        device.pool.enter("batch", -1);
        let mut ids: Vec<i32> = Vec::new();
        let mut positions: Vec<i32> = Vec::new();
        let mut sequences: Vec<(Range<usize>, usize)> = Vec::new();
        self.incoming.clear();
        for feed in feeds {
            let held = self.lens[feed.region];
            let end = held + feed.ids.len();
            assert!(end <= self.capacity, "kv: {end} tokens in a region of {}", self.capacity);
            let rows = ids.len()..ids.len() + feed.ids.len();
            sequences.push((rows.clone(), self.length(feed.region, feed.ids.len())));
            self.incoming.push((feed.region, rows));
            self.ids[feed.region].truncate(held);
            self.ids[feed.region].extend_from_slice(feed.ids);
            ids.extend(feed.ids.iter().map(|id| *id as i32));
            positions.extend(held as i32..end as i32);
        }
        let tokens = ids.len();
        let (ids, positions) =
            (device.from_i32(&ids, Category::Data), device.from_i32(&positions, Category::Data));
        let windows = model.spec.windows();
        let masks = windows.iter().map(|window| self.mask(device, &positions, *window)).collect();
        let ropes = model.rope_tables(device, &positions, &sequences);
        Batch { tokens, ids, positions, masks, ropes, context: None }
    }

    fn mask(&self, device: &Device, positions: &Tensor, window: Option<usize>) -> fathom_tensor::Mask {
        let slice = |(region, rows): &(usize, Range<usize>)| {
            let start = region * self.capacity;
            Slice::causal(rows.clone(), start..start + self.lens[*region] + rows.len(), window)
        };
        let slices: Vec<Slice> = self.incoming.iter().map(slice).collect();
        let pairs = slices.iter().map(|s| ((s.q_end - s.q_start) * (s.k_end - s.k_start)) as u64).sum();
        mask(device, &slices, slices.len().max(1), [positions, &self.positions], pairs)
    }

    /// The stream has run through all layers: its rows count as held.
    pub fn commit(&mut self) {
        for (region, rows) in self.incoming.drain(..) {
            self.lens[region] += rows.len();
        }
    }
}

impl KvMemory for Cache {
    fn append(&mut self, device: &Device, layer: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        let [keys, values] = &self.layers[layer];
        for (region, rows) in &self.incoming {
            let at = region * self.capacity + self.lens[*region];
            for (from, into) in [(k, keys), (v, values)] {
                device.machine.copy(&from.view_rows(rows.clone()), &into.view_rows(at..at + rows.len()));
            }
        }
        (keys.clone(), values.clone())
    }
}
