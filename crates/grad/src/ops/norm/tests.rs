//! Every kind of normalisation against the reference.

use fathom_tensor::NormKind;

use super::reference::norm;
use crate::testing::{self, Matrix, Stream};

/// One normalisation.
#[derive(Clone, Copy, Debug)]
struct Case {
    tokens: usize,
    groups: usize,
    width: usize,
    kind: NormKind,
    bias: bool,
}

#[track_caller]
fn check(case: Case) {
    let Case { tokens, groups, width, kind, bias } = case;
    let around = if kind.plus_one { 0.0 } else { 1.0 };
    let random = Matrix::random(1, width, 3).times(0.3);
    let weight = Matrix::new(1, width, |_, col| around + random[(0, col)]);
    testing::check(&testing::Case {
        what: format!("{case:?}"),
        cols: groups * width,
        params: std::iter::once(weight).chain(bias.then(|| Matrix::random(1, width, 4))).collect(),
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| cx.norm(["y", "stats"], x, kind, p[0], p.get(1).copied()),
        reference: &|x, p| norm(x, kind, &p[0], p.get(1)),
        penalty: None,
    });
}

#[test]
fn every_kind() {
    let all = [false, true];
    for [centred, plus_one, round_first] in
        all.map(|a| all.map(|b| all.map(|c| [a, b, c]))).as_flattened().as_flattened()
    {
        let (centred, plus_one, round_first) = (*centred, *plus_one, *round_first);
        for bias in all {
            let kind = NormKind { centred, plus_one, round_first, eps: 1e-5 };
            check(Case { tokens: 7, groups: 1, width: 48, kind, bias });
        }
    }
}

#[test]
fn sizes_and_groups() {
    let kind = NormKind { centred: false, plus_one: false, round_first: true, eps: 1e-6 };
    for (tokens, groups, width) in [(1, 1, 1), (3, 1, 33), (130, 3, 16), (5, 4, 20), (257, 1, 7), (9, 2, 128)]
    {
        for centred in [false, true] {
            // A centred group of one column is zero whatever it holds.
            if width > 1 {
                check(Case { tokens, groups, width, kind: NormKind { centred, ..kind }, bias: centred });
            }
        }
    }
    check(Case { tokens: 2, groups: 1, width: 1, kind: NormKind { eps: 0.5, ..kind }, bias: true });
}
