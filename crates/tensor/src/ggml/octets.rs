//! Rows of blocks interleaved by eight: the same bytes in another order, so that a vector holds the same elements of
//! eight rows.
//!
//! The blocks of eight rows for the same columns lie together. A block is a few fields of equal units (words of codes,
//! f16 numbers, bytes of scales); unit `i` of row `r` is unit `8 i + r` of the eight blocks' field, and fields keep
//! their order. [`block`] reassembles a block exactly. For bf16, two elements count as a block.

use super::{Kind, dequantise};

/// Rows that are interleaved together.
pub const OCTET: usize = 8;
/// Bytes of the largest block kind that can be interleaved.
pub const MOST_BYTES: usize = 210;

/// Units of a block: offset of the first, bytes of each, count.
type Field = (usize, usize, usize);

/// A block's fields, ascending and without gaps; empty if rows of this kind are not interleaved.
const fn fields(kind: Kind) -> &'static [Field] {
    match kind {
        Kind::Q4_0 => &[(0, 2, 1), (2, 4, 4)],
        Kind::Q4_1 => &[(0, 2, 2), (4, 4, 4)],
        Kind::Q5_0 => &[(0, 2, 1), (2, 4, 5)],
        Kind::Q5_1 => &[(0, 2, 2), (4, 4, 5)],
        Kind::Q4K => &[(0, 2, 2), (4, 1, 12), (16, 4, 32)],
        Kind::Q5K => &[(0, 2, 2), (4, 1, 12), (16, 4, 40)],
        Kind::Q6K => &[(0, 4, 48), (192, 1, 16), (208, 2, 1)],
        Kind::Bf16 => &[(0, 4, 1)],
        Kind::F32 | Kind::F16 | Kind::Q8_0 => &[],
    }
}

/// True if rows of this kind can be interleaved.
pub const fn interleaves(kind: Kind) -> bool {
    !fields(kind).is_empty()
}

/// Elements and bytes of a unit that stays together: a block, or a pair of bf16.
pub fn together(kind: Kind) -> (usize, usize) {
    match kind {
        Kind::Bf16 => (2, 4),
        _ => (kind.block(), kind.block_bytes()),
    }
}

/// Interleaves eight consecutive rows.
///
/// # Panics
/// If they are not whole blocks of a kind whose rows are interleaved.
#[track_caller]
pub fn interleave(kind: Kind, rows: &mut [u8]) {
    let ((_, bytes), old) = (together(kind), rows.to_vec());
    let fits = interleaves(kind) && rows.len().is_multiple_of(OCTET * bytes);
    assert!(fits, "interleave {}: {} bytes are not eight rows", kind.name(), rows.len());
    if kind == Kind::Bf16 {
        let rows = rows.as_chunks_mut::<4>().0;
        let (old, pairs) = (old.as_chunks::<4>().0, rows.len() / OCTET);
        for (index, eight) in rows.as_chunks_mut::<OCTET>().0.iter_mut().enumerate() {
            *eight = std::array::from_fn(|row| old[row * pairs + index]);
        }
        return;
    }
    for (index, block) in rows.chunks_exact_mut(OCTET * bytes).enumerate() {
        for (at, unit, count) in fields(kind).iter().copied() {
            let to = &mut block[OCTET * at..][..OCTET * unit * count];
            let from = |row: usize| &old[row * old.len() / OCTET + index * bytes + at..][..unit * count];
            match unit {
                1 => turn::<1>(from, to),
                2 => turn::<2>(from, to),
                _ => turn::<4>(from, to),
            }
        }
    }
}

/// Transposes one field of eight rows' blocks.
fn turn<'a, const UNIT: usize>(from: impl Fn(usize) -> &'a [u8], to: &mut [u8]) {
    let rows: [&[[u8; UNIT]]; OCTET] = std::array::from_fn(|row| from(row).as_chunks::<UNIT>().0);
    for (index, units) in to.as_chunks_mut::<UNIT>().0.chunks_exact_mut(OCTET).enumerate() {
        for (unit, row) in units.iter_mut().zip(rows) {
            *unit = row[index];
        }
    }
}

/// Reassembles a row's block from the eight interleaved ones. `out` has the bytes of a block.
///
/// # Panics
/// If there is no such row, or `octet` is not eight blocks.
pub fn block(kind: Kind, octet: &[u8], row: usize, out: &mut [u8]) {
    for (at, unit, count) in fields(kind).iter().copied() {
        for index in 0..count {
            let from = OCTET * at + unit * (OCTET * index + row);
            for byte in 0..unit {
                out[at + unit * index + byte] = octet[from + byte];
            }
        }
    }
}

/// Values of a row's elements from `first` on, in whole blocks. `rows` are eight interleaved rows.
///
/// # Panics
/// If the row does not have the elements.
#[track_caller]
pub fn dequantise_row(kind: Kind, rows: &[u8], (row, first): (usize, usize), out: &mut [f32]) {
    let (mut held, (elements, bytes)) = ([0; MOST_BYTES], together(kind));
    for (index, out) in out.chunks_mut(elements).enumerate() {
        let octet = &rows[OCTET * bytes * (first / elements + index)..][..OCTET * bytes];
        block(kind, octet, row, &mut held[..bytes]);
        dequantise(kind, &held[..bytes], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back() {
        for kind in Kind::ALL.into_iter().filter(|kind| interleaves(*kind)) {
            let ((elements, bytes), blocks) = (together(kind), 3);
            assert!(bytes <= MOST_BYTES);
            let covered: usize = fields(kind).iter().map(|(_, unit, count)| unit * count).sum();
            assert_eq!(covered, bytes, "{kind:?}");
            let row_bytes = blocks * bytes;
            // No f16 exponent is that of an infinity.
            let rows: Vec<u8> =
                (0..OCTET * row_bytes).map(|at| (at * 89 + at / 251 + 3) as u8 & 0xbb).collect();
            let mut together = rows.clone();
            interleave(kind, &mut together);
            for (row, plain) in rows.chunks(row_bytes).enumerate() {
                let (mut held, mut found) = (vec![0; bytes], Vec::new());
                for octet in together.chunks(OCTET * bytes) {
                    block(kind, octet, row, &mut held);
                    found.extend_from_slice(&held);
                }
                assert_eq!(found, plain, "{kind:?}, row {row}");
                let mut wanted = vec![0.0; blocks * elements];
                let mut part = vec![0.0; elements];
                dequantise(kind, plain, &mut wanted);
                dequantise_row(kind, &together, (row, elements), &mut part);
                assert_eq!(part, wanted[elements..][..elements], "{kind:?}, row {row}");
            }
        }
    }

    /// The layout that vector kernels expect: words of eight rows are adjacent.
    #[test]
    fn words_of_eight_rows_are_neighbours() {
        let bytes = Kind::Q4K.block_bytes();
        let mut rows: Vec<u8> =
            (0..OCTET * bytes).map(|at| (at / bytes * 16 + at % bytes % 16) as u8).collect();
        interleave(Kind::Q4K, &mut rows);
        for word in 0..2 {
            for row in 0..OCTET {
                let at = OCTET * 16 + 4 * (OCTET * word + row);
                let wanted: [u8; 4] = std::array::from_fn(|byte| (16 * row + 4 * word + byte) as u8);
                assert_eq!(rows[at..at + 4], wanted);
            }
        }
    }
}
