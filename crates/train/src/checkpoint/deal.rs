//! Assignment of a checkpoint's contents to ranks: everything is written once, in pieces that ranks hold anyway. Pieces
//! held by several ranks are distributed among them by bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use fathom_grad::ParamId;
use fathom_model::{Area, Patch, patches};

use crate::parallel::layouts::{Layout, layouts};
use crate::step::Trainer;

/// Approximate number of elements in a piece of a replicated tensor.
const BLOCK_ELEMENTS: usize = 4 << 20;

/// Layouts of every rank's parts of the weights and the optimizer's state.
pub(super) struct Deal {
    rank: usize,
    /// One layout per rank; empty for a single rank.
    layouts: Vec<Layout>,
}

/// A tensor's name, and the rows and columns of an area of it.
type Key = (String, [usize; 4]);

fn key(patch: &Patch) -> Key {
    let Area { rows, cols } = &patch.area;
    (patch.name.clone(), [rows.start, rows.end, cols.start, cols.end])
}

impl Layout {
    /// Range of a weight's local part that the rank holds: the elements, or those whose state it has.
    fn held(&self, id: ParamId, state: bool) -> Range<usize> {
        if state { self.own[id.index()].clone().unwrap_or_default() } else { self.kept[id.index()].clone() }
    }

    /// The patches of a weight that the rank could write.
    fn patches(&self, id: ParamId, state: bool) -> Vec<Patch> {
        let held = &self.holdings[id.index()];
        match self.gives(held.number) {
            Some(_) => patches(&self.pieces[id.index()], held.shard.local(), self.held(id, state)),
            None => Vec::new(),
        }
    }

    fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.holdings.len() as u32).map(ParamId)
    }
}

impl Deal {
    pub fn new(trainer: &Trainer) -> Deal {
        let mesh = &trainer.device.mesh;
        let layouts = if mesh.grid().ranks() == 1 { Vec::new() } else { layouts(trainer) };
        Deal { rank: mesh.rank(), layouts }
    }

    /// The patches of values that this rank writes, indexed by [`ParamId`], for optimizer state if `state` or else for
    /// weights. `None` means all of them.
    pub fn own(&self, state: bool) -> Option<Vec<Vec<Patch>>> {
        let mine = self.layouts.get(self.rank)?;
        // The order of names and areas is the same on all ranks that hold a piece.
        let mut wanted: BTreeMap<Key, (ParamId, Patch, Vec<usize>)> = BTreeMap::new();
        for id in mine.ids() {
            for patch in mine.patches(id, state) {
                wanted.insert(key(&patch), (id, patch, Vec::new()));
            }
        }
        for (rank, layout) in self.layouts.iter().enumerate() {
            for patch in layout.ids().flat_map(|id| layout.patches(id, state)) {
                if let Some((_, _, holders)) = wanted.get_mut(&key(&patch)) {
                    holders.push(rank);
                }
            }
        }
        // Ranks with the same set of holders count the same bytes, whatever else each of them holds.
        let mut loads: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        let mut own: Vec<Vec<Patch>> = mine.ids().map(|_| Vec::new()).collect();
        for (id, patch, holders) in wanted.into_values() {
            let load = loads.entry(holders.clone()).or_insert_with(|| vec![0; holders.len()]);
            for block in blocks(&patch, holders.len()) {
                let least = (0..load.len()).min_by_key(|at| load[*at]).unwrap_or_default();
                load[least] += block.area.len();
                if holders.get(least) == Some(&self.rank) {
                    own[id.index()].push(block);
                }
            }
        }
        Some(own)
    }
}

/// Splits a patch into runs of rows if several ranks hold it.
fn blocks(patch: &Patch, holders: usize) -> Vec<Patch> {
    let Area { rows, cols } = &patch.area;
    if holders < 2 {
        return vec![patch.clone()];
    }
    let step = (BLOCK_ELEMENTS / cols.len().max(1)).max(1);
    rows.clone().step_by(step).map(|start| patch.rows(start..rows.end.min(start + step))).collect()
}
