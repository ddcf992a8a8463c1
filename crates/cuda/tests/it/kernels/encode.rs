//! Codes and scales for matrix units: the same numbers as in emulation, laid out as in cuBLAS' manual.

use fathom_cuda::kernels::{self, Fp8Operand, SCRATCH_BYTES, Scratch};
use fathom_tensor::{
    AmaxHistory, Blocks, Category, DType, Device, Element, MatMul, Narrow, NarrowMatMul, NarrowOperand,
    ScaleRule, Tensor,
};

use super::{blank, devices, emulator::run, floats, numbers, set};

/// Not multiples of any block size, so that lines are padded and blocks are cut off.
const ROWS: usize = 141;
const COLS: usize = 203;

/// Numbers whose magnitude differs from block to block, some of them non-finite.
fn uneven(device: &Device, shape: [usize; 2], dtype: DType) -> Tensor {
    let x = blank(device, shape, dtype);
    let size = |at: usize| 2f32.powi(((at / shape[1] * 7 + at % shape[1] / 32 * 5) % 40) as i32 - 20);
    let mut values: Vec<f32> =
        numbers(shape[0] * shape[1], 5).iter().enumerate().map(|(at, x)| x * size(at)).collect();
    (values[7], values[300], values[301]) = (f32::INFINITY, f32::NAN, -0.0);
    set(device, &x, &values);
    x
}

/// The scale of a block of a line.
fn scale(bytes: &[u8], blocks: Blocks, [lines, count]: [usize; 2], line: usize, block: usize) -> f32 {
    let wide = |at: usize| f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap());
    match blocks {
        Blocks::Tensor => wide(0),
        Blocks::Line(128) => wide(block * lines + line),
        Blocks::Tile(_) => wide(line / 128 * count.next_multiple_of(4) + block),
        Blocks::Line(_) => {
            let tile = line / 128 * count.div_ceil(4) + block / 4;
            let exponent = bytes[512 * tile + line % 32 * 16 + line % 128 / 32 * 4 + block % 4];
            2f32.powi(i32::from(exponent) - 127)
        }
    }
}

/// Decodes an operand, line by line.
#[track_caller]
fn decoded(device: &Device, coded: &Fp8Operand, how: Narrow, [lines, summed]: [usize; 2]) -> Vec<f32> {
    let filled = summed.next_multiple_of(16);
    assert_eq!(coded.codes.shape(), [lines, filled]);
    let (codes, scales) = (floats(device, &coded.codes), device.machine.read(&coded.scales).wait());
    let along = match how.blocks {
        Blocks::Tensor => summed,
        Blocks::Line(n) | Blocks::Tile(n) => n,
    };
    let count = summed.div_ceil(along);
    if how.blocks == Blocks::Line(32) {
        assert_eq!(scales.iter().filter(|byte| **byte != 0).count(), lines * count);
    }
    let of_line = |line: usize| {
        let codes = &codes[line * filled..(line + 1) * filled];
        assert!(codes[summed..].iter().all(|x| x.to_bits() == 0));
        let scales = &scales;
        (0..summed).map(move |at| codes[at] * scale(scales, how.blocks, [lines, count], line, at / along))
    };
    (0..lines).flat_map(of_line).collect()
}

/// The operand's values by emulation.
fn expected(
    device: &Device,
    x: &Tensor,
    how: Narrow,
    along_columns: bool,
    largest: Option<&Tensor>,
) -> Vec<f32> {
    let [rows, cols] = x.shape();
    let out = blank(device, [rows, cols], x.dtype());
    run(&kernels::narrow(x, how, along_columns, largest, &out));
    let values = floats(device, &out);
    if along_columns {
        values
    } else {
        (0..cols).flat_map(|col| values[col..].iter().step_by(cols).copied()).collect()
    }
}

#[track_caller]
fn check(device: &Device, how: Narrow, trans: [bool; 2], dtype: DType, late: bool) {
    let name = format!("{how:?}, turned {trans:?}, {dtype:?}, late {late}");
    // op(A) is [141, 203], op(B) [203, 141]: both have lines of 203.
    let turn = |shape: [usize; 2], trans: bool| if trans { [shape[1], shape[0]] } else { shape };
    let a = uneven(device, turn([ROWS, COLS], trans[0]), dtype);
    let b = uneven(device, turn([COLS, ROWS], trans[1]), dtype);
    let c = blank(device, [ROWS, ROWS], DType::F32);
    let [before, now] = [3.0, 0.5].map(|x| device.from_f32(1, 1, &[x], Category::Data));
    let delayed = late.then_some(AmaxHistory { before: &before, now: Some(&now) });
    let operand = NarrowOperand { how, delayed };
    let product = MatMul { a: &a, a_trans: trans[0], b: &b, b_trans: trans[1], c: &c, accumulate: false };
    let op = NarrowMatMul { product, a: operand, b: operand };
    let bytes = device.machine.profile().workspace(&op.desc()) as usize;
    let ws = device.empty(1, bytes, DType::U8, Category::Workspace);
    let memory = device.empty(1, SCRATCH_BYTES as usize, DType::U8, Category::Workspace);
    let scratch = Scratch(memory.address());
    let (launches, coded, own) = kernels::coded(&op, &ws, scratch);
    assert_eq!(own.bytes(), fathom_tensor::gpu::MATMUL_SCRATCH);
    launches.iter().for_each(run);
    let mut most = 0.5;
    for ((x, along), coded) in [(&a, !trans[0]), (&b, trans[1])].into_iter().zip(&coded) {
        let own = device.zeros(1, 1, DType::F32, Category::Data);
        kernels::largest(x, &own, scratch).iter().for_each(run);
        most = f32::max(most, floats(device, &own)[0]);
        let largest = if late { &before } else { &own };
        let largest = (how.blocks == Blocks::Tensor).then_some(largest);
        let expected = expected(device, x, how, along, largest);
        let got = decoded(device, coded, how, [ROWS, COLS]);
        for (at, (got, of)) in got.iter().zip(&expected).enumerate() {
            let same = got.to_bits() == of.to_bits() || (got.is_nan() && !of.is_finite());
            assert!(same, "{name}: line {} at {}: {got}, not {of}", at / COLS, at % COLS);
        }
    }
    assert_eq!(floats(device, &now)[0], if late { most } else { 0.5 }, "{name}");
}

#[test]
fn codes_and_scales_are_what_emulation_multiplies() {
    let Some([_, device]) = devices() else { return };
    for element in [Element::E4M3, Element::E5M2] {
        for (blocks, rule, late) in [
            (Blocks::Tensor, ScaleRule::Covers, false),
            (Blocks::Tensor, ScaleRule::Covers, true),
            (Blocks::Line(128), ScaleRule::Covers, false),
            (Blocks::Tile(128), ScaleRule::Covers, false),
            (Blocks::Line(32), ScaleRule::Floor, false),
        ] {
            let how = Narrow { element, blocks, rule };
            for (trans, dtype) in [([false, true], DType::Bf16), ([true, false], DType::F32)] {
                check(&device, how, trans, dtype, late);
            }
        }
    }
}
