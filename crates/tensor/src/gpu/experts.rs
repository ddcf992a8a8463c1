//! Scratch of products grouped by expert.

use super::sizes::{GRANULE, MATMUL_SCRATCH};
use crate::profile::OpDesc;
use crate::{MOST_EXPERTS, SUM_CHUNK};

/// For a library's products an expert's list is padded to a multiple of this, so that every size is whole pieces of 16
/// bytes.
pub const GROUP_ROWS: usize = 8;
/// Bytes of operands and results gathered contiguously for a library at a time.
const GATHERED: u64 = 128 << 20;
/// Addresses of an expert's three matrices, and six i32 of their sizes; two factors.
const TABLES: u64 = (3 * 8 + 6 * 4) * MOST_EXPERTS as u64 + 32;

/// Bytes of the lists of each expert's slots, in i32: counts by block, starts, and the slots in order. For the gradient
/// of the weights, an expert's slots in a chunk of [`SUM_CHUNK`] tokens are padded to 16.
fn lists(tokens: usize, slots: usize, weight: bool) -> u64 {
    let all = tokens * slots;
    let (blocks, filled) = if weight {
        let chunks = tokens.div_ceil(SUM_CHUNK);
        (chunks, 15 * chunks * MOST_EXPERTS.min(SUM_CHUNK * slots))
    } else {
        (256, 0)
    };
    4 * (blocks * MOST_EXPERTS + 2 * (MOST_EXPERTS + 1) + all + filled) as u64
}

/// Scratch of a product on a chip with this instruction set: lists for kernels that gather as they multiply or, on
/// chips where a library multiplies groups, the library's needs if larger. Both are charged whether or not the library
/// is present.
pub(super) fn scratch(isa: &str, op: &OpDesc) -> u64 {
    let OpDesc::Grouped { tokens, slots, weight, .. } = *op else { return 0 };
    let grouped = GroupedScratch::of(op).filter(|_| isa.starts_with("sm_90"));
    lists(tokens, slots, weight).max(grouped.map_or(0, |scratch| scratch.bytes()))
}

/// Scratch of one product by expert if a library multiplies groups of contiguous rows. It is bounded: larger products
/// are gathered and multiplied in several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupedScratch {
    /// Lists of slots, each padded to a multiple of [`GROUP_ROWS`].
    pub lists: u64,
    /// Rows per part.
    pub rows: usize,
    /// Bytes per row: of the operand and the result, or of both operands of a gradient.
    pub row_bytes: [u64; 2],
}

impl GroupedScratch {
    /// Scratch of a call; `None` if libraries do not take it: they need 16-bit elements and sizes in whole pieces of 16
    /// bytes.
    pub fn of(op: &OpDesc) -> Option<GroupedScratch> {
        GroupedScratch::with(op, GATHERED)
    }

    /// Scratch of a call within so many bytes, in as many parts as needed.
    pub fn within(op: &OpDesc, bytes: u64) -> Option<GroupedScratch> {
        let own = GroupedScratch::with(op, u64::MAX)?.fixed();
        GroupedScratch::with(op, bytes.checked_sub(own)?.min(GATHERED))
    }

    /// With this many bytes for rows.
    fn with(op: &OpDesc, gathered: u64) -> Option<GroupedScratch> {
        let OpDesc::Grouped { tokens, slots, inner, out, input, output, weight } = *op else { return None };
        let whole = [inner, out].iter().all(|size| size.is_multiple_of(GROUP_ROWS));
        if input.bytes() != 2 || !input.is_float() || !whole || tokens * slots * inner * out == 0 {
            return None;
        }
        let of_result = if weight { input } else { output };
        let row_bytes = [(inner * input.bytes()) as u64, (out * of_result.bytes()) as u64];
        let all = tokens * slots;
        let entries = (all + (GROUP_ROWS - 1) * all.min(MOST_EXPERTS)).next_multiple_of(GROUP_ROWS);
        let fit = (gathered / (row_bytes[0] + row_bytes[1])) as usize / GROUP_ROWS * GROUP_ROWS;
        let lists = lists(tokens, slots, false) + 4 * ((GROUP_ROWS - 1) * MOST_EXPERTS) as u64;
        (fit > 0).then_some(GroupedScratch { lists, rows: entries.min(fit), row_bytes })
    }

    /// Scratch without the rows; each part begins at a multiple of the granule.
    fn fixed(&self) -> u64 {
        let aligned = [self.lists, TABLES].map(|part| part.next_multiple_of(GRANULE));
        aligned[0] + aligned[1] + 2 * GRANULE + MATMUL_SCRATCH
    }

    /// Total size.
    pub fn bytes(&self) -> u64 {
        self.fixed() + self.rows as u64 * (self.row_bytes[0] + self.row_bytes[1])
    }

    /// Offsets of the parts: lists, tables, both rows, the library's own.
    pub fn offsets(&self) -> [u64; 5] {
        let [first, second] = self.row_bytes.map(|bytes| bytes * self.rows as u64);
        let mut at = 0;
        [self.lists, TABLES, first, second, 0].map(|part| {
            let start = at;
            at += part.next_multiple_of(GRANULE);
            start
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn grouped(tokens: usize, [inner, out]: [usize; 2], output: DType, weight: bool) -> OpDesc {
        OpDesc::Grouped { tokens, slots: 8, inner, out, input: DType::Bf16, output, weight }
    }

    #[test]
    fn parts_are_within_what_is_charged_and_bounded() {
        for tokens in [1, 127, 8192, 1 << 20] {
            for (sizes, weight) in [([64, 24], false), ([2048, 768], false), ([2048, 768], true)] {
                let op = grouped(tokens, sizes, DType::F32, weight);
                let scratch = GroupedScratch::of(&op).unwrap();
                assert!(scratch.offsets()[4] + MATMUL_SCRATCH <= scratch.bytes());
                assert!(scratch.bytes() <= scratch.fixed() + GATHERED && scratch.rows > 0);
                assert_eq!(scratch.rows % GROUP_ROWS, 0);
                assert_eq!(GroupedScratch::within(&op, scratch.bytes()), Some(scratch));
                // Less memory means more parts.
                let one = GROUP_ROWS as u64 * (scratch.row_bytes[0] + scratch.row_bytes[1]);
                let least = GroupedScratch::within(&op, scratch.fixed() + one).unwrap();
                assert_eq!((least.rows, least.bytes()), (GROUP_ROWS, scratch.fixed() + one));
                assert_eq!(GroupedScratch::within(&op, scratch.fixed() + one - 1), None);
            }
        }
    }

    #[test]
    fn only_what_a_library_takes_is_charged_for_and_only_where_it_does() {
        let taken = grouped(64, [64, 64], DType::Bf16, false);
        let odd = grouped(64, [60, 64], DType::Bf16, false);
        let OpDesc::Grouped { tokens, slots, .. } = taken else { unreachable!() };
        let own = lists(tokens, slots, false);
        assert!(scratch("sm_90", &taken) > MATMUL_SCRATCH && scratch("sm_90a", &taken) > MATMUL_SCRATCH);
        assert_eq!([scratch("sm_100", &taken), scratch("sm_90", &odd)], [own; 2]);
        assert_eq!(GroupedScratch::of(&odd), None);
    }
}
