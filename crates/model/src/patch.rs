//! Maps elements of a rank's part of a weight to elements of Hugging Face tensors. Loading and saving use it for
//! whole weights and for ranges of a weight's elements.

use std::ops::Range;

use crate::files::Area;
use crate::model::Model;
use crate::pieces::Piece;

/// A rectangle shared by a tensor and a rank's part of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Name of the Hugging Face tensor.
    pub name: String,
    /// Its full shape.
    pub shape: Vec<usize>,
    /// The rectangle within the tensor.
    pub area: Area,
    /// The rectangle within the rank's part of the weight, in memory layout; transposed if `transpose`.
    pub local: Area,
    /// Whether the tensor is stored [in, out] and the weight is [out, in].
    pub transpose: bool,
    /// Whether the tensor is a vector: its rows are the columns of the weight's only row.
    pub vector: bool,
}

impl Patch {
    /// Restricts it to some rows of the tensor.
    pub fn rows(&self, rows: Range<usize>) -> Patch {
        let part = rows.start - self.area.rows.start..rows.end - self.area.rows.start;
        let of = |range: &Range<usize>| range.start + part.start..range.start + part.end;
        let local = if self.transpose || self.vector {
            Area { rows: self.local.rows.clone(), cols: of(&self.local.cols) }
        } else {
            Area { rows: of(&self.local.rows), cols: self.local.cols.clone() }
        };
        Patch { area: Area { rows, cols: self.area.cols.clone() }, local, ..self.clone() }
    }
}

impl Piece {
    /// Its rectangle within the rank's part of the weight.
    fn local(&self) -> Area {
        let rows = |len: usize| self.param_row..self.param_row + len;
        match (self.shape.len() == 1, self.transpose) {
            (true, _) => Area { rows: 0..1, cols: rows(self.rows.len()) },
            (_, true) => Area { rows: rows(self.cols.len()), cols: 0..self.rows.len() },
            _ => Area { rows: rows(self.rows.len()), cols: 0..self.cols.len() },
        }
    }

    /// Its intersection with an area of the rank's part of the weight.
    pub fn patch(&self, wanted: &Area) -> Option<Patch> {
        let own = self.local();
        let local = own.meet(wanted)?;
        let vector = self.shape.len() == 1;
        let shift =
            |range: &Range<usize>, from: usize, to: usize| range.start - from + to..range.end - from + to;
        let (rows, cols) =
            if self.transpose || vector { (&local.cols, &local.rows) } else { (&local.rows, &local.cols) };
        let (own_rows, own_cols) = if self.transpose || vector {
            (own.cols.start, own.rows.start)
        } else {
            (own.rows.start, own.cols.start)
        };
        let area = Area {
            rows: shift(rows, own_rows, self.rows.start),
            cols: shift(cols, own_cols, self.cols.start),
        };
        let (name, shape) = (self.name.clone(), self.shape.clone());
        Some(Patch { name, shape, area, local, transpose: self.transpose && !vector, vector })
    }
}

/// Patches of a range of elements of a rank's part of a weight, which has `shape`.
pub fn patches(pieces: &[Piece], shape: [usize; 2], range: Range<usize>) -> Vec<Patch> {
    let areas = Area::of(shape).stretch(range);
    areas.iter().flat_map(|area| pieces.iter().filter_map(|piece| piece.patch(area))).collect()
}

impl Model {
    /// Rows x columns of the rank's part of each weight, by [`fathom_grad::ParamId`].
    pub fn shapes(&self) -> Vec<[usize; 2]> {
        self.holdings.iter().map(|held| held.shard.local()).collect()
    }
}
