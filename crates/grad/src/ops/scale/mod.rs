//! Multiplication by a constant (Granite's residual multiplier), or by one for each of some runs of columns (Falcon-H1).

use fathom_tensor::Tensor;

use super::{like, only};
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::{Ctx, Val};

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

struct Scale {
    name: &'static str,
    /// Runs of columns that cover x, each with its factor; one of no columns is all of x.
    runs: Vec<(usize, f32)>,
}

impl Ctx<'_> {
    /// `factor x`; x itself if the factor is one.
    pub fn scale(&mut self, name: &'static str, x: Val, factor: f32) -> Val {
        if factor == 1.0 { x } else { only(self.apply(Scale { name, runs: vec![(0, factor)] }, &[x], &[])) }
    }

    /// x with consecutive runs of its columns each multiplied by a factor; x itself if all factors are one.
    ///
    /// # Panics
    /// If the runs do not add up to x's columns.
    #[track_caller]
    pub fn scale_columns(&mut self, name: &'static str, x: Val, runs: &[(usize, f32)]) -> Val {
        let (cols, all) = (self.desc(x).cols, runs.iter().map(|(cols, _)| cols).sum::<usize>());
        assert_eq!(cols, all, "scale {name}: x [t, {cols}], runs {runs:?}");
        if runs.iter().all(|(_, factor)| *factor == 1.0) {
            return x;
        }
        only(self.apply(Scale { name, runs: runs.to_vec() }, &[x], &[]))
    }
}

impl Scale {
    fn run(&self, x: &Exec<'_>, from: &Tensor, to: &Tensor) {
        let mut start = 0;
        for (cols, factor) in &self.runs {
            if *cols == 0 {
                return x.device.machine.scale(from, *factor, to);
            }
            let range = start..start + cols;
            x.device.machine.scale(&from.view_cols(range.clone()), *factor, &to.view_cols(range));
            start += cols;
        }
    }
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        like(self.name, ins[0])
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        self.run(x, &ins[0], &outs[0]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            self.run(x, dy, &dx.tensor);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
