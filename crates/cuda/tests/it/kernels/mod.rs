//! The kernels' source text, run on a CPU by the emulation header with the very launches that a GPU gets, and compared
//! with the CPU machine. Without a C++ compiler the tests print a note and pass.

mod attention;
mod blocks;
mod divergence;
mod elementwise;
mod emulator;
mod encode;
mod experts;
mod geometry;
mod machine;
mod norms;
mod optimizer;
mod products;
mod sample;
mod scans;
mod types;

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::{Category, DType, Device, Tensor};

use machine::EmulatedMachine;

const BUDGET: u64 = 1 << 30;
const FLOATS: [DType; 2] = [DType::F32, DType::Bf16];

/// The CPU machine, and the emulated kernels; `None` without a compiler.
fn devices() -> Option<[Device; 2]> {
    if !emulator::is_possible() {
        return None;
    }
    let cpu = Device::new(Arc::new(Cpu::new(1, None)), BUDGET);
    Some([cpu, Device::new(Arc::new(EmulatedMachine::new()), BUDGET)])
}

/// Numbers in (-2, 2), determined by the seed.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 + 0.5) / (1u64 << 22) as f32 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

/// A random operand with unused columns next to it.
fn random(device: &Device, [rows, cols]: [usize; 2], dtype: DType, seed: u64) -> Tensor {
    let wide = device.empty(rows, cols + 5, dtype, Category::Data);
    let view = wide.view_cols(0..cols);
    set(device, &view, &numbers(rows * cols, seed));
    view
}

fn set(device: &Device, tensor: &Tensor, data: &[f32]) {
    let plain = device.from_f32(tensor.rows(), tensor.cols(), data, Category::Data);
    device.machine.copy(&plain, tensor);
}

/// A result tensor, with unused columns next to it that must stay unchanged; filled with one number.
fn blank(device: &Device, [rows, cols]: [usize; 2], dtype: DType) -> Tensor {
    let wide = device.empty(rows, cols + 3, dtype, Category::Data);
    set(device, &wide, &vec![-7.0; rows * (cols + 3)]);
    wide.view_cols(0..cols)
}

/// The elements, of any float type.
fn floats(device: &Device, tensor: &Tensor) -> Vec<f32> {
    if let DType::F32 | DType::Bf16 = tensor.dtype() {
        return device.to_f32(tensor);
    }
    let plain = device.empty(tensor.rows(), tensor.cols(), DType::F32, Category::Data);
    device.machine.copy(tensor, &plain);
    device.to_f32(&plain)
}

fn ints(device: &Device, tensor: &Tensor) -> Vec<i32> {
    let bytes = device.machine.read(tensor).wait();
    bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
}

/// Checks the largest difference, relative to `max(|expected|, a common floor)`.
#[track_caller]
fn close(name: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{name}");
    let largest = expected.iter().filter(|x| x.is_finite()).fold(0.0f32, |most, x| most.max(x.abs()));
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        let near = (got - expected).abs() <= tolerance * (expected.abs() + 0.1 * largest + 1e-6);
        assert!(same || near, "{name} at {at}: {got} is not {expected}");
    }
}

/// Relative tolerance between two orders of addition, by storage type.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 2e-5,
        DType::F16 => 2e-3,
        _ => 1e-2,
    }
}

/// Checks the norm of the difference relative to that of the expected values; infinite elements must be equal.
#[track_caller]
fn alike(name: &str, got: &[f32], expected: &[f32], most: f32) {
    assert_eq!(got.len(), expected.len(), "{name}");
    let (mut difference, mut size) = (0.0, 0.0);
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            got.is_finite() == expected.is_finite() && !got.is_nan(),
            "{name} at {at}: {got}, not {expected}"
        );
        if expected.is_finite() {
            difference += f64::from(got - expected).powi(2);
            size += f64::from(*expected).powi(2);
        }
    }
    assert!(
        difference.sqrt() <= f64::from(most) * size.sqrt(),
        "{name}: {} of {}",
        difference.sqrt(),
        size.sqrt()
    );
}

/// Runs `call` on both machines and compares what it returns, element by element.
#[track_caller]
fn same(name: &str, call: impl Fn(&Device) -> Vec<Tensor>) {
    compare(call, |got, expected, [results, of]| {
        let name = format!("{name}, {got:?}");
        if got.dtype() == DType::I32 {
            assert_eq!(ints(results, got), ints(of, expected), "{name}");
        } else {
            close(&name, &floats(results, got), &floats(of, expected), tolerance(got.dtype()));
        }
    });
}

/// Like [`same`], for results computed from rounded values: compared as a whole.
#[track_caller]
fn same_within(name: &str, most: f32, call: impl Fn(&Device) -> Vec<Tensor>) {
    compare(call, |got, expected, [results, of]| {
        alike(&format!("{name}, {got:?}"), &floats(results, got), &floats(of, expected), most);
    });
}

/// Calls `check` with each result of the kernels, the CPU's, and their machines.
#[track_caller]
fn compare(call: impl Fn(&Device) -> Vec<Tensor>, check: impl Fn(&Tensor, &Tensor, [&Device; 2])) {
    let Some([cpu, emulated]) = devices() else { return };
    let (expected, got) = (call(&cpu), call(&emulated));
    assert_eq!(got.len(), expected.len());
    got.iter().zip(&expected).for_each(|(got, expected)| check(got, expected, [&emulated, &cpu]));
}
