//! Matrix products without a library.

use fathom_tensor::{
    AmaxHistory, Blocks, Category, DType, Device, Element, MatMul, Narrow, NarrowMatMul, NarrowOperand,
    ScaleRule, Tensor,
};

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
fn products_agree_with_the_cpu() {
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

/// The CPU has no f16: compares with the product of the same numbers in f32.
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

/// Numbers whose magnitude differs from block to block, including infinities.
fn uneven(device: &Device, [rows, cols]: [usize; 2], dtype: DType, seed: u64) -> Tensor {
    let x = blank(device, [rows, cols], dtype);
    let sized =
        |(at, x): (usize, &f32)| x * 2f32.powi(((at / cols * 7 + at % cols / 32 * 5) % 40) as i32 - 20);
    let values: Vec<f32> = super::numbers(rows * cols, seed).iter().enumerate().map(sized).collect();
    super::set(device, &x, &values);
    x
}

/// A narrow operand times the identity, which every format represents exactly: the operand's values, to the bit.
fn seen_narrow(
    device: &Device,
    how: Narrow,
    [first, trans]: [bool; 2],
    [dtype, wide]: [DType; 2],
) -> Vec<Tensor> {
    let (rows, cols) = (132, 136);
    let x = uneven(device, [rows, cols], dtype, 5);
    // A is [m, k] and B [k, n], both stored transposed if `trans`.
    let [outer, inner] = if trans == first { [cols, rows] } else { [rows, cols] };
    let one = blank(device, [inner, inner], dtype);
    let ones = (0..inner * inner).map(|at| if at / inner == at % inner { 1.0 } else { 0.0 });
    super::set(device, &one, &ones.collect::<Vec<f32>>());
    let [before, now] = [3.0, 0.0].map(|x| device.from_f32(1, 1, &[x], Category::Data));
    let late = how.blocks == Blocks::Tensor && wide == DType::F32;
    let delayed = late.then_some(AmaxHistory { before: &before, now: Some(&now) });
    let seen = NarrowOperand { how, delayed };
    let plain = NarrowOperand { how: Narrow { blocks: Blocks::Line(32), ..how }, delayed: None };
    let c = blank(device, if first { [outer, inner] } else { [inner, outer] }, wide);
    let (a_trans, b_trans) = (first && trans, !first && trans);
    let (a, b) = if first { (&x, &one) } else { (&one, &x) };
    let product = MatMul { a, a_trans, b, b_trans, c: &c, accumulate: false };
    let (a, b) = if first { (seen, plain) } else { (plain, seen) };
    let op = NarrowMatMul { product, a, b };
    let bytes = device.machine.profile().workspace(&op.desc()) as usize;
    device.machine.narrow_matmul(&op, &device.empty(1, bytes, DType::U8, Category::Workspace));
    vec![c, now]
}

#[test]
fn narrow_operands_have_the_bits_of_the_processor() {
    let Some([cpu, emulated]) = devices() else { return };
    for element in Element::ALL {
        for (blocks, rule) in [
            (Blocks::Line(32), ScaleRule::Floor),
            (Blocks::Line(128), ScaleRule::Covers),
            (Blocks::Tile(128), ScaleRule::Covers),
            (Blocks::Tensor, ScaleRule::Covers),
        ] {
            let how = Narrow { element, blocks, rule };
            for (place, dtypes) in [
                ([true, false], [DType::Bf16, DType::F32]),
                ([true, true], [DType::F32, DType::F32]),
                ([false, true], [DType::Bf16, DType::Bf16]),
                ([false, false], [DType::F32, DType::F32]),
            ] {
                let [of, got] = [&cpu, &emulated].map(|device| {
                    let found = seen_narrow(device, how, place, dtypes);
                    found.iter().map(|x| floats(device, x)).collect::<Vec<_>>()
                });
                assert_eq!(got, of, "{how:?} {place:?} {dtypes:?}");
            }
        }
    }
}

#[test]
fn largest_elements_by_column_and_of_all() {
    same("largest", |device| {
        let x = uneven(device, [300, 70], DType::Bf16, 2);
        let wide: Vec<f32> = floats(device, &x);
        let mut odd = wide.clone();
        (odd[5], odd[77]) = (f32::NAN, f32::NEG_INFINITY);
        super::set(device, &x, &odd);
        let columns = device.from_f32(1, 70, &[0.01; 70], Category::Data);
        let all = device.from_f32(1, 1, &[0.01], Category::Data);
        device.machine.largest(&x, &columns);
        device.machine.largest(&x, &all);
        vec![columns, all]
    });
}
