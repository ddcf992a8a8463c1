//! A smaller model is slices of a larger one: unread parts can be removed without a change.

use std::path::PathBuf;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{Counters, Eval, ParamId, Params, Scope};
use fathom_model::{Caps, Model, ModelView, PackedTokens, PrunePlan, SubParams, load, open, prunable, prune};
use fathom_tensor::{DType, Device};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn logits(device: &Device, model: &Model, params: &Params) -> Vec<f32> {
    let ids: Vec<i32> = (0..24).map(|at| at * 7 % 61).collect();
    let positions: Vec<i32> = (0..24).collect();
    let docs: Vec<_> = std::iter::once(0..24).collect();
    let packed = PackedTokens { ids: &ids, positions: &positions, docs: &docs };
    let batch = model.batch(device, packed, Caps { docs: 1, seq_tokens: 24 });
    let counters = Counters::default();
    let scope = &Scope { device, params, batch: (&batch).into(), counters: &counters };
    let x = model.forward(&mut Eval::new(scope.clone(), None, None));
    device.to_f32(&model.head(0.0).logits(scope, &x))
}

/// Changes a weight, element by element.
fn edit(device: &Device, params: &Params, id: ParamId, change: impl Fn(usize, usize, f32) -> f32) {
    let tensor = params.tensor(id);
    let (values, cols) = (device.to_f32(&tensor), tensor.cols());
    let values = values.iter().enumerate().map(|(at, x)| change(at / cols, at % cols, *x));
    device.machine.write(&tensor, &values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
}

#[track_caller]
fn check(what: &str, found: &[f32], expected: &[f32]) {
    let top = expected.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-6 * top, "{what}: {worst} of {top}");
}

/// Every second index, and the last.
fn some(n: usize) -> Vec<usize> {
    (0..n).filter(|at| at % 2 == 0 || at + 1 == n).collect()
}

fn projections(model: &Model, layer: usize) -> [fathom_model::LinearParams; 2] {
    let block = &model.blocks[layer];
    match [&block.parts[0].sublayer, &block.parts[1].sublayer] {
        [SubParams::Attention(attention), SubParams::Dense(mlp)] => [attention.out, mlp.down],
        _ => panic!("attention and an MLP"),
    }
}

/// Heads, MLP columns and layers that add nothing to the residual stream.
#[test]
fn parts_that_add_nothing_are_left_out_without_a_change() {
    for name in
        ["llama31", "llama_bias", "gpt2", "qwen3", "gemma", "phi", "starcoder2", "falcon_7b", "nemotron"]
    {
        let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
        let opened = open(&golden(name)).unwrap();
        let (model, mut params) = Model::declare(device, &opened.spec, DType::F32);
        load(device, &model, &mut params, &opened.source).unwrap();
        let spec = &model.spec;
        let (group, layers) = (spec.heads / spec.kv_heads, spec.layers.len());
        // One head of each group, or every second head.
        let heads: Vec<usize> = if group > 1 {
            (0..spec.kv_heads).flat_map(|of| (0..group - 1).map(move |head| of * group + head)).collect()
        } else {
            some(spec.heads)
        };
        let ffn = some(spec.ffn);
        let dropped = layers - 1;
        for layer in 0..layers {
            let [out, down] = projections(&model, layer);
            let last = layer == dropped;
            edit(device, &params, out.weight, |_, col, x| {
                if last || !heads.contains(&(col / spec.head_dim)) { 0.0 } else { x }
            });
            edit(device, &params, down.weight, |_, col, x| if last || !ffn.contains(&col) { 0.0 } else { x });
            let biases = [out.bias, down.bias].into_iter().flatten().filter(|_| last);
            biases.for_each(|bias| edit(device, &params, bias, |_, _, _| 0.0));
        }
        let kept = PrunePlan {
            layers: (0..dropped).collect(),
            heads: vec![heads; dropped],
            ffn: vec![ffn; dropped],
            ..PrunePlan::all(spec)
        };
        let expected = logits(device, &model, &params);
        let (smaller, slices) = prune(ModelView { device, model: &model, params: &params }, &kept).unwrap();
        assert!(slices.num_elements() < params.num_elements(), "{name}");
        check(name, &logits(device, &smaller, &slices), &expected);
        // And with nothing removed.
        let (same, copies) =
            prune(ModelView { device, model: &model, params: &params }, &PrunePlan::all(spec)).unwrap();
        check(name, &logits(device, &same, &copies), &expected);
    }
}

/// Columns of the residual stream that are always 0. The root mean square is then over fewer columns, compensated by
/// the weights of norms; embeddings are large compared with the norms' epsilon.
#[test]
fn columns_that_are_zero_are_left_out_up_to_the_mean() {
    for name in ["llama31", "llama32_tied", "qwen3"] {
        let device = &Device::new(Arc::new(Cpu::new(1, None)), 1 << 30);
        let opened = open(&golden(name)).unwrap();
        let (model, mut params) = Model::declare(device, &opened.spec, DType::F32);
        load(device, &model, &mut params, &opened.source).unwrap();
        let spec = &model.spec;
        let hidden = some(spec.hidden);
        edit(device, &params, model.embed.unwrap().tokens, |_, col, x| {
            if hidden.contains(&col) { 300.0 * x } else { 0.0 }
        });
        for layer in 0..spec.layers.len() {
            for projection in projections(&model, layer) {
                edit(
                    device,
                    &params,
                    projection.weight,
                    |row, _, x| if hidden.contains(&row) { x } else { 0.0 },
                );
            }
        }
        let expected = logits(device, &model, &params);
        let kept = PrunePlan { hidden: hidden.clone(), ..PrunePlan::all(spec) };
        let (smaller, slices) = prune(ModelView { device, model: &model, params: &params }, &kept).unwrap();
        let more = (spec.hidden as f32 / hidden.len() as f32).sqrt();
        let of_blocks = smaller.blocks.iter().flat_map(|block| &block.parts).map(|part| part.norm);
        for norm in of_blocks.chain([smaller.last.unwrap().norm]).flatten() {
            edit(device, &slices, norm.weight, |_, _, x| x * more);
        }
        check(name, &logits(device, &smaller, &slices), &expected);
    }
}

#[test]
fn what_cannot_be_pruned_is_named() {
    for (name, what) in [
        ("mixtral", "experts"),
        ("deepseek_v3", "experts"),
        ("olmo2", "over all heads"),
        ("gpt_oss", "experts"),
    ] {
        let spec = open(&golden(name)).unwrap().spec;
        let message = prunable(&spec).unwrap_err();
        assert!(message.contains(what), "{name}: {message}");
    }
}
