//! Experts on several ranks compared with experts on one: results and all gradients, with several rounds, empty slots
//! and both layouts.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::mesh::{Axis, Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{Activation, Category, Device, Machine, Meta, RouterScores, Routing, Tensor};

use super::ExpertMlp;
use super::reference::expert_mlp;
use crate::ops::linear::reference::linear;
use crate::ops::route::reference::route;
use crate::testing::{Matrix, Stream};
use crate::{Counters, Ctx, ExpertsUse, Grads, Param, ParamId, Params, Places, Scope, Segments, Tape, Val};

const TOKENS: usize = 256;
const D: usize = 6;
const F: usize = 8;
const EXPERTS: usize = 4;
const ROUTING: Routing =
    Routing { top_k: 2, scores: RouterScores::Softmax, groups: None, normalise: true, scale: 1.0 };

#[derive(Clone, Copy, Debug)]
struct Case {
    grid: Grid,
    tokens: usize,
    /// Weights as in a linear layer; else as in gpt-oss.
    trans: bool,
    /// Most tokens choose the first two experts.
    skewed: bool,
    limit: Option<f32>,
    tile: Option<usize>,
}

/// Router with bias, up with bias, down with bias: [n, d], [1, n], [n x 2f, d], [n, 2f], [n x d, f], [n, d].
fn weights(skewed: bool) -> [Matrix; 6] {
    let sizes =
        [(EXPERTS, D), (1, EXPERTS), (EXPERTS * 2 * F, D), (EXPERTS, 2 * F), (EXPERTS * D, F), (EXPERTS, D)];
    let mut seed = 0;
    let mut weights = sizes.map(|(rows, cols)| {
        seed += 1;
        Matrix::random(rows, cols, seed).times(0.5)
    });
    if skewed {
        weights[1] = Matrix::new(1, EXPERTS, |_, expert| if expert < 2 { 4.0 } else { 0.0 });
    }
    weights
}

/// Columns of gate and up on a rank of an expert, by their position in the whole.
fn columns(case: &Case, etp: usize) -> Vec<usize> {
    let (f, trans) = (F / case.grid.etp, case.trans);
    let mine = etp * f..(etp + 1) * f;
    if trans {
        mine.clone().chain(mine.start + F..mine.end + F).collect()
    } else {
        (2 * mine.start..2 * mine.end).collect()
    }
}

/// A rank's part of each weight, as stored: row and column of every element in the whole [out, in].
fn places(case: &Case, [etp, ep]: [usize; 2]) -> [Vec<[usize; 2]>; 6] {
    let (own, f) = (EXPERTS / case.grid.ep, F / case.grid.etp);
    let experts = || ep * own..(ep + 1) * own;
    let inner = etp * f..(etp + 1) * f;
    let wide = columns(case, etp);
    let all = |rows: Vec<usize>, cols: Vec<usize>| -> Vec<[usize; 2]> {
        rows.iter().flat_map(|row| cols.iter().map(|col| [*row, *col]).collect::<Vec<_>>()).collect()
    };
    let each = |of: &dyn Fn(usize) -> Vec<[usize; 2]>| experts().flat_map(of).collect::<Vec<_>>();
    let turned = |list: Vec<[usize; 2]>, cols: usize| -> Vec<[usize; 2]> {
        let rows = list.len() / cols;
        (0..cols).flat_map(|col| (0..rows).map(|row| list[row * cols + col]).collect::<Vec<_>>()).collect()
    };
    let up = |expert: usize| {
        let list = all(wide.iter().map(|col| expert * 2 * F + col).collect(), (0..D).collect());
        if case.trans { list } else { turned(list, D) }
    };
    let down = |expert: usize| {
        let list = all((expert * D..(expert + 1) * D).collect(), inner.clone().collect());
        if case.trans { list } else { turned(list, f) }
    };
    [
        all((0..EXPERTS).collect(), (0..D).collect()),
        all(vec![0], (0..EXPERTS).collect()),
        each(&up),
        all(experts().collect(), wide.clone()),
        each(&down),
        all(experts().collect(), (0..D).collect()),
    ]
}

/// Rows and columns as stored.
fn shapes(case: &Case) -> [[usize; 2]; 6] {
    let (own, f) = (EXPERTS / case.grid.ep, F / case.grid.etp);
    let (up, down) =
        if case.trans { ([own * 2 * f, D], [own * D, f]) } else { ([own * D, 2 * f], [own * f, D]) };
    [[EXPERTS, D], [1, EXPERTS], up, [own, 2 * f], down, [own, D]]
}

fn upload(device: &Device, values: &Matrix) -> Tensor {
    let data: Vec<f32> = values.data.iter().map(|x| *x as f32).collect();
    device.from_f32(values.rows, values.cols, &data, Category::Params)
}

/// Output, gradient of x, gradients of the weights, and peak memory.
type Run = (Vec<f32>, Vec<f32>, [Vec<f32>; 6], u64);

fn run(device: &Device, case: &Case, seed: u64) -> Run {
    let at = [Axis::Etp, Axis::Ep].map(|axis| device.mesh.index(axis));
    let whole = weights(case.skewed);
    let mut params = Params::default();
    let mut parts = whole.iter().zip(places(case, at)).zip(shapes(case));
    let ids: [ParamId; 6] = std::array::from_fn(|_| {
        let ((values, places), [rows, cols]) = parts.next().unwrap();
        let part =
            Matrix { rows, cols, data: places.into_iter().map(|[row, col]| values[(row, col)]).collect() };
        let value = upload(device, &part).into();
        params.push(Param { name: "w".into(), value, decays: true, trainable: true })
    });
    let (x, dy) = (Matrix::random(case.tokens, D, 11 + seed), Matrix::random(case.tokens, D, 31 + seed));
    let batch = Stream::documents(&[case.tokens], None, 1).upload(device);
    let counters = Counters::default();
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let places = Places::linear().with_tiles(case.tile);
    let mut grads = Grads::zeros(device, &params);
    let mut tape = Tape::new(scope, &places).with_input_gradient();
    let (trans, activation) =
        (case.trans, if case.trans { Activation::Silu } else { Activation::ClampedSwiglu });
    let how = ExpertMlp { layout: ExpertsUse { experts: EXPERTS, trans }, activation, gated: true };
    let body = |cx: &mut Ctx<'_>, x: Val| {
        cx.rows(|cx| {
            let x = cx.own_rows("own", x);
            let logits = cx.linear_wide("logits", x, ids[0], Some(ids[1]));
            let [weights, mut index] = cx.route(["weights", "index"], logits, ROUTING, None);
            if let Some(factor) = case.limit {
                index = cx.whole(|cx| cx.limit("limited", index, Some(weights), EXPERTS, factor));
            }
            let (up, down) = ((ids[2], Some(ids[3])), (ids[4], Some(ids[5])));
            let y = cx.expert_mlp(["up", "act", "down"], [x, index], how, up, down);
            let y = cx.combine("out", y, weights);
            cx.all_rows("all", y)
        })
    };
    let y = tape.segment(0, Some(upload(device, &x)), &body);
    let dx = tape.backward(upload(device, &dy), &mut grads).unwrap();
    let grad = |id: ParamId| device.to_f32(grads.get(id).unwrap());
    (device.to_f32(&y), device.to_f32(&dx), ids.map(grad), device.pool.usage().peak_reserved)
}

fn alone(case: &Case, seed: u64) -> Run {
    let case = Case { grid: Grid::default(), ..*case };
    run(&Device::new(Arc::new(Cpu::new(1, None)), 1 << 26), &case, seed)
}

#[track_caller]
fn close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let top = expected.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    let worst = found.iter().zip(expected).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst <= 4e-6 * top.max(1.0), "{what}: differs by {worst} of {top}");
}

/// The seed of a rank's tokens: tensor parallel ranks have the same.
fn seed(grid: &Grid, rank: usize) -> u64 {
    (rank / grid.tp) as u64
}

#[track_caller]
fn check(case: Case) {
    let Case { grid, .. } = case;
    let ranks: Vec<Run> = std::thread::scope(|scope| {
        let rank = |seat: Seat| {
            scope.spawn(move || {
                let mesh = Mesh::new(grid, Box::new(seat.take()));
                let seed = seed(&grid, mesh.rank());
                run(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 26, mesh), &case, seed)
            })
        };
        let all: Vec<_> = threads(grid.ranks(), ThreadsOptions::default()).into_iter().map(rank).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let expected: Vec<Run> = (0..grid.ranks() / grid.tp).map(|seed| alone(&case, seed as u64)).collect();
    // Gradients of whole weights: the sum over all ranks that share a part.
    let one = Case { grid: Grid::default(), ..case };
    let order = places(&one, [0, 0]);
    for weight in 0..6 {
        let cols = weights(false)[weight].cols;
        let mut sum = vec![0.0f64; order[weight].len()];
        for (rank, run) in ranks.iter().enumerate() {
            let at = [Axis::Etp, Axis::Ep].map(|axis| grid.index(rank, axis));
            for ([row, col], value) in places(&case, at)[weight].iter().zip(&run.2[weight]) {
                sum[row * cols + col] += f64::from(*value);
            }
        }
        let find = |[row, col]: &[usize; 2]| sum[row * cols + col] as f32;
        let found: Vec<f32> = order[weight].iter().map(find).collect();
        let total = |at: usize| expected.iter().map(|run| run.2[weight][at]).sum::<f32>();
        let total: Vec<f32> = (0..found.len()).map(total).collect();
        close(&format!("{case:?}: weight {weight}"), &found, &total);
    }
    for (rank, run) in ranks.iter().enumerate() {
        let alone = &expected[seed(&grid, rank) as usize];
        if grid.etp == 1 {
            assert!(run.0 == alone.0 && run.1 == alone.1, "{case:?}: rank {rank} has other bits");
        } else {
            close(&format!("{case:?}: output of rank {rank}"), &run.0, &alone.0);
            close(&format!("{case:?}: gradient of rank {rank}"), &run.1, &alone.1);
        }
        // Memory does not depend on the routing.
        let machine = Meta::new(Cpu::new(1, None).profile().clone());
        let mesh = Mesh::new(grid, Box::new(fathom_tensor::mesh::CountingLink::new(rank, grid.ranks())));
        let planned = self::run(&Device::on_mesh(Arc::new(machine), 1 << 26, mesh), &case, 0);
        assert_eq!(run.3, planned.3, "{case:?}: memory of rank {rank}");
    }
}

#[test]
fn experts_of_other_ranks_do_the_same() {
    let grids = [
        Grid { dp: 2, ep: 2, ..Grid::default() },
        Grid { dp: 4, ep: 4, ..Grid::default() },
        Grid { cp: 2, dp: 2, ep: 2, ..Grid::default() },
        Grid { dp: 2, etp: 2, ..Grid::default() },
        Grid { dp: 4, ep: 2, etp: 2, ..Grid::default() },
        Grid { tp: 2, ep: 2, ..Grid::default() },
    ];
    for grid in grids {
        let case = Case { grid, tokens: TOKENS, trans: true, skewed: false, limit: None, tile: None };
        check(case);
        check(Case { trans: false, tile: Some(128), ..case });
        check(Case { skewed: true, ..case });
        check(Case { skewed: true, limit: (grid.tp == 1).then_some(1.0), tile: Some(128), ..case });
    }
}

/// If rows do not divide, some ranks have one more, or some have none.
#[test]
fn shares_differ_by_a_row() {
    let pair = Grid { tp: 2, ..Grid::default() };
    for grid in [pair, Grid { ep: 2, ..pair }, Grid { etp: 2, ..pair }, Grid { tp: 3, ..pair }] {
        for (tokens, tile) in [(1, None), (3, None), (255, None), (201, Some(128))] {
            check(Case { grid, tokens, trans: true, skewed: false, limit: None, tile });
        }
    }
}

#[test]
fn one_rank_is_the_reference() {
    let case =
        Case { grid: Grid::default(), tokens: TOKENS, trans: true, skewed: false, limit: None, tile: None };
    let [router, bias, up, up_bias, down, down_bias] = &weights(false);
    let x = Matrix::random(TOKENS, D, 11);
    let (chosen, weights) = route(ROUTING, &linear(&x, router, Some(bias)), None);
    let index: Vec<Vec<Option<usize>>> =
        chosen.iter().map(|experts| experts.iter().copied().map(Some).collect()).collect();
    let y = expert_mlp(&x, &index, [up, down], [up_bias, down_bias]);
    let y = crate::ops::combine::reference::combine(&y, &weights);
    close("reference", &alone(&case, 0).0, &y.data.iter().map(|x| *x as f32).collect::<Vec<_>>());
}
