//! Elementwise operations, row operations, products, the optimizer.

use fathom_tensor::{
    Activate, ActivateBackward, Activation, AdamW, CrossEntropy, DType, Embed, MatMul, Norm, NormBackward,
    NormKind, Rope, RopeTable, StepScale, Tensor, VocabularyShare,
};

use super::{Bed, Case, EXACT, Outputs, ROUNDED};

/// Row and column counts that are not multiples of any block size.
const SHAPE: [usize; 2] = [300, 200];

pub const CASES: &[Case] = &[
    Case { name: "copy", bounds: EXACT, run: copy },
    Case { name: "add, scale, softcap", bounds: EXACT, run: simple },
    Case { name: "bias", bounds: ROUNDED, run: bias },
    Case { name: "matmul", bounds: ROUNDED, run: matmul },
    Case { name: "matmul of odd sizes", bounds: ROUNDED, run: odd_matmul },
    Case { name: "norm", bounds: ROUNDED, run: norm },
    Case { name: "layer norm", bounds: ROUNDED, run: layer_norm },
    Case { name: "activations", bounds: ROUNDED, run: activations },
    Case { name: "rope", bounds: ROUNDED, run: rope },
    Case { name: "embedding", bounds: ROUNDED, run: embed },
    Case { name: "cross-entropy", bounds: ROUNDED, run: loss },
    Case { name: "cross-entropy over two ranks", bounds: ROUNDED, run: spread_loss },
    Case { name: "sums", bounds: ROUNDED, run: sums },
    Case { name: "optimizer", bounds: ROUNDED, run: optimizer },
];

fn copy(bed: &Bed) -> Outputs {
    let x = bed.data(1, SHAPE);
    let other = bed.empty(SHAPE, if bed.dtype == DType::F32 { DType::Bf16 } else { DType::F32 });
    bed.machine().copy(&x, &other);
    let part = bed.zeros(SHAPE);
    bed.machine().copy(&x.view_cols(3..90), &part.view_cols(100..187));
    vec![("converted", other), ("columns", part)]
}

fn simple(bed: &Bed) -> Outputs {
    let (x, y, out) = (bed.data(1, SHAPE), bed.wide(2, SHAPE), bed.empty(SHAPE, bed.dtype));
    bed.machine().add(&x, &y, &out);
    let scaled = bed.empty(SHAPE, bed.dtype);
    bed.machine().scale(&x, 0.3, &scaled);
    let capped = bed.wide(3, SHAPE);
    bed.machine().softcap(&capped, 0.7);
    vec![("sum", out), ("multiple", scaled), ("capped", capped)]
}

fn bias(bed: &Bed) -> Outputs {
    let (x, bias) = (bed.data(1, SHAPE), bed.data(2, [1, SHAPE[1]]));
    bed.machine().add_bias(&x, &bias);
    let gradient = bed.wide(4, [1, SHAPE[1]]);
    bed.machine().bias_backward(&x, &gradient);
    vec![("added", x), ("gradient", gradient)]
}

fn products(bed: &Bed, [m, n, k]: [usize; 3]) -> Outputs {
    let mut made = Vec::new();
    for (name, a_trans, b_trans) in
        [("plain", false, false), ("a turned", true, false), ("b turned", false, true)]
    {
        let a = bed.data(1, if a_trans { [k, m] } else { [m, k] });
        let b = bed.data(2, if b_trans { [n, k] } else { [k, n] });
        let (c, gradient) = (bed.empty([m, n], bed.dtype), bed.wide(3, [m, n]));
        for (c, accumulate) in [(&c, false), (&gradient, true)] {
            let op = MatMul { a: &a, a_trans, b: &b, b_trans, c, accumulate };
            bed.machine().matmul(&op, &bed.scratch(&op.desc()));
        }
        made.extend([(name, c), (name, gradient)]);
    }
    made
}

fn matmul(bed: &Bed) -> Outputs {
    products(bed, [512, 384, 256])
}

fn odd_matmul(bed: &Bed) -> Outputs {
    products(bed, [77, 131, 45])
}

fn norms(bed: &Bed, kind: NormKind) -> Outputs {
    let (groups, width, rows) = (2, 96, 300);
    let shape = [rows, groups * width];
    let (x, weight, bias) = (bed.data(1, shape), bed.data(2, [1, width]), bed.data(3, [1, width]));
    let out = bed.empty(shape, bed.dtype);
    let stats = bed.empty([rows, groups * if kind.centred { 2 } else { 1 }], DType::F32);
    let bias = kind.centred.then_some(&bias);
    bed.machine().norm(&Norm { kind, x: &x, weight: &weight, bias, out: &out, stats: &stats });
    let dy = bed.data(4, shape);
    let call = NormBackward { kind, x: &x, weight: &weight, stats: &stats, dy: &dy };
    let (dx, dweight, dbias) = (bed.data(5, shape), bed.wide(6, [1, width]), bed.wide(7, [1, width]));
    bed.machine().norm_backward_input(&call, &dx, true);
    bed.machine().norm_backward_weight(&call, &dweight, kind.centred.then_some(&dbias));
    vec![("out", out), ("dx", dx), ("dweight", dweight), ("dbias", dbias)]
}

fn norm(bed: &Bed) -> Outputs {
    norms(bed, NormKind { centred: false, plus_one: false, round_first: true, eps: 1e-5 })
}

fn layer_norm(bed: &Bed) -> Outputs {
    norms(bed, NormKind { centred: true, plus_one: true, round_first: false, eps: 1e-5 })
}

fn activations(bed: &Bed) -> Outputs {
    let mut made = Vec::new();
    for (name, kind, gated) in [
        ("swiglu", Activation::Silu, true),
        ("geglu", Activation::GeluTanh, true),
        ("gelu", Activation::GeluErf, false),
        ("relu", Activation::Relu, false),
        ("relu2", Activation::Relu2, false),
        ("clamped", Activation::ClampedSwiglu, true),
    ] {
        let [rows, cols] = SHAPE;
        let wide = [rows, if gated { 2 * cols } else { cols }];
        let (x, dy) = (bed.data(1, wide), bed.data(2, SHAPE));
        let (out, dx) = (bed.empty(SHAPE, bed.dtype), bed.empty(wide, bed.dtype));
        bed.machine().activate(&Activate { kind, gated, x: &x, out: &out });
        bed.machine().activate_backward(&ActivateBackward { kind, gated, x: &x, dy: &dy, dx: &dx });
        made.extend([(name, out), (name, dx)]);
    }
    made
}

fn rope(bed: &Bed) -> Outputs {
    let (tokens, heads, head_dim, rot) = (300, 3, 64, 48);
    let positions = bed.ints([1, tokens], |at| (at * 37 % 4000) as i32);
    let inv_freq: Vec<f32> = (0..rot / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / rot as f32)).collect();
    let inv_freq = bed.device.from_f32(1, rot / 2, &inv_freq, fathom_tensor::Category::Data);
    let table = bed.empty([tokens, rot], DType::F32);
    bed.machine().rope_table(&RopeTable {
        positions: &positions,
        inv_freq: &inv_freq,
        factor: 1.2,
        out: &table,
    });
    let x = bed.data(1, [tokens, heads * head_dim]);
    let mut made = vec![("table", table.clone())];
    for (name, interleaved, inverse, accumulate) in
        [("halves", false, false, false), ("pairs", true, false, false), ("back", false, true, true)]
    {
        let out = bed.data(2, [tokens, heads * head_dim]);
        let table = &table;
        bed.machine().rope(&Rope { x: &x, out: &out, table, head_dim, interleaved, inverse, accumulate });
        made.push((name, out));
    }
    made
}

fn embed(bed: &Bed) -> Outputs {
    let (vocab, tokens, cols) = (50, 300, 200);
    let ids = bed.ints([1, tokens], |at| (at * at % vocab) as i32);
    let (table, out) = (bed.data(1, [vocab, cols]), bed.data(2, [tokens, cols]));
    let call = Embed { ids: &ids, table: &table, scale: 1.5, out: &out, accumulate: true, first: None };
    bed.machine().embed(&call);
    let (dy, gradient) = (bed.data(3, [tokens, cols]), bed.wide(4, [vocab, cols]));
    bed.machine().embed_backward(&ids, &dy, 1.5, &gradient, None);
    vec![("rows", out), ("gradient", gradient)]
}

fn loss(bed: &Bed) -> Outputs {
    let (rows, vocab) = (64, 1111);
    let (logits, weights) = (bed.data(1, [rows, vocab]), bed.wide(2, [1, rows]));
    let labels = bed.ints([1, rows], |at| if at % 9 == 0 { -1 } else { (at * 31 % vocab) as i32 });
    let (loss, gradient) = (bed.zeros([1, rows]), bed.empty([rows, vocab], bed.dtype));
    bed.machine().cross_entropy(&CrossEntropy {
        logits: &logits,
        labels: &labels,
        weights: Some(&weights),
        loss: &loss,
        dlogits: Some(&gradient),
        scale: 3.0,
        softcap: 20.0,
        z_loss: 1e-3,
        spread: None,
        measures: None,
    });
    vec![("loss", loss), ("gradient", gradient)]
}

/// A vocabulary split between two ranks, computed one after the other.
fn spread_loss(bed: &Bed) -> Outputs {
    let (rows, vocab) = (64, 1000);
    let logits = bed.data(1, [rows, vocab]);
    let labels = bed.ints([1, rows], |at| if at % 9 == 0 { -1 } else { (at * 31 % vocab) as i32 });
    let (all, loss) = (bed.zeros([4, rows]), bed.zeros([1, rows]));
    let gradient = bed.empty([rows, vocab], bed.dtype);
    let parts = [0..600, 600..vocab];
    for (rank, part) in parts.iter().enumerate() {
        let stats = all.view_rows(2 * rank..2 * rank + 2);
        part_loss(
            bed,
            [&logits.view_cols(part.clone()), &labels, &loss],
            None,
            VocabularyShare { first: part.start, stats: Some(&stats), all: None },
        );
    }
    for part in parts {
        let (logits, gradient) = (logits.view_cols(part.clone()), gradient.view_cols(part.clone()));
        let spread = VocabularyShare { first: part.start, stats: None, all: Some(&all) };
        part_loss(bed, [&logits, &labels, &loss], Some(&gradient), spread);
    }
    vec![("statistics", all), ("loss", loss), ("gradient", gradient)]
}

fn part_loss(
    bed: &Bed,
    [logits, labels, loss]: [&Tensor; 3],
    dlogits: Option<&Tensor>,
    spread: VocabularyShare<'_>,
) {
    let (scale, softcap, z_loss) = (3.0, 20.0, 1e-3);
    let (spread, measures) = (Some(spread), None);
    let op = CrossEntropy {
        logits,
        labels,
        weights: None,
        loss,
        dlogits,
        scale,
        softcap,
        z_loss,
        spread,
        measures,
    };
    bed.machine().cross_entropy(&op);
}

fn sums(bed: &Bed) -> Outputs {
    let x = bed.wide(1, [1, 100_000]);
    let (sum, squares) = (bed.wide(2, [1, 1]), bed.wide(3, [1, 1]));
    bed.machine().sum(&x, &sum);
    bed.machine().sum_squares(&x, &squares);
    vec![("sum", sum), ("squares", squares)]
}

fn optimizer(bed: &Bed) -> Outputs {
    let shape = [300, 100];
    let one = |value: f32| bed.device.from_f32(1, 1, &[value], fathom_tensor::Category::Data);
    let (scale, skip, norm) = (bed.zeros([1, 1]), bed.zeros([1, 1]), bed.zeros([1, 1]));
    let updates = bed.ints([1, 1], |_| 4);
    bed.machine().step_scale(&StepScale {
        sum_squares: &one(9e4),
        loss: &one(3.0),
        count: &one(100.0),
        max_norm: 1.0,
        scale: &scale,
        skip: &skip,
        norm: &norm,
        updates: &updates,
    });
    let (param, grad) = (bed.data(1, shape), bed.wide(2, shape));
    let master = bed.wide(1, shape);
    let (m, v) = (bed.wide(3, shape), bed.zeros(shape));
    bed.machine().adamw(&AdamW {
        param: &param,
        master: (bed.dtype != DType::F32).then_some(&master),
        m: &m,
        v: Some(&v),
        scales: None,
        key: 7,
        first: 0,
        grad: &grad,
        scale: &scale,
        skip: &skip,
        lr: 1e-2,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        updates: &updates,
    });
    vec![("scale", scale), ("norm", norm), ("param", param), ("m", m), ("v", v)]
}
