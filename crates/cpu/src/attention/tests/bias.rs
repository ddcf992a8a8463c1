//! Biases by distance: of packed, grouped, cached and far tokens, and their gradients' bits.

use super::*;

/// A problem with a table of biases.
fn biased(elem: Elem, tokens: usize, heads: [usize; 2], buckets: Buckets) -> Problem {
    problem(elem, tokens, heads[0], heads[1], 64).with(|p| {
        let table = noise(11, heads[0] * buckets.count).into_iter().map(|x| 3.0 * x).collect();
        p.bias = Some((table, buckets));
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
