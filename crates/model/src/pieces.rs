//! Where each weight in memory lies in Hugging Face's tensors: a weight is a list of pieces.
//!
//! The same list serves loading, saving, and everything else that has the shape of a weight (gradients, moments).

use std::ops::Range;

use fathom_grad::ParamId;
use fathom_tensor::Tensor;

use crate::block::{BlockParams, DenseParams, FfnParams, LinearParams, NormParams, QkvParams};
use crate::family::{Experts, Family, LatentNames, MoeNames, Names, Qkv, Up};
use crate::latent::{Latent, LatentParams};
use crate::model::{EmbedParams, LastParams, Model};
use crate::moe::{ExpertsParams, Moe};
use crate::portion::{Holdings, Shard};
use crate::spec::{QkNorm, Spec};

/// Some rows of a Hugging Face tensor that are some rows of a weight. A row is what the last dimension holds; of a vector,
/// one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Name of the Hugging Face tensor.
    pub name: String,
    /// Its whole shape.
    pub shape: Vec<usize>,
    /// Rows of it.
    pub rows: Range<usize>,
    /// Columns of them; of a vector, and of what has more than two dimensions, all: `0..row_width`.
    pub cols: Range<usize>,
    /// First row of the weight (of a vector: first element) that they are.
    pub param_row: usize,
    /// The tensor is stored [in, out] and the weight is [out, in]; of the weight the piece is then whole rows.
    pub transpose: bool,
}

impl Piece {
    /// The part of the weight that `rows` of the tensor are; they lie within the piece.
    pub fn view(&self, weight: &Tensor, rows: Range<usize>) -> Tensor {
        let [rows, cols] = self.part(weight.shape(), rows);
        weight.view_rows(rows).view_cols(cols)
    }

    /// The rows and columns of a weight of this shape that `rows` of the tensor are.
    pub fn part(&self, [all_rows, all_cols]: [usize; 2], rows: Range<usize>) -> [Range<usize>; 2] {
        let start = self.param_row + rows.start - self.rows.start;
        let range = start..start + rows.len();
        if self.transpose || self.shape.len() == 1 { [0..all_rows, range] } else { [range, 0..all_cols] }
    }

    /// Elements of one row that belong to the piece.
    pub fn row_len(&self) -> usize {
        self.cols.len()
    }

    /// Elements of one row of the tensor.
    pub fn row_width(&self) -> usize {
        if self.shape.len() == 1 { 1 } else { self.shape[self.shape.len() - 1] }
    }

    /// The parts of a piece of a whole weight that a rank with this shard of it holds.
    fn shard(self, shard: &Shard) -> Vec<Piece> {
        // In terms of the weight: rows are columns of a transposed tensor.
        let rows = if self.transpose { self.row_width() } else { self.rows.len() };
        let mut local = 0;
        let mut pieces = Vec::new();
        for held in &shard.rows {
            let (from, to) = (held.start.max(self.param_row), held.end.min(self.param_row + rows));
            if from < to {
                let part = from - self.param_row..to - self.param_row;
                let param_row = local + from - held.start;
                let (rows, cols) = if self.transpose {
                    (shard.cols.clone(), part)
                } else {
                    let rows = self.rows.start + part.start..self.rows.start + part.end;
                    (rows, if shard.vector { 0..1 } else { shard.cols.clone() })
                };
                pieces.push(Piece { rows, cols, param_row, ..self.clone() });
            }
            local += held.len();
        }
        pieces
    }
}

/// A tensor's name and how many rows of the weight it holds.
type Part<'a> = (&'a str, usize);

/// Pieces of one model, as they are collected.
struct Collect<'a> {
    names: &'a Names,
    /// Prefix of the current block.
    at: String,
    holdings: &'a Holdings,
    list: Vec<Vec<Piece>>,
}

impl Collect<'_> {
    /// Rows of a tensor that are rows of the whole weight from `param_row` on.
    fn push(&mut self, id: ParamId, tensor: (String, Vec<usize>), rows: Range<usize>, param_row: usize) {
        self.add(id, tensor, rows, param_row, false);
    }

    fn add(
        &mut self,
        id: ParamId,
        (name, shape): (String, Vec<usize>),
        rows: Range<usize>,
        param_row: usize,
        transpose: bool,
    ) {
        let cols = 0..if shape.len() == 1 { 1 } else { shape[shape.len() - 1] };
        let piece = Piece { name, shape, rows, cols, param_row, transpose };
        if self.list.len() <= id.index() {
            self.list.resize(id.index() + 1, Vec::new());
        }
        let shard = &self.holdings[id.index()].shard;
        let pieces = if shard.is_parted() { piece.shard(shard) } else { vec![piece] };
        self.list[id.index()].extend(pieces);
    }

    fn whole(&mut self, id: ParamId, name: String, shape: Vec<usize>) {
        let rows = 0..shape[..shape.len().max(2) - 1].iter().product();
        self.push(id, (name, shape), rows, 0);
    }

    fn norm(&mut self, params: Option<NormParams>, prefix: &str, name: &str, width: usize) {
        let Some(NormParams { weight, bias }) = params else { return };
        self.whole(weight, format!("{prefix}{name}.weight"), vec![width]);
        if let Some(bias) = bias {
            self.whole(bias, format!("{prefix}{name}.bias"), vec![width]);
        }
    }

    fn block_norm(&mut self, params: Option<NormParams>, name: &str, width: usize) {
        let at = self.at.clone();
        self.norm(params, &at, name, width);
    }

    /// A projection whose parts lie on top of each other in the weight.
    fn linear(&mut self, params: LinearParams, parts: &[Part<'_>], inner: usize) {
        let mut param_row = 0;
        for (name, out) in parts {
            let name = format!("{}{name}", self.at);
            let transpose = self.names.transposed;
            let shape = if transpose { vec![inner, *out] } else { vec![*out, inner] };
            let rows = 0..shape[0];
            self.add(params.weight, (format!("{name}.weight"), shape), rows, param_row, transpose);
            if let Some(bias) = params.bias {
                self.push(bias, (format!("{name}.bias"), vec![*out]), 0..*out, param_row);
            }
            param_row += out;
        }
    }

    /// Each key head's queries, its key and its value together; the weight has all queries, all keys, all values.
    fn grouped(&mut self, s: &Spec, params: LinearParams, name: &str) {
        let (all, queries) = (s.q_cols() + 2 * s.kv_cols(), s.q_cols() / s.kv_heads);
        let group = queries + 2 * s.head_dim;
        for kv_head in 0..s.kv_heads {
            let (start, key) = (kv_head * group, s.q_cols() + kv_head * s.head_dim);
            let cuts = [start, start + queries, start + queries + s.head_dim, start + group];
            let param_rows = [kv_head * queries, key, s.kv_cols() + key];
            for (cut, param_row) in cuts.windows(2).zip(param_rows) {
                self.rows(params, name, [all, s.hidden], (cut[0]..cut[1], param_row));
            }
        }
    }

    fn block(&mut self, model: &Model, p: &BlockParams) {
        let (s, names) = (&model.spec, self.names);
        let (q, kv) = (s.q_cols(), s.kv_cols());
        let [attn_norm, mlp_norm] = names.norms(s.residual);
        self.block_norm(p.attn_norm, attn_norm, s.hidden);
        match (names.qkv, &p.qkv, &s.latent) {
            (Qkv::Separate([q_name, k_name, v_name]), QkvParams::Fused(qkv), _) => {
                self.linear(*qkv, &[(q_name, q), (k_name, kv), (v_name, kv)], s.hidden)
            }
            (Qkv::Fused(name), QkvParams::Fused(qkv), _) => {
                self.linear(*qkv, &[(name, q + 2 * kv)], s.hidden)
            }
            (Qkv::Grouped(name), QkvParams::Fused(qkv), _) => self.grouped(s, *qkv, name),
            (Qkv::Latent(names), QkvParams::Latent(p), Some(latent)) => self.latent(s, latent, p, &names),
            _ => panic!("{}: weights of q, k and v without names", s.family),
        }
        let [q_width, k_width] = if s.qk_norm == QkNorm::Full { [q, kv] } else { [s.head_dim; 2] };
        self.block_norm(p.q_norm, names.q_norm, q_width);
        self.block_norm(p.k_norm, names.k_norm, k_width);
        if let Some(id) = p.sinks {
            self.whole(id, format!("{}{}", self.at, names.sinks), vec![s.heads]);
        }
        self.linear(p.attn_out, &[(names.attn_out, s.hidden)], s.attention_cols());
        self.block_norm(p.attn_post_norm, names.attn_post_norm, s.hidden);
        self.block_norm(p.mlp_norm, mlp_norm, s.hidden);
        match (&p.ffn, &s.moe, &names.moe) {
            (FfnParams::Dense(mlp), ..) => self.mlp(s, mlp, s.ffn),
            (FfnParams::Experts(p), Some(moe), Some(names)) => self.experts(s, moe, p, names),
            _ => panic!("{}: weights of experts without names", s.family),
        }
        self.block_norm(p.mlp_post_norm, names.mlp_post_norm, s.hidden);
    }
}

impl Collect<'_> {
    fn mlp(&mut self, s: &Spec, p: &DenseParams, ffn: usize) {
        match self.names.up {
            Up::Pair([gate_name, up_name]) => {
                self.linear(p.up, &[(gate_name, ffn), (up_name, ffn)], s.hidden)
            }
            Up::One(name) => self.linear(p.up, &[(name, if s.mlp.gated { 2 * ffn } else { ffn })], s.hidden),
        }
        self.linear(p.down, &[(self.names.down, s.hidden)], ffn);
    }

    fn latent(&mut self, s: &Spec, l: &Latent, p: &LatentParams, names: &LatentNames) {
        let layout = l.layout(s, &s.layers[0]);
        let [down, norm, up] = names.q_latent;
        if let (Some((weights, q_norm)), Some(cols)) = (p.q_down, l.query) {
            self.linear(weights, &[(down, cols)], s.hidden);
            self.block_norm(Some(q_norm), norm, cols);
        }
        let name = if l.query.is_some() { up } else { names.q };
        let (all, inner) = (s.q_cols(), l.query.unwrap_or(s.hidden));
        for head in (0..all).step_by(s.head_dim) {
            let cut = head + layout.own;
            self.rows(p.q_up, name, [all, inner], (head..cut, head + layout.rotated));
            self.rows(p.q_up, name, [all, inner], (cut..head + s.head_dim, head));
        }
        let [down, norm, up] = names.kv_latent;
        let shape = [l.key_value + layout.rotated, s.hidden];
        self.rows(p.kv_down, down, shape, (0..l.key_value, 0));
        self.rows(p.shared, down, shape, (l.key_value..shape[0], 0));
        self.block_norm(Some(p.kv_norm), norm, l.key_value);
        self.linear(p.kv_up, &[(up, s.heads * (layout.own + l.value))], l.key_value);
    }

    /// Some rows of a projection.
    fn rows(
        &mut self,
        params: LinearParams,
        name: &str,
        [out, inner]: [usize; 2],
        (rows, param_row): (Range<usize>, usize),
    ) {
        let name = format!("{}{name}", self.at);
        self.push(params.weight, (format!("{name}.weight"), vec![out, inner]), rows.clone(), param_row);
        if let Some(bias) = params.bias {
            self.push(bias, (format!("{name}.bias"), vec![out]), rows, param_row);
        }
    }

    fn experts(&mut self, s: &Spec, m: &Moe, p: &ExpertsParams, names: &MoeNames) {
        self.linear(p.router, &[(names.router, m.experts)], s.hidden);
        if let Some(id) = p.choice_bias {
            self.whole(id, format!("{}{}", self.at, names.choice_bias), vec![m.experts]);
        }
        match names.experts {
            Experts::Each(at, parts) => self.each_expert(s, m, p, at, parts),
            Experts::Stacked(parts) => {
                let widths = [(p.up, [s.hidden, 2 * m.ffn]), (p.down, [m.ffn, s.hidden])];
                for (name, (linear, [inner, out])) in parts.iter().zip(widths) {
                    let name = format!("{}{name}", self.at);
                    self.whole(linear.weight, name.clone(), vec![m.experts, inner, out]);
                    if let Some(bias) = linear.bias {
                        self.whole(bias, format!("{name}_bias"), vec![m.experts, out]);
                    }
                }
            }
        }
        let (Some(shared), Some(of)) = (&p.shared, m.shared) else { return };
        // An MLP's own names, with the part before the point exchanged.
        let at = self.at.clone();
        let inside = |name: &str| name.split_once('.').map_or(name, |(_, part)| part).to_string();
        self.at = format!("{at}{}.", names.shared);
        if let Up::Pair(parts) = self.names.up {
            let [gate, up] = parts.map(inside);
            self.linear(shared.mlp.up, &[(gate.as_str(), of.ffn), (up.as_str(), of.ffn)], s.hidden);
        }
        let down = inside(self.names.down);
        self.linear(shared.mlp.down, &[(down.as_str(), s.hidden)], of.ffn);
        self.at = at;
        if let Some(id) = shared.gate {
            self.whole(id, format!("{}{}.weight", self.at, names.shared_gate), vec![1, s.hidden]);
        }
    }

    /// A tensor for each part of each expert.
    fn each_expert(&mut self, s: &Spec, m: &Moe, p: &ExpertsParams, at: &str, parts: [&str; 3]) {
        for expert in 0..m.experts {
            for (part, name) in parts.into_iter().enumerate() {
                let name = format!("{}{at}.{expert}.{name}.weight", self.at);
                let (id, shape, param_row) = match part {
                    2 => (p.down.weight, vec![s.hidden, m.ffn], expert * s.hidden),
                    _ => (p.up.weight, vec![m.ffn, s.hidden], (2 * expert + part) * m.ffn),
                };
                let rows = 0..shape[0];
                self.push(id, (name, shape), rows, param_row);
            }
        }
    }
}

impl Model {
    /// The pieces of every weight that the rank holds, by [`ParamId`]. Together the pieces of a tensor on all ranks are all of
    /// it.
    ///
    /// # Panics
    /// If the specification's family is unknown.
    pub fn pieces(&self) -> Vec<Vec<Piece>> {
        let (s, names) = (&self.spec, &Family::of(&self.spec).names);
        let base = names.base;
        let list = vec![Vec::new(); self.holdings.len()];
        let mut collect = Collect { names, at: String::new(), holdings: &self.holdings, list };
        if let Some(EmbedParams { tokens, positions }) = self.embed {
            collect.whole(tokens, format!("{base}{}.weight", names.embed), vec![s.vocab, s.hidden]);
            if let (Some(id), Some(rows)) = (positions, s.learned_positions) {
                collect.whole(id, format!("{base}{}.weight", names.positions), vec![rows, s.hidden]);
            }
        }
        for (index, block) in self.portion.layers().zip(&self.blocks) {
            collect.at = format!("{base}{}.{index}.", names.layers);
            collect.block(self, block);
        }
        if let Some(LastParams { norm, head, head_bias }) = self.last {
            collect.norm(Some(norm), base, names.final_norm, s.hidden);
            if !s.tied {
                collect.whole(head, format!("{}.weight", names.head), vec![s.vocab, s.hidden]);
            }
            if let Some(bias) = head_bias {
                collect.whole(bias, format!("{}.bias", names.head), vec![s.vocab]);
            }
        }
        collect.list
    }
}
