//! Mixture of experts.

use fathom_tensor::gpu::GroupedScratch;
use fathom_tensor::{
    Category, Combine, CombineBackward, DType, Dispatch, GroupedMatMul, GroupedWeight, Groups, LimitExperts,
    OpDesc, Route, RouteBackward, RouterLosses, RouterScores, Routing,
};

use super::{Bed, Case, Outputs, ROUNDED};

const TOKENS: usize = 300;
const EXPERTS: usize = 8;
const SLOTS: usize = 2;

pub const CASES: &[Case] = &[
    Case { name: "router", bounds: ROUNDED, run: router },
    Case { name: "slots to owners", bounds: ROUNDED, run: dispatch },
    Case { name: "grouped products", bounds: ROUNDED, run: products },
    Case { name: "grouped products, uneven", bounds: ROUNDED, run: uneven },
    Case { name: "grouped products in parts", bounds: ROUNDED, run: parts },
    Case { name: "combine", bounds: ROUNDED, run: combine },
];

fn router(bed: &Bed) -> Outputs {
    let groups = Some(Groups { count: 4, top: 2, by: 1 });
    let mut made = Vec::new();
    for (name, scores, groups) in
        [("softmax", RouterScores::Softmax, None), ("sigmoid", RouterScores::Sigmoid, groups)]
    {
        let routing = Routing { top_k: SLOTS, scores, groups, normalise: true, scale: 2.5 };
        let logits = bed.wide(1, [TOKENS, EXPERTS]);
        let bias = bed.wide(2, [1, EXPERTS]);
        let (index, weights) = (bed.empty([TOKENS, SLOTS], DType::I32), bed.zeros([TOKENS, SLOTS]));
        let bias = Some(&bias);
        bed.machine().route(&Route { routing, logits: &logits, bias, index: &index, weights: &weights });
        let (dweights, dlogits) = (bed.wide(3, [TOKENS, SLOTS]), bed.zeros([TOKENS, EXPERTS]));
        let (index_, dlogits_) = (&index, &dlogits);
        bed.machine().route_backward(&RouteBackward {
            routing,
            logits: &logits,
            index: index_,
            dweights: &dweights,
            dlogits: dlogits_,
        });
        let (load, losses) = (bed.zeros([1, EXPERTS]), bed.zeros([TOKENS, EXPERTS]));
        bed.machine().count_experts(&index, &load);
        let call =
            RouterLosses { scores, logits: &logits, load: &load, aux: 1e-2, z: 1e-3, dlogits: &losses };
        bed.machine().router_losses(&call);
        // The router's weights differ by a rounding error, which could change the choice.
        let order: Vec<f32> = Bed::numbers(4, TOKENS * SLOTS).iter().map(|x| x.abs()).collect();
        let order = bed.device.from_f32(TOKENS, SLOTS, &order, Category::Data);
        let [limited, heaviest] = [(); 2].map(|()| bed.empty([TOKENS, SLOTS], DType::I32));
        for (weights, out) in [(None, &limited), (Some(&order), &heaviest)] {
            let (index, experts) = (&index, EXPERTS);
            bed.machine().limit_experts(&LimitExperts { index, weights, experts, capacity: 40, out });
        }
        made.extend([
            (name, index),
            (name, weights),
            (name, dlogits),
            (name, load),
            (name, losses),
            (name, limited),
            (name, heaviest),
        ]);
    }
    made
}

/// Two rounds of slots to four owners of two experts each; the second takes what did not fit in the first.
fn dispatch(bed: &Bed) -> Outputs {
    let (own, owners, cap) = (2, 4, 90);
    let index = bed.ints([TOKENS, SLOTS], |at| if at % 17 == 0 { -1 } else { (at * 5 % EXPERTS) as i32 });
    let mut made = Vec::new();
    for round in 0..2 {
        let [slots, tokens, experts] = [(); 3].map(|()| bed.empty([owners, cap], DType::I32));
        let places = bed.empty([TOKENS, SLOTS], DType::I32);
        bed.machine().dispatch(&Dispatch {
            index: &index,
            own,
            round,
            slots: &slots,
            tokens: &tokens,
            experts: &experts,
            places: &places,
        });
        made.extend([("slots", slots), ("tokens", tokens), ("experts", experts), ("places", places)]);
    }
    made
}

fn products(bed: &Bed) -> Outputs {
    let (inner, out) = (96, 160);
    let index = bed.ints([TOKENS, SLOTS], |at| if at % 17 == 0 { -1 } else { (at * 5 % EXPERTS) as i32 });
    let shared = bed.data(1, [TOKENS, inner]);
    let weights = bed.data(2, [EXPERTS * out, inner]);
    let result = bed.empty([TOKENS, SLOTS * out], bed.dtype);
    let op = GroupedMatMul {
        a: &shared,
        weights: &weights,
        experts: EXPERTS,
        trans: true,
        index: &index,
        c: &result,
    };
    bed.machine().grouped_matmul(&op, &bed.scratch(&op.desc()));
    let (back, dy) = (bed.empty([TOKENS, SLOTS * inner], bed.dtype), bed.data(3, [TOKENS, SLOTS * out]));
    let op =
        GroupedMatMul { a: &dy, weights: &weights, experts: EXPERTS, trans: false, index: &index, c: &back };
    bed.machine().grouped_matmul(&op, &bed.scratch(&op.desc()));
    let gradient = bed.wide(4, [EXPERTS * out, inner]);
    let op = GroupedWeight { a: &dy, b: &shared, index: &index, experts: EXPERTS, c: &gradient };
    bed.machine().grouped_weight(&op, &bed.scratch(&op.desc()));
    vec![("forward", result), ("backward", back), ("gradient", gradient)]
}

/// Operands with gaps between rows, one of them at an odd offset; experts chosen by no token, and one chosen by all.
fn uneven(bed: &Bed) -> Outputs {
    let (inner, out) = (64, 72);
    let mut made = Vec::new();
    for (name, expert) in [
        ("some without", (|at| if at % 5 == 0 { -1 } else { (at % 3 * 3) as i32 }) as fn(usize) -> i32),
        ("all to one", |_| 5),
        ("none", |_| -1),
    ] {
        let index = bed.ints([TOKENS, SLOTS], expert);
        let a = bed.data(1, [TOKENS, SLOTS * inner + 3]).view_cols(3..3 + SLOTS * inner);
        let weights = bed.data(2, [EXPERTS * inner, out + 16]).view_cols(8..8 + out);
        let wide = bed.data(3, [TOKENS, SLOTS * out + 5]);
        let c = wide.view_cols(5..5 + SLOTS * out);
        let index_ = &index;
        let op =
            GroupedMatMul { a: &a, weights: &weights, experts: EXPERTS, trans: false, index: index_, c: &c };
        bed.machine().grouped_matmul(&op, &bed.scratch(&op.desc()));
        let gradient = bed.wide(4, [EXPERTS * inner, out + 4]);
        let b = bed.data(5, [TOKENS, out]);
        let into = gradient.view_cols(4..4 + out);
        let op = GroupedWeight { a: &a, b: &b, index: &index, experts: EXPERTS, c: &into };
        bed.machine().grouped_weight(&op, &bed.scratch(&op.desc()));
        made.extend([(name, wide), (name, gradient)]);
    }
    made
}

/// Little scratch, so that experts' rows are split into parts.
fn parts(bed: &Bed) -> Outputs {
    let (inner, out) = (48, 40);
    let index =
        bed.ints([TOKENS, SLOTS], |at| if at % 13 == 0 { -1 } else { (at * 7 % 11 % EXPERTS) as i32 });
    let little = |op: &OpDesc| {
        let all = bed.machine().profile().workspace(op).max(1);
        let parted = GroupedScratch::of(op).map(|scratch| GroupedScratch { rows: 104, ..scratch }.bytes());
        let bytes = parted.filter(|bytes| *bytes < all).unwrap_or(all);
        bed.device.empty(1, bytes as usize, DType::U8, Category::Workspace)
    };
    let (a, weights) = (bed.data(1, [TOKENS, inner]), bed.data(2, [EXPERTS * out, inner]));
    let result = bed.empty([TOKENS, SLOTS * out], bed.dtype);
    let (experts, index) = (EXPERTS, &index);
    let op = GroupedMatMul { a: &a, weights: &weights, experts, trans: true, index, c: &result };
    bed.machine().grouped_matmul(&op, &little(&op.desc()));
    let wide = bed.zeros([TOKENS, SLOTS * out]);
    let op = GroupedMatMul { c: &wide, ..op };
    bed.machine().grouped_matmul(&op, &little(&op.desc()));
    let (gradient, dy) = (bed.wide(3, [EXPERTS * out, inner]), bed.data(4, [TOKENS, SLOTS * out]));
    let op = GroupedWeight { a: &dy, b: &a, index, experts, c: &gradient };
    bed.machine().grouped_weight(&op, &little(&op.desc()));
    vec![("forward", result), ("into f32", wide), ("gradient", gradient)]
}

fn combine(bed: &Bed) -> Outputs {
    let cols = 200;
    let (y, weights) = (bed.data(1, [TOKENS, SLOTS * cols]), bed.wide(2, [TOKENS, SLOTS]));
    let (out, plain) = (bed.empty([TOKENS, cols], bed.dtype), bed.empty([TOKENS, cols], bed.dtype));
    bed.machine().combine(&Combine { y: &y, weights: Some(&weights), out: &out });
    bed.machine().combine(&Combine { y: &y, weights: None, out: &plain });
    let dout = bed.data(3, [TOKENS, cols]);
    let (dy, dweights) = (bed.empty([TOKENS, SLOTS * cols], bed.dtype), bed.zeros([TOKENS, SLOTS]));
    bed.machine().combine_backward(&CombineBackward {
        y: &y,
        weights: &weights,
        dout: &dout,
        dy: Some(&dy),
        dweights: Some(&dweights),
    });
    vec![("out", out), ("sum", plain), ("dy", dy), ("dweights", dweights)]
}
