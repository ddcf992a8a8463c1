//! Spilling of the CPU's tensors: values are read back unchanged, and `meta` with the CPU's profile charges the same.

use std::sync::Arc;

use fathom_tensor::spill::{Codec, Options, Spill, Stats, Tag};
use fathom_tensor::{Category, DType, Device, Machine, Meta, PoolUsage};

use super::cpu::Cpu;
use super::profile;
use crate::isa::Isa;

fn step(machine: Arc<dyn Machine>, options: &Options) -> (PoolUsage, Stats, Vec<f32>) {
    let device = Device::new(machine, 1 << 30);
    let spill = Spill::open(&device, options).unwrap();
    let values: Vec<f32> = (0..1000 * 130).map(|i| (i as f32 * 0.1).sin()).collect();
    let x = device.from_f32(1000, 130, &values, Category::Activations);
    // Columns of heads in bf16, as produced by attention, and the f32 values themselves.
    let heads = device.empty(1000, 260, DType::Bf16, Category::Activations);
    device.machine.copy(&x, &heads.view_cols(130..260));
    let tag = |name| Tag { name, layer: 0 };
    let writes = [
        spill.write(x, Codec::AsIs, tag("x")).unwrap(),
        spill.write(heads.view_cols(130..260), Codec::AsIs, tag("heads")).unwrap(),
    ];
    drop(heads);
    let stored = writes.map(|writing| writing.retire().unwrap());
    let mut back = Vec::new();
    for value in &stored {
        let into = device.empty(1000, 130, value.dtype(), Category::Activations);
        back.extend(device.to_f32(&spill.read(value, into).unwrap().retire().unwrap()));
    }
    assert!(back.is_empty() || back[..values.len()] == values[..]);
    drop(stored);
    let stats = Stats { stall_s: 0.0, ..spill.stats() };
    (device.pool.usage(), stats, back)
}

#[test]
fn spilled_tensors_come_back_and_the_plan_knows() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(folder.path(), 4 << 20);
    let (usage, stats, back) = step(Arc::new(Cpu::new(1, None)), &options);
    let (planned, plan, nothing) = step(Arc::new(Meta::new(profile(1, Isa::Portable))), &options);
    assert_eq!((usage, stats), (planned, plan));
    assert!(back.len() == 2 * 130_000 && nothing.is_empty());
    let (exact, rounded) = back.split_at(130_000);
    assert!(exact.iter().zip(rounded).all(|(x, y)| (x - y).abs() <= x.abs() / 256.0));
}
