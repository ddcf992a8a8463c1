//! A product's work. Accumulates in f32, and block by block of the inner dimension if blocks have factors.

use half::{bf16, f16};

use super::operands::{BLOCK, Matrix, Mode, Precision, Problem, Scale};
use super::values::tf32;
use crate::device::check_memory;

/// Value or location of alpha or beta.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// Value at the time of the call.
    Host(f32),
    /// Address of the value at the time the product runs.
    Device(u64),
}

/// Everything that a product needs when it runs.
pub struct Job {
    pub problem: Problem,
    /// Addresses of A, B, C and D.
    pub addresses: [u64; 4],
    pub alpha: Scalar,
    pub beta: Scalar,
    /// Address and size of the memory that the algorithm uses.
    pub workspace: (u64, u64),
}

/// Columns of D computed at a time.
const WIDTH: usize = 4;

fn f32_at(address: u64) -> f32 {
    let from: *const f32 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: four bytes of a device that were checked; the address was, too.
    unsafe { from.read_unaligned() }
}

impl Scalar {
    fn value(self) -> f32 {
        match self {
            Scalar::Host(value) => value,
            Scalar::Device(address) => f32_at(address),
        }
    }
}

/// Reads a whole matrix without the gaps between columns.
fn read(matrix: &Matrix, address: u64) -> Vec<f32> {
    let mut values = vec![0.0; matrix.rows * matrix.cols];
    for (index, column) in values.chunks_exact_mut(matrix.rows).enumerate() {
        // SAFETY: within the matrix, which was checked.
        unsafe { matrix.kind.read(address + matrix.column(index), column) };
    }
    values
}

/// Transposes a matrix with columns of `rows` elements, in tiles.
fn transpose(values: &[f32], rows: usize) -> Vec<f32> {
    const TILE: usize = 32;
    let cols = values.len() / rows;
    let mut turned = vec![0.0; values.len()];
    for first in (0..cols).step_by(TILE) {
        for row in 0..rows {
            for col in first..cols.min(first + TILE) {
                turned[row * cols + col] = values[col * rows + row];
            }
        }
    }
    turned
}

/// Factors of one operand, read when the product runs.
struct Factors {
    scale: Scale,
    values: Vec<f32>,
    shape: [usize; 2],
}

impl Factors {
    fn read(scale: Scale, outer: usize, inner: usize) -> Factors {
        let count = scale.count(outer, inner) as u64;
        let one = |index| f32_at(scale.address + 4 * index);
        let values = if scale.address == 0 { vec![1.0] } else { (0..count).map(one).collect() };
        Factors { scale, values, shape: [outer, inner] }
    }

    fn get(&self, outer: usize, block: usize) -> f32 {
        self.values[self.scale.index(outer, block, self.shape)]
    }
}

impl Job {
    /// True unless beta is known to be zero.
    pub fn reads_c(&self) -> bool {
        !matches!(self.beta, Scalar::Host(0.0))
    }

    /// Memory accessed in addition to matrices: name, address, and number of bytes.
    pub fn factors(&self) -> Vec<(&'static str, u64, u64)> {
        let Problem { scale_a, scale_b, m, n, k, .. } = &self.problem;
        let scalar = |scalar| match scalar {
            Scalar::Host(_) => 0,
            Scalar::Device(address) => address,
        };
        let all = [
            ("A's factors", scale_a.address, scale_a.count(*m, *k) as u64),
            ("B's factors", scale_b.address, scale_b.count(*n, *k) as u64),
            ("C's factor", self.problem.scale_c, 1),
            ("D's factor", self.problem.scale_d, 1),
            ("the largest of D", self.problem.largest, 1),
            ("alpha", scalar(self.alpha), 1),
            ("beta", scalar(self.beta), 1),
        ];
        all.into_iter().filter(|(_, at, _)| *at != 0).map(|(name, at, count)| (name, at, 4 * count)).collect()
    }

    /// Checks that all memory is accessible.
    ///
    /// # Errors
    /// The memory that is not.
    pub fn check(&self) -> Result<(), String> {
        let Problem { a, b, c, d, .. } = &self.problem;
        let sides = [("A", a), ("B", b), ("C", c), ("D", d)].into_iter().zip(self.addresses);
        let touched = sides.filter(|((name, _), _)| *name != "C" || self.reads_c());
        let mut ranges: Vec<_> = touched.map(|((name, matrix), at)| (name, at, matrix.bytes())).collect();
        ranges.extend(self.factors());
        if self.workspace.1 > 0 {
            ranges.push(("the workspace", self.workspace.0, self.workspace.1));
        }
        ranges
            .into_iter()
            .try_for_each(|(name, at, bytes)| check_memory(at, bytes).map_err(|why| format!("{name}: {why}")))
    }

    /// Computes the product.
    ///
    /// # Errors
    /// Anything that would make a device fail.
    pub fn run(&self) -> Result<(), String> {
        self.check()?;
        let Problem { a, b, m, n, k, .. } = &self.problem;
        if self.workspace.1 > 0 {
            let to: *mut u8 = std::ptr::with_exposed_provenance_mut(self.workspace.0 as usize);
            // SAFETY: checked. Overwriting the workspace exposes callers that keep data there.
            unsafe { to.write_bytes(0xff, self.workspace.1 as usize) };
        }
        let [left, right] = self.problem.transposed;
        let round = |mut values: Vec<f32>| {
            match self.problem.precision {
                Precision::Full => {}
                Precision::Tf32 => values.iter_mut().for_each(|value| *value = tf32(*value)),
                Precision::F16 => values.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32()),
                Precision::Bf16 => {
                    values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32())
                }
            }
            values
        };
        let a_values = round(read(a, self.addresses[0]));
        let a_values = if left { transpose(&a_values, a.rows) } else { a_values };
        let b_values = round(read(b, self.addresses[1]));
        let b_values = if right { transpose(&b_values, b.rows) } else { b_values };
        let factors =
            [Factors::read(self.problem.scale_a, *m, *k), Factors::read(self.problem.scale_b, *n, *k)];
        let mut largest = 0f32;
        for first in (0..*n).step_by(WIDTH) {
            let width = WIDTH.min(n - first);
            let sums =
                columns(&a_values, &b_values[first * k..(first + width) * k], [*m, *k], first, &factors);
            for (index, sum) in sums.into_iter().enumerate().take(width) {
                largest = self.finish(first + index, sum, largest);
            }
        }
        if self.problem.largest != 0 {
            let to: *mut f32 = std::ptr::with_exposed_provenance_mut(self.problem.largest as usize);
            // SAFETY: checked.
            unsafe { to.write_unaligned(largest) };
        }
        Ok(())
    }

    /// Scales a column, adds C's, and writes it; returns the largest magnitude so far.
    fn finish(&self, index: usize, mut column: Vec<f32>, mut largest: f32) -> f32 {
        let Problem { c, d, scale_c, scale_d, .. } = &self.problem;
        let one = |address: u64| if address == 0 { 1.0 } else { f32_at(address) };
        let (alpha, beta) = (self.alpha.value(), self.beta.value());
        column.iter_mut().for_each(|value| *value *= alpha);
        if beta != 0.0 {
            let mut before = vec![0.0; c.rows];
            // SAFETY: within the matrix, which was checked.
            unsafe { c.kind.read(self.addresses[2] + c.column(index), &mut before) };
            let beta = beta * one(*scale_c);
            column.iter_mut().zip(before).for_each(|(value, before)| *value += beta * before);
        }
        if self.problem.largest != 0 {
            // NaN is kept.
            let more = |most: f32, value: &f32| {
                if most.is_nan() || value.abs() <= most { most } else { value.abs() }
            };
            largest = column.iter().fold(largest, more);
        }
        if *scale_d != 0 {
            let factor = one(*scale_d);
            column.iter_mut().for_each(|value| *value *= factor);
        }
        // SAFETY: as above.
        unsafe { d.kind.write(&column, self.addresses[3] + d.column(index)) };
        largest
    }
}

/// A few columns of op(A) op(B), with factors: the sum over blocks of factors times sums within blocks.
fn columns(
    a: &[f32],
    b: &[f32],
    [m, k]: [usize; 2],
    first: usize,
    [rows, cols]: &[Factors; 2],
) -> [Vec<f32>; WIDTH] {
    let width = b.len() / k;
    let blocked = [rows, cols].iter().any(|side| matches!(side.scale.mode, Mode::Vector | Mode::Block));
    let length = if blocked { BLOCK } else { k };
    let mut sums: [Vec<f32>; WIDTH] = std::array::from_fn(|_| vec![0.0; m]);
    for (block, start) in (0..k).step_by(length).enumerate() {
        let mut parts: [Vec<f32>; WIDTH] = std::array::from_fn(|_| vec![0.0; m]);
        for inner in start..k.min(start + length) {
            let [p0, p1, p2, p3] = &mut parts;
            let [b0, b1, b2, b3] = std::array::from_fn(|index| b[index.min(width - 1) * k + inner]);
            let targets = p0.iter_mut().zip(p1).zip(p2).zip(p3);
            for (value, (((p0, p1), p2), p3)) in a[inner * m..(inner + 1) * m].iter().zip(targets) {
                *p0 += value * b0;
                *p1 += value * b1;
                *p2 += value * b2;
                *p3 += value * b3;
            }
        }
        let left: Vec<f32> = (0..m).map(|row| rows.get(row, block)).collect();
        for (index, (sum, part)) in sums.iter_mut().zip(&parts).enumerate().take(width) {
            let right = cols.get(first + index, block);
            let scaled = part.iter().zip(&left).map(|(part, left)| part * (left * right));
            sum.iter_mut().zip(scaled).for_each(|(sum, part)| *sum += part);
        }
    }
    sums
}
