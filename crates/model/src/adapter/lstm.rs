//! PEFT's second encoder of virtual tokens (p-tuning; Liu et al., 2021): a bidirectional LSTM of two layers and an
//! MLP of two layers. PyTorch concatenates the states of both directions; here the weight that reads them is two, one
//! per direction.

use fathom_grad::{Ctx, ParamId, Val};
use fathom_tensor::Activation;

use super::weights::{LayerNames, linear, weight};
use crate::spec::Spec;
use crate::weight::{Begins, LinearParams, Module, Term, Walk};

/// Weights of the encoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct LstmParams {
    /// Per layer its two directions, forwards first.
    cells: [[CellParams; 2]; 2],
    /// [2h, h] for the states of each direction. The first has the bias.
    first: [LinearParams; 2],
    /// [d, 2h].
    last: LinearParams,
}

/// One direction of one layer.
#[derive(Clone, Copy, Debug)]
struct CellParams {
    /// [4h, d], or [4h, h] for the states of each direction of the layer below. The first has the bias.
    ins: [Option<LinearParams>; 2],
    /// [4h, h].
    weight: ParamId,
    /// [1, 4h].
    bias: ParamId,
}

/// Roles and names in files of a cell's parts, and names of its activations.
struct CellNames {
    ins: [LayerNames; 2],
    state: LayerNames,
    values: [&'static str; 4],
}

macro_rules! cell {
    ($at:literal, $forwards:literal) => {
        CellNames {
            ins: [
                [
                    concat!("prompt_encoder.lstm", $at),
                    concat!("prompt_encoder.lstm_head.weight_ih", $at, $forwards),
                    concat!("prompt_encoder.lstm_head.bias_ih", $at),
                ],
                [
                    concat!("prompt_encoder.lstm", $at, ".backwards"),
                    concat!("prompt_encoder.lstm_head.weight_ih", $at, ".backwards"),
                    "",
                ],
            ],
            state: [
                concat!("prompt_encoder.lstm", $at, ".state"),
                concat!("prompt_encoder.lstm_head.weight_hh", $at),
                concat!("prompt_encoder.lstm_head.bias_hh", $at),
            ],
            values: [
                concat!("prompt.lstm", $at, ".in"),
                concat!("prompt.lstm", $at, ".back"),
                concat!("prompt.lstm", $at, ".both"),
                concat!("prompt.lstm", $at),
            ],
        }
    };
}

static CELLS: [[CellNames; 2]; 2] = [
    [cell!("_l0", ""), cell!("_l0_reverse", "")],
    [cell!("_l1", ".forwards"), cell!("_l1_reverse", ".forwards")],
];
const HEAD: [LayerNames; 3] = [
    ["prompt_encoder.0", "prompt_encoder.mlp_head.0.weight.forwards", "prompt_encoder.mlp_head.0.bias"],
    ["prompt_encoder.0.backwards", "prompt_encoder.mlp_head.0.weight.backwards", ""],
    ["prompt_encoder.2", "prompt_encoder.mlp_head.2.weight", "prompt_encoder.mlp_head.2.bias"],
];

/// Reads weights and biases for computing a cell on the host.
pub(super) type InputWeights<'a> = &'a dyn Fn(ParamId) -> Vec<f32>;
/// Applies a linear layer on the host.
pub(super) type Through<'a> = &'a dyn Fn(&LinearParams, &[f32]) -> Vec<f32>;

impl LstmParams {
    /// Declares an encoder with `h` hidden columns per direction.
    pub fn declare(w: &mut Walk<'_>, s: &Spec, h: usize) -> LstmParams {
        let (d, at) = (s.hidden, Module::Input);
        let mut cell = |layer: usize, direction: usize| {
            let names = &CELLS[layer][direction];
            // PyTorch's initialization of all weights of an LSTM.
            let begins = Begins::Within(h);
            let inner = if layer == 0 { d } else { h };
            let first = linear(w, (names.ins[0], at), [4 * h, inner], begins);
            let second = (layer > 0).then(|| linear(w, (names.ins[1], at), [4 * h, h], begins));
            let [role, name, bias] = names.state;
            CellParams {
                ins: [Some(first), second],
                weight: weight(w, (role, at), [4 * h, h], (name, Term::Weight), begins),
                bias: weight(w, (role, at), [1, 4 * h], (bias, Term::Bias), begins),
            }
        };
        let cells = [[cell(0, 0), cell(0, 1)], [cell(1, 0), cell(1, 1)]];
        let mut head =
            |part: usize, shape: [usize; 2]| linear(w, (HEAD[part], at), shape, Begins::Within(2 * h));
        let first = [head(0, [2 * h, h]), head(1, [2 * h, h])];
        LstmParams { cells, first, last: head(2, [d, 2 * h]) }
    }

    /// Rows [n, d] to embeddings [n, d].
    pub fn forward(&self, cx: &mut Ctx<'_>, rows: Val) -> Val {
        let mut states = [rows; 2];
        for (cells, names) in self.cells.iter().zip(&CELLS) {
            states = [0, 1]
                .map(|direction| cells[direction].forward(cx, &names[direction], states, direction == 1));
        }
        let names = ["prompt.first.forwards", "prompt.first.backwards"];
        let [forwards, backwards] = [0, 1].map(|at| self.first[at].whole(cx, names[at], states[at]));
        let u_nh = cx.add("prompt.first", forwards, backwards);
        let u_nh = cx.activate("prompt.first.act", Activation::Relu, u_nh);
        self.last.whole(cx, "prompt.last", u_nh)
    }

    /// The same computation on the host.
    pub fn on_host(&self, rows: Vec<f32>, read: InputWeights<'_>, through: Through<'_>) -> Vec<f32> {
        let mut states = [rows.clone(), rows];
        for cells in &self.cells {
            states = [0, 1].map(|direction| cells[direction].on_host(&states, read, through, direction == 1));
        }
        let [mut u, more] = [0, 1].map(|at| through(&self.first[at], &states[at]));
        u.iter_mut().zip(more).for_each(|(u, more)| *u = (*u + more).max(0.0));
        through(&self.last, &u)
    }
}

impl CellParams {
    fn forward(&self, cx: &mut Ctx<'_>, names: &CellNames, below: [Val; 2], reversed: bool) -> Val {
        let mut z: Option<Val> = None;
        for ((p, x), name) in self.ins.iter().zip(below).zip(names.values) {
            let Some(p) = p else { continue };
            let more = p.whole(cx, name, x);
            z = Some(z.map_or(more, |z| cx.add(names.values[2], z, more)));
        }
        let Some(z) = z else { panic!("lstm: a cell that reads nothing") };
        cx.lstm(names.values[3], z, (self.weight, self.bias), reversed)
    }

    fn on_host(
        &self,
        below: &[Vec<f32>; 2],
        read: InputWeights<'_>,
        through: Through<'_>,
        reversed: bool,
    ) -> Vec<f32> {
        let mut z: Vec<f64> = Vec::new();
        for (p, x) in self.ins.iter().zip(below) {
            let Some(p) = p else { continue };
            let more = through(p, x).into_iter().map(f64::from);
            z = if z.is_empty() { more.collect() } else { z.iter().zip(more).map(|(a, b)| a + b).collect() };
        }
        let (weight, bias) = (read(self.weight), read(self.bias));
        let gates = bias.len();
        let h = gates / 4;
        let rows = z.len() / gates.max(1);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (mut c, mut state, mut out) = (vec![0.0; h], vec![0.0; h], vec![0.0; rows * h]);
        for at in 0..rows {
            let row = if reversed { rows - 1 - at } else { at };
            let sum = |gate: usize| {
                let own = weight[gate * h..(gate + 1) * h].iter().zip(&state);
                z[row * gates + gate]
                    + f64::from(bias[gate])
                    + own.map(|(w, x)| f64::from(*w) * x).sum::<f64>()
            };
            let sums: Vec<f64> = (0..gates).map(sum).collect();
            for k in 0..h {
                let [i, f, o] = [k, h + k, 3 * h + k].map(|gate| sigmoid(sums[gate]));
                c[k] = f * c[k] + i * sums[2 * h + k].tanh();
                state[k] = o * f64::tanh(c[k]);
                out[row * h + k] = state[k] as f32;
            }
        }
        out
    }
}
