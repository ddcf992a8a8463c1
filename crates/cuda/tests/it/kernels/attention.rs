//! Attention under masks of slices.

use fathom_tensor::{
    Attention, AttentionBackward, Buckets, Category, DType, Device, DistanceBias, DistanceTerms, Extent,
    Mask, SinksBackward, Slice, Tensor,
};

use fathom_cuda::kernels;

use super::{blank, close, devices, emulator, floats, numbers, random, same, same_within, set};

/// A mask of these slices; query positions begin at `first`.
fn mask(device: &Device, slices: &[Slice], [queries, keys]: [usize; 2], first: i32, counted: bool) -> Mask {
    let fields = |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi];
    let bytes: Vec<u8> = slices.iter().flat_map(fields).flat_map(i64::to_le_bytes).collect();
    let table = device.empty(slices.len(), 6, DType::I64, Category::Data);
    device.machine.write(&table, &bytes);
    let slices = if counted {
        Extent::UpTo { cap: slices.len(), count: device.from_i32(&[slices.len() as i32], Category::Data) }
    } else {
        Extent::Fixed(slices.len())
    };
    let positions = |first: i32, count: usize| {
        device.from_i32(&(first..first + count as i32).collect::<Vec<_>>(), Category::Data)
    };
    Mask {
        table,
        slices,
        pos_q: positions(first, queries),
        pos_k: positions(0, keys),
        pairs: 0,
        packed: None,
        partial: false,
        pages: None,
    }
}

#[derive(Clone, Copy)]
struct Case {
    tokens: [usize; 2],
    heads: [usize; 2],
    head_dim: usize,
    first: i32,
    softcap: f32,
    sinks: bool,
    terms: Option<DistanceTerms>,
    types: [DType; 2],
}

impl Case {
    /// Tolerance: in 16 bits, the effect on gradients of rounding probabilities and the forward pass's results.
    fn rounding(&self) -> f32 {
        if self.types[0] == DType::F32 { 1e-5 } else { 1e-2 }
    }
}

const CASE: Case = Case {
    tokens: [45, 45],
    heads: [4, 2],
    head_dim: 16,
    first: 0,
    softcap: 0.0,
    sinks: false,
    terms: None,
    types: [DType::F32; 2],
};

fn call(device: &Device, case: Case, slices: &[Slice], counted: bool) -> Vec<Tensor> {
    let ([queries, keys], [heads, kv_heads], dim) = (case.tokens, case.heads, case.head_dim);
    let mask = mask(device, slices, case.tokens, case.first, counted);
    let [of, to] = case.types;
    let shapes = [[queries, heads * dim], [keys, kv_heads * dim]];
    let (q, k, v) = (
        random(device, shapes[0], of, 1),
        random(device, shapes[1], of, 2),
        random(device, shapes[1], of, 3),
    );
    let (out, lse) = (blank(device, shapes[0], to), device.zeros(queries, heads, DType::F32, Category::Data));
    let sinks = device.from_f32(1, heads, &super::numbers(heads, 4), Category::Data);
    let plain = Attention::plain([&q, &k, &v], [&out, &lse], &mask, dim);
    let (scale, softcap) = (1.6 / (dim as f32).sqrt(), case.softcap);
    let rows = case.terms.map_or(1, DistanceTerms::rows);
    let [table, dbias] =
        [7, 8].map(|seed| device.from_f32(rows, heads, &numbers(rows * heads, seed), Category::Data));
    let bias = |gradient| case.terms.map(|terms| DistanceBias { table: &table, terms, gradient });
    let forward =
        Attention { scale, softcap, sinks: case.sinks.then_some(&sinks), bias: bias(None), ..plain };
    let scratch = |backward| {
        let bytes = device.machine.profile().workspace(&forward.desc(backward)) as usize;
        device.empty(1, bytes.max(1), DType::U8, Category::Workspace)
    };
    device.machine.attention(&forward, &scratch(false));
    let dout = random(device, shapes[0], of, 5);
    let (dq, dk, dv) =
        (blank(device, shapes[0], to), blank(device, shapes[1], of), blank(device, shapes[1], to));
    let dsinks = device.zeros(1, heads, DType::F32, Category::Data);
    // The gradient's inputs have q's storage type; the forward pass's results may be f32.
    let stored = blank(device, shapes[0], of);
    device.machine.copy(&out, &stored);
    let gradient = Some(&dbias).filter(|_| case.terms != Some(DistanceTerms::Slopes));
    let backward = AttentionBackward {
        forward: Attention { out: &stored, bias: bias(gradient), ..forward },
        dout: &dout,
        dq: &dq,
        dk: &dk,
        dv: &dv,
        accumulate: false,
    };
    device.machine.attention_backward(&backward, &scratch(true));
    if case.sinks {
        let call = SinksBackward { out: &stored, dout: &dout, lse: &lse, sinks: &sinks, dsinks: &dsinks };
        device.machine.sinks_backward(&call);
    }
    let more = random(device, shapes[0], to, 6);
    device
        .machine
        .attention_backward(&AttentionBackward { dq: &more, accumulate: true, ..backward }, &scratch(true));
    vec![out, lse.clone(), dq, dk, dv, dsinks, more, dbias]
}

#[test]
fn masks_of_every_kind() {
    let documents = [Slice::causal(0..13, 0..13, None), Slice::causal(13..45, 13..45, None)];
    for (slices, first) in [
        (vec![Slice::causal(0..45, 0..45, None)], 0),
        (vec![Slice::causal(0..45, 0..45, Some(7))], 0),
        (vec![Slice::full(0..45, 0..45)], 0),
        (documents.to_vec(), 0),
        // Rows that attend to nothing.
        (vec![Slice::causal(5..45, 3..45, Some(9))], 0),
        (vec![Slice::causal(0..45, 0..45, None)], 20),
    ] {
        for types in [[DType::F32; 2], [DType::Bf16; 2]] {
            let case = Case { first, types, ..CASE };
            same_within("attention", case.rounding(), |device| call(device, case, &slices, false));
        }
    }
}

#[test]
fn biases_by_distance() {
    let two_sided = Buckets { count: 32, two_sided: true, max_distance: 128 };
    for (buckets, tokens, first, slices) in [
        (two_sided, [45, 200], 100, vec![Slice::full(0..45, 0..200)]),
        (Buckets { two_sided: false, ..two_sided }, [150, 150], 0, vec![Slice::causal(0..150, 0..150, None)]),
        (
            Buckets { count: 8, two_sided: true, max_distance: 20 },
            [45, 45],
            0,
            vec![Slice::full(0..30, 0..45)],
        ),
    ] {
        for types in [[DType::F32; 2], [DType::Bf16; 2]] {
            let terms = Some(DistanceTerms::Buckets(buckets));
            let case = Case { terms, tokens, first, types, heads: [4, 4], ..CASE };
            same_within("biases", case.rounding(), |device| call(device, case, &slices, false));
        }
    }
}

#[test]
fn slopes_by_distance() {
    let documents = [Slice::causal(0..60, 0..60, None), Slice::causal(60..150, 60..150, None)];
    for (tokens, first, slices) in
        [([45, 200], 155, vec![Slice::causal(0..45, 0..200, None)]), ([150, 150], 0, documents.to_vec())]
    {
        for types in [[DType::F32; 2], [DType::Bf16; 2]] {
            let case = Case { terms: Some(DistanceTerms::Slopes), tokens, first, types, ..CASE };
            same_within("slopes", case.rounding(), |device| call(device, case, &slices, false));
        }
    }
}

#[test]
fn heads_caps_and_sinks() {
    let slices = [Slice::causal(0..45, 0..45, None)];
    for case in [
        Case { head_dim: 64, heads: [2, 2], ..CASE },
        Case { head_dim: 72, heads: [3, 1], ..CASE },
        Case { softcap: 2.0, ..CASE },
        Case { sinks: true, ..CASE },
        Case { types: [DType::Bf16, DType::F32], ..CASE },
        Case { head_dim: 72, heads: [3, 1], types: [DType::Bf16; 2], ..CASE },
        Case { softcap: 2.0, sinks: true, types: [DType::Bf16; 2], ..CASE },
        Case { head_dim: 136, heads: [2, 1], types: [DType::Bf16; 2], ..CASE },
        Case { head_dim: 20, heads: [3, 1], ..CASE },
        Case { head_dim: 21, heads: [3, 1], types: [DType::Bf16; 2], ..CASE },
        Case { tokens: [3, 70], first: 60, ..CASE },
    ] {
        let slices =
            if case.tokens == [3, 70] { vec![Slice::causal(0..3, 0..70, None)] } else { slices.to_vec() };
        same_within("attention", case.rounding(), |device| call(device, case, &slices, true));
    }
}

/// Keys in two parts: the second call continues from the first one's results.
#[test]
fn going_on_with_other_keys() {
    same("resume", |device| {
        let (tokens, heads, dim) = (40, 2, 16);
        let q = random(device, [tokens, heads * dim], DType::F32, 1);
        let (k, v) =
            (random(device, [tokens, dim], DType::F32, 2), random(device, [tokens, dim], DType::F32, 3));
        let (out, lse) = (
            blank(device, [tokens, heads * dim], DType::F32),
            device.zeros(tokens, heads, DType::F32, Category::Data),
        );
        for (part, keys) in [0..16, 16..40].into_iter().enumerate() {
            let mut mask = mask(
                device,
                &[Slice::causal(0..tokens, 0..keys.len(), None)],
                [tokens, keys.len()],
                0,
                false,
            );
            let positions: Vec<i32> = keys.clone().map(|key| key as i32).collect();
            mask.pos_k = device.from_i32(&positions, Category::Data);
            let op = Attention {
                q: &q,
                k: &k.view_rows(keys.clone()),
                v: &v.view_rows(keys),
                out: &out,
                lse: &lse,
                mask: &mask,
                head_dim: dim,
                scale: 0.5,
                softcap: 0.0,
                sinks: None,
                bias: None,
                resume: part == 1,
            };
            let bytes = device.machine.profile().workspace(&op.desc(false)) as usize;
            device.machine.attention(&op, &device.empty(1, bytes.max(1), DType::U8, Category::Workspace));
        }
        vec![out, lse]
    });
}

#[test]
fn halves() {
    let Some([_, device]) = devices() else { return };
    let slices = [Slice::causal(0..45, 0..45, None)];
    let narrow = call(&device, Case { types: [DType::F16; 2], ..CASE }, &slices, false);
    let wide = call(&device, CASE, &slices, false);
    for (narrow, wide) in narrow.iter().zip(&wide) {
        close("halves", &floats(&device, narrow), &floats(&device, wide), 2e-2);
    }
}

/// More than a tile of queries and of keys, on tensor cores.
#[test]
fn attention_over_many_tiles_agrees_with_the_cpu() {
    let documents = [Slice::causal(0..70, 0..70, None), Slice::causal(70..150, 70..150, Some(50))];
    for slices in [documents.to_vec(), vec![Slice::causal(0..150, 0..150, None)]] {
        let case = Case { tokens: [150, 150], heads: [2, 1], head_dim: 32, types: [DType::Bf16; 2], ..CASE };
        same_within("tiles", case.rounding(), |device| call(device, case, &slices, false));
    }
}

/// Merging parts by their logarithms, compared with the formula in f64.
#[test]
fn parts_join_others() {
    let Some([_, device]) = devices() else { return };
    let (rows, heads) = (37, 3);
    for (dim, of, to) in [
        (8, DType::F32, DType::F32),
        (64, DType::Bf16, DType::F32),
        (72, DType::Bf16, DType::Bf16),
        (136, DType::F16, DType::F32),
        (256, DType::Bf16, DType::F32),
    ] {
        for (by_head, fresh) in [(false, false), (false, true), (true, false), (true, true)] {
            let part = random(&device, [rows, heads * dim], of, 1);
            let out = blank(&device, [rows, heads * dim], to);
            set(&device, &out, &numbers(rows * heads * dim, 2));
            let lse = blank(&device, [rows, heads], DType::F32);
            let mut before: Vec<f32> = numbers(rows * heads, 3).iter().map(|x| 20.0 * x).collect();
            // Rows that have attended to nothing so far, attend to nothing here, or both.
            (before[0], before[5]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            set(&device, &lse, &before);
            let mut logarithms: Vec<f32> = numbers(rows * heads, 4).iter().map(|x| 20.0 * x).collect();
            (logarithms[5], logarithms[7]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            let shape = if by_head { [heads, rows] } else { [rows, heads] };
            let laid: Vec<f32> = if by_head {
                (0..heads * rows).map(|at| logarithms[at % rows * heads + at / rows]).collect()
            } else {
                logarithms.clone()
            };
            let part_lse = blank(&device, shape, DType::F32);
            set(&device, &part_lse, &laid);
            let [old, new] = [&out, &part].map(|tensor| floats(&device, tensor));
            let launch = kernels::attention_join((&part, &part_lse, by_head), [&out, &lse], dim, fresh);
            emulator::run(&launch);
            let (mut expected, mut totals) = (vec![0.0; old.len()], vec![0.0; before.len()]);
            for (at, total) in totals.iter_mut().enumerate() {
                let a = if fresh { f64::NEG_INFINITY } else { f64::from(before[at]) };
                let b = f64::from(logarithms[at]);
                let sum = (a.exp() + b.exp()).ln();
                *total = sum as f32;
                let weigh = |x: f64| if sum == f64::NEG_INFINITY { 0.0 } else { (x - sum).exp() };
                for col in at * dim..(at + 1) * dim {
                    expected[col] = (weigh(a) * f64::from(old[col]) + weigh(b) * f64::from(new[col])) as f32;
                }
            }
            let name = format!("dim {dim}, {of:?} joins {to:?}, by head {by_head}, fresh {fresh}");
            close(&format!("{name}, lse"), &floats(&device, &lse), &totals, 1e-6);
            close(&name, &floats(&device, &out), &expected, super::tolerance(to));
        }
    }
}
