//! Operations of mixture-of-experts layers. Slots are sorted by expert on the device; their counts never reach the
//! host.

use fathom_tensor::{
    Combine, CombineBackward, DType, GroupedMatMul, GroupedWeight, MOST_EXPERTS, Route, RouteBackward,
    RouterLosses, RouterScores, Routing, Tensor,
};

use super::gemm::width;
use super::launch::{Args, Launch, Sheet, expect, pick, start_mut, team, teams};
use super::lists::{Lists, TILE};
use super::table::{combine as combining, gemm_bf16, gemm_f16, gemm_f32, route as entries};

/// Warps per block, each with one token.
const TOKENS: usize = 4;

fn number(scores: RouterScores) -> usize {
    match scores {
        RouterScores::Softmax => 0,
        RouterScores::Sigmoid => 1,
    }
}

#[track_caller]
fn check_router(op: &str, routing: &Routing, logits: &Tensor, index: &Tensor) {
    let ([rows, experts], top_k) = (logits.shape(), routing.top_k);
    expect(op, "index", index, [rows, top_k]);
    let groups = routing.groups.is_none_or(|groups| {
        groups.count > 0
            && experts.is_multiple_of(groups.count)
            && (1..=groups.count).contains(&groups.top)
            && groups.top * (experts / groups.count) >= top_k
    });
    let fits = (1..=experts).contains(&top_k) && experts <= MOST_EXPERTS && groups;
    assert!(fits && logits.dtype() == DType::F32, "{op}: {routing:?} of {logits:?}");
}

#[track_caller]
fn check_f32(op: &str, tensors: &[&Tensor]) {
    for tensor in tensors {
        assert!(tensor.dtype() == DType::F32, "{op}: {tensor:?} is not f32");
    }
}

/// Chooses experts.
#[track_caller]
pub fn route(op: &Route<'_>) -> Launch {
    check_router("route", &op.routing, op.logits, op.index);
    let ([rows, experts], Routing { top_k, scores, groups, normalise, scale }) =
        (op.logits.shape(), op.routing);
    expect("route", "weights", op.weights, [rows, top_k]);
    check_f32("route", &[op.weights]);
    let [count, top, by] = groups.map_or([0; 3], |groups| [groups.count, groups.top, groups.by]);
    let args = Args::new().mat(op.logits).plain_if(op.bias, DType::F32).plain_out(op.index, DType::I32);
    let args = args.out(op.weights).long(rows).int(experts).int(top_k).int(number(scores));
    let args = args.int(count).int(top).int(by).flag(normalise).float(scale);
    let shared = TOKENS * 4 * (2 * experts + count);
    Launch::on(entries::route, [rows.div_ceil(TOKENS), 1], shared, args)
}

/// Gradient of `route`. Invalid indices are not checked for.
#[track_caller]
pub fn route_backward(op: &RouteBackward<'_>) -> Launch {
    check_router("route_backward", &op.routing, op.logits, op.index);
    let ([rows, experts], Routing { top_k, scores, normalise, scale, .. }) = (op.logits.shape(), op.routing);
    expect("route_backward", "dweights", op.dweights, [rows, top_k]);
    expect("route_backward", "dlogits", op.dlogits, [rows, experts]);
    check_f32("route_backward", &[op.dweights, op.dlogits]);
    let args = Args::new().mat(op.logits).plain(op.index, DType::I32).mat(op.dweights).out(op.dlogits);
    let args = args.long(rows).int(experts).int(top_k).int(number(scores)).flag(normalise).float(scale);
    Launch::on(entries::route_backward, [rows.div_ceil(TOKENS), 1], TOKENS * 4 * experts, args)
}

/// The gradient of a router's own losses.
#[track_caller]
pub fn router_losses(op: &RouterLosses<'_>) -> Launch {
    let [rows, experts] = op.logits.shape();
    expect("router_losses", "load", op.load, [1, experts]);
    expect("router_losses", "dlogits", op.dlogits, [rows, experts]);
    check_f32("router_losses", &[op.logits, op.dlogits]);
    assert!(experts <= MOST_EXPERTS, "router_losses: {experts} experts");
    let args = Args::new().mat(op.logits).plain(op.load, DType::F32).out(op.dlogits).long(rows);
    let args = args.int(experts).int(number(op.scores)).float(op.aux).float(op.z);
    Launch::on(entries::router_losses, [rows.div_ceil(TOKENS), 1], TOKENS * 4 * experts, args)
}

#[track_caller]
fn check_workspace(op: &str, lists: &Lists, ws: &Tensor) {
    let wanted = lists.end() - lists.counts;
    assert!(ws.bytes() >= wanted, "{op}: workspace {ws:?} of the {wanted} bytes that lists of slots take");
}

/// Writes zeros for the results of empty slots.
#[track_caller]
pub(super) fn zero_empty(op: &GroupedMatMul<'_>) -> Launch {
    let (tokens, slots, _, out) = op.sizes();
    let sheet = Sheet::new(tokens * slots, out);
    let args = Args::new().plain(op.index, DType::I32).out(op.c).long(sheet.rows).long(out).int(slots);
    Launch::new(combining::zero_empty, sheet.blocks(), args.sheet(sheet))
}

/// Products by expert.
#[track_caller]
pub fn grouped_matmul(op: &GroupedMatMul<'_>, ws: &Tensor) -> Vec<Launch> {
    let (tokens, slots, inner, out) = op.sizes();
    let lists = Lists::plain(op.index, op.experts, start_mut(ws));
    check_workspace("grouped matmul", &lists, ws);
    let mut launches = lists.sort(op.index);
    launches.push(zero_empty(op));
    let entry = pick(op.a.dtype(), [gemm_f32::grouped_f32, gemm_bf16::grouped_bf16, gemm_f16::grouped_f16]);
    let across = out.div_ceil(width(op.a.dtype()));
    let tiles = (tokens * slots).div_ceil(TILE) + op.experts;
    let args = Args::new().mat(op.a).mat(op.weights).out(op.c).address(lists.order).address(lists.starts);
    let args = args.address(lists.tiles).int(op.experts).int(slots).long(inner).long(out).flag(op.trans);
    let args = args.flag(op.a.cols() == inner).int(across);
    launches.push(Launch::new(entry, tiles * across, args));
    launches
}

/// The gradient of experts' weights.
#[track_caller]
pub fn grouped_weight(op: &GroupedWeight<'_>, ws: &Tensor) -> Vec<Launch> {
    let (_, slots, m, n) = op.sizes();
    let lists = Lists::by_chunks(op.index, op.experts, start_mut(ws));
    check_workspace("grouped weight gradient", &lists, ws);
    let mut launches = lists.sort(op.index);
    let stems = [gemm_f32::grouped_weight_f32, gemm_bf16::grouped_weight_bf16, gemm_f16::grouped_weight_f16];
    let entry = pick(op.a.dtype(), stems);
    let (down, across) = (m.div_ceil(TILE), n.div_ceil(width(op.a.dtype())));
    let args = Args::new().mat(op.a).mat(op.b).out(op.c).address(lists.order).address(lists.starts);
    let args = args.int(slots).long(m).long(n).flag(op.a.cols() == m).flag(op.b.cols() == n);
    launches.push(Launch::new(entry, op.experts * down * across, args.int(down).int(across)));
    launches
}

/// Slots per token, from the columns of all slots and of one.
#[track_caller]
fn slots(op: &str, y: &Tensor, out: &Tensor) -> usize {
    let fits = y.rows() == out.rows() && y.cols().is_multiple_of(out.cols().max(1));
    assert!(fits, "{op}: y {y:?}, out {out:?}");
    y.cols() / out.cols().max(1)
}

/// Sums of experts' results.
#[track_caller]
pub fn combine(op: &Combine<'_>) -> Launch {
    let ([rows, cols], slots) = (op.out.shape(), slots("combine", op.y, op.out));
    if let Some(weights) = op.weights {
        expect("combine", "weights", weights, [rows, slots]);
    }
    let sheet = Sheet::new(rows, cols);
    let args = Args::new().mat(op.y).mat_if(op.weights).out(op.out).long(rows).long(cols).int(slots);
    Launch::new(combining::combine, sheet.blocks(), args.sheet(sheet))
}

/// Gradient of `combine`.
#[track_caller]
pub fn combine_backward(op: &CombineBackward<'_>) -> Vec<Launch> {
    let ([rows, cols], slots) = (op.dout.shape(), slots("combine_backward", op.y, op.dout));
    expect("combine_backward", "weights", op.weights, [rows, slots]);
    let mut launches = Vec::new();
    if let Some(dweights) = op.dweights {
        expect("combine_backward", "dweights", dweights, [rows, slots]);
        let team = team(cols);
        let args = Args::new().mat(op.y).mat(op.dout).out(dweights).long(rows).long(cols);
        let args = args.int(slots).int(team);
        launches.push(Launch::new(combining::combine_weights, teams(rows * slots, team), args));
    }
    if let Some(dy) = op.dy {
        expect("combine_backward", "dy", dy, op.y.shape());
        let sheet = Sheet::new(rows, cols);
        let args = Args::new().mat(op.weights).mat(op.dout).out(dy).long(rows).long(cols).int(slots);
        launches.push(Launch::new(combining::combine_backward, sheet.blocks(), args.sheet(sheet)));
    }
    launches
}
