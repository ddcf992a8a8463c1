//! Exchanges between ranks that have pieces of the same documents, for operations that read rows in order: maps of states, which each rank
//! composes, and the rows before its pieces. What travels depends on the pieces, not on their rows.

use std::ops::Range;

use fathom_tensor::mesh::Transfers;
use fathom_tensor::{Category, DType, RunStates, Tensor};

use crate::context::{PIECES, Pieces, Seams, Way};
use crate::op::Exec;

/// The pieces of the batch, if states are passed between them.
pub(super) fn pieces<'a>(x: &Exec<'a>) -> Option<&'a Pieces> {
    let batch: &'a crate::Batch = x.batch;
    batch.context.as_ref().and_then(crate::Context::pieces)
}

/// Maps of pieces, f32 [pieces, state x heads + heads]: what a piece makes of zero, and a decay for each head.
pub(super) struct Maps {
    pub rows: Tensor,
    heads: usize,
}

impl Maps {
    /// Those in some rows of f32.
    pub fn of(rows: Tensor, heads: usize) -> Maps {
        Maps { rows, heads }
    }

    /// Room for them.
    pub fn new(x: &Exec<'_>, cols: usize, heads: usize) -> Maps {
        Maps::of(x.device.empty(PIECES, cols, DType::F32, Category::Comm), heads)
    }

    /// The states, f32 [pieces, heads x state].
    pub fn states(&self) -> Tensor {
        self.rows.view_cols(0..self.rows.cols() - self.heads)
    }

    /// The decays, f32 [pieces, heads].
    pub fn decays(&self) -> Tensor {
        self.rows.view_cols(self.rows.cols() - self.heads..self.rows.cols())
    }

    /// A row of states as f32 [heads, state].
    fn state(&self, states: &Tensor, place: usize) -> Tensor {
        states.view_rows(place..place + 1).reshape(self.heads, states.cols() / self.heads)
    }
}

/// Composes the maps of all pieces before each of this rank's (or after it), in their order, to the state (or its gradient) with which the
/// piece begins (or ends): `into` f32 [pieces, heads x state].
pub(super) fn compose(x: &Exec<'_>, pieces: &Pieces, way: &Way, maps: &Maps, into: &Tensor) {
    let (group, machine) = (&pieces.group, &x.device.machine);
    let row = |place: usize| maps.rows.view_rows(place..place + 1);
    let given: Vec<(usize, Tensor)> = way.give.iter().map(|(rank, place)| (*rank, row(*place))).collect();
    let sends: Vec<(usize, &Tensor)> = given.iter().map(|(rank, map)| (*rank, map)).collect();
    let sending = group.exchange(x.device, "states", &sends, &[]);
    let arrived = Maps::of(x.device.empty(1, maps.rows.cols(), DType::F32, Category::Comm), maps.heads);
    let mut filled = [false; PIECES];
    for taken in &way.take {
        let (map, place) = if taken.rank == group.index() {
            (maps, taken.place)
        } else {
            group.exchange(x.device, "states", &[], &[(taken.rank, &arrived.rows)]).wait();
            (&arrived, 0)
        };
        let added = map.state(&map.states(), place);
        for own in &taken.into {
            let state = maps.state(into, *own);
            if std::mem::replace(&mut filled[*own], true) {
                machine.ssd_advance(&state, &map.decays().view_rows(place..place + 1), &added);
            } else {
                machine.copy(&added, &state);
            }
        }
    }
    sending.wait();
}

/// States before runs (side 0) or after them (1), in rows of pieces.
pub(super) fn states<'a>(pieces: &'a Pieces, side: usize, states: &'a Tensor) -> RunStates<'a> {
    RunStates { of: [&pieces.before, &pieces.after][side], states }
}

/// The first rows of this rank's pieces and the rows before them, [seams' rows, c].
pub(super) fn gather(x: &Exec<'_>, pieces: &Pieces, own: &Tensor) -> Tensor {
    let Seams { own: seams, give, .. } = &pieces.seams;
    let rows = room(x, pieces, own);
    let sends: Vec<(usize, Tensor)> =
        give.iter().map(|(rank, range)| (*rank, own.view_rows(range.clone()))).collect();
    let mut receives = Vec::new();
    for seam in seams {
        x.device.machine.copy(&own.view_rows(seam.own.clone()), &rows.view_rows(seam.at.clone()));
        for (rank, theirs, at) in &seam.before {
            let to = rows.view_rows(at.clone());
            if *rank == pieces.group.index() {
                x.device.machine.copy(&own.view_rows(theirs.clone()), &to);
            } else {
                receives.push((*rank, to));
            }
        }
    }
    exchange(x, pieces, &sends, &receives).wait();
    rows
}

/// Adds gradients of those rows to those of the ranks that have them.
pub(super) fn scatter(x: &Exec<'_>, pieces: &Pieces, rows: &Tensor, own: &Tensor) {
    let Seams { own: seams, give, reach, .. } = &pieces.seams;
    let add = |range: &Range<usize>, terms: &Tensor| {
        let to = own.view_rows(range.clone());
        x.device.machine.add(&to, terms, &to);
    };
    let mut sends = Vec::new();
    for seam in seams {
        add(&seam.own, &rows.view_rows(seam.at.clone()));
        for (rank, theirs, at) in &seam.before {
            let terms = rows.view_rows(at.clone());
            if *rank == pieces.group.index() { add(theirs, &terms) } else { sends.push((*rank, terms)) }
        }
    }
    let sending = exchange(x, pieces, &sends, &[]);
    let room = x.device.empty(*reach, own.cols(), own.dtype(), Category::Comm);
    for (rank, range) in give {
        let terms = room.view_rows(0..range.len());
        exchange(x, pieces, &[], &[(*rank, terms.clone())]).wait();
        add(range, &terms);
    }
    sending.wait();
}

/// Room for the rows of all seams, of which there are some.
pub(super) fn room(x: &Exec<'_>, pieces: &Pieces, like: &Tensor) -> Tensor {
    let seams = &pieces.seams;
    x.device.empty(seams.most(), like.cols(), like.dtype(), Category::Comm).view_rows(0..seams.rows())
}

fn exchange(
    x: &Exec<'_>,
    pieces: &Pieces,
    sends: &[(usize, Tensor)],
    receives: &[(usize, Tensor)],
) -> Transfers {
    let [sends, receives] = [sends, receives]
        .map(|list| list.iter().map(|(rank, rows)| (*rank, rows)).collect::<Vec<(usize, &Tensor)>>());
    pieces.group.exchange(x.device, "rows", &sends, &receives)
}
