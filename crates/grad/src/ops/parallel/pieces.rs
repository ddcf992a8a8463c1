//! Operations of tensor parallel ranks between products: a rank's share of tokens or columns that all ranks have, all
//! of those of which each has a share, and values that all need whole although each works on a part.

use fathom_tensor::{Category, Tensor};

use super::{collect, group, parts, summed};
use crate::graph::{Spread, own_rows};
use crate::op::{Desc, Dx, Exec, Op, OptGrads, Out, SavedValues};
use crate::ops::only;
use crate::{Ctx, Val};

impl Ctx<'_> {
    /// This rank's share of the rows, for work that tensor parallel ranks do for some tokens each although they have
    /// all of them: x itself if they share the rows already. Shares differ by one if rows do not divide; a rank's may
    /// be empty.
    pub fn own_rows(&mut self, name: &'static str, x: Val) -> Val {
        if self.spread.rows { x } else { self.piece(name, x, [Kind::Own, Kind::Rows], self.spread.ranks) }
    }

    /// All rows, from the shares of [`Ctx::own_rows`], if all ranks need them.
    pub fn all_rows(&mut self, name: &'static str, x: Val) -> Val {
        if self.spread.rows { x } else { self.piece(name, x, [Kind::All, Kind::Rows], 1) }
    }

    /// This rank's share of the columns that all ranks have.
    pub fn own_cols(&mut self, name: &'static str, x: Val) -> Val {
        self.piece(name, x, [Kind::Own, Kind::Cols], 1)
    }

    /// The columns of all ranks, side by side; all ranks then compute the same with them.
    pub fn all_cols(&mut self, name: &'static str, x: Val) -> Val {
        self.piece(name, x, [Kind::All, Kind::Cols], 1)
    }

    /// All rows of x for ranks that each compute something different from it (Megatron's f): the gradient is the sum of
    /// theirs.
    pub fn enter(&mut self, name: &'static str, x: Val) -> Val {
        let spread = self.spread;
        match spread.ranks {
            1 => x,
            _ => only(self.apply_to(1, Enter { name, spread }, &[x], &[])),
        }
    }

    /// All rows of x for ranks that each compute the same with them, if they share the rows; [`Ctx::part_of_rows`] is the
    /// way back.
    pub fn rows_of_all(&mut self, name: &'static str, x: Val) -> Val {
        self.shared(name, x, true)
    }

    /// This rank's share of rows that all ranks have, if they share those between sub-layers.
    pub fn part_of_rows(&mut self, name: &'static str, x: Val) -> Val {
        self.shared(name, x, false)
    }

    fn shared(&mut self, name: &'static str, x: Val, all: bool) -> Val {
        let spread = self.spread;
        if !spread.rows {
            return x;
        }
        let share = if all { 1 } else { spread.share() };
        only(self.apply_to(share, RowExchange { name, ranks: spread.ranks, all }, &[x], &[]))
    }

    fn piece(&mut self, name: &'static str, x: Val, kind: [Kind; 2], share: usize) -> Val {
        match self.spread.ranks {
            1 => x,
            ranks => only(self.apply_to(share, Piece { name, ranks, kind }, &[x], &[])),
        }
    }
}

/// Direction, and axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Own,
    All,
    Rows,
    Cols,
}

/// A rank's share of a common value, or the whole of shared parts; the gradient does the reverse.
struct Piece {
    name: &'static str,
    ranks: usize,
    kind: [Kind; 2],
}

impl Piece {
    /// The rows of each rank, one after the other.
    fn shares(&self, x: &Exec<'_>, all: &Tensor) -> Vec<Tensor> {
        let mut from = 0;
        let share = |rank| {
            let rows = from..from + own_rows(&x.rows, self.ranks, rank).len();
            from = rows.end;
            all.view_rows(rows)
        };
        (0..self.ranks).map(share).collect()
    }

    fn run(&self, x: &Exec<'_>, from: &Tensor, to: &Tensor, back: bool) {
        let (ranks, device) = (group(x), x.device);
        let all = (self.kind[0] == Kind::All) != back;
        let cols = |wide: &Tensor, rank: usize| {
            let cols = wide.cols() / self.ranks;
            wide.view_cols(rank * cols..(rank + 1) * cols)
        };
        match (all, self.kind[1]) {
            (true, Kind::Cols) => {
                let each = device.empty(self.ranks * from.rows(), from.cols(), from.dtype(), Category::Comm);
                let stacked = parts(&each, self.ranks);
                ranks.all_gather(device, from, &stacked).wait();
                for (rank, part) in stacked.iter().enumerate() {
                    device.machine.copy(part, &cols(to, rank));
                }
            }
            (false, Kind::Cols) => device.machine.copy(&cols(from, ranks.index()), to),
            (true, _) => {
                let shares = self.shares(x, to);
                let coming = ranks.begin_gather(
                    device,
                    "all_gather",
                    std::slice::from_ref(from),
                    std::slice::from_ref(&shares),
                );
                let own = &shares[ranks.index()];
                if !own.is_empty() {
                    device.machine.copy(from, own);
                }
                coming.wait();
            }
            (false, _) => {
                let own = &self.shares(x, from)[ranks.index()];
                if !own.is_empty() {
                    device.machine.copy(own, to);
                }
            }
        }
    }
}

impl Op for Piece {
    fn name(&self) -> &'static str {
        "piece of ranks"
    }

    #[track_caller]
    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        let Desc { cols, dtype } = ins[0];
        let cols = match self.kind {
            [Kind::Own, Kind::Cols] => {
                assert_eq!(cols % self.ranks, 0, "{}: {cols} columns on {} ranks", self.name, self.ranks);
                cols / self.ranks
            }
            [_, Kind::Cols] => cols * self.ranks,
            _ => cols,
        };
        vec![Out::new(self.name, cols, dtype)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        self.run(x, &ins[0], &outs[0], false);
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            self.run(x, dy, &dx.tensor, true);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

/// All rows from the shares of each rank, or a rank's share; the gradient does the reverse.
struct RowExchange {
    name: &'static str,
    ranks: usize,
    all: bool,
}

impl RowExchange {
    fn run(&self, x: &Exec<'_>, from: &Tensor, to: &Tensor, all: bool) {
        let ranks = group(x);
        if all {
            ranks.all_gather(x.device, from, &parts(to, self.ranks)).wait();
        } else {
            x.device.machine.copy(&parts(from, self.ranks)[ranks.index()], to);
        }
    }
}

impl Op for RowExchange {
    fn name(&self) -> &'static str {
        "shared rows"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        vec![Out::new(self.name, ins[0].cols, ins[0].dtype)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        self.run(x, &ins[0], &outs[0], self.all);
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            self.run(x, dy, &dx.tensor, !self.all);
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}

struct Enter {
    name: &'static str,
    spread: Spread,
}

impl Op for Enter {
    fn name(&self) -> &'static str {
        "enter"
    }

    fn outputs(&self, ins: &[Desc], _: &[[usize; 2]]) -> Vec<Out> {
        vec![Out::new(self.name, ins[0].cols, ins[0].dtype)]
    }

    fn forward(&self, x: &mut Exec<'_>, ins: &[Tensor], _: &[Tensor], outs: &[Tensor]) {
        if self.spread.rows {
            group(x).all_gather(x.device, &ins[0], &parts(&outs[0], self.spread.ranks)).wait()
        } else {
            x.device.machine.copy(&collect(x, &ins[0], self.spread), &outs[0])
        }
    }

    fn backward_input(&self, x: &mut Exec<'_>, _: &SavedValues, dy: OptGrads<'_>, dx: &[Option<Dx>]) {
        if let (Some(dy), Some(dx)) = (&dy[0], &dx[0]) {
            summed(x, dy, &dx.tensor, self.spread, |from, to| x.device.machine.copy(from, to));
        }
    }

    fn backward_weight(&self, _: &mut Exec<'_>, _: &SavedValues, _: OptGrads<'_>, _: OptGrads<'_>) {}
}
