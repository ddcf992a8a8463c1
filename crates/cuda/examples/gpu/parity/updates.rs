//! Operations at the end of a step: sums by slot, largest elements, updates with every moment storage; and tensors
//! filled by the host.

use fathom_tensor::choice::{Choose, Draw, LeaveOut, kept_bytes};
use fathom_tensor::{AdamW, BalanceBias, Category, DType, MomentScales, Tensor, moments};

use super::{Bed, Case, EXACT, Made, ROUNDED};

pub const CASES: &[Case] = &[
    Case { name: "largest", bounds: EXACT, run: largest },
    Case { name: "sums by slot", bounds: ROUNDED, run: slots },
    Case { name: "filled by the host", bounds: EXACT, run: filled },
    Case {
        name: "momentum",
        bounds: ROUNDED,
        run: |bed| updated(bed, Moments { storage: DType::F32, second: false, masters: true }),
    },
    Case {
        name: "AdamW, bf16 moments",
        bounds: ROUNDED,
        run: |bed| updated(bed, Moments { storage: DType::Bf16, second: true, masters: true }),
    },
    Case {
        name: "AdamW without masters",
        bounds: ROUNDED,
        run: |bed| updated(bed, Moments { storage: DType::Bf16, second: true, masters: false }),
    },
    Case {
        name: "AdamW, FP8 moments",
        bounds: ROUNDED,
        run: |bed| updated(bed, Moments { storage: DType::F8E4M3, second: true, masters: true }),
    },
    Case { name: "tokens", bounds: EXACT, run: tokens },
    Case { name: "biases of experts", bounds: EXACT, run: balance },
];

fn largest(bed: &Bed) -> Made {
    let x = bed.data(1, [300, 200]);
    let (of_all, by_column) = (bed.zeros([1, 1]), bed.zeros([1, 200]));
    bed.machine().largest(&x, &of_all);
    bed.machine().largest(&x, &by_column);
    vec![("of all", of_all), ("by column", by_column)]
}

fn slots(bed: &Bed) -> Made {
    let (x, sums) = (bed.wide(1, [1, 100_000]), bed.wide(2, [1, 4]));
    bed.machine().sum_squares_slots(&x, 30_000, &sums);
    vec![("sums", sums)]
}

/// Groups of one and of two tensors, more groups than threads.
fn filled(bed: &Bed) -> Made {
    let whole = bed.zeros([60, 25]);
    let rows = |from: usize, to: usize| whole.view_rows(from..to);
    let groups: Vec<Vec<Tensor>> =
        (0..20).map(|at| vec![rows(3 * at, 3 * at + 1), rows(3 * at + 1, 3 * at + 3)]).collect();
    bed.machine().fill(&groups, &|group, tensors| {
        for (tensor, bytes) in tensors.iter_mut().enumerate() {
            for (at, element) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *element = ((100 * group + 50 * tensor + at) as f32).to_le_bytes();
            }
        }
    });
    vec![("elements", whole)]
}

/// Storage of an optimizer's moments.
struct Moments {
    storage: DType,
    second: bool,
    masters: bool,
}

/// Three updates, each reading what the previous one rounded.
fn updated(bed: &Bed, Moments { storage, second, masters }: Moments) -> Made {
    let size = 20 * moments::BLOCK;
    let (param, master) = (bed.data(1, [1, size]), bed.wide(1, [1, size]));
    let (m, v) = (zeros(bed, size, storage), zeros(bed, size, storage));
    let [of_m, of_v] = [(); 2].map(|()| bed.zeros([1, size / moments::BLOCK]));
    let scales = MomentScales { m: &of_m, v: Some(&of_v) };
    let (scale, skip) = (bed.device.from_f32(1, 1, &[0.5], Category::Data), bed.zeros([1, 1]));
    for update in 1..4 {
        let (grad, updates) = (bed.wide(10 + update, [1, size]), bed.ints([1, 1], |_| update as i32));
        bed.machine().adamw(&AdamW {
            param: &param,
            master: (masters && bed.dtype != DType::F32).then_some(&master),
            m: &m,
            v: second.then_some(&v),
            scales: (storage == DType::F8E4M3).then_some(scales),
            key: 7,
            first: 256,
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
    }
    vec![("param", param), ("master", master), ("scales of m", of_m), ("scales of v", of_v)]
}

fn zeros(bed: &Bed, size: usize, dtype: DType) -> Tensor {
    bed.device.zeros(1, size, dtype, Category::Data)
}

/// The largest logits, and random draws.
fn tokens(bed: &Bed) -> Made {
    let logits = bed.data(1, [20, 5000]);
    let draw = Draw { temperature: 0.7, top_k: 0, top_p: 0.9, min_p: 0.01, seed: 3, drawn: 8 };
    let of = |draw: Option<Draw>, among: bool| {
        let ids = bed.ints([1, 20], |_| -1);
        let draws: Vec<Option<Draw>> =
            (0..20).map(|row| draw.map(|draw| Draw { drawn: draw.drawn + row, ..draw })).collect();
        let kept = bed.device.zeros(20, kept_bytes(5000), DType::U8, Category::Data);
        bed.machine().choose(&Choose { logits: &logits, ids: &ids, draws: &draws, kept: Some(&kept) });
        if !among {
            return ids;
        }
        let some = bed.data(1, [20, 5000]);
        if some.dtype() == DType::F32 {
            bed.machine().leave_out(&LeaveOut { logits: &some, kept: &kept, first: 0 });
        }
        some
    };
    let few = Draw { top_k: 40, top_p: 1.0, ..draw };
    vec![
        ("largest", of(None, false)),
        ("drawn", of(Some(draw), false)),
        ("drawn of few", of(Some(few), false)),
        ("what is kept", of(Some(draw), true)),
    ]
}

fn balance(bed: &Bed) -> Made {
    let (bias, load) = (bed.wide(1, [1, 64]), bed.wide(2, [1, 64]));
    let [skipped, counted] = [1.0, 0.0].map(|skip| bed.device.from_f32(1, 1, &[skip], Category::Data));
    for skip in [&skipped, &counted] {
        bed.machine().balance_bias(&BalanceBias { bias: &bias, load: &load, rate: 0.125, skip });
    }
    vec![("biases", bias)]
}
