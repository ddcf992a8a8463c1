//! The block structure that AMX requires (tiles of 32 rows and 16 words), on processors without tiles.

use super::super::unit::checked::{TiledBf16, TiledPortable};
use super::super::unit::{Avx512Bf16Unit, PortableUnit, Unit};
use super::*;

/// Bits of the forward and backward pass by a family of kernels.
fn bits_of<U: Unit>(make: fn() -> U, p: &Problem) -> Results {
    p.run_with(
        2,
        |threads, slices| {
            (
                forward::bytes(make(), threads, &p.shape, slices),
                backward::bytes(make(), threads, &p.shape, slices),
            )
        },
        // SAFETY: `run_with` gives buffers of the extents.
        |pool, op, work| unsafe { forward::run(make(), pool, op, work) },
        // SAFETY: as above.
        |pool, op, work| unsafe { backward::run(make(), pool, op, work) },
    )
}

#[test]
fn tiles_give_the_bits_of_vectors() {
    let problems = |elem| {
        [
            problem(elem, 300, 3, 1, 80),
            problem(elem, 200, 2, 2, 64).documents(&[33, 90, 200], Some(50)),
            problem(elem, 140, 2, 1, 72).with(|p| p.options.softcap = 3.0),
            problem(elem, 200, 4, 1, 128).rows(1, 150),
            problem(elem, 100, 1, 1, 256).rows(37, 60),
            problem(elem, 400, 2, 2, 64).documents(&[150, 399, 400], None),
        ]
    };
    for p in problems(Elem::F32) {
        assert_eq!(bits_of(|| PortableUnit, &p), bits_of(|| TiledPortable, &p));
    }
    if Isa::detect() >= Isa::Avx512Bf16 {
        for p in problems(Elem::Bf16) {
            assert_eq!(bits_of(|| Avx512Bf16Unit, &p), bits_of(|| TiledBf16, &p));
        }
    }
}
