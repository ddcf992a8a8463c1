//! Experts in training: losses and limits in every tiling, their plan, and their cost.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Grads, Labels, LossTerm, Places, RouterCosts, Scope, Tape};
use fathom_model::{
    Caps, Drops, ExpertCapacity, Init, MODULES, Model, Moe, PackedTokens, Spec, initialise, open,
};
use fathom_tensor::{Category, DType, Device, Machine, Meta, PoolUsage};

use crate::golden_files::root;

const TOKENS: usize = 300;

/// Results of one forward and backward pass.
struct Pass {
    losses: Vec<f32>,
    grads: Vec<Vec<f32>>,
    usage: PoolUsage,
    model_flops: u128,
}

fn spec(case: &str, change: impl Fn(&mut Moe)) -> Spec {
    let mut spec = open(&root().join(case)).unwrap().spec;
    spec.moe.iter_mut().for_each(change);
    spec
}

fn pass(machine: Arc<dyn Machine>, spec: &Spec, dtype: DType, places: &Places) -> Pass {
    let device = &Device::new(machine, 1 << 30);
    let (model, mut params) = Model::declare(device, spec, dtype);
    initialise(device, &model, &mut params, Init { deviation: 0.2, seed: 5 });
    let docs = [0..170, 170..171, 171..TOKENS];
    let positions: Vec<i32> = docs.iter().flat_map(|doc| 0..doc.len() as i32).collect();
    let ids: Vec<i32> = (0..TOKENS as i32).map(|t| (t * 37 + t * t % 11) % 96).collect();
    let labels: Vec<i32> = ids.iter().map(|id| (id * 5 + 1) % 96).collect();
    let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
    let batch = model.batch(device, packed, Caps { docs: 4, seq_tokens: 170 });
    let labels = Labels::plain(device.from_i32(&labels, Category::Data));
    let (counters, mut grads) = (Counters::default(), Grads::zeros(device, &params));
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let mut tape = Tape::new(scope, places);
    let losses = device.zeros(1, TOKENS, DType::F32, Category::Activations);
    let x = model.forward(&mut tape);
    let dx = model.head(0.0).loss(tape.scope(), &x, &labels, &[LossTerm::cross_entropy(&losses)], &mut grads);
    drop(x);
    tape.backward(dx, &mut grads);
    Pass {
        losses: device.to_f32(&losses),
        grads: grads.iter().map(|(_, grad)| device.to_f32(grad)).collect(),
        usage: device.pool.usage(),
        model_flops: counters.get().model_flops,
    }
}

fn cpu(threads: usize) -> Arc<dyn Machine> {
    Arc::new(Cpu::new(threads, None))
}

/// Sets losses of routers, and a limit that drops slots.
fn with_losses(moe: &mut Moe) {
    moe.costs = RouterCosts { aux: 0.05, z: 0.01 };
    let drops = if moe.transposed { Drops::Last } else { Drops::Lightest };
    moe.capacity = Some(ExpertCapacity { factor: 0.7, drops });
}

#[test]
fn losses_and_limits_change_no_bit_with_tiles_and_places() {
    for case in ["mixtral", "qwen2_moe", "gpt_oss", "deepseek_v3"] {
        let plain = spec(case, |_| {});
        let spec = spec(case, with_losses);
        for dtype in [DType::F32, DType::Bf16] {
            let whole = pass(cpu(1), &spec, dtype, &Places::none());
            let without = pass(cpu(1), &plain, dtype, &Places::none());
            assert!(whole.grads.iter().flatten().all(|x| x.is_finite()), "{case}");
            assert_ne!(whole.grads, without.grads, "{case}: the router's losses do nothing");
            let selective = Places::selective(&["moe_act".into(), "layernorm".into()], MODULES).unwrap();
            for places in [Places::none(), Places::full(), Places::linear(), selective] {
                let other = pass(cpu(2), &spec, dtype, &places.with_tiles(Some(128)));
                assert!(whole.losses == other.losses && whole.grads == other.grads, "{case} {dtype:?}");
            }
        }
    }
}

#[test]
fn the_plan_knows_the_memory_of_experts() {
    for case in ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v2"] {
        let spec = spec(case, with_losses);
        for places in [Places::none(), Places::full().with_tiles(Some(128))] {
            let machine = cpu(2);
            let plan = Arc::new(Meta::new(machine.profile().clone()));
            let [ran, planned] =
                [machine, plan as Arc<dyn Machine>].map(|on| pass(on, &spec, DType::Bf16, &places));
            assert_eq!(ran.usage, planned.usage, "{case}");
            assert_eq!(ran.model_flops, planned.model_flops, "{case}");
        }
    }
}

#[test]
fn only_experts_that_work_are_counted() {
    let of = |experts: usize| {
        let spec = spec("mixtral", |moe| moe.experts = experts);
        pass(cpu(1), &spec, DType::F32, &Places::none()).model_flops
    };
    // Twice the experts cost their rows of the routers, in three products.
    let routers = 3 * 2 * TOKENS as u128 * 4 * 32 * 2;
    assert_eq!(of(8) - of(4), routers);
}
