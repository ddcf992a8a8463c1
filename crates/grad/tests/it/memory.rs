//! Memory of a step: steps are alike, nothing is left over, and the plan's timeline equals the run's.

use fathom_grad::{Place, Places};
use fathom_tensor::{Category, DType, Mark};

use crate::stack::{Setup, Variant, whole};

const DOCS: [usize; 2] = [200, 120];

fn setups() -> impl Iterator<Item = Setup> {
    let places = [Places::none(), Places::linear().with_tiles(Some(128)), Places::full()];
    Variant::ALL.into_iter().flat_map(move |variant| {
        let places = places.clone();
        places.into_iter().flat_map(move |places| {
            [DType::F32, DType::Bf16]
                .map(|dtype| Setup { places: places.clone(), ..Setup::new(variant, dtype) })
        })
    })
}

/// The timelines of steps 2 and 3.
fn timelines(setup: &Setup) -> [Vec<Mark>; 2] {
    let mut stack = setup.build(&|_| true);
    stack.step(&whole(&DOCS), &DOCS);
    [(); 2].map(|()| {
        stack.device.pool.record();
        stack.step(&whole(&DOCS), &DOCS);
        stack.device.pool.recorded()
    })
}

#[test]
fn steps_have_one_timeline_and_it_is_the_plan_s() {
    for setup in setups() {
        let [second, third] = timelines(&setup);
        assert!(second.len() > 100);
        assert!(second == third, "{:?} {:?}: steps differ", setup.variant, setup.places);
        assert!(timelines(&setup.plan()) == [second, third], "{:?} {:?}: plan", setup.variant, setup.places);
    }
}

#[test]
fn a_step_leaves_nothing() {
    for setup in setups() {
        let mut stack = setup.build(&|_| true);
        let before = stack.device.pool.usage().by_category;
        assert_eq!(before[Category::Activations] + before[Category::Workspace], 0);
        for _ in 0..2 {
            stack.step(&whole(&DOCS), &DOCS);
            assert_eq!(
                stack.device.pool.usage().by_category,
                before,
                "{:?} {:?}",
                setup.variant,
                setup.places
            );
        }
    }
}

#[test]
fn a_step_after_the_first_reserves_no_more() {
    for setup in setups() {
        let mut stack = setup.build(&|_| true);
        stack.step(&whole(&DOCS), &DOCS);
        let first = stack.device.pool.usage();
        (0..3).for_each(|_| stack.step(&whole(&DOCS), &DOCS));
        assert_eq!(stack.device.pool.usage(), first, "{:?} {:?}", setup.variant, setup.places);
    }
}

/// A plan runs as many tiles as differ and counts the rest; while a timeline is recorded, all of them run.
#[test]
fn counted_tiles_are_those_that_run() {
    const DOCS: [usize; 2] = [900, 190];
    let offloaded = [Places::none(), Places::linear()].map(|places| places.offload_all(Place::Disk));
    let tables: Vec<Places> =
        [Places::none(), Places::linear(), Places::full()].into_iter().chain(offloaded).collect();
    for variant in Variant::ALL {
        for places in tables.clone().into_iter().map(|places| places.with_tiles(Some(128))) {
            let setup = Setup { places, ..Setup::new(variant, DType::Bf16) }.plan();
            let run = |record: bool| {
                let mut stack = setup.build(&|_| true);
                (0..2).for_each(|_| {
                    if record {
                        stack.device.pool.record();
                    }
                    stack.step(&whole(&DOCS), &DOCS);
                });
                stack.outcome()
            };
            assert!(run(false) == run(true), "{variant:?} {:?}", setup.places);
        }
    }
}
