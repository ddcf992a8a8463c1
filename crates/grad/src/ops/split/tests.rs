//! Parts of a fused projection, rotated or not, against the reference.

use super::reference::split;
use crate::ops::rope::RopeUse;
use crate::testing::{self, Matrix, Rotation, Stream};

/// Widths and use of the parts.
#[derive(Clone, Copy, Debug)]
struct Case {
    widths: [usize; 3],
    head_dim: usize,
    /// Rotated columns; 0 for no rotation.
    rot: usize,
    interleaved: bool,
    /// The parts that are used in the output.
    used: &'static [usize],
}

#[track_caller]
fn check(case: Case) {
    let Case { widths, head_dim, rot, interleaved, used } = case;
    let mut stream = Stream::documents(&[21, 12], None, 1);
    stream.rotation = (rot > 0).then(|| Rotation::standard(rot, 1.0));
    let how = (rot > 0).then_some(RopeUse { table: 0, head_dim, interleaved });
    testing::check(&testing::Case {
        what: format!("{case:?}"),
        cols: widths.iter().sum(),
        params: vec![],
        wide_params: false,
        stream: stream.clone(),
        record: &|cx, x, _| {
            let parts = cx.split(["q", "k", "v"], x, widths, how);
            let used: Vec<_> = used.iter().map(|part| parts[*part]).collect();
            testing::join(cx, &used)
        },
        reference: &|x, _| {
            let parts = split(x, widths, &stream, how);
            let used: Vec<Matrix> = used.iter().map(|part| parts[*part].clone()).collect();
            Matrix::join(&used)
        },
        penalty: None,
    });
}

#[test]
fn parts_rotated_or_not() {
    let whole = &[0, 1, 2];
    for (widths, head_dim, rot) in
        [([8, 8, 8], 8, 0), ([64, 16, 16], 16, 16), ([30, 10, 10], 10, 4), ([5, 3, 1], 1, 0)]
    {
        for interleaved in [false, true] {
            check(Case { widths, head_dim, rot, interleaved, used: whole });
        }
    }
}

#[test]
fn parts_that_reach_nothing_have_zero_gradients() {
    let parts: [&[usize]; 4] = [&[0], &[1], &[2], &[2, 0]];
    for used in parts {
        check(Case { widths: [16, 8, 8], head_dim: 8, rot: 8, interleaved: false, used });
    }
}
