//! The slots of each expert as lists in device memory: sorted, counted, limited, assigned to owners. Counts never reach
//! the host.

use fathom_tensor::{DType, MOST_EXPERTS, SUM_CHUNK, Tensor};

use super::SCRATCH_BYTES;
use super::launch::{Args, Launch, Scratch, expect, start_mut};
use super::table::lists as entries;

/// Entries per tile of a grouped product.
pub(super) const TILE: usize = 64;
/// Entries per step of a product of 16-bit operands: an expert's slots in a chunk are padded to whole steps, so cuts
/// change no bit.
const STEP: usize = 16;

/// Lists of slots, tokens ascending; all addresses are of i32.
pub(super) struct Lists {
    /// Numbers of slots and of lists.
    n: usize,
    lists: usize,
    /// Slots per block, and number of blocks.
    part: usize,
    blocks: usize,
    /// A block's entries of a list are padded to a multiple of this.
    pad: usize,
    /// Each list is padded to a multiple of this.
    whole: usize,
    pub counts: u64,
    pub starts: u64,
    pub tiles: u64,
    pub order: u64,
}

/// Selects the entries of lists: slots of experts or of their owners; with weights and bounds, only those as heavy as
/// the bound.
#[derive(Clone, Copy)]
struct Filter {
    own: usize,
    weights: u64,
    bounds: u64,
}

const ALL: Filter = Filter { own: 1, weights: 0, bounds: 0 };

impl Lists {
    /// Plain lists: at most 256 blocks.
    pub fn plain(index: &Tensor, lists: usize, at: u64) -> Lists {
        let part = plain_part(index.len());
        Lists::new(index.len(), lists, part, [1, 1], at)
    }

    /// Plain lists, each padded to a multiple of `whole`.
    pub fn filled(index: &Tensor, lists: usize, whole: usize, at: u64) -> Lists {
        let part = plain_part(index.len());
        Lists::new(index.len(), lists, part, [1, whole], at)
    }

    /// Lists in which an expert's slots in a chunk of [`SUM_CHUNK`] tokens are padded to whole steps.
    pub fn by_chunks(index: &Tensor, lists: usize, at: u64) -> Lists {
        Lists::new(index.len(), lists, SUM_CHUNK * index.cols(), [STEP, 1], at)
    }

    fn new(n: usize, lists: usize, part: usize, [pad, whole]: [usize; 2], at: u64) -> Lists {
        assert!(lists <= MOST_EXPERTS && n <= i32::MAX as usize, "lists of {n} slots of {lists} experts");
        let blocks = n.div_ceil(part.max(1));
        let starts = at + 4 * (blocks * lists) as u64;
        let tiles = starts + 4 * (lists as u64 + 1);
        let order = tiles + 4 * (lists as u64 + 1);
        Lists { n, lists, part, blocks, pad, whole, counts: at, starts, tiles, order }
    }

    /// Upper bound of the entries of the order.
    pub fn entries(&self) -> usize {
        let filled = (self.pad - 1) * self.blocks * self.lists.min(self.part);
        self.n + filled + (self.whole - 1) * self.lists.min(self.n)
    }

    /// Address after the last byte.
    pub fn end(&self) -> u64 {
        self.order + 4 * self.entries() as u64
    }

    /// Counts the entries and the sums before each block.
    fn count(&self, index: &Tensor, filter: Filter) -> [Launch; 2] {
        let args = Args::new().plain(index, DType::I32).address(self.counts).long(self.n).long(self.part);
        let args = args.int(self.lists).int(filter.own).address(filter.weights).address(filter.bounds);
        let counts = Launch::new(entries::expert_counts, self.blocks, args);
        let args = Args::new().address(self.counts).address(self.starts).address(self.tiles);
        let args = args.int(self.blocks).int(self.lists).int(self.pad).int(self.whole).int(TILE);
        [counts, Launch::new(entries::expert_offsets, 1, args)]
    }

    /// Computes everything, including the order.
    pub fn sort(&self, index: &Tensor) -> Vec<Launch> {
        let mut launches = self.count(index, ALL).to_vec();
        if self.pad > 1 || self.whole > 1 {
            launches.push(set(self.order, self.entries(), -1));
        }
        let args = Args::new().plain(index, DType::I32).address(self.counts).address(self.starts);
        let args = args.address(self.order).long(self.n).long(self.part).int(self.lists);
        launches.push(Launch::new(entries::expert_order, self.blocks, args));
        launches
    }
}

fn plain_part(n: usize) -> usize {
    n.div_ceil(256).next_multiple_of(256).max(256)
}

/// `list[0 .. n] = value`.
fn set(list: u64, n: usize, value: i32) -> Launch {
    let args = Args::new().address(list).long(n).int_bits(value);
    Launch::new(entries::set_slots, n.div_ceil(256), args)
}

/// Bytes of workspace of a grouped product or its weight's gradient: lists of slots, no copies of operands.
pub fn grouped_scratch_bytes(tokens: usize, slots: usize, experts: usize, weight: bool) -> u64 {
    let n = tokens * slots;
    let (part, pad) = if weight { (SUM_CHUNK * slots, STEP) } else { (plain_part(n), 1) };
    Lists::new(n, experts, part, [pad, 1], 0).end()
}

/// Lists in scratch, with room for `more` after their offsets.
#[track_caller]
fn in_scratch(op: &str, index: &Tensor, lists: usize, scratch: Scratch, more: usize) -> Lists {
    let lists = Lists::plain(index, lists, scratch.0);
    let end = lists.order + more as u64;
    assert!(end - scratch.0 <= SCRATCH_BYTES, "{op}: {index:?} takes more than the scratch there is");
    lists
}

/// `load[e] +=` number of slots whose expert is e.
#[track_caller]
pub fn count_experts(index: &Tensor, load: &Tensor, scratch: Scratch) -> [Launch; 3] {
    let lists = in_scratch("count_experts", index, load.len(), scratch, 0);
    let [counts, offsets] = lists.count(index, ALL);
    let args = Args::new().plain_out(load, DType::F32).address(lists.starts).int(lists.lists);
    [counts, offsets, Launch::new(entries::expert_load, lists.lists.div_ceil(256), args)]
}

/// Empties each expert's slots beyond the capacity: with f32 weights the lightest, of equals the last; without, the
/// last. `out` is `index` or -1.
#[track_caller]
pub fn limit_experts(
    index: &Tensor,
    weights: Option<&Tensor>,
    [experts, capacity]: [usize; 2],
    out: &Tensor,
    scratch: Scratch,
) -> Vec<Launch> {
    expect("limit_experts", "out", out, index.shape());
    let lists = in_scratch("limit_experts", index, experts, scratch, 4 * experts * 258);
    let (bins, capacity) = (lists.order, capacity.min(index.len()));
    let (bounds, room) = (bins + 1024 * experts as u64, bins + 1028 * experts as u64);
    let mut launches = Vec::new();
    let mut filter = ALL;
    if let Some(weights) = weights {
        expect("limit_experts", "weights", weights, index.shape());
        assert!(
            weights.dtype() == DType::F32 && weights.is_contiguous(),
            "limit_experts: weights {weights:?}"
        );
        filter = Filter { own: 1, weights: weights.address(), bounds };
        launches.push(set(bins, 256 * experts, 0));
        for shift in [24, 16, 8, 0] {
            let args = Args::new().plain(index, DType::I32).address(filter.weights).address(bounds);
            let args = args.address(bins).long(index.len()).int(experts).int(shift);
            launches.push(Launch::new(entries::weight_bins, index.len().div_ceil(256), args));
            let args = Args::new().address(bins).address(bounds).address(room);
            let args = args.int(experts).int(shift).int(capacity);
            launches.push(Launch::new(entries::weight_bounds, experts.div_ceil(256), args));
        }
    }
    launches.extend(lists.count(index, filter));
    let args = Args::new().plain(index, DType::I32).address(lists.counts).plain_out(out, DType::I32);
    let args = args.long(lists.n).long(lists.part).int(experts).long(capacity).address(filter.weights);
    let args = args.address(filter.bounds).address(if weights.is_some() { room } else { 0 });
    launches.push(Launch::new(entries::expert_limit, lists.blocks, args));
    launches
}

/// Sorts slots by the owners of their experts, `own` experts per owner, for round number `round` of as many slots as
/// there are places. Writes slots, tokens and experts i32 [owners, cap], and the place i32 of every slot.
#[track_caller]
pub fn dispatch(
    index: &Tensor,
    own: usize,
    round: usize,
    filled: [&Tensor; 3],
    places: &Tensor,
    scratch: Scratch,
) -> Vec<Launch> {
    let [owners, cap] = filled[0].shape();
    filled.iter().for_each(|list| expect("dispatch", "a list of places", list, [owners, cap]));
    expect("dispatch", "places", places, index.shape());
    let lists = in_scratch("dispatch", index, owners, scratch, 0);
    let mut launches: Vec<Launch> = filled.iter().map(|list| set(start_mut(list), list.len(), -1)).collect();
    launches.extend(lists.count(index, Filter { own, ..ALL }));
    let args = Args::new().plain(index, DType::I32).address(lists.counts);
    let args = filled.iter().fold(args, |args, list| args.plain_out(list, DType::I32));
    let args = args.plain_out(places, DType::I32).long(lists.n).long(lists.part).int(owners).int(own);
    let args = args.int(index.cols()).long(round * cap).long(cap);
    launches.push(Launch::new(entries::dispatch, lists.blocks, args));
    launches
}

/// `bias += rate x sign(mean load - load)` if `skip` is zero; f32 [1, experts].
#[track_caller]
pub fn balance_bias(bias: &Tensor, load: &Tensor, rate: f32, skip: &Tensor) -> Launch {
    expect("balance_bias", "load", load, bias.shape());
    let args = Args::new().plain_out(bias, DType::F32).plain(load, DType::F32).plain(skip, DType::F32);
    Launch::new(entries::balance_bias, bias.len().div_ceil(256), args.int(bias.len()).float(rate))
}
