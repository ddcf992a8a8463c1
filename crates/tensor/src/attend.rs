//! Arguments of attention calls.

use crate::{Mask, PageFormat, Tensor};

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
        Attention { q, k, v, out, lse, mask, head_dim, scale, softcap: 0.0, sinks: None, resume: false }
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
        crate::OpDesc::Attention {
            q_tokens: self.q.rows(),
            k_tokens: if self.mask.pages.is_some() { self.mask.keys() } else { self.k.rows() },
            heads: self.q.cols() / self.head_dim,
            kv_heads: self.kv_heads(),
            head_dim: self.head_dim,
            dtype: self.q.dtype(),
            slices: self.mask.slices.cap(),
            partial: self.mask.partial && self.sinks.is_none() && self.softcap == 0.0,
            backward,
        }
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
