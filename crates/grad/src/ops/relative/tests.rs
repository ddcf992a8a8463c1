//! Every choice of terms compared with the reference, for documents longer and shorter than the table of distances.

use std::ops::Range;

use super::reference::relative;
use super::{Distances, RelativeUse};
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check(lengths: &[usize], heads: usize, [c2p, p2c]: [bool; 2], distances: Distances) {
    let width = heads * 8;
    let how = RelativeUse { mask: 0, head_dim: 8, scale: 0.3, distances, c2p, p2c };
    let mut start = 0;
    let docs: Vec<Range<usize>> = lengths
        .iter()
        .map(|len| {
            start += len;
            start - len..start
        })
        .collect();
    let tables = usize::from(c2p) + usize::from(p2c);
    let table = |seed: usize| Matrix::random(2 * distances.span, width, 10 + seed as u64);
    let case = testing::Case {
        what: format!("relative {lengths:?}, {heads} heads, c2p {c2p}, p2c {p2c}, {distances:?}"),
        cols: 3 * width,
        params: (0..tables).map(table).collect(),
        wide_params: false,
        stream: Stream { apart: true, ..Stream::documents(lengths, None, 1) },
        record: &|cx, x, p| {
            let qkv = cx.split(["q", "k", "v"], x, [width; 3], None);
            let keys = c2p.then(|| cx.table("keys", p[0]));
            let queries = p2c.then(|| cx.table("queries", p[usize::from(c2p)]));
            cx.relative_attention(qkv, keys, queries, how)
        },
        reference: &|x, p| relative(x, [c2p.then(|| &p[0]), p2c.then(|| &p[usize::from(c2p)])], &docs, how),
        penalty: None,
    };
    testing::check_within(&case, 4e-2);
}

#[test]
fn every_term() {
    let plain = Distances { span: 6, buckets: false, max_distance: 6 };
    let buckets = Distances { span: 4, buckets: true, max_distance: 20 };
    for distances in [plain, buckets] {
        for terms in [[false, false], [true, false], [false, true], [true, true]] {
            check(&[9, 1, 14], 2, terms, distances);
        }
    }
    check(&[33], 1, [true, true], buckets);
}
