//! AdamW against Loshchilov and Hutter (2019), algorithm 2, in f64.

use std::rc::Rc;
use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_tensor::moments::BLOCK;
use fathom_tensor::{Category, DType, Device, Machine, Meta};

use super::*;
use crate::Param;
use crate::testing::{Matrix, assert_close, download, levels, upload};

/// The weights of a test: a matrix that decays, a vector that does not, and a frozen one.
const SHAPES: [[usize; 2]; 3] = [[37, 19], [1, 53], [3, 5]];

struct Setup {
    device: Device,
    params: Params,
    grads: Grads,
    loss: Tensor,
    count: Tensor,
}

impl Setup {
    fn new(machine: Arc<dyn Machine>, dtype: DType) -> Setup {
        let device = Device::new(machine, 1 << 28);
        let mut params = Params::default();
        for (index, [rows, cols]) in SHAPES.into_iter().enumerate() {
            let values = Matrix::random(rows, cols, index as u64);
            let tensor = upload(&device, &values, dtype, Category::Params, false);
            params.push(Param {
                name: format!("w{index}"),
                value: tensor.into(),
                decays: index == 0,
                trainable: index < 2,
            });
        }
        let grads = Grads::zeros(&device, &params);
        let scalar = || device.zeros(1, 1, DType::F32, Category::Data);
        let (loss, count) = (scalar(), scalar());
        Setup { device, params, grads, loss, count }
    }

    fn write(&self, to: &Tensor, values: &Matrix) {
        let bytes: Vec<u8> = values.data.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
        self.device.machine.write(to, &bytes);
    }

    fn set(&self, step: u64, loss: f64, count: f64) {
        for (id, grad) in self.grads.iter() {
            self.write(grad, &gradient(id.index(), step));
        }
        self.write(&self.loss, &Matrix::new(1, 1, |_, _| loss));
        self.write(&self.count, &Matrix::new(1, 1, |_, _| count));
    }

    fn update(&mut self, optimizer: &mut AdamW, settings: &AdamWSettings) -> (f32, f32) {
        let update = Update { loss: &self.loss, count: &self.count };
        let report = optimizer.update(&self.device, &mut self.params, &self.grads, update, settings);
        (report.norm.wait_f32(), report.skipped.wait_f32())
    }

    /// All bytes that an update may change.
    fn bytes(&self, optimizer: &AdamW) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for (id, param) in self.params.iter() {
            let state = optimizer.state(id).into_iter();
            let values = std::iter::once(&param.value).chain(state.flat_map(State::values));
            all.extend(values.map(|value| value.bytes(&self.device)));
        }
        all
    }
}

/// The gradient of the sum: some elements are zero, like those of tokens that never occur.
fn gradient(param: usize, step: u64) -> Matrix {
    let [rows, cols] = SHAPES[param];
    let values = Matrix::random(rows, cols, 100 * step + param as u64).times(30.0).rounded(DType::F32);
    Matrix::new(rows, cols, |row, col| if (row + col) % 11 == 0 { 0.0 } else { values[(row, col)] })
}

/// One weight with its moments.
struct Reference {
    weight: Matrix,
    m: Matrix,
    v: Matrix,
}

/// Updates the weights and returns the norm of the mean's gradient.
fn reference(states: &mut [Reference], settings: &AdamWSettings, step: u64, count: f64) -> f64 {
    let [lr, beta1, beta2, eps] = [settings.lr, settings.beta1, settings.beta2, settings.eps].map(f64::from);
    let squares: f64 = (0..states.len()).flat_map(|index| gradient(index, step).data).map(|g| g * g).sum();
    let norm = squares.sqrt() / count;
    let max_norm = f64::from(settings.max_norm);
    let clip = if max_norm > 0.0 && norm > max_norm { max_norm / norm } else { 1.0 };
    for (index, Reference { weight, m, v }) in states.iter_mut().enumerate() {
        let decay = if index == 0 { f64::from(settings.weight_decay) } else { 0.0 };
        for (at, g) in gradient(index, step).data.iter().enumerate() {
            let g = g * clip / count;
            m.data[at] = beta1 * m.data[at] + (1.0 - beta1) * g;
            v.data[at] = beta2 * v.data[at] + (1.0 - beta2) * g * g;
            let (m, v) =
                (m.data[at] / (1.0 - beta1.powi(step as i32)), v.data[at] / (1.0 - beta2.powi(step as i32)));
            weight.data[at] -= lr * (m / (v.sqrt() + eps) + decay * weight.data[at]);
        }
    }
    norm
}

#[track_caller]
fn check(settings: &AdamWSettings, dtype: DType) {
    for isa in levels() {
        let at = format!("{settings:?}, {dtype:?}, {}", isa.name());
        let machine = Arc::new(Cpu::new(2, Some(isa)));
        let plan = Setup::new(Arc::new(Meta::new(machine.profile().clone())), dtype);
        let mut setup = Setup::new(machine, dtype);
        let mut optimizer = AdamW::new(&setup.device, &setup.params);
        let _planned = AdamW::new(&plan.device, &plan.params);
        assert_eq!(setup.device.pool.usage(), plan.device.pool.usage(), "{at}");
        let mut expected: Vec<Reference> = (0..2)
            .map(|index| {
                let [rows, cols] = SHAPES[index];
                let weight = Matrix::random(rows, cols, index as u64).rounded(dtype);
                Reference { weight, m: Matrix::zeros(rows, cols), v: Matrix::zeros(rows, cols) }
            })
            .collect();
        let frozen = download(&setup.device, &setup.params.tensor(ParamId(2)));
        for step in 1..=3 {
            setup.set(step, 5.0, 64.0);
            let (norm, skipped) = setup.update(&mut optimizer, settings);
            let expected_norm = reference(&mut expected, settings, step, 64.0);
            assert_close(&at, "norm", &[f64::from(norm)], &[expected_norm], 1e-5, 0.0);
            assert_eq!(skipped, 0.0, "{at}");
            for (index, expected) in expected.iter().enumerate() {
                let id = ParamId(index as u32);
                let state = optimizer.state(id).unwrap();
                let weight = &setup.params.get(id).value;
                let exact = download(&setup.device, &state.master.as_ref().unwrap_or(weight).tensor());
                assert_eq!(state.master.is_some(), dtype != DType::F32);
                for (what, found, expected) in [
                    ("weight", exact.clone(), &expected.weight),
                    ("m", download(&setup.device, &state.m.tensor()), &expected.m),
                    ("v", download(&setup.device, &state.v.as_ref().unwrap().tensor()), &expected.v),
                ] {
                    let what = format!("{what} {index} after step {step}");
                    assert_close(&at, &what, &found.data, &expected.data, 1e-5, 0.0);
                }
                let rounded = exact.rounded(dtype);
                assert_eq!(
                    download(&setup.device, &weight.tensor()),
                    rounded,
                    "{at}: weight is its rounded master"
                );
            }
        }
        assert!(optimizer.state(ParamId(2)).is_none());
        assert_eq!(download(&setup.device, &setup.params.tensor(ParamId(2))), frozen, "{at}: frozen");
    }
}

#[test]
fn three_steps() {
    for dtype in [DType::F32, DType::Bf16] {
        let settings = AdamWSettings { lr: 0.01, ..AdamWSettings::default() };
        check(&settings, dtype);
        check(&AdamWSettings { max_norm: 0.0, ..settings }, dtype);
        check(
            &AdamWSettings { max_norm: 1e6, weight_decay: 0.0, beta2: 0.999, eps: 1e-3, ..settings },
            dtype,
        );
    }
}

/// PyTorch's optimizer is not called for a skipped step, so its count of steps does not change; neither does this
/// one's.
#[test]
fn skipped_steps_do_not_count() {
    let settings = AdamWSettings { lr: 0.01, ..AdamWSettings::default() };
    for isa in levels() {
        let run = |skips: bool| {
            let mut setup = Setup::new(Arc::new(Cpu::new(2, Some(isa))), DType::Bf16);
            let mut optimizer = AdamW::new(&setup.device, &setup.params);
            for step in 1..=3 {
                if skips {
                    setup.set(step, f64::NAN, 64.0);
                    assert_ne!(setup.update(&mut optimizer, &settings).1, 0.0);
                }
                setup.set(step, 5.0, 64.0);
                assert_eq!(setup.update(&mut optimizer, &settings).1, 0.0);
            }
            assert_eq!(optimizer.updates(&setup.device), 3);
            setup.bytes(&optimizer)
        };
        assert!(run(true) == run(false), "{}", isa.name());
    }
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    let settings = AdamWSettings::default();
    for dtype in [DType::F32, DType::Bf16] {
        for isa in levels() {
            let mut setup = Setup::new(Arc::new(Cpu::new(2, Some(isa))), dtype);
            let mut optimizer = AdamW::new(&setup.device, &setup.params);
            setup.set(1, 1.0, 64.0);
            assert_eq!(setup.update(&mut optimizer, &settings).1, 0.0);
            let before = setup.bytes(&optimizer);
            for bad in [f64::NAN, f64::INFINITY] {
                setup.set(2, bad, 64.0);
                assert_ne!(setup.update(&mut optimizer, &settings).1, 0.0);
                assert!(setup.bytes(&optimizer) == before, "{dtype:?}, {}: loss {bad}", isa.name());
                for id in [ParamId(0), ParamId(1)] {
                    setup.set(2, 1.0, 64.0);
                    let mut values = gradient(id.index(), 2);
                    *values.data.last_mut().unwrap() = bad;
                    setup.write(setup.grads.get(id).unwrap(), &values);
                    assert_ne!(setup.update(&mut optimizer, &settings).1, 0.0);
                    assert!(setup.bytes(&optimizer) == before, "{dtype:?}, {}: gradient {bad}", isa.name());
                }
            }
            setup.set(2, 1.0, 0.0);
            assert_ne!(setup.update(&mut optimizer, &settings).1, 0.0);
            assert!(setup.bytes(&optimizer) == before, "{dtype:?}, {}: no valid token", isa.name());
        }
    }
}

/// SGD with momentum and decoupled decay, in f64.
#[test]
fn without_a_second_moment_it_is_sgd() {
    let settings = AdamWSettings { lr: 0.01, ..AdamWSettings::default() };
    let [lr, momentum, decay] = [settings.lr, settings.beta1, settings.weight_decay].map(f64::from);
    for isa in levels() {
        let mut setup = Setup::new(Arc::new(Cpu::new(2, Some(isa))), DType::F32);
        let shares = Rc::new(Shares::alone(&setup.device, setup.params.lens()));
        let moments = Moments { second: false, ..Moments::default() };
        let mut optimizer = AdamW::shared(&setup.device, &setup.params, shares, moments);
        let mut expected: Vec<(Matrix, Matrix)> = (0..2)
            .map(|index| {
                let [rows, cols] = SHAPES[index];
                (Matrix::random(rows, cols, index as u64).rounded(DType::F32), Matrix::zeros(rows, cols))
            })
            .collect();
        for step in 1..=3 {
            setup.set(step, 5.0, 64.0);
            let norm = f64::from(setup.update(&mut optimizer, &settings).0);
            let clip = (f64::from(settings.max_norm) / norm).min(1.0) / 64.0;
            for (index, (weight, m)) in expected.iter_mut().enumerate() {
                for (at, g) in gradient(index, step).data.iter().enumerate() {
                    m.data[at] = momentum * m.data[at] + g * clip;
                    weight.data[at] -=
                        lr * (m.data[at] + if index == 0 { decay } else { 0.0 } * weight.data[at]);
                }
                let id = ParamId(index as u32);
                let state = optimizer.state(id).unwrap();
                assert!(state.v.is_none());
                let found = download(&setup.device, &setup.params.tensor(id));
                assert_close(isa.name(), "weight", &found.data, &weight.data, 1e-5, 0.0);
                let found = download(&setup.device, &state.m.tensor());
                assert_close(isa.name(), "m", &found.data, &m.data, 1e-5, 0.0);
            }
        }
    }
}

/// Steps of a thirtieth of the distance between two bf16 numbers, all in one direction: weights without masters move as
/// far on average as those with them, and nothing else moves them.
#[test]
fn weights_without_masters_move_on_average() {
    let settings = AdamWSettings { lr: 1e-4, max_norm: 0.0, weight_decay: 0.0, ..AdamWSettings::default() };
    for isa in levels() {
        let run = |masters| {
            let mut setup = Setup::new(Arc::new(Cpu::new(2, Some(isa))), DType::Bf16);
            let shares = Rc::new(Shares::alone(&setup.device, setup.params.lens()));
            let moments = Moments { masters, ..Moments::default() };
            let mut optimizer = AdamW::shared(&setup.device, &setup.params, shares, moments);
            let weights = |setup: &Setup| download(&setup.device, &setup.params.tensor(ParamId(0))).data;
            let before = weights(&setup);
            assert_eq!(optimizer.state(ParamId(0)).unwrap().master.is_some(), masters);
            setup.set(1, 1.0, 1.0);
            for (_, grad) in setup.grads.iter() {
                let [rows, cols] = [grad.rows(), grad.cols()];
                setup.write(grad, &Matrix::new(rows, cols, |_, _| 1.0));
            }
            for _ in 0..200 {
                assert_eq!(setup.update(&mut optimizer, &settings).1, 0.0);
            }
            let moved: Vec<f64> = before.iter().zip(weights(&setup)).map(|(a, b)| a - b).collect();
            moved.iter().sum::<f64>() / moved.len() as f64
        };
        let [with, without] = [true, false].map(run);
        assert!((with / 0.02 - 1.0).abs() < 0.05, "{}: {with}", isa.name());
        assert!((without / 0.02 - 1.0).abs() < 0.05, "{}: {without}", isa.name());
    }
}

/// bf16 moments take half the memory, and codes a little more than a quarter; they stay within their rounding of the
/// f32 ones.
#[test]
fn narrow_moments_follow_wide_ones() {
    let settings = AdamWSettings { lr: 0.01, ..AdamWSettings::default() };
    for isa in levels() {
        let run = |dtype| {
            let mut setup = Setup::new(Arc::new(Cpu::new(2, Some(isa))), DType::Bf16);
            let shares = Rc::new(Shares::alone(&setup.device, setup.params.lens()));
            let moments = Moments { dtype, ..Moments::default() };
            let mut optimizer = AdamW::shared(&setup.device, &setup.params, shares, moments);
            for step in 1..=5 {
                setup.set(step, 5.0, 64.0);
                setup.update(&mut optimizer, &settings);
            }
            let master = |id| optimizer.state(id).unwrap().master.as_ref().unwrap().tensor();
            [0, 1].map(|index| download(&setup.device, &master(ParamId(index))))
        };
        let wide = run(DType::F32);
        // Five steps of at most lr, with moments that are off by 2^-8, or by 2^-3 since codes are rounded up or down.
        for (dtype, error) in [(DType::Bf16, 1.0 / 256.0), (DType::F8E4M3, 1.0 / 8.0)] {
            let most = 5.0 * 0.01 * 3.0 * error;
            for (wide, narrow) in wide.iter().zip(&run(dtype)) {
                assert_ne!(wide.data, narrow.data);
                let apart = wide.data.iter().zip(&narrow.data).map(|(a, b)| (a - b).abs());
                let (worst, mean) =
                    apart.clone().fold((0.0, 0.0), |(top, sum), x| (f64::max(top, x), sum + x));
                let mean = mean / wide.data.len() as f64;
                assert!(worst <= most && mean <= most / 8.0, "{dtype:?}: {worst}, {mean} on average");
            }
        }
    }
}

/// The squares of a gradient that has become zero decay as in f32: codes do not get stuck.
#[test]
fn codes_of_moments_fade() {
    let settings = AdamWSettings { lr: 0.01, ..AdamWSettings::default() };
    let run = |dtype| {
        let mut setup = Setup::new(Arc::new(Cpu::new(1, None)), DType::F32);
        let shares = Rc::new(Shares::alone(&setup.device, setup.params.lens()));
        let moments = Moments { dtype, ..Moments::default() };
        let mut optimizer = AdamW::shared(&setup.device, &setup.params, shares, moments);
        for step in 1..=60 {
            setup.set(step, 5.0, 64.0);
            if step > 1 {
                for (id, grad) in setup.grads.iter() {
                    let [rows, cols] = SHAPES[id.index()];
                    setup.write(grad, &Matrix::new(rows, cols, |_, _| 1e-6));
                }
            }
            setup.update(&mut optimizer, &settings);
        }
        let state = optimizer.state(ParamId(0)).unwrap();
        let v = state.v.as_ref().unwrap();
        match state.scales.get(1) {
            None => setup.device.to_f32(&v.tensor()),
            Some(scales) => {
                let (codes, scales) = (v.bytes(&setup.device), setup.device.to_f32(&scales.tensor()));
                let root =
                    |(at, code): (usize, &u8)| fathom_tensor::moments::decode(*code) * scales[at / BLOCK];
                codes.iter().enumerate().map(root).map(|root| root * root).collect()
            }
        }
    };
    let [wide, coded] = [DType::F32, DType::F8E4M3].map(run);
    let sum = |values: &[f32]| values.iter().map(|x| f64::from(*x)).sum::<f64>();
    let ratio = sum(&coded) / sum(&wide);
    assert!((ratio - 1.0).abs() < 0.25, "{ratio}");
}
