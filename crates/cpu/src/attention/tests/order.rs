//! The order rules: no result depends on threads or on what is computed beside it.

use super::*;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn threads_do_not_change_a_bit() {
    for isa in families() {
        for elem in [Elem::F32, Elem::Bf16] {
            for (tokens, heads, kv_heads) in [(700, 2, 1), (300, 6, 3)] {
                let p = problem(elem, tokens, heads, kv_heads, 64)
                    .documents(&[tokens / 3, tokens], None)
                    .with(|p| p.sinks = Some(noise(5, heads)));
                let one = p.run(isa, 1);
                for threads in [2, 3, 5] {
                    assert_eq!(one, p.run(isa, threads), "{} {elem:?} {threads} threads", isa.name());
                }
            }
        }
    }
}

/// Rows `from..from + count` of the queries of `p` against all its keys.
fn part(p: &Problem, from: usize, count: usize) -> Problem {
    let width = p.shape.heads * p.shape.head_dim;
    let rows = from * width..(from + count) * width;
    Problem {
        shape: Shape { q_tokens: count, ..p.shape },
        elem: p.elem,
        options: p.options,
        slices: p
            .slices
            .iter()
            .map(|s| Slice { q_start: s.q_start - from as i64, q_end: s.q_end - from as i64, ..*s })
            .collect(),
        pos_q: p.pos_q[from..from + count].to_vec(),
        pos_k: p.pos_k.clone(),
        q: p.q[rows.clone()].to_vec(),
        k: p.k.clone(),
        v: p.v.clone(),
        dout: p.dout[rows].to_vec(),
        sinks: p.sinks.clone(),
    }
}

fn rows_alone_equal_rows_together(name: &str, p: &Problem) {
    let width = p.shape.heads * p.shape.head_dim;
    for isa in families() {
        let whole = p.run(isa, 2);
        for (from, count) in [(0, 1), (1, 1), (131, 1), (299, 1), (255, 2), (100, 57), (3, 290)] {
            // One thread: the key heads of a short part then share a task.
            let got = part(p, from, count).run(isa, 1);
            let what = format!("{name}, {}, {:?}, rows {from}+{count}", isa.name(), p.elem);
            let rows = from * width..(from + count) * width;
            assert_eq!(bits(&whole.out[rows.clone()]), bits(&got.out), "{what}: out");
            let lse = from * p.shape.heads..(from + count) * p.shape.heads;
            assert_eq!(bits(&whole.lse[lse]), bits(&got.lse), "{what}: lse");
            assert_eq!(bits(&whole.dq[rows]), bits(&got.dq), "{what}: dq");
        }
    }
}

#[test]
fn a_row_alone_has_the_bits_it_has_in_a_prefill() {
    for elem in [Elem::F32, Elem::Bf16] {
        rows_alone_equal_rows_together("causal", &problem(elem, 300, 4, 2, 64));
        // Hard scores move the softmax reference of some rows and not of others.
        let hard = problem(elem, 300, 3, 1, 80).with(|p| p.options.scale *= 12.0);
        rows_alone_equal_rows_together("hard", &hard.documents(&[70, 300], None));
    }
}

#[test]
fn keys_that_no_row_sees_do_not_matter() {
    // More keys behind the causal edge, as in a cache with room: the same bits.
    for isa in families() {
        for elem in [Elem::F32, Elem::Bf16] {
            let long = problem(elem, 400, 4, 2, 64);
            let width = long.shape.kv_heads * long.shape.head_dim;
            let (long, mut short) = (part(&long, 0, 150), part(&long, 0, 150));
            short.shape.k_tokens = 150;
            short.pos_k.truncate(150);
            short.k.truncate(150 * width);
            short.v.truncate(150 * width);
            let (a, b) = (long.run(isa, 2), short.run(isa, 2));
            assert_eq!(bits(&a.out), bits(&b.out));
            assert_eq!(bits(&a.dq), bits(&b.dq));
            assert_eq!(bits(&a.dk[..150 * width]), bits(&b.dk));
            assert!(a.dk[150 * width..].iter().chain(&a.dv[150 * width..]).all(|&x| x == 0.0));
        }
    }
}
