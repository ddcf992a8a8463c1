//! Encoded offload applies to values of the model's type, but neither to statistics nor to indices.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{
    Batch, Counters, ExpertsUse, Grads, Offload, Param, ParamId, Params, Place, Places, Scope, Segments, Tape,
};
use fathom_tensor::spill::{Codec, Options, Spill};
use fathom_tensor::{Category, DType, Device, Machine, Meta, PoolUsage, RouterScores, Routing, Tensor};

const TOKENS: usize = 140;
const HIDDEN: usize = 32;
const EXPERTS: usize = 4;

fn filled(device: &Device, [rows, cols]: [usize; 2], dtype: DType, seed: f32) -> Tensor {
    let values: Vec<f32> = (0..rows * cols).map(|at| (at as f32 * 0.37 + seed).sin() * 0.4).collect();
    let tensor = device.empty(rows, cols, dtype, Category::Params);
    device.machine.copy(&device.from_f32(rows, cols, &values, Category::Data), &tensor);
    tensor
}

/// The gradient of the input of a layer of experts between two linear ones, with everything offloaded to the host.
fn run(machine: Arc<dyn Machine>, dtype: DType, codec: Codec) -> (Vec<f32>, u64, PoolUsage) {
    let device = &Device::new(machine, 1 << 28);
    let mut params = Params::default();
    let mut weight = |shape: [usize; 2], seed: f32| -> ParamId {
        let value = filled(device, shape, dtype, seed).into();
        params.push(Param { name: format!("weight {seed}"), value, decays: true, trainable: true })
    };
    let [before, after] = [1.0, 2.0].map(|seed| weight([HIDDEN, HIDDEN], seed));
    let (router, experts) = (weight([EXPERTS, HIDDEN], 3.0), weight([EXPERTS * HIDDEN, HIDDEN], 4.0));
    let mut grads = Grads::zeros(device, &params);
    let ids = device.from_i32(&[0; TOKENS], Category::Data);
    let batch = Batch::new(ids.clone(), ids);
    let places = Places::none().offload_all(Place::Host).with_codec(codec);
    let host = Spill::open(device, &Options::in_memory(16 << 20)).unwrap_or_else(|error| panic!("{error}"));
    let (offload, counters) = (Offload { host: Some(host), disk: None }, Counters::default());
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let mut tape = Tape::new(scope, &places).with_offload(Some(&offload)).with_input_gradient();
    let mut x = filled(device, [TOKENS, HIDDEN], dtype, 5.0);
    for layer in 0..2 {
        x = tape.segment(layer, Some(x), &|cx, x| {
            let h = cx.linear("moe.in", x, before, None);
            let logits = cx.linear_wide("moe.logits", h, router, None);
            let (top_k, scores) = (2, RouterScores::Softmax);
            let routing = Routing { top_k, scores, groups: None, normalise: true, scale: 1.0 };
            let [weights, index] = cx.route(["moe.weights", "moe.index"], logits, routing, None);
            let how = ExpertsUse { experts: EXPERTS, trans: true };
            let each = cx.experts("moe.each", [h, index], how, experts, None);
            let sum = cx.combine("moe.out", each, weights);
            cx.linear("moe.after", sum, after, None)
        });
    }
    drop(x);
    let dy = filled(device, [TOKENS, HIDDEN], dtype, 6.0);
    let dx = tape.backward(dy, &mut grads);
    assert!(offload.check().is_ok());
    let written = offload.engines().map(|spill| spill.stats().written_bytes).sum();
    (dx.map(|dx| device.to_f32(&dx)).unwrap_or_default(), written, device.pool.usage())
}

#[test]
fn values_are_coded_whatever_their_type_and_indices_are_not() {
    for dtype in [DType::F32, DType::Bf16] {
        let cpu = || -> Arc<dyn Machine> { Arc::new(Cpu::new(2, None)) };
        let (exact, whole, _) = run(cpu(), dtype, Codec::AsIs);
        let (coded, part, usage) = run(cpu(), dtype, Codec::Fp8Block);
        assert!(part < whole * 3 / 4, "{dtype:?}: {part} of {whole} bytes are written");
        let largest = exact.iter().fold(0.0f32, |most, x| x.abs().max(most));
        let apart = exact.iter().zip(&coded).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(apart > 0.0 && apart < 0.2 * largest, "{dtype:?}: {apart} of {largest}");
        let plan = run(Arc::new(Meta::new(cpu().profile().clone())), dtype, Codec::Fp8Block);
        assert_eq!((part, usage), (plan.1, plan.2), "{dtype:?}");
    }
}
