//! Rows of several ranks, assembled in stream order and returned.

use std::ops::Range;

use fathom_tensor::mesh::Transfers;
use fathom_tensor::{Category, DType, Tensor};

use crate::context::{Circle, Run};
use crate::op::Exec;

/// The columns of a tensor that belong to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// All of them.
    All,
    /// Its share of the heads, of this many columns each. With more members than heads, several have the same one.
    Heads(usize),
}

impl Columns {
    /// The columns of one of `members`, out of `cols`.
    pub fn of(self, cols: usize, members: usize, member: usize) -> Range<usize> {
        match self {
            Columns::All => 0..cols,
            Columns::Heads(width) => {
                let heads = cols / width;
                let first = member * heads / members;
                first * width..(first + (heads / members).max(1)) * width
            }
        }
    }

    /// The columns of this rank.
    pub fn of_member(self, cols: usize, circle: &Circle) -> Range<usize> {
        self.of(cols, circle.group.size(), circle.group.index())
    }
}

/// Both locations of some rows.
fn pair(own: &Tensor, part: &Tensor, run: &Run) -> [Tensor; 2] {
    [own.view_rows(run.own.clone()), part.view_rows(run.part.clone())]
}

/// Gathers the rows of all members, for each tensor the columns of this member.
pub(super) fn assemble(
    x: &Exec<'_>,
    circle: &Circle,
    collective: &'static str,
    tensors: &[(&Tensor, Columns)],
) -> Vec<Tensor> {
    let (members, me) = (circle.group.size(), circle.group.index());
    let mine = |(tensor, columns): &(&Tensor, Columns)| columns.of(tensor.cols(), members, me);
    let part = |entry: &(&Tensor, Columns)| {
        x.device.empty(circle.tokens, mine(entry).len(), entry.0.dtype(), Category::Comm)
    };
    let parts: Vec<Tensor> = tensors.iter().map(part).collect();
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for member in (1..members).map(|step| (me + step) % members) {
        for ((tensor, columns), part) in tensors.iter().zip(&parts) {
            let theirs = tensor.view_cols(columns.of(tensor.cols(), members, member));
            sends.extend(circle.runs[me].iter().map(|run| (member, theirs.view_rows(run.own.clone()))));
            let rows = circle.runs[member].iter().map(|run| part.view_rows(run.part.clone()));
            receives.extend(rows.map(|rows| (member, rows)));
        }
    }
    let flying = exchange(x, circle, collective, &sends, &receives);
    for (entry, part) in tensors.iter().zip(&parts) {
        let own = entry.0.view_cols(mine(entry));
        for run in &circle.runs[me] {
            let [own, place] = pair(&own, part, run);
            x.device.machine.copy(&own, &place);
        }
    }
    flying.wait();
    parts
}

fn exchange(
    x: &Exec<'_>,
    circle: &Circle,
    collective: &'static str,
    sends: &[(usize, Tensor)],
    receives: &[(usize, Tensor)],
) -> Transfers {
    let [sends, receives] = [sends, receives].map(|list| -> Vec<(usize, &Tensor)> {
        list.iter().map(|(member, tensor)| (*member, tensor)).collect()
    });
    circle.group.exchange(x.device, collective, &sends, &receives)
}

/// A part to return; both sides know which columns belong to whom.
pub(super) struct Return<'a> {
    /// [tokens of the circle, this member's columns].
    pub part: &'a Tensor,
    /// Those of `target`.
    pub columns: Columns,
    /// [own tokens, all columns]; overwritten.
    pub target: &'a Tensor,
}

/// Sends every member its rows of the parts. Columns that several members have are summed in f32, in their order, and
/// rounded once.
pub(super) fn deliver(x: &Exec<'_>, circle: &Circle, collective: &'static str, returns: &[Return<'_>]) {
    let (members, me) = (circle.group.size(), circle.group.index());
    let mut sends = Vec::new();
    for member in (1..members).map(|step| (me + step) % members) {
        for back in returns {
            sends.extend(
                circle.runs[member].iter().map(|run| (member, back.part.view_rows(run.part.clone()))),
            );
        }
    }
    let sending = exchange(x, circle, collective, &sends, &[]);
    let staging: Vec<Tensor> = returns.iter().map(|back| staging(x, back)).collect();
    let mut sums: Vec<Option<Tensor>> = vec![None; returns.len()];
    for member in 0..members {
        if member == me {
            for (back, rows) in returns.iter().zip(&staging) {
                for run in &circle.runs[me] {
                    let [own, place] = pair(rows, back.part, run);
                    x.device.machine.copy(&place, &own);
                }
            }
        } else {
            let rows = staging
                .iter()
                .flat_map(|rows| circle.runs[me].iter().map(|run| rows.view_rows(run.own.clone())));
            let receives: Vec<(usize, Tensor)> = rows.map(|rows| (member, rows)).collect();
            exchange(x, circle, collective, &[], &receives).wait();
        }
        for ((back, rows), sum) in returns.iter().zip(&staging).zip(&mut sums) {
            add(x, members, member, (back, rows), sum);
        }
    }
    sending.wait();
}

/// A buffer for the rows sent by one member.
fn staging(x: &Exec<'_>, back: &Return<'_>) -> Tensor {
    x.device.empty(back.target.rows(), back.part.cols(), back.part.dtype(), Category::Comm)
}

/// Adds a member's rows to its columns of the target.
fn add(
    x: &Exec<'_>,
    members: usize,
    member: usize,
    (back, rows): (&Return<'_>, &Tensor),
    sum: &mut Option<Tensor>,
) {
    let of = |member: usize| back.columns.of(back.target.cols(), members, member);
    let columns = of(member);
    let first = member == 0 || of(member - 1) != columns;
    let last = member + 1 == members || of(member + 1) != columns;
    let into = back.target.view_cols(columns);
    if first && last {
        return x.device.machine.copy(rows, &into);
    }
    let wide = sum.get_or_insert_with(|| match into.dtype() {
        DType::F32 => into.clone(),
        _ => x.device.empty(into.rows(), into.cols(), DType::F32, Category::Comm),
    });
    if first {
        x.device.machine.copy(rows, wide)
    } else {
        x.device.machine.add(wide, rows, wide)
    }
    if last {
        if into.dtype() != DType::F32 {
            x.device.machine.copy(wide, &into);
        }
        *sum = None;
    }
}
