//! Where each weight in memory lies in Hugging Face's tensors: a weight is a list of pieces.
//!
//! The same list serves loading, saving, and everything else that has the shape of a weight (gradients, moments).

use std::ops::Range;

use fathom_grad::ParamId;
use fathom_tensor::Tensor;

use crate::block::{BlockParams, LinearParams, NormParams};
use crate::family::{Family, Names, Qkv, Up};
use crate::model::{EmbedParams, LastParams, Model};
use crate::portion::{Holdings, Shard};
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
        match self.transpose || self.shape.len() == 1 {
            true => [0..all_rows, range],
            false => [range, 0..all_cols],
        }
    }

    /// Elements of one row that belong to the piece.
    pub fn row_len(&self) -> usize {
        self.cols.len()
    }

    /// Elements of one row of the tensor.
    pub fn row_width(&self) -> usize {
        self.shape[1..].iter().product()
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
                let (rows, cols) = match self.transpose {
                    true => (shard.cols.clone(), part),
                    false => {
                        let rows = self.rows.start + part.start..self.rows.start + part.end;
                        (rows, if shard.vector { 0..1 } else { shard.cols.clone() })
                    }
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
        let cols = 0..shape[1..].iter().product();
        let piece = Piece { name, shape, rows, cols, param_row, transpose };
        if self.list.len() <= id.index() {
            self.list.resize(id.index() + 1, Vec::new());
        }
        let shard = &self.holdings[id.index()].shard;
        let pieces = if shard.is_parted() { piece.shard(shard) } else { vec![piece] };
        self.list[id.index()].extend(pieces);
    }

    fn whole(&mut self, id: ParamId, name: String, shape: Vec<usize>) {
        let rows = 0..shape[0];
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

    /// q, k and v interleaved per head: rows `(head 3 + part) d` of the tensor are rows `(part heads + head) d`.
    fn per_head(&mut self, params: LinearParams, name: &str, [heads, head_dim, inner]: [usize; 3]) {
        let name = format!("{}{name}", self.at);
        let out = 3 * heads * head_dim;
        for block in 0..3 * heads {
            let (head, part) = (block / 3, block % 3);
            let rows = block * head_dim..(block + 1) * head_dim;
            let param_row = (part * heads + head) * head_dim;
            self.push(params.weight, (format!("{name}.weight"), vec![out, inner]), rows.clone(), param_row);
            if let Some(bias) = params.bias {
                self.push(bias, (format!("{name}.bias"), vec![out]), rows, param_row);
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
        if let Some(LastParams { norm, head }) = self.last {
            collect.norm(Some(norm), base, names.final_norm, s.hidden);
            if !s.tied {
                collect.whole(head, format!("{}.weight", names.head), vec![s.vocab, s.hidden]);
            }
        }
        collect.list
    }
}
