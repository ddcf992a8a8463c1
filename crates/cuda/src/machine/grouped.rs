//! Products by expert: by a library's grouped products if available, else by kernels that gather as they multiply. The
//! host never learns how many rows an expert has.
#![allow(unsafe_code)]

use fathom_tensor::{DType, GroupedMatMul, GroupedWeight, OpDesc, Tensor};

use super::Cuda;
use crate::kernels::{self, Grouped};
use crate::memory::Work;

impl Cuda {
    /// `C = A op(W_e)`.
    #[track_caller]
    pub(super) fn grouped_product(&self, op: &GroupedMatMul<'_>, ws: &Tensor) {
        let made = || kernels::groups_matmul(op, ws);
        if !self.by_groups("grouped matmul", &op.desc(), made) {
            self.run_all(&kernels::grouped_matmul(op, ws));
        }
    }

    /// `C_e += A_e^T B_e`.
    #[track_caller]
    pub(super) fn grouped_gradient(&self, op: &GroupedWeight<'_>, ws: &Tensor) {
        let made = || kernels::groups_weight(op, ws);
        if !self.by_groups("grouped weight gradient", &op.desc(), made) {
            self.run_all(&kernels::grouped_weight(op, ws));
        }
    }

    /// Issues the prepared product if the library supports it; reports the reason once if not.
    #[track_caller]
    fn by_groups(&self, name: &str, desc: &OpDesc, made: impl FnOnce() -> Option<Grouped>) -> bool {
        let refused = self.issue_groups(name, desc, made).err();
        self.taken.grouped(refused.is_none());
        refused.map(|why| self.say_once(why)).is_none()
    }

    /// # Errors
    /// Why nothing was issued; empty if there is nothing to report.
    #[track_caller]
    fn issue_groups(
        &self,
        name: &str,
        desc: &OpDesc,
        made: impl FnOnce() -> Option<Grouped>,
    ) -> Result<(), String> {
        let OpDesc::Grouped { inner, out, input, .. } = *desc else { return Err(String::new()) };
        // Grouped products support only 16-bit operands.
        if input == DType::F32 {
            return Err(String::new());
        }
        let library = self.grouped.as_ref().map_err(String::clone)?;
        let refused = |why: &str| format!("{why} {name} {inner} x {out} of {input:?}: kernels of our own");
        let Grouped { groups, sort, parts } = made().ok_or_else(|| refused("groups take no operands of"))?;
        let Some(first) = parts.first() else { return Err(String::new()) };
        if !self.must(name, self.within(|| library.takes(&groups, &first.operands))) {
            return Err(refused("cuBLASLt has no groups for"));
        }
        self.run_all(&sort);
        for part in &parts {
            self.run_all(&part.before);
            let work = Work::Groups(library.clone(), groups, part.operands);
            // SAFETY: the tables are written by earlier launches and refer to tensors that live; see `run` for their
            // storage.
            self.must(name, unsafe { self.streams.issue(work) });
            part.after.iter().for_each(|launch| self.run(launch));
        }
        Ok(())
    }
}
