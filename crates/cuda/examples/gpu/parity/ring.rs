//! Attention of one context-parallel rank to the keys of all ranks, step by step or gathered: the library's results are
//! parts that are merged.

use std::ops::Range;

use fathom_tensor::{Attention, AttentionBackward, Category, DType, Extent, Mask, PackedMask, Slice, Tensor};

use super::{Bed, Case, Outputs};

/// Those of attention, with each part rounded to bf16.
const BOUNDS: [f64; 2] = [1e-4, 2e-2];

pub const CASES: &[Case] = &[
    Case { name: "ring of four", bounds: BOUNDS, run: |bed| around(bed, &PLAIN) },
    Case {
        name: "ring of four, heads of 64",
        bounds: BOUNDS,
        run: |bed| around(bed, &Context { dim: 64, ..PLAIN }),
    },
    Case {
        name: "ring of four, documents",
        bounds: BOUNDS,
        run: |bed| around(bed, &Context { ends: &[100, 600, 630, 1024], ..PLAIN }),
    },
    Case { name: "gathered keys", bounds: BOUNDS, run: |bed| gathered(bed, &PLAIN) },
    Case {
        name: "gathered keys, documents",
        bounds: BOUNDS,
        run: |bed| gathered(bed, &Context { ends: &[100, 600, 630, 1024], ..PLAIN }),
    },
    // Each rank has chunks of 128 tokens.
    Case {
        name: "ring of four, window of less than a chunk",
        bounds: BOUNDS,
        run: |bed| around(bed, &Context { window: Some(100), ..PLAIN }),
    },
    Case {
        name: "ring of four, window of more, heads of 64",
        bounds: BOUNDS,
        run: |bed| around(bed, &Context { window: Some(300), dim: 64, ..PLAIN }),
    },
    Case {
        name: "ring of four, documents and window",
        bounds: BOUNDS,
        run: |bed| {
            around(
                bed,
                &Context { ends: &[100, 600, 630, 1024], window: Some(200), chunk: Some(64), ..PLAIN },
            )
        },
    },
    Case {
        name: "ring of four, small chunks and window",
        bounds: BOUNDS,
        run: |bed| around(bed, &Context { window: Some(70), chunk: Some(32), ..PLAIN }),
    },
    Case {
        name: "gathered keys, window",
        bounds: BOUNDS,
        run: |bed| gathered(bed, &Context { window: Some(300), ..PLAIN }),
    },
    Case {
        name: "gathered keys, documents and window",
        bounds: BOUNDS,
        run: |bed| {
            gathered(
                bed,
                &Context { ends: &[100, 600, 630, 1024], window: Some(100), chunk: Some(64), ..PLAIN },
            )
        },
    },
];

/// A stream of documents over ranks with two chunks each.
struct Context {
    ends: &'static [usize],
    dim: usize,
    window: Option<usize>,
    /// If set, ranks take chunks of this many tokens in turns, and the call has room to describe all at once.
    chunk: Option<usize>,
}

const PLAIN: Context = Context { ends: &[1024], dim: 128, window: None, chunk: None };
const RANKS: usize = 4;
/// The rank under test: some ranks' keys come before its own, some after.
const RANK: usize = 1;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;

impl Context {
    fn tokens(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Number of slices charged.
    fn cap(&self) -> usize {
        self.ends.len() + self.chunk.map_or(0, |chunk| self.tokens() / RANKS / chunk)
    }

    /// Positions of a rank's tokens: a chunk from the front and one from the back, or its share of `chunk`s.
    fn positions(&self, rank: usize) -> Vec<i32> {
        if let Some(chunk) = self.chunk {
            return (0..self.tokens()).filter(|at| at / chunk % RANKS == rank).map(|at| at as i32).collect();
        }
        let chunk = self.tokens() / (2 * RANKS);
        let of = |at: usize| at * chunk..(at + 1) * chunk;
        of(rank).chain(of(2 * RANKS - 1 - rank)).map(|at| at as i32).collect()
    }

    fn mask(&self, bed: &Bed, pos_q: &[i32], pos_k: &[i32]) -> Mask {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let rows = |positions: &[i32], doc: &Range<usize>| {
            let before = |end: usize| positions.partition_point(|at| (*at as usize) < end);
            before(doc.start)..before(doc.end)
        };
        let slices: Vec<Slice> = starts
            .zip(self.ends)
            .map(|(start, end)| start..*end)
            .map(|doc| Slice::causal(rows(pos_q, &doc), rows(pos_k, &doc), self.window))
            .filter(|slice| slice.q_start < slice.q_end && slice.k_start < slice.k_end)
            .collect();
        let row = |s: &Slice| [s.q_start, s.q_end, s.k_start, s.k_end, s.lo, s.hi];
        let mut bytes: Vec<u8> = slices.iter().flat_map(row).flat_map(i64::to_le_bytes).collect();
        bytes.resize(self.cap() * 48, 0);
        let table = bed.device.empty(self.cap(), 6, DType::I64, Category::Data);
        bed.machine().write(&table, &bytes);
        let count = bed.device.from_i32(&[slices.len() as i32], Category::Data);
        let packed = PackedMask::of(&slices, pos_q, pos_k);
        let [pos_q, pos_k] = [pos_q, pos_k].map(|positions| bed.device.from_i32(positions, Category::Data));
        let slices = Extent::UpTo { cap: self.cap(), count };
        Mask { table, slices, pos_q, pos_k, pairs: 0, packed, partial: true, pages: None }
    }
}

/// Tensors shared by all steps.
struct Rank<'a> {
    bed: &'a Bed,
    dim: usize,
    q: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dq: Tensor,
}

impl Rank<'_> {
    /// Results and the gradient of the queries have type `made`.
    fn new<'a>(bed: &'a Bed, context: &Context, made: DType) -> Rank<'a> {
        let shape = [context.tokens() / RANKS, HEADS * context.dim];
        let (out, dq) = (bed.empty(shape, made), bed.empty(shape, made));
        let lse = bed.zeros([shape[0], HEADS]);
        Rank { bed, dim: context.dim, q: bed.data(1, shape), out, lse, dout: bed.data(4, shape), dq }
    }

    fn op<'a>(
        &'a self,
        out: &'a Tensor,
        [k, v]: [&'a Tensor; 2],
        mask: &'a Mask,
        resume: bool,
    ) -> Attention<'a> {
        let (scale, head_dim) = ((self.dim as f32).powf(-0.5), self.dim);
        let (q, lse) = (&self.q, &self.lse);
        Attention { q, k, v, out, lse, mask, head_dim, scale, softcap: 0.0, sinks: None, bias: None, resume }
    }

    fn forward(&self, keys: [&Tensor; 2], mask: &Mask, resume: bool) {
        let op = self.op(&self.out, keys, mask, resume);
        self.bed.machine().attention(&op, &self.bed.scratch(&op.desc(false)));
    }

    fn backward(
        &self,
        out: &Tensor,
        keys: [&Tensor; 2],
        mask: &Mask,
        [dk, dv]: [&Tensor; 2],
        accumulate: bool,
    ) {
        let forward = self.op(out, keys, mask, false);
        let (dout, dq) = (&self.dout, &self.dq);
        let call = AttentionBackward { forward, dout, dq, dk, dv, accumulate };
        self.bed.machine().attention_backward(&call, &self.bed.scratch(&forward.desc(true)));
    }

    fn made(self, dk: Tensor, dv: Tensor) -> Outputs {
        vec![("out", self.out), ("lse", self.lse), ("dq", self.dq), ("dk", dk), ("dv", dv)]
    }
}

/// Keys, values and their gradients, of all ranks.
fn keys(bed: &Bed, context: &Context) -> [Tensor; 4] {
    let shape = [context.tokens(), KV_HEADS * context.dim];
    [bed.data(2, shape), bed.data(3, shape), bed.empty(shape, bed.dtype), bed.empty(shape, bed.dtype)]
}

/// Own keys first, then those of the preceding ranks; results accumulate in f32.
fn around(bed: &Bed, context: &Context) -> Outputs {
    let rank = Rank::new(bed, context, DType::F32);
    let [k, v, dk, dv] = keys(bed, context);
    let own = context.positions(RANK);
    let rows = own.len();
    let from = |step: usize| (RANK + RANKS - step) % RANKS;
    let masks: Vec<Mask> =
        (0..RANKS).map(|step| context.mask(bed, &own, &context.positions(from(step)))).collect();
    let part = |tensor: &Tensor, step: usize| tensor.view_rows(from(step) * rows..(from(step) + 1) * rows);
    for (step, mask) in masks.iter().enumerate() {
        rank.forward([&part(&k, step), &part(&v, step)], mask, step > 0);
    }
    let out = bed.empty(rank.out.shape(), bed.dtype);
    bed.machine().copy(&rank.out, &out);
    for (step, mask) in masks.iter().enumerate() {
        let of = [&part(&k, step), &part(&v, step)];
        rank.backward(&out, of, mask, [&part(&dk, step), &part(&dv, step)], step > 0);
    }
    rank.made(dk, dv)
}

/// All ranks' keys in stream order.
fn gathered(bed: &Bed, context: &Context) -> Outputs {
    let rank = Rank::new(bed, context, bed.dtype);
    let [k, v, dk, dv] = keys(bed, context);
    let all: Vec<i32> = (0..context.tokens() as i32).collect();
    let mask = context.mask(bed, &context.positions(RANK), &all);
    rank.forward([&k, &v], &mask, false);
    rank.backward(&rank.out, [&k, &v], &mask, [&dk, &dv], false);
    rank.made(dk, dv)
}
