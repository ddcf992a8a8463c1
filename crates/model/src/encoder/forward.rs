//! From token ids to logits. Texts are documents of one packed stream that do not see each other.

use std::ops::Range;

use fathom_tensor::{
    Activate, Activation, Attention, Category, DType, Device, Embed, MatMul, Norm, OpDesc, Slice, Tensor,
};

use super::weights::{Block, Dense, NormWeights};
use super::{Encoder, disentangled};
use crate::batch::mask;
use crate::encoder::spec::{EncoderSpec, Pool};

impl Encoder {
    /// The logits of each text's labels.
    ///
    /// # Panics
    /// If a text has no tokens, more than the encoder has positions for, or ids outside the vocabulary.
    #[track_caller]
    pub fn logits(&self, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
        let mut docs: Vec<Range<usize>> = Vec::with_capacity(texts.len());
        for text in texts {
            let most = self.spec.max_tokens().unwrap_or(usize::MAX);
            assert!(
                (1..=most).contains(&text.len()),
                "logits: a text of {} tokens, at most {most}",
                text.len()
            );
            let start = docs.last().map_or(0, |doc| doc.end);
            docs.push(start..start + text.len());
        }
        let (device, spec) = (&self.device, &self.spec);
        device.pool.enter("encoder", -1);
        let mut x_td = self.embed(texts);
        for block in &self.weights.blocks {
            let qkv = linear(device, &x_td, &block.qkv);
            let o_td = attend(device, spec, block, &docs, &qkv);
            drop(qkv);
            let a_td = linear(device, &o_td, &block.out);
            device.machine.add(&a_td, &x_td, &a_td);
            let y_td = norm(device, spec, &a_td, &block.attn_norm);
            let u_tf = linear(device, &y_td, &block.up);
            let m_td = linear(device, &activate(device, spec.activation, &u_tf), &block.down);
            device.machine.add(&m_td, &y_td, &m_td);
            x_td = norm(device, spec, &m_td, &block.mlp_norm);
        }
        self.classify(&x_td, &docs)
    }

    /// Tokens, positions and the token type, normalised: [t, d].
    fn embed(&self, texts: &[Vec<u32>]) -> Tensor {
        let (device, w) = (&self.device, &self.weights);
        let ids: Vec<i32> = texts.iter().flatten().map(|id| *id as i32).collect();
        let x_td = device.empty(ids.len(), self.spec.hidden, DType::F32, Category::Workspace);
        let ids = device.from_i32(&ids, Category::Data);
        let look = |ids: &Tensor, table: &Tensor, accumulate| {
            device.machine.embed(&Embed { ids, table, scale: 1.0, out: &x_td, accumulate, first: None });
        };
        look(&ids, &w.tokens, false);
        if let (Some(table), Some(positions)) = (&w.positions, self.spec.positions) {
            let first = positions.first as i32;
            let rows: Vec<i32> = texts.iter().flat_map(|text| first..first + text.len() as i32).collect();
            look(&device.from_i32(&rows, Category::Data), table, true);
        }
        if let Some(kind) = &w.kind {
            device.machine.add_bias(&x_td, kind);
        }
        norm(device, &self.spec, &x_td, &w.norm)
    }

    /// The head, on each text's first token.
    fn classify(&self, x_td: &Tensor, docs: &[Range<usize>]) -> Vec<Vec<f32>> {
        let (device, w) = (&self.device, &self.weights);
        let first = device.empty(docs.len(), self.spec.hidden, DType::F32, Category::Workspace);
        for (row, doc) in docs.iter().enumerate() {
            device.machine.copy(&x_td.view_rows(doc.start..doc.start + 1), &first.view_rows(row..row + 1));
        }
        let pooled = match (&w.pooler, self.spec.pool) {
            (Some(dense), Pool::Activated(_, kind, _)) => {
                activate(device, kind, &linear(device, &first, dense))
            }
            (Some(dense), _) => {
                let values: Vec<f32> =
                    device.to_f32(&linear(device, &first, dense)).into_iter().map(f32::tanh).collect();
                device.from_f32(docs.len(), self.spec.hidden, &values, Category::Workspace)
            }
            (None, _) => first,
        };
        let logits = device.to_f32(&linear(device, &pooled, &w.classifier));
        logits.chunks_exact(self.spec.labels.len()).map(<[f32]>::to_vec).collect()
    }
}

/// Attention of every token to every token of its text: qkv [t, 3d] to [t, d]. Text by text, so that one's bits do not depend
/// on where it lies among others.
fn attend(device: &Device, spec: &EncoderSpec, block: &Block, docs: &[Range<usize>], qkv: &Tensor) -> Tensor {
    let d = spec.hidden;
    let out = device.empty(qkv.rows(), d, DType::F32, Category::Workspace);
    for doc in docs {
        let rows = qkv.view_rows(doc.clone());
        let [q, k, v] = [0, 1, 2].map(|part| rows.view_cols(part * d..(part + 1) * d));
        let own = out.view_rows(doc.clone());
        match spec.relative {
            Some(relative) => disentangled::attention(device, relative, block, [&q, &k, &v], &own),
            None => attention(device, spec.heads, [&q, &k, &v], &own),
        }
    }
    out
}

/// Of one text: q, k, v and `out` are [n, d].
fn attention(device: &Device, heads: usize, [q, k, v]: [&Tensor; 3], out: &Tensor) {
    let (tokens, head_dim) = (q.rows(), q.cols() / heads);
    let all = Slice::full(0..tokens, 0..tokens);
    let positions = device.from_i32(&(0..tokens as i32).collect::<Vec<_>>(), Category::Data);
    let mask = &mask(device, &[all], 1, [&positions, &positions], (tokens * tokens) as u64);
    let lse = &device.empty(tokens, heads, DType::F32, Category::Workspace);
    let scale = (head_dim as f64).powf(-0.5) as f32;
    let op = Attention { q, k, v, out, lse, mask, head_dim, scale, softcap: 0.0, sinks: None, resume: false };
    device.machine.attention(&op, &workspace(device, &op.desc(false)));
}

fn workspace(device: &Device, desc: &OpDesc) -> Tensor {
    let bytes = device.machine.profile().workspace(desc);
    device.empty(1, bytes as usize, DType::U8, Category::Workspace)
}

/// `c = op(a) op(b)`.
pub(super) fn product(device: &Device, a: &Tensor, b: &Tensor, b_trans: bool, c: &Tensor) {
    let op = MatMul { a, a_trans: false, b, b_trans, c, accumulate: false };
    device.machine.matmul(&op, &workspace(device, &op.desc()));
}

/// `x W^T + b`.
pub(super) fn linear(device: &Device, x: &Tensor, dense: &Dense) -> Tensor {
    let out = device.empty(x.rows(), dense.weight.rows(), DType::F32, Category::Workspace);
    product(device, x, &dense.weight, true, &out);
    device.machine.add_bias(&out, &dense.bias);
    out
}

/// LayerNorm.
pub(super) fn norm(device: &Device, spec: &EncoderSpec, x: &Tensor, w: &NormWeights) -> Tensor {
    let out = device.empty(x.rows(), x.cols(), DType::F32, Category::Workspace);
    let stats = device.empty(x.rows(), 2, DType::F32, Category::Workspace);
    let (weight, bias) = (&w.weight, Some(&w.bias));
    device.machine.norm(&Norm { kind: spec.norm, x, weight, bias, out: &out, stats: &stats });
    out
}

fn activate(device: &Device, kind: Activation, x: &Tensor) -> Tensor {
    let out = device.empty(x.rows(), x.cols(), DType::F32, Category::Workspace);
    device.machine.activate(&Activate { kind, gated: false, x, out: &out });
    out
}
