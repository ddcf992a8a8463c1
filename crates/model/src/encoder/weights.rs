//! An encoder's weights, from a folder into place.

use std::cell::RefCell;
use std::collections::BTreeSet;

use fathom_tensor::{Category, Device, Tensor};

use super::forward;
use super::spec::{EncoderSpec, Pool, Relative};
use crate::error::{Error, Result};
use crate::files::{SafeTensors, Source, read_f32};

/// A projection.
pub(super) struct Dense {
    /// [out, in].
    pub weight: Tensor,
    /// [1, out].
    pub bias: Tensor,
}

/// Weight and bias of a norm, [1, d] both.
pub(super) struct NormWeights {
    pub weight: Tensor,
    pub bias: Tensor,
}

/// One block.
pub(super) struct Block {
    /// Columns of one head.
    pub head_dim: usize,
    /// q, k and v on top of each other: [3d, d].
    pub qkv: Dense,
    pub out: Dense,
    pub attn_norm: NormWeights,
    pub up: Dense,
    pub down: Dense,
    pub mlp_norm: NormWeights,
    /// Keys of positions, [2 span, d].
    pub position_keys: Option<Tensor>,
    /// Queries of positions, [2 span, d].
    pub position_queries: Option<Tensor>,
}

/// All of them.
pub(super) struct Weights {
    /// [vocab, d].
    pub tokens: Tensor,
    /// [positions, d].
    pub positions: Option<Tensor>,
    /// The first token type, [1, d].
    pub kind: Option<Tensor>,
    pub norm: NormWeights,
    pub blocks: Vec<Block>,
    pub pooler: Option<Dense>,
    pub classifier: Dense,
}

/// Weights that published folders have beside those of a classifier.
const LEFT_OVER: [&str; 3] = ["cls.", "lm_predictions.", "mask_predictions."];

/// Reads tensors by name and remembers which.
struct Reader<'a> {
    device: &'a Device,
    source: &'a SafeTensors,
    read: RefCell<BTreeSet<String>>,
}

impl Reader<'_> {
    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.read.borrow_mut().insert(name.to_owned());
        match self.source.shape(name) {
            None => Err(Error::tensor(self.source.place(name), name, "is missing")),
            Some(found) if found != shape => {
                let what = format!("is {found:?}; the configuration wants {shape:?}");
                Err(Error::tensor(self.source.place(name), name, what))
            }
            Some(_) => read_f32(self.source, name, 0..shape[0]),
        }
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor> {
        let values = self.values(name, &[rows, cols])?;
        Ok(self.device.from_f32(rows, cols, &values, Category::Params))
    }

    fn row(&self, name: &str, cols: usize) -> Result<Tensor> {
        let values = self.values(name, &[cols])?;
        Ok(self.device.from_f32(1, cols, &values, Category::Params))
    }

    fn dense(&self, name: &str, out: usize, inner: usize) -> Result<Dense> {
        let weight = self.matrix(&format!("{name}.weight"), out, inner)?;
        Ok(Dense { weight, bias: self.row(&format!("{name}.bias"), out)? })
    }

    fn norm(&self, name: &str, cols: usize) -> Result<NormWeights> {
        let weight = self.row(&format!("{name}.weight"), cols)?;
        Ok(NormWeights { weight, bias: self.row(&format!("{name}.bias"), cols)? })
    }

    /// Projections of the same input, on top of each other.
    fn stacked(&self, names: &[String], d: usize) -> Result<Dense> {
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for name in names {
            weights.extend(self.values(&format!("{name}.weight"), &[d, d])?);
            biases.extend(self.values(&format!("{name}.bias"), &[d])?);
        }
        let rows = names.len() * d;
        let weight = self.device.from_f32(rows, d, &weights, Category::Params);
        Ok(Dense { weight, bias: self.device.from_f32(1, rows, &biases, Category::Params) })
    }

    /// Refuses what nobody read.
    fn finish(&self) -> Result<()> {
        let read = self.read.borrow();
        let harmless = |name: &str| {
            name.ends_with(".position_ids") || LEFT_OVER.iter().any(|start| name.starts_with(start))
        };
        match self.source.names().into_iter().find(|name| !read.contains(*name) && !harmless(name)) {
            Some(name) => {
                let what =
                    "is not known to this encoder; it may change what the model computes, so it is refused";
                Err(Error::tensor(self.source.place(name), name, what))
            }
            None => Ok(()),
        }
    }
}

impl Weights {
    /// Reads all weights; gives the labels numbers for names where the configuration has none.
    pub fn load(device: &Device, spec: &mut EncoderSpec, source: &SafeTensors) -> Result<Weights> {
        let reader = Reader { device, source, read: RefCell::default() };
        let (prefix, d) = (spec.prefix, spec.hidden);
        let embeddings = |part: &str| format!("{prefix}embeddings.{part}");
        let tokens = reader.matrix(&embeddings("word_embeddings.weight"), spec.vocab, d)?;
        let positions = spec
            .positions
            .map(|table| reader.matrix(&embeddings("position_embeddings.weight"), table.rows, d));
        let kinds = (spec.types > 0)
            .then(|| reader.matrix(&embeddings("token_type_embeddings.weight"), spec.types, d));
        let kind = kinds.transpose()?.map(|kinds| kinds.view_rows(0..1));
        let norm = reader.norm(&embeddings("LayerNorm"), d)?;
        let distances = spec.relative.map(|relative| distances(&reader, spec, relative)).transpose()?;
        let blocks = (0..spec.layers).map(|index| block(&reader, spec, index, distances.as_ref()));
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        let (pooler, last) = match spec.pool {
            Pool::Tanh(name, last) | Pool::Activated(name, _, last) => {
                (Some(reader.dense(name, d, d)?), last)
            }
            Pool::Plain(last) => (None, last),
        };
        let weight = format!("{last}.weight");
        let rows = source.shape(&weight).and_then(|shape| shape.first().copied());
        let labels = if spec.labels.is_empty() { rows.unwrap_or(2) } else { spec.labels.len() };
        let classifier = reader.dense(last, labels, d)?;
        // A folder may have BERT's pooler and not use it.
        let _ = reader.read.borrow_mut().insert(format!("{prefix}pooler.dense.weight"));
        let _ = reader.read.borrow_mut().insert(format!("{prefix}pooler.dense.bias"));
        reader.finish()?;
        if spec.labels.is_empty() {
            spec.labels = (0..labels).map(|label| format!("LABEL_{label}")).collect();
        }
        Ok(Weights { tokens, positions: positions.transpose()?, kind, norm, blocks, pooler, classifier })
    }
}

/// The table of distances, [2 span, d], normalised where the model wants it.
fn distances(reader: &Reader<'_>, spec: &EncoderSpec, relative: Relative) -> Result<Tensor> {
    let (prefix, d) = (spec.prefix, spec.hidden);
    let table = reader.matrix(&format!("{prefix}encoder.rel_embeddings.weight"), 2 * relative.span, d)?;
    if !relative.normed {
        return Ok(table);
    }
    let norm = reader.norm(&format!("{prefix}encoder.LayerNorm"), d)?;
    Ok(forward::norm(reader.device, spec, &table, &norm))
}

fn block(reader: &Reader<'_>, spec: &EncoderSpec, index: usize, distances: Option<&Tensor>) -> Result<Block> {
    let d = spec.hidden;
    let at = |part: &str| format!("{}encoder.layer.{index}.{part}", spec.prefix);
    let own = if spec.family == "deberta-v2" { "_proj" } else { "" };
    let content = |part: &str| at(&format!("attention.self.{part}{own}"));
    let qkv = reader.stacked(&["query", "key", "value"].map(content), d)?;
    let projected = |wanted: bool, part: &str, rows: std::ops::Range<usize>| -> Result<Option<Tensor>> {
        let (Some(table), Some(relative), true) = (distances, spec.relative, wanted) else { return Ok(None) };
        let through = if relative.shared {
            Dense { weight: qkv.weight.view_rows(rows.clone()), bias: qkv.bias.view_cols(rows) }
        } else {
            reader.dense(&at(&format!("attention.self.pos_{part}_proj")), d, d)?
        };
        Ok(Some(forward::linear(reader.device, table, &through)))
    };
    let terms = spec.relative.map_or((false, false), |relative| (relative.c2p, relative.p2c));
    Ok(Block {
        head_dim: d / spec.heads,
        position_keys: projected(terms.0, "key", d..2 * d)?,
        position_queries: projected(terms.1, "query", 0..d)?,
        out: reader.dense(&at("attention.output.dense"), d, d)?,
        attn_norm: reader.norm(&at("attention.output.LayerNorm"), d)?,
        up: reader.dense(&at("intermediate.dense"), spec.ffn, d)?,
        down: reader.dense(&at("output.dense"), d, spec.ffn)?,
        mlp_norm: reader.norm(&at("output.LayerNorm"), d)?,
        qkv,
    })
}
