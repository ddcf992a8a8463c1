//! Copies, sums, activations, rotations, lookups, cross-entropy.

use fathom_tensor::{
    Activate, ActivateBackward, Activation, Category, CrossEntropy, DType, Device, Embed, Rope, RopeTable,
    Tensor, VocabularyShare,
};

use super::{FLOATS, blank, devices, floats, random, same};

#[test]
fn copies_and_sums() {
    for [a, b] in [[DType::F32; 2], [DType::Bf16; 2], [DType::F32, DType::Bf16], [DType::Bf16, DType::F32]] {
        for shape in [[3, 17], [1, 2100], [40, 8]] {
            same("plain", |device| {
                let m = &device.machine;
                let (x, y) = (random(device, shape, a, 1), random(device, shape, b, 2));
                let (copied, sum, scaled) =
                    (blank(device, shape, b), blank(device, shape, b), blank(device, shape, a));
                m.copy(&x, &copied);
                m.add(&x, &y, &sum);
                m.scale(&x, 0.3, &scaled);
                let capped = random(device, shape, a, 3);
                m.softcap(&capped, 1.5);
                let biased = random(device, shape, a, 4);
                m.add_bias(&biased, &random(device, [1, shape[1]], b, 5));
                let products = [0, 1].map(|_| blank(device, shape, b));
                m.multiply(&x, &y, &products[0]);
                m.multiply(&x, &random(device, [1, shape[1]], b, 7), &products[1]);
                let roots = blank(device, shape, a);
                m.multiply(&y, &y, &roots);
                m.rsqrt(&roots, &roots);
                m.add(&y, &y, &y);
                let zero = random(device, shape, b, 6);
                m.zero(&zero);
                let [product, by_row] = products;
                vec![copied, sum, scaled, capped, biased, y, zero, product, by_row, roots]
            });
        }
    }
}

#[test]
fn sums_over_rows_and_vectors() {
    same("sums", |device| {
        let m = &device.machine;
        let mut results = Vec::new();
        for dtype in FLOATS {
            let dbias = random(device, [1, 70], DType::F32, 1);
            m.bias_backward(&random(device, [300, 70], dtype, 2), &dbias);
            results.push(dbias);
        }
        for n in [1, 128, 5000, 140_000] {
            let x = device.from_f32(1, n, &super::numbers(n, 3), Category::Data);
            let (sum, squares) = (
                device.zeros(1, 1, DType::F32, Category::Data),
                device.zeros(1, 1, DType::F32, Category::Data),
            );
            m.sum(&x, &sum);
            m.sum(&x, &sum);
            m.sum_squares(&x, &squares);
            results.extend([sum, squares]);
        }
        let x = random(device, [1, 20_005], DType::F32, 4);
        let slots = random(device, [1, 5], DType::F32, 5);
        m.sum_squares_slots(&x, 4096, &slots);
        results.push(slots);
        results
    });
}

/// One launch for all slots has the bits of one launch for each, wherever they begin.
#[test]
fn slots_of_squares_do_not_depend_on_each_other() {
    let Some([_, device]) = devices() else { return };
    let (x, slot) = (random(&device, [1, 30_001], DType::F32, 1), 10_000);
    let [together, apart] = [0; 2].map(|_| random(&device, [1, 4], DType::F32, 2));
    device.machine.sum_squares_slots(&x, slot, &together);
    for (index, start) in (0..x.cols()).step_by(slot).enumerate() {
        let part = x.view_cols(start..x.cols().min(start + slot));
        device.machine.sum_squares(&part, &apart.view_cols(index..index + 1));
    }
    assert_eq!(floats(&device, &together), floats(&device, &apart));
}

#[test]
fn activations_agree_with_the_cpu() {
    use Activation::*;
    for dtype in FLOATS {
        for (kind, gated) in [
            (Silu, true),
            (Silu, false),
            (GeluTanh, true),
            (GeluErf, false),
            (Relu, false),
            (Relu2, true),
            (Tanh, false),
            (Sigmoid, true),
            (ClampedSwiglu, true),
        ] {
            same("activation", |device| {
                let (rows, cols) = (5, 37);
                let wide = if gated { 2 * cols } else { cols };
                let x = random(device, [rows, wide], dtype, 1);
                device.machine.scale(&x, 5.0, &x);
                let (out, dx) = (blank(device, [rows, cols], dtype), blank(device, [rows, wide], dtype));
                device.machine.activate(&Activate { kind, gated, x: &x, out: &out });
                let dy = random(device, [rows, cols], dtype, 2);
                device.machine.activate_backward(&ActivateBackward { kind, gated, x: &x, dy: &dy, dx: &dx });
                vec![out, dx]
            });
        }
    }
}

#[test]
fn rotary_embeddings_agree_with_the_cpu() {
    for (head_dim, rot, interleaved) in [(64, 64, false), (80, 20, false), (24, 16, true), (20, 12, true)] {
        same("rope", |device| {
            let (rows, heads, half) = (7, 3, rot / 2);
            let positions: Vec<i32> = (0..rows as i32).map(|t| 1000 * t * t).collect();
            let inv_freq: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
            let table = blank(device, [rows, rot], DType::F32);
            device.machine.rope_table(&RopeTable {
                positions: &device.from_i32(&positions, Category::Data),
                inv_freq: &device.from_f32(1, half, &inv_freq, Category::Data),
                factor: 1.3,
                out: &table,
            });
            let mut results = vec![table.clone()];
            for (dtype, inverse, accumulate) in
                [(DType::F32, false, false), (DType::Bf16, true, false), (DType::F32, true, true)]
            {
                let (x, out) = (
                    random(device, [rows, heads * head_dim], dtype, 1),
                    random(device, [rows, heads * head_dim], dtype, 2),
                );
                device.machine.rope(&Rope {
                    x: &x,
                    out: &out,
                    table: &table,
                    head_dim,
                    interleaved,
                    inverse,
                    accumulate,
                });
                results.push(out);
            }
            results
        });
    }
}

#[test]
fn embeddings_agree_with_the_cpu() {
    for first in [None, Some(3)] {
        same("embed", |device| {
            let (vocab, cols, rows) = (11, 37, 4100);
            let ids: Vec<i32> =
                (0..rows).map(|t| if first.is_some() { t * 7 % 17 } else { t * 7 % 11 }).collect();
            let ids = device.from_i32(&ids, Category::Data);
            let rows = rows as usize;
            let mut results = Vec::new();
            for (table, out, accumulate) in
                [(DType::F32, DType::Bf16, false), (DType::Bf16, DType::Bf16, true)]
            {
                let (table, out) =
                    (random(device, [vocab, cols], table, 1), random(device, [rows, cols], out, 2));
                device.machine.embed(&Embed {
                    ids: &ids,
                    table: &table,
                    scale: 1.5,
                    out: &out,
                    accumulate,
                    first,
                });
                results.push(out);
            }
            let dtable = random(device, [vocab, cols], DType::F32, 3);
            device.machine.embed_backward(
                &ids,
                &random(device, [rows, cols], DType::Bf16, 4),
                0.5,
                &dtable,
                first,
            );
            results.push(dtable);
            results
        });
    }
}

fn entropy(device: &Device, dtype: DType, settings: [f32; 3], in_place: bool) -> Vec<Tensor> {
    let (rows, vocab) = (4, 5003);
    let logits = random(device, [rows, vocab], dtype, 1);
    let labels = device.from_i32(&[5, -1, 5002, 0], Category::Data);
    let loss = device.zeros(1, rows, DType::F32, Category::Data);
    let weights = device.from_f32(1, rows, &[0.5, 1.0, 2.0, 0.0], Category::Data);
    let dlogits = if in_place { logits.clone() } else { blank(device, [rows, vocab], DType::F32) };
    let measures = blank(device, [2, rows], DType::F32);
    let [scale, softcap, z_loss] = settings;
    device.machine.cross_entropy(&CrossEntropy {
        logits: &logits,
        labels: &labels,
        weights: in_place.then_some(&weights),
        loss: &loss,
        dlogits: Some(&dlogits),
        scale,
        softcap,
        z_loss,
        spread: None,
        measures: in_place.then_some(&measures),
    });
    vec![loss, dlogits, measures]
}

#[test]
fn cross_entropies_agree_with_the_cpu() {
    for dtype in FLOATS {
        for settings in [[1.0, 0.0, 0.0], [0.7, 3.0, 1e-2]] {
            same("loss", |device| entropy(device, dtype, settings, false));
            same("loss in place", |device| entropy(device, dtype, settings, true));
        }
    }
}

#[test]
fn a_spread_vocabulary() {
    same("spread loss", |device| {
        let (rows, vocab) = (3, 40);
        let labels = device.from_i32(&[5, 70, -1], Category::Data);
        let all = device.zeros(8, rows, DType::F32, Category::Data);
        let measures = blank(device, [2, rows], DType::F32);
        let loss = device.zeros(1, rows, DType::F32, Category::Data);
        let parts = [0u64, 1].map(|rank| random(device, [rows, vocab], DType::F32, 1 + rank));
        let mut results = Vec::new();
        for round in 0..2 {
            for (rank, logits) in parts.iter().enumerate() {
                let stats = all.view_rows(4 * rank..4 * rank + 4);
                let dlogits = blank(device, [rows, vocab], DType::F32);
                let spread = VocabularyShare {
                    first: rank * vocab,
                    stats: (round == 0).then_some(&stats),
                    all: (round == 1).then_some(&all),
                };
                device.machine.cross_entropy(&CrossEntropy {
                    logits,
                    labels: &labels,
                    weights: None,
                    loss: &loss,
                    dlogits: (round == 1).then_some(&dlogits),
                    scale: 1.0,
                    softcap: 0.0,
                    z_loss: 1e-3,
                    spread: Some(spread),
                    measures: Some(&measures),
                });
                if round == 1 {
                    results.extend([dlogits, loss.clone(), measures.clone()]);
                }
            }
        }
        results.push(all);
        results
    });
}

#[test]
fn a_label_or_id_that_does_not_exist_gives_nan() {
    let Some([_, device]) = devices() else { return };
    let loss = device.zeros(1, 1, DType::F32, Category::Data);
    let (logits, labels) = (random(&device, [1, 9], DType::F32, 1), device.from_i32(&[9], Category::Data));
    device.machine.cross_entropy(&CrossEntropy::losses(&logits, &labels, &loss));
    assert!(floats(&device, &loss)[0].is_nan());
    let out = blank(&device, [1, 4], DType::Bf16);
    device.machine.embed(&Embed {
        ids: &device.from_i32(&[-1], Category::Data),
        table: &random(&device, [3, 4], DType::F32, 1),
        scale: 1.0,
        out: &out,
        accumulate: false,
        first: None,
    });
    assert!(floats(&device, &out).iter().all(|x| x.is_nan()));
}

#[test]
fn a_transposed_tensor_has_columns_for_rows() {
    let Some([_, device]) = devices() else { return };
    let (x, out) = (random(&device, [45, 70], DType::Bf16, 1), blank(&device, [70, 45], DType::F32));
    super::emulator::run(&fathom_cuda::kernels::transpose(&x, &out));
    let (x, out) = (floats(&device, &x), floats(&device, &out));
    assert!((0..45 * 70).all(|at| x[at] == out[at % 70 * 45 + at / 70]));
}
