//! Columns `[q | k | v]` of a fused projection as three; q and k rotated as in [`crate::ops::rope`].

use crate::ops::rope::RopeUse;
use crate::ops::rope::reference::rope;
use crate::testing::{Matrix, Stream};

/// x [t, sum of widths] to three matrices of `widths` columns.
pub(crate) fn split(x: &Matrix, widths: [usize; 3], stream: &Stream, how: Option<RopeUse>) -> [Matrix; 3] {
    let [q, k, v] = widths;
    let parts = [x.columns(0..q), x.columns(q..q + k), x.columns(q + k..q + k + v)];
    let Some(how) = how else { return parts };
    let [q, k, v] = parts;
    [rope(&q, stream, how), rope(&k, stream, how), v]
}
