//! Random initialisation: normal with a given deviation, divided by `sqrt(2 layers)` for output projections of
//! sub-layers (GPT-2); norms at the identity, biases zero.
//!
//! Every element is a function of (seed, weight, position) only, so the result does not depend on threads, chunks or
//! ranks.

use std::ops::Range;

use fathom_grad::Params;
use fathom_tensor::{DType, Device, Tensor};

use crate::files::convert_into;
use crate::model::Model;
use crate::weight::{Begins, Kind, Term};

mod induction;
mod values;
mod width;

pub use induction::lacks_for_induction;
use induction::{Circuit, Place};
pub use values::Init;
use values::{mix, normals};

/// Elements that a thread generates in one go.
const CHUNK: usize = 1 << 20;
/// Elements generated in f32 before conversion; they stay in the L1 cache.
const BLOCK: usize = 1 << 12;

/// Initialises all weights on the machine's threads, each straight into its memory.
///
/// # Panics
/// If `params` are not this model's.
pub fn initialise(device: &Device, model: &Model, params: &mut Params, init: Init) {
    initialise_kinds(device, model, params, (init, None, &|_| true));
}

/// The same, with an induction circuit in the first two layers: heads that attend to the previous token, and heads
/// that attend to what followed the same token and copy it. Other layers' weights are those of [`initialise`], as are
/// all weights of a model that does not support the circuit ([`lacks_for_induction`]).
///
/// # Panics
/// If `params` are not this model's.
pub fn initialise_induction(device: &Device, model: &Model, params: &mut Params, init: Init) {
    initialise_kinds(device, model, params, (init, Circuit::of(&model.spec, init), &|_| true));
}

/// The same, for an adapter's weights only.
pub(crate) fn initialise_adapter(device: &Device, model: &Model, params: &mut Params, init: Init) {
    initialise_kinds(device, model, params, (init, None, &|kind| kind == Kind::Adapter));
}

fn initialise_kinds(
    device: &Device,
    model: &Model,
    params: &mut Params,
    (init, circuit, wanted): (Init, Option<Circuit>, &dyn Fn(Kind) -> bool),
) {
    if !device.machine.has_data() {
        return;
    }
    let mut filled = Vec::with_capacity(params.len());
    model.visit(&mut |_, _, weight| filled.push(wanted(weight.kind)));
    let begins = begins(model, params, init, circuit);
    let (mut jobs, mut targets) = (Vec::new(), Vec::new());
    let all = begins.iter().zip(params.iter()).zip(filled);
    for ((begin, (_, param)), _) in all.filter(|(_, filled)| *filled) {
        match param.value.resident() {
            Some(weight) => cut(begin, weight, 0, &mut jobs, &mut targets),
            // Chunk by chunk on the way to disk.
            None => param.value.fill(|range, weight| {
                let (mut jobs, mut targets) = (Vec::new(), Vec::new());
                cut(begin, weight, range.start, &mut jobs, &mut targets);
                fill(device, &jobs, &targets);
            }),
        }
    }
    fill(device, &jobs, &targets);
}

/// Initial values of this rank's weights.
fn begins(model: &Model, params: &Params, init: Init, circuit: Option<Circuit>) -> Vec<Begin> {
    let mut all = Vec::with_capacity(params.len());
    let ending = (2.0 * model.spec.layers.len() as f64).sqrt();
    model.visit(&mut |id, layer, weight| {
        let deviation = init.deviation * width::deviation(weight, model.width_ratio);
        let held = &model.holdings[id.index()];
        let key = mix(mix(init.seed) ^ u64::from(held.number));
        let values = match weight.begins {
            Begins::Zeros => Values::Constant(0.0),
            Begins::Identity if weight.kind == Kind::Adapter => Values::Constant(1.0),
            Begins::Identity => Values::Constant(if model.spec.norm.plus_one { 0.0 } else { 1.0 }),
            Begins::Normal => Values::Normal { deviation, key },
            Begins::Ending => Values::Normal { deviation: deviation / ending, key },
            Begins::Standard => Values::Normal { deviation: 1.0, key },
            Begins::Ones => Values::Constant(1.0),
            Begins::LogCount => Values::LogCount,
            Begins::LogUniform => Values::LogUniform { key },
            Begins::InverseSoftplus => Values::InverseSoftplus { key },
            Begins::Within(inner) => Values::Uniform { bound: 1.0 / (inner as f64).sqrt(), key },
            Begins::Uniform => Values::Uniform { bound: 1.0 / (weight.shape[1] as f64).sqrt(), key },
        };
        let len = params.get(id).value.len();
        let runs = if held.shard.is_parted() { held.shard.runs() } else { vec![(0, 0, len)] };
        let place = match (layer, weight.role, weight.term) {
            (Some(0), "qkv", Term::Weight) => Some(Place::FirstQkv),
            (Some(0), "qkv", Term::Bias) => Some(Place::FirstBias),
            (Some(0), "attn_out", Term::Weight) => Some(Place::FirstOut),
            (Some(1), "qkv", Term::Weight) => Some(Place::SecondQkv),
            (Some(1), "attn_out", Term::Weight) => Some(Place::SecondOut),
            _ => None,
        };
        all.push(Begin { values, circuit: circuit.zip(place), runs });
    });
    all
}

/// Some elements of a weight.
struct Job<'a> {
    begin: &'a Begin,
    range: Range<usize>,
    dtype: DType,
}

/// Splits a tensor with a weight's elements from `first` on into jobs for one thread each.
fn cut<'a>(
    begin: &'a Begin,
    weight: &Tensor,
    first: usize,
    jobs: &mut Vec<Job<'a>>,
    targets: &mut Vec<Vec<Tensor>>,
) {
    let weight = weight.reshape(1, weight.len());
    for start in (0..weight.len()).step_by(CHUNK) {
        let end = weight.len().min(start + CHUNK);
        jobs.push(Job { begin, range: first + start..first + end, dtype: weight.dtype() });
        targets.push(vec![weight.view_cols(start..end)]);
    }
}

fn fill(device: &Device, jobs: &[Job<'_>], targets: &[Vec<Tensor>]) {
    device.machine.fill(targets, &|index, elements| {
        let Job { begin, range, dtype } = &jobs[index];
        elements.iter_mut().for_each(|out| begin.write(range.clone(), *dtype, out));
    });
}

/// Initial values of a weight.
struct Begin {
    values: Values,
    /// The circuit that modifies them.
    circuit: Option<(Circuit, Place)>,
    /// Runs of elements: start in this rank's part, start in the whole weight, length.
    runs: Vec<(usize, usize, usize)>,
}

#[derive(Clone, Copy)]
enum Values {
    Constant(f32),
    Normal { deviation: f64, key: u64 },
    Uniform { bound: f64, key: u64 },
    LogCount,
    LogUniform { key: u64 },
    InverseSoftplus { key: u64 },
}

impl Begin {
    /// Writes elements of this rank's part in the machine's format.
    fn write(&self, range: Range<usize>, dtype: DType, out: &mut [u8]) {
        let (mut values, mut raw) = (vec![0.0; BLOCK.min(range.len())], Vec::new());
        for (start, out) in range.clone().step_by(BLOCK).zip(out.chunks_mut(BLOCK * dtype.bytes())) {
            let values = &mut values[..BLOCK.min(range.end - start)];
            self.part(start, values);
            raw.clear();
            raw.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            convert_into(DType::F32, &raw, dtype, out);
        }
    }

    /// Elements of this rank's part from `first` on.
    fn part(&self, first: usize, out: &mut [f32]) {
        let end = first + out.len();
        let from = self.runs.partition_point(|(here, _, len)| here + len <= first);
        for &(here, at, len) in self.runs[from..].iter().take_while(|(here, ..)| *here < end) {
            let (start, stop) = (here.max(first), (here + len).min(end));
            let (at, out) = (at + start - here, &mut out[start - first..stop - first]);
            self.values.part(at, out);
            if let Some((circuit, place)) = &self.circuit {
                circuit.write(*place, at, out);
            }
        }
    }
}

impl Values {
    /// Elements of the whole weight from `first` on.
    fn part(self, first: usize, out: &mut [f32]) {
        match self {
            Values::Constant(value) => out.fill(value),
            Values::Normal { deviation, key } => normals(key, first, deviation, out),
            Values::Uniform { bound, key } => {
                each(first, out, |at| bound * (2.0 * uniform(key, at) - 1.0));
            }
            Values::LogCount => each(first, out, |at| ((at + 1) as f64).ln()),
            Values::LogUniform { key } => each(first, out, |at| (0.01 + 15.99 * uniform(key, at)).ln()),
            Values::InverseSoftplus { key } => each(first, out, |at| {
                let [low, high] = [0.001f64, 0.1].map(f64::ln);
                let step = (low + (high - low) * uniform(key, at)).exp();
                step + (-(-step).exp_m1()).ln()
            }),
        }
    }
}

/// A number from 0 to 1.
fn uniform(key: u64, at: usize) -> f64 {
    mix(key ^ mix(at as u64)) as f64 / u64::MAX as f64
}

fn each(first: usize, out: &mut [f32], value: impl Fn(usize) -> f64) {
    out.iter_mut().enumerate().for_each(|(index, out)| *out = value(first + index) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(runs: Vec<(usize, usize, usize)>) -> Begin {
        Begin { values: Values::Normal { deviation: 0.02, key: mix(7) }, circuit: None, runs }
    }

    fn floats(begin: &Begin, range: Range<usize>) -> Vec<f32> {
        let mut bytes = vec![0; 4 * range.len()];
        begin.write(range, DType::F32, &mut bytes);
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn normals_are_normal_however_they_are_cut() {
        let begin = normal(vec![(0, 0, 100_001)]);
        let one = floats(&begin, 0..100_001);
        for range in [4096..5000, 4097..4098, 7777..60_001, 100_000..100_001] {
            assert_eq!(floats(&begin, range.clone()), one[range]);
        }
        let mean = one.iter().map(|x| f64::from(*x)).sum::<f64>() / one.len() as f64;
        let square = one.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / one.len() as f64;
        assert!(mean.abs() < 3e-4 && (square.sqrt() - 0.02).abs() < 2e-4, "{mean} {square}");
        assert!(one.iter().any(|x| x.abs() > 0.07));
        // Computed from the definition with Python's doubles.
        let expected = [
            (0, -0.029_939_397_555_438_65),
            (1, -0.005_380_975_344_947_98),
            (4097, 0.044_650_008_807_294_05),
            (99_999, 0.022_992_759_316_868_55),
            (100_000, 0.017_841_036_162_727_66),
        ];
        for (at, value) in expected {
            assert!((f64::from(one[at]) - value).abs() < 4e-9, "{at}: {}, not {value}", one[at]);
        }
    }

    #[test]
    fn parts_of_a_weight_have_the_values_of_the_whole() {
        let all = floats(&normal(vec![(0, 0, 40)]), 0..40);
        let part = normal(vec![(0, 3, 5), (5, 13, 5), (10, 23, 5)]);
        let expected = [&all[3..8], &all[13..18], &all[23..28]].concat();
        for range in [0..15, 2..11, 5..10, 9..10] {
            assert_eq!(floats(&part, range.clone()), expected[range]);
        }
    }
}
