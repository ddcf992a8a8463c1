//! The order rules: no result depends on threads or on the rows computed with it.

use super::super::shape::KEYS;
use super::*;

pub fn bits(x: &[f32]) -> Vec<u32> {
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
        bias: p.bias.clone(),
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
        // Large scores move the softmax reference of some rows and not of others.
        let hard = problem(elem, 300, 3, 1, 80).with(|p| p.options.scale *= 12.0);
        rows_alone_equal_rows_together("hard", &hard.documents(&[70, 300], None));
    }
}

/// A document that begins at a unit of sums and does not reach the next block, or begins at a block, has the same bits
/// as on its own.
#[test]
fn where_a_document_begins_does_not_matter() {
    for (start, tokens) in [(32, 96), (64, 33), (96, 20), (128, 300)] {
        for elem in [Elem::F32, Elem::Bf16] {
            let whole = problem(elem, start + tokens, 4, 2, 64).documents(&[start, start + tokens], None);
            let alone = problem(elem, tokens, 4, 2, 64).with(|p| {
                let last = |x: &[f32], width: usize| x[start * width..].to_vec();
                (p.q, p.dout) = (last(&whole.q, 256), last(&whole.dout, 256));
                (p.k, p.v) = (last(&whole.k, 128), last(&whole.v, 128));
            });
            for isa in families() {
                let (whole, alone) = (whole.run(isa, 2), alone.run(isa, 1));
                let what = format!("{}, {elem:?}, {tokens} from {start}", isa.name());
                assert_eq!(bits(&whole.out[start * 256..]), bits(&alone.out), "{what}: out");
                assert_eq!(bits(&whole.lse[start * 4..]), bits(&alone.lse), "{what}: lse");
            }
        }
    }
}

#[test]
fn keys_that_no_row_sees_do_not_matter() {
    // More keys behind the causal edge, as in a cache with room, give the same bits.
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

/// Keys and values of `p` in pages of a larger tensor, in the given order; the rest of the tensor is unusable values.
fn paged(p: &Problem, order: &[usize]) -> (Vec<f32>, Vec<f32>, Vec<i32>) {
    let width = p.shape.kv_heads * p.shape.head_dim;
    let pages: Vec<i32> =
        order.iter().take(p.shape.k_tokens.div_ceil(KEYS)).map(|page| *page as i32).collect();
    let spread = |rows: &[f32]| {
        let mut all = noise(9, order.len() * KEYS * width);
        for (block, page) in pages.iter().enumerate() {
            let from = block * KEYS * width..rows.len().min((block + 1) * KEYS * width);
            let to = *page as usize * KEYS * width;
            all[to..to + from.len()].copy_from_slice(&rows[from]);
        }
        all
    };
    (spread(&p.k), spread(&p.v), pages)
}

/// Outputs and log-sum-exps with keys and values in pages of a format.
pub fn run_in_pages(p: &Problem, isa: Isa, threads: usize, format: PageFormat) -> (Vec<f32>, Vec<f32>) {
    let (shape, elem) = (p.shape, p.elem);
    let [q_width, k_width] = [shape.heads, shape.kv_heads].map(|heads| heads * shape.head_dim);
    let (k, v, pages) = paged(p, &[7, 2, 5, 0, 3, 6, 1, 4]);
    let pool = Threads::new(threads);
    let q = StridedTensor::new(&p.q, q_width, elem);
    let [k, v] = [&k, &v].map(|rows| StridedTensor::new(rows, k_width, elem));
    let out_bytes = shape.kv_heads * format.head_bytes(shape.head_dim, fathom_tensor::DType::F32) + 3;
    let packed = [&k, &v].map(|x| {
        let rows = x.data.len() / x.stride / elem.bytes();
        let mut out = vec![0u8; rows * out_bytes];
        if format != PageFormat::Plain {
            let (heads, head_dim) = (shape.kv_heads, shape.head_dim);
            let (out, life) = (out.as_mut_ptr(), std::marker::PhantomData);
            let rows = pages::PackRows { x: x.mat(), rows, heads, head_dim, format, out, out_bytes, life };
            // SAFETY: both have the rows.
            unsafe { pages::pack(&pool, &rows) };
        }
        out
    });
    let [k, v] = if format == PageFormat::Plain {
        [k.rows(), v.rows()]
    } else {
        packed.each_ref().map(|rows| Rows { data: rows.as_ptr(), stride: out_bytes })
    };
    let mut out = StridedTensor::new(&vec![7.0; p.q.len()], q_width, elem);
    let mut lse = vec![7.0; shape.q_tokens * shape.heads];
    let bytes = workspace_bytes_forward(isa, threads, &shape, elem, p.slices.len());
    let mut work = [vec![0xffu8; bytes], vec![0xa5; 256]].concat();
    let op = Forward {
        shape,
        elem,
        options: p.options,
        mask: MaskOperands { pages: Some(PageTable { pages: &pages, format }), ..p.mask() },
        q: q.rows(),
        k,
        v,
        sinks: p.sinks.as_deref(),
        bias: None,
        out: out.rows_mut(),
        lse: lse.as_mut_ptr(),
        resume: false,
    };
    // SAFETY: all tensors have the extents given by the shape and the pages.
    unsafe { forward(&pool, isa, &op, work.as_mut_ptr()) };
    assert!(work[bytes..].iter().all(|byte| *byte == 0xa5), "wrote behind the workspace: {shape:?}");
    (out.values(), lse)
}

#[test]
fn where_pages_are_does_not_matter() {
    for isa in families() {
        for elem in [Elem::F32, Elem::Bf16] {
            for (queries, kv_heads) in [(1, 2), (200, 1)] {
                let p = part(&problem(elem, 700, 4, kv_heads, 64), 500, queries);
                let want = p.run(isa, 2);
                let (out, lse) = run_in_pages(&p, isa, 2, PageFormat::Plain);
                assert_eq!(bits(&out), bits(&want.out), "{} {elem:?}", isa.name());
                assert_eq!(bits(&lse), bits(&want.lse), "{} {elem:?}", isa.name());
            }
        }
    }
}
