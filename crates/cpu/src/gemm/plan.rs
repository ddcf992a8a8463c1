//! Partition of a product: the rows and columns of C per task, the blocks of k, what is packed first, and the workspace
//! required.

use super::kernel::{ALIGN, Kind, SLACK};
use super::kind::{kind, slim_bytes};
use super::{Elem, Shape};
use crate::isa::Isa;

/// With `Kind::pack_first_bytes`: number of columns of B below which packing first does not pay off.
const PACK_FIRST_COLUMNS: usize = 256;
/// With `Kind::pack_first_bytes`: the length of k per pass over an f32 C; a multiple of every `Kind::kc`.
const PACK_FIRST_K: usize = 24576;

pub(super) fn round_up(x: usize, to: usize) -> usize {
    x.div_ceil(to) * to
}

/// Partition of C: tasks of `mc x nc`, both multiples of the tile, each in blocks of `wide` columns.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub mc: usize,
    pub nc: usize,
    pub wide: usize,
}

impl Plan {
    /// Balanced tasks within the kernel's limits: the cheapest of a few partitions by the time of the slowest thread,
    /// where a task costs its area plus packing its two edges.
    pub(super) fn new(kind: &Kind, threads: usize, [m, n, k]: [usize; 3]) -> Plan {
        const TRIED: usize = 8;
        let (high, wide) = (m.div_ceil(kind.mr), n.div_ceil(kind.nr));
        let least_high = high.div_ceil(kind.block.0 / kind.mr);
        let blocks = wide.div_ceil(kind.block.1 / kind.nr);
        // A task with several blocks of columns would pack its rows of A for each of them, unless it keeps them.
        let least_wide = if keeps(kind, kind.block.0, k) { 1 } else { blocks };
        let mut best = (usize::MAX, 1, 1);
        for down in least_high..=high.min(least_high + TRIED) {
            let few = least_wide..blocks.min(least_wide + TRIED);
            for across in few.chain(blocks..=wide.min(blocks + TRIED)) {
                let (mc, nc) = (high.div_ceil(down) * kind.mr, wide.div_ceil(across) * kind.nr);
                let tasks = m.div_ceil(mc) * n.div_ceil(nc);
                let edges = kind.edges.0 * mc + kind.edges.1 * nc;
                let cost = tasks.div_ceil(threads) * (mc * nc + edges) + mc * nc / 8;
                if cost < best.0 {
                    best = (cost, mc, nc);
                }
            }
        }
        let (_, mc, nc) = best;
        let panels = nc / kind.nr;
        Plan { mc, nc, wide: panels.div_ceil(panels.div_ceil(kind.block.1 / kind.nr)) * kind.nr }
    }

    /// True if a task keeps its rows of A packed for all of k; for a single block that would only waste cache.
    pub(super) fn kept(&self, kind: &Kind, k: usize) -> bool {
        self.wide < self.nc && keeps(kind, self.mc, k)
    }
}

/// True if `mc` rows of A may stay packed for all of k.
fn keeps(kind: &Kind, mc: usize, k: usize) -> bool {
    mc * round_up(k, kind.unit) * kind.size <= kind.keep
}

/// The length of the blocks of k: equal ones, so that none is too short to pay for its tiles.
pub(super) fn depth(kind: &Kind, k: usize) -> usize {
    const STEP: usize = 32;
    if k <= kind.kc + kind.kc / 3 {
        return round_up(k, STEP);
    }
    round_up(k.div_ceil(k.div_ceil(kind.kc)), STEP)
}

/// The parts of one thread's workspace, in bytes: panels of A, panels of B, tiles of C.
pub(super) fn slice_parts(kind: &Kind, plan: Plan, shape: &Shape) -> [usize; 3] {
    let kc = depth(kind, shape.k);
    // A single block of k needs one tile at a time.
    let tiles = if shape.k <= kc { kind.mr * kind.nr } else { plan.mc * plan.wide };
    let of_k = if plan.kept(kind, shape.k) { round_up(shape.k, kind.unit) } else { kc };
    let b =
        if shape.b_packed { 0 } else { kind.group.min(plan.nc / kind.nr) * kind.nr * kc * kind.size + SLACK };
    [round_up(plan.mc * of_k * kind.size + SLACK, ALIGN), round_up(b, ALIGN), round_up(tiles * 4, ALIGN)]
}

/// The part `(k, n)` of B that is packed at a time before the product, if B is packed first.
pub(super) fn pack_first(kind: &Kind, shape: &Shape, c: Elem) -> Option<(usize, usize)> {
    if kind.pack_first_bytes == 0 || shape.b_packed || shape.m <= kind.block.0 {
        return None;
    }
    let k = if c == Elem::F32 { shape.k.min(PACK_FIRST_K) } else { shape.k };
    let n = kind.pack_first_bytes / (round_up(k, kind.unit) * kind.size) / kind.nr * kind.nr;
    (n >= PACK_FIRST_COLUMNS).then_some((k, n.min(round_up(shape.n, kind.nr))))
}

/// Bytes of workspace that [`super::gemm`] needs for a product of this shape into a C stored as `c`.
pub fn workspace_bytes(isa: Isa, threads: usize, shape: &Shape, c: Elem) -> usize {
    workspace_of(kind(isa, shape.a, shape.b), threads, shape, c)
}

pub(super) fn workspace_of(kind: &Kind, threads: usize, shape: &Shape, c: Elem) -> usize {
    if shape.m == 0 || shape.n == 0 || shape.k == 0 {
        return 0;
    }
    let slices = |n: usize, k: usize, b_packed: bool| {
        let part = Shape { n, k, b_packed, ..*shape };
        slice_parts(kind, Plan::new(kind, threads, [shape.m, n, k]), &part).iter().sum::<usize>() * threads
    };
    let bytes = match pack_first(kind, shape, c) {
        None => slices(shape.n, shape.k, shape.b_packed),
        Some((k, n)) => {
            // The last parts are shorter and partitioned differently.
            let last = |whole: usize, part: usize| whole - (whole - 1) / part * part;
            let most = |k: usize| slices(n.min(shape.n), k, true).max(slices(last(shape.n, n), k, true));
            round_up(packed_of(kind, k, n), ALIGN) + most(k).max(most(last(shape.k, k)))
        }
    };
    let slim =
        kind.slim.filter(|(columns, _)| shape.n <= *columns).map_or(0, |_| slim_bytes(shape.n, shape.k));
    (bytes + ALIGN).max(slim)
}

/// Upper bound of the workspace bytes of products of operands stored as `elem` with sums no longer than `k`.
pub fn most_workspace_bytes(isa: Isa, threads: usize, elem: Elem, k: usize) -> usize {
    let kind = kind(isa, elem, elem);
    // No block of k is longer; see `depth`.
    let kc = round_up(k.min(kind.kc + kind.kc / 3), 32);
    let (high, wide) = kind.block;
    let kept = kind.keep.min(high * round_up(k, kind.unit) * kind.size);
    let a = round_up((high * kc * kind.size).max(kept) + SLACK, ALIGN);
    let b = round_up(kind.group * kind.nr * kc * kind.size + SLACK, ALIGN);
    let tiles = round_up(high * wide * 4, ALIGN);
    let slim = kind.slim.map_or(0, |(columns, _)| slim_bytes(columns, k));
    ((a + b + tiles) * threads + round_up(kind.pack_first_bytes + SLACK, ALIGN) + ALIGN).max(slim)
}

pub(super) fn packed_of(kind: &Kind, k: usize, n: usize) -> usize {
    round_up(n, kind.nr) * round_up(k, kind.unit) * kind.size + SLACK
}

/// Offset of panel `panel` of the block of k that starts at `k0` in a packed B.
pub(super) fn packed_at(kind: &Kind, k: usize, n: usize, k0: usize, panel: usize) -> usize {
    let steps = round_up((k - k0).min(depth(kind, k)), kind.unit);
    (k0 * n.div_ceil(kind.nr) + panel * steps) * kind.nr * kind.size
}
