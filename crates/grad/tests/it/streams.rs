//! Two streams: a source runs first, and the layers of the main one attend to its rows. Ranks that share the layers have
//! the result, the gradients and the plan's memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{
    Alike, AttentionUse, Batch, Counters, Grads, Keys, Memory, Param, ParamId, Params, Places, Scope,
    Segments, Tape, Which, mask,
};
use fathom_tensor::mesh::{Axis, CountingLink, Grid, Mesh, Seat, ThreadsOptions, threads};
use fathom_tensor::{Category, DType, Device, Machine, Meta, Slice};

const WIDTH: usize = 16;
const HEAD: usize = 8;
const VOCAB: usize = 32;
/// Tokens of each document in both streams.
const SOURCE: [usize; 3] = [71, 111, 60];
const MAIN: [usize; 3] = [40, 150, 100];
const LAYERS: usize = 2;

fn noise(seed: usize, len: usize) -> Vec<f32> {
    let one = |at: usize| {
        let z = ((seed * 7919 + at + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(one).collect()
}

/// Split of a weight among ranks.
#[derive(Clone, Copy, PartialEq)]
enum Split {
    Rows,
    Cols,
    Whole,
}

/// Declares this rank's part of a weight.
fn weight(device: &Device, params: &mut Params, (name, rows, split): (&str, usize, Split)) -> ParamId {
    let (tp, index) = (device.mesh.size(Axis::Tp), device.mesh.index(Axis::Tp));
    let values = noise(name.bytes().map(usize::from).sum(), rows * WIDTH);
    let share = |of: usize| of * index / tp..of * (index + 1) / tp;
    let (own_rows, own_cols) = match split {
        Split::Rows => (share(rows), 0..WIDTH),
        Split::Cols => (0..rows, share(WIDTH)),
        Split::Whole => (0..rows, 0..WIDTH),
    };
    let own = own_rows.clone().flat_map(|row| &values[row * WIDTH..][own_cols.clone()]);
    let own: Vec<f32> = own.map(|x| x * 0.3).collect();
    let value = device.from_f32(own_rows.len(), own_cols.len(), &own, Category::Params).into();
    params.push(Param { name: name.into(), value, decays: true, trainable: true })
}

/// A stream of documents, which attend to those of the other.
fn batch(device: &Device, docs: &[usize], to: &[usize]) -> Batch {
    let [tokens, keys] = [docs, to].map(|docs| docs.iter().sum::<usize>());
    let ids: Vec<i32> = (0..tokens).map(|at| (at * 7 % VOCAB) as i32).collect();
    let [q, k] = [tokens, keys].map(|rows| device.from_i32(&vec![0; rows], Category::Data));
    let ranges = |docs: &[usize]| {
        let mut end = 0;
        let range = |len: &usize| {
            end += len;
            end - len..end
        };
        docs.iter().map(range).collect::<Vec<_>>()
    };
    let slices: Vec<Slice> =
        ranges(docs).into_iter().zip(ranges(to)).map(|(queries, keys)| Slice::full(queries, keys)).collect();
    let pairs = docs.iter().zip(to).map(|(queries, keys)| (queries * keys) as u64).sum();
    let masks = vec![mask(device, &slices, slices.len(), [&q, &k], pairs)];
    Batch { masks, ..Batch::new(device.from_i32(&ids, Category::Data), q) }
}

/// The squares' sum of this rank's rows, gradients by name, and the peak of memory.
type StreamResult = (f64, BTreeMap<String, Vec<f32>>, u64);

fn step(device: &Device, places: &Places) -> StreamResult {
    let mut params = Params::default();
    let mut weight = |name: &str, rows, split| weight(device, &mut params, (name, rows, split));
    let table = weight("table", VOCAB, Split::Rows);
    let lower = weight("lower", WIDTH, Split::Whole);
    let mut layer = |at: usize| {
        let name = |part| format!("{at}.{part}");
        let [q, k, v] = ["q", "k", "v"].map(|part| weight(&name(part), WIDTH, Split::Rows));
        [q, k, v, weight(&name("out"), WIDTH, Split::Cols)]
    };
    let layers: Vec<[ParamId; 4]> = (0..LAYERS).map(&mut layer).collect();
    let (tp, index) = (device.mesh.size(Axis::Tp), device.mesh.index(Axis::Tp));
    let (source, main) = (batch(device, &SOURCE, &SOURCE), batch(device, &MAIN, &SOURCE));
    let (counters, rows) = (Counters::default(), (VOCAB * index / tp, index == 0));
    let scope = |batch| Scope { device, params: &params, batch, counters: &counters };
    let mut grads = Grads::zeros(device, &params);
    let mut below = Tape::new(scope((&source).into()), places);
    let value = below.segment(-1, None, &|cx, _| {
        let x = cx.embed_parallel(table, None, (1.0, false), rows);
        cx.rows(|cx| {
            let h = cx.linear("lower", x, lower, None);
            cx.enter("source.out", h)
        })
    });
    assert_eq!(value.rows(), source.tokens);
    let gradient = Some(device.zeros(value.rows(), WIDTH, DType::F32, Category::Activations));
    let memory = [Memory { value, gradient }];
    let mut tape = Tape::new(scope((&main).into()), places);
    let mut x = tape.segment(-1, None, &|cx, _| cx.embed_parallel(table, None, (1.0, false), rows));
    let how = AttentionUse {
        keys: Keys::Memory,
        mask: 0,
        head_dim: HEAD,
        scale: 0.3,
        softcap: 0.0,
        apart: None,
        slopes: false,
    };
    let recorded = std::cell::Cell::new(0);
    for (layer, [to_q, to_k, to_v, out]) in layers.iter().copied().enumerate() {
        let which = Which { layer: layer as i32, alike: Some(Alike { kind: vec![0], first: to_q }) };
        x = tape.run(which, Some(x), &memory, &|cx, x, memory| {
            recorded.set(recorded.get() + 1);
            let k = cx.linear("cross.k", memory[0], to_k, None);
            let v = cx.linear("cross.v", memory[0], to_v, None);
            cx.rows(|cx| {
                let q = cx.column_parallel("cross.q", x, to_q, None);
                let a = cx.whole(|cx| cx.attention(q, k, v, how, None));
                let a = cx.row_parallel("cross.out", a, out, None);
                cx.add("out", x, a)
            })
        });
    }
    assert_eq!(recorded.get(), 1, "layers of one kind share what is recorded");
    let y = device.to_f32(&x);
    let dy = device.empty(x.rows(), WIDTH, DType::F32, Category::Activations);
    device.machine.scale(&x, 2.0, &dy);
    drop(x);
    tape.backward(dy, &mut grads);
    let [Memory { value, gradient }] = memory;
    drop(value);
    below.backward(gradient.unwrap_or_else(|| panic!("wanted")), &mut grads);
    let named =
        |id| (params.get(id).name.clone(), grads.get(id).map(|grad| device.to_f32(grad)).unwrap_or_default());
    let grads = grads.iter().map(|(id, _)| named(id)).collect();
    (y.iter().map(|y| f64::from(*y).powi(2)).sum(), grads, device.pool.usage().peak_reserved)
}

fn over_ranks(grid: Grid, places: &Places) -> Vec<StreamResult> {
    std::thread::scope(|scope| {
        let rank = |seat: Seat| {
            scope.spawn(move || {
                let mesh = Mesh::new(grid, Box::new(seat.take()));
                step(&Device::on_mesh(Arc::new(Cpu::new(1, None)), 1 << 28, mesh), places)
            })
        };
        let ranks: Vec<_> = threads(2, ThreadsOptions::default()).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| panic!("a rank panicked"))).collect()
    })
}

/// A weight's gradient from those of the ranks.
fn whole(name: &str, ranks: &[StreamResult], shared: bool) -> Vec<f32> {
    let parts: Vec<&Vec<f32>> = ranks.iter().map(|rank| &rank.1[name]).collect();
    if name == "lower" {
        // Rows that ranks share have terms of it.
        let more = if shared { parts[1].clone() } else { vec![0.0; parts[0].len()] };
        return parts[0].iter().zip(more).map(|(a, b)| a + b).collect();
    }
    if name.ends_with("out") {
        let half = WIDTH / 2;
        return (0..WIDTH)
            .flat_map(|row| parts.iter().flat_map(move |part| part[row * half..][..half].to_vec()))
            .collect();
    }
    parts.into_iter().flatten().copied().collect()
}

#[test]
fn layers_attend_to_another_stream_over_ranks() {
    for places in
        [Places::none(), Places::linear().with_tiles(Some(128)), Places::full().with_tiles(Some(128))]
    {
        let alone = step(&Device::new(Arc::new(Cpu::new(1, None)), 1 << 28), &places);
        for sequence_parallel in [false, true] {
            let grid = Grid { tp: 2, sequence_parallel, ..Grid::default() };
            let what = format!("{places:?}, {grid}");
            let ranks = over_ranks(grid, &places);
            let sum =
                ranks.iter().map(|rank| rank.0).sum::<f64>() / if sequence_parallel { 1.0 } else { 2.0 };
            assert!((sum / alone.0 - 1.0).abs() < 1e-6, "{what}: {sum}, alone {}", alone.0);
            for (name, expected) in &alone.1 {
                let found = whole(name, &ranks, sequence_parallel);
                let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                assert!(most > 0.0 && found.len() == expected.len(), "{what}: {name}");
                let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart <= 1e-5 * most, "{what}: {name} differs by {apart} of {most}");
            }
            for (index, rank) in ranks.iter().enumerate() {
                let profile = Machine::profile(&Cpu::new(1, None)).clone();
                let mesh = Mesh::new(grid, Box::new(CountingLink::new(index, 2)));
                let planned = step(&Device::on_mesh(Arc::new(Meta::new(profile)), 1 << 28, mesh), &places);
                assert_eq!(planned.2, rank.2, "{what}: rank {index} is not planned");
            }
        }
    }
}
