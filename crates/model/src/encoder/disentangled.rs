//! Disentangled attention (He et al., arXiv 2006.03654, section 3.1): a score is the sum of content to content, content to
//! position and position to content, where positions are rows of a table of distances. Texts are short, so the scores of one
//! head are formed.

use fathom_tensor::{Category, DType, Device, Tensor};
use rayon::prelude::*;

use super::forward::product;
use super::spec::Relative;
use super::weights::Block;

/// One text: q, k, v and `out` are [n, d].
pub(super) fn attention(
    device: &Device,
    relative: Relative,
    block: &Block,
    [q, k, v]: [&Tensor; 3],
    out: &Tensor,
) {
    let (n, head_dim) = (q.rows(), block.head_dim);
    let rows = rows_by_distance(n, relative);
    let terms = 1 + usize::from(relative.c2p) + usize::from(relative.p2c);
    let scale = 1.0 / ((head_dim * terms) as f32).sqrt();
    let scores = device.empty(n, n, DType::F32, Category::Workspace);
    for head in 0..q.cols() / head_dim {
        let own = |x: &Tensor| x.view_cols(head * head_dim..(head + 1) * head_dim);
        // [n, 2 span]: a token's content with every distance.
        let with_distances = |x: &Tensor, table: &Option<Tensor>| {
            let table = table.as_ref()?;
            let products = device.empty(n, table.rows(), DType::F32, Category::Workspace);
            product(device, &own(x), &own(table), true, &products);
            Some(device.to_f32(&products))
        };
        product(device, &own(q), &own(k), true, &scores);
        let of_keys = with_distances(q, &block.position_keys);
        let of_queries = with_distances(k, &block.position_queries);
        let mut values = device.to_f32(&scores);
        let span = 2 * relative.span;
        values.par_chunks_exact_mut(n).enumerate().for_each(|(i, row)| {
            for (j, score) in row.iter_mut().enumerate() {
                // The distance of query i from key j, from -(n - 1) on.
                let at = rows[i + n - 1 - j];
                let c2p = of_keys.as_ref().map_or(0.0, |products| products[i * span + at]);
                let p2c = of_queries.as_ref().map_or(0.0, |products| products[j * span + at]);
                *score = (*score + c2p + p2c) * scale;
            }
            softmax(row);
        });
        let probabilities = device.from_f32(n, n, &values, Category::Workspace);
        product(device, &probabilities, &own(v), false, &own(out));
    }
}

fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - most).exp();
        sum += *value;
    }
    row.iter_mut().for_each(|value| *value /= sum);
}

/// The table's row for each distance from `1 - n` to `n - 1`.
fn rows_by_distance(n: usize, relative: Relative) -> Vec<usize> {
    let last = 2 * relative.span as i64 - 1;
    let row = |distance: i64| (bucket(distance, relative) + relative.span as i64).clamp(0, last) as usize;
    (1 - n as i64..n as i64).map(row).collect()
}

/// Distances up to half the span as they are, those beyond by their logarithm, in f32 as Transformers computes it.
fn bucket(distance: i64, relative: Relative) -> i64 {
    let mid = (relative.span / 2) as i64;
    if !relative.buckets || distance.abs() <= mid {
        return distance;
    }
    let (far, mid_f) = (distance.abs() as f32, mid as f32);
    let end = ((relative.max_distance as f64 - 1.0) / mid as f64) as f32;
    let steps = ((far / mid_f).ln() / end.ln() * (mid_f - 1.0)).ceil();
    distance.signum() * (steps as i64 + mid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Transformers' `make_log_bucket_position` with 256 buckets and 512 distances, and symmetry.
    #[test]
    fn far_distances_share_rows() {
        let relative = Relative {
            span: 256,
            buckets: true,
            max_distance: 512,
            c2p: true,
            p2c: true,
            shared: true,
            normed: true,
        };
        let found = [0, 1, 127, 128, 129, 150, 200, 300, 511, 600].map(|distance| bucket(distance, relative));
        assert_eq!(found, [0, 1, 127, 128, 129, 143, 169, 207, 255, 270]);
        for distance in 0..600 {
            assert_eq!(bucket(-distance, relative), -bucket(distance, relative));
        }
    }
}
