//! The largest singular parts of a matrix.

use nalgebra::DMatrix;

/// Subtracts the `rank` largest singular parts from the row-major `weight` and returns them as A [rank, cols] and B
/// [rows, rank] whose product times `scale` they are, the roots of the singular values in both (PiSSA's start in
/// PEFT).
pub(super) fn largest(
    weight: &mut [f32],
    [rows, cols]: [usize; 2],
    rank: usize,
    scale: f32,
) -> (Vec<f32>, Vec<f32>) {
    let matrix = DMatrix::from_fn(rows, cols, |row, col| f64::from(weight[row * cols + col]));
    let svd = matrix.svd(true, true);
    let (Some(u), Some(v)) = (&svd.u, &svd.v_t) else { return Default::default() };
    let root = |part: usize| (svd.singular_values[part] / f64::from(scale)).sqrt();
    let places =
        |rows: usize, cols: usize| (0..rows).flat_map(move |row| (0..cols).map(move |col| (row, col)));
    let a: Vec<f32> = places(rank, cols).map(|(part, col)| (root(part) * v[(part, col)]) as f32).collect();
    let b: Vec<f32> = places(rows, rank).map(|(row, part)| (root(part) * u[(row, part)]) as f32).collect();
    for (left, (row, col)) in weight.iter_mut().zip(places(rows, cols)) {
        let low = |part: usize| f64::from(b[row * rank + part]) * f64::from(a[part * cols + col]);
        *left = (f64::from(*left) - f64::from(scale) * (0..rank).map(low).sum::<f64>()) as f32;
    }
    (a, b)
}
