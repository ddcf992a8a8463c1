//! Adapters of all and of some columns against the reference, and over ranks against one.

use super::reference::lora;
use super::{Drops, LinearCut, LoraUse, Runs};
use crate::ops::linear::reference::linear;
use crate::testing::{self, Matrix, Stream};

#[track_caller]
fn check([tokens, inner, out, rank]: [usize; 4], runs: &[(usize, usize)], bias: bool) {
    let runs = Runs::new(runs);
    let a = Matrix::random(runs.len() * rank, inner, 5).times(1.0 / (inner as f64).sqrt());
    let b = Matrix::random(runs.columns(), rank, 6).times(0.5);
    let weight = Matrix::random(out, inner, 3).times(1.0 / (inner as f64).sqrt());
    let params = [a, b, weight].into_iter().chain(bias.then(|| Matrix::random(1, out, 4))).collect();
    let scale = 1.5;
    testing::check(&testing::Case {
        what: format!("lora [{tokens}, {inner}] to {out}, rank {rank}, {runs:?}, bias {bias}"),
        cols: inner,
        params,
        wide_params: false,
        stream: Stream::documents(&[tokens], None, 1),
        record: &|cx, x, p| {
            let low = LoraUse::new(p[0], p[1], &vec![scale; runs.len()], runs);
            cx.lora("y", x, (p[2], p.get(3).copied()), low, LinearCut::Columns)
        },
        reference: &|x, p| lora(x, p, f64::from(scale), runs),
        penalty: None,
    });
}

#[test]
fn adapters_of_all_and_of_some_columns() {
    check([5, 7, 9, 2], &[(0, 9)], false);
    check([130, 24, 40, 4], &[(0, 16), (16, 12), (28, 12)], true);
    check([33, 48, 40, 3], &[(0, 16), (28, 12)], false);
    check([33, 16, 40, 1], &[(16, 12)], true);
}

/// A bias of the adapters' own is multiplied by the scale of its run.
#[test]
fn adapters_with_biases() {
    let runs = Runs::new(&[(0, 16), (28, 12)]);
    let (inner, out, rank) = (24, 40, 3);
    let a = Matrix::random(runs.len() * rank, inner, 5).times(0.2);
    let b = Matrix::random(runs.columns(), rank, 6).times(0.5);
    let weight = Matrix::random(out, inner, 3).times(0.2);
    testing::check(&testing::Case {
        what: "lora with biases".to_string(),
        cols: inner,
        params: vec![a, b, weight, Matrix::random(1, out, 4), Matrix::random(1, runs.columns(), 7)],
        wide_params: false,
        stream: Stream::documents(&[33], None, 1),
        record: &|cx, x, p| {
            let low = LoraUse { bias: Some(p[4]), ..LoraUse::new(p[0], p[1], &[1.5, 1.5], runs) };
            cx.lora("y", x, (p[2], Some(p[3])), low, LinearCut::Whole)
        },
        reference: &|x, p| {
            let mut bias = p[3].clone();
            for (own, column) in runs.iter().flat_map(|(at, columns)| at..at + columns).enumerate() {
                bias[(0, column)] += 1.5 * p[4][(0, own)];
            }
            lora(x, &[p[0].clone(), p[1].clone(), p[2].clone(), bias], 1.5, runs)
        },
        penalty: None,
    });
}

/// Dropout of an adapter's input depends on the keys of its rows, in training only; the adapters of a projection drop
/// different elements.
#[test]
fn adapters_drop_what_they_read() {
    let runs = Runs::new(&[(0, 16), (28, 12)]);
    let (inner, out, rank, drops) = (24, 40, 3, Drops { rate: 0.4, salt: 9, layer: 2 });
    let a = Matrix::random(runs.len() * rank, inner, 5).times(0.2);
    let b = Matrix::random(runs.columns(), rank, 6).times(0.5);
    let weight = Matrix::random(out, inner, 3).times(0.2);
    let keys: Vec<i32> = (0..33).map(|row: i32| row.wrapping_mul(0x0037_79b1)).collect();
    let kept = |x: &Matrix, run: usize| {
        let how = drops.of_run(0, run, 0);
        Matrix::new(x.rows, x.cols, |row, col| {
            if how.drops(keys[row], col) { 0.0 } else { f64::from(how.factor) * x[(row, col)] }
        })
    };
    testing::check(&testing::Case {
        what: "lora with dropout".to_string(),
        cols: inner,
        params: vec![a, b, weight],
        wide_params: false,
        stream: Stream { keys: Some(keys.clone()), ..Stream::documents(&[33], None, 1) },
        record: &|cx, x, p| {
            let low = LoraUse { drops: Some(drops), ..LoraUse::new(p[0], p[1], &[1.5, 0.5], runs) };
            cx.lora("y", x, (p[2], None), low, LinearCut::Whole)
        },
        reference: &|x, p| {
            let mut y = linear(x, &p[2], None);
            let mut first = 0;
            for (run, (at, columns)) in runs.iter().enumerate() {
                let (kept, scale) = (kept(x, run), [1.5, 0.5][run]);
                for (row, column) in (0..x.rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
                {
                    let low = |r: usize| {
                        (0..inner).map(|i| kept[(row, i)] * p[0][(run * rank + r, i)]).sum::<f64>()
                    };
                    let sum = (0..rank).map(|r| low(r) * p[1][(first + column, r)]).sum::<f64>();
                    y[(row, at + column)] += scale * sum;
                }
                first += columns;
            }
            y
        },
        penalty: None,
    });
    assert_ne!(drops.of_run(0, 0, 0), drops.of_run(0, 1, 0));
    assert_eq!(drops.of_run(1, 0, 0), Drops { layer: 3, ..drops }.of_run(0, 0, 0), "a layer further on");
}

#[test]
#[should_panic(expected = "lora y: A [2, 4], B [3, 1]")]
fn shapes_are_named() {
    let case = testing::Case {
        what: "misfit".to_string(),
        cols: 4,
        params: vec![Matrix::zeros(2, 4), Matrix::zeros(3, 1), Matrix::zeros(3, 4)],
        wide_params: false,
        stream: Stream::documents(&[2], None, 1),
        record: &|cx, x, p| {
            let low = LoraUse::new(p[0], p[1], &[1.0], Runs::new(&[(0, 3)]));
            cx.lora("y", x, (p[2], None), low, LinearCut::Whole)
        },
        reference: &|_, _| Matrix::zeros(2, 3),
        penalty: None,
    };
    testing::check(&case);
}
