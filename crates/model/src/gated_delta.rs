//! The mixer of gated DeltaNet (Yang et al., "Gated Delta Networks", 2024): a causal convolution of queries, keys and
//! values, a state per head that decays and in which each token replaces what it holds for its key, and a norm with a gate;
//! between two projections.
//!
//! Legend of shapes: t tokens, d hidden, k columns of all keys, v of all values, h value heads, c = 2k + v.

use std::ops::Range;
use std::rc::Rc;

use fathom_grad::{ConvUse, Ctx, DeltaUse, GatedNormUse, HeadColumns, ParamId, Val};

use crate::spec::{
    LayerSpec, Own, RankExchange, Sharers, Spec, SplitDimension, StateSpec, SubLayer, SubLayerParams,
};
use crate::weight::{
    Begins, Cut, InFiles, InputSharing, Kind, LinearParams, Module, Parallel, Projection, StoredRows, Walk,
    WeightSpec,
};

/// Sizes and switches of the mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta {
    /// Its input projection in files.
    pub names: DeltaNames,
    /// Heads of queries and of keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of those of keys.
    pub value_heads: usize,
    /// Columns of a query or key.
    pub key: usize,
    /// Columns of a value.
    pub value: usize,
    /// Tokens that the convolution reads.
    pub width: usize,
    /// Factor of step sizes.
    pub beta: f32,
    /// Epsilon of the norm.
    pub eps: f32,
}

/// Names and order in files of the input projection's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaNames {
    /// `in_proj_qkvz` and `in_proj_ba`, each with the parts of a key head together (Qwen3-Next).
    Interleaved,
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a` (Qwen3.5).
    Apart,
    /// One projection, and of queries, keys and values one convolution, for each part (OLMo-hybrid).
    Each,
}

/// Its weights.
#[derive(Debug)]
struct GatedDeltaParams {
    of: GatedDelta,
    /// Queries, keys, values, gates, step sizes and decays on top of each other: [c + v + 2h, d].
    way_in: LinearParams,
    /// f32 [c, width].
    conv: ParamId,
    /// f32 [1, h] each: logarithm of the decay, bias of its raw value.
    of_heads: [ParamId; 2],
    /// [1, columns of a value].
    norm: ParamId,
    /// [d, v].
    way_out: LinearParams,
}

/// Prefix of its names in files.
const AT: &str = "linear_attn";
/// Its parts in names of files that have each apart.
const EACH: [&str; 6] = ["q", "k", "v", "g", "b", "a"];
/// Names of its states.
const CONV: &str = "conv";
const MEMORY: &str = "memory";
/// Added to the squared lengths by which queries and keys are divided.
const LENGTH_EPS: f32 = 1e-6;

impl GatedDelta {
    /// Columns of queries, keys, values, gates, step sizes and decays.
    fn parts(&self) -> [usize; 6] {
        let [keys, values] = [self.key_heads * self.key, self.value_heads * self.value];
        [keys, keys, values, values, self.value_heads, self.value_heads]
    }

    /// The input projection in files.
    fn stored(&self) -> InFiles {
        let [keys, _, values, _, heads, _] = self.parts();
        match self.names {
            DeltaNames::Interleaved => InFiles::Rows(vec![
                self.by_key_head("linear_attn.in_proj_qkvz", 0..4, 0),
                self.by_key_head("linear_attn.in_proj_ba", 4..6, 2 * (keys + values)),
            ]),
            DeltaNames::Apart => {
                let parts = [("qkv", 2 * keys + values), ("z", values), ("b", heads), ("a", heads)];
                InFiles::Stack(parts.map(|(name, rows)| (format!("{AT}.in_proj_{name}").into(), rows)).into())
            }
            DeltaNames::Each => {
                let named = |(name, rows)| (format!("{AT}.{name}_proj").into(), rows);
                InFiles::Stack(EACH.into_iter().zip(self.parts()).map(named).collect())
            }
        }
    }

    /// The convolution in files.
    fn stored_conv(&self) -> InFiles {
        let convolved = &self.parts()[..3];
        let shape = |columns| vec![columns, 1, self.width];
        let named =
            |(name, columns): (&str, &usize)| (format!("{AT}.{name}_conv1d.weight").into(), shape(*columns));
        match self.names {
            DeltaNames::Each => InFiles::Whole(EACH.into_iter().zip(convolved).map(named).collect()),
            _ => InFiles::whole(format!("{AT}.conv1d.weight"), shape(convolved.iter().sum())),
        }
    }

    /// A tensor with some parts, those of each key head together, whose first row is `first` in the weight.
    fn by_key_head(&self, name: &'static str, parts: Range<usize>, first: usize) -> StoredRows {
        let (parts, mut runs, mut row) = (&self.parts()[parts], Vec::new(), 0);
        for head in 0..self.key_heads {
            let mut part_row = first;
            for columns in parts {
                let own = columns / self.key_heads;
                runs.push((row..row + own, part_row + head * own));
                (row, part_row) = (row + own, part_row + columns);
            }
        }
        StoredRows { name, all: row, runs }
    }
}

impl SubLayer for GatedDelta {
    fn module(&self) -> Module {
        Module::Attention
    }

    fn declare(&self, w: &mut Walk<'_>, s: &Spec, _: usize) -> Own {
        let (module, parts, out) = (Module::Attention, self.parts(), [s.hidden]);
        let (convolved, heads) = (&parts[..3], [self.value_heads]);
        let columns: usize = convolved.iter().sum();
        let wide = (module, Kind::Wide);
        let whole = |name: &str, shape: &[usize]| InFiles::whole(format!("{AT}.{name}"), shape);
        let cut = Cut::Rows(convolved);
        let conv = WeightSpec::new("mixer.conv", wide, [columns, self.width], cut, self.stored_conv());
        let of_head = |w: &mut Walk<'_>, role, name, begins| {
            let spec = WeightSpec::new(role, wide, [1, heads[0]], Cut::Rows(&heads), whole(name, &heads));
            w.weight(WeightSpec { begins, ..spec })
        };
        let ([norm, way_out], dt_bias) = match self.names {
            DeltaNames::Each => (["o_norm", "o_proj"], Begins::InverseSoftplus),
            _ => (["norm", "out_proj"], Begins::Ones),
        };
        let norm = InFiles::one(format!("{AT}.{norm}"), self.value);
        let (of_norm, cut) = ((module, Kind::Norm), Cut::Whole(InputSharing::Own));
        let norm = WeightSpec::new("mixer.norm", of_norm, [1, self.value], cut, norm);
        let way_out = InFiles::one(format!("{AT}.{way_out}"), s.hidden);
        let way_out = Projection::new("mixer.out", module, &out, parts[3], way_out);
        Rc::new(GatedDeltaParams {
            of: self.clone(),
            way_in: w.linear(Projection::new("mixer.in", module, &parts, s.hidden, self.stored())),
            conv: w.weight(WeightSpec { begins: Begins::Within(self.width), decays: true, ..conv }),
            of_heads: [
                of_head(w, "mixer.a_log", "A_log", Begins::LogUniform),
                of_head(w, "mixer.dt_bias", "dt_bias", dt_bias),
            ],
            norm: w.weight(WeightSpec { begins: Begins::Ones, ..norm }),
            way_out: w.linear(Projection { parallel: Parallel::Rows, ..way_out }),
        })
    }

    fn check(&self, ranks: &Sharers) -> Result<(), (SplitDimension, String)> {
        if !self.key_heads.is_multiple_of(ranks.columns) {
            let what = format!(
                "{} does not divide the {} key heads of the linear attention layers",
                ranks.columns, self.key_heads
            );
            return Err((SplitDimension::Columns, what));
        }
        let own = [self.value_heads, self.key_heads].map(|heads| heads / ranks.columns);
        ranks.check_deal(own, "value heads of a linear attention layer")
    }

    fn passes(&self, ranks: &Sharers) -> Option<RankExchange> {
        let [q, k, v, _, _, heads] = self.parts().map(|columns| columns / ranks.columns);
        let (columns, state) = (q + k + v, (v + heads * self.key) * self.key);
        Some(RankExchange { reach: self.width - 1, columns, state, dealt: columns + 2 * heads + v })
    }

    fn states(&self, ranks: &Sharers) -> Vec<StateSpec> {
        let (columns, heads) = (self.parts()[..3].iter().sum::<usize>(), self.value_heads);
        vec![
            StateSpec { name: CONV, shape: [self.width - 1, columns / ranks.columns] },
            StateSpec { name: MEMORY, shape: [heads / ranks.columns, self.key * self.value] },
        ]
    }
}

impl SubLayerParams for GatedDeltaParams {
    fn forward(&self, cx: &mut Ctx<'_>, _: &Spec, _: &LayerSpec, h_td: Val) -> Val {
        let (of, all) = (&self.of, self.of.parts());
        let p_t = self.way_in.columns(cx, "mixer.in", h_td);
        let ranks = all.iter().sum::<usize>() / cx.desc(p_t).cols;
        let [q, k, v, z, b, a] = all.map(|columns| columns / ranks);
        let names = ["mixer.columns", "mixer.gate", "mixer.step", "mixer.decay"];
        let [u_tc, z_tv, b_th, a_th] = cx.split(names, p_t, [q + k + v, z, b, a], None);
        let part = |columns, width| HeadColumns { columns, width };
        let (parts, heads) = ([part(q, of.key), part(k, of.key), part(v, of.value)], [part(a, 1)]);
        let o_tv = cx.whole(|cx| {
            let names = ["mixer.columns.dealt", "mixer.decay.dealt", "mixer.step.dealt"];
            let [u_tc, a_th, b_th] = cx.to_heads(names, [u_tc, a_th, b_th], [&parts, &heads, &heads]);
            let how = ConvUse { silu: true, state: CONV, parts: &parts };
            let u_tc = cx.conv("mixer.out.conv", u_tc, self.conv, None, how);
            let (key_heads, key) = ((of.key_heads / ranks).max(cx.sharers()), of.key);
            let how = DeltaUse { key_heads, key, l2_eps: LENGTH_EPS, beta: of.beta, memory: MEMORY };
            let names = ["mixer.out", "mixer.out.states", "mixer.out.began"];
            let o_tv = cx.delta(names, [u_tc, a_th, b_th], self.of_heads, how);
            cx.to_tokens("mixer.out.own", o_tv, of.value)
        });
        let how = GatedNormUse { gate_first: false, width: of.value, eps: of.eps };
        let o_tv = cx.gated_norm("mixer.norm", o_tv, z_tv, Some(self.norm), how);
        self.way_out.rows(cx, "mixer.proj", o_tv)
    }
}
