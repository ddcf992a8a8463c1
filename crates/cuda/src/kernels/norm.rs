//! RMSNorm and LayerNorm.

use fathom_tensor::{DType, Norm, NormBackward, NormKind, Tensor};

use super::launch::{Args, Launch, Scratch, expect, start_mut, team, teams};
use super::sums::{COLUMNS, add_chunks, rounds};
use super::table::norm as entries;

fn flags(kind: NormKind) -> usize {
    usize::from(kind.centred) | usize::from(kind.plus_one) << 1 | usize::from(kind.round_first) << 2
}

#[track_caller]
fn groups(op: &str, x: &Tensor, weight: &Tensor) -> usize {
    let fits = weight.rows() == 1 && weight.cols() > 0 && x.cols().is_multiple_of(weight.cols());
    assert!(fits, "{op}: x {x:?}, weight {weight:?}");
    x.cols() / weight.cols()
}

#[track_caller]
fn check_stats(op: &str, stats: &Tensor, kind: NormKind, rows: usize, groups: usize) {
    expect(op, "stats", stats, [rows, groups * if kind.centred { 2 } else { 1 }]);
    assert!(stats.dtype() == DType::F32, "{op}: statistics are f32, not {stats:?}");
}

/// Normalisation.
#[track_caller]
pub fn norm(op: &Norm<'_>) -> Launch {
    let (rows, width, groups) = (op.x.rows(), op.weight.cols(), groups("norm", op.x, op.weight));
    expect("norm", "out", op.out, op.x.shape());
    check_stats("norm", op.stats, op.kind, rows, groups);
    let team = team(width);
    let args = Args::new().mat(op.x).mat(op.weight).mat_if(op.bias).out(op.out).out(op.stats).long(rows);
    let args = args.int(groups).int(width).int(team).int(flags(op.kind)).float(op.kind.eps);
    Launch::new(entries::norm_forward, teams(rows * groups, team), args)
}

/// `dx (+)=` the gradient with respect to x.
#[track_caller]
pub fn norm_backward_input(op: &NormBackward<'_>, dx: &Tensor, accumulate: bool) -> Launch {
    let (rows, width) = (op.x.rows(), op.weight.cols());
    let groups = groups("norm_backward_input", op.x, op.weight);
    expect("norm_backward_input", "dx", dx, op.x.shape());
    expect("norm_backward_input", "dy", op.dy, op.x.shape());
    check_stats("norm_backward_input", op.stats, op.kind, rows, groups);
    let team = team(width);
    let args = Args::new().mat(op.x).mat(op.weight).mat(op.stats).mat(op.dy).out(dx).long(rows);
    let args = args.int(groups).int(width).int(team).int(flags(op.kind)).flag(accumulate);
    Launch::new(entries::norm_backward_input, teams(rows * groups, team), args)
}

/// `dweight +=`, `dbias +=`, in ascending chunks of 128 rows.
#[track_caller]
pub fn norm_backward_weight(
    op: &NormBackward<'_>,
    dweight: &Tensor,
    dbias: Option<&Tensor>,
    scratch: Scratch,
) -> Vec<Launch> {
    let (rows, width) = (op.x.rows(), op.weight.cols());
    let groups = groups("norm_backward_weight", op.x, op.weight);
    expect("norm_backward_weight", "dweight", dweight, op.weight.shape());
    expect("norm_backward_weight", "dy", op.dy, op.x.shape());
    check_stats("norm_backward_weight", op.stats, op.kind, rows, groups);
    let sums: Vec<(u64, u64)> = [(Some(dweight), 0), (dbias, 4 * width as u64)]
        .into_iter()
        .filter_map(|(to, offset)| Some((to?, offset)))
        .map(|(to, offset)| {
            expect("norm_backward_weight", "a sum", to, [1, width]);
            assert!(to.dtype() == DType::F32, "norm_backward_weight: weight gradients are f32, not {to:?}");
            (start_mut(to), scratch.0 + offset)
        })
        .collect();
    let mut launches = Vec::new();
    for (first, chunks) in rounds(rows, 2 * width) {
        let args = Args::new().mat(op.x).mat(op.stats).mat(op.dy).address(scratch.0).long(first).long(rows);
        let args = args.int(groups).int(width).int(flags(op.kind));
        launches.push(Launch::on(entries::norm_weight_chunks, [width.div_ceil(COLUMNS), chunks], 0, args));
        launches.extend(sums.iter().map(|&(to, from)| add_chunks(to, from, width, chunks, 2 * width)));
    }
    launches
}
