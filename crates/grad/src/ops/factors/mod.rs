//! Columns multiplied with trained factors (IA3; Liu et al., 2022, section 3.3).

use fathom_tensor::Tensor;

use super::rescale::{multiply_runs, sum_runs};
use super::{like, only};
use crate::low_rank::Runs;
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues, Saves, Want};
use crate::{Ctx, ParamId, Val};

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

impl Ctx<'_> {
    /// x [t, n] with the columns of each run multiplied by `factors` [1, columns of all runs]; the others are
    /// unchanged. A rank that has some of the columns has their factors.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn factors(&mut self, name: &'static str, x: Val, factors: ParamId, runs: Runs) -> Val {
        let runs = runs.held(self.params.shape(factors)[1]);
        only(self.apply(Factors { name, runs }, &[x], &[factors]))
    }
}

struct Factors {
    name: &'static str,
    runs: Runs,
}

impl Op for Factors {
    fn name(&self) -> &'static str {
        "factors"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let (name, cols, runs) = (self.name, ins[0].cols, self.runs);
        let fits = runs.iter().all(|(at, columns)| at + columns <= cols);
        assert!(fits && params[0] == [1, runs.columns()], "factors {name}: {runs:?} of x [t, {cols}]");
        like(name, ins[0])
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: if want.weights { vec![0] } else { vec![] }, outs: vec![] }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        multiply_runs(x, self.runs, &ins[0], &params[0], &outs[0]);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            multiply_runs(x, self.runs, dy, &saved.params[0], &dx.tensor);
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        if let (Some(dy), Some(sums)) = (&dy[0], &dw[0]) {
            sum_runs(x, self.runs, ([dy, saved.input(0)], None), sums);
        }
    }
}
