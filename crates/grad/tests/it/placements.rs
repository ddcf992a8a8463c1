//! Places of activations, height of tiles and number of threads change no bit of loss or gradients, and the plan has
//! the memory and work of every case.

use fathom_cpu::isa::Isa;
use fathom_grad::{Place, Places, Rule};
use fathom_tensor::DType;
use proptest::prelude::*;

use crate::stack::{LAYERS, MODULES, Outcome, Setup, Variant, cpu, described, levels, whole};

/// 300 tokens: the last tile is partial.
const DOCS: [usize; 3] = [130, 41, 129];
const TILES: [Option<usize>; 3] = [None, Some(128), Some(256)];

fn presets() -> Vec<Places> {
    let selective = |modules: &[&str]| {
        let modules: Vec<String> = modules.iter().map(|module| module.to_string()).collect();
        Places::selective(&modules, MODULES).unwrap_or_else(|message| panic!("{message}"))
    };
    vec![
        Places::none(),
        Places::linear(),
        Places::full(),
        selective(&["core_attn"]),
        selective(&["layernorm"]),
        selective(&["mlp"]),
        selective(&["mlp_act"]),
        selective(&["core_attn", "layernorm", "mlp"]),
        offload(Places::none(), "all"),
        offload(Places::linear(), "all"),
        offload(Places::linear(), "core_attn"),
        offload(Places::full(), "block"),
        offload(Places::linear(), "all").with_head_groups(4),
        host(Places::linear()),
        offload(Places::none(), "all").with_fraction(0.4),
        Places::full_block(2),
        Places::full().with_segment_layers(2),
        offload(Places::linear(), "all").with_segment_layers(3),
        // One layer on disk, one on the host, one recomputed.
        Places::none().with_rules(
            [Place::Disk, Place::Host, Place::Recompute]
                .into_iter()
                .enumerate()
                .map(|(layer, place)| Rule { layers: layer..layer + 1, name: "*".into(), place })
                .collect(),
        ),
    ]
}

fn host(places: Places) -> Places {
    places.offload_all(Place::Host)
}

fn offload(places: Places, module: &str) -> Places {
    places.offload(&[module.to_owned()], MODULES, Place::Disk).unwrap_or_else(|message| panic!("{message}"))
}

#[track_caller]
fn assert_same(found: &Outcome, expected: &Outcome, at: &str) {
    assert!(found.loss == expected.loss, "{at}: the loss differs");
    for ((name, found), (_, expected)) in found.grads.iter().zip(&expected.grads) {
        assert!(found == expected, "{at}: the gradient of {name} differs");
    }
    assert_eq!(found.grads.len(), expected.grads.len());
}

/// Runs the case, compares it with `expected` and with its plan.
#[track_caller]
fn check(setup: &Setup, expected: &Outcome) {
    let profile = setup.machine.profile();
    let at = format!(
        "{:?}, {:?}, {}, {} threads, {:?}",
        setup.variant, setup.dtype, profile.isa, profile.threads, setup.places
    );
    let found = setup.run(&whole(&DOCS), &DOCS);
    assert_same(&found, expected, &at);
    let planned = setup.plan().run(&whole(&DOCS), &DOCS);
    assert_eq!(found.usage, planned.usage, "{at}");
    assert_eq!((found.flops, found.replayed), (planned.flops, planned.replayed), "{at}");
    assert_eq!(found.flops[0], expected.flops[0], "{at}: FLOPs of the model");
}

/// Tables of places with all tile heights on one instruction set, alternating numbers of threads.
fn check_tables(variant: Variant, dtype: DType, isa: Isa, tables: &[Places]) {
    let plain = Setup { machine: cpu(1, isa), ..Setup::new(variant, dtype) };
    let expected = plain.run(&whole(&DOCS), &DOCS);
    assert!(expected.grads.iter().all(|(_, grad)| grad.iter().any(|byte| *byte != 0)), "a gradient is zero");
    for (index, places) in tables.iter().enumerate() {
        for (tile, rows) in TILES.into_iter().enumerate() {
            let machine = cpu(1 + (index + tile) % 3, isa);
            check(&Setup { machine, places: places.clone().with_tiles(rows), ..plain.clone() }, &expected);
        }
    }
}

#[test]
fn every_preset_and_arrangement() {
    for variant in Variant::ALL {
        for dtype in [DType::F32, DType::Bf16] {
            check_tables(variant, dtype, Isa::detect(), &presets());
        }
    }
}

/// Kernels differ by instruction set, schedules do not: two arrangements that call every kernel suffice here.
#[test]
fn every_instruction_set() {
    for isa in levels() {
        for variant in [Variant::Fork, Variant::Capped] {
            for dtype in [DType::F32, DType::Bf16] {
                check_tables(variant, dtype, isa, &[Places::linear(), Places::full()]);
            }
        }
    }
}

#[test]
fn any_number_of_threads() {
    for dtype in [DType::F32, DType::Bf16] {
        let plain = Setup { machine: cpu(1, Isa::detect()), ..Setup::new(Variant::Capped, dtype) };
        let expected = plain.run(&whole(&DOCS), &DOCS);
        for threads in 1..=3 {
            for places in [Places::none(), Places::linear(), Places::full().with_tiles(Some(128))] {
                check(&Setup { machine: cpu(threads, Isa::detect()), places, ..plain.clone() }, &expected);
            }
        }
    }
}

/// Uses all processors with data sheets, whatever this test runs on.
#[test]
fn more_recomputed_is_more_work_and_less_memory() {
    for isa in Isa::ALL {
        let run = |places: Places| {
            let machine = described(2, isa);
            let setup = Setup { machine, places, ..Setup::new(Variant::Chain, DType::Bf16) };
            setup.run(&whole(&[4096]), &[4096])
        };
        let peak = |outcome: &Outcome| outcome.usage.peak_live;
        let [none, linear, full] = [Places::none(), Places::linear(), Places::full()].map(run);
        assert_eq!(none.replayed, 0);
        assert!(none.flops[1] < linear.flops[1] && linear.flops[1] < full.flops[1]);
        assert!(peak(&none) > peak(&linear) && peak(&linear) > peak(&full), "{isa:?}");
        // Tiles apply to token-wise work and do not reduce attention's scratch, which is largest with AMX: with one key
        // head at a time the peak is elsewhere.
        let heads = || Places::full().with_head_groups(4);
        let [whole, tiled] = [heads(), heads().with_tiles(Some(128))].map(run);
        assert!(peak(&tiled) < peak(&whole), "{isa:?}: {} {}", tiled.usage.peak_op, whole.usage.peak_op);
        let tiled = run(Places::full().with_tiles(Some(128)));
        assert!(peak(&tiled) < peak(&full) || full.usage.peak_op.starts_with("attention"), "{isa:?}");
    }
}

/// Names of a block's activations in any variant.
const NAMES: [&str; 21] = [
    "attn.norm",
    "attn.norm.stats",
    "attn.qkv",
    "attn.q.raw",
    "attn.k.raw",
    "attn.q.norm",
    "attn.q.norm.stats",
    "attn.k.norm",
    "attn.k.norm.stats",
    "attn.q",
    "attn.k",
    "attn.v",
    "attn.out",
    "attn.lse",
    "attn.proj",
    "block.mid",
    "mlp.norm",
    "mlp.norm.stats",
    "mlp.up",
    "mlp.act",
    "mlp.down",
];

fn any_places() -> impl Strategy<Value = Places> {
    let places = proptest::collection::vec(0..4usize, LAYERS * NAMES.len());
    let fraction = prop_oneof![Just(1.0), Just(0.37)];
    (places, 0..TILES.len(), fraction, 1usize..=4, 1usize..=3).prop_map(
        |(places, tile, fraction, head_groups, segment_layers)| {
            let rule = |(at, place): (usize, &usize)| Rule {
                layers: at / NAMES.len()..at / NAMES.len() + 1,
                name: NAMES[at % NAMES.len()].to_string(),
                place: [Place::Recompute, Place::Keep, Place::Host, Place::Disk][*place],
            };
            Places::new(places.iter().enumerate().map(rule).collect(), TILES[tile])
                .with_fraction(fraction)
                .with_head_groups(head_groups)
                .with_segment_layers(segment_layers)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_table_of_places(
        places in any_places(),
        variant in 0..Variant::ALL.len(),
        dtype in prop_oneof![Just(DType::F32), Just(DType::Bf16)],
        threads in 1usize..=3,
    ) {
        let plain = Setup::new(Variant::ALL[variant], dtype);
        let expected = plain.run(&whole(&DOCS), &DOCS);
        check(&Setup { machine: cpu(threads, Isa::detect()), places, ..plain }, &expected);
    }
}

#[test]
fn an_evaluation_pass_is_the_tape_s_forward_pass() {
    for variant in Variant::ALL {
        for dtype in [DType::F32, DType::Bf16] {
            let stack = Setup::new(variant, dtype).build(&|_| true);
            for rows in TILES {
                let [evaluated, taped] = stack.hidden_states(&DOCS, rows);
                assert!(evaluated == taped, "{variant:?}, {dtype:?}, tiles {rows:?}");
            }
        }
    }
}
