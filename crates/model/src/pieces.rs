//! Maps each weight to Hugging Face's tensors: a weight is a list of pieces.
//!
//! The same list serves loading, saving, and everything else with the shape of a weight (gradients, moments).

use std::ops::Range;

use fathom_grad::ParamId;
use fathom_tensor::Tensor;

use crate::model::Model;
use crate::portion::Shard;
use crate::spec::Spec;
use crate::weight::{InFiles, Kind, LinearParams, Module, Names, StoredRows, Term, WeightSpec};

/// Rows of a Hugging Face tensor that are rows of a weight. A row runs along the last dimension; a vector's is one
/// element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Name of the Hugging Face tensor.
    pub name: String,
    /// Its full shape.
    pub shape: Vec<usize>,
    /// Rows of it.
    pub rows: Range<usize>,
    /// Their columns; for vectors and tensors of more than two dimensions all of them: `0..row_width`.
    pub cols: Range<usize>,
    /// First row of the weight (for a vector: first element) that they occupy.
    pub param_row: usize,
    /// Whether the tensor is stored [in, out] and the weight is [out, in]; the piece then has whole rows of the
    /// weight.
    pub transpose: bool,
}

impl Piece {
    /// View of the weight for `rows` of the tensor, which must lie within the piece.
    pub fn view(&self, weight: &Tensor, rows: Range<usize>) -> Tensor {
        let [rows, cols] = self.part(weight.shape(), rows);
        weight.view_rows(rows).view_cols(cols)
    }

    /// Rows and columns, for `rows` of the tensor, within a weight of this shape.
    pub fn part(&self, [all_rows, all_cols]: [usize; 2], rows: Range<usize>) -> [Range<usize>; 2] {
        let start = self.param_row + rows.start - self.rows.start;
        let range = start..start + rows.len();
        if self.transpose || self.shape.len() == 1 { [0..all_rows, range] } else { [range, 0..all_cols] }
    }

    /// Elements per row that belong to the piece.
    pub fn row_len(&self) -> usize {
        self.cols.len()
    }

    /// Elements per row of the tensor.
    pub fn row_width(&self) -> usize {
        if self.shape.len() == 1 { 1 } else { self.shape[self.shape.len() - 1] }
    }

    /// Splits a piece of a whole weight into the parts within a rank's shard.
    fn shard(self, shard: &Shard) -> Vec<Piece> {
        // In terms of the weight, whose rows are a transposed tensor's columns.
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

/// Collects the pieces of a whole weight.
struct Collect<'a> {
    names: &'a Names,
    /// Prefix of the names of the weight's tensors.
    at: String,
    /// Their suffix.
    end: &'static str,
    /// Columns of the weight.
    inner: usize,
    vector: bool,
    transpose: bool,
    list: Vec<Piece>,
}

impl Collect<'_> {
    /// Adds rows of a tensor of `all` rows, as the weight's rows from `param_row` on.
    ///
    /// # Panics
    /// If the family has no name for it.
    fn rows(&mut self, name: &str, all: usize, rows: Range<usize>, param_row: usize) {
        assert!(!name.is_empty(), "{}weights{}: the family has no name for them", self.at, self.end);
        let (transpose, inner) = (self.transpose, self.inner);
        let shape = match (self.vector, transpose) {
            (true, _) => vec![all],
            (_, true) => vec![inner, all],
            _ => vec![all, inner],
        };
        let rows = if transpose { 0..inner } else { rows };
        self.add(format!("{}{name}{}", self.at, self.end), shape, rows, param_row);
    }

    fn add(&mut self, name: String, shape: Vec<usize>, rows: Range<usize>, param_row: usize) {
        let cols = 0..if shape.len() == 1 { 1 } else { shape[shape.len() - 1] };
        self.list.push(Piece { name, shape, rows, cols, param_row, transpose: self.transpose });
    }

    /// Adds stacked tensors, the first at row `first` of the weight. Returns the next row.
    fn stack<'n>(&mut self, at: &str, parts: impl Iterator<Item = (&'n str, usize)>, first: usize) -> usize {
        parts.fold(first, |row, (name, rows)| {
            self.rows(&format!("{at}{name}"), rows, 0..rows, row);
            row + rows
        })
    }

    fn collect(&mut self, spec: &Spec, weight: &WeightSpec<'_>) {
        match &weight.stored {
            InFiles::Stack(parts) => {
                let linear = matches!(weight.kind, Kind::Linear | Kind::Gate);
                self.transpose = (self.names.transposed && linear) || weight.term == Term::EmbedA;
                self.stack("", parts.iter().map(|(name, rows)| (name.as_ref(), *rows)), 0);
            }
            InFiles::Rows(tensors) => {
                for StoredRows { name, all, runs } in tensors {
                    runs.iter().for_each(|(rows, param_row)| self.rows(name, *all, rows.clone(), *param_row));
                }
            }
            InFiles::Whole(tensors) => {
                tensors.iter().fold(0, |row, (name, shape)| {
                    let rows = shape[..shape.len().max(2) - 1].iter().product();
                    self.add(format!("{}{name}", self.at), shape.clone(), 0..rows, row);
                    row + rows
                });
            }
            InFiles::Experts(at, parts) => {
                let experts = spec.moe.as_ref().map_or(0, |moe| moe.experts);
                (0..experts).fold(0, |row, expert| {
                    self.stack(&format!("{at}.{expert}."), parts.iter().copied(), row)
                });
            }
            InFiles::Unnamed => panic!("{}: {} has no name in files", spec.family, weight.role),
        }
    }
}

impl Spec {
    /// Names in files of all tensors of the whole model.
    pub fn stored_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.walk(&mut |layer, weight| {
            names.extend(self.pieces(layer, weight).into_iter().map(|piece| piece.name));
            ParamId(0)
        });
        names
    }

    /// Pieces of a whole weight in Hugging Face's tensors.
    pub(crate) fn pieces(&self, layer: Option<usize>, weight: &WeightSpec<'_>) -> Vec<Piece> {
        let (names, at) = self.family.names.of(self.source, layer, weight.module);
        let end = weight.term.end();
        let [rows, inner] = weight.shape;
        let mut collect =
            Collect { names, at, end, inner, vector: rows == 1, transpose: false, list: Vec::new() };
        collect.collect(self, weight);
        collect.list
    }
}

/// A projection of a block, as seen by adapters, quantization and name maps.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The layer.
    pub layer: usize,
    /// Its role in the block, such as `qkv`.
    pub role: &'static str,
    /// Its module.
    pub module: Module,
    /// One projection, or those of all experts.
    pub kind: Kind,
    /// Its weights.
    pub params: LinearParams,
    /// Rows x columns of the whole weight.
    pub shape: [usize; 2],
    /// The projections fused in it.
    pub parts: Vec<LinearPart>,
}

/// A projection as a module in files; some rows of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearPart {
    /// Name in files, such as `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Runs of its rows in the file, each with its first row in the weight, in the weight's order.
    pub rows: Vec<(Range<usize>, usize)>,
}

impl LinearPart {
    /// Last component of the name, such as `q_proj`.
    pub fn suffix(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// Groups the pieces of a projection's weight by tensor.
fn parts(pieces: Vec<Piece>) -> Vec<LinearPart> {
    let mut parts: Vec<LinearPart> = Vec::new();
    for piece in pieces {
        let name = piece.name.strip_suffix(".weight").unwrap_or(&piece.name).to_string();
        let rows = if piece.transpose { piece.cols } else { piece.rows };
        match parts.iter_mut().find(|part| part.name == name) {
            Some(part) => part.rows.push((rows, piece.param_row)),
            None => parts.push(LinearPart { name, rows: vec![(rows, piece.param_row)] }),
        }
    }
    parts
}

impl Model {
    /// Pieces of every weight on this rank, by [`fathom_grad::ParamId`]. The pieces of all ranks together cover each
    /// tensor.
    ///
    /// # Panics
    /// If the specification's family has no name for a weight.
    pub fn pieces(&self) -> Vec<Vec<Piece>> {
        let mut list = Vec::with_capacity(self.holdings.len());
        self.visit(&mut |id, layer, weight| {
            let (shard, pieces) = (&self.holdings[id.index()].shard, self.spec.pieces(layer, weight));
            list.push(if shard.is_parted() {
                pieces.into_iter().flat_map(|piece| piece.shard(shard)).collect()
            } else {
                pieces
            });
        });
        list
    }

    /// Projections of the rank's blocks in order: those that may be low-precision, adapted or quantized.
    pub fn linears(&self) -> Vec<Linear> {
        let mut all: Vec<Linear> = Vec::new();
        self.visit(&mut |id, layer, weight| {
            let Some(layer) = layer else { return };
            match (weight.kind, weight.term, all.last_mut()) {
                (Kind::Linear | Kind::Experts(_), ..) => {
                    let WeightSpec { role, module, kind, shape, .. } = *weight;
                    let parts = parts(self.spec.pieces(Some(layer), weight));
                    let params = LinearParams { weight: id, bias: None, adapter: None };
                    all.push(Linear { layer, role, module, kind, params, shape, parts });
                }
                (_, Term::Bias, Some(linear)) if (linear.layer, linear.role) == (layer, weight.role) => {
                    linear.params.bias = Some(id);
                }
                _ => {}
            }
        });
        all
    }
}
