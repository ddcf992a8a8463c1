//! k-means (Lloyd) with k-means++ initialization (Arthur and Vassilvitskii 2007) over unit vectors.
//!
//! The nearest centre maximizes the inner product minus half its squared norm. Sums run over fixed blocks of rows in
//! order, so results do not depend on the number of threads.

use rayon::prelude::*;

use crate::dedup::generate::SplitMix;

/// Rows per block of a sum.
const BLOCK: usize = 1024;

/// Cluster centres of `size` numbers each.
pub(super) struct Centres {
    values: Vec<f32>,
    /// Half the squared norm of each centre.
    half_squares: Vec<f32>,
    size: usize,
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0f32; LANES];
    let (left, right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in left.zip(right) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

impl Centres {
    fn new(values: Vec<f32>, size: usize) -> Centres {
        let half_squares = values.chunks_exact(size).map(|centre| dot(centre, centre) / 2.0).collect();
        Centres { values, half_squares, size }
    }

    /// Number of centres.
    pub(super) fn len(&self) -> usize {
        self.half_squares.len()
    }

    pub(super) fn centre(&self, at: usize) -> &[f32] {
        &self.values[at * self.size..(at + 1) * self.size]
    }

    /// Index of the nearest centre to a row (ties: the first) and the squared distance.
    pub(super) fn nearest(&self, row: &[f32]) -> (usize, f32) {
        let mut best = (0, f32::NEG_INFINITY);
        for (at, centre) in self.values.chunks_exact(self.size).enumerate() {
            let closeness = dot(row, centre) - self.half_squares[at];
            if closeness > best.1 {
                best = (at, closeness);
            }
        }
        (best.0, (dot(row, row) - 2.0 * best.1).max(0.0))
    }

    /// Fits at most `clusters` centres to `rows` of `size` numbers. Stops after `max_iterations`, or when the
    /// centres' total squared movement is at most `tolerance` times the mean variance of the coordinates
    /// (scikit-learn's and cuML's rule).
    pub(super) fn fit(
        rows: &[f32],
        size: usize,
        clusters: usize,
        (max_iterations, tolerance): (usize, f64),
        seed: u64,
    ) -> Centres {
        let mut centres = Centres::new(start(rows, size, clusters, seed), size);
        let enough = tolerance * mean_variance(rows, size);
        for _ in 0..max_iterations {
            let next = centres.step(rows);
            let moved: f64 =
                centres.values.iter().zip(&next.values).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            centres = next;
            if moved <= enough {
                break;
            }
        }
        centres
    }

    /// Replaces each centre by the mean of its nearest rows; a centre without rows stays.
    fn step(&self, rows: &[f32]) -> Centres {
        let size = self.size;
        let blocks: Vec<Vec<(usize, f32)>> = rows
            .par_chunks(BLOCK * size)
            .map(|block| block.chunks_exact(size).map(|row| self.nearest(row)).collect())
            .collect();
        let mut sums = vec![0f64; self.values.len()];
        let mut counts = vec![0u64; self.len()];
        for (row, &(nearest, _)) in rows.chunks_exact(size).zip(blocks.iter().flatten()) {
            counts[nearest] += 1;
            let sum = &mut sums[nearest * size..(nearest + 1) * size];
            sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
        }
        let mut values = self.values.clone();
        for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            for (value, sum) in values[at * size..(at + 1) * size].iter_mut().zip(&sums[at * size..]) {
                *value = (sum / count as f64) as f32;
            }
        }
        Centres::new(values, size)
    }
}

/// k-means++ initialization: each further centre is a row drawn with probability proportional to its squared distance
/// to the nearest centre so far. Returns fewer centres if all remaining rows coincide with centres.
fn start(rows: &[f32], size: usize, clusters: usize, seed: u64) -> Vec<f32> {
    let count = rows.len() / size;
    let mut random = SplitMix(seed);
    let mut chosen = rows[..0].to_vec();
    let mut distances = vec![f32::INFINITY; count];
    let mut next = random.below(count as u64) as usize;
    for _ in 0..clusters.min(count) {
        let row = rows[next * size..(next + 1) * size].to_vec();
        distances.par_iter_mut().zip(rows.par_chunks(size)).for_each(|(distance, other)| {
            let square: f32 = row.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum();
            *distance = distance.min(square);
        });
        chosen.extend(row);
        let total: f64 = distances.iter().map(|&distance| f64::from(distance)).sum();
        if total <= 0.0 {
            break;
        }
        let mut left = random.unit() * total;
        // Rounding may leave a remainder; the last row that is not yet a centre is then taken.
        let mut at = 0;
        for (row, &distance) in distances.iter().enumerate().filter(|(_, distance)| **distance > 0.0) {
            at = row;
            left -= f64::from(distance);
            if left < 0.0 {
                break;
            }
        }
        next = at;
    }
    chosen
}

fn mean_variance(rows: &[f32], size: usize) -> f64 {
    let count = (rows.len() / size) as f64;
    let mut sums = vec![(0f64, 0f64); size];
    for row in rows.chunks_exact(size) {
        for (sum, &value) in sums.iter_mut().zip(row) {
            sum.0 += f64::from(value);
            sum.1 += f64::from(value).powi(2);
        }
    }
    sums.iter().map(|(sum, squares)| squares / count - (sum / count).powi(2)).sum::<f64>() / size as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` points around each of the axes.
    fn around_axes(size: usize, count: usize) -> Vec<f32> {
        let mut random = SplitMix(9);
        (0..size * count)
            .flat_map(|i| {
                let noise: Vec<f32> = (0..size).map(|_| 0.02 * random.unit() as f32).collect();
                (0..size).map(move |at| noise[at] + f32::from(u8::from(at == i % size))).collect::<Vec<f32>>()
            })
            .collect()
    }

    #[test]
    fn finds_separate_groups() {
        let rows = around_axes(8, 50);
        let centres = Centres::fit(&rows, 8, 8, (300, 1e-4), 1);
        assert_eq!(centres.len(), 8);
        let groups: Vec<usize> = rows.chunks_exact(8).map(|row| centres.nearest(row).0).collect();
        assert!((0..groups.len()).all(|i| groups[i] == groups[i % 8]));
        assert_eq!(groups[..8].iter().collect::<std::collections::BTreeSet<_>>().len(), 8);
        assert!(rows.chunks_exact(8).all(|row| centres.nearest(row).1 < 0.01));
    }

    #[test]
    fn equal_rows_make_one_centre() {
        let rows = [0.6f32, 0.8].repeat(20);
        let centres = Centres::fit(&rows, 2, 5, (300, 1e-4), 1);
        assert_eq!(centres.len(), 1);
        assert_eq!(centres.nearest(&rows[..2]).0, 0);
    }
}
