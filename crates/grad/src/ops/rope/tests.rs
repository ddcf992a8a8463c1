//! Rotations of halves and neighbours, whole and partial, against the reference.

use super::RopeUse;
use super::reference::rope;
use crate::testing::{self, Rotation, Stream};

/// One rotation: columns of a head, and how many of them are rotated.
#[derive(Clone, Copy, Debug)]
struct Case {
    lengths: &'static [usize],
    heads: usize,
    head_dim: usize,
    rot: usize,
    interleaved: bool,
    factor: f32,
}

#[track_caller]
fn check(case: Case) {
    let Case { lengths, heads, head_dim, rot, interleaved, factor } = case;
    let mut stream = Stream::documents(lengths, None, 1);
    stream.rotation = Some(Rotation::standard(rot, factor));
    let how = RopeUse { table: 0, head_dim, interleaved };
    testing::check(&testing::Case {
        what: format!("{case:?}"),
        cols: heads * head_dim,
        params: vec![],
        wide_params: false,
        stream: stream.clone(),
        record: &|cx, x, _| cx.rope("y", x, how),
        reference: &|x, _| rope(x, &stream, how),
        penalty: None,
    });
}

#[test]
fn halves_neighbours_and_partial() {
    for interleaved in [false, true] {
        for (heads, head_dim, rot) in
            [(1, 2, 2), (2, 16, 16), (3, 20, 12), (1, 80, 32), (4, 64, 64), (2, 10, 6)]
        {
            check(Case { lengths: &[19, 1, 14], heads, head_dim, rot, interleaved, factor: 1.0 });
        }
        let yarn = Case { lengths: &[70], heads: 2, head_dim: 24, rot: 24, interleaved, factor: 1.25 };
        check(yarn);
    }
}
