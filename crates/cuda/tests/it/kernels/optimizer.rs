//! Updates of weights, with moments of every storage.

use fathom_cuda::kernels::adamw;
use fathom_tensor::{AdamW, Category, DType, Device, MomentScales, StepScale, Tensor};

use super::{devices, emulator, floats, numbers, same};

fn vector(device: &Device, n: usize, dtype: DType, seed: u64, factor: f32) -> Tensor {
    let tensor = device.empty(1, n, dtype, Category::Data);
    let values: Vec<f32> = numbers(n, seed).iter().map(|x| factor * x).collect();
    super::set(device, &tensor, &values);
    tensor
}

fn scalar(device: &Device, x: f32) -> Tensor {
    device.from_f32(1, 1, &[x], Category::Data)
}

struct Weights {
    param: Tensor,
    master: Option<Tensor>,
    m: Tensor,
    v: Tensor,
    grad: Tensor,
}

impl Weights {
    fn new(device: &Device, n: usize, [param, moments]: [DType; 2]) -> Weights {
        let zeros = || device.zeros(1, n, moments, Category::Data);
        let master = (param != DType::F32).then(|| vector(device, n, DType::F32, 1, 1.0));
        Weights {
            param: vector(device, n, param, 1, 1.0),
            master,
            m: zeros(),
            v: zeros(),
            grad: vector(device, n, DType::F32, 2, 1e-3),
        }
    }

    fn op<'a>(&'a self, [scale, skip, updates]: [&'a Tensor; 3]) -> AdamW<'a> {
        AdamW {
            param: &self.param,
            master: self.master.as_ref(),
            m: &self.m,
            v: Some(&self.v),
            scales: None,
            key: 7,
            first: 384,
            grad: &self.grad,
            scale,
            skip,
            lr: 1e-2,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            updates,
        }
    }
}

#[test]
fn updates_without_second_moments_agree_with_the_cpu() {
    same("adamw", |device| {
        let weights = Weights::new(device, 2500, [DType::F32; 2]);
        let (scale, skip) = (scalar(device, 0.5), scalar(device, 0.0));
        for step in 1..4 {
            let updates = device.from_i32(&[step], Category::Data);
            device.machine.adamw(&AdamW { v: None, ..weights.op([&scale, &skip, &updates]) });
        }
        vec![weights.param, weights.m]
    });
}

/// Weights are rounded stochastically by the same noise on both machines; f32 weights are not rounded.
#[test]
fn weights_without_masters_are_rounded_as_on_the_cpu() {
    for types in [[DType::Bf16, DType::F32], [DType::Bf16; 2], [DType::F32; 2]] {
        same("adamw", |device| {
            let weights = Weights { master: None, ..Weights::new(device, 2500, types) };
            let (scale, skip) = (scalar(device, 0.5), scalar(device, 0.0));
            for step in 1..4 {
                let updates = device.from_i32(&[step], Category::Data);
                device.machine.adamw(&weights.op([&scale, &skip, &updates]));
            }
            vec![weights.param, weights.m, weights.v]
        });
    }
}

#[test]
fn updates_agree_with_the_cpu() {
    for types in [[DType::F32; 2], [DType::Bf16, DType::F32], [DType::F32, DType::Bf16], [DType::Bf16; 2]] {
        for skip in [0.0, 1.0] {
            same("adamw", |device| {
                let weights = Weights::new(device, 2500, types);
                let (scale, skip) = (scalar(device, 0.5), scalar(device, skip));
                for step in 1..4 {
                    let updates = device.from_i32(&[step], Category::Data);
                    device.machine.adamw(&weights.op([&scale, &skip, &updates]));
                }
                [vec![weights.param, weights.m, weights.v], weights.master.into_iter().collect()].concat()
            });
        }
    }
}

#[test]
fn factors_of_updates_agree_with_the_cpu() {
    for (squares, loss, count, max_norm) in [
        (100.0, 3.0, 4.0, 1.0),
        (100.0, 3.0, 4.0, 0.0),
        (1.0, f32::NAN, 4.0, 1.0),
        (f32::INFINITY, 1.0, 4.0, 1.0),
        (1.0, 1.0, 0.0, 1.0),
    ] {
        same("step_scale", |device| {
            let [sum_squares, loss, count] = [squares, loss, count].map(|x| scalar(device, x));
            let [scale, skip, norm] = [7.0; 3].map(|x| scalar(device, x));
            let updates = device.from_i32(&[41], Category::Data);
            device.machine.step_scale(&StepScale {
                sum_squares: &sum_squares,
                loss: &loss,
                count: &count,
                max_norm,
                scale: &scale,
                skip: &skip,
                norm: &norm,
                updates: &updates,
            });
            vec![scale, skip, norm, updates]
        });
    }
}

/// Narrow moments: a hundred updates stay near those with f32 moments.
#[test]
fn narrow_moments_stay_near_wide_ones() {
    let Some([_, device]) = devices() else { return };
    let n = 640;
    let (scale, skip) = (scalar(&device, 1.0), scalar(&device, 0.0));
    let scales = [0; 2].map(|_| device.zeros(1, n / 128, DType::F32, Category::Data));
    let run = |moments: DType| {
        let weights = Weights::new(&device, n, [DType::F32, moments]);
        let begin = floats(&device, &weights.param);
        for step in 1..101 {
            let updates = device.from_i32(&[step], Category::Data);
            super::set(&device, &weights.grad, &numbers(n, 50 + step as u64));
            let [m, v] = &scales;
            let scales = MomentScales { m, v: Some(v) };
            let scales = (moments == DType::F8E4M3).then_some(scales);
            emulator::run(&adamw(&AdamW { scales, ..weights.op([&scale, &skip, &updates]) }));
        }
        let moved: Vec<f32> = floats(&device, &weights.param).iter().zip(begin).map(|(x, y)| x - y).collect();
        moved
    };
    let wide = run(DType::F32);
    let size = |list: &[f32]| list.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (moments, most) in [(DType::Bf16, 0.01), (DType::F8E4M3, 0.1)] {
        let apart: Vec<f32> = run(moments).iter().zip(&wide).map(|(x, y)| x - y).collect();
        let error = size(&apart) / size(&wide);
        assert!(error < most, "{moments:?}: {error}");
    }
}
