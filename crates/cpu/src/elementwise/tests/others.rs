//! Additions, copies, sums, rotations, lookups and the optimizer.
use super::*;

#[test]
fn additions_copies_and_multiples_agree_with_f64() {
    let (rows, cols) = (9, 101);
    for (ea, eb, eo) in [(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 1), (1, 1, 0)]
        .map(|(a, b, o)| (ELEMS[a], ELEMS[b], ELEMS[o]))
    {
        let (a, b) = (PaddedMatrix::random(rows, cols, ea, 1), PaddedMatrix::random(rows, cols, eb, 2));
        let blank = PaddedMatrix::blank(rows, cols, eo);
        places(|place| {
            let mut out = blank.clone();
            let to = out.mat_mut(0);
            // SAFETY: the operands are `PaddedMatrix`s of these extents; likewise below.
            unsafe { add(place, rows, cols, a.mat(0), b.mat(0), to) };
            out.check("add", &blank, 1e-6, |row, col| a.get(row, col) + b.get(row, col));
            if ea == eo {
                let mut out = a.clone();
                let to = out.mat_mut(0);
                // SAFETY: in place.
                unsafe { add(place, rows, cols, to.as_mat(), b.mat(0), to) };
                out.check("add to a", &a, 1e-6, |row, col| a.get(row, col) + b.get(row, col));
                let mut out = a.clone();
                let to = out.mat_mut(0);
                // SAFETY: in place.
                unsafe { add(place, rows, cols, b.mat(0), to.as_mat(), to) };
                out.check("add to b", &a, 1e-6, |row, col| a.get(row, col) + b.get(row, col));
                // SAFETY: in place.
                unsafe { add(place, rows, cols, to.as_mat(), to.as_mat(), to) };
                out.check("double", &a, 1e-2, |row, col| 2.0 * (a.get(row, col) + b.get(row, col)));
            }
            let mut out = blank.clone();
            let to = out.mat_mut(0);
            // SAFETY: as above.
            unsafe { copy(place, rows, cols, a.mat(0), to) };
            out.check("copy", &blank, 1e-7, |row, col| a.get(row, col));
            // SAFETY: in place.
            unsafe { scale(place, rows, cols, to.as_mat(), 0.25, to) };
            out.check("scale", &blank, 1e-7, |row, col| 0.25 * bf16_of(eo, a.get(row, col)));
            // SAFETY: in place.
            unsafe { softcap(place, rows, cols, to.as_mat(), 0.3, to) };
            let capped = |x: f64| 0.3 * (bf16_of(eo, 0.25 * bf16_of(eo, x)) / 0.3).tanh();
            out.check("softcap", &blank, 1e-6, |row, col| capped(a.get(row, col)));
            let mut out = a.clone();
            let to = out.mat_mut(0);
            // SAFETY: as above.
            unsafe { add_bias(place, rows, cols, to, b.mat(0)) };
            out.check("add bias", &a, 1e-6, |row, col| a.get(row, col) + b.get(0, col));
            // SAFETY: as above.
            unsafe { zero(place, rows, cols, to) };
            out.check("zero", &a, 0.0, |_, _| 0.0);
        });
    }
}

fn bf16_of(elem: Elem, x: f64) -> f64 {
    if elem == Elem::Bf16 { bf16::from_f64(x).to_f64() } else { x }
}

#[test]
fn a_contiguous_tensor_is_shared_by_the_threads_and_whole() {
    let count = 100_003;
    let x: Vec<f32> = (0..count).map(|i| i as f32 * 0.5 - 7.0).collect();
    places(|place| {
        let mut y = vec![1.0f32; count];
        let from = Mat { ptr: x.as_ptr().cast(), elem: Elem::F32, stride: count };
        let to = MatMut { ptr: y.as_mut_ptr().cast(), elem: Elem::F32, stride: count };
        // SAFETY: one row of `count` elements each.
        unsafe {
            add(place, 1, count, to.as_mat(), from, to);
            scale(place, 1, count, to.as_mat(), 2.0, to);
        }
        assert!(y.iter().zip(&x).all(|(y, x)| *y == 2.0 * (x + 1.0)));
        // SAFETY: as above.
        unsafe { zero(place, 1, count, to) };
        assert!(y.iter().all(|y| *y == 0.0));
    });
}

#[test]
fn sums_agree_with_f64_and_keep_their_bits() {
    let (rows, cols) = (300, 600);
    for elem in ELEMS {
        let (dy, start) =
            (PaddedMatrix::random(rows, cols, elem, 1), PaddedMatrix::random(1, cols, Elem::F32, 2));
        let want: Vec<f64> = (0..cols)
            .map(|col| start.get(0, col) + (0..rows).map(|row| dy.get(row, col)).sum::<f64>())
            .collect();
        let mut bits = Bits::default();
        places(|place| {
            for cuts in [&[0, rows][..], &[0, 128, 256, rows]] {
                let mut sums = start.clone();
                for cut in cuts.windows(2) {
                    let to = sums.mat_mut(0);
                    // SAFETY: the operands are `PaddedMatrix`s of these extents.
                    unsafe { bias_backward(place, cut[1] - cut[0], cols, dy.mat(cut[0]), to) };
                }
                bits.check("bias backward", place.isa, &sums.bytes);
                sums.check("bias backward", &start, 2e-5, |_, col| want[col]);
            }
        });
    }
    let x: Vec<f32> = (0..200_001).map(|i| ((i * 7919 % 2003) as f32 - 1000.0) / 500.0).collect();
    let exact: f64 = x.iter().map(|x| *x as f64).sum();
    let whole = sum(&x, 0.5);
    assert!((whole as f64 - 0.5 - exact).abs() < 0.2, "{whole} {exact}");
    assert_eq!(whole.to_bits(), sum(&x[1280..], sum(&x[..1280], 0.5)).to_bits());
    let squares: f64 = x.iter().map(|x| *x as f64 * *x as f64).sum();
    let mut bits = Bits::default();
    places(|place| {
        // SAFETY: the level is supported by this machine.
        let got = unsafe { sum_squares(place, &x) };
        assert!((got / squares - 1.0).abs() < 1e-6, "{got} {squares}");
        bits.check("sum of squares", place.isa, &got.to_le_bytes());
        let mut bad = x.clone();
        bad[77_777] = f32::NAN;
        // SAFETY: as above.
        assert!(unsafe { sum_squares(place, &bad) }.is_nan());
        // SAFETY: as above.
        assert_eq!(unsafe { sum_squares(place, &[]) }, 0.0);
    });
}

#[test]
fn rotations_turn_pairs_and_turn_back() {
    let (rows, heads) = (6, 3);
    let positions = [0, 1, 5, 1000, 70_000, 10_000_000];
    for (head_dim, rot) in [(80, 80), (24, 16), (8, 0), (128, 96)] {
        let inv_freq: Vec<f32> = (0..rot / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / rot as f32)).collect();
        let mut table = PaddedMatrix::blank(rows, rot, Elem::F32);
        for (elem, interleaved) in
            [(Elem::F32, false), (Elem::F32, true), (Elem::Bf16, false), (Elem::Bf16, true)]
        {
            let x = PaddedMatrix::random(rows, heads * head_dim, elem, 1);
            places(|place| {
                let to = table.mat_mut(0);
                // SAFETY: the operands are `PaddedMatrix`s of these extents; likewise below.
                unsafe {
                    rope_table(
                        place,
                        &RopeTable { positions: &positions, inv_freq: &inv_freq, factor: 1.5, out: to },
                    )
                };
                let angle = |row: usize, i: usize| (positions[row] as f32 * inv_freq[i]) as f64;
                table.check("rope table", &PaddedMatrix::blank(rows, rot, Elem::F32), 1e-6, |row, col| {
                    1.5 * if col < rot / 2 { angle(row, col).cos() } else { angle(row, col - rot / 2).sin() }
                });
                for (inverse, accumulate) in [(false, false), (true, false), (false, true)] {
                    let before = PaddedMatrix::random(rows, heads * head_dim, elem, 8);
                    let mut out = before.clone();
                    let op = Rope {
                        rows,
                        heads,
                        head_dim,
                        rot,
                        x: x.mat(0),
                        out: out.mat_mut(0),
                        table: to.as_mat(),
                        interleaved,
                        inverse,
                        accumulate,
                    };
                    // SAFETY: as above.
                    unsafe { rope(place, &op) };
                    out.check("rope", &before, 1e-6, |row, col| {
                        let (head, i) = (col / head_dim * head_dim, col % head_dim);
                        let old = if accumulate { before.get(row, col) } else { 0.0 };
                        if i >= rot {
                            return old + x.get(row, col);
                        }
                        let (pair, first) =
                            if interleaved { (i / 2, i % 2 == 0) } else { (i % (rot / 2), i < rot / 2) };
                        let other = match (interleaved, first) {
                            (true, true) => i + 1,
                            (true, false) => i - 1,
                            (false, true) => i + rot / 2,
                            (false, false) => i - rot / 2,
                        };
                        let sign = if first == inverse { 1.0 } else { -1.0 };
                        let (cos, sin) = (table.get(row, pair), table.get(row, rot / 2 + pair));
                        old + x.get(row, col) * cos + sign * x.get(row, head + other) * sin
                    });
                }
            });
        }
    }
}

#[test]
fn look_ups_and_their_gradient_agree_with_f64() {
    let (vocab, cols) = (13, 150);
    let ids: Vec<i32> = (0..400).map(|i| i * i % vocab).collect();
    for (table_elem, out_elem) in [(Elem::F32, Elem::F32), (Elem::Bf16, Elem::Bf16), (Elem::F32, Elem::Bf16)]
    {
        let table = PaddedMatrix::random(vocab as usize, cols, table_elem, 1);
        let dy = PaddedMatrix::random(ids.len(), cols, out_elem, 2);
        let before = PaddedMatrix::random(ids.len(), cols, out_elem, 3);
        let start = PaddedMatrix::random(vocab as usize, cols, Elem::F32, 4);
        let mut bits = Bits::default();
        places(|place| {
            for accumulate in [false, true] {
                let mut out = before.clone();
                let (vocab, to) = (vocab as usize, out.mat_mut(0));
                let from = table.mat(0);
                let op = Embed {
                    ids: &ids,
                    vocab,
                    cols,
                    table: from,
                    scale: 1.5,
                    out: to,
                    accumulate,
                    first: None,
                };
                // SAFETY: the operands are `PaddedMatrix`s of these extents; likewise below.
                unsafe { embed(place, &op) };
                out.check("embed", &before, 1e-6, |row, col| {
                    let old = if accumulate { before.get(row, col) } else { 0.0 };
                    old + 1.5 * table.get(ids[row] as usize, col)
                });
            }
            for cut in [0, 200] {
                let mut dtable = start.clone();
                let whole = EmbedBackward {
                    ids: &ids,
                    vocab: 13,
                    cols,
                    dy: dy.mat(0),
                    scale: 1.5,
                    dtable: dtable.mat_mut(0),
                    first: None,
                };
                // SAFETY: as above.
                unsafe {
                    embed_backward(place, &EmbedBackward { ids: &ids[..cut], ..whole });
                    embed_backward(place, &EmbedBackward { ids: &ids[cut..], dy: dy.mat(cut), ..whole });
                }
                bits.check("embed backward", place.isa, &dtable.bytes);
                dtable.check("embed backward", &start, 1e-5, |row, col| {
                    let tokens = (0..ids.len()).filter(|t| ids[*t] as usize == row);
                    start.get(row, col) + tokens.map(|t| 1.5 * dy.get(t, col)).sum::<f64>()
                });
            }
        });
    }
}

#[test]
fn parts_of_a_table_add_up_to_it() {
    let (table, ids) = (PaddedMatrix::random(10, 3, Elem::F32, 1), [9, 0, 4, 5, 5]);
    let dy = PaddedMatrix::random(ids.len(), 3, Elem::F32, 2);
    let place = Place { threads: &Threads::new(1), isa: Isa::Portable };
    let mut out = PaddedMatrix::blank(ids.len(), 3, Elem::F32);
    let zeros = PaddedMatrix::new(10, 3, Elem::F32, |_, _| 0.0);
    let mut dtable = zeros.clone();
    for first in [0, 5] {
        let (from, to) = (table.mat(first), out.mat_mut(0));
        let (ids, vocab, cols, scale) = (&ids[..], 5, 3, 2.0);
        let op = Embed {
            ids,
            vocab,
            cols,
            table: from,
            scale,
            out: to,
            accumulate: first > 0,
            first: Some(first),
        };
        let back = dtable.mat_mut(first);
        let back = EmbedBackward { ids, vocab, cols, dy: dy.mat(0), scale, dtable: back, first: Some(first) };
        // SAFETY: the operands are `PaddedMatrix`s of these extents.
        unsafe {
            embed(place, &op);
            embed_backward(place, &back);
        }
    }
    let before = PaddedMatrix::blank(ids.len(), 3, Elem::F32);
    out.check("embed", &before, 1e-6, |row, col| 2.0 * table.get(ids[row] as usize, col));
    dtable.check("embed backward", &zeros, 1e-6, |row, col| {
        (0..ids.len()).filter(|at| ids[*at] as usize == row).map(|at| 2.0 * dy.get(at, col)).sum()
    });
}

#[test]
#[should_panic(expected = "embed: id -1 at 2 is not below 4")]
fn an_id_outside_the_table_is_named() {
    let (table, mut out) = (PaddedMatrix::random(4, 2, Elem::F32, 1), PaddedMatrix::blank(3, 2, Elem::F32));
    let op = Embed {
        ids: &[0, 3, -1],
        vocab: 4,
        cols: 2,
        table: table.mat(0),
        scale: 1.0,
        out: out.mat_mut(0),
        accumulate: false,
        first: None,
    };
    // SAFETY: it panics first.
    unsafe { embed(Place { threads: &Threads::new(1), isa: Isa::Portable }, &op) }
}

#[test]
fn adamw_follows_its_definition() {
    let count = 5000;
    let line = |seed: u64| PaddedMatrix::random(1, count, Elem::F32, seed);
    for (elem, with_master) in [(Elem::F32, false), (Elem::Bf16, true), (Elem::Bf16, false)] {
        let (grad, m0, v0) = (line(1), line(2), line(3));
        let v0 = PaddedMatrix::new(1, count, Elem::F32, |_, i| v0.get(0, i).abs() as f32 + 0.1);
        let master0 = line(4);
        let param0 = PaddedMatrix::new(1, count, elem, |_, i| master0.get(0, i) as f32);
        let mut bits = Bits::default();
        for skip in [0.0f32, 1.0] {
            places(|place| {
                let (mut param, mut master, mut m, mut v) =
                    (param0.clone(), master0.clone(), m0.clone(), v0.clone());
                let scale = 0.25f32;
                let op = AdamW {
                    count,
                    elem,
                    param: param.mat_mut(0).ptr,
                    master: if with_master { master.mat_mut(0).ptr.cast() } else { std::ptr::null_mut() },
                    moments: Elem::F32,
                    scales: None,
                    keys: [1, 2],
                    weight_key: 3,
                    first: 0,
                    m: m.mat_mut(0).ptr,
                    v: v.mat_mut(0).ptr,
                    grad: grad.mat(0).ptr.cast(),
                    scale: &scale,
                    skip: &skip,
                    lr: 0.1,
                    beta1: 0.9,
                    beta2: 0.95,
                    eps: 1e-3,
                    weight_decay: 0.1,
                    correction1: 0.19,
                    correction2: 0.0975,
                };
                // SAFETY: each pointer leads to `count` elements.
                unsafe { adamw(place, &op) };
                if skip != 0.0 {
                    assert!(param == param0 && master == master0 && m == m0 && v == v0);
                    return;
                }
                bits.check("adamw", place.isa, &[&param.bytes[..], &m.bytes[..], &v.bytes[..]].concat());
                let g = |i: usize| 0.25 * grad.get(0, i);
                let want_m = |i: usize| 0.9 * m0.get(0, i) + 0.1 * g(i);
                let want_v = |i: usize| 0.95 * v0.get(0, i) + 0.05 * g(i) * g(i);
                m.check("m", &m0, 1e-6, |_, i| want_m(i));
                v.check("v", &v0, 1e-6, |_, i| want_v(i));
                let old = if with_master { &master0 } else { &param0 };
                let want = |i: usize| {
                    old.get(0, i) * (1.0 - 0.01)
                        - 0.1 * (want_m(i) / 0.19) / ((want_v(i) / 0.0975).sqrt() + 1e-3)
                };
                // Without a master the result is one of its two neighbours, not necessarily the nearer.
                let apart = if elem == Elem::Bf16 && !with_master { 4e-3 } else { 3e-6 };
                param.check("param", &param0, apart, |_, i| want(i));
                if with_master {
                    master.check("master", &master0, 3e-6, |_, i| want(i));
                }
            });
        }
    }
}

#[test]
fn the_step_is_clipped_and_bad_steps_are_skipped() {
    assert_eq!(step_scale(16.0, 3.0, 2.0, 1.0), StepScale { scale: 0.25, skip: 0.0, norm: 2.0 });
    assert_eq!(step_scale(16.0, 3.0, 2.0, 0.0), StepScale { scale: 0.5, skip: 0.0, norm: 2.0 });
    assert_eq!(step_scale(16.0, 3.0, 0.0, 1.0), StepScale { scale: 0.0, skip: 1.0, norm: 0.0 });
    assert_eq!(step_scale(16.0, f32::NAN, 2.0, 1.0).skip, 1.0);
    assert_eq!(step_scale(f32::INFINITY, 3.0, 2.0, 1.0).skip, 1.0);
}
