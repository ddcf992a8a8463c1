//! Selects the weights that stay in the format of their file: blocks (GGUF), few bits with scales per group (GPTQ,
//! AWQ and others) or bf16. These are projections, the embedding, the head, and quantized experts, if all of their
//! tensors are in formats that the machine can multiply. All others are dequantized while loading. Weights quantized
//! while loading, such as the base of a QLoRA run, stay so if the machine can multiply them. Rows of GGUF blocks of
//! four to six bits, and of bf16 on processors without a unit for it, are interleaved by eight, which takes no more
//! bytes.

use std::sync::Arc;

use fathom_grad::{Param, ParamId, Params, Value};
use fathom_tensor::ggml::octets::OCTET;
use fathom_tensor::{BlockFormat, DType, Device, Machine, Meta, Packing, Profile, ggml};

use crate::files::{Source, of_stack};
use crate::given::{ExistingWeights, Packings};
use crate::loaded::ModelView;
use crate::model::Model;
use crate::pieces::Piece;
use crate::portion::Portion;
use crate::spec::{Quantization, Spec};
use crate::weight::{Kind, Module, Term};

impl Model {
    /// Like [`Model::declare`], keeping weights in the source's format where the machine can multiply it. Such
    /// weights cannot be trained, and can only be loaded from such a source.
    pub fn declare_stored(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        source: &dyn Source,
    ) -> (Model, Params) {
        Model::declare_stored_as(device, spec, dtype, source, None)
    }

    /// The same, with frozen projections quantized while they are loaded.
    ///
    /// # Panics
    /// Those of [`Model::declare_quantized`].
    #[track_caller]
    pub fn declare_stored_as(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        source: &dyn Source,
        quantized: Option<&Quantization>,
    ) -> (Model, Params) {
        let portion = Portion::of(spec, &device.mesh, 1);
        let mut stored = blocked(spec, source, device.machine.as_ref(), &portion);
        if let Some(quantized) = quantized {
            let made = quantized.numbers(spec);
            stored.retain(|number, _| !made.contains(number));
        }
        let given = ExistingWeights { blocked: stored, ..ExistingWeights::default() };
        Model::declare_held(device, spec, dtype, None, (portion, quantized), given)
    }
}

/// Returns the model with all weights dequantized, including those kept in their file's format, to elements of the
/// model's type.
pub fn unpack(device: &Device, model: &Model, params: &Params) -> (Model, Params) {
    with_values(ModelView { device, model, params }, &|_, _| None)
}

/// Like [`unpack`], but keeps projections packed whose format the machine multiplies and whose rows are whole blocks.
pub fn keep_packed(device: &Device, model: &Model, params: &Params) -> (Model, Params) {
    let mut projections = Vec::new();
    model.visit(&mut |_, _, weight| projections.push(weight.kind == Kind::Linear));
    let kept = |id: ParamId, value: &Value| {
        let (format, _) = value.as_packed()?;
        let kept = projections[id.index()] && device.machine.multiplies(format);
        if kept { value.multiplied_as_packed() } else { None }
    };
    with_values(ModelView { device, model, params }, &kept)
}

fn with_values(
    ModelView { device, model, params }: ModelView<'_>,
    kept: &dyn Fn(ParamId, &Value) -> Option<Value>,
) -> (Model, Params) {
    let mut whole = Params::default();
    for (id, Param { name, value, decays, trainable }) in params.iter() {
        let elements = || {
            let weights = params.fetch(device, [id]);
            weights.wait();
            params.tensor(id).into()
        };
        let value = match (value.as_packed(), kept(id, value)) {
            (None, _) => value.clone(),
            (Some(_), Some(kept)) => kept,
            (Some(_), None) => elements(),
        };
        whole.push(Param { name: name.clone(), value, decays: *decays, trainable: *trainable });
    }
    (Model { quantized: None, ..model.clone() }, whole)
}

/// Packing of the weights, or parts of them, that a rank has.
fn blocked(spec: &Spec, source: &dyn Source, machine: &dyn Machine, portion: &Portion) -> Packings {
    let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
    let (model, _) = Model::declare_part(&nowhere, spec, DType::F32, None, portion.clone());
    let (pieces, mut found) = (model.pieces(), Packings::new());
    model.visit(&mut |id, _, weight| {
        let looked_up = weight.kind == Kind::Table && matches!(weight.module, Module::Tokens | Module::Head);
        let is_matrix = weight.term == Term::Weight && weight.shape[0] > 1;
        let (pieces, held) = (&pieces[id.index()], &model.holdings[id.index()]);
        let local = held.shard.local();
        let packing = match weight.kind {
            Kind::Experts(count) if is_matrix => {
                let packing = turned(pieces, source).or_else(|| packing(pieces, local, source));
                packing.and_then(|packing| of_experts(portion.own_experts(count), packing))
            }
            _ if is_matrix && (weight.kind == Kind::Linear || looked_up) => {
                packing(pieces, local, source).map(Packing::interleaved).filter(|all| {
                    // bf16 needs another kernel than blocks.
                    all.is_numbers() || !all.runs.iter().any(is_numbers)
                })
            }
            _ => None,
        };
        let multiplied = |all: &Packing| all.runs.iter().all(|(format, _)| machine.multiplies(*format));
        found.extend(packing.filter(multiplied).map(|packing| (held.number, packing)));
    });
    found
}

/// Returns whether a run is bf16 with interleaved rows.
fn is_numbers((format, _): &(BlockFormat, usize)) -> bool {
    *format == BlockFormat::Octets(ggml::Kind::Bf16)
}

/// Packing of a weight of `count` experts whose tensors are all quantized. Rows are interleaved if each expert and
/// each run has a multiple of eight.
fn of_experts(count: usize, packing: Packing) -> Option<Packing> {
    if packing.runs.iter().any(|(format, _)| *format == BlockFormat::Ggml(ggml::Kind::Bf16)) {
        return None;
    }
    let whole = |rows: usize| rows.is_multiple_of(OCTET);
    let eights = whole(packing.rows() / count.max(1)) && packing.runs.iter().all(|(_, rows)| whole(*rows));
    Some(if eights { packing.interleaved() } else { packing })
}

/// Packing of a tensor [experts, in, out] stored quantized as [experts, out, in], or of a rank's part of it: some
/// experts, some rows of each, or whole blocks of their columns.
fn turned(pieces: &[Piece], source: &dyn Source) -> Option<Packing> {
    let Piece { name, shape, .. } = pieces.first()?;
    let [_, inner, _] = shape[..] else { return None };
    let format = source.blocks(name)?;
    let mut packing = Packing { cols: 0, runs: Vec::new(), turned: true };
    let mut rows = 0;
    for piece in pieces {
        let (experts, columns) = of_stack(&piece.rows, inner)?;
        if piece.name != *name || !format.has_columns(inner, &columns) {
            return None;
        }
        (packing.cols, rows) = (columns.len(), rows + experts.len() * piece.cols.len());
    }
    packing.runs.push((format, rows));
    Some(packing)
}

/// Stored format of a tensor's rows.
fn rows_format(source: &dyn Source, name: &str) -> Option<BlockFormat> {
    let is_bf16 = || source.dtype(name) == Some(DType::Bf16) && source.quantised(name).is_none();
    source.blocks(name).or_else(|| is_bf16().then_some(BlockFormat::Ggml(ggml::Kind::Bf16)))
}

/// Packing of a weight, or of a rank's part, if all of its tensors are packed. Column splits must be at whole blocks.
fn packing(pieces: &[Piece], [rows, cols]: [usize; 2], source: &dyn Source) -> Option<Packing> {
    let mut pieces: Vec<&Piece> = pieces.iter().collect();
    pieces.sort_by_key(|piece| piece.param_row);
    let mut packing = Packing { cols, runs: Vec::new(), turned: false };
    for piece in pieces {
        let [_, all] = piece.shape[..] else { return None };
        let has_rows = !piece.transpose && piece.cols.len() == cols;
        if !has_rows || piece.param_row != packing.rows() {
            return None;
        }
        let format =
            rows_format(source, &piece.name).filter(|format| format.has_columns(all, &piece.cols))?;
        match packing.runs.last_mut() {
            Some((last, rows)) if *last == format => *rows += piece.rows.len(),
            _ => packing.runs.push((format, piece.rows.len())),
        }
    }
    (packing.rows() == rows).then_some(packing)
}
