//! An MLP whose weights lie on several ranks: its output and all gradients, whole and in tiles, with shared rows and without.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::mesh::{Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{Activation, Category, Device, Tensor};

use super::reference::mlp;
use crate::testing::{Matrix, Stream};
use crate::{Counters, Ctx, Grads, Param, ParamId, Params, Places, Scope, Segments, Tape, Val};

const TOKENS: usize = 384;
const D: usize = 6;
const F: usize = 8;

fn weights() -> [Matrix; 4] {
    let sizes = [(F, D), (1, F), (D, F), (1, D)];
    let mut seed = 0;
    sizes.map(|(rows, cols)| {
        seed += 1;
        Matrix::random(rows, cols, seed).times(0.5)
    })
}

fn upload(device: &Device, values: &Matrix) -> Tensor {
    let data: Vec<f32> = values.data.iter().map(|x| *x as f32).collect();
    device.from_f32(values.rows, values.cols, &data, Category::Params)
}

fn part(values: &Matrix, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) -> Matrix {
    Matrix::new(rows.len(), cols.len(), |row, col| values[(rows.start + row, cols.start + col)])
}

/// The tokens that a rank has between sub-layers.
fn own(rank: usize, ranks: usize, shared: bool, tile: Option<usize>) -> Vec<usize> {
    let block = tile.unwrap_or(TOKENS);
    let mine = |token: &usize| !shared || token % block / (block / ranks) == rank;
    (0..TOKENS).filter(mine).collect()
}

/// One rank's output, gradient of x, and gradients of the weights.
fn run(device: &Device, tile: Option<usize>) -> [Vec<f32>; 6] {
    let grid = *device.mesh.grid();
    let (rank, f) = (device.mesh.rank(), F / grid.tp);
    let columns = rank * f..(rank + 1) * f;
    let [up, up_bias, down, down_bias] = weights();
    let parts = [
        part(&up, columns.clone(), 0..D),
        part(&up_bias, 0..1, columns.clone()),
        part(&down, 0..D, columns),
        down_bias,
    ];
    let mut params = Params::default();
    let ids = parts.each_ref().map(|values| {
        let value = upload(device, values).into();
        params.push(Param { name: "w".into(), value, decays: true, trainable: true })
    });
    let tokens = own(rank, grid.tp, grid.sequence_parallel, tile);
    let rows = |values: &Matrix| Matrix::new(tokens.len(), D, |row, col| values[(tokens[row], col)]);
    let (x, dy) = (rows(&Matrix::random(TOKENS, D, 11)), rows(&Matrix::random(TOKENS, D, 12)));
    let stream = Stream::documents(&[TOKENS], None, 1);
    let batch = stream.upload(device);
    let counters = Counters::default();
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let places = Places::linear().with_tiles(tile);
    let mut grads = Grads::zeros(device, &params);
    let mut tape = Tape::new(scope, &places).with_input_gradient();
    let body = |cx: &mut Ctx<'_>, x: Val| {
        cx.rows(|cx| {
            let u = cx.column_parallel("up", x, ids[0], Some(ids[1]));
            let act = cx.activate("act", Activation::Relu, u);
            cx.row_parallel("down", act, ids[2], Some(ids[3]))
        })
    };
    let y = tape.segment(0, Some(upload(device, &x)), &body);
    let dx = tape.backward(upload(device, &dy), &mut grads).unwrap();
    let grad = |id: ParamId| device.to_f32(grads.get(id).unwrap());
    [device.to_f32(&y), device.to_f32(&dx), grad(ids[0]), grad(ids[1]), grad(ids[2]), grad(ids[3])]
}

#[track_caller]
fn close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let top = expected.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    let worst = found.iter().zip(expected).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst <= 2e-6 * top.max(1.0), "{what}: differs by {worst} of {top}");
}

#[test]
fn parts_add_up_to_the_whole() {
    let alone = run(&Device::new(Arc::new(Cpu::new(1, None)), 1 << 26), None);
    let [up, up_bias, down, down_bias] = &weights();
    let expected = mlp(&Matrix::random(TOKENS, D, 11), [up, up_bias, down, down_bias]);
    close("reference", &alone[0], &expected.data.iter().map(|x| *x as f32).collect::<Vec<_>>());
    for (sequence_parallel, tile) in [(false, None), (false, Some(128)), (true, None), (true, Some(128))] {
        let grid = Grid { tp: 2, sequence_parallel, ..Grid::default() };
        let ranks: Vec<[Vec<f32>; 6]> = std::thread::scope(|scope| {
            let rank = |seat: Seat| {
                scope.spawn(move || {
                    let mesh = Mesh::new(grid, Box::new(seat.take()));
                    run(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 26, mesh), tile)
                })
            };
            let all: Vec<_> = threads(2, ThreadsOptions::default()).into_iter().map(rank).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let half = F / 2;
        for (rank, [y, dx, up, up_bias, down, down_bias]) in ranks.iter().enumerate() {
            let what = format!("{grid}, shared rows {sequence_parallel}, tiles {tile:?}, rank {rank}");
            let tokens = own(rank, 2, sequence_parallel, tile);
            let rows = |all: &[f32]| -> Vec<f32> {
                tokens.iter().flat_map(|t| all[t * D..(t + 1) * D].to_vec()).collect()
            };
            close(&format!("{what}: output"), y, &rows(&alone[0]));
            close(&format!("{what}: gradient of x"), dx, &rows(&alone[1]));
            close(&format!("{what}: up"), up, &alone[2][rank * half * D..(rank + 1) * half * D]);
            close(&format!("{what}: up's bias"), up_bias, &alone[3][rank * half..(rank + 1) * half]);
            let columns = alone[4].chunks(F).flat_map(|row| row[rank * half..(rank + 1) * half].to_vec());
            close(&format!("{what}: down"), down, &columns.collect::<Vec<_>>());
            if !sequence_parallel {
                close(&format!("{what}: down's bias"), down_bias, &alone[5]);
            }
        }
        if sequence_parallel {
            let sum: Vec<f32> = ranks[0][5].iter().zip(&ranks[1][5]).map(|(a, b)| a + b).collect();
            close("down's bias, summed", &sum, &alone[5]);
        }
    }
}
