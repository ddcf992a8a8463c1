//! Matrix products without a library.

use fathom_tensor::{Category, DType, Device, MatMul, Tensor};

use super::{FLOATS, blank, close, devices, floats, random, same};

fn product(
    device: &Device,
    [m, n, k]: [usize; 3],
    [a_trans, b_trans]: [bool; 2],
    [of, to]: [DType; 2],
    accumulate: bool,
) -> Tensor {
    let turn = |shape: [usize; 2], trans: bool| if trans { [shape[1], shape[0]] } else { shape };
    let a = random(device, turn([m, k], a_trans), of, 1);
    let b = random(device, turn([k, n], b_trans), of, 2);
    let c = if accumulate { random(device, [m, n], to, 3) } else { blank(device, [m, n], to) };
    let op = MatMul { a: &a, a_trans, b: &b, b_trans, c: &c, accumulate };
    let bytes = device.machine.profile().workspace(&op.desc()) as usize;
    device.machine.matmul(&op, &device.empty(1, bytes.max(1), DType::U8, Category::Workspace));
    c
}

#[test]
fn products() {
    for dtype in FLOATS {
        for trans in [[false, false], [false, true], [true, false], [true, true]] {
            for (shape, accumulate) in [([70, 136, 72], false), ([130, 20, 37], true), ([1, 9, 33], false)] {
                same("product", |device| {
                    vec![
                        product(device, shape, trans, [dtype; 2], false),
                        product(device, shape, trans, [dtype, DType::F32], accumulate),
                    ]
                });
            }
        }
    }
}

/// The CPU has no f16: compared with the product of the same numbers in f32.
#[test]
fn products_of_halves() {
    let Some([_, device]) = devices() else { return };
    for trans in [[false, true], [true, false]] {
        let turn = |shape: [usize; 2], trans: bool| if trans { [shape[1], shape[0]] } else { shape };
        let (a, b) = (
            random(&device, turn([40, 50], trans[0]), DType::F16, 1),
            random(&device, turn([50, 30], trans[1]), DType::F16, 2),
        );
        let wide = |x: &Tensor| {
            let to = blank(&device, x.shape(), DType::F32);
            device.machine.copy(x, &to);
            to
        };
        let (wide_a, wide_b) = (wide(&a), wide(&b));
        let results = [(&a, &b), (&wide_a, &wide_b)].map(|(a, b)| {
            let c = blank(&device, [40, 30], DType::F32);
            let op = MatMul { a, a_trans: trans[0], b, b_trans: trans[1], c: &c, accumulate: false };
            device.machine.matmul(&op, &a.clone());
            floats(&device, &c)
        });
        close("halves", &results[0], &results[1], 1e-5);
    }
}

#[test]
fn cutting_the_sum_changes_no_bit() {
    let Some([_, device]) = devices() else { return };
    for dtype in FLOATS {
        let (a, b) = (random(&device, [300, 30], dtype, 1), random(&device, [300, 40], dtype, 2));
        let sum = |cuts: &[usize]| {
            let c = random(&device, [30, 40], DType::F32, 3);
            for pair in cuts.windows(2) {
                let (a, b) = (a.view_rows(pair[0]..pair[1]), b.view_rows(pair[0]..pair[1]));
                device.machine.matmul(
                    &MatMul { a: &a, a_trans: true, b: &b, b_trans: false, c: &c, accumulate: true },
                    &a,
                );
            }
            floats(&device, &c)
        };
        assert_eq!(sum(&[0, 300]), sum(&[0, 128, 256, 300]), "{dtype:?}");
    }
}
