//! Where each weight in memory lies in Hugging Face's tensors: a weight is a list of pieces.
//!
//! The same list serves loading, saving, and everything else that has the shape of a weight (gradients, moments).

use std::ops::Range;

use fathom_grad::ParamId;
use fathom_tensor::Tensor;

use crate::block::{BlockParams, LinearParams, NormParams};
use crate::family::{Family, Names, Qkv, Up};
use crate::model::Model;
use crate::spec::QkNorm;

/// Some rows of a Hugging Face tensor that are some rows of a weight. A row is one step of the tensor's first
/// dimension; of a vector, one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Name of the Hugging Face tensor.
    pub name: String,
    /// Its whole shape.
    pub shape: Vec<usize>,
    /// Rows of it.
    pub rows: Range<usize>,
    /// First row of the weight (of a vector: first element) that they are.
    pub param_row: usize,
    /// The tensor is stored [in, out] and the weight is [out, in]; the piece is then the whole of both.
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
        match self.transpose || self.shape.len() == 1 {
            true => [0..all_rows, range],
            false => [range, 0..all_cols],
        }
    }

    /// Elements of one row.
    pub fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }
}

/// A tensor's name and how many rows of the weight it holds.
type Part<'a> = (&'a str, usize);

/// Pieces of one model, as they are collected.
struct Collect<'a> {
    names: &'a Names,
    /// Prefix of the current block.
    at: String,
    list: Vec<Vec<Piece>>,
}

impl Collect<'_> {
    fn push(&mut self, id: ParamId, piece: Piece) {
        if self.list.len() <= id.index() {
            self.list.resize(id.index() + 1, Vec::new());
        }
        self.list[id.index()].push(piece);
    }

    fn whole(&mut self, id: ParamId, name: String, shape: Vec<usize>) {
        let rows = 0..shape[0];
        self.push(id, Piece { name, shape, rows, param_row: 0, transpose: false });
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
            let piece = Piece { name: format!("{name}.weight"), shape, rows, param_row, transpose };
            self.push(params.weight, piece);
            if let Some(bias) = params.bias {
                let (shape, rows) = (vec![*out], 0..*out);
                self.push(
                    bias,
                    Piece { name: format!("{name}.bias"), shape, rows, param_row, transpose: false },
                );
            }
            param_row += out;
        }
    }

    /// q, k and v interleaved per head: rows `(head 3 + part) d` of the tensor are rows `(part heads + head) d`.
    fn per_head(&mut self, params: LinearParams, name: &str, [heads, head_dim, inner]: [usize; 3]) {
        let name = format!("{}{name}", self.at);
        let out = 3 * heads * head_dim;
        for block in 0..3 * heads {
            let (head, part) = (block / 3, block % 3);
            let rows = block * head_dim..(block + 1) * head_dim;
            let param_row = (part * heads + head) * head_dim;
            let piece = |kind: &str, shape: Vec<usize>| {
                let (name, rows) = (format!("{name}.{kind}"), rows.clone());
                Piece { name, shape, rows, param_row, transpose: false }
            };
            self.push(params.weight, piece("weight", vec![out, inner]));
            if let Some(bias) = params.bias {
                self.push(bias, piece("bias", vec![out]));
            }
        }
    }

    fn block(&mut self, model: &Model, p: &BlockParams) {
        let (s, names) = (&model.spec, self.names);
        let (q, kv) = (s.q_cols(), s.kv_cols());
        self.block_norm(p.attn_norm, names.attn_norm, s.hidden);
        match names.qkv {
            Qkv::Separate([q_name, k_name, v_name]) => {
                self.linear(p.qkv, &[(q_name, q), (k_name, kv), (v_name, kv)], s.hidden)
            }
            Qkv::Fused(name) => self.linear(p.qkv, &[(name, q + 2 * kv)], s.hidden),
            Qkv::PerHead(name) => self.per_head(p.qkv, name, [s.heads, s.head_dim, s.hidden]),
        }
        let [q_width, k_width] = if s.qk_norm == QkNorm::Full { [q, kv] } else { [s.head_dim; 2] };
        self.block_norm(p.q_norm, names.q_norm, q_width);
        self.block_norm(p.k_norm, names.k_norm, k_width);
        self.linear(p.attn_out, &[(names.attn_out, s.hidden)], q);
        self.block_norm(p.attn_post_norm, names.attn_post_norm, s.hidden);
        self.block_norm(p.mlp_norm, names.mlp_norm, s.hidden);
        let up = if s.mlp.gated { 2 * s.ffn } else { s.ffn };
        match names.up {
            Up::Pair([gate_name, up_name]) => {
                self.linear(p.up, &[(gate_name, s.ffn), (up_name, s.ffn)], s.hidden)
            }
            Up::One(name) => self.linear(p.up, &[(name, up)], s.hidden),
        }
        self.linear(p.down, &[(names.down, s.hidden)], s.ffn);
        self.block_norm(p.mlp_post_norm, names.mlp_post_norm, s.hidden);
    }
}

impl Model {
    /// The pieces of every weight, by [`ParamId`]. Together the pieces of a tensor are all of it.
    ///
    /// # Panics
    /// If the specification's family is unknown.
    pub fn pieces(&self) -> Vec<Vec<Piece>> {
        let (s, names) = (&self.spec, &Family::of(&self.spec).names);
        let base = names.base;
        let mut collect = Collect { names, at: String::new(), list: Vec::new() };
        collect.whole(self.embed, format!("{base}{}.weight", names.embed), vec![s.vocab, s.hidden]);
        if let (Some(id), Some(rows)) = (self.positions, s.learned_positions) {
            collect.whole(id, format!("{base}{}.weight", names.positions), vec![rows, s.hidden]);
        }
        for (index, block) in self.blocks.iter().enumerate() {
            collect.at = format!("{base}{}.{index}.", names.layers);
            collect.block(self, block);
        }
        collect.norm(Some(self.final_norm), base, names.final_norm, s.hidden);
        if self.head != self.embed {
            collect.whole(self.head, format!("{}.weight", names.head), vec![s.vocab, s.hidden]);
        }
        collect.list
    }
}
