//! Narrow storage with scales.

use fathom_cuda::kernels::{self, Micro, SCRATCH_BYTES, Scratch};
use fathom_tensor::{Category, DType, Device, Tensor};

use super::{blank, devices, emulator::run, floats, random};

/// Random numbers whose size differs from block to block.
fn uneven(device: &Device, [rows, cols]: [usize; 2]) -> Tensor {
    let x = blank(device, [rows, cols], DType::F32);
    let values: Vec<f32> = super::numbers(rows * cols, 3)
        .iter()
        .enumerate()
        .map(|(at, x)| x * 2f32.powi((at / 32 * 37 % 30) as i32 - 15))
        .collect();
    super::set(device, &x, &values);
    x
}

/// The largest error of a block against its largest element.
fn worst(got: &[f32], expected: &[f32], cols: usize, block: usize) -> f32 {
    let rows = got.chunks(cols).zip(expected.chunks(cols));
    let blocks = rows.flat_map(|(got, expected)| got.chunks(block).zip(expected.chunks(block)));
    let error = |(got, expected): (&[f32], &[f32])| {
        let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        got.iter().zip(expected).fold(0.0f32, |worst, (x, y)| worst.max((x - y).abs())) / most
    };
    blocks.map(error).fold(0.0, f32::max)
}

#[test]
fn blocks_keep_their_precision() {
    let Some([_, device]) = devices() else { return };
    let (rows, cols) = (140, 200);
    let x = uneven(&device, [rows, cols]);
    let expected = floats(&device, &x);
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let (narrow, back) =
            (device.empty(rows, cols, dtype, Category::Data), blank(&device, [rows, cols], DType::F32));
        let most = if dtype == DType::F8E4M3 { 1.0 / 16.0 } else { 1.0 / 8.0 };
        let scales = blank(&device, [rows, 2], DType::F32);
        run(&kernels::quantise_rows(&x, &narrow, &scales));
        run(&kernels::dequantise(&narrow, &scales, [1, 128], &back));
        assert!(worst(&floats(&device, &back), &expected, cols, 128) <= most, "{dtype:?}");
        let scales = blank(&device, [2, 2], DType::F32);
        run(&kernels::quantise_tiles(&x, &narrow, &scales));
        run(&kernels::dequantise(&narrow, &scales, [128, 128], &back));
        let largest = floats(&device, &x.view_rows(0..128).view_cols(0..128))
            .iter()
            .fold(0.0f32, |m, x| m.max(x.abs()));
        let scale = floats(&device, &scales)[0];
        assert!((scale * if dtype == DType::F8E4M3 { 448.0 } else { 57_344.0 } / largest - 1.0).abs() < 1e-6);
        let (got, of) = (floats(&device, &back), expected.iter().fold(0.0f32, |m, x| m.max(x.abs())));
        assert!(got.iter().zip(&expected).all(|(x, y)| (x - y).abs() <= most * of));
    }
}

#[test]
fn tensors_have_one_scale() {
    let Some([_, device]) = devices() else { return };
    let x = random(&device, [50, 70], DType::Bf16, 1);
    let (scale, narrow) =
        (device.zeros(1, 1, DType::F32, Category::Data), blank(&device, [50, 70], DType::F8E4M3));
    let memory = device.empty(1, SCRATCH_BYTES as usize, DType::U8, Category::Workspace);
    kernels::scale_of(&x, DType::F8E4M3, &scale, Scratch(memory.address())).iter().for_each(run);
    run(&kernels::quantise(&x, &scale, &narrow));
    let (values, scale) = (floats(&device, &x), floats(&device, &scale)[0]);
    let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert_eq!(scale, largest / 448.0);
    for (got, x) in floats(&device, &narrow).iter().zip(&values) {
        assert!((got * scale - x).abs() <= x.abs() / 16.0 + scale / 512.0, "{x}: {got}");
    }
}

#[test]
fn micro_scaling_rounds_to_the_format() {
    let Some([_, device]) = devices() else { return };
    let (rows, cols) = (5, 72);
    let x = uneven(&device, [rows, cols]);
    let expected = floats(&device, &x);
    // Half a step next to the largest number of a block, and what is cut off above it.
    for (format, most) in [
        (Micro::E5M2, 0.125),
        (Micro::E4M3, 0.125),
        (Micro::E3M2, 0.125),
        (Micro::E2M3, 0.0625),
        (Micro::E2M1, 0.25),
    ] {
        let out = blank(&device, [rows, cols], DType::F32);
        run(&kernels::micro_round(&x, format, &out));
        let error = worst(&floats(&device, &out), &expected, cols, 32);
        assert!(error > most / 8.0 && error <= most, "{format:?}: {error}");
    }
    for (format, dtype) in [(Micro::E4M3, DType::F8E4M3), (Micro::E5M2, DType::F8E5M2)] {
        let (narrow, out) = (blank(&device, [rows, cols], dtype), blank(&device, [rows, cols], DType::F32));
        let scales = device.empty(rows, 3, DType::U8, Category::Data);
        run(&kernels::micro_scale(&x, &narrow, &scales));
        run(&kernels::micro_round(&x, format, &out));
        let scales = device.machine.read(&scales).wait();
        let values = floats(&device, &narrow);
        for (at, got) in floats(&device, &out).iter().enumerate() {
            let scale = 2f32.powi(i32::from(scales[at / cols * 3 + at % cols / 32]) - 127);
            assert_eq!(*got, values[at] * scale, "{dtype:?} at {at}");
        }
    }
}
