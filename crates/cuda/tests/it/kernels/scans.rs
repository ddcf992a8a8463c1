//! Convolutions, gated norms, Mamba-2's scan and gated DeltaNet with their gradients, over packed documents and in generation.

use fathom_tensor::{
    Category, Conv, ConvBackward, ConvOperands, DType, Delta, DeltaAdvance, DeltaBackward, DeltaBegins,
    DeltaEnds, DeltaOperands, Device, DocumentRun, DocumentRuns, GatedNorm, GatedNormBackward,
    GatedNormOperands, OpDesc, RunPlaces, RunStates, Ssd, SsdBackward, SsdBegins, SsdEnds, SsdOperands,
    Tensor, state_cols,
};

use super::{FLOATS, blank, devices, floats, random, same};

fn documents(device: &Device, lengths: &[usize]) -> DocumentRuns {
    let mut end = 0;
    let run = |(document, length): (usize, &usize)| {
        end += length;
        DocumentRun { rows: end - length..end, document, offset: 0 }
    };
    let runs: Vec<DocumentRun> = lengths.iter().enumerate().map(run).collect();
    DocumentRuns::new(device, runs, lengths.len() + 2)
}

fn scratch(device: &Device, op: &OpDesc) -> Tensor {
    let bytes = device.machine.profile().workspace(op).max(1) as usize;
    device.empty(1, bytes, DType::U8, Category::Workspace)
}

/// A plain f32 tensor with numbers near `offset`.
fn plain(device: &Device, [rows, cols]: [usize; 2], seed: u64, offset: f32) -> Tensor {
    let data: Vec<f32> = super::numbers(rows * cols, seed).iter().map(|x| 0.5 * x + offset).collect();
    device.from_f32(rows, cols, &data, Category::Data)
}

fn conv(
    device: &Device,
    lengths: &[usize],
    [cols, taps]: [usize; 2],
    biased: bool,
    dtype: DType,
) -> Vec<Tensor> {
    let (m, rows, documents) = (&device.machine, lengths.iter().sum(), documents(device, lengths));
    let (u, weight) = (random(device, [rows, cols], dtype, 1), plain(device, [cols, taps], 2, 0.0));
    let bias = plain(device, [1, cols], 3, 0.0);
    let bias = biased.then_some(&bias);
    let of = ConvOperands { u: &u, weight: &weight, bias, silu: taps % 2 == 0, documents: &documents };
    let (out, du) = (blank(device, [rows, cols], dtype), blank(device, [rows, cols], dtype));
    m.conv(&Conv { of, states: &[], out: &out });
    let states: Vec<Tensor> =
        (0..lengths.len()).map(|at| plain(device, [taps - 1, cols], at as u64, 0.0)).collect();
    let later = blank(device, [rows, cols], dtype);
    m.conv(&Conv { of, states: &states, out: &later });
    let (dy, dbias) = (random(device, [rows, cols], dtype, 4), plain(device, [1, cols], 5, 0.0));
    let dweight = plain(device, [cols, taps], 6, 0.0);
    m.conv_backward(&ConvBackward {
        of,
        dy: &dy,
        du: Some(&du),
        dweight: Some(&dweight),
        dbias: biased.then_some(&dbias),
    });
    [out, later, du, dweight, dbias].into_iter().chain(states).collect()
}

#[test]
fn convolutions_with_their_gradients() {
    for (lengths, sizes, biased) in [
        (&[9, 4, 1][..], [5, 4], true),
        (&[130, 2, 3], [20, 4], false),
        (&[7, 150], [37, 3], true),
        (&[12], [9, 8], true),
    ] {
        for dtype in FLOATS {
            same("conv", |device| conv(device, lengths, sizes, biased, dtype));
        }
    }
}

fn gated(
    device: &Device,
    [rows, groups, width]: [usize; 3],
    weights: Option<usize>,
    first: bool,
    dtype: DType,
) -> Vec<Tensor> {
    let (m, cols) = (&device.machine, groups * width);
    let [y, z, dout] = [1, 2, 3].map(|seed| random(device, [rows, cols], dtype, seed));
    let weight = plain(device, [1, weights.unwrap_or(1)], 4, 1.0);
    let weight = weights.map(|_| &weight);
    let of = GatedNormOperands { y: &y, z: &z, weight, width, gate_first: first, eps: 1e-5 };
    let [out, dy, dz] = [(); 3].map(|()| blank(device, [rows, cols], dtype));
    m.gated_norm(&GatedNorm { of, out: &out });
    let dweight = plain(device, [1, weights.unwrap_or(1)], 5, 0.0);
    let ws = scratch(device, &of.desc());
    let of_weight = weights.map(|_| &dweight);
    m.gated_norm_backward(
        &GatedNormBackward { of, dout: &dout, dy: Some(&dy), dz: Some(&dz), dweight: of_weight },
        &ws,
    );
    vec![out, dy, dz, dweight]
}

#[test]
fn gated_norms_with_their_gradients() {
    for first in [true, false] {
        for (shape, weights) in [
            ([3, 1, 37], Some(37)),
            ([140, 3, 16], Some(48)),
            ([5, 4, 12], Some(12)),
            ([4, 2, 10], None),
            ([3, 1, 700], Some(700)),
        ] {
            for dtype in FLOATS {
                same("gated norm", |device| gated(device, shape, weights, first, dtype));
            }
        }
    }
}

/// Heads, columns of a head, groups, columns of B and C.
fn ssd(
    device: &Device,
    lengths: &[usize],
    sizes: [usize; 4],
    (limit, dtype): ([f32; 2], DType),
) -> Vec<Tensor> {
    let ([heads, width, groups, state], m) = (sizes, &device.machine);
    let (rows, documents, inner) = (lengths.iter().sum(), documents(device, lengths), heads * width);
    let u = random(device, [rows, inner + 2 * groups * state], dtype, 1);
    let dt = random(device, [rows, heads], dtype, 2);
    let [a_log, dt_bias, d] =
        [(3, -0.5), (4, -2.0), (5, 0.0)].map(|(seed, offset)| plain(device, [1, heads], seed, offset));
    let of = SsdOperands {
        u: &u,
        dt: &dt,
        a_log: &a_log,
        dt_bias: &dt_bias,
        d: &d,
        groups,
        state,
        limit,
        documents: &documents,
    };
    let kept = device.zeros(rows, state_cols(inner * state), DType::F32, Category::Data);
    let (y, later) = (blank(device, [rows, inner], dtype), blank(device, [rows, inner], dtype));
    m.ssd(&Ssd { of, before: None, states: &[], y: &y, kept: &kept }, &scratch(device, &of.desc(false)));
    let states: Vec<Tensor> =
        (0..lengths.len()).map(|at| plain(device, [heads, state * width], at as u64, 0.0)).collect();
    let unused = device.zeros(rows, kept.cols(), DType::F32, Category::Data);
    m.ssd(
        &Ssd { of, before: None, states: &states, y: &later, kept: &unused },
        &scratch(device, &of.desc(false)),
    );
    let dy = random(device, [rows, inner], dtype, 6);
    let (du, ddt) = (blank(device, u.shape(), dtype), blank(device, dt.shape(), dtype));
    let dweights = [7, 8, 9].map(|seed| plain(device, [1, heads], seed, 0.0));
    let wanted = dweights.each_ref().map(Some);
    let op = SsdBackward {
        of,
        before: None,
        after: None,
        kept: &kept,
        dy: &dy,
        du: Some(&du),
        ddt: Some(&ddt),
        dweights: wanted,
    };
    m.ssd_backward(&op, &scratch(device, &of.desc(true)));
    [y, later, du, ddt, kept].into_iter().chain(dweights).chain(states).collect()
}

const NO_LIMIT: [f32; 2] = [0.0, f32::INFINITY];

#[test]
fn scans_with_their_gradients() {
    for (lengths, sizes, limit) in [
        (&[1, 9, 17][..], [4, 5, 2, 6], NO_LIMIT),
        (&[33], [2, 16, 1, 40], NO_LIMIT),
        (&[130, 40], [3, 3, 3, 2], [0.05, 0.2]),
        (&[300, 1, 20], [2, 9, 1, 3], NO_LIMIT),
    ] {
        for dtype in FLOATS {
            same("ssd", |device| ssd(device, lengths, sizes, (limit, dtype)));
        }
    }
}

/// Runs that go on from other ranks and into others: what they make of states and of their gradients, and scans with both.
fn passed(device: &Device, lengths: &[usize], sizes: [usize; 4], dtype: DType) -> Vec<Tensor> {
    let ([heads, width, groups, state], m) = (sizes, &device.machine);
    let (rows, documents, inner) = (lengths.iter().sum(), documents(device, lengths), heads * width);
    let u = random(device, [rows, inner + 2 * groups * state], dtype, 1);
    let dt = random(device, [rows, heads], dtype, 2);
    let [a_log, dt_bias, d] =
        [(3, -0.5), (4, -2.0), (5, 0.0)].map(|(seed, offset)| plain(device, [1, heads], seed, offset));
    let (a_log, dt_bias, d, limit) = (&a_log, &dt_bias, &d, NO_LIMIT);
    let of = SsdOperands { u: &u, dt: &dt, a_log, dt_bias, d, groups, state, limit, documents: &documents };
    let places = |place: &dyn Fn(usize) -> Option<usize>| {
        RunPlaces::new(device, (0..lengths.len()).map(place).collect(), lengths.len() + 2)
    };
    let before = places(&|run| run.checked_sub(1));
    let after = places(&|run| Some(run).filter(|run| run + 1 < lengths.len()));
    let ws = scratch(device, &of.desc_between(lengths.len(), true));
    let maps = || plain(device, [lengths.len(), inner * state + heads], 10, 0.0);
    let [ends, begins] = [maps(), maps()];
    let [states, gradients] = [&ends, &begins].map(|maps| maps.view_cols(0..inner * state));
    let decays = ends.view_cols(inner * state..ends.cols());
    m.ssd_ends(&SsdEnds { of, ends: RunStates { of: &after, states: &states }, decays: &decays }, &ws);
    let dy = random(device, [rows, inner], dtype, 6);
    m.ssd_begins(&SsdBegins { of, dy: &dy, begins: RunStates { of: &before, states: &gradients } }, &ws);
    let row = |maps: &Tensor| maps.view_rows(0..1).view_cols(0..inner * state).reshape(heads, width * state);
    m.ssd_advance(&row(&ends), &decays.view_rows(1..2), &row(&begins));
    let kept = device.zeros(rows, state_cols(inner * state), DType::F32, Category::Data);
    let y = blank(device, [rows, inner], dtype);
    let before = Some(RunStates { of: &before, states: &states });
    m.ssd(&Ssd { of, before, states: &[], y: &y, kept: &kept }, &ws);
    let (du, ddt) = (blank(device, u.shape(), dtype), blank(device, dt.shape(), dtype));
    let dweights = [7, 8, 9].map(|seed| plain(device, [1, heads], seed, 0.0));
    let wanted = dweights.each_ref().map(Some);
    let after = Some(RunStates { of: &after, states: &gradients });
    let (du, ddt) = (&du, &ddt);
    let op = SsdBackward {
        of,
        before,
        after,
        kept: &kept,
        dy: &dy,
        du: Some(du),
        ddt: Some(ddt),
        dweights: wanted,
    };
    m.ssd_backward(&op, &ws);
    [ends, begins, y, du.clone(), ddt.clone(), kept].into_iter().chain(dweights).collect()
}

#[test]
fn scans_of_runs_between_those_of_other_ranks() {
    for (lengths, sizes) in [(&[20, 150, 9][..], [4, 5, 2, 6]), (&[40, 3], [2, 16, 1, 40])] {
        for dtype in FLOATS {
            same("ssd", |device| passed(device, lengths, sizes, dtype));
        }
    }
    same("ssd", |device| passed(device, &[2200, 30], [1, 2, 1, 2], DType::F32));
}

/// Key heads, heads, columns of a key and of a value.
fn delta(device: &Device, lengths: &[usize], sizes: [usize; 4], (beta, dtype): (f32, DType)) -> Vec<Tensor> {
    let ([key_heads, heads, key, value], m) = (sizes, &device.machine);
    let (rows, documents, inner) = (lengths.iter().sum(), documents(device, lengths), heads * value);
    let u = random(device, [rows, inner + 2 * key_heads * key], dtype, 1);
    let [a, b] = [2, 3].map(|seed| random(device, [rows, heads], dtype, seed));
    let [a_log, dt_bias] =
        [(4, -0.5), (5, -2.0)].map(|(seed, offset)| plain(device, [1, heads], seed, offset));
    let weights = [&a_log, &dt_bias];
    let of = DeltaOperands {
        u: &u,
        a: &a,
        b: &b,
        a_log: weights[0],
        dt_bias: weights[1],
        key_heads,
        key,
        eps: 1e-6,
        beta,
        documents: &documents,
    };
    let kept = device.zeros(rows, state_cols(inner * key), DType::F32, Category::Data);
    let (out, later) = (blank(device, [rows, inner], dtype), blank(device, [rows, inner], dtype));
    m.delta(
        &Delta { of, before: None, states: &[], out: &out, kept: &kept },
        &scratch(device, &of.desc(false, false)),
    );
    let states: Vec<Tensor> =
        (0..lengths.len()).map(|at| plain(device, [heads, key * value], at as u64, 0.0)).collect();
    let unused = device.zeros(rows, kept.cols(), DType::F32, Category::Data);
    m.delta(
        &Delta { of, before: None, states: &states, out: &later, kept: &unused },
        &scratch(device, &of.desc(false, false)),
    );
    let dout = random(device, [rows, inner], dtype, 6);
    let (du, da, db) =
        (blank(device, u.shape(), dtype), blank(device, a.shape(), dtype), blank(device, b.shape(), dtype));
    let dweights = [7, 8].map(|seed| plain(device, [1, heads], seed, 0.0));
    let wanted = dweights.each_ref().map(Some);
    let op = DeltaBackward {
        of,
        before: None,
        after: None,
        kept: &kept,
        dout: &dout,
        du: Some(&du),
        da: Some(&da),
        db: Some(&db),
        dweights: wanted,
    };
    m.delta_backward(&op, &scratch(device, &of.desc(false, true)));
    [out, later, du, da, db, kept].into_iter().chain(dweights).chain(states).collect()
}

/// The same of runs that go on from other ranks and into others.
fn delta_passed(device: &Device, lengths: &[usize], sizes: [usize; 4], dtype: DType) -> Vec<Tensor> {
    let ([key_heads, heads, key, value], m) = (sizes, &device.machine);
    let (rows, documents, inner) = (lengths.iter().sum(), documents(device, lengths), heads * value);
    let u = random(device, [rows, inner + 2 * key_heads * key], dtype, 1);
    let [a, b] = [2, 3].map(|seed| random(device, [rows, heads], dtype, seed));
    let [a_log, dt_bias] =
        [(4, -0.5), (5, -2.0)].map(|(seed, offset)| plain(device, [1, heads], seed, offset));
    let (u, a, b, a_log, dt_bias, documents) = (&u, &a, &b, &a_log, &dt_bias, &documents);
    let of = DeltaOperands { u, a, b, a_log, dt_bias, key_heads, key, eps: 1e-6, beta: 1.5, documents };
    let places = |place: &dyn Fn(usize) -> Option<usize>| {
        RunPlaces::new(device, (0..lengths.len()).map(place).collect(), lengths.len() + 2)
    };
    let before = places(&|run| run.checked_sub(1));
    let after = places(&|run| Some(run).filter(|run| run + 1 < lengths.len()));
    let [forward, backward] = [false, true].map(|backward| scratch(device, &of.desc(true, backward)));
    let (states_cols, all) = (inner * key, inner * key + heads * key * key);
    let maps = || plain(device, [lengths.len(), all], 10, 0.0);
    let [ends, begins] = [maps(), maps()];
    let [states, gradients] = [&ends, &begins].map(|maps| maps.view_cols(0..states_cols));
    let matrices = ends.view_cols(states_cols..all);
    let of_runs = RunStates { of: &after, states: &states };
    m.delta_ends(&DeltaEnds { of, ends: of_runs, matrices: &matrices }, &forward);
    let dout = random(device, [rows, inner], dtype, 6);
    let of_runs = RunStates { of: &before, states: &gradients };
    m.delta_begins(&DeltaBegins { of, dout: &dout, begins: of_runs }, &backward);
    let of_heads = |maps: &Tensor| maps.view_rows(0..1).reshape(heads, maps.cols() / heads);
    let advance = |transposed: bool, before: &Tensor, added: &Tensor| {
        let moved = plain(device, [heads, key * value], 11, 0.0);
        let (matrices, before, added, after) =
            (&of_heads(&matrices), &of_heads(before), &of_heads(added), &moved);
        m.delta_advance(&DeltaAdvance { matrices, transposed, before, added, after });
        moved
    };
    let moved = [advance(false, &states, &gradients), advance(true, &gradients, &states)];
    let kept = device.zeros(rows, state_cols(inner * key), DType::F32, Category::Data);
    let out = blank(device, [rows, inner], dtype);
    let before = Some(RunStates { of: &before, states: &states });
    m.delta(&Delta { of, before, states: &[], out: &out, kept: &kept }, &forward);
    let [du, da, db] = [u, a, b].map(|x| blank(device, x.shape(), dtype));
    let dweights = [7, 8].map(|seed| plain(device, [1, heads], seed, 0.0));
    let after = Some(RunStates { of: &after, states: &gradients });
    let [of_u, of_a, of_b] = [&du, &da, &db].map(Some);
    let wanted = dweights.each_ref().map(Some);
    let op = DeltaBackward {
        of,
        before,
        after,
        kept: &kept,
        dout: &dout,
        du: of_u,
        da: of_a,
        db: of_b,
        dweights: wanted,
    };
    m.delta_backward(&op, &backward);
    [ends, begins, out, du, da, db, kept].into_iter().chain(moved).chain(dweights).collect()
}

#[test]
fn gated_deltanet_of_runs_between_those_of_other_ranks() {
    for (lengths, sizes) in [(&[20, 150, 9][..], [2, 4, 6, 5]), (&[40, 3], [1, 2, 40, 16])] {
        for dtype in FLOATS {
            same("delta", |device| delta_passed(device, lengths, sizes, dtype));
        }
    }
    same("delta", |device| delta_passed(device, &[2200, 30], [1, 1, 2, 2], DType::F32));
}

#[test]
fn gated_deltanet_with_its_gradients() {
    for (lengths, sizes, beta) in
        [(&[1, 9, 17][..], [2, 4, 6, 5], 1.0), (&[33], [2, 2, 40, 16], 1.0), (&[140, 40], [1, 3, 20, 3], 2.0)]
    {
        for dtype in FLOATS {
            same("delta", |device| delta(device, lengths, sizes, (beta, dtype)));
        }
    }
}

/// Documents longer than a span of kept states, whose backward pass takes several rounds.
#[test]
fn scans_of_documents_longer_than_a_span() {
    same("ssd", |device| ssd(device, &[5, 2200], [1, 2, 1, 2], (NO_LIMIT, DType::F32)));
    same("delta", |device| delta(device, &[5, 2150], [1, 1, 2, 2], (1.0, DType::F32)));
}

/// States that go on after any number of rows have the same bits.
#[test]
fn states_on_a_gpu_do_not_depend_on_where_rows_are_cut() {
    let Some([_, device]) = devices() else { return };
    let (heads, width, state, rows) = (2, 3, 5, 40);
    let u = random(&device, [rows, heads * width + 2 * state], DType::F32, 1);
    let dt = random(&device, [rows, heads], DType::F32, 2);
    let [a_log, dt_bias, d] = [3, 4, 5].map(|seed| plain(&device, [1, heads], seed, -1.0));
    let after = |cuts: &[usize]| {
        let kept = device.zeros(rows, 1, DType::F32, Category::Data);
        let memory = [plain(&device, [heads, state * width], 6, 0.0)];
        let y = blank(&device, [rows, heads * width], DType::F32);
        for pair in cuts.windows(2) {
            let of = |tensor: &Tensor| tensor.view_rows(pair[0]..pair[1]);
            let (u, dt, y, kept) = (of(&u), of(&dt), of(&y), of(&kept));
            let documents = documents(&device, &[pair[1] - pair[0]]);
            let limit = NO_LIMIT;
            let of = SsdOperands {
                u: &u,
                dt: &dt,
                a_log: &a_log,
                dt_bias: &dt_bias,
                d: &d,
                groups: 1,
                state,
                limit,
                documents: &documents,
            };
            device.machine.ssd(&Ssd { of, before: None, states: &memory, y: &y, kept: &kept }, &kept);
        }
        [floats(&device, &y), floats(&device, &memory[0])]
    };
    assert_eq!(after(&[0, 40]), after(&[0, 7, 8, 33, 40]));
}
