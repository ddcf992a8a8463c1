//! Routers, and products grouped by expert.

use fathom_tensor::{
    Category, Combine, CombineBackward, DType, Device, GroupedMatMul, GroupedWeight, Groups, LimitExperts,
    Route, RouteBackward, RouterLosses, RouterScores, Routing, Tensor,
};

use super::{FLOATS, blank, devices, floats, random, same};

fn routing(scores: RouterScores, groups: Option<Groups>, normalise: bool) -> Routing {
    Routing { top_k: 3, scores, groups, normalise, scale: 1.7 }
}

#[test]
fn routers_agree_with_the_cpu() {
    let groups = Groups { count: 4, top: 2, by: 2 };
    for scores in [RouterScores::Softmax, RouterScores::Sigmoid] {
        for (groups, normalise) in [(None, false), (None, true), (Some(groups), true)] {
            same("route", |device| {
                let (rows, experts) = (9, 40);
                let routing = routing(scores, groups, normalise);
                let logits = random(device, [rows, experts], DType::F32, 1);
                let bias = device.from_f32(1, experts, &super::numbers(experts, 2), Category::Data);
                let index = device.empty(rows, 3, DType::I32, Category::Data);
                let (weights, dlogits) =
                    (blank(device, [rows, 3], DType::F32), blank(device, [rows, experts], DType::F32));
                let bias = (scores == RouterScores::Sigmoid).then_some(&bias);
                device.machine.route(&Route {
                    routing,
                    logits: &logits,
                    bias,
                    index: &index,
                    weights: &weights,
                });
                let dweights = random(device, [rows, 3], DType::F32, 3);
                device.machine.route_backward(&RouteBackward {
                    routing,
                    logits: &logits,
                    index: &index,
                    dweights: &dweights,
                    dlogits: &dlogits,
                });
                let load = device.zeros(1, experts, DType::F32, Category::Data);
                device.machine.count_experts(&index, &load);
                let of_losses = blank(device, [rows, experts], DType::F32);
                device.machine.router_losses(&RouterLosses {
                    scores,
                    logits: &logits,
                    load: &load,
                    aux: 0.3,
                    z: 0.1,
                    dlogits: &of_losses,
                });
                vec![index, weights, dlogits, load, of_losses]
            });
        }
    }
}

/// Among equal scores the first is chosen.
#[test]
fn the_first_of_equals_is_chosen() {
    let Some([_, device]) = devices() else { return };
    let logits = device.zeros(2, 70, DType::F32, Category::Data);
    let index = device.empty(2, 3, DType::I32, Category::Data);
    let weights = blank(&device, [2, 3], DType::F32);
    let routing = routing(RouterScores::Softmax, None, false);
    device.machine.route(&Route { routing, logits: &logits, bias: None, index: &index, weights: &weights });
    assert_eq!(super::ints(&device, &index), [0, 1, 2, 0, 1, 2]);
}

/// Experts of slots; some slots are empty, some experts have none.
fn slots(device: &Device, tokens: usize, slots: usize, experts: i32) -> Tensor {
    let of = |at: usize| match at * 7919 % 101 % (experts as usize + 1) {
        e if e == experts as usize || e == 2 => -1,
        e => e as i32,
    };
    let list: Vec<i32> = (0..tokens * slots).map(of).collect();
    device.from_i32(&list, Category::Data).reshape(tokens, slots)
}

#[test]
fn counts_and_limits() {
    same("limit", |device| {
        let index = slots(device, 700, 4, 9);
        let (load, out) = (
            device.zeros(1, 9, DType::F32, Category::Data),
            device.empty(700, 4, DType::I32, Category::Data),
        );
        device.machine.count_experts(&index, &load);
        device.machine.count_experts(&index, &load);
        let (index, out) = (&index, &out);
        device.machine.limit_experts(&LimitExperts { index, weights: None, experts: 9, capacity: 100, out });
        vec![load, out.clone()]
    });
}

fn workspace(device: &Device, desc: &fathom_tensor::OpDesc) -> Tensor {
    let bytes = device.machine.profile().workspace(desc) as usize;
    device.empty(1, bytes.max(1), DType::U8, Category::Workspace)
}

#[test]
fn products_by_expert_agree_with_the_cpu() {
    for dtype in FLOATS {
        for (shared, trans, [tokens, inner, out]) in
            [(true, true, [90, 40, 70]), (false, false, [33, 24, 136]), (true, false, [5, 50, 10])]
        {
            same("grouped", |device| {
                let (k, experts) = (2, 5);
                let index = slots(device, tokens, k, experts as i32);
                let a = random(device, [tokens, if shared { inner } else { k * inner }], dtype, 1);
                let shape = if trans { [experts * out, inner] } else { [experts * inner, out] };
                let (weights, c) = (random(device, shape, dtype, 2), blank(device, [tokens, k * out], dtype));
                let op = GroupedMatMul { a: &a, weights: &weights, experts, trans, index: &index, c: &c };
                device.machine.grouped_matmul(&op, &workspace(device, &op.desc()));
                let dweights = random(device, [experts * inner, out], DType::F32, 3);
                let b = random(device, [tokens, k * out], dtype, 4);
                let op = GroupedWeight { a: &a, b: &b, index: &index, experts, c: &dweights };
                device.machine.grouped_weight(&op, &workspace(device, &op.desc()));
                vec![c, dweights]
            });
        }
    }
}

#[test]
fn cutting_tokens_changes_no_bit_of_grouped_weights() {
    let Some([_, device]) = devices() else { return };
    let (tokens, k, experts, m, n) = (300, 2, 3, 20, 24);
    let index = slots(&device, tokens, k, experts as i32);
    for dtype in FLOATS {
        let (a, b) = (random(&device, [tokens, m], dtype, 1), random(&device, [tokens, k * n], dtype, 2));
        let sum = |cuts: &[usize]| {
            let c = random(&device, [experts * m, n], DType::F32, 3);
            for pair in cuts.windows(2) {
                let of = |tensor: &Tensor| tensor.view_rows(pair[0]..pair[1]);
                let (a, b, index) = (of(&a), of(&b), of(&index));
                let op = GroupedWeight { a: &a, b: &b, index: &index, experts, c: &c };
                device.machine.grouped_weight(&op, &workspace(&device, &op.desc()));
            }
            floats(&device, &c)
        };
        assert_eq!(sum(&[0, 300]), sum(&[0, 128, 256, 300]), "{dtype:?}");
    }
}

#[test]
fn sums_over_slots() {
    for dtype in FLOATS {
        for cols in [20, 700] {
            same("combine", |device| {
                let (rows, k) = (6, 3);
                let (y, weights) =
                    (random(device, [rows, k * cols], dtype, 1), random(device, [rows, k], DType::F32, 2));
                let (out, plain) = (blank(device, [rows, cols], dtype), blank(device, [rows, cols], dtype));
                device.machine.combine(&Combine { y: &y, weights: Some(&weights), out: &out });
                device.machine.combine(&Combine { y: &y, weights: None, out: &plain });
                let (dout, dy) =
                    (random(device, [rows, cols], dtype, 3), blank(device, [rows, k * cols], dtype));
                let dweights = blank(device, [rows, k], DType::F32);
                device.machine.combine_backward(&CombineBackward {
                    y: &y,
                    weights: &weights,
                    dout: &dout,
                    dy: Some(&dy),
                    dweights: Some(&dweights),
                });
                vec![out, plain, dy, dweights]
            });
        }
    }
}

fn scratch(device: &Device) -> (Tensor, fathom_cuda::kernels::Scratch) {
    let memory =
        device.empty(1, fathom_cuda::kernels::SCRATCH_BYTES as usize, DType::U8, Category::Workspace);
    let address = memory.address();
    (memory, fathom_cuda::kernels::Scratch(address))
}

/// Compares with sorting each expert's slots by weight.
#[test]
fn the_heaviest_slots_stay() {
    let Some([_, device]) = devices() else { return };
    let (tokens, k, experts) = (700, 4, 9);
    let (_memory, scratch) = scratch(&device);
    let index = slots(&device, tokens, k, experts as i32);
    // Many equal weights, and zeros.
    let weights: Vec<f32> =
        super::numbers(tokens * k, 5).iter().map(|x| (x.abs() * 20.0).floor() / 64.0).collect();
    let stored = device.from_f32(tokens, k, &weights, Category::Data);
    let of = super::ints(&device, &index);
    for capacity in [0, 1, 100, 290, 5000] {
        let out = device.empty(tokens, k, DType::I32, Category::Data);
        let limit =
            fathom_cuda::kernels::limit_experts(&index, Some(&stored), [experts, capacity], &out, scratch);
        limit.iter().for_each(super::emulator::run);
        let mut expected = vec![-1; of.len()];
        for expert in 0..experts as i32 {
            let mut list: Vec<usize> = (0..of.len()).filter(|slot| of[*slot] == expert).collect();
            list.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
            list.iter().take(capacity).for_each(|slot| expected[*slot] = expert);
        }
        assert_eq!(super::ints(&device, &out), expected, "{capacity}");
    }
}

#[test]
fn rounds_send_every_slot_once() {
    let Some([_, device]) = devices() else { return };
    let (tokens, k, own, owners, cap) = (300, 2, 3, 3, 90);
    let (_memory, scratch) = scratch(&device);
    let index = slots(&device, tokens, k, (own * owners) as i32);
    let of = super::ints(&device, &index);
    let mut seen = vec![0; of.len()];
    for round in 0..4 {
        let lists = [0; 3].map(|_| device.empty(owners, cap, DType::I32, Category::Data));
        let places = device.empty(tokens, k, DType::I32, Category::Data);
        let [a, b, c] = &lists;
        let launches = fathom_cuda::kernels::dispatch(&index, own, round, [a, b, c], &places, scratch);
        launches.iter().for_each(super::emulator::run);
        let [slots, tokens, experts] = lists.each_ref().map(|list| super::ints(&device, list));
        let places = super::ints(&device, &places);
        for (slot, place) in places.iter().enumerate().filter(|(_, place)| **place >= 0) {
            let at = *place as usize;
            let expert = experts[at] + (at / cap * own) as i32;
            assert_eq!((slots[at], tokens[at], expert), (slot as i32, (slot / k) as i32, of[slot]));
            seen[slot] += 1;
        }
        for owner in 0..owners {
            let of_owner: Vec<i32> =
                slots[owner * cap..(owner + 1) * cap].iter().copied().filter(|s| *s >= 0).collect();
            let mut sorted = of_owner.clone();
            sorted.sort_unstable();
            assert_eq!(of_owner, sorted);
        }
        assert_eq!(slots.iter().filter(|s| **s >= 0).count(), places.iter().filter(|p| **p >= 0).count());
    }
    assert!(seen.iter().zip(&of).all(|(seen, expert)| *seen == i32::from(*expert >= 0)));
}

#[test]
fn biases_move_towards_even_loads() {
    let Some([_, device]) = devices() else { return };
    let bias = device.from_f32(1, 4, &[0.5, 0.0, -0.25, 0.0], Category::Data);
    let load = device.from_f32(1, 4, &[3.0, 9.0, 6.0, 6.0], Category::Data);
    let balance = |skip: f32| {
        let skip = device.from_f32(1, 1, &[skip], Category::Data);
        super::emulator::run(&fathom_cuda::kernels::balance_bias(&bias, &load, 0.125, &skip));
        floats(&device, &bias)
    };
    assert_eq!(balance(1.0), [0.5, 0.0, -0.25, 0.0]);
    assert_eq!(balance(0.0), [0.625, -0.125, -0.25, 0.0]);
}
