//! Attention under masks of slices.

use fathom_tensor::{Attention, AttentionBackward, Category, DType, Device, Extent, Mask, Slice, Tensor};

use super::{blank, close, devices, floats, random, same, same_within};

/// A mask of these slices; positions begin at `first` for queries.
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
    types: [DType; 2],
}

impl Case {
    /// What may differ: in 16 bits, what roundings of probabilities and of the forward pass's results make of gradients.
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
    let forward = Attention {
        q: &q,
        k: &k,
        v: &v,
        out: &out,
        lse: &lse,
        mask: &mask,
        head_dim: dim,
        scale: 1.6 / (dim as f32).sqrt(),
        softcap: case.softcap,
        sinks: case.sinks.then_some(&sinks),
        resume: false,
    };
    let scratch = |backward| {
        let bytes = device.machine.profile().workspace(&forward.desc(backward)) as usize;
        device.empty(1, bytes.max(1), DType::U8, Category::Workspace)
    };
    device.machine.attention(&forward, &scratch(false));
    let dout = random(device, shapes[0], of, 5);
    let (dq, dk, dv) =
        (blank(device, shapes[0], to), blank(device, shapes[1], of), blank(device, shapes[1], to));
    let dsinks = device.zeros(1, heads, DType::F32, Category::Data);
    // The gradient's inputs are rows of the storage of q; what the forward pass left may be f32.
    let stored = blank(device, shapes[0], of);
    device.machine.copy(&out, &stored);
    let backward = AttentionBackward {
        forward: Attention { out: &stored, ..forward },
        dout: &dout,
        dq: &dq,
        dk: &dk,
        dv: &dv,
        dsinks: case.sinks.then_some(&dsinks),
        accumulate: false,
    };
    device.machine.attention_backward(&backward, &scratch(true));
    let more = random(device, shapes[0], to, 6);
    device.machine.attention_backward(
        &AttentionBackward { dq: &more, dsinks: None, accumulate: true, ..backward },
        &scratch(true),
    );
    vec![out, lse.clone(), dq, dk, dv, dsinks, more]
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
        Case { tokens: [3, 70], first: 60, ..CASE },
    ] {
        let slices =
            if case.tokens == [3, 70] { vec![Slice::causal(0..3, 0..70, None)] } else { slices.to_vec() };
        same_within("attention", case.rounding(), |device| call(device, case, &slices, true));
    }
}

/// Keys in two parts: the second call goes on with the first one's results.
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
fn many_tiles() {
    let documents = [Slice::causal(0..70, 0..70, None), Slice::causal(70..150, 70..150, Some(50))];
    for slices in [documents.to_vec(), vec![Slice::causal(0..150, 0..150, None)]] {
        let case = Case { tokens: [150, 150], heads: [2, 1], head_dim: 32, types: [DType::Bf16; 2], ..CASE };
        same_within("tiles", case.rounding(), |device| call(device, case, &slices, false));
    }
}
