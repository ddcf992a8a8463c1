//! Frozen weights: the gradients of the others keep every bit, and frozen ones have no buffer and cost no work.

use fathom_grad::Places;
use fathom_tensor::{Category, DType};

use crate::stack::{Outcome, Setup, Stack, Variant, whole};

const DOCS: [usize; 2] = [150, 71];

/// The weights to train, by name.
struct Case {
    what: &'static str,
    trained: fn(&str) -> bool,
}

const CASES: [Case; 12] = [
    Case { what: "nothing", trained: |_| false },
    Case { what: "the head", trained: |name| name.starts_with("head") },
    Case { what: "all but the embedding", trained: |name| !name.starts_with("embed") },
    Case { what: "the last layer", trained: |name| name.starts_with("blocks.2.") },
    Case { what: "from the second layer on", trained: |name| name > "blocks.1" && name < "embed" },
    Case { what: "norms", trained: |name| name.contains("norm") },
    Case { what: "norms of q", trained: |name| name.contains("q_norm") },
    Case { what: "norms of k of the first layer", trained: |name| name == "blocks.0.k_norm.weight" },
    Case { what: "biases", trained: |name| name.contains("bias") },
    Case { what: "sinks", trained: |name| name.contains("sinks") },
    Case { what: "down projections", trained: |name| name.contains("down") },
    Case { what: "the embedding", trained: |name| name == "embed" },
];

fn run(setup: &Setup, trained: &dyn Fn(&str) -> bool) -> (Stack, Outcome) {
    let mut stack = setup.build(trained);
    stack.accumulate(&whole(&DOCS), &DOCS);
    let outcome = stack.outcome();
    (stack, outcome)
}

#[track_caller]
fn check(setup: &Setup, case: &Case, expected: &Outcome) {
    let at = format!("{:?}, {:?}, {:?}: {}", setup.variant, setup.dtype, setup.places, case.what);
    let (stack, found) = run(setup, &case.trained);
    assert!(found.loss == expected.loss, "{at}: loss");
    let mut bytes = 0;
    for (id, param) in stack.params.iter() {
        assert_eq!(stack.grads.get(id).is_some(), (case.trained)(&param.name), "{at}: {}", param.name);
        bytes += stack.grads.get(id).map_or(0, |grad| stack.device.pool.charge(grad.bytes()));
    }
    assert_eq!(found.usage.by_category[Category::Grads], bytes, "{at}");
    for (name, grad) in &found.grads {
        let expected = expected.grads.iter().find(|(other, _)| other == name);
        assert!(expected.is_some_and(|(_, expected)| grad == expected), "{at}: gradient of {name}");
    }
    assert!(found.flops[0] <= expected.flops[0], "{at}: frozen weights cost work");
    let (_, planned) = run(&setup.plan(), &case.trained);
    assert_eq!((found.usage, found.flops), (planned.usage, planned.flops), "{at}");
}

#[test]
fn subsets_of_the_weights() {
    for variant in Variant::ALL {
        for dtype in [DType::F32, DType::Bf16] {
            for places in [Places::none(), Places::linear().with_tiles(Some(128)), Places::full()] {
                let setup = Setup { places, ..Setup::new(variant, dtype) };
                let expected = run(&setup, &|_| true).1;
                CASES.iter().for_each(|case| check(&setup, case, &expected));
            }
        }
    }
}

#[test]
fn work_is_that_of_what_is_trained() {
    let setup = Setup::new(Variant::Chain, DType::F32).plan();
    let flops = |trained: &dyn Fn(&str) -> bool| run(&setup, trained).1.flops[0];
    let all = flops(&|_| true);
    // The embedding is a look-up; everything before the last layer costs only its forward pass.
    assert_eq!(flops(&|name| name != "embed"), all);
    let [last, head, none] = [
        flops(&|name| name.starts_with("blocks.2.") || name == "head.weight"),
        flops(&|name| name == "head.weight"),
        flops(&|_| false),
    ];
    assert!(none < head && head < last && last < all, "{all} {last} {head} {none}");

    // Biases cost additions, which are not counted: the last one costs nothing, the one before it the backward pass
    // through one projection of 72 columns to 32.
    let setup = Setup::new(Variant::Fork, DType::F32).plan();
    let flops = |trained: &dyn Fn(&str) -> bool| run(&setup, trained).1.flops[0];
    let none = flops(&|_| false);
    assert_eq!(flops(&|name| name == "blocks.2.down.bias"), none);
    let tokens: usize = DOCS.iter().sum();
    assert_eq!(flops(&|name| name == "blocks.2.up.bias"), none + 2 * (tokens * 32 * 72) as u128);
}

#[test]
fn frozen_layers_keep_nothing_for_the_backward_pass() {
    let setup = Setup::new(Variant::Chain, DType::F32).plan();
    let activations = |trained: &dyn Fn(&str) -> bool| {
        let mut stack = setup.build(trained);
        stack.accumulate(&whole(&[2048]), &[2048]);
        stack.outcome().usage.peak_by_category[Category::Activations]
    };
    let [all, last, none] = [
        activations(&|_| true),
        activations(&|name| name.starts_with("blocks.2.") || name == "head.weight"),
        activations(&|_| false),
    ];
    assert!(none < last && 2 * last < all, "{all} {last} {none} bytes");
}
