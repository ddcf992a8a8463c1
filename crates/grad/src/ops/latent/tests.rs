//! Keys and values of several sizes against the reference, and the cut after attention.

use super::LatentUse;
use super::reference::{latent, trim};
use crate::testing::{self, Matrix, Rotation, Stream};

#[track_caller]
fn check(tokens: usize, how: LatentUse) {
    let width = how.heads * (how.own + how.value);
    let mut stream = Stream::documents(&[tokens], None, 1);
    stream.rotation = Some(Rotation::standard(how.rotated, 1.2));
    testing::check(&testing::Case {
        what: format!("{tokens} tokens, {how:?}"),
        cols: width + how.rotated + 1,
        params: vec![],
        wide_params: false,
        stream: stream.clone(),
        record: &|cx, x, _| {
            let [kv, shared, _] = cx.split(["kv", "shared", "none"], x, [width, how.rotated, 1], None);
            let [k, v] = cx.latent(["k", "v"], kv, shared, how);
            let v = cx.trim("cut", v, how.heads, how.value.max(2) - 1);
            testing::join(cx, &[k, v])
        },
        reference: &|x, _| {
            let (kv, shared) = (x.columns(0..width), x.columns(width..width + how.rotated));
            let [k, v] = latent(&kv, &shared, &stream, how);
            Matrix::join(&[k, trim(&v, how.heads, how.value.max(2) - 1)])
        },
        penalty: None,
    });
}

#[test]
fn keys_and_values_of_latents() {
    let how = LatentUse { heads: 3, own: 6, rotated: 4, value: 7, table: 0, interleaved: true };
    check(9, how);
    check(140, LatentUse { interleaved: false, ..how });
    check(5, LatentUse { heads: 1, value: 10, ..how });
}
