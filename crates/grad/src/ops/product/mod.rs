//! Products of two values, element by element (LFM2's gates).

use fathom_tensor::Tensor;

use super::{like, only};
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Product {
    name: &'static str,
}

impl Ctx<'_> {
    /// `a b`, element by element: both [t, n].
    ///
    /// # Panics
    /// If their columns differ.
    #[track_caller]
    pub fn product(&mut self, name: &'static str, a: Val, b: Val) -> Val {
        only(self.apply(Product { name }, &[a, b], &[]))
    }
}

impl Op for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let [a, b] = [ins[0], ins[1]];
        let fits = a.cols == b.cols && a.dtype == b.dtype;
        assert!(fits, "product {}: [t, {}] {:?}, [t, {}] {:?}", self.name, a.cols, a.dtype, b.cols, b.dtype);
        like(self.name, a)
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: if want.inputs { vec![0, 1] } else { vec![] }, outs: vec![] }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        x.device.machine.multiply(&ins[0], &ins[1], &outs[0]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let Some(dy) = &dy[0] else { return };
        for (dx, other) in dx.iter().zip([1, 0]) {
            if let Some(dx) = dx {
                x.device.machine.multiply(dy, saved.input(other), &dx.tensor);
            }
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
