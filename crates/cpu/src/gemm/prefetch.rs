//! Software prefetching: operands are read row by row in short runs, which hardware prefetchers do not predict.
//!
//! A burst of prefetches fills the queues between the caches and stalls the arithmetic's own loads. Prefetches are
//! therefore spread: a micro-kernel prefetches a few lines of B per unit of k, and each tile of C its share of A.

use std::ops::Range;

use super::kernel::{Kind, Lines, Source};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches a part of an operand into the second-level cache.
pub(super) fn prefetch(source: &Source, outer: Range<usize>, k: Range<usize>) {
    let clip = |range: Range<usize>, end: usize| range.start.min(end)..range.end.min(end);
    let (outer, k) = (clip(outer, source.outer), clip(k, source.k));
    if source.octets {
        let eight = 8 * source.elem.bytes();
        let lines = outer.step_by(8).flat_map(|row| {
            let from = row * source.stride * source.elem.bytes();
            (k.start * eight..k.end * eight).step_by(LINE).map(move |byte| from + byte)
        });
        return lines.for_each(|at| ask(source.ptr.wrapping_add(at)));
    }
    let (rows, run) = if source.k_contiguous { (outer, k) } else { (k, outer) };
    let size = source.elem.bytes();
    for row in rows {
        for byte in (run.start * size..run.end * size).step_by(LINE) {
            ask(source.ptr.wrapping_add(row * source.stride * size + byte));
        }
    }
}

/// Prefetches a line into the second-level cache.
#[inline(always)]
fn ask(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect and does not fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The lines from `from` on, for `steps` units of k per tile.
pub(super) fn lines(kind: &Kind, from: *const u8, steps: usize) -> Lines {
    let unit = kind.prefetch_lines * LINE;
    Lines { ptr: from, apart: LINE, unit, tile: steps * unit }
}

/// The rows of an operand with contiguous k from `row` and `k` on.
pub(super) fn rows(kind: &Kind, source: &Source, row: usize, k: usize) -> Lines {
    let (size, apart) = (source.elem.bytes(), source.stride * source.elem.bytes());
    let ptr = source.ptr.wrapping_add(row * apart + k * size);
    Lines { ptr, apart, unit: kind.unit * size, tile: kind.prefetch_lines * apart }
}

/// A part of an operand, to be prefetched in equal shares.
pub(super) struct Shares {
    source: Source,
    outer: Range<usize>,
    k: Range<usize>,
    next: usize,
    shares: usize,
}

impl Shares {
    pub(super) fn new(source: Source, outer: Range<usize>, k: Range<usize>, shares: usize) -> Shares {
        Shares { source, outer, k, next: 0, shares }
    }

    /// Prefetches the next share.
    pub(super) fn prefetch(&mut self) {
        if self.k.is_empty() {
            return;
        }
        let at = |range: &Range<usize>, share: usize| range.start + range.len() * share / self.shares;
        let share = |range: &Range<usize>| at(range, self.next)..at(range, self.next + 1);
        if self.source.k_contiguous {
            prefetch(&self.source, share(&self.outer), self.k.clone());
        } else {
            prefetch(&self.source, self.outer.clone(), share(&self.k));
        }
        self.next += 1;
    }
}
