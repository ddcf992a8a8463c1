//! What attention is called with.

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
    /// [tq, heads x head_dim]; may be f32 whatever q is.
    pub out: &'a Tensor,
    /// f32 [tq, heads], natural logarithm; minus infinity, and zeros in `out`, of a row that attends to nothing.
    pub lse: &'a Tensor,
    /// Who attends to whom.
    pub mask: &'a Mask,
    /// Columns of one head.
    pub head_dim: usize,
    /// Multiplies q k.
    pub scale: f32,
    /// `s = cap tanh(s / cap)`; 0 for none.
    pub softcap: f32,
    /// f32 [1, heads]: a logit that joins each row's denominator.
    pub sinks: Option<&'a Tensor>,
    /// Goes on with what `out` and `lse` hold, the results of other keys without sinks.
    pub resume: bool,
}

impl Attention<'_> {
    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        match &self.mask.pages {
            Some(table) if table.format != PageFormat::Plain => {
                self.k.cols() / table.format.head_bytes(self.head_dim, self.q.dtype())
            }
            _ => self.k.cols() / self.head_dim,
        }
    }

    /// The shape alone.
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

/// The backward pass of [`Attention`]; overwrites dq, dk and dv. `out` and `lse` may be those of more keys than there are
/// here: then the gradients are the shares of these keys. Sinks are part of `lse` and not read. Gradients may be f32 whatever
/// q is.
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

/// The gradient of an attention's sinks: `dsinks_h -= sum over t of exp(sinks_h - lse_th) (out_th . dout_th)`, from results of
/// all keys.
#[derive(Clone, Copy, Debug)]
pub struct SinksBackward<'a> {
    /// [t, heads x head_dim].
    pub out: &'a Tensor,
    /// Like out.
    pub dout: &'a Tensor,
    /// f32 [t, heads]; rows of minus infinity do not count.
    pub lse: &'a Tensor,
    /// f32 [1, heads].
    pub sinks: &'a Tensor,
    /// f32 [1, heads]; added to.
    pub dsinks: &'a Tensor,
}
