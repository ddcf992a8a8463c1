//! Initial weights with which a model can copy: an induction circuit in its first two layers.
//!
//! Trained language models contain such a circuit (Olsson et al., 2022, arXiv:2209.11895): a head that attends to the
//! previous token and, in a later layer, one that attends to what followed an earlier occurrence of the current token
//! and copies it. Small models find it only after millions of tokens. Starting near what training finds is called
//! mimetic initialisation (Trockman and Kolter, 2023, arXiv:2305.09828). Everything stays trainable; all other
//! weights are initialised as usual.

use crate::spec::{QkNorm, Reach, Spec};

use super::values::{Init, mix, normals};

/// Most column pairs, fastest first, whose biases find the previous token.
const FAST_PAIRS: usize = 8;
/// Contribution of each of those pairs to the previous token's score.
const BIAS_SCORE: f64 = 8.0;
/// Factor of the usual weights where the circuit does not use them: next to biases, and in fast-rotating columns.
const PROJECTED: f32 = 0.1;
/// Deviation of the rows that compare tokens, relative to the normalised input.
const COMPARED: f64 = 2.0;
/// Length of the written encoding of the previous token, relative to an embedding.
const WRITTEN: f64 = 1.0;
/// Share of a normalised token that the induction heads copy in total.
const COPIED: f64 = 0.5;

/// Random keys of matrices shared by both layers: values and outputs of the first, values of the second.
const VALUES: u64 = 0x76_61_6c_75;
const WRITES: u64 = 0x77_72_69_74;
const COPIES: u64 = 0x63_6f_70_79;

/// The sizes of a model's circuit.
#[derive(Clone, Copy)]
pub(super) struct Circuit {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    theta: f64,
    interleaved: bool,
    scale: f64,
    embed_scale: f64,
    init: Init,
}

/// Weights that the circuit occupies.
#[derive(Clone, Copy)]
pub(super) enum Place {
    FirstQkv,
    FirstBias,
    FirstOut,
    SecondQkv,
    SecondOut,
}

/// A row of fused queries, keys and values: head, and column within it.
enum Row {
    Query(usize, usize),
    Key(usize, usize),
    Value(usize, usize),
}

/// The reason why a model cannot have the circuit, if any.
pub fn lacks_for_induction(spec: &Spec) -> Option<&'static str> {
    let rotated = |index: usize| {
        let layer = spec.layers.get(index)?;
        let rope = &spec.ropes[layer.rope()?];
        (layer.reach() == Some(Reach::Causal) && rope.rot_dim == spec.head_dim).then_some(())
    };
    if rotated(0).and(rotated(1)).is_none() {
        return Some("two layers that attend to all tokens before and whose heads are rotated as a whole");
    }
    if spec.latent.is_some() || spec.qk_norm != QkNorm::None {
        return Some("queries and keys that are neither normalised nor made of latents");
    }
    if !spec.bias.qkv {
        return Some("biases of queries and keys, as families granite and qwen2 have");
    }
    (spec.head_dim < 8).then_some("heads of 8 columns or more")
}

impl Circuit {
    pub(super) fn of(spec: &Spec, init: Init) -> Option<Circuit> {
        let rope = &spec.ropes[spec.layers.first()?.rope()?];
        lacks_for_induction(spec).is_none().then_some(Circuit {
            hidden: spec.hidden,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            theta: rope.theta,
            interleaved: rope.interleaved,
            scale: f64::from(spec.attention_scale),
            embed_scale: f64::from(spec.embed_scale),
            init,
        })
    }

    /// Modifies a weight's elements from `first` on; `out` has their usual values.
    pub(super) fn write(&self, place: Place, first: usize, out: &mut [f32]) {
        for (index, out) in out.iter_mut().enumerate() {
            let at = first + index;
            *out = match place {
                Place::FirstQkv => self.first_qkv(at, *out),
                Place::FirstBias => self.first_bias(at),
                Place::FirstOut => self.first_out(at, *out),
                Place::SecondQkv => self.second_qkv(at, *out),
                Place::SecondOut => self.second_out(at),
            };
        }
    }

    /// Query heads per head of keys and values.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn row(&self, row: usize) -> Row {
        let (head, column) = (row / self.head_dim, row % self.head_dim);
        match head {
            _ if head < self.heads => Row::Query(head, column),
            _ if head < self.heads + self.kv_heads => Row::Key(head - self.heads, column),
            _ => Row::Value(head - self.heads - self.kv_heads, column),
        }
    }

    /// The rotary pair of a head's column, and whether it is the pair's second column.
    fn pair(&self, column: usize) -> (usize, bool) {
        let half = self.head_dim / 2;
        if self.interleaved { (column / 2, column % 2 == 1) } else { (column % half, column >= half) }
    }

    /// The column's index within the slow half of a head's pairs, which rotate little over a whole sequence.
    fn slow(&self, column: usize) -> Option<usize> {
        let (pair, second) = self.pair(column);
        let slow = self.head_dim / 4;
        let number = pair.checked_sub(self.head_dim / 2 - slow)?;
        Some(number + if second { slow } else { 0 })
    }

    /// Element `at` of a matrix that the circuit shares.
    fn shared(&self, matrix: u64, at: usize, deviation: f64) -> f32 {
        let mut out = [0.0];
        normals(mix(mix(self.init.seed) ^ matrix), at, deviation, &mut out);
        out[0]
    }

    fn compared(&self) -> f64 {
        COMPARED / (self.hidden as f64).sqrt()
    }

    fn first_qkv(&self, at: usize, usual: f32) -> f32 {
        let (row, col) = (at / self.hidden, at % self.hidden);
        match self.row(row) {
            Row::Query(head, _) if head < self.group() => PROJECTED * usual,
            Row::Key(0, _) => PROJECTED * usual,
            Row::Value(0, column) => self.shared(VALUES, column * self.hidden + col, self.init.deviation),
            _ => usual,
        }
    }

    /// A query rotated back by one position: it equals the previous token's key.
    fn first_bias(&self, at: usize) -> f32 {
        let length = (BIAS_SCORE / self.scale).sqrt();
        let turn = |column: usize| {
            let (pair, second) = self.pair(column);
            let angle = self.theta.powf(-2.0 * pair as f64 / self.head_dim as f64);
            (pair < FAST_PAIRS.min(self.head_dim / 4)).then_some((angle, second))
        };
        let value = match self.row(at) {
            Row::Query(head, column) if head < self.group() => {
                turn(column).map_or(0.0, |(angle, second)| if second { -angle.sin() } else { angle.cos() })
            }
            Row::Key(0, column) => turn(column).map_or(0.0, |(_, second)| if second { 0.0 } else { 1.0 }),
            _ => 0.0,
        };
        (length * value) as f32
    }

    fn first_out(&self, at: usize, usual: f32) -> f32 {
        let width = self.heads * self.head_dim;
        let (row, head, column) = (at / width, at % width / self.head_dim, at % self.head_dim);
        if head >= self.group() {
            return usual;
        }
        // Heads write the same in total; values have the length of rows of the usual deviation over normalised input.
        let length = WRITTEN * self.embed_scale / self.group() as f64;
        let deviation = length / ((self.head_dim * self.hidden) as f64).sqrt();
        self.shared(WRITES, row * self.head_dim + column, deviation)
    }

    fn second_qkv(&self, at: usize, usual: f32) -> f32 {
        let (row, col) = (at / self.hidden, at % self.hidden);
        match self.row(row) {
            Row::Query(head, column) if head < self.group() => {
                self.slow(column).map_or(PROJECTED * usual, |number| {
                    self.shared(VALUES, number * self.hidden + col, self.compared())
                })
            }
            Row::Key(0, column) => self.slow(column).map_or(PROJECTED * usual, |number| {
                self.shared(WRITES, col * self.head_dim + number, self.compared())
            }),
            Row::Value(head, column) => {
                let row = head * self.head_dim + column;
                self.shared(COPIES, row * self.hidden + col, self.init.deviation)
            }
            _ => usual,
        }
    }

    fn second_out(&self, at: usize) -> f32 {
        let width = self.heads * self.head_dim;
        let (row, head, column) = (at / width, at % width / self.head_dim, at % self.head_dim);
        let of_values = head / self.group() * self.head_dim + column;
        let factor = COPIED / ((self.group() * self.head_dim) as f64 * self.init.deviation.powi(2));
        self.shared(COPIES, of_values * self.hidden + row, self.init.deviation * factor)
    }
}
