//! Further inputs of segments, with their gradients, and state of layers between tokens.

use std::ops::Range;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_grad::{
    AttentionUse, Batch, Counters, Ctx, Desc, DocumentRun, DocumentRuns, Dx, Eval, Exec, Grads, Keys,
    LayerMemory, Memory, Op, OptGrads, Out, Param, ParamId, Params, Place, Places, SavedValues, Scope,
    Segments, Tape, Val, mask,
};
use fathom_tensor::{Category, DType, Device, Slice, Tensor};

const TOKENS: usize = 150;
const ROWS: usize = 37;
const WIDTH: usize = 16;

fn device() -> Device {
    Device::new(Arc::new(Cpu::new(2, None)), 1 << 26)
}

fn noise(seed: usize, len: usize) -> Vec<f32> {
    let one = |at: usize| {
        let z = (seed * 7919 + at + 1) as u64;
        let z = z.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(one).collect()
}

fn batch(device: &Device, tokens: usize, slices: &[Slice], keys: usize) -> Batch {
    let [q, k] = [tokens, keys].map(|rows| device.from_i32(&vec![0; rows], Category::Data));
    let masks = vec![mask(device, slices, slices.len(), [&q, &k], (tokens * keys) as u64)];
    Batch { masks, ..Batch::new(q.clone(), q) }
}

/// Two layers that attend to the same outside rows: the sum of the output's squares, and the gradients of the input, of
/// the outside rows and of the weights.
fn cross(values: &[f32], places: &Places, trained: bool) -> (f64, Vec<Vec<f32>>) {
    let device = &device();
    let mut params = Params::default();
    let mut weight = |seed: usize, rows: usize| -> ParamId {
        let value = noise(seed, rows * WIDTH);
        let value = device.from_f32(rows, WIDTH, &value, Category::Params).into();
        params.push(Param { name: format!("weight.{seed}"), value, decays: true, trainable: trained })
    };
    let layers: Vec<[ParamId; 3]> =
        (0..2).map(|layer| [10, 20, 30].map(|seed| weight(seed + layer, WIDTH))).collect();
    let batch = batch(device, TOKENS, &[Slice::full(0..TOKENS, 0..ROWS)], ROWS);
    let counters = Counters::default();
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let memory = Memory {
        value: device.from_f32(ROWS, WIDTH, values, Category::Data),
        gradient: Some(device.zeros(ROWS, WIDTH, DType::F32, Category::Data)),
    };
    let mut grads = Grads::zeros(device, &params);
    let mut tape = Tape::new(scope, places).with_input_gradient();
    let mut x = device.from_f32(TOKENS, WIDTH, &noise(1, TOKENS * WIDTH), Category::Data);
    let how = AttentionUse {
        keys: Keys::Memory,
        mask: 0,
        head_dim: 8,
        scale: 0.3,
        softcap: 0.0,
        apart: None,
        slopes: false,
    };
    for (layer, [to_q, to_k, to_v]) in layers.iter().enumerate() {
        x = tape.run((layer as i32).into(), Some(x), std::slice::from_ref(&memory), &|cx, x, memory| {
            let k = cx.linear("k", memory[0], *to_k, None);
            let v = cx.linear("v", memory[0], *to_v, None);
            cx.rows(|cx| {
                let q = cx.linear("q", x, *to_q, None);
                let a = cx.whole(|cx| cx.attention(q, k, v, how, None));
                cx.add("out", x, a)
            })
        });
    }
    let y = device.to_f32(&x);
    let dy = device.from_f32(TOKENS, WIDTH, &y.iter().map(|y| 2.0 * y).collect::<Vec<_>>(), Category::Data);
    drop(x);
    let dx = tape.backward(dy, &mut grads).map(|dx| device.to_f32(&dx));
    let gradients = dx.into_iter().chain(memory.gradient.iter().map(|sum| device.to_f32(sum)));
    let gradients = gradients.chain(grads.iter().map(|(_, grad)| device.to_f32(grad))).collect();
    (y.iter().map(|y| f64::from(*y).powi(2)).sum(), gradients)
}

#[test]
fn rows_from_outside_have_gradients() {
    let values = noise(5, ROWS * WIDTH);
    let (_, gradients) = cross(&values, &Places::none(), true);
    let of_memory = &gradients[1];
    let square: f64 = of_memory.iter().map(|g| f64::from(*g).powi(2)).sum();
    assert!(square > 1.0);
    let step = 1e-2 / square.sqrt();
    let [more, less] = [step, -step].map(|step| {
        let moved: Vec<f32> =
            values.iter().zip(of_memory).map(|(x, g)| x + (step * f64::from(*g)) as f32).collect();
        cross(&moved, &Places::none(), true).0
    });
    let found = (more - less) / (2.0 * step);
    assert!((found / square - 1.0).abs() < 1e-2, "{found} for {square}");
    // For all places of activations and choices of trained weights.
    for places in
        [Places::full(), Places::linear().with_tiles(Some(128)), Places::none().offload_all(Place::Host)]
    {
        assert!(cross(&values, &places, true).1 == gradients, "{places:?}");
        assert!(cross(&values, &places, false).1 == gradients[..2], "{places:?}");
    }
}

/// `h_t = h_(t-1) / 2 + x_t`, where h is the layer's state.
struct DecayLayer;

impl Op for DecayLayer {
    fn name(&self) -> &'static str {
        "fading"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        vec![Out::new("fading", ins[0].cols, ins[0].dtype)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        let (device, layer, cols) = (x.device, x.layer as usize, ins[0].cols());
        for run in x.batch.documents.iter().flat_map(|documents| &documents.runs) {
            let state = match x.kv.as_deref_mut() {
                Some(memory) => memory.state(device, layer, "fading", run.document),
                None => device.zeros(1, cols, DType::F32, Category::Workspace),
            };
            for row in run.rows.clone() {
                let row = row..row + 1;
                device.machine.scale(&state, 0.5, &state);
                device.machine.add(&state, &ins[0].view_rows(row.clone()), &state);
                device.machine.copy(&state, &outs[0].view_rows(row));
            }
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) else { return };
        for run in x.batch.documents.iter().flat_map(|documents| &documents.runs) {
            let state = x.device.zeros(1, dy.cols(), DType::F32, Category::Workspace);
            for row in run.rows.clone().rev() {
                x.device.machine.scale(&state, 0.5, &state);
                x.device.machine.add(&state, &dy.view_rows(row..row + 1), &state);
                x.device.machine.copy(&state, &dx.tensor.view_rows(row..row + 1));
            }
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

fn fading(cx: &mut Ctx<'_>, x: Val) -> Val {
    cx.whole(|cx| cx.apply(DecayLayer, &[x], &[])[0])
}

/// States of two sequences.
struct States(Vec<Tensor>);

impl LayerMemory for States {
    fn append(&mut self, _: &Device, _: usize, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        (k.clone(), v.clone())
    }

    fn state(&mut self, _: &Device, _: usize, _: &str, sequence: usize) -> Tensor {
        self.0[sequence].clone()
    }
}

/// Runs one such layer over documents of these lengths, with their states or from the beginning.
fn run(device: &Device, x: &[f32], documents: &[(usize, usize)], memory: Option<&mut States>) -> Vec<f32> {
    let (params, counters, tokens) = (Params::default(), Counters::default(), x.len() / WIDTH);
    let mut batch = batch(device, tokens, &[Slice::full(0..tokens, 0..tokens)], tokens);
    let mut end = 0;
    let runs = documents.iter().map(|(document, tokens)| {
        end += tokens;
        DocumentRun { rows: end - tokens..end, document: *document, offset: 0 }
    });
    let documents = DocumentRuns::new(device, runs.collect(), 4);
    assert_eq!(documents.table.shape(), [2, 5]);
    batch.documents = Some(documents);
    let scope = Scope { device, params: &params, batch: (&batch).into(), counters: &counters };
    let x = device.from_f32(tokens, WIDTH, x, Category::Data);
    let memory = memory.map(|states| states as &mut dyn LayerMemory);
    let y = Eval::new(scope, None, memory).segment(0, Some(x), &fading);
    device.to_f32(&y)
}

#[test]
fn a_recurrence_goes_on_where_it_ended() {
    let device = &device();
    let values = noise(3, 2 * TOKENS * WIDTH);
    let sequence = |index: usize, rows: Range<usize>| {
        let first = index * TOKENS * WIDTH;
        &values[first + rows.start * WIDTH..first + rows.end * WIDTH]
    };
    let whole = [0, 1].map(|index| run(device, sequence(index, 0..TOKENS), &[(index, TOKENS)], None));
    // Packed, each starts over.
    assert!(run(device, &values, &[(0, TOKENS), (1, TOKENS)], None) == whole.concat());
    let mut states = States((0..2).map(|_| device.zeros(1, WIDTH, DType::F32, Category::Kv)).collect());
    let mut found: [Vec<f32>; 2] = Default::default();
    for start in (0..TOKENS).step_by(50) {
        // The second sequence comes first, in separate steps.
        let parts = [(1, start..start + 50), (0, start..start + 50)];
        let x: Vec<f32> =
            parts.iter().flat_map(|(index, rows)| sequence(*index, rows.clone())).copied().collect();
        let y = run(device, &x, &[(1, 50), (0, 50)], Some(&mut states));
        found[1].extend(&y[..50 * WIDTH]);
        found[0].extend(&y[50 * WIDTH..]);
    }
    assert!(found == whole);
}
