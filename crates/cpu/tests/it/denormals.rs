//! Denormal operands give the same results as zeros, on every instruction set: operations that have no graph.
//! Operations of graphs have the same check next to their references.

use std::sync::Arc;

use fathom_cpu::Cpu;
use fathom_cpu::isa::Isa;
use fathom_tensor::{
    AdamW, BalanceBias, Category, CrossEntropy, DType, Device, LimitExperts, StepScale, Tensor,
};

/// Numbers per row; every fifth is small and treated as zero.
const COLS: usize = 1003;

/// A device, and the value of small numbers on it.
struct Bed {
    device: Device,
    small: f32,
}

impl Bed {
    /// Numbers around 1 of both signs, with small ones in between.
    fn numbers(&self, dtype: DType, seed: usize) -> Tensor {
        self.mapped(dtype, seed, |x| x)
    }

    /// Those numbers, mapped by a function that keeps small ones small.
    fn mapped(&self, dtype: DType, seed: usize, map: impl Fn(f32) -> f32) -> Tensor {
        let number = |at: usize| {
            let x = ((at * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
            map(if at % 5 == seed % 5 { self.small.copysign(x) } else { x })
        };
        let tensor = self.device.empty(1, COLS, dtype, Category::Data);
        let bytes: Vec<u8> =
            (0..COLS).map(number).flat_map(|x| x.to_le_bytes()[4 - dtype.bytes()..].to_vec()).collect();
        self.device.machine.write(&tensor, &bytes);
        tensor
    }

    fn scalar(&self, x: f32) -> Tensor {
        let tensor = self.device.empty(1, 1, DType::F32, Category::Data);
        self.device.machine.write(&tensor, &x.to_le_bytes());
        tensor
    }

    /// Bits of a kernel's output, with small numbers that it left unchanged replaced by zeros.
    fn bits(&self, tensor: &Tensor) -> Vec<u32> {
        let bytes = self.device.machine.read(tensor).wait();
        let width = tensor.dtype().bytes();
        let number = |bytes: &[u8]| {
            let mut all = [0; 4];
            all[4 - width..].copy_from_slice(bytes);
            let x = f32::from_le_bytes(all);
            if tensor.dtype() == DType::I32 {
                return x.to_bits();
            }
            if x.is_subnormal() { 0f32.copysign(x) } else { x }.to_bits()
        };
        bytes.chunks(width).map(number).collect()
    }
}

/// Runs `work` with denormals and with zeros, and compares the results.
fn check(what: &str, work: &dyn Fn(&Bed) -> Vec<Vec<u32>>) {
    for isa in Isa::ALL.into_iter().filter(|isa| *isa <= Isa::detect()) {
        let [denormals, zeros] = [1e-40, 0.0].map(|small| {
            let device = Device::new(Arc::new(Cpu::new(2, Some(isa))), 1 << 26);
            work(&Bed { device, small })
        });
        assert!(denormals == zeros, "{what}, {}", isa.name());
    }
}

/// The loss of a row and its gradient.
#[test]
fn losses() {
    for dtype in [DType::F32, DType::Bf16] {
        check("cross-entropy", &|bed| {
            let (logits, machine) = (bed.numbers(dtype, 1), &bed.device.machine);
            let labels = bed.device.from_i32(&[1], Category::Data);
            let loss = bed.scalar(7.0);
            let dlogits = bed.device.empty(1, COLS, dtype, Category::Data);
            machine.cross_entropy(&CrossEntropy {
                logits: &logits,
                labels: &labels,
                weights: None,
                loss: &loss,
                dlogits: Some(&dlogits),
                scale: 150.0,
                softcap: 0.0,
                z_loss: 1e-4,
                spread: None,
                measures: None,
            });
            vec![bed.bits(&loss), bed.bits(&dlogits)]
        });
    }
}

/// An update with denormals among weights, moments and gradients, for each type of moments.
#[test]
fn updates() {
    for (moments, weights) in
        [(DType::F32, DType::F32), (DType::F32, DType::Bf16), (DType::Bf16, DType::Bf16)]
    {
        for master in [false, true] {
            check("AdamW", &|bed| {
                let (param, m, grad) =
                    (bed.numbers(weights, 1), bed.numbers(moments, 2), bed.numbers(DType::F32, 3));
                // Second moments are squares.
                let (v, wide) = (bed.mapped(moments, 4, f32::abs), bed.numbers(DType::F32, 1));
                let [scale, skip] = [1e-30, 0.0].map(|x| bed.scalar(x));
                let updates = bed.device.from_i32(&[3], Category::Data);
                bed.device.machine.adamw(&AdamW {
                    param: &param,
                    master: master.then_some(&wide),
                    m: &m,
                    v: Some(&v),
                    scales: None,
                    key: 5,
                    first: 0,
                    grad: &grad,
                    scale: &scale,
                    skip: &skip,
                    lr: 1e-3,
                    beta1: 0.9,
                    beta2: 0.95,
                    eps: 1e-8,
                    weight_decay: 0.1,
                    updates: &updates,
                });
                [&param, &m, &v, &wide].map(|tensor| bed.bits(tensor)).to_vec()
            });
        }
    }
}

/// Sums, the largest number, and the factor of a step.
#[test]
fn sums() {
    check("sums", &|bed| {
        let machine = &bed.device.machine;
        let x = bed.numbers(DType::F32, 2);
        let [sum, squares, largest] = [0.0, bed.small, 0.0].map(|x| bed.scalar(x));
        machine.sum(&x, &sum);
        machine.sum_squares(&bed.mapped(DType::F32, 2, |x| x * 1e-20), &squares);
        machine.largest(&x, &largest);
        let [count, scale, skip, norm] = [3.0, 0.0, 0.0, 0.0].map(|x| bed.scalar(x));
        let (updates, tiny) = (bed.device.from_i32(&[3], Category::Data), bed.scalar(bed.small));
        let op = StepScale {
            sum_squares: &tiny,
            loss: &sum,
            count: &count,
            max_norm: 1.0,
            scale: &scale,
            skip: &skip,
            norm: &norm,
            updates: &updates,
        };
        machine.step_scale(&op);
        [&sum, &squares, &largest, &scale, &skip, &norm].map(|tensor| bed.bits(tensor)).to_vec()
    });
}

/// Experts: limiting slots, and biases.
#[test]
fn experts() {
    check("limit_experts", &|bed| {
        let slots: Vec<i32> = (0..COLS).map(|slot| (slot % 3) as i32).collect();
        let (index, out) =
            (bed.device.from_i32(&slots, Category::Data), bed.device.from_i32(&slots, Category::Data));
        let weights = bed.mapped(DType::F32, 1, |x| if x.abs() < 0.5 { bed.small } else { x.abs() });
        let limit = LimitExperts {
            index: &index,
            weights: Some(&weights),
            experts: 3,
            capacity: COLS / 4,
            out: &out,
        };
        bed.device.machine.limit_experts(&limit);
        vec![bed.bits(&out)]
    });
    check("balance_bias", &|bed| {
        let (bias, load) = (bed.numbers(DType::F32, 1), bed.mapped(DType::F32, 2, f32::abs));
        let skip = bed.scalar(0.0);
        bed.device.machine.balance_bias(&BalanceBias { bias: &bias, load: &load, rate: 1e-3, skip: &skip });
        vec![bed.bits(&bias)]
    });
}
