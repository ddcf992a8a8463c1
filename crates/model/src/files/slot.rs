//! Values to be filled from files, and the patches that fill them.

use std::ops::Range;

use fathom_grad::{ParamId, Value};
use fathom_tensor::DType;

use super::area::Area;
use crate::patch::Patch;

/// A value to be filled.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The weight whose elements it holds.
    pub id: ParamId,
    /// Its storage.
    pub value: Value,
    /// Its elements within the rank's part of the weight, counted row by row.
    pub range: Range<usize>,
    /// Scales, if the value is e4m3-coded.
    pub coded: Option<CodeScales>,
}

/// Scales of e4m3 codes in blocks ([`fathom_tensor::moments`]); files have the decoded elements.
#[derive(Clone, Debug)]
pub struct CodeScales {
    /// f32 [1, blocks], in memory.
    pub scales: Value,
    /// Whether codes are of the elements' square roots.
    pub root: bool,
}

/// A patch, with its source and destination.
pub(super) struct Job {
    /// Index of the slot.
    pub slot: usize,
    pub patch: Patch,
    /// Index of its first element in the slot's value.
    pub first: usize,
    /// Name in the source, which may lack the family's prefix.
    pub name: String,
    pub dtype: DType,
    /// Place of the tensor in the source's order.
    pub order: usize,
}

/// Splits an area's rows into parts of about `bytes`.
pub(super) fn split(
    area: &Area,
    element_bytes: usize,
    bytes: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = (bytes / (area.cols.len() * element_bytes).max(1)).max(1);
    let rows = area.rows.clone();
    rows.clone().step_by(step).map(move |start| start..rows.end.min(start.saturating_add(step)))
}
