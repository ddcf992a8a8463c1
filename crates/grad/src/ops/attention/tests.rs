//! Heads, windows, packed documents, caps and sinks against the reference.

use fathom_tensor::{Buckets, DistanceTerms, Slice};

use super::call::{AttentionUse, Keys};
use super::reference::attention;
use crate::testing::{self, Matrix, Stream};

/// One attention layer.
#[derive(Clone, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    softcap: f32,
    sinks: bool,
    stream: Stream,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, stream: Stream) -> Case {
        Case { heads, kv_heads, head_dim, softcap: 0.0, sinks: false, stream }
    }
}

#[track_caller]
fn check(case: &Case) {
    let Case { heads, kv_heads, head_dim, softcap, sinks, ref stream } = *case;
    let (q, k) = (heads * head_dim, kv_heads * head_dim);
    let how = AttentionUse {
        keys: Keys::Own,
        mask: 0,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap,
        apart: None,
        slopes: false,
    };
    let parts = |x: &Matrix| [x.columns(0..q), x.columns(q..q + k), x.columns(q + k..q + 2 * k)];
    testing::check(&testing::Case {
        what: format!(
            "{heads} heads on {kv_heads} of {head_dim}, cap {softcap}, sinks {sinks}, {:?}",
            stream.slices
        ),
        cols: q + 2 * k,
        params: if sinks { vec![Matrix::random(1, heads, 5)] } else { vec![] },
        wide_params: true,
        stream: stream.clone(),
        record: &|cx, x, p| {
            let [q, k, v] = cx.split(["q", "k", "v"], x, [q, k, k], None);
            cx.attention(q, k, v, how, p.first().copied())
        },
        reference: &|x, p| {
            let [q, k, v] = parts(x);
            attention([&q, &k, &v], stream, how, p.first(), None)
        },
        penalty: None,
    });
}

fn documents(lengths: &[usize], window: Option<usize>) -> Stream {
    Stream::documents(lengths, window, 1)
}

#[test]
fn causal_of_many_shapes() {
    for (heads, kv_heads, head_dim) in
        [(1, 1, 16), (4, 2, 16), (4, 1, 32), (2, 2, 80), (3, 3, 64), (2, 1, 128)]
    {
        check(&Case::new(heads, kv_heads, head_dim, documents(&[37], None)));
    }
    check(&Case::new(2, 1, 16, documents(&[1], None)));
    check(&Case::new(2, 1, 16, documents(&[150], None)));
}

#[test]
fn windows() {
    for window in [1, 2, 7, 16, 100] {
        check(&Case::new(2, 1, 16, documents(&[45], Some(window))));
    }
}

#[test]
fn packed_documents() {
    check(&Case::new(2, 1, 16, documents(&[1, 20, 3, 17], None)));
    check(&Case::new(2, 2, 16, documents(&[60, 70], Some(9))));
}

#[test]
fn every_row_sees_every_row() {
    let mut stream = documents(&[29], None);
    stream.slices = vec![Slice::full(0..29, 0..29)];
    check(&Case::new(4, 2, 16, stream));
}

#[test]
fn rows_without_a_key_are_zero() {
    let mut stream = documents(&[24], None);
    stream.slices = vec![Slice::causal(0..10, 0..10, None), Slice::causal(15..24, 15..24, None)];
    check(&Case::new(2, 1, 16, stream));
}

#[test]
fn softcap_and_sinks() {
    for (softcap, sinks) in [(3.0, false), (0.0, true), (2.0, true)] {
        check(&Case { softcap, sinks, ..Case::new(4, 2, 16, documents(&[11, 30], None)) });
        check(&Case { softcap, sinks, ..Case::new(2, 2, 32, documents(&[40], Some(6))) });
    }
}

/// Unscaled scores with biases by distance.
#[track_caller]
fn check_biased(heads: usize, kv_heads: usize, buckets: Buckets, stream: &Stream) {
    let (head_dim, q, k) = (16, heads * 16, kv_heads * 16);
    let how = AttentionUse {
        keys: Keys::Own,
        mask: 0,
        head_dim,
        scale: 0.5,
        softcap: 0.0,
        apart: None,
        slopes: false,
    };
    testing::check(&testing::Case {
        what: format!("{heads} heads on {kv_heads}, {buckets:?}, {:?}", stream.slices),
        cols: q + 2 * k,
        params: vec![Matrix::random(buckets.count, heads, 5)],
        wide_params: true,
        stream: stream.clone(),
        record: &|cx, x, p| {
            let qkv = cx.split(["q", "k", "v"], x, [q, k, k], None);
            let table = cx.table("bias", p[0]);
            cx.biased_attention(qkv, (table, buckets), how)
        },
        reference: &|x, p| {
            let [q, k, v] = [x.columns(0..q), x.columns(q..q + k), x.columns(q + k..q + 2 * k)];
            let bias = (&p[0], DistanceTerms::Buckets(buckets));
            attention([&q, &k, &v], stream, how, None, Some(bias))
        },
        penalty: None,
    });
}

#[test]
fn biases_by_distance() {
    let causal = Buckets { count: 8, two_sided: false, max_distance: 20 };
    let both = Buckets { two_sided: true, ..causal };
    check_biased(2, 2, causal, &documents(&[45], None));
    check_biased(4, 2, causal, &documents(&[20, 1, 17], None));
    let mut stream = documents(&[40], None);
    stream.slices = vec![Slice::full(0..40, 0..40)];
    check_biased(2, 2, both, &stream);
}

/// Slopes by distance.
#[track_caller]
fn check_sloped(heads: usize, kv_heads: usize, stream: Stream) {
    let (head_dim, q, k) = (16, heads * 16, kv_heads * 16);
    let how = AttentionUse {
        keys: Keys::Own,
        mask: 0,
        head_dim,
        scale: 0.5,
        softcap: 0.0,
        apart: None,
        slopes: true,
    };
    let slopes: Vec<f32> = (0..heads).map(|head| 0.5f32.powi(head as i32)).collect();
    let mut row = Matrix::zeros(1, heads);
    slopes.iter().enumerate().for_each(|(head, slope)| row[(0, head)] = f64::from(*slope));
    let stream = &Stream { slopes: Some(slopes), ..stream };
    testing::check(&testing::Case {
        what: format!("{heads} sloped heads on {kv_heads}, {:?}", stream.slices),
        cols: q + 2 * k,
        params: vec![],
        wide_params: true,
        stream: stream.clone(),
        record: &|cx, x, _| {
            let [q, k, v] = cx.split(["q", "k", "v"], x, [q, k, k], None);
            cx.attention(q, k, v, how, None)
        },
        reference: &|x, _| {
            let [q, k, v] = [x.columns(0..q), x.columns(q..q + k), x.columns(q + k..q + 2 * k)];
            attention([&q, &k, &v], stream, how, None, Some((&row, DistanceTerms::Slopes)))
        },
        penalty: None,
    });
}

#[test]
fn slopes_by_distance() {
    check_sloped(2, 2, documents(&[45], None));
    check_sloped(4, 2, documents(&[20, 1, 17], None));
    check_sloped(3, 1, documents(&[50], Some(9)));
}
