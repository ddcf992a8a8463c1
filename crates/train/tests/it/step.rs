//! Steps on the CPU: the loss falls, and the plan is exact.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_grad::{AdamWSettings, Moments, Places};
use fathom_model::{Caps, Init, LlamaSizes, Model, Spec, initialise};
use fathom_tensor::{DType, Device};
use fathom_train::parallel::Sharding;
use fathom_train::{InStep, MicroBatch, Trainer, plan};

pub fn spec() -> Spec {
    Spec::llama(LlamaSizes {
        layers: 3,
        head_dim: 32,
        ffn: 128,
        vocab: 256,
        max_positions: 1024,
        ..LlamaSizes::TINY
    })
}

pub fn micro(tokens: usize) -> MicroBatch {
    let ids: Vec<i32> = (0..tokens).map(|t| ((t * t + 7 * t) % 251) as i32).collect();
    let labels = ids[1..].iter().copied().chain([-100]).collect();
    MicroBatch { ids, labels, positions: (0..tokens as i32).collect(), ..MicroBatch::shape(tokens, tokens) }
}

pub fn how(places: Places, tokens: usize) -> InStep {
    let adamw = AdamWSettings { lr: 3e-3, ..AdamWSettings::default() };
    InStep { adamw, ..InStep::plain(places, Caps { docs: 4, seq_tokens: tokens }) }
}

pub fn trainer(threads: usize, dtype: DType) -> Trainer {
    trainer_with(threads, dtype, Moments::default())
}

pub fn trainer_with(threads: usize, dtype: DType, moments: Moments) -> Trainer {
    trainer_on(Cpu::new(threads, None), dtype, moments)
}

fn trainer_on(cpu: Cpu, dtype: DType, moments: Moments) -> Trainer {
    let device = Device::new(Arc::new(cpu), 4 << 30);
    let (model, mut params) = Model::declare(&device, &spec(), dtype);
    initialise(&device, &model, &mut params, Init::new(1));
    Trainer::sharded(&device, model, params, Sharding::default(), moments)
}

/// Runs on all instruction sets of this processor. On the best one the loss falls; the first losses of the others agree
/// up to rounding.
#[test]
fn the_loss_falls_and_the_plan_is_exact() {
    for dtype in [DType::F32, DType::Bf16] {
        let best = as_planned(Isa::detect(), dtype, 12);
        assert!(best[11] < best[0] - 1.0, "{dtype:?}: {best:?}");
        for isa in Isa::ALL.into_iter().filter(|isa| *isa < Isa::detect()) {
            let losses = as_planned(isa, dtype, 3);
            let bound = if dtype == DType::F32 { 1e-4 } else { 1e-2 };
            let near = |(one, other): (&f32, &f32)| (one / other - 1.0).abs() <= bound;
            assert!(losses.iter().zip(&best).all(near), "{isa:?}, {dtype:?}: {losses:?} {best:?}");
        }
    }
}

/// Losses of some steps, the same to the bit for all places and numbers of threads, in the planned memory.
fn as_planned(isa: Isa, dtype: DType, steps: usize) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for (places, threads) in [
        (Places::none(), 1),
        (Places::full(), 2),
        (Places::linear().with_tiles(Some(128)), 3),
        (Places::none().with_tiles(Some(256)), 2),
    ] {
        let how = how(places, 512);
        let mut trainer = trainer_on(Cpu::new(threads, Some(isa)), dtype, Moments::default());
        let data = [micro(512), micro(512)];
        let step = |_| {
            let result = trainer.step(&data, &how).unwrap();
            result.loss.wait_f32() / result.count.wait_f32()
        };
        let losses: Vec<f32> = (0..steps).map(step).collect();
        let bits = |losses: &[f32]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<u32>>();
        let wanted = bits(first.get_or_insert_with(|| losses.clone()));
        assert_eq!(bits(&losses), wanted, "{isa:?}, {dtype:?}: placement or threads changed bits");
        let planned = plan(trainer.device.machine.profile(), &spec(), dtype, &how, 2, 512).unwrap();
        let measured = trainer.device.pool.usage();
        assert_eq!(planned.usage.peak_live, measured.peak_live, "{isa:?}, {dtype:?}");
        assert_eq!(planned.usage.peak_reserved, measured.peak_reserved, "{isa:?}, {dtype:?}");
    }
    first.unwrap_or_default()
}
