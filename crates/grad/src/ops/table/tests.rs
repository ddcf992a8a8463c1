//! Tables as values: normalised and projected tables are tested with attention in `relative`; here, a table that only
//! its own gradient reaches.

use crate::ops::relative::reference::relative;
use crate::ops::relative::{Distances, RelativeUse};
use crate::testing::{self, Matrix, Stream};

/// A table that is projected before it is used.
#[test]
fn rows_of_their_own_go_through_operations() {
    let distances = Distances { span: 3, buckets: false, max_distance: 3 };
    let how = RelativeUse { mask: 0, head_dim: 8, scale: 0.4, distances, c2p: true, p2c: false };
    let case = testing::Case {
        what: "a projected table".to_string(),
        cols: 24,
        params: vec![Matrix::random(6, 16, 3), Matrix::random(8, 16, 4).times(0.3)],
        wide_params: false,
        stream: Stream { apart: true, ..Stream::documents(&[7, 5], None, 1) },
        record: &|cx, x, p| {
            let qkv = cx.split(["q", "k", "v"], x, [8; 3], None);
            let table = cx.table("table", p[0]);
            let keys = cx.linear("keys", table, p[1], None);
            cx.relative_attention(qkv, Some(keys), None, how)
        },
        reference: &|x, p| {
            let keys = super::reference::projected(&p[0], &p[1]);
            relative(x, [Some(&keys), None], &[0..7, 7..12], how)
        },
        penalty: None,
    };
    testing::check_within(&case, 4e-2);
}
