//! Fault injection between memory and disk: delays, short and interrupted operations, and any order change no bit;
//! failed operations, and a disk that fills up within a step, end in a clean error or in the same bits.

use fathom_grad::{Place, Places};
use fathom_tensor::DType;
use fathom_tensor::spill::Chaos;

use crate::stack::{Setup, Variant, whole};

const DOCS: [usize; 2] = [230, 170];

fn tables() -> [Places; 3] {
    [
        Places::none().offload_all(Place::Disk).with_fraction(0.7),
        Places::linear().offload_all(Place::Disk).with_tiles(Some(128)),
        Places::linear().offload_all(Place::Host).with_segment_layers(2),
    ]
}

/// Two steps with injected faults; `Err` with the message of the engine's first failure.
fn steps(setup: &Setup) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut stack = setup.build(&|_| true);
    for _ in 0..2 {
        stack.accumulate(&whole(&DOCS), &DOCS);
        stack.offload.check().map_err(|error| error.to_string())?;
        stack.update();
    }
    Ok(stack.outcome().grads)
}

#[test]
fn disorder_changes_no_bit() {
    for places in tables() {
        let setup = Setup { places, ..Setup::new(Variant::Chain, DType::Bf16) };
        let expected = steps(&setup).unwrap();
        for seed in 0..4 {
            let chaos = Some(Chaos { seed, fault_one_in: 0 });
            assert!(steps(&Setup { chaos, ..setup.clone() }) == Ok(expected.clone()), "seed {seed}");
        }
    }
}

#[test]
fn faults_end_in_one_clean_error() {
    let (mut failed, mut passed) = (0, 0);
    for places in tables() {
        let setup = Setup { places, ..Setup::new(Variant::Capped, DType::F32) };
        let expected = steps(&setup).unwrap();
        for seed in 0..6 {
            let chaos = Some(Chaos { seed, fault_one_in: 150 });
            match steps(&Setup { chaos, ..setup.clone() }) {
                Ok(found) => {
                    assert!(found == expected, "seed {seed}: no error and other bits");
                    passed += 1;
                }
                Err(message) => {
                    assert!(message.contains("rank 0"), "{message}");
                    failed += 1;
                }
            }
        }
    }
    assert!(failed > 0 && passed > 0, "{failed} failed, {passed} passed");
}
