//! Arguments of attention calls.

use crate::{Mask, PageFormat, Tensor};

/// Buckets of the distances of keys from their queries (Raffel et al., 2020, section 2.1): small distances have one
/// each, larger ones share them by their logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Number of buckets; half of them are for keys after the query if `two_sided`.
    pub count: usize,
    /// Whether keys after the query have buckets of their own; otherwise they share that of distance 0.
    pub two_sided: bool,
    /// Distance from which on all keys share a bucket.
    pub max_distance: usize,
}

impl Buckets {
    /// The bucket of a key at this position minus that of its query. Logarithms are in f32, as in Transformers:
    /// truncation decides borders.
    pub fn of(self, distance: i64) -> usize {
        let (count, base, far) = if self.two_sided {
            let half = self.count / 2;
            (half, if distance > 0 { half } else { 0 }, distance.unsigned_abs())
        } else {
            (self.count, 0, (-distance).max(0) as u64)
        };
        let exact = count / 2;
        if far < exact as u64 {
            return base + far as usize;
        }
        let log = (far as f32 / exact as f32).ln() / (self.max_distance as f64 / exact as f64).ln() as f32;
        base + (exact + (log * (count - exact) as f32) as usize).min(count - 1)
    }
}

/// Terms of a table, by the distance of a key from its query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DistanceTerms {
    /// A row for each bucket of distances.
    Buckets(Buckets),
    /// One row, of slopes: a term is the slope times the distance, which is at most 0 for keys up to their query (ALiBi;
    /// Press et al., 2022, section 3). Slopes are constants.
    Slopes,
}

impl DistanceTerms {
    /// Rows of the table.
    pub fn rows(self) -> usize {
        match self {
            DistanceTerms::Buckets(buckets) => buckets.count,
            DistanceTerms::Slopes => 1,
        }
    }

    /// Distance from which on all keys have the same term; 0 if terms have no end.
    pub fn span(self) -> usize {
        match self {
            DistanceTerms::Buckets(buckets) => buckets.max_distance,
            DistanceTerms::Slopes => 0,
        }
    }
}

/// Terms of scores by the distance of a key from its query, for each head.
#[derive(Clone, Copy, Debug)]
pub struct DistanceBias<'a> {
    /// f32 [rows, heads].
    pub table: &'a Tensor,
    /// The terms of distances.
    pub terms: DistanceTerms,
    /// Like `table`: the backward pass adds the table's gradient to it, if there is one.
    pub gradient: Option<&'a Tensor>,
}

/// Softmax attention under a mask; never forms the score matrix.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// [tq, heads x head_dim].
    pub q: &'a Tensor,
    /// [tk, kv_heads x head_dim].
    pub k: &'a Tensor,
    /// [tk, kv_heads x head_dim].
    pub v: &'a Tensor,
    /// [tq, heads x head_dim]; may be f32 whatever the type of q.
    pub out: &'a Tensor,
    /// f32 [tq, heads]: each row's natural log-sum-exp. A row that attends to nothing has minus infinity here and zeros
    /// in `out`.
    pub lse: &'a Tensor,
    /// Pairs of queries and keys that attend.
    pub mask: &'a Mask,
    /// Columns of one head.
    pub head_dim: usize,
    /// Multiplies q k.
    pub scale: f32,
    /// `s = cap tanh(s / cap)`; 0 for none.
    pub softcap: f32,
    /// f32 [1, heads]: a logit that joins each row's denominator.
    pub sinks: Option<&'a Tensor>,
    /// Terms that are added to scores; not with a `softcap`.
    pub bias: Option<DistanceBias<'a>>,
    /// Continues from `out` and `lse`, which hold the results over other keys, without sinks.
    pub resume: bool,
}

impl<'a> Attention<'a> {
    /// A forward pass with scores divided by the root of `head_dim`: q, k and v, then results and their log-sum-exp.
    pub fn plain(
        qkv: [&'a Tensor; 3],
        to: [&'a Tensor; 2],
        mask: &'a Mask,
        head_dim: usize,
    ) -> Attention<'a> {
        let ([q, k, v], [out, lse], scale) = (qkv, to, (head_dim as f32).powf(-0.5));
        let (softcap, sinks, bias, resume) = (0.0, None, None, false);
        Attention { q, k, v, out, lse, mask, head_dim, scale, softcap, sinks, bias, resume }
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        match &self.mask.pages {
            Some(table) if table.format != PageFormat::Plain => {
                self.k.cols() / table.format.head_bytes(self.head_dim, self.q.dtype())
            }
            _ => self.k.cols() / self.head_dim,
        }
    }

    /// Shapes and types of the call.
    pub fn desc(&self, backward: bool) -> crate::OpDesc {
        crate::OpDesc::Attention(crate::AttentionSizes {
            q_tokens: self.q.rows(),
            k_tokens: if self.mask.pages.is_some() { self.mask.keys() } else { self.k.rows() },
            heads: self.q.cols() / self.head_dim,
            kv_heads: self.kv_heads(),
            head_dim: self.head_dim,
            dtype: self.q.dtype(),
            slices: self.mask.slices.cap(),
            partial: self.mask.partial && self.sinks.is_none() && self.bias.is_none() && self.softcap == 0.0,
            span: self.bias.map_or(0, |bias| bias.terms.span()),
            backward,
        })
    }
}

/// The backward pass of [`Attention`]; overwrites dq, dk and dv. `out` and `lse` may cover more keys than this call
/// has; the gradients are then the shares of this call's keys. Sinks are part of `lse` and are not read. Gradients may
/// be f32 whatever the type of q.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a> {
    /// The forward pass with its results.
    pub forward: Attention<'a>,
    /// Like q.
    pub dout: &'a Tensor,
    /// Like q.
    pub dq: &'a Tensor,
    /// Like k.
    pub dk: &'a Tensor,
    /// Like v.
    pub dv: &'a Tensor,
    /// Adds to dq instead of overwriting it.
    pub accumulate: bool,
}

/// Gradient of an attention's sinks, from results over all keys:
/// `dsinks_h -= sum over t of exp(sinks_h - lse_th) (out_th . dout_th)`.
#[derive(Clone, Copy, Debug)]
pub struct SinksBackward<'a> {
    /// [t, heads x head_dim].
    pub out: &'a Tensor,
    /// Like out.
    pub dout: &'a Tensor,
    /// f32 [t, heads]; rows of minus infinity are skipped.
    pub lse: &'a Tensor,
    /// f32 [1, heads].
    pub sinks: &'a Tensor,
    /// f32 [1, heads]; added to.
    pub dsinks: &'a Tensor,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Transformers' `T5Attention._relative_position_bucket`.
    #[test]
    fn far_distances_share_buckets() {
        let two_sided = Buckets { count: 32, two_sided: true, max_distance: 128 };
        let causal = Buckets { two_sided: false, ..two_sided };
        let distances = [0, 1, -1, 7, -7, 8, -11, 12, -16, 31, -64, 90, -91, 127, -128, 5000];
        assert_eq!(
            distances.map(|at| two_sided.of(at)),
            [0, 17, 1, 23, 7, 24, 8, 25, 10, 27, 14, 30, 15, 31, 15, 31]
        );
        assert_eq!(distances.map(|at| causal.of(at)), [0, 0, 1, 0, 7, 0, 11, 0, 16, 0, 26, 0, 29, 0, 31, 0]);
    }
}
