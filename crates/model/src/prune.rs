//! Structured pruning (Minitron: Muralidharan et al., 2024): a smaller model with some of another's layers, channels,
//! heads and MLP columns. Its weights are slices of the larger model's; no value changes. The caller chooses what to
//! keep.

use std::ops::Range;

use fathom_grad::Params;
use fathom_tensor::Category;

use crate::loaded::ModelView;
use crate::model::Model;
use crate::spec::{LayerSpec, PartKind, QkNorm, Spec};
use crate::weight::Term;

/// Kept parts of a model, as ascending indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunePlan {
    /// Layers.
    pub layers: Vec<usize>,
    /// Columns of the residual stream.
    pub hidden: Vec<usize>,
    /// Query heads per kept layer. With grouped queries, every group keeps the same number; otherwise each head keeps
    /// its key head.
    pub heads: Vec<Vec<usize>>,
    /// MLP columns per kept layer.
    pub ffn: Vec<Vec<usize>>,
}

impl PrunePlan {
    /// Keeps everything.
    pub fn all(spec: &Spec) -> PrunePlan {
        let layers = spec.layers.len();
        PrunePlan {
            layers: (0..layers).collect(),
            hidden: (0..spec.hidden).collect(),
            heads: vec![(0..spec.heads).collect(); layers],
            ffn: vec![(0..spec.ffn).collect(); layers],
        }
    }

    /// Key heads kept in a layer.
    fn kv_heads(&self, spec: &Spec, at: usize) -> Vec<usize> {
        if spec.kv_heads == spec.heads { self.heads[at].clone() } else { (0..spec.kv_heads).collect() }
    }

    /// The smaller model's architecture.
    ///
    /// # Errors
    /// Parts that a model of this kind cannot lose.
    pub fn spec(&self, spec: &Spec) -> Result<Spec, String> {
        prunable(spec)?;
        let (heads, ffn) = (self.heads.first().map_or(0, Vec::len), self.ffn.first().map_or(0, Vec::len));
        let mut smaller = Spec { hidden: self.hidden.len(), heads, ffn, ..spec.clone() };
        smaller.kv_heads = if spec.kv_heads == spec.heads { heads } else { spec.kv_heads };
        smaller.layers = self.layers.iter().map(|layer| spec.layers[*layer].clone()).collect();
        Ok(smaller)
    }
}

/// Checks that a model can be pruned.
///
/// # Errors
/// The part that prevents it.
pub fn prunable(spec: &Spec) -> Result<(), String> {
    let plain = |layer: &LayerSpec| match &layer.parts[..] {
        [mixer, ffn] => matches!((&mixer.kind, &ffn.kind), (PartKind::Attention { .. }, PartKind::Mlp)),
        _ => false,
    };
    let found = [
        (spec.moe.is_some(), "experts"),
        (spec.latent.is_some(), "attention through latents"),
        (spec.sinks, "sinks of attention"),
        (spec.attention_gate, "gates of attention"),
        (spec.encoder.is_some(), "the head of an encoder"),
        (spec.adapter.is_some(), "an adapter; merge it first (fathom export)"),
        (spec.qk_norm == QkNorm::Full, "a norm over all heads"),
        (!spec.layers.iter().all(plain), "layers of another kind than attention and MLP"),
    ];
    match found.iter().find(|(has, _)| *has) {
        Some((_, what)) => Err(format!("has {what}, which pruning does not know")),
        None => Ok(()),
    }
}

/// Columns of `heads`, `width` each, starting at `first`.
fn runs(heads: &[usize], width: usize, first: usize) -> impl Iterator<Item = usize> + '_ {
    heads.iter().flat_map(move |head| first + head * width..first + (head + 1) * width)
}

/// Kept rows and columns of a weight; `None` for all.
type Slice = [Option<Vec<usize>>; 2];

fn slice(spec: &Spec, kept: &PrunePlan, at: usize, (role, term): (&str, Term)) -> Slice {
    let hidden = || Some(kept.hidden.clone());
    let heads = || kept.heads[at].as_slice();
    let bias = term == Term::Bias;
    // A bias has a column per row of its projection.
    let rows = |rows: Vec<usize>| if bias { [None, Some(rows)] } else { [Some(rows), hidden()] };
    match role {
        "qkv" => {
            let (keys, wide) = (kept.kv_heads(spec, at), spec.head_dim);
            let q = runs(heads(), wide, 0).collect::<Vec<_>>();
            let k = runs(&keys, wide, spec.q_cols());
            let v = runs(&keys, wide, spec.q_cols() + spec.kv_cols());
            rows(q.into_iter().chain(k).chain(v).collect())
        }
        "up" => {
            let halves = if spec.mlp.gated { 2 } else { 1 };
            let half = |half: usize| kept.ffn[at].iter().map(move |column| half * spec.ffn + column);
            rows((0..halves).flat_map(half).collect())
        }
        "attn_out" | "down" if bias => [None, hidden()],
        "attn_out" => [hidden(), Some(runs(heads(), spec.head_dim, 0).collect())],
        "down" => [hidden(), Some(kept.ffn[at].clone())],
        "q_norm" | "k_norm" => [None, None],
        "head" if bias => [None, None],
        // Tables and norms of the residual stream.
        _ => [None, hidden()],
    }
}

/// Prunes a whole model on one rank, keeping its type.
///
/// # Errors
/// Those of [`PrunePlan::spec`].
pub fn prune(
    ModelView { device, model, params }: ModelView<'_>,
    kept: &PrunePlan,
) -> Result<(Model, Params), String> {
    let spec = &model.spec;
    let smaller = kept.spec(spec)?;
    let (pruned, mut slices) = Model::declare(device, &smaller, model.dtype(params));
    // The larger model's weights with their layers, in order.
    let mut weights = Vec::new();
    model.visit(&mut |id, layer, weight| weights.push((id, layer, (weight.role, weight.term))));
    let of_layer = |layer: Option<usize>| weights.iter().filter(move |(_, of, _)| *of == layer);
    let mut taken = Vec::new();
    let mut before: Option<Option<usize>> = None;
    let mut source = Vec::new().into_iter();
    let mut outside = of_layer(None).copied().collect::<Vec<_>>().into_iter();
    pruned.visit(&mut |id, layer, _| {
        if layer.is_some() && before != Some(layer) {
            let from = layer.and_then(|layer| kept.layers.get(layer)).copied();
            source = of_layer(from).copied().collect::<Vec<_>>().into_iter();
        }
        before = Some(layer);
        let from = if layer.is_some() { source.next() } else { outside.next() };
        taken.extend(from.map(|from| (id, layer.unwrap_or(0), from)));
    });
    for (to, at, (from, _, name)) in taken {
        let [rows, cols] = slice(spec, kept, at, name);
        let whole = params.shape(from);
        let values = device.to_f32(&params.tensor(from));
        let all =
            |of: Option<Vec<usize>>, n: usize| of.unwrap_or_else(|| Range { start: 0, end: n }.collect());
        let (rows, cols) = (all(rows, whole[0]), all(cols, whole[1]));
        let row = |row: &usize| cols.iter().map(|col| values[row * whole[1] + col]).collect::<Vec<f32>>();
        let values: Vec<f32> = rows.iter().flat_map(row).collect();
        let name = &slices.get(to).name;
        assert_eq!(slices.shape(to), [rows.len(), cols.len()], "prune: {name}");
        let slice = device.from_f32(rows.len(), cols.len(), &values, Category::Workspace);
        device.machine.copy(&slice, &slices.tensor(to));
    }
    slices.forget_segments();
    Ok((pruned, slices))
}
