//! Biases by distance: of packed, grouped, cached and far tokens, and their gradients' bits.

use super::*;
use crate::attention::shape::KEYS;

/// A problem with a table of biases.
fn biased(elem: Elem, tokens: usize, heads: [usize; 2], buckets: Buckets) -> Problem {
    problem(elem, tokens, heads[0], heads[1], 64).with(|p| {
        let table = noise(11, heads[0] * buckets.count).into_iter().map(|x| 3.0 * x).collect();
        p.bias = Some((table, DistanceTerms::Buckets(buckets)));
        p.shape.span = buckets.max_distance;
    })
}

const CAUSAL: Buckets = Buckets { count: 32, two_sided: false, max_distance: 128 };
const TWO_SIDED: Buckets = Buckets { two_sided: true, ..CAUSAL };

#[test]
fn biases_follow_the_reference() {
    let full = |p: &mut Problem| p.slices = vec![Slice::full(0..p.shape.q_tokens, 0..p.shape.k_tokens)];
    check_both("causal, far", |e| biased(e, 400, [2, 2], CAUSAL));
    check_both("both sides, far", |e| biased(e, 400, [2, 2], TWO_SIDED).with(full));
    let few = Buckets { count: 6, two_sided: true, max_distance: 9 };
    check_both("few buckets, groups", |e| biased(e, 200, [4, 2], few).with(full));
    check_both("groups, causal", |e| biased(e, 170, [3, 1], CAUSAL));
    check_both("packed", |e| biased(e, 300, [2, 2], CAUSAL).documents(&[1, 60, 128, 220, 300], None));
    check_both("descending", |e| biased(e, 200, [2, 1], CAUSAL).with(|p| p.pos_k.reverse()));
    check_both("one query", |e| biased(e, 300, [8, 8], CAUSAL).rows(1, 299));
    check_both("a chunk with sinks", |e| {
        biased(e, 500, [2, 2], CAUSAL).rows(170, 330).with(|p| p.sinks = Some(vec![-1.0, 2.0]))
    });
    check_both("unscaled", |e| biased(e, 150, [2, 2], TWO_SIDED).with(full).with(|p| p.options.scale = 1.0));
}

/// A problem with slopes, of which one is 0.
fn sloped(elem: Elem, tokens: usize, heads: [usize; 2]) -> Problem {
    problem(elem, tokens, heads[0], heads[1], 64).with(|p| {
        let slopes = (0..heads[0]).map(|head| 0.3 * head as f32).collect();
        p.bias = Some((slopes, DistanceTerms::Slopes));
    })
}

#[test]
fn slopes_follow_the_reference() {
    check_both("causal, far", |e| sloped(e, 400, [2, 2]));
    check_both("groups", |e| sloped(e, 170, [3, 1]));
    check_both("packed", |e| sloped(e, 300, [4, 2]).documents(&[1, 60, 128, 220, 300], None));
    check_both("descending", |e| sloped(e, 200, [2, 1]).with(|p| p.pos_k.reverse()));
    check_both("one query", |e| sloped(e, 300, [8, 8]).rows(1, 299));
    check_both("a window", |e| sloped(e, 300, [2, 2]).documents(&[300], Some(40)));
    check_both("a chunk with sinks", |e| {
        sloped(e, 500, [2, 2]).rows(170, 330).with(|p| p.sinks = Some(vec![-1.0, 2.0]))
    });
}

/// A document that begins with a block of keys has the bits that it has alone.
#[test]
fn slopes_of_a_document_do_not_depend_on_those_before_it() {
    let (tokens, width) = (150, 2 * 64);
    for elem in [Elem::F32, Elem::Bf16] {
        for isa in families() {
            for before in [KEYS, 3 * KEYS] {
                let packed =
                    sloped(elem, before + tokens, [2, 2]).documents(&[before, before + tokens], None);
                let mut alone = sloped(elem, tokens, [2, 2]);
                for (own, all) in [&mut alone.q, &mut alone.k, &mut alone.v, &mut alone.dout]
                    .into_iter()
                    .zip([&packed.q, &packed.k, &packed.v, &packed.dout])
                {
                    own.copy_from_slice(&all[before * width..]);
                }
                let (packed, alone) = (packed.run(isa, 2), alone.run(isa, 1));
                assert!(packed.out[before * width..] == alone.out[..], "{}, {before} before", isa.name());
            }
        }
    }
}

#[test]
#[should_panic(expected = "slopes have no gradient")]
fn slopes_are_constants() {
    let (slopes, mut gradient) = ([0.5f32], [0.0f32]);
    let bias = Bias {
        table: slopes.as_ptr(),
        gradient: gradient.as_mut_ptr(),
        strides: [1; 2],
        terms: DistanceTerms::Slopes,
    };
    let Problem { shape, options, .. } = problem(Elem::F32, 4, 1, 1, 8);
    shape.check_bias(&options, Some(&bias));
}

#[test]
fn gradients_of_biases_do_not_depend_on_threads() {
    for elem in [Elem::F32, Elem::Bf16] {
        let p = biased(elem, 1500, [2, 2], CAUSAL);
        for isa in families() {
            let one = p.run(isa, 1);
            for threads in [2, 3, 7] {
                assert!(one == p.run(isa, threads), "{}, {threads} threads", isa.name());
            }
        }
    }
}

#[test]
#[should_panic(expected = "biases of capped scores")]
fn capped_scores_have_no_biases() {
    biased(Elem::F32, 4, [1, 1], CAUSAL).with(|p| p.options.softcap = 2.0).run(Isa::Portable, 1);
}
