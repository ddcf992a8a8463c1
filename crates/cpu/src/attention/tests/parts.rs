//! Keys in parts: outputs and query gradients accumulate from part to part in f32, and match those over all keys.

use std::ops::Range;

use super::*;

/// Runs forward over the parts of the keys in order, then backward over the parts from the results of all.
fn run_in_parts(p: &Problem, isa: Isa, parts: &[Range<usize>]) -> Results {
    let (shape, elem) = (p.shape, p.elem);
    let (qw, kw) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let pool = Threads::new(2);
    let [q, dout] = [&p.q, &p.dout].map(|x| StridedTensor::new(x, qw, elem));
    let mut out = StridedTensor::new(&vec![7.0; p.q.len()], qw, Elem::F32);
    let mut lse = vec![7.0; shape.q_tokens * shape.heads];
    let part = |keys: &Range<usize>| {
        let [k, v] = [&p.k, &p.v].map(|x| StridedTensor::new(&x[keys.start * kw..keys.end * kw], kw, elem));
        let moved = |slice: &Slice| {
            let at = |key: i64| (key - keys.start as i64).clamp(0, keys.len() as i64);
            Slice { k_start: at(slice.k_start), k_end: at(slice.k_end), ..*slice }
        };
        let slices: Vec<Slice> = p.slices.iter().map(moved).collect();
        (k, v, slices, Shape { k_tokens: keys.len(), ..shape })
    };
    for (index, keys) in parts.iter().enumerate() {
        let (k, v, slices, shape) = part(keys);
        let mut work = vec![0xffu8; workspace_bytes_forward(isa, 2, &shape, elem, slices.len())];
        let last = index + 1 == parts.len();
        let mask =
            MaskOperands { slices: &slices, pos_q: &p.pos_q, pos_k: &p.pos_k[keys.clone()], pages: None };
        let (options, [q, k, v]) = (p.options, [q.rows(), k.rows(), v.rows()]);
        let (sinks, to) = (p.sinks.as_deref().filter(|_| last), out.rows_mut());
        let (sums, resume) = (lse.as_mut_ptr(), index > 0);
        let op =
            Forward { shape, elem, options, mask, q, k, v, sinks, bias: None, out: to, lse: sums, resume };
        // SAFETY: the buffers have the extents.
        unsafe { forward(&pool, isa, &op, work.as_mut_ptr()) }
    }
    let narrow = StridedTensor::new(&rounded(&out.values(), elem), qw, elem);
    let mut dq = StridedTensor::new(&vec![7.0; p.q.len()], qw, Elem::F32);
    let [mut dk, mut dv] = [vec![0.0; p.k.len()], vec![0.0; p.v.len()]];
    for (index, keys) in parts.iter().enumerate() {
        let (k, v, slices, shape) = part(keys);
        let mut work = vec![0xffu8; workspace_bytes_backward(isa, 2, &shape, elem, slices.len())];
        let [mut dk_part, mut dv_part] =
            [(); 2].map(|()| StridedTensor::new(&vec![7.0; keys.len() * kw], kw, Elem::F32));
        let op = Backward {
            shape,
            elem,
            options: p.options,
            mask: MaskOperands {
                slices: &slices,
                pos_q: &p.pos_q,
                pos_k: &p.pos_k[keys.clone()],
                pages: None,
            },
            q: q.rows(),
            k: k.rows(),
            v: v.rows(),
            out: narrow.rows(),
            lse: lse.as_ptr(),
            dout: dout.rows(),
            dq: dq.rows_mut(),
            dk: dk_part.rows_mut(),
            dv: dv_part.rows_mut(),
            accumulate: index > 0,
            bias: None,
        };
        // SAFETY: the buffers have the extents.
        unsafe { backward(&pool, isa, &op, work.as_mut_ptr()) }
        for (all, part) in [(&mut dk, dk_part), (&mut dv, dv_part)] {
            all[keys.start * kw..keys.end * kw].copy_from_slice(&part.values());
        }
    }
    let d_sinks = p.sink_gradients(&pool, &narrow, &dout, &lse);
    Results { out: out.values(), lse, dq: dq.values(), dk, dv, d_sinks, d_bias: Vec::new() }
}

/// Values rounded to the element type.
fn rounded(values: &[f32], elem: Elem) -> Vec<f32> {
    let near = |x: f32| f32::from_bits((x.to_bits() + 0x7fff + ((x.to_bits() >> 16) & 1)) >> 16 << 16);
    values.iter().map(|x| if elem == Elem::F32 { *x } else { near(*x) }).collect()
}

fn check(name: &str, make: impl Fn(Elem) -> Problem, parts: &[Range<usize>]) {
    for elem in [Elem::F32, Elem::Bf16] {
        let p = make(elem);
        let Reference { out, lse, dq, dk, dv, d_sinks, .. } = reference(&p);
        let limit = if elem == Elem::F32 { 2e-5 } else { 1.2e-2 };
        for isa in families() {
            let (got, once) = (run_in_parts(&p, isa, parts), p.run(isa, 2));
            let results = |r: Results| [r.out, r.dq, r.dk, r.dv, r.lse];
            assert!(p.sinks.is_none() || distance(&got.d_sinks, &d_sinks) <= limit, "{name}: d_sinks");
            let all = results(got).into_iter().zip(results(once)).zip([&out, &dq, &dk, &dv, &lse]);
            for (index, ((got, once), want)) in all.enumerate() {
                // No worse than with all keys at once.
                let (found, least) = (distance(&got, want), distance(&once, want));
                assert!(
                    found <= limit && found <= 2.0 * least + 3e-7,
                    "{name}, {}, {elem:?}: result {index} off by {found:.2e}, at once by {least:.2e}",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn keys_in_parts_come_to_keys_at_once() {
    check("halves", |e| problem(e, 300, 4, 2, 64), &[0..150, 150..300]);
    check("last keys first", |e| problem(e, 300, 2, 1, 80), &[200..300, 0..77, 77..200]);
    check(
        "packed",
        |e| problem(e, 400, 2, 1, 64).documents(&[1, 60, 128, 300, 333, 400], Some(50)),
        &[128..256, 0..128, 256..400],
    );
    check(
        "sinks",
        |e| problem(e, 200, 4, 2, 64).with(|p| p.sinks = Some(vec![-3.0, 0.0, 2.0, 30.0])),
        &[100..200, 0..100],
    );
    check("cap", |e| problem(e, 200, 2, 1, 64).with(|p| p.options.softcap = 2.0), &[0..100, 100..200]);
    check(
        "large scores",
        |e| problem(e, 300, 2, 1, 64).with(|p| p.options.scale *= 30.0),
        &[150..300, 0..150],
    );
}
