//! Initial values of an adapter's weights, whether or not they depend on the base.

use fathom_grad::{ParamId, Params, Value};
use fathom_tensor::{Category, DType, Device};

use super::singular;
use crate::error::{Error, Result};
use crate::files::{Slot, Source, load, load_slots};
use crate::init::{Init, initialise_adapter};
use crate::model::Model;
use crate::portion::sum_of_parts;
use crate::spec::{Adapter, AdapterMethod};
use crate::weight::{AdapterParams, Kind, LinearParams, Parallel, Projection, Term, WeightSpec};

/// Initializes the weights of a model's adapter; the base must have its values. With PiSSA, the adapter's initial
/// product is subtracted from the base.
///
/// # Errors
/// PiSSA on ranks that hold parts of a projection.
///
/// # Panics
/// If `params` are not this model's.
pub fn adapt(
    device: &Device,
    model: &Model,
    params: &mut Params,
    seed: u64,
) -> std::result::Result<(), String> {
    let Some(adapter) = model.spec.adapter.clone() else { return Ok(()) };
    initialise_adapter(device, model, params, Init::new(seed));
    let singular = matches!(adapter.method, AdapterMethod::Lora { singular: true, .. });
    if singular && model.portion.cuts_projections() {
        return Err(
            "takes whole projections apart, and tensor parallel ranks have parts of them; use mesh.tp=1"
                .into(),
        );
    }
    if !device.machine.has_data() {
        return Ok(());
    }
    begin_tokens(device, model, params, &adapter);
    for adapted in model.adapted() {
        fill_up(device, params, &adapted, &adapter);
        match adapted.params.adapter {
            Some(AdapterParams::Lora(_, Some(lengths))) => begin_lengths(device, params, &adapted, lengths),
            Some(AdapterParams::Lora(..)) if singular => begin_singular(device, params, &adapted, &adapter),
            _ => {}
        }
    }
    Ok(())
}

impl Model {
    /// Multiplies the learning rates of the adapter's B matrices (LoRA+; Hayou et al., 2024), except that of an
    /// embedding.
    pub fn scale_rates(&self, params: &mut Params, factor: f32) {
        self.visit(&mut |id, _, weight| {
            if weight.kind == Kind::Adapter && weight.term == Term::LoraB {
                params.scale_rate(id, factor);
            }
        });
    }

    /// Multiplies the learning rates of the embedding's terms.
    pub fn scale_embedding_rates(&self, params: &mut Params, factor: f32) {
        self.visit(&mut |id, _, weight| {
            if matches!(weight.term, Term::EmbedA | Term::EmbedB) {
                params.scale_rate(id, factor);
            }
        });
    }
}

/// The embedding's rows of these tokens, gathered from the ranks that have them.
fn rows_of(device: &Device, model: &Model, params: &Params, (table, ids): (ParamId, &[u32])) -> Vec<f32> {
    let (base, held) = (values(device, params, table), &model.holdings[table.index()].shard);
    let (hidden, here) = (model.spec.hidden, &held.rows[0]);
    let row = |token: &u32| {
        let at = (*token as usize).checked_sub(here.start).filter(|at| *at < here.len());
        at.map_or_else(|| vec![0.0; hidden], |at| base[at * hidden..(at + 1) * hidden].to_vec())
    };
    let own: Vec<f32> = ids.iter().flat_map(row).collect();
    if !held.is_parted() {
        return own;
    }
    let own = device.from_f32(ids.len(), hidden, &own, Category::Staging);
    sum_of_parts(device, &own);
    device.to_f32(&own)
}

/// Initializes trained rows from the base's.
fn begin_tokens(device: &Device, model: &Model, params: &Params, adapter: &Adapter) {
    let Some((embed, rows)) = model.embed.and_then(|embed| Some((embed, embed.table.rows?))) else { return };
    let own = rows_of(device, model, params, (embed.tokens, &adapter.tokens));
    set(device, &params.get(rows).value, &own);
}

/// Initializes virtual tokens from a text: from the embeddings of its tokens, repeated or cut to the required count
/// (PEFT's `PromptTuningInit.TEXT`). Does nothing on ranks and models without such rows.
///
/// # Panics
/// If there is no token, or one that the embedding does not have.
pub fn begin_as(device: &Device, model: &Model, params: &mut Params, ids: &[u32]) {
    let Some((embed, prompt)) = model.embed.and_then(|embed| Some((embed, embed.prompt?))) else { return };
    if !device.machine.has_data() || !model.portion.first {
        return;
    }
    assert!(ids.iter().all(|id| (*id as usize) < model.spec.vocab), "begin_as: tokens of the embedding");
    let tokens = model.spec.virtual_tokens();
    let ids: Vec<u32> = ids.iter().copied().cycle().take(tokens).collect();
    assert_eq!(ids.len(), tokens, "begin_as: a text without a token");
    let mut own = rows_of(device, model, params, (embed.tokens, &ids));
    own.iter_mut().for_each(|x| *x *= model.embed_scale);
    set(device, &params.get(prompt.rows).value, &own);
}

/// Zeroes the unused rows of A and columns of B where projections fused into one weight have terms of different
/// ranks. The zeros have no gradients and stay.
fn fill_up(device: &Device, params: &Params, adapted: &AdaptedProjection, adapter: &Adapter) {
    let Some(AdapterParams::Lora(lora, _)) = adapted.params.adapter else { return };
    let (rank, [_, cols]) = (params.shape(lora.b)[1], params.shape(lora.a));
    let ranks: Vec<usize> = adapted.names.iter().map(|name| adapter.modules[name].rank).collect();
    if ranks.iter().all(|own| *own == rank) {
        return;
    }
    let mut low = values(device, params, lora.a);
    for (index, own) in ranks.iter().enumerate() {
        low[(index * rank + own) * cols..(index + 1) * rank * cols].fill(0.0);
    }
    set(device, &params.get(lora.a).value, &low);
}

/// Like [`load`], then initializes the adapter and reads its weights from the source where it has them.
///
/// # Errors
/// Those of [`load`] and [`adapt`].
pub fn load_adapted(
    device: &Device,
    model: &Model,
    params: &mut Params,
    source: &dyn Source,
    seed: u64,
) -> Result<()> {
    load(device, model, params, source)?;
    let place = || source.place("").to_path_buf();
    adapt(device, model, params, seed).map_err(|what| Error::file(&place(), what))?;
    let slots = model.slots(params, |weight| weight.is_added());
    let pieces = model.pieces();
    let there = |slot: &Slot| pieces[slot.id.index()].iter().any(|piece| source.shape(&piece.name).is_some());
    if slots.iter().any(there) { load_slots(device, model, &slots, source) } else { Ok(()) }
}

impl Model {
    /// Slots of the weights that satisfy `of`: the adapter's, or those of a score head.
    pub(super) fn slots(&self, params: &Params, of: impl Fn(&WeightSpec<'_>) -> bool) -> Vec<Slot> {
        let mut slots = Vec::new();
        self.visit(&mut |id, _, weight| {
            if of(weight) {
                let value = params.get(id).value.clone();
                slots.push(Slot { id, range: 0..value.len(), value, coded: None });
            }
        });
        slots
    }
}

/// A projection of a rank's model with an adapter.
pub(super) struct AdaptedProjection {
    pub params: LinearParams,
    /// Whether ranks split its columns.
    pub cut: bool,
    /// Names in files of its adapted parts.
    pub names: Vec<String>,
}

impl Model {
    /// The rank's projections that have an adapter.
    pub(super) fn adapted(&self) -> Vec<AdaptedProjection> {
        let mut all = Vec::new();
        let Some(adapter) = self.spec.adapter.as_deref() else { return all };
        self.see_projections(&mut |layer, p: &Projection<'_>, params| {
            if params.adapter.is_some() && self.portion.has(layer, p.module, self.spec.tied) {
                let at = self.spec.prefix(layer, p.module);
                let names = super::declare::parts(p).into_iter().map(|part| format!("{at}{}", part.name));
                let names = names.filter(|name| adapter.modules.contains_key(name)).collect();
                let cut = p.parallel == Parallel::Rows && self.portion.cuts_projections();
                all.push(AdaptedProjection { params, cut, names });
            }
        });
        all
    }
}

/// All elements of the rank's part of a weight.
pub(super) fn values(device: &Device, params: &Params, id: ParamId) -> Vec<f32> {
    let mut all = Vec::new();
    params.get(id).value.read(|_, tensor| all.extend(device.to_f32(tensor)));
    all
}

/// Overwrites the rank's part of a weight.
pub(super) fn set(device: &Device, value: &Value, elements: &[f32]) {
    value.fill(|range, tensor| {
        let part = &elements[range];
        let bytes: Vec<u8> = match tensor.dtype() {
            DType::Bf16 => part.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
            _ => part.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        device.machine.write(tensor, &bytes);
    });
}

/// Initializes DoRA's magnitudes with the norms of the base's rows.
fn begin_lengths(device: &Device, params: &Params, adapted: &AdaptedProjection, lengths: ParamId) {
    let Some(AdapterParams::Lora(lora, _)) = adapted.params.adapter else { return };
    let [rows, cols] = params.shape(adapted.params.weight);
    let weight = values(device, params, adapted.params.weight);
    // Only the columns on this rank.
    let here = params.shape(lengths)[1];
    let runs = lora.runs.part(lora.runs.columns() / here.max(1));
    let square = |row: usize| {
        weight[row * cols..(row + 1) * cols].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() as f32
    };
    let squares: Vec<f32> = runs.iter().flat_map(|(at, columns)| at..at + columns).map(square).collect();
    debug_assert!(runs.iter().all(|(at, columns)| at + columns <= rows));
    let squares = device.from_f32(1, squares.len(), &squares, Category::Staging);
    if adapted.cut {
        sum_of_parts(device, &squares);
    }
    let roots: Vec<f32> = device.to_f32(&squares).iter().map(|square| square.sqrt()).collect();
    set(device, &params.get(lengths).value, &roots);
}

/// Moves the largest singular parts of the base into PiSSA's terms (Meng et al., 2024, equations 2 to 4).
fn begin_singular(device: &Device, params: &Params, adapted: &AdaptedProjection, adapter: &Adapter) {
    let Some(AdapterParams::Lora(lora, _)) = adapted.params.adapter else { return };
    let [_, cols] = params.shape(adapted.params.weight);
    let mut weight = values(device, params, adapted.params.weight);
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for ((at, rows), name) in lora.runs.iter().zip(&adapted.names) {
        let size = adapter.modules[name];
        let part = &mut weight[at * cols..(at + rows) * cols];
        let (a, b) = singular::largest(part, [rows, cols], size.rank, adapter.scale(size));
        low.extend(a);
        high.extend(b);
    }
    set(device, &params.get(lora.a).value, &low);
    set(device, &params.get(lora.b).value, &high);
    set(device, &params.get(adapted.params.weight).value, &weight);
}
