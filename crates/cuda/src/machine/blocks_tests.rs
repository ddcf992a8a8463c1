//! Blocks as graphs, and timestamps of the device, on the simulated device.

use std::sync::Arc;

use fathom_tensor::{Category, DType, Device, FourBits, RoundWeights, Tensor, gpu};

use super::build::MachineLibraries;
use super::{Cuda, Graphs};
use crate::driver::fake::Fake;
use crate::programs::tests::Writer;

fn machine(fake: &Arc<Fake>, graphs: bool) -> (Arc<Cuda>, Device) {
    let compiler = Box::new(Writer(Arc::default(), "1"));
    let sheet = gpu::named("h200").unwrap();
    let cuda =
        Cuda::with(fake.clone(), sheet, compiler, MachineLibraries::default()).unwrap().with_graphs(graphs);
    let cuda = Arc::new(cuda);
    (cuda.clone(), Device::new(cuda, 16 << 20))
}

/// `x = 2 x + 1` in five operations.
fn block(device: &Device, x: &Tensor, ones: &Tensor, middle: &dyn Fn()) {
    let machine = &device.machine;
    machine.enter_block();
    let y = device.empty(3, 4, DType::F32, Category::Activations);
    machine.zero(&y);
    machine.add(&y, x, &y);
    middle();
    machine.add(&y, &y, &y);
    machine.add(&y, ones, &y);
    machine.copy(&y, x);
    machine.leave_block();
}

/// Runs the block several times; returns the result and the counts.
fn run(graphs: bool, times: usize, middle: &dyn Fn(&Device, &Tensor)) -> (Vec<f32>, Graphs) {
    let fake = Arc::new(Fake::new(64 << 20));
    let found = {
        let (cuda, device) = machine(&fake, graphs);
        let ones = device.from_f32(3, 4, &[1.0; 12], Category::Data);
        let x = device.zeros(3, 4, DType::F32, Category::Data);
        for _ in 0..times {
            block(&device, &x, &ones, &|| middle(&device, &ones));
        }
        (device.to_f32(&x), cuda.graphs())
    };
    assert!(fake.is_clean() && fake.used() == 0);
    found
}

#[test]
fn what_comes_again_is_captured_and_then_replayed() {
    let (found, counts) = run(true, 5, &|_, _| {});
    assert_eq!(found, [31.0; 12]);
    assert_eq!((counts.single, counts.captured, counts.replayed), (5, 1, [3, 15]));
    assert!(counts.cuts.is_empty() && counts.refused.0 == 0);
    let (found, counts) = run(false, 5, &|_, _| {});
    assert_eq!(found, [31.0; 12]);
    assert_eq!(counts, Graphs::default());
}

#[test]
fn whoever_needs_the_stream_cuts_the_block_and_is_named() {
    let reads = |device: &Device, ones: &Tensor| assert_eq!(device.to_f32(ones), [1.0; 12]);
    let (found, counts) = run(true, 4, &reads);
    assert_eq!(found, [15.0; 12]);
    // Two or three operations are not worth a graph.
    assert_eq!((counts.single, counts.captured), (20, 0));
    assert_eq!(counts.cuts.into_iter().collect::<Vec<_>>(), [("the host reads", 4)]);
}

#[test]
fn other_memory_is_another_block() {
    let fake = Arc::new(Fake::new(64 << 20));
    let (cuda, device) = machine(&fake, true);
    let ones = device.from_f32(3, 4, &[1.0; 12], Category::Data);
    let (a, b) =
        (device.zeros(3, 4, DType::F32, Category::Data), device.zeros(3, 4, DType::F32, Category::Data));
    for round in 0..3 {
        for x in [&a, &b] {
            block(&device, x, &ones, &|| {});
        }
        let expected = (2 << round) as f32 - 1.0;
        assert_eq!((device.to_f32(&a), device.to_f32(&b)), (vec![expected; 12], vec![expected; 12]));
    }
    assert_eq!((cuda.graphs().captured, cuda.graphs().replayed), (2, [2, 10]));
}

#[test]
fn moments_are_of_the_stream() {
    let fake = Arc::new(Fake::new(64 << 20));
    let (_, device) = machine(&fake, true);
    let x = device.zeros(3, 4, DType::F32, Category::Data);
    let machine = &device.machine;
    assert_eq!(machine.stamp(), Some(0));
    machine.enter_block();
    machine.add(&x, &x, &x);
    machine.add(&x, &x, &x);
    assert_eq!(machine.stamp(), Some(1));
    machine.add(&x, &x, &x);
    machine.leave_block();
    assert_eq!(machine.stamp(), Some(2));
    let micros: Vec<f64> = machine.stamps().into_iter().map(|seconds| (seconds * 1e6).round()).collect();
    assert_eq!(micros, [0.0, 2.0, 3.0]);
    assert!(machine.stamps().is_empty());
}

/// Rounding weights has no kernel: the host does it.
#[test]
fn weights_are_rounded_as_the_definition_says() {
    let fake = Arc::new(Fake::new(64 << 20));
    let (_, device) = machine(&fake, false);
    let values: Vec<f32> = (0..256).map(|at| (at as f32 * 0.37).sin()).collect();
    let x = device.from_f32(1, 256, &values, Category::Data);
    let most = device.from_f32(1, 1, &[2.0], Category::Data);
    let out = device.zeros(1, 256, DType::F32, Category::Data);
    for format in [FourBits::Mxfp4, FourBits::Nvfp4, FourBits::Int4(64)] {
        let largest = format.has_factor().then_some(&most);
        device.machine.round_weights(&RoundWeights { format, x: &x, largest, out: &out });
        assert_eq!(device.to_f32(&out), format.round(&values, format.factor(2.0)), "{format:?}");
    }
}
