//! What the parts of a model are worth for some text, by its activations alone (Muralidharan and others, 2024, section 2.2): a mean
//! over the tokens of a sample, then the root of the sum of squares over samples.
//!
//! | part | of each token |
//! |---|---|
//! | a column of the residual stream | size of what the norms before attention and MLP give it, summed over layers |
//! | a head | length of its output |
//! | a column inside an MLP | size of its activation |
//! | a layer | one minus the cosine of its output to its input (block influence: Men and others, 2024); a mean over tokens |

use fathom_model::{Kept, ModelView, Spec};
use fathom_tensor::Tensor;

use crate::calibration::each_kept;
use crate::error::{Result, refuse};

/// Sizes of the smaller model; those of the larger one if `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Layers.
    pub layers: Option<usize>,
    /// Columns of the residual stream.
    pub hidden: Option<usize>,
    /// Columns inside an MLP.
    pub ffn: Option<usize>,
    /// Query heads.
    pub heads: Option<usize>,
}

/// Of each part; the more, the more it matters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    /// Of each layer.
    pub layers: Vec<f64>,
    /// Of each column of the residual stream.
    pub hidden: Vec<f64>,
    /// Of each query head of each layer.
    pub heads: Vec<Vec<f64>>,
    /// Of each column inside the MLP of each layer.
    pub ffn: Vec<Vec<f64>>,
}

/// Sums of squares, of which the roots are taken at the end.
fn squared(sums: &mut [f64], means: &[f64]) {
    sums.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean * mean);
}

/// Means over rows of the lengths of runs of `width` columns.
fn lengths(values: &[f32], cols: usize, width: usize) -> Vec<f64> {
    let mut sums = vec![0.0; cols / width];
    for row in values.chunks_exact(cols) {
        for (sum, run) in sums.iter_mut().zip(row.chunks_exact(width)) {
            *sum += run.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        }
    }
    let rows = (values.len() / cols.max(1)).max(1) as f64;
    sums.iter().map(|sum| sum / rows).collect()
}

/// The mean over rows of one minus the cosine between two rows.
fn influence(x: &[f32], y: &[f32], cols: usize) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let pairs = x.chunks_exact(cols).zip(y.chunks_exact(cols));
    let each = pairs.map(|(x, y)| 1.0 - dot(x, y) / (dot(x, x) * dot(y, y)).sqrt().max(f64::MIN_POSITIVE));
    let rows = (x.len() / cols.max(1)).max(1) as f64;
    each.sum::<f64>() / rows
}

/// That of the parts of a model, for some samples.
pub fn importance(ModelView { device, model, params }: ModelView<'_>, samples: &[Vec<u32>]) -> Importance {
    let spec = &model.spec;
    let layers = spec.layers.len();
    let mut all = Importance {
        layers: vec![0.0; layers],
        hidden: vec![0.0; spec.hidden],
        heads: vec![vec![0.0; spec.heads]; layers],
        ffn: vec![vec![0.0; spec.ffn]; layers],
    };
    for sample in samples {
        let mut hidden = vec![0.0; spec.hidden];
        let mut input: Option<(i32, Vec<f32>)> = None;
        let mut seen = |layer: i32, name: &str, tensor: &Tensor| {
            let values = || device.to_f32(tensor);
            let at = usize::try_from(layer).unwrap_or(0);
            match name {
                // The output of a block is the input of what follows.
                "block.in" => {
                    let next = values();
                    if let Some((before, x)) = input.take() {
                        let before = usize::try_from(before).unwrap_or(0);
                        all.layers[before] += influence(&x, &next, spec.hidden) / samples.len() as f64;
                    }
                    input = (layer >= 0).then_some((layer, next));
                }
                "attn.norm" | "mlp.norm" => {
                    let means = lengths(&values(), tensor.cols(), 1);
                    hidden.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean);
                }
                "attn.out" => squared(&mut all.heads[at], &lengths(&values(), tensor.cols(), spec.head_dim)),
                "mlp.act" => squared(&mut all.ffn[at], &lengths(&values(), tensor.cols(), 1)),
                _ => {}
            }
        };
        each_kept(ModelView { device, model, params }, sample, &mut seen);
        squared(&mut all.hidden, &hidden);
    }
    let roots = all.heads.iter_mut().chain(&mut all.ffn).flatten().chain(&mut all.hidden);
    roots.for_each(|sum| *sum = sum.sqrt());
    all
}

/// How much of each is to stay.
pub struct Choice {
    layers: usize,
    hidden: usize,
    ffn: usize,
    heads: usize,
}

impl Choice {
    /// Sizes of a part of a model.
    ///
    /// # Errors
    /// More than there is, nothing, or heads that cannot be dealt to the key heads.
    pub fn new(spec: &Spec, sizes: &Sizes) -> Result<Choice> {
        let one = |flag: &str, wanted: Option<usize>, all: usize| -> Result<usize> {
            match wanted {
                Some(n) if n == 0 || n > all => refuse!("--{flag} {n}: the model has {all}; give 1 to {all}"),
                wanted => Ok(wanted.unwrap_or(all)),
            }
        };
        let choice = Choice {
            layers: one("layers", sizes.layers, spec.layers.len())?,
            hidden: one("hidden", sizes.hidden, spec.hidden)?,
            ffn: one("ffn", sizes.ffn, spec.ffn)?,
            heads: one("heads", sizes.heads, spec.heads)?,
        };
        if spec.kv_heads != spec.heads && !choice.heads.is_multiple_of(spec.kv_heads) {
            refuse!(
                "--heads {}: the model has {} key heads, which share the query heads evenly; give a multiple of {}",
                choice.heads,
                spec.kv_heads,
                spec.kv_heads
            );
        }
        Ok(choice)
    }

    /// The most important parts; of equals the first.
    pub fn of(&self, spec: &Spec, by: &Importance) -> Kept {
        let layers = most(&by.layers, self.layers);
        let heads = |layer: &usize| {
            if spec.kv_heads == spec.heads {
                return most(&by.heads[*layer], self.heads);
            }
            let (group, stay) = (spec.heads / spec.kv_heads, self.heads / spec.kv_heads);
            let groups = by.heads[*layer].chunks(group).enumerate();
            groups
                .flat_map(|(at, heads)| most(heads, stay).into_iter().map(move |head| at * group + head))
                .collect()
        };
        Kept {
            hidden: most(&by.hidden, self.hidden),
            heads: layers.iter().map(heads).collect(),
            ffn: layers.iter().map(|layer| most(&by.ffn[*layer], self.ffn)).collect(),
            layers,
        }
    }
}

/// The places of the `n` largest, ascending.
fn most(values: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order.truncate(n);
    order.sort_unstable();
    order
}
