//! A family unknown to this program, with a recurrent mixer of its own, defined in this file alone: `s_t = d s_(t-1) +
//! u_t + u_(t-1) / 2`, `y_t = c_t s_t`, from nothing in each document. Ranks have some of the columns of u, d and s, and all
//! of c, in whose columns those of s take turns.
//!
//! Legend of shapes: t tokens, n columns of the state on a rank, c columns of the factors.

use std::rc::Rc;
use std::sync::Arc;

use fathom_grad::{
    Batch, Ctx, Desc, Dx, Exec, Flops, Op, OptGrads, Out, ParamId, SavedValues, Saves, Val, Want,
};
use fathom_model::{
    Cut, Family, InFiles, InputSharing, Kind, LayerSpec, LinearParams, LlamaSizes, Module, Names, Own,
    Parallel, PartKind, Projection, Reach, Residual, Sharers, Spec, SplitDimension, StateSpec, SubLayer,
    SubLayerParams, Walk, WeightSpec,
};
use fathom_tensor::Tensor;
use serde_json::{Map, Value, json};

const SIZES: LlamaSizes =
    LlamaSizes { head_dim: 8, ffn: 48, max_positions: 1024, tied: false, ..LlamaSizes::TINY };

pub static FAMILY: Family = Family {
    model_type: "recurrent",
    architecture: "RecurrentForCausalLM",
    read: |c, _| Ok(spec(c.size("hidden_size")?, c.layers("num_hidden_layers")?)),
    write: |s: &Spec, map: &mut Map<String, Value>| {
        map.insert("hidden_size".into(), json!(s.hidden));
        map.insert("num_hidden_layers".into(), json!(s.layers.len()));
    },
    names: Names::LLAMA,
};

/// A recurrent mixer with its sizes.
#[derive(Debug, PartialEq)]
pub struct Recurrence {
    /// Columns of the state.
    pub state: usize,
    /// Columns of the factors.
    pub factors: usize,
}

#[derive(Debug)]
struct RecurrenceParams {
    u: LinearParams,
    c: LinearParams,
    decay: ParamId,
    out: LinearParams,
}

impl SubLayer for Recurrence {
    fn module(&self) -> Module {
        Module::Attention
    }

    fn declare(&self, w: &mut Walk<'_>, s: &Spec, _: usize) -> Own {
        let (module, [state, factors], hidden) =
            (Module::Attention, [[self.state], [self.factors]], [s.hidden]);
        let all = self.state + self.factors;
        // Both are rows of one tensor; a rank needs all factors.
        let rows = |rows| InFiles::rows("mixer.in_proj", all, vec![(rows, 0)]);
        let u = Projection::new("mixer.u", module, &state, s.hidden, rows(0..self.state));
        let c = Projection::new("mixer.c", module, &factors, s.hidden, rows(self.state..all));
        let out = InFiles::one("mixer.out_proj", s.hidden);
        let out = Projection::new("mixer.out", module, &hidden, self.state, out);
        let decay = InFiles::whole("mixer.decay", vec![self.state]);
        let kind = (module, Kind::Wide);
        Rc::new(RecurrenceParams {
            u: w.linear(u),
            c: w.linear(Projection { parallel: Parallel::Whole(InputSharing::Rows), ..c }),
            decay: w.weight(WeightSpec::new("decay", kind, [1, self.state], Cut::Rows(&state), decay)),
            out: w.linear(Projection { parallel: Parallel::Rows, ..out }),
        })
    }

    fn check(&self, ranks: &Sharers) -> Result<(), (SplitDimension, String)> {
        if !self.state.is_multiple_of(ranks.columns * self.factors) {
            let what = format!("{} ranks cannot share {} columns of a state", ranks.columns, self.state);
            return Err((SplitDimension::Columns, what));
        }
        match ranks.tokens {
            1 => Ok(()),
            cp => Err((
                SplitDimension::Tokens,
                format!("{cp} ranks share a document, which a recurrence reads in order; it must be 1"),
            )),
        }
    }

    fn states(&self, ranks: &Sharers) -> Vec<StateSpec> {
        ["sum", "last"].map(|name| StateSpec { name, shape: [1, self.state / ranks.columns] }).into()
    }
}

impl SubLayerParams for RecurrenceParams {
    fn forward(&self, cx: &mut Ctx<'_>, _: &Spec, _: &LayerSpec, h_td: Val) -> Val {
        let u_tn = self.u.columns(cx, "mixer.in.u", h_td);
        let c_tc = self.c.whole(cx, "mixer.in.c", h_td);
        let c_tc = cx.enter("mixer.in.c.all", c_tc);
        let y_tn = cx.whole(|cx| cx.apply(Scan, &[u_tn, c_tc], &[self.decay])[0]);
        self.out.rows(cx, "mixer.proj", y_tn)
    }
}

/// The recurrence, over f32 values on the host.
struct Scan;

/// A row of a host matrix.
fn row(values: &[f32], at: usize, cols: usize) -> &[f32] {
    &values[at * cols..(at + 1) * cols]
}

/// Decay factors of a weight.
fn factors(x: &Exec<'_>, decay: &Tensor) -> Vec<f32> {
    x.device.to_f32(decay).iter().map(|decay| 1.0 / (1.0 + (-decay).exp())).collect()
}

fn write(x: &Exec<'_>, to: &Tensor, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    x.device.machine.write(to, &bytes);
}

impl Op for Scan {
    fn name(&self) -> &'static str {
        "recurrence"
    }

    fn outputs(&self, ins: &[Desc], params: &[[usize; 2]]) -> Vec<Out> {
        let n = ins[0].cols;
        assert!(
            params == [[1, n]] && n.is_multiple_of(ins[1].cols),
            "recurrence: {n} columns, decay {params:?}"
        );
        vec![Out::new("mixer.out", n, ins[0].dtype), Out::statistic("mixer.out.states", n)]
    }

    fn saves(&self, want: Want) -> Saves {
        Saves { ins: vec![1], outs: if want.inputs || want.weights { vec![1] } else { Vec::new() } }
    }

    fn flops(&self, rows: usize, ins: &[Desc], _: &[[usize; 2]], _: &Batch) -> Flops {
        let all = (rows * ins[0].cols) as u64;
        Flops { forward: 5 * all, input: 6 * all, weight: 2 * all, extra: 0 }
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], params: &[Tensor], outs: &[Tensor]) {
        let (device, layer, [n, k]) = (x.device, x.layer as usize, [ins[0].cols(), ins[1].cols()]);
        let decay = factors(x, &params[0]);
        let [u, c] = [0, 1].map(|input| device.to_f32(&ins[input]));
        let (mut y, mut s) = (vec![0.0; u.len()], vec![0.0; u.len()]);
        for run in x.batch.documents.iter().flat_map(|documents| &documents.runs) {
            let kept =
                x.kv.as_deref_mut()
                    .map(|kv| ["sum", "last"].map(|name| kv.state(device, layer, name, run.document)));
            if u.is_empty() {
                continue;
            }
            let mut before = match &kept {
                Some(kept) => [0, 1].map(|state| device.to_f32(&kept[state])),
                None => [vec![0.0; n], vec![0.0; n]],
            };
            for t in run.rows.clone() {
                for j in 0..n {
                    let at = t * n + j;
                    s[at] = decay[j] * before[0][j] + (u[at] + 0.5 * before[1][j]);
                    y[at] = c[t * k + j % k] * s[at];
                }
                before = [row(&s, t, n).to_vec(), row(&u, t, n).to_vec()];
            }
            for (kept, now) in kept.iter().flatten().zip(&before) {
                write(x, kept, now);
            }
        }
        write(x, &outs[0], &y);
        write(x, &outs[1], &s);
    }

    fn backward_input(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        let Some(dy) = &dy[0] else { return };
        let (c, [n, k]) = (saved.input(1), [dy.cols(), saved.input(1).cols()]);
        let (ds, s) = (self.state_gradients(x, saved, dy), x.device.to_f32(saved.output(1)));
        let dy = x.device.to_f32(dy);
        let [mut du, mut dc] = [vec![0.0; dy.len()], vec![0.0; x.device.to_f32(c).len()]];
        for run in x.batch.documents.iter().flat_map(|documents| &documents.runs).filter(|_| !dy.is_empty()) {
            for (t, j) in run.rows.clone().flat_map(|t| (0..n).map(move |j| (t, j))) {
                let later = if t + 1 < run.rows.end { ds[(t + 1) * n + j] } else { 0.0 };
                du[t * n + j] = ds[t * n + j] + 0.5 * later;
                dc[t * k + j % k] += dy[t * n + j] * s[t * n + j];
            }
        }
        for (dx, values) in dx.iter().zip([du, dc]) {
            dx.iter().for_each(|dx| write(x, &dx.tensor, &values));
        }
    }

    fn backward_weight(&self, x: &mut Exec<'_>, saved: &SavedValues, dy: OptGrads<'_>, dw: OptGrads<'_>) {
        let (Some(dy), Some(Some(dw))) = (&dy[0], dw.first()) else { return };
        let n = dy.cols();
        let (ds, s) = (self.state_gradients(x, saved, dy), x.device.to_f32(saved.output(1)));
        let (decay, mut sums) = (factors(x, &saved.params[0]), x.device.to_f32(dw));
        for run in x.batch.documents.iter().flat_map(|documents| &documents.runs).filter(|_| !s.is_empty()) {
            for (t, j) in run.rows.clone().skip(1).flat_map(|t| (0..n).map(move |j| (t, j))) {
                sums[j] += ds[t * n + j] * s[(t - 1) * n + j] * decay[j] * (1.0 - decay[j]);
            }
        }
        write(x, dw, &sums);
    }
}

impl Scan {
    /// Gradients of the states [t, n].
    fn state_gradients(&self, x: &Exec<'_>, saved: &SavedValues, dy: &Tensor) -> Vec<f32> {
        let (n, k, c) = (dy.cols(), saved.input(1).cols(), x.device.to_f32(saved.input(1)));
        let (decay, dy) = (factors(x, &saved.params[0]), x.device.to_f32(dy));
        let mut ds = vec![0.0; dy.len()];
        for run in x.batch.documents.iter().flat_map(|documents| &documents.runs).filter(|_| !dy.is_empty()) {
            for (t, j) in run.rows.clone().rev().flat_map(|t| (0..n).map(move |j| (t, j))) {
                let later = if t + 1 < run.rows.end { decay[j] * ds[(t + 1) * n + j] } else { 0.0 };
                ds[t * n + j] = dy[t * n + j] * c[t * k + j % k] + later;
            }
        }
        ds
    }
}

/// Layers in turn: a recurrence and an MLP, attention and an MLP, a smaller recurrence alone, and a recurrence and
/// attention that read one norm, before an MLP.
pub fn spec(hidden: usize, layers: usize) -> Spec {
    let plain = Spec::llama(LlamaSizes { hidden, layers, ..SIZES });
    let own = |state| PartKind::Own(Arc::new(Recurrence { state, factors: 4 }));
    let attention = || PartKind::Attention { reach: Reach::Causal, rope: Some(0) };
    let mut both = LayerSpec::new([own(16), attention(), PartKind::Mlp]);
    both.parts[1].residual = Residual::SharedNorm;
    let kinds = [
        LayerSpec::new([own(32), PartKind::Mlp]),
        LayerSpec::new([attention(), PartKind::Mlp]),
        LayerSpec::new([own(16)]),
        both,
    ];
    Spec { family: &FAMILY, layers: kinds.into_iter().cycle().take(layers).collect(), ..plain }
}

/// The same without attention.
pub fn without_attention(hidden: usize, layers: usize) -> Spec {
    let plain = spec(hidden, layers);
    Spec { layers: (0..layers).map(|layer| plain.layers[layer % 2 * 2].clone()).collect(), ..plain }
}
