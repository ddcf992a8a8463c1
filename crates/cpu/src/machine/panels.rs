//! Weights kept in the panels of the matrix kernels: packed once, multiplied many times.
#![allow(unsafe_code)]

use fathom_tensor::{Category, DType, Device, Tensor};

use super::cpu::Cpu;
use super::gemm;
use super::operands::{elem, mat, mat_mut, scratch};

/// A weight `[n, k]` in panels, for products `A W^T` with an A of the same element type.
pub struct PackedPanels {
    panels: Tensor,
    n: usize,
    k: usize,
    dtype: DType,
}

impl PackedPanels {
    /// Bytes of the panels; without a bf16 unit up to twice the weight's.
    pub fn bytes(&self) -> u64 {
        self.panels.bytes()
    }
}

impl Cpu {
    /// Packs `weight`, [n, k] in f32 or bf16, into memory of `device`'s pool.
    ///
    /// # Panics
    /// If the kernels do not support the type.
    #[track_caller]
    pub fn pack(&self, device: &Device, weight: &Tensor) -> PackedPanels {
        let (dtype, [n, k]) = (weight.dtype(), weight.shape());
        let of = elem(dtype);
        let bytes = gemm::packed_bytes(self.isa, of, of, k, n);
        let panels = device.empty(1, bytes, DType::U8, Category::Params);
        // SAFETY: `weight` is a live tensor of n rows and k columns; the panels are a fresh page-aligned piece of the
        // pool with the bytes that packing requires.
        unsafe { gemm::pack_b(&self.threads, self.isa, of, &mat(weight), true, k, n, scratch(&panels)) };
        PackedPanels { panels, n, k, dtype }
    }

    /// Scratch bytes of [`Cpu::matmul_packed`] for `m` rows and results of type `c`.
    pub fn packed_workspace(&self, m: usize, weight: &PackedPanels, c: DType) -> u64 {
        let of = elem(weight.dtype);
        let shape = gemm::Shape { m, n: weight.n, k: weight.k, a: of, b: of, b_packed: true };
        gemm::workspace_bytes(self.isa, self.threads.count(), &shape, elem(c)) as u64
    }

    /// `C = A W^T` for A [m, k] and C [m, n].
    ///
    /// # Panics
    /// If shapes, types or the scratch do not fit.
    #[track_caller]
    pub fn matmul_packed(&self, a: &Tensor, weight: &PackedPanels, c: &Tensor, ws: &Tensor) {
        let PackedPanels { panels, n, k, dtype } = weight;
        let (m, n, k) = (a.rows(), *n, *k);
        let fits = a.cols() == k && c.shape() == [m, n] && a.dtype() == *dtype;
        assert!(fits, "matmul_packed: {a:?} by a packed [{n}, {k}] into {c:?}");
        assert!(
            ws.bytes() >= self.packed_workspace(m, weight, c.dtype()),
            "matmul_packed: scratch {ws:?} is too small"
        );
        let product = gemm::Gemm {
            m,
            n,
            k,
            a: mat(a),
            a_trans: false,
            b: gemm::Mat { ptr: scratch(panels), elem: elem(*dtype), stride: k },
            b_layout: gemm::Layout::Panels,
            c: mat_mut(c),
            accumulate: false,
        };
        // SAFETY: the shapes were checked, the panels were packed for this n, k and type, and the scratch has the bytes
        // that this product requires.
        unsafe { gemm::gemm(&self.threads, self.isa, &product, scratch(ws)) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_tensor::{Machine, MatMul};

    use super::*;

    #[test]
    fn a_packed_weight_gives_the_same_bits() {
        let cpu = Arc::new(Cpu::new(2, None));
        let device = Device::new(cpu.clone(), 1 << 30);
        let numbers =
            |count: usize, step: usize| (0..count).map(move |i| ((i * step) % 113) as f32 / 50.0 - 1.0);
        let a: Vec<f32> = numbers(37 * 70, 29).collect();
        let w: Vec<f32> = numbers(45 * 70, 31).collect();
        let (a, w) =
            (device.from_f32(37, 70, &a, Category::Data), device.from_f32(45, 70, &w, Category::Data));
        let [plain, packed] = [0, 1].map(|_| device.empty(37, 45, DType::F32, Category::Data));
        let op = MatMul { a: &a, a_trans: false, b: &w, b_trans: true, c: &plain, accumulate: false };
        let bytes = cpu.profile().workspace(&op.desc());
        cpu.matmul(&op, &device.empty(1, bytes as usize, DType::U8, Category::Workspace));
        let weight = cpu.pack(&device, &w);
        let ws = device.empty(
            1,
            cpu.packed_workspace(37, &weight, DType::F32) as usize,
            DType::U8,
            Category::Workspace,
        );
        cpu.matmul_packed(&a, &weight, &packed, &ws);
        assert_eq!(device.to_f32(&plain), device.to_f32(&packed));
    }
}
