//! Documented errors, with their status, from the heuristic or from the product.

use super::*;
use crate::blas::objects::{layout, operation};
use crate::blas::operands::Problem;
use crate::blas::product::{Job, Scalar};

const INVALID: Status = Status::CUBLAS_STATUS_INVALID_VALUE;
const UNSUPPORTED: Status = Status::CUBLAS_STATUS_NOT_SUPPORTED;

const M: usize = 32;
const N: usize = 48;
const K: usize = 256;

fn sides(kinds: [Kind; 4], transposed: [bool; 2]) -> [Side; 4] {
    let mut random = Random(7);
    let [a, b, c, d] = kinds;
    let turn = |shape: [usize; 2], turned: bool| if turned { [shape[1], shape[0]] } else { shape };
    let (shape_a, shape_b) = (turn([M, K], transposed[0]), turn([K, N], transposed[1]));
    [
        Side::new(a, shape_a, shape_a[0], &mut random),
        Side::new(b, shape_b, shape_b[0], &mut random),
        Side::new(c, [M, N], M, &mut random),
        Side::new(d, [M, N], M, &mut random),
    ]
}

/// A valid product of eight-bit numbers.
fn narrow(kinds: [Kind; 4]) -> Call {
    Call::new(sides(kinds, [true, false]).each_ref(), [true, false], stream())
}

const PLAIN: [Kind; 4] = [Kind::E4m3, Kind::E4m3, Kind::Bf16, Kind::Bf16];

fn wide(kind: Kind) -> Call {
    Call::new(sides([kind; 4], [false; 2]).each_ref(), [false; 2], stream())
}

/// With as many factors as any mode needs.
fn scaled(modes: [u64; 2]) -> Call {
    let mut call = narrow(PLAIN);
    let attributes =
        [Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE];
    attributes.into_iter().zip(modes).for_each(|(attribute, mode)| call.set(attribute, mode, 4));
    call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, floats(&[1.0; 256]), 8);
    call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, floats(&[1.0; 256]), 8);
    call
}

fn check(what: &str, mut call: Call, expected: (Status, Status), change: impl FnOnce(&mut Call)) {
    assert_eq!(call.make(), (OK, OK), "before: {what}");
    change(&mut call);
    assert_eq!(call.make(), expected, "{what}");
}

#[test]
fn shapes_that_do_not_agree() {
    let check = |what: &str, status: Status, change: fn(&mut Call)| {
        check(what, wide(Kind::F32), (status, OK), change);
    };
    check("inner dimensions differ", INVALID, |call| call.places[1].rows = 255);
    check("D has other rows", INVALID, |call| call.places[3].rows = 31);
    check("C has other columns", INVALID, |call| call.places[2].cols = 47);
    check("columns overlap", INVALID, |call| call.places[0].ld = 31);
    check("C's columns overlap", INVALID, |call| call.places[2].ld = 0);
    check("a negative leading dimension", INVALID, |call| call.places[3].ld = -32);
    check("an empty matrix", INVALID, |call| {
        call.places[1].cols = 0;
        call.places[2].cols = 0;
        call.places[3].cols = 0;
    });
    check("more than an int32_t has", UNSUPPORTED, |call| {
        for place in [1, 2, 3] {
            call.places[place].cols = 1 << 31;
        }
    });
    check("an operation that is none", INVALID, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, 3, 4)
    });
    check("C transposed", UNSUPPORTED, |call| call.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSC, 1, 4));
}

#[test]
fn what_this_device_or_the_rehearsal_does_not_have() {
    let check = |what: &str, status: Status, change: fn(&mut Call)| {
        check(what, wide(Kind::Bf16), (status, OK), change);
    };
    check("a part of a matrix", UNSUPPORTED, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_FILL_MODE, 0, 4)
    });
    check("an epilogue", UNSUPPORTED, |call| call.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, 4, 4));
    check("vectors of scalars", UNSUPPORTED, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, 2, 4)
    });
    check("no pointer mode", INVALID, |call| call.set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, 9, 4));
    check("a bias that nothing adds", INVALID, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, 512, 8)
    });
    check("a factor of what is not narrow", INVALID, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, floats(&[1.0]), 8);
    });
    check("a factor of a D that is not narrow", INVALID, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, floats(&[1.0]), 8);
    });
    check("fast accumulation of bf16", INVALID, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1, 1)
    });
    check("scalars of bf16", UNSUPPORTED, |call| call.scale = number(Kind::Bf16));
    check("f16 sums", UNSUPPORTED, |call| call.compute = Compute::CUBLAS_COMPUTE_16F);
    check("TF32 of bf16", UNSUPPORTED, |call| call.compute = Compute::CUBLAS_COMPUTE_32F_FAST_TF32);
    check("addresses of less than an element", UNSUPPORTED, |call| call.alignments[1] = 1);
    check("integers", UNSUPPORTED, |call| call.places[0].kind = 3);
}

#[test]
fn types_that_are_in_no_table() {
    use Kind::{Bf16, E4m3, E5m2, F16, F32};
    let listed = [
        [F32, F32, F32, F32],
        [F16, F16, F16, F16],
        [F16, F16, F32, F32],
        [Bf16, Bf16, Bf16, Bf16],
        [Bf16, Bf16, F32, F32],
        [E4m3, E4m3, Bf16, Bf16],
        [E4m3, E4m3, Bf16, E4m3],
        [E4m3, E4m3, F16, F16],
        [E4m3, E4m3, F16, E4m3],
        [E4m3, E4m3, F32, F32],
    ];
    // Either operand may have the wider exponent, and then D may have it, too.
    let mixed: Vec<[Kind; 4]> = [[E4m3, E5m2], [E5m2, E4m3]]
        .into_iter()
        .flat_map(|[a, b]| {
            let one = move |c: Kind| [c, E4m3, E5m2].map(|d| [a, b, c, d]);
            one(Bf16).into_iter().chain(one(F16)).chain([[a, b, F32, F32]])
        })
        .collect();
    let all = [F32, F16, Bf16, E4m3, E5m2];
    let stream = stream();
    let mut count = 0;
    for a in all {
        for b in all {
            let sides = sides([a, b, F32, F32], [true, false]);
            for c in all {
                for d in all {
                    let mut call = Call::new(sides.each_ref(), [true, false], stream);
                    (call.places[2].kind, call.places[3].kind) = (number(c), number(d));
                    let known = listed.contains(&[a, b, c, d]) || mixed.contains(&[a, b, c, d]);
                    let expected = if known { OK } else { UNSUPPORTED };
                    count += usize::from(known);
                    assert_eq!(call.make().0, expected, "{a:?} {b:?} {c:?} {d:?}");
                }
            }
        }
    }
    assert_eq!(count, 10 + 14);
}

#[test]
fn eight_bits_want_their_shapes() {
    let check = |what: &str, status: Status, change: fn(&mut Call)| {
        check(what, narrow(PLAIN), (status, OK), change);
    };
    check("A is not transposed", UNSUPPORTED, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, 0, 4);
        (call.places[0].rows, call.places[0].cols) = (M as u64, K as u64);
    });
    check("B is transposed", UNSUPPORTED, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, 1, 4);
        (call.places[1].rows, call.places[1].cols, call.places[1].ld) = (N as u64, K as u64, N as i64);
    });
    check("K is no multiple of 16", UNSUPPORTED, |call| {
        call.places[0].rows = 248;
        call.places[1].rows = 248;
    });
    check("M is no multiple of 8", UNSUPPORTED, |call| {
        call.places[0].cols = 28;
        call.places[2].rows = 28;
        call.places[3].rows = 28;
    });
    check("a leading dimension of 257", UNSUPPORTED, |call| call.places[0].ld = 257);
    check("D's leading dimension of 36", UNSUPPORTED, |call| call.places[3].ld = 36);
    check("addresses of 8", UNSUPPORTED, |call| call.alignments[0] = 8);
    check("pedantic", UNSUPPORTED, |call| call.compute = Compute::CUBLAS_COMPUTE_32F_PEDANTIC);
    check("a factor of a wide D", INVALID, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, floats(&[1.0]), 8);
    });
    check("the largest of a wide D", INVALID, |call| {
        call.set(Attribute::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, floats(&[1.0]), 8);
    });
    // Any N is allowed.
    let mut call = narrow(PLAIN);
    (1..4).for_each(|index| call.places[index].cols = 47);
    assert_eq!(call.make(), (OK, OK));
}

#[test]
fn modes_that_do_not_go_together() {
    let possible = [[0, 0], [3, 3], [4, 4], [4, 5], [5, 4]];
    for left in 0..=6 {
        for right in 0..=6 {
            let expected = match (possible.contains(&[left, right]), left.max(right)) {
                (true, _) => OK,
                (false, 6) => INVALID,
                (false, _) => UNSUPPORTED,
            };
            let found = scaled([left, right]).make().0;
            // Either error may be reported first.
            let both = [left, right].contains(&6) && found == UNSUPPORTED;
            assert!(found == expected || both, "{left} {right}: {found:?}");
        }
    }
    let pairs = [[3u64, 3], [4, 4], [4, 5], [5, 4]];
    for modes in pairs {
        let check = |what: &str, status: Status, change: &dyn Fn(&mut Call)| {
            check(&format!("{what} {modes:?}"), scaled(modes), (status, OK), change);
        };
        check("a narrow D", INVALID, &|call| call.places[3].kind = number(Kind::E4m3));
        check("no factors of B", UNSUPPORTED, &|call| {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 0, 8)
        });
        check("factors that are not aligned", INVALID, &|call| {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, floats(&[1.0; 256]) + 4, 8);
        });
        check("a mode of C", UNSUPPORTED, &|call| {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_C_SCALE_MODE, modes[0], 4)
        });
        check("a mode of D", UNSUPPORTED, &|call| {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_D_SCALE_MODE, modes[0], 4)
        });
        if modes[0] != 3 {
            check("fast accumulation", UNSUPPORTED, &|call| {
                call.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1, 1)
            });
            check("N of 42", UNSUPPORTED, &|call| (1..4).for_each(|index| call.places[index].cols = 42));
            let four = if modes[1] == 4 { UNSUPPORTED } else { OK };
            check("N of 44", four, &|call| (1..4).for_each(|index| call.places[index].cols = 44));
        }
    }
}

#[test]
fn factors_that_are_not_all_there() {
    // (outer of A) x 2 blocks; and columns of four for B's, of which two are used.
    for (modes, bytes) in [
        ([4, 4], [4 * M * 2, 4 * N * 2]),
        ([4, 5], [4 * M * 2, 16]),
        ([5, 4], [16, 4 * N * 2]),
        ([3, 3], [4 * M, 4 * N]),
    ] {
        for less in [[0, 0], [16, 0], [0, 16]] {
            let mut call = scaled(modes);
            let names = [
                Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            ];
            for (index, name) in names.into_iter().enumerate() {
                // Just before the end of an allocation.
                let whole = bytes[index];
                call.set(name, room(whole as u64) + less[index], 8);
            }
            let expected = if less == [0, 0] { OK } else { INVALID };
            assert_eq!(call.make(), (OK, expected), "{modes:?} {less:?}");
        }
    }
}

#[test]
fn memory_that_is_not_there_or_not_aligned() {
    let check = |what: &str, change: &dyn Fn(&mut Call)| check(what, wide(Kind::F32), (OK, INVALID), change);
    let bytes = (4 * M * N) as u64;
    for (index, name) in ["A", "B", "C", "D"].into_iter().enumerate() {
        check(&format!("{name} is null"), &|call| {
            call.beta = 1.0;
            call.places[index].address = 0;
        });
        check(&format!("{name} is not as aligned as promised"), &|call| {
            call.places[index].address = room(1 << 20) + 128;
        });
        check(&format!("{name} is one element too short"), &|call| {
            call.beta = 1.0;
            let Place { rows, ld, cols, .. } = call.places[index];
            call.places[index].address = room(4 * ((cols - 1) * ld as u64 + rows) - 4);
        });
    }
    check("D is A", &|call| call.places[3].address = call.places[0].address);
    check("D overlaps C", &|call| {
        call.beta = 1.0;
        call.places[2].address = room(2 * bytes);
        call.places[3].address = call.places[2].address + 256;
    });
    check("C is D with another layout", &|call| {
        call.places[2].ld = 64;
        call.places[2].address = room(4 * bytes);
        call.places[3].address = call.places[2].address;
    });
    check("no stream", &|call| call.stream = 0);
}

#[test]
fn what_was_promised_may_be_less() {
    let mut call = wide(Kind::Bf16);
    call.alignments = [2; 4];
    let shifted = room(1 << 20) + 2;
    call.places[3].address = shifted;
    assert_eq!(call.make(), (OK, OK));
    call.places[3].address = shifted + 1;
    assert_eq!(call.make(), (OK, INVALID));
    // Without an explicit algorithm, one is chosen for the given arguments.
    call.pick = None;
    call.places[3].address = shifted;
    assert_eq!(call.make(), (OK, OK));
}

#[test]
fn workspaces() {
    let whole = room(1 << 24);
    let check = |what: &str, given: (u64, usize), expected: Status| {
        let mut call = wide(Kind::F32);
        call.given = Some(given);
        assert_eq!(call.make(), (OK, expected), "{what}");
    };
    // The first algorithm splits the sum in two, in f32.
    let wanted = 2 * 4 * M * N;
    check("as much as is wanted", (whole, wanted), OK);
    check("more", (whole, 1 << 24), OK);
    check("less", (whole, wanted - 1), INVALID);
    check("none", (0, 0), INVALID);
    check("null", (0, wanted), INVALID);
    check("not aligned", (whole + 128, wanted), INVALID);
    check("beyond the end", (whole + (1 << 24) - 256, wanted), INVALID);
    let mut call = wide(Kind::F32);
    call.workspace = wanted as u64 - 1;
    call.given = Some((0, 0));
    assert_eq!(call.make(), (OK, OK), "nothing that wants more than is allowed is returned");
    let mut call = wide(Kind::F32);
    call.given = Some((call.places[1].address, 4 * K * N));
    assert_eq!(call.make(), (OK, INVALID), "the workspace is B");
}

#[test]
fn algorithms_are_for_what_they_were_chosen_for() {
    let call = wide(Kind::Bf16);
    assert_eq!(call.make_by(|algo| algo.data[1] ^= 1), (OK, INVALID));
    assert_eq!(call.make_by(|algo| algo.data = [0; 8]), (OK, INVALID));
    let mut other = None;
    assert_eq!(wide(Kind::F16).make_by(|algo| other = Some(*algo)), (OK, OK));
    assert_eq!(call.make_by(|algo| *algo = other.unwrap()), (OK, INVALID));
    let mut same = None;
    assert_eq!(wide(Kind::Bf16).make_by(|algo| same = Some(*algo)), (OK, OK));
    assert_eq!(call.make_by(|algo| *algo = same.unwrap()), (OK, OK));
}

#[test]
fn memory_that_is_gone_when_the_product_runs() {
    stream();
    let mut product = null_mut();
    let mut plain = null_mut();
    // SAFETY: valid addresses.
    unsafe {
        cublasLtMatmulDescCreate(&mut product, Compute::CUBLAS_COMPUTE_32F as u32, 0);
        cublasLtMatrixLayoutCreate(&mut plain, 0, 8, 8, 8);
    }
    let (product, plain) = (operation(product).unwrap(), layout(plain, "all").unwrap());
    let problem = Problem::of(&product, [&plain; 4]).unwrap();
    let addresses: [u64; 4] = std::array::from_fn(|_| room(256));
    let job =
        Job { problem, addresses, alpha: Scalar::Host(1.0), beta: Scalar::Host(0.0), workspace: (0, 0) };
    assert!(job.run().is_ok());
    state().free(addresses[1]).unwrap();
    assert!(job.run().unwrap_err().starts_with("B: "));
}
