//! The kernel in plain Rust: the reference definition of the sums, including their order.
#![allow(unsafe_code)]

use super::format::{Columns, Format, GROUP, OCTET, Table, codes, table};
use super::octets::Apart;
use super::rows::{Rows, swapped};

/// Multiplies rows by the first `count` of eight columns, into one row of `sums` each.
///
/// # Safety
/// The columns have the blocks of the rows' k, the rows exist.
pub(super) unsafe fn octet<F: Format>(columns: Columns, count: usize, rows: Rows, sums: &mut [[f32; OCTET]]) {
    sums.fill([0.0; OCTET]);
    let mut found = Table::new();
    let (whole, mut apart) = (columns.each(count), Apart::new());
    for index in 0..rows.k / GROUP / F::GROUPS {
        // SAFETY: the caller's promise.
        let blocks = unsafe {
            if F::OCTETS {
                let blocks = apart.take::<F>(columns, index);
                table::<F>(&blocks, (columns.behind, 0), &mut found);
                blocks
            } else {
                table::<F>(&whole, (columns.behind, index), &mut found);
                columns.block::<F>(index).each(count)
            }
        };
        for group in 0..F::GROUPS {
            for col in 0..count {
                // SAFETY: the caller's promise.
                let block = unsafe { std::slice::from_raw_parts(blocks[col], F::BYTES) };
                let bias = if F::ZEROS { found.zeros[col] } else { F::BIAS } as i16;
                let plane = |plane: usize| {
                    let w = codes::<F>(block, (group, plane));
                    std::array::from_fn(|at| w[swapped(at)] - bias)
                };
                let planes: [[i16; GROUP]; 2] = [plane(0), plane(F::PLANES - 1)];
                for (row, sums) in sums.iter_mut().enumerate() {
                    let rows = rows.from(row);
                    let place = index * F::GROUPS + group;
                    // SAFETY: the caller's promise.
                    let (x, part) =
                        unsafe { (&*rows.codes.cast::<[i16; GROUP]>().add(place), &*rows.parts.add(place)) };
                    let [first, second] = if F::PLANES == 2 {
                        planes.map(|w| products(&w, x).into_iter().sum())
                    } else {
                        products(&planes[0], x)
                    };
                    let factor = |half: usize| found.factors[F::FACTORS * group + half][col];
                    let mut term = if F::FACTORS == 2 {
                        factor(0) * first as f32 + factor(1) * second as f32
                    } else {
                        factor(0) * (first + second) as f32
                    };
                    if F::OFFSET {
                        term -= found.offsets[group][col] * part.sum as f32;
                    }
                    sums[col] += part.scale * term;
                }
            }
        }
    }
}

/// The sum of products of each half.
fn products(w: &[i16; GROUP], x: &[i16; GROUP]) -> [i32; 2] {
    let mut eighths = [0i32; 4];
    for (at, (w, x)) in w.iter().zip(x).enumerate() {
        eighths[at / 8] += i32::from(*w) * i32::from(*x);
    }
    // Elements 0..8, 16..24, 8..16 and 24..32.
    [eighths[0] + eighths[2], eighths[1] + eighths[3]]
}
