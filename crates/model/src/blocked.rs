//! Which weights of a model are held as a file has them, in blocks (GGUF), in few bits with scales of groups (GPTQ, AWQ and others) or
//! as bf16: projections, the embedding and the head, and experts in few bits, where all of their tensors are in formats that the machine
//! multiplies with. Everything else is unpacked while it is loaded. What is rounded to few bits while it is loaded, as the base of a QLoRA
//! run, stays so where the machine multiplies with it. Rows of GGUF's blocks in four to six bits, and of bf16 where the processor has no
//! unit for it, are interleaved by eight, which takes no more bytes.

use std::sync::Arc;

use fathom_grad::{Param, ParamId, Params, Value};
use fathom_tensor::ggml::octets::OCTET;
use fathom_tensor::{BlockFormat, DType, Device, Machine, Meta, Packing, Profile, ggml};

use crate::files::{Source, of_stack};
use crate::given::{Blocked, Given};
use crate::loaded::ModelView;
use crate::model::Model;
use crate::pieces::Piece;
use crate::portion::Portion;
use crate::spec::{Quantized, Spec};
use crate::weight::{Kind, Module, Term};

impl Model {
    /// As [`Model::declare`], with weights as the source has them where the machine multiplies with what it has. They cannot be
    /// trained, and are filled from such a source alone.
    pub fn declare_stored(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        source: &dyn Source,
    ) -> (Model, Params) {
        Model::declare_stored_as(device, spec, dtype, source, None)
    }

    /// The same, with frozen projections in few bits, which are made while weights are loaded.
    ///
    /// # Panics
    /// As [`Model::declare_quantized`].
    #[track_caller]
    pub fn declare_stored_as(
        device: &Device,
        spec: &Spec,
        dtype: DType,
        source: &dyn Source,
        quantized: Option<&Quantized>,
    ) -> (Model, Params) {
        let portion = Portion::of(spec, &device.mesh, 1);
        let mut stored = blocked(spec, source, device.machine.as_ref(), &portion);
        if let Some(quantized) = quantized {
            let made = quantized.numbers(spec);
            stored.retain(|number, _| !made.contains(number));
        }
        let given = Given { blocked: stored, ..Given::default() };
        Model::declare_held(device, spec, dtype, None, (portion, quantized), given)
    }
}

/// The same model with none of its weights in few bits, but those that are held as a file has them: each has the elements, in the model's
/// type, that a segment computes with.
pub fn unpack(device: &Device, model: &Model, params: &Params) -> (Model, Params) {
    with_values(ModelView { device, model, params }, &|_, _| None)
}

/// As [`unpack`], but what the machine multiplies with as it is packed stays so: projections whose rows are whole blocks.
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

/// How the weights that a rank holds are packed, or its parts of them.
fn blocked(spec: &Spec, source: &dyn Source, machine: &dyn Machine, portion: &Portion) -> Blocked {
    let nowhere = Device::new(Arc::new(Meta::new(Profile::portable(1))), u64::MAX);
    let (model, _) = Model::declare_part(&nowhere, spec, DType::F32, None, portion.clone());
    let (pieces, mut found) = (model.pieces(), Blocked::new());
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
                    // Numbers are multiplied by another kernel than blocks are.
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

/// Whether a run is of bf16 whose rows are interleaved.
fn is_numbers((format, _): &(BlockFormat, usize)) -> bool {
    *format == BlockFormat::Octets(ggml::Kind::Bf16)
}

/// The packing of the weight of so many experts, if all of its tensors are in few bits. Rows are interleaved where each expert and each
/// run has whole eights of them.
fn of_experts(count: usize, packing: Packing) -> Option<Packing> {
    if packing.runs.iter().any(|(format, _)| *format == BlockFormat::Ggml(ggml::Kind::Bf16)) {
        return None;
    }
    let whole = |rows: usize| rows.is_multiple_of(OCTET);
    let eights = whole(packing.rows() / count.max(1)) && packing.runs.iter().all(|(_, rows)| whole(*rows));
    Some(if eights { packing.interleaved() } else { packing })
}

/// The rows of a tensor [experts, in, out] that is stored as [experts, out, in] in few bits, or of a rank's part of it: some experts, some
/// rows of each, or whole blocks of their columns.
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

/// The format of a tensor's rows, as they are stored.
fn rows_format(source: &dyn Source, name: &str) -> Option<BlockFormat> {
    let is_bf16 = || source.dtype(name) == Some(DType::Bf16) && source.quantised(name).is_none();
    source.blocks(name).or_else(|| is_bf16().then_some(BlockFormat::Ggml(ggml::Kind::Bf16)))
}

/// How a weight, or a rank's part of it, is packed whose tensors are, all of them. Columns that are cut are whole blocks.
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
