//! Mixture of experts.

use fathom_tensor::{
    Category, Combine, CombineBackward, DType, Dispatch, GroupedMatMul, GroupedWeight, Groups, LimitExperts,
    Route, RouteBackward, RouterLosses, Routing, Scores,
};

use super::{Bed, Case, Made, ROUNDED};

const TOKENS: usize = 300;
const EXPERTS: usize = 8;
const SLOTS: usize = 2;

pub const CASES: &[Case] = &[
    Case { name: "router", bounds: ROUNDED, run: router },
    Case { name: "slots to owners", bounds: ROUNDED, run: dispatch },
    Case { name: "grouped products", bounds: ROUNDED, run: products },
    Case { name: "combine", bounds: ROUNDED, run: combine },
];

fn router(bed: &Bed) -> Made {
    let groups = Some(Groups { count: 4, top: 2, by: 1 });
    let mut made = Vec::new();
    for (name, scores, groups) in [("softmax", Scores::Softmax, None), ("sigmoid", Scores::Sigmoid, groups)] {
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
        // Weights of the router differ by a rounding, which may decide.
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

/// Two rounds of slots to four owners of two experts each; the second has what the first has no room for.
fn dispatch(bed: &Bed) -> Made {
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

fn products(bed: &Bed) -> Made {
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

fn combine(bed: &Bed) -> Made {
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
