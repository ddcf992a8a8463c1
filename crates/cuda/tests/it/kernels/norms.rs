//! Norms and their gradients.

use fathom_tensor::{DType, Device, Norm, NormBackward, NormKind, Tensor};

use super::{FLOATS, blank, devices, floats, random, same};

const PLAIN: NormKind = NormKind { centred: false, plus_one: false, round_first: false, eps: 1e-5 };

fn call(
    device: &Device,
    kind: NormKind,
    [rows, groups, width]: [usize; 3],
    [of_x, of_w]: [DType; 2],
) -> Vec<Tensor> {
    let (m, cols) = (&device.machine, groups * width);
    let (x, weight) = (random(device, [rows, cols], of_x, 1), random(device, [1, width], of_w, 2));
    let bias = random(device, [1, width], of_w, 3);
    let stats = blank(device, [rows, groups * if kind.centred { 2 } else { 1 }], DType::F32);
    let out = blank(device, [rows, cols], of_x);
    m.norm(&Norm {
        kind,
        x: &x,
        weight: &weight,
        bias: kind.centred.then_some(&bias),
        out: &out,
        stats: &stats,
    });
    let dy = random(device, [rows, cols], of_x, 4);
    let op = NormBackward { kind, x: &x, weight: &weight, stats: &stats, dy: &dy };
    let (dx, more) = (blank(device, [rows, cols], of_x), random(device, [rows, cols], of_x, 5));
    m.norm_backward_input(&op, &dx, false);
    m.norm_backward_input(&op, &more, true);
    let (dweight, dbias) =
        (random(device, [1, width], DType::F32, 6), random(device, [1, width], DType::F32, 7));
    m.norm_backward_weight(&op, &dweight, kind.centred.then_some(&dbias));
    vec![out, stats.clone(), dx, more, dweight, dbias]
}

#[test]
fn norms_with_their_gradients() {
    for kind in [
        PLAIN,
        NormKind { plus_one: true, ..PLAIN },
        NormKind { round_first: true, ..PLAIN },
        NormKind { centred: true, ..PLAIN },
    ] {
        for shape in [[3, 1, 37], [5, 3, 16], [2, 1, 2056], [260, 1, 40]] {
            for dtype in FLOATS {
                same("norm", |device| call(device, kind, shape, [dtype; 2]));
            }
            same("norm", |device| call(device, kind, shape, [DType::Bf16, DType::F32]));
        }
    }
}

#[test]
fn cutting_the_rows_changes_no_bit() {
    let Some([_, device]) = devices() else { return };
    let (rows, width) = (300, 24);
    let (x, weight) =
        (random(&device, [rows, width], DType::F32, 1), random(&device, [1, width], DType::F32, 2));
    let (stats, out) = (blank(&device, [rows, 1], DType::F32), blank(&device, [rows, width], DType::F32));
    device.machine.norm(&Norm { kind: PLAIN, x: &x, weight: &weight, bias: None, out: &out, stats: &stats });
    let dy = random(&device, [rows, width], DType::F32, 3);
    let sum = |cuts: &[usize]| {
        let (dweight, dbias) =
            (random(&device, [1, width], DType::F32, 4), random(&device, [1, width], DType::F32, 5));
        for pair in cuts.windows(2) {
            let of = |tensor: &Tensor| tensor.view_rows(pair[0]..pair[1]);
            let (x, stats, dy) = (of(&x), of(&stats), of(&dy));
            let op = NormBackward { kind: PLAIN, x: &x, weight: &weight, stats: &stats, dy: &dy };
            device.machine.norm_backward_weight(&op, &dweight, None);
            device.machine.bias_backward(&dy, &dbias);
        }
        [floats(&device, &dweight), floats(&device, &dbias)]
    };
    assert_eq!(sum(&[0, 300]), sum(&[0, 128, 256, 300]));
}
