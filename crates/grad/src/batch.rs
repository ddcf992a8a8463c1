//! A micro-batch: one packed stream of tokens with its positions and masks, without padding.

use std::ops::{Deref, Range};
use std::rc::Rc;

use fathom_tensor::{Category, DType, Device, DocumentRuns, Mask, RopeTable, Tensor};

use crate::context::Context;
use crate::row_terms::RowTerms;

/// First id of virtual tokens, which are rows of an adapter before a document.
pub const VIRTUAL: usize = 1 << 30;

/// Token ids, positions, masks and rotary tables of one micro-batch. Entries that depend on the model (masks, rotary
/// tables) are in the order in which its layers refer to them.
pub struct Batch {
    /// Number of tokens.
    pub tokens: usize,
    /// i32 [1, t].
    pub ids: Tensor,
    /// i32 [1, t].
    pub positions: Tensor,
    /// Its documents, for models whose operations start over with each.
    pub documents: Option<DocumentRuns>,
    /// One per distinct window, among this batch's own tokens.
    pub masks: Vec<Mask>,
    /// One per distinct rotary setting.
    pub ropes: Vec<Rotation>,
    /// The rest of the stream, if other ranks have tokens of it.
    pub context: Option<Context>,
    /// i32 [1, t]: each token's own position in the stream, -1 for virtual tokens ([`Batch::text_of`]); for models that
    /// replace their rows.
    pub text: Option<Tensor>,
    /// i32 [1, t]: random key of each token for dropout; `None` without dropout.
    pub keys: Option<Tensor>,
    /// Rows with adapters' terms that share the pass, in generation.
    pub terms: Vec<RowTerms>,
    /// f32 [1, heads]: slopes by distance of this rank's heads, for models whose attention has them.
    pub slopes: Option<Tensor>,
    /// i32 [1, t]: type of each token, for encoders that read pairs of texts; `None` if all have the first type.
    pub types: Option<Tensor>,
}

/// A batch that is borrowed, or freed with the last tape that needs it.
#[derive(Clone)]
pub enum Tables<'a> {
    /// Borrowed.
    Kept(&'a Batch),
    /// Shared.
    Shared(Rc<Batch>),
}

impl Deref for Tables<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        match self {
            Tables::Kept(batch) => batch,
            Tables::Shared(batch) => batch,
        }
    }
}

impl<'a> From<&'a Batch> for Tables<'a> {
    fn from(batch: &'a Batch) -> Tables<'a> {
        Tables::Kept(batch)
    }
}

impl Batch {
    /// Tokens at positions, without masks and rotary tables.
    pub fn new(ids: Tensor, positions: Tensor) -> Batch {
        Batch {
            tokens: ids.cols(),
            ids,
            positions,
            documents: None,
            masks: Vec::new(),
            ropes: Vec::new(),
            context: None,
            text: None,
            keys: None,
            terms: Vec::new(),
            slopes: None,
            types: None,
        }
    }

    /// Computes [`Batch::text`] from the tokens' ids.
    pub fn text_of(device: &Device, ids: &[i32]) -> Tensor {
        let place = |(at, id): (usize, &i32)| if (*id as usize) < VIRTUAL { at as i32 } else { -1 };
        device.from_i32(&ids.iter().enumerate().map(place).collect::<Vec<i32>>(), Category::Data)
    }

    /// Everything on which the work on a machine without data depends, as numbers.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let by_tile = |rope: &Rotation| u64::from(matches!(rope, Rotation::ByTile { .. }));
        let mut sizes = vec![self.tokens as u64, self.ids.cols() as u64, self.masks.len() as u64];
        sizes.extend(self.masks.iter().flat_map(|mask| [mask.pairs, mask.table.rows() as u64]));
        sizes.extend(self.documents.iter().flat_map(DocumentRuns::sizes));
        sizes.extend(self.ropes.iter().map(by_tile));
        sizes.extend(self.context.iter().flat_map(Context::sizes));
        sizes.push(u64::from(self.keys.is_some()));
        sizes.extend(self.terms.iter().flat_map(RowTerms::sizes));
        sizes
    }

    /// Number of pairs that the batch's queries attend to under a mask, on whichever rank the keys are.
    pub fn pairs(&self, mask: usize) -> u64 {
        self.context.as_ref().map_or(self.masks[mask].pairs, |context| context.pairs(mask))
    }
}

/// Cosines and sines of the batch's positions.
pub enum Rotation {
    /// f32 [t, rot].
    Table(Tensor),
    /// Computed for the current rows whenever they are needed: the table of a million tokens would be large.
    ByTile {
        /// f32 [1, rot/2]: radians per position.
        inv_freq: Tensor,
        /// Multiplies cosines and sines.
        factor: f32,
    },
}

impl Rotation {
    /// f32 [rows, rot] for some of the batch's tokens.
    pub(crate) fn rows(&self, device: &Device, positions: &Tensor, rows: Range<usize>) -> Tensor {
        match self {
            Rotation::Table(table) => table.view_rows(rows),
            Rotation::ByTile { inv_freq, factor } => {
                let out = device.empty(rows.len(), 2 * inv_freq.cols(), DType::F32, Category::Workspace);
                let positions = &positions.view_cols(rows);
                device.machine.rope_table(&RopeTable { positions, inv_freq, factor: *factor, out: &out });
                out
            }
        }
    }
}
