//! Attention by the library if the host knows the mask, and by kernels if it does not.

use fathom_tensor::{
    Attention, AttentionBackward, Category, DType, Extent, Mask, OpDesc, PackedMask, SinksBackward, Slice,
    Tensor,
};

use super::{Bed, Case, Outputs};

/// Scores are rounded to bf16 between two products.
const BOUNDS: [f64; 2] = [1e-4, 2e-2];

pub const CASES: &[Case] = &[
    Case { name: "attention, one document", bounds: BOUNDS, run: |bed| attend(bed, &PLAIN) },
    // Long enough for a plan of its exact length, whose logarithms are stored head after head.
    Case {
        name: "attention, 1024 tokens",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { ends: &[1024], ..PLAIN }),
    },
    Case {
        name: "attention, 1024 tokens by groups of heads",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { ends: &[1024], by_groups: true, ..PLAIN }),
    },
    Case {
        name: "attention, heads of 256",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { ends: &[1024], dim: 256, ..PLAIN }),
    },
    Case {
        name: "attention, heads of 96",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { dim: 96, ..PLAIN }),
    },
    Case {
        name: "attention, heads of 64",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { dim: 64, ..PLAIN }),
    },
    Case {
        name: "attention, window",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { window: Some(64), ..PLAIN }),
    },
    Case {
        name: "attention, documents",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { ends: &[100, 130, 384], ..PLAIN }),
    },
    Case {
        name: "attention, a prompt of an odd length",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { ends: &[300], dim: 64, ..PLAIN }),
    },
    Case {
        name: "attention, documents and window",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { ends: &[100, 130, 384], window: Some(64), ..PLAIN }),
    },
    Case {
        name: "attention by kernels",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { ends: &[100, 130, 384], packed: false, ..PLAIN }),
    },
    Case {
        name: "attention, capped",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { softcap: 5.0, ..PLAIN }),
    },
    Case {
        name: "attention, sinks",
        bounds: BOUNDS,
        run: |bed| attend(bed, &Problem { sinks: true, ..PLAIN }),
    },
];

struct Problem {
    ends: &'static [usize],
    window: Option<usize>,
    dim: usize,
    /// True if the host knows the mask.
    packed: bool,
    softcap: f32,
    sinks: bool,
    /// True if scratch is for one key head at a time, if a library needs any.
    by_groups: bool,
}

const PLAIN: Problem = Problem {
    ends: &[384],
    window: None,
    dim: 128,
    packed: true,
    softcap: 0.0,
    sinks: false,
    by_groups: false,
};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;

fn mask(bed: &Bed, problem: &Problem) -> Mask {
    let starts = [0].into_iter().chain(problem.ends.iter().copied());
    let docs: Vec<std::ops::Range<usize>> =
        starts.zip(problem.ends).map(|(start, end)| start..*end).collect();
    let slices: Vec<Slice> =
        docs.iter().map(|doc| Slice::causal(doc.clone(), doc.clone(), problem.window)).collect();
    let positions: Vec<i32> = docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    let table = bed.device.empty(slices.len(), 6, DType::I64, Category::Data);
    let row = |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi];
    let bytes: Vec<u8> = slices.iter().flat_map(row).flat_map(i64::to_le_bytes).collect();
    bed.machine().write(&table, &bytes);
    let packed = problem.packed.then(|| PackedMask::of(&slices, &positions, &positions)).flatten();
    let positions = bed.device.from_i32(&positions, Category::Data);
    let (pos_q, pos_k) = (positions.clone(), positions);
    let slices = Extent::Fixed(slices.len());
    Mask { table, slices, pos_q, pos_k, pairs: 0, packed, partial: false, pages: None }
}

fn parts(whole: &Tensor, dim: usize) -> [Tensor; 3] {
    let [q, k] = [HEADS * dim, (HEADS + KV_HEADS) * dim];
    [whole.view_cols(0..q), whole.view_cols(q..k), whole.view_cols(k..k + KV_HEADS * dim)]
}

fn attend(bed: &Bed, problem: &Problem) -> Outputs {
    let (dim, tokens) = (problem.dim, problem.ends.last().copied().unwrap_or(0));
    let mask = mask(bed, problem);
    let shape = [tokens, (HEADS + 2 * KV_HEADS) * dim];
    let qkv = bed.data(1, shape);
    let [q, k, v] = parts(&qkv, dim);
    let (out, lse) = (bed.empty([tokens, HEADS * dim], bed.dtype), bed.zeros([tokens, HEADS]));
    let sinks = bed.wide(2, [1, HEADS]);
    let sinks = problem.sinks.then_some(&sinks);
    let softcap = problem.softcap;
    let op = Attention { softcap, sinks, ..Attention::plain([&q, &k, &v], [&out, &lse], &mask, dim) };
    let on_gpu = bed.machine().profile().isa.starts_with("sm_");
    let scratch = |backward| {
        let mut desc = op.desc(backward);
        if let (OpDesc::Attention(of), true) = (&mut desc, problem.by_groups && on_gpu) {
            (of.heads, of.kv_heads) = (of.heads / of.kv_heads, 1);
        }
        bed.scratch(&desc)
    };
    bed.machine().attention(&op, &scratch(false));
    let dout = bed.data(3, [tokens, HEADS * dim]);
    let gradient = bed.empty(shape, bed.dtype);
    let [dq, dk, dv] = parts(&gradient, dim);
    let dsinks = bed.wide(4, [1, HEADS]);
    let call = AttentionBackward { forward: op, dout: &dout, dq: &dq, dk: &dk, dv: &dv, accumulate: false };
    bed.machine().attention_backward(&call, &scratch(true));
    if let Some(sinks) = sinks {
        let call = SinksBackward { out: &out, dout: &dout, lse: &lse, sinks, dsinks: &dsinks };
        bed.machine().sinks_backward(&call);
    }
    let apart = |x: &Tensor| {
        let whole = bed.zeros(x.shape());
        bed.machine().copy(x, &whole);
        whole
    };
    let [dq, dk, dv] = [&dq, &dk, &dv].map(apart);
    vec![("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv), ("dsinks", dsinks)]
}
