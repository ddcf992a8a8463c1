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

/// Maps of an operation from the state before each of its runs to the state after it: `factors x state + end`. The factors are a decay or
/// a matrix for each head, and the end is the state after a run that begins with zero.
pub(super) trait RunMaps {
    /// Heads, and factors of all of them.
    fn sizes(&self) -> [usize; 2];
    /// Writes the states after runs that begin with zero, and their factors, f32 [pieces, factors].
    fn ends(&self, ends: RunStates<'_>, factors: &Tensor);
    /// Writes the gradients that runs add to those of the states before them.
    fn begins(&self, dy: &Tensor, begins: RunStates<'_>);
    /// Applies a map to a state (way 0), or its transpose to a gradient (way 1): all by heads, [heads, n].
    fn advance(&self, way: usize, state: &Tensor, factors: &Tensor, added: &Tensor);
}

/// Maps of pieces, f32 [pieces, states + factors].
struct Maps {
    rows: Tensor,
    factors: usize,
}

impl Maps {
    /// Room for them.
    fn new(x: &Exec<'_>, pieces: usize, cols: usize, factors: usize) -> Maps {
        Maps { rows: x.device.empty(pieces, cols, DType::F32, Category::Comm), factors }
    }

    /// The states, f32 [pieces, heads x state].
    fn states(&self) -> Tensor {
        self.rows.view_cols(0..self.rows.cols() - self.factors)
    }

    /// The factors, f32 [pieces, factors].
    fn factors(&self) -> Tensor {
        self.rows.view_cols(self.rows.cols() - self.factors..self.rows.cols())
    }
}

/// The states before this rank's runs, composed from what all pieces before them make of zero; `kept` gets them, with the factors of its
/// own runs.
pub(super) fn passed(x: &Exec<'_>, pieces: &Pieces, op: &dyn RunMaps, kept: &Tensor) -> Tensor {
    let [_, factors] = op.sizes();
    let (own, began) = (Maps::new(x, PIECES, kept.cols(), factors), Maps { rows: kept.clone(), factors });
    op.ends(states(pieces, 1, &own.states()), &own.factors());
    compose(x, pieces, (0, op), &own, &began.states());
    x.device.machine.copy(&own.factors(), &began.factors());
    began.states()
}

/// The states before runs, which were kept, and the gradients of those after them.
pub(super) fn returned(
    x: &Exec<'_>,
    pieces: &Pieces,
    op: &dyn RunMaps,
    (dy, kept): (&Tensor, &Tensor),
) -> [Tensor; 2] {
    let [_, factors] = op.sizes();
    let (own, began) = (Maps::new(x, PIECES, kept.cols(), factors), Maps { rows: kept.clone(), factors });
    x.device.machine.copy(&began.factors(), &own.factors());
    op.begins(dy, states(pieces, 0, &own.states()));
    let after = x.device.empty(PIECES, own.states().cols(), DType::F32, Category::Comm);
    compose(x, pieces, (1, op), &own, &after);
    [began.states(), after]
}

/// Composes the maps of all pieces before each of this rank's (way 0), or after it (way 1), in their order, to the state (or its gradient)
/// with which the piece begins (or ends): `into` f32 [pieces, heads x state].
fn compose(x: &Exec<'_>, pieces: &Pieces, (way, op): (usize, &dyn RunMaps), maps: &Maps, into: &Tensor) {
    let (group, Way { give, take }, [heads, factors]) = (&pieces.group, &pieces.ways[way], op.sizes());
    let row = |of: &Tensor, place: usize| of.view_rows(place..place + 1);
    let by_heads = |of: &Tensor, place: usize| row(of, place).reshape(heads, of.cols() / heads);
    let given: Vec<(usize, Tensor)> =
        give.iter().map(|(rank, place)| (*rank, row(&maps.rows, *place))).collect();
    let sends: Vec<(usize, &Tensor)> = given.iter().map(|(rank, map)| (*rank, map)).collect();
    let sending = group.exchange(x.device, "states", &sends, &[]);
    let arrived = Maps::new(x, 1, maps.rows.cols(), factors);
    let mut filled = [false; PIECES];
    for taken in take {
        let (map, place) = if taken.rank == group.index() {
            (maps, taken.place)
        } else {
            group.exchange(x.device, "states", &[], &[(taken.rank, &arrived.rows)]).wait();
            (&arrived, 0)
        };
        let [added, factors] = [map.states(), map.factors()].map(|of| by_heads(&of, place));
        for own in &taken.into {
            let state = by_heads(into, *own);
            if std::mem::replace(&mut filled[*own], true) {
                op.advance(way, &state, &factors, &added);
            } else {
                x.device.machine.copy(&added, &state);
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
