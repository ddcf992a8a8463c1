//! Products of narrow operands: by units for 8-bit elements if chip and library have them, else by rounding the
//! operands and multiplying those. Both have the same elements and scales, and differ only in how sums are made.
#![allow(unsafe_code)]

use fathom_tensor::{Machine, MatMul, NarrowMatMul, Tensor};

use super::Cuda;
use crate::blas::{Operands, Shape, fp8_units};
use crate::kernels;
use crate::memory::Work;
use crate::operand::{input, output};

impl Cuda {
    /// Computes the product.
    #[track_caller]
    pub(super) fn narrow_product(&self, op: &NarrowMatMul<'_>, ws: &Tensor) {
        let refused = self.by_units(op, ws).err();
        self.taken.narrow(refused.is_none());
        let Some(why) = refused else { return };
        self.say_once(why);
        let (launches, [a, b, ws]) = kernels::narrowed(op, ws, self.scratch());
        self.run_all(&launches);
        self.matmul(&MatMul { a: &a, b: &b, ..op.product }, &ws);
    }

    /// Uses matrix units for narrow operands.
    ///
    /// # Errors
    /// Why they were not used, with nothing issued; empty if there is nothing to report.
    #[track_caller]
    fn by_units(&self, op: &NarrowMatMul<'_>, ws: &Tensor) -> Result<(), String> {
        let (m, n, k) = op.product.sizes();
        let Some(products) = &self.products else { return Err(String::new()) };
        if m * n * k == 0 {
            return Err(String::new());
        }
        let how = [op.a.how, op.b.how];
        fp8_units(&self.profile.isa, how)?;
        let (launches, [a, b], own) = kernels::coded(op, ws, self.scratch());
        let MatMul { c, accumulate, .. } = op.product;
        let emulated = |why: &str| format!("{why} [{m}, {k}] by [{k}, {n}] into {:?}: emulated", c.dtype());
        let Some(shape) = Shape::fp8([&a.codes, &b.codes], how, c) else {
            return Err(emulated("FP8 units take no product of sizes"));
        };
        let operands = Operands {
            a: input(&a.codes),
            b: input(&b.codes),
            c: output(c),
            scales: [input(&a.scales), input(&b.scales)],
            accumulate,
            workspace: output(&own),
            workspace_bytes: own.bytes(),
        };
        if !self.must("narrow matmul", self.within(|| products.takes(&shape, &operands))) {
            return Err(emulated("cuBLASLt has no FP8 product of"));
        }
        self.run_all(&launches);
        // SAFETY: the shape is that of the operands, whose tensors live; see `run` for their storage.
        let issued = unsafe { self.streams.issue(Work::Product(products.clone(), shape, operands)) };
        self.must("narrow matmul", issued);
        Ok(())
    }
}
