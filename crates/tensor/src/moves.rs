//! Charges and releases of memory as a list that can be repeated: what a part of a program takes from the pool beyond
//! what was charged when it began. All of it is released when the part ends.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::best_fit::BestFit;
use crate::usage::Label;

/// One charge or release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub op: &'static str,
    /// The buffer's label, with the layer at which it was charged.
    pub label: Label,
    /// True if that layer is the one of the part that ran.
    own: bool,
    pub charge: u64,
    /// For a release: index of the charge in its run that it ends.
    pub released: Option<u32>,
}

impl Move {
    pub fn charge(op: &'static str, label: Label, charge: u64) -> Move {
        Move { op, label, own: false, charge, released: None }
    }

    pub fn release(op: &'static str, label: Label, charge: u64) -> Move {
        Move { op, label, own: false, charge, released: Some(0) }
    }

    /// The layer of this move when all is repeated at `layer`.
    pub fn layer(&self, layer: i32) -> i32 {
        if self.own { layer } else { self.label.layer }
    }
}

/// Moves between two points at which everything they charged is released.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    first: u32,
    end: u32,
    /// Number of consecutive repetitions: tiles of one height.
    pub times: u32,
    /// Most bytes that are charged at once.
    pub rise: u64,
    /// Bytes of all charges. A hole this wide holds them all next to each other, so the range does not grow.
    sum: u64,
}

impl Run {
    pub fn range(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }

    /// True if a range has room for the run wherever it is placed.
    pub fn fits(&self, space: &BestFit) -> bool {
        space.widest() >= self.sum
    }
}

/// All moves of a part of a program.
#[derive(Clone, Debug)]
pub(crate) struct Moves {
    pub list: Vec<Move>,
    pub runs: Vec<Run>,
    /// The pool's operation afterwards, and its layer; `None` for the layer of the part that ran.
    pub last: (&'static str, Option<i32>),
}

impl Moves {
    /// Builds the list from moves with their offsets; `None` if a charge stays, or if something older is released.
    pub fn of(moves: Vec<(Move, u64)>, layer: i32, (op, at): (&'static str, i32)) -> Option<Moves> {
        let mut all = Moves { list: Vec::new(), runs: Vec::new(), last: (op, (at != layer).then_some(at)) };
        let mut live: BTreeMap<u64, u32> = BTreeMap::new();
        let (mut first, mut charges) = (0, 0);
        for (mut one, offset) in moves {
            one.own = one.label.layer == layer;
            if one.own {
                one.label.layer = 0;
            }
            match &mut one.released {
                None => {
                    live.insert(offset, charges);
                    charges += 1;
                }
                Some(of) => *of = live.remove(&offset)?,
            }
            all.list.push(one);
            if live.is_empty() {
                all.end_run(first);
                (first, charges) = (all.list.len(), 0);
            }
        }
        live.is_empty().then_some(all)
    }

    /// Ends a run that began at `first`; a run equal to the previous one only increments its count.
    fn end_run(&mut self, first: usize) {
        let end = self.list.len();
        if let Some(last) = self.runs.last_mut()
            && self.list[last.range()] == self.list[first..end]
        {
            last.times += 1;
            return self.list.truncate(first);
        }
        let (mut live, mut rise, mut sum) = (0, 0, 0);
        for one in &self.list[first..end] {
            if one.released.is_some() {
                live -= one.charge;
            } else {
                live += one.charge;
                sum += one.charge;
                rise = rise.max(live);
            }
        }
        self.runs.push(Run { first: first as u32, end: end as u32, times: 1, rise, sum });
    }

    /// The pool's layer afterwards, when repeated at `layer`.
    pub fn last_layer(&self, layer: i32) -> i32 {
        self.last.1.unwrap_or(layer)
    }
}
