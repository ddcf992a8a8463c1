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
    /// Where they go.
    pub value: Value,
    /// Which elements of the rank's part of the weight they are, counted row by row.
    pub range: Range<usize>,
    /// The value is codes.
    pub coded: Option<Coded>,
}

/// What e4m3 codes in blocks ([`fathom_tensor::moments`]) need besides themselves; in files are the elements that they stand for.
#[derive(Clone, Debug)]
pub struct Coded {
    /// f32 [1, blocks], in memory.
    pub scales: Value,
    /// Codes are of the elements' roots.
    pub root: bool,
}

/// One patch, with where it comes from and goes to.
pub(super) struct Job {
    /// Which of the slots.
    pub slot: usize,
    pub patch: Patch,
    /// First of its elements in the slot's value.
    pub first: usize,
    /// The name in the source, which may lack the family's prefix.
    pub name: String,
    pub dtype: DType,
    /// Place of the tensor in the order of the source.
    pub order: usize,
}

/// Rows of an area, in parts of about `bytes`.
pub(super) fn split(
    area: &Area,
    element_bytes: usize,
    bytes: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = (bytes / (area.cols.len() * element_bytes).max(1)).max(1);
    let rows = area.rows.clone();
    rows.clone().step_by(step).map(move |start| start..rows.end.min(start.saturating_add(step)))
}
