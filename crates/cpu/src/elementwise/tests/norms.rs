//! Norms and their gradients.
use super::*;

fn kinds() -> impl Iterator<Item = NormKind> {
    [false, true].into_iter().flat_map(|centred| {
        [(false, false), (true, false), (false, true)].map(|(plus_one, round_first)| NormKind {
            centred,
            plus_one,
            round_first,
            eps: 1e-5,
        })
    })
}

/// The norm of one group in f64: normalised values, mean and reciprocal deviation.
fn reference(kind: NormKind, x: &[f64]) -> (Vec<f64>, f64, f64) {
    let n = x.len() as f64;
    let mean = if kind.centred { x.iter().sum::<f64>() / n } else { 0.0 };
    let inverse = 1.0 / (x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n + kind.eps as f64).sqrt();
    (x.iter().map(|x| (x - mean) * inverse).collect(), mean, inverse)
}

struct Case {
    kind: NormKind,
    rows: usize,
    groups: usize,
    width: usize,
    x: PaddedMatrix,
    dy: PaddedMatrix,
    weight: PaddedMatrix,
    bias: Option<PaddedMatrix>,
}

impl Case {
    fn new(
        kind: NormKind,
        [rows, groups, width]: [usize; 3],
        elem: Elem,
        weight: Elem,
        biased: bool,
    ) -> Case {
        Case {
            kind,
            rows,
            groups,
            width,
            x: PaddedMatrix::random(rows, groups * width, elem, 1),
            dy: PaddedMatrix::random(rows, groups * width, elem, 2),
            weight: PaddedMatrix::random(1, width, weight, 3),
            bias: biased.then(|| PaddedMatrix::random(1, width, weight, 4)),
        }
    }

    fn all() -> impl Iterator<Item = Case> {
        kinds().flat_map(|kind| {
            ELEMS.into_iter().flat_map(move |elem| {
                [(5, 1, 200, elem, false), (300, 1, 97, Elem::F32, true), (150, 3, 64, elem, false)].map(
                    |(rows, groups, width, weight, bias)| {
                        Case::new(kind, [rows, groups, width], elem, weight, bias)
                    },
                )
            })
        })
    }

    fn forward(&self, place: Place<'_>, cuts: &[usize]) -> (PaddedMatrix, PaddedMatrix) {
        let stats_cols = self.groups * if self.kind.centred { 2 } else { 1 };
        let mut out = PaddedMatrix::blank(self.rows, self.x.cols, self.x.elem);
        let mut stats = PaddedMatrix::blank(self.rows, stats_cols, Elem::F32);
        for cut in cuts.windows(2) {
            let op = Norm {
                kind: self.kind,
                rows: cut[1] - cut[0],
                groups: self.groups,
                width: self.width,
                x: self.x.mat(cut[0]),
                weight: self.weight.mat(0),
                bias: self.bias.as_ref().map(|bias| bias.mat(0)),
                out: out.mat_mut(cut[0]),
                stats: stats.mat_mut(cut[0]),
            };
            // SAFETY: the operands are `PaddedMatrix`s of these extents.
            unsafe { norm(place, &op) }
        }
        (out, stats)
    }

    fn backward(&self, stats: &PaddedMatrix, rows: [usize; 2]) -> NormBackward {
        NormBackward {
            kind: self.kind,
            rows: rows[1] - rows[0],
            groups: self.groups,
            width: self.width,
            x: self.x.mat(rows[0]),
            weight: self.weight.mat(0),
            stats: stats.mat(rows[0]),
            dy: self.dy.mat(rows[0]),
        }
    }

    fn group(&self, of: &PaddedMatrix, row: usize, group: usize) -> Vec<f64> {
        (0..self.width).map(|i| of.get(row, group * self.width + i)).collect()
    }

    fn factor(&self, i: usize) -> f64 {
        self.weight.get(0, i) + if self.kind.plus_one { 1.0 } else { 0.0 }
    }
}

#[test]
fn norms_agree_with_f64() {
    for case in Case::all() {
        let blank = PaddedMatrix::blank(case.rows, case.x.cols, case.x.elem);
        let mut bits = Bits::default();
        places(|place| {
            let (out, stats) = case.forward(place, &[0, case.rows]);
            let (cut, _) = case.forward(place, &[0, 1, case.rows]);
            assert!(cut == out);
            bits.check("norm", place.isa, &[&out.bytes[..], &stats.bytes[..]].concat());
            for row in 0..case.rows {
                for group in 0..case.groups {
                    let (_, mean, inverse) = reference(case.kind, &case.group(&case.x, row, group));
                    let got = |i: usize| stats.get(row, i);
                    if case.kind.centred {
                        assert!(
                            (got(2 * group) - mean).abs() < 1e-6
                                && (got(2 * group + 1) - inverse).abs() < 1e-5
                        );
                    } else {
                        assert!((got(group) - inverse).abs() < 1e-5);
                    }
                }
            }
            let want: Vec<Vec<f64>> = (0..case.rows)
                .map(|row| {
                    (0..case.groups)
                        .flat_map(|group| {
                            let y = reference(case.kind, &case.group(&case.x, row, group)).0;
                            let bias = |i: usize| case.bias.as_ref().map_or(0.0, |bias| bias.get(0, i));
                            (0..case.width).map(|i| y[i] * case.factor(i) + bias(i)).collect::<Vec<f64>>()
                        })
                        .collect()
                })
                .collect();
            // Rounding the normalised value first costs another half unit of bf16, times the weight.
            let twice = if case.kind.round_first && case.x.elem == Elem::Bf16 { 1.2e-2 } else { 2e-6 };
            out.check("norm", &blank, twice, |row, col| want[row][col]);
        });
    }
}

#[test]
fn norm_gradients_agree_with_f64() {
    for case in Case::all() {
        let before = PaddedMatrix::random(case.rows, case.x.cols, case.x.elem, 9);
        let (mut bits, mut weight_bits) = (Bits::default(), Bits::default());
        places(|place| {
            let stats = case.forward(place, &[0, case.rows]).1;
            for accumulate in [false, true] {
                let mut dx = before.clone();
                let to = dx.mat_mut(0);
                // SAFETY: the operands are `PaddedMatrix`s of these extents.
                unsafe { norm_backward_input(place, &case.backward(&stats, [0, case.rows]), to, accumulate) };
                if !accumulate {
                    bits.check("norm backward", place.isa, &dx.bytes);
                }
                let want: Vec<f64> = input_gradient(&case);
                dx.check("norm dx", &before, 2e-5, |row, col| {
                    want[row * case.x.cols + col] + if accumulate { before.get(row, col) } else { 0.0 }
                });
            }
            let start = PaddedMatrix::random(2, case.width, Elem::F32, 11);
            let mut sums: Vec<PaddedMatrix> = vec![];
            for cuts in [&[0, case.rows][..], &[0, 128.min(case.rows), case.rows][..]] {
                let mut sum = start.clone();
                for cut in cuts.windows(2) {
                    let op = case.backward(&stats, [cut[0], cut[1]]);
                    let (dw, db) = (sum.mat_mut(0), sum.mat_mut(1));
                    // SAFETY: as above.
                    unsafe { norm_backward_weight(place, &op, dw, Some(db)) };
                }
                sums.push(sum);
            }
            assert!(sums[0] == sums[1], "cutting the rows at a chunk changed bits");
            weight_bits.check("norm backward weight", place.isa, &sums[0].bytes);
            let (mut dw, mut db) = (vec![0.0; case.width], vec![0.0; case.width]);
            for (row, group) in (0..case.rows).flat_map(|row| (0..case.groups).map(move |group| (row, group)))
            {
                let y = reference(case.kind, &case.group(&case.x, row, group)).0;
                for i in 0..case.width {
                    let dy = case.dy.get(row, group * case.width + i);
                    dw[i] += dy * y[i];
                    db[i] += dy;
                }
            }
            let tolerance = if case.kind.round_first && case.x.elem == Elem::Bf16 { 0.2 } else { 5e-5 };
            sums[0].check("norm dw", &start, tolerance, |row, i| {
                start.get(row, i) + if row == 0 { dw[i] } else { db[i] }
            });
        });
    }
}

fn input_gradient(case: &Case) -> Vec<f64> {
    let mut dx = vec![0.0; case.rows * case.x.cols];
    for (row, group) in (0..case.rows).flat_map(|row| (0..case.groups).map(move |group| (row, group))) {
        let (y, _, inverse) = reference(case.kind, &case.group(&case.x, row, group));
        let g: Vec<f64> =
            case.group(&case.dy, row, group).iter().enumerate().map(|(i, dy)| dy * case.factor(i)).collect();
        let n = case.width as f64;
        let along = g.iter().zip(&y).map(|(g, y)| g * y).sum::<f64>() / n;
        let offset = if case.kind.centred { g.iter().sum::<f64>() / n } else { 0.0 };
        for i in 0..case.width {
            dx[row * case.x.cols + group * case.width + i] = inverse * (g[i] - y[i] * along - offset);
        }
    }
    dx
}
